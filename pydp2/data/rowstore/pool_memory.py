"""Compose the store of each pass of a job: of what the cache has, what may stay on other hosts, and memory here."""

from __future__ import annotations

from pydp2.data.rowstore.append_only import AppendOnlyStore
from pydp2.data.rowstore.base import RowMemory, RowStore
from pydp2.data.rowstore.composite import CompositeStore
from pydp2.data.rowstore.heap import HeapStore
from pydp2.data.rowstore.host_rows import RowServers
from pydp2.data.rowstore.pass_view import PassView
from pydp2.data.schema.input_types import Slots


class PoolMemory:
    """Memory of the passes of a job with samples of ``slots``, one pass at a time.

    ``shared``: where their rows lie, with those of other jobs; None: in memory of the job's own. ``row_servers``: those
    of other hosts; None: there are none.
    """

    def __init__(self, slots: Slots, shared: RowMemory | None = None, row_servers: RowServers | None = None) -> None:
        self._slots = slots
        self._shared = shared
        self._row_servers = row_servers
        self._own: HeapStore | None = None
        self.rows_stay = False
        """True if rows of the present pass may stay on the hosts of their workers."""
        self._never_on: frozenset[int] = frozenset()  # hosts that had no rows any more when the pass began

    def open_pass(self, cache: AppendOnlyStore | None = None, *, values_needed: bool = True) -> RowStore:
        """Return a store for the rows of a pass: those that lie in ``cache`` stay there. ``values_needed``: what rows
        hold is needed here, so none may stay on another host."""
        here = PassView(self._memory())
        if cache is not None:
            return CompositeStore(cache, here)
        if values_needed or self._row_servers is None:
            return here
        self.rows_stay, self._never_on = True, self._row_servers.off
        return CompositeStore(PassView(self._row_servers), here)

    def _memory(self) -> RowMemory:
        if self._shared is not None:
            return self._shared
        if self._own is None:
            self._own = HeapStore(self._slots)
        return self._own

    def close_pass(self, store: RowStore) -> None:
        """Give back what is left of the pass that has ``store``."""
        if store.close():
            self._own = None  # batches of the pass may be on their way; rows of others must not lie there meanwhile
        self.rows_stay = False

    def may_have_rows_on(self, host: int) -> bool:
        """Return True if rows of the present pass may be on ``host``, or on their way to there."""
        return self.rows_stay and host not in self._never_on
