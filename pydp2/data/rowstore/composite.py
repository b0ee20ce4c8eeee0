"""Keep the rows of a pass in two stores: ``first`` has those that lie there already, ``second`` takes the others.

Two compositions exist: the cache in memory with the pool's own memory, for a pass over files of which the cache has
some or takes them as they come; and other hosts with the memory here, for rows that stay where their worker is. The id
of a row is its id in ``first``, or ~ its id in ``second``. So the sign bit says where a row lies, for any number of
rows at once, and each store is asked for its own rows alone. Most batches lie in one of the two, and are passed on
whole.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pydp2.data.columns.columns import Array, Columns, Ints
from pydp2.data.rowstore.base import RowStore, SplitRows
from pydp2.data.rowstore.gather import Selection


class CompositeStore:
    """Rows of a pass in ``first``, if they lie there when they come, or else in ``second``."""

    def __init__(self, first: RowStore, second: RowStore) -> None:
        self._first, self._second = first, second

    @property
    def held_bytes(self) -> int:
        """Number of bytes of the memory that rows of pools have or had."""
        return self._first.held_bytes + self._second.held_bytes

    def holds(self, rows: Any) -> bool:
        """Return True if one of the two stores does."""
        return self._first.holds(rows) or self._second.holds(rows)

    def append(self, columns: Any) -> Ints:
        """Return ids for the rows of ``columns`` ``(rows,)``, valid until released."""
        return self._first.append(columns) if self._first.holds(columns) else ~self._second.append(columns)

    def take(self, ids: Any) -> Columns:
        """Return the rows with these ``ids``, in that order, as columns over fresh, writable arrays."""
        rows = np.asarray(ids, np.int64)
        in_second = rows < 0
        if in_second.all():
            return self._second.take(~rows)
        if not in_second.any():
            return self._first.take(rows)
        both = Columns.concat([self._first.take(rows[~in_second]), self._second.take(~rows[in_second])])
        return both.take(np.argsort(np.argsort(in_second, kind="stable")))

    def sources(self, ids: Ints) -> list[tuple[Array, Selection]]:
        """Return for each array of the columns of ``ids`` where its entries lie."""
        in_second = ids < 0
        if in_second.all():
            return self._second.sources(~ids)
        if not in_second.any():
            return self._first.sources(ids)
        return [(array, np.arange(len(array))) for arrays in self.take(ids).arrays for array in arrays]

    def lengths(self, ids: Ints, slot: int) -> Ints:
        """Return the number of time steps of each row in ``slot``, a sequence or nested sequence: ``(rows,)``."""
        in_second = ids < 0
        if in_second.all():
            return self._second.lengths(~ids, slot)
        result = np.empty(len(ids), np.int64)
        result[~in_second] = self._first.lengths(ids[~in_second], slot)
        result[in_second] = self._second.lengths(~ids[in_second], slot)
        return result

    def shared_row_count(self, ids: Ints) -> int:
        """Return a bound of the numbers by which a trainer gathers the rows; 0: it cannot, also if they lie partly in
        the one store and partly in the other."""
        in_second = ids < 0
        if in_second.all():
            return self._second.shared_row_count(~ids)
        return 0 if in_second.any() else self._first.shared_row_count(ids)

    def handles(self, ids: Ints) -> Ints:
        """Return the numbers by which a trainer gathers the rows, if it can: all of them lie in one store."""
        return self._second.handles(~ids) if (ids < 0).all() else self._first.handles(ids)

    def carried_bytes(self, ids: Ints, nbytes: int) -> int:
        """Return how many bytes a message has for the rows, if rows are alike in size."""
        in_second = ids < 0
        share = nbytes * int(np.count_nonzero(in_second)) // max(1, len(ids))  # of the second
        first = self._first.carried_bytes(ids[~in_second], nbytes - share)
        return first + self._second.carried_bytes(~ids[in_second], share)

    def split(self, ids: Ints) -> SplitRows | None:
        """Return which of the rows lie here, and where the others do; None: all of them lie here."""
        in_first = np.flatnonzero(ids >= 0)
        if not len(in_first) or (found := self._first.split(ids[in_first])) is None:
            return None
        here = np.flatnonzero(ids < 0)
        order = np.empty(len(ids), np.int64)
        order[here] = np.arange(len(here))
        order[in_first] = found.order + len(here)
        return found._replace(store=self._second, here=~ids[here], order=order)

    def release_later(self, ids: Ints) -> None:
        """Give the rows back, before room is needed. Raises what the stores do."""
        in_second = ids < 0
        if in_second.all():
            self._second.release_later(~ids)
        elif not in_second.any():
            self._first.release_later(ids)
        else:
            self._first.release_later(ids[~in_second])
            self._second.release_later(~ids[in_second])

    def close(self) -> int:
        """Give back all rows that are left, and return their number."""
        return self._first.close() + self._second.close()
