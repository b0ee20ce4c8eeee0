"""Compose the store of each pass of a job: of what the cache has, what may stay on other hosts, and memory here."""

from __future__ import annotations

from collections.abc import Sequence

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
        self.names_suffice = False
        """True if rows of the present pass may come as names of rows that lie elsewhere."""
        self._never_on: frozenset[int] = frozenset()  # hosts that had no rows any more when the pass began
        self._loss_count = 0  # of the row servers then
        self._has_given_up = False  # rows on hosts that cannot be reached

    def open_pass(self, cache: AppendOnlyStore | None = None, *, values_needed: bool = True) -> RowStore:
        """Return a store for the rows of a pass: those that lie in ``cache`` stay there. ``values_needed``: what rows
        hold is needed here, so none may stay on another host."""
        here = PassView(self._memory())
        if cache is not None:
            return CompositeStore(cache, here)
        if values_needed or self._row_servers is None:
            return here
        self.names_suffice, self._never_on = True, self._row_servers.off
        self._loss_count, self._has_given_up = self._row_servers.loss_count, False
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
        self.names_suffice = False

    @property
    def has_lost_rows(self) -> bool:
        """True if rows of the present pass may be lost: it has to be taken up again."""
        if not self.names_suffice or self._row_servers is None:
            return False
        return self._has_given_up or self._loss_count != self._row_servers.loss_count

    def give_up(self, addresses: Sequence[object]) -> dict[int, str]:
        """Note that a trainer cannot fetch rows at ``addresses``: those that the present pass has there are lost, and
        no more rows are to stay on these hosts. Return the hosts that have to be told, with their addresses."""
        servers = self._row_servers
        if servers is None:
            return {}
        # A row server that is not found is gone, and that was seen here.
        found = {host: str(address) for address in addresses if (host := servers.host_at(address)) is not None}
        # If another rank has given one up before, the pass has been taken up without rows there.
        lost = {host: address for host, address in found.items() if servers.turn_off(host) or self._may_be_on(host)}
        self._has_given_up = self._has_given_up or bool(lost)
        return lost

    def _may_be_on(self, host: int) -> bool:
        """Return True if rows of the present pass may be on ``host``, or on their way to there."""
        return self.names_suffice and host not in self._never_on
