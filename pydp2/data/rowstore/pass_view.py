"""Know the rows that one pass has in memory which other passes share, so that its end gives them all back."""

from __future__ import annotations

from typing import Any

import numpy as np

from pydp2.data.columns.columns import Ints
from pydp2.data.rowstore.base import RowMemory
from pydp2.data.rowstore.gather import mark_released
from pydp2.data.rowstore.ids import grown

_FIRST_IDS = 1 << 14


class PassView:
    """Rows of one pass in ``memory``. Closing it gives back what is left of them.

    Batches of a pass may outlive it: whoever has one gives it back after :meth:`close`, which has done it already.
    """

    __slots__ = (
        "_is_closed",
        "_live",
        "_memory",
        "carried_bytes",
        "handles",
        "holds",
        "lengths",
        "shared_row_count",
        "sources",
        "split",
        "take",
    )

    def __init__(self, memory: RowMemory) -> None:
        self._memory = memory
        self._live = np.zeros(_FIRST_IDS, np.bool_)
        self._is_closed = False
        # Rows are read where they lie: for each batch, so no call of a method here stands in between.
        self.take, self.sources, self.lengths = memory.take, memory.sources, memory.lengths
        self.handles, self.shared_row_count = memory.handles, memory.shared_row_count
        self.carried_bytes, self.split, self.holds = memory.carried_bytes, memory.split, memory.holds

    def __len__(self) -> int:
        """Return the number of rows of the pass."""
        return int(np.count_nonzero(self._live))

    @property
    def held_bytes(self) -> int:
        """Number of bytes of the memory that rows of all passes have or had."""
        return self._memory.held_bytes

    def append(self, columns: Any) -> Ints:
        """Keep all rows of ``columns`` and return their ids ``(rows,)``, valid until released. Raises RuntimeError if
        the pass is over."""
        if self._is_closed:
            raise RuntimeError("the store is closed: its pass is over")
        ids = self._memory.append(columns)
        if self._memory.high_water > len(self._live):
            self._live = grown(self._live, 2 * self._memory.high_water)
        self._live[ids] = True
        return ids

    def release_later(self, ids: Ints) -> None:
        """Give the rows back; :meth:`close` has done it for all. Raises KeyError for an id that is not live, or given
        twice."""
        if self._is_closed or not len(ids):
            return
        if not mark_released(self._live, np.ascontiguousarray(ids, np.int64)):
            raise KeyError(f"rows are given back once, and only live ones; got {ids.tolist()[:20]}")
        self._memory.release_later(ids)

    def close(self) -> int:
        """Give back all rows that are left, and return their number: the pass is over, and no batch of it is wanted any
        more."""
        left = np.flatnonzero(self._live)
        self._is_closed, self._live = True, np.zeros(0, np.bool_)
        if len(left):
            self._memory.release_later(left)
        return len(left)
