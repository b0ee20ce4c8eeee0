"""Rows of one size in memory that several processes see: each has a place, from the worker that packed it to the
trainer that takes it, and in between goes by its number.

The server says whose a place is (:class:`Places`): granted to a worker, who puts a row there and says so; then held
until nobody needs the row any more. Who gathers rows and was given up meanwhile must not take what lies there now for
what lay there then: a place has a mark that changes when it is given back, numbers that are sent to a trainer carry it,
and it is compared once the rows are gathered. See docs/architecture.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pydp2.errors import RemoteProtocolError
from pydp2.inputs.columns import Array, Columns, Ints
from pydp2.inputs.moving import Where, gathered
from pydp2.inputs.shelf import Layout
from pydp2.inputs.spec import Slots

LEAST = 1024
"""Bytes of a row from which on a place pays: for smaller ones numbers cost as much as the rows."""
NOTED = b"places"
"""What begins the note on such memory, before that of its layout."""
_BITS = 40  # of a number are the place, those above it the mark
_PLACE = (1 << _BITS) - 1
_MARK = (1 << 62 - _BITS) - 1
_FREE, _HELD, _FIRST = 0, 1, 2  # whose a place is: nobody's, the server's, of worker w: _FIRST + w


def suits(slots: Slots) -> bool:
    """Whether samples of ``slots`` are all of one size, and so large that they are given places."""
    return slots.row_bytes >= LEAST


class Moved(Exception):
    """Rows that were gathered are not those that were named: their places were given back meanwhile."""


class PlacedRows:
    """The rows in ``memory`` of ``layout``, of slots that :func:`suits` takes: workers put them there, trainers and the
    server gather them."""

    def __init__(self, layout: Layout, memory: Any) -> None:
        self.layout = layout
        self._arrays = [layout.over(memory, regions[0]) for regions in layout.arrays]
        self.marks: Ints = layout.over(memory, layout.notes[0])
        """Of each place, how often it was given back, as far as that can be counted; the server's to write."""
        self.row_cost = layout.slots.row_bytes
        """Bytes that a row holds here until it is taken."""

    def put(self, places: Ints, columns: Columns) -> None:
        """Copy the rows of ``columns`` to ``places``."""
        for mine, theirs in zip(self._arrays, columns.arrays, strict=True):
            mine[places] = theirs[0]

    def sources(self, places: Ints) -> list[tuple[Array, Where]]:
        """As of a :class:`.store.ColumnStore`."""
        return [(array, places) for array in self._arrays]

    def copied(self, places: Ints) -> Columns:
        """The rows at ``places``, in that order, as columns over fresh, writable arrays."""
        return Columns(self.layout.slots, len(places), [[gathered(*source)] for source in self.sources(places)])

    # -- by numbers that were told -------------------------------------------------------------------------------------
    def numbers(self, places: Ints) -> Ints:
        """What a trainer is told of ``places``."""
        return places | self.marks[places] << _BITS

    def within(self, numbers: Ints) -> Ints:
        """The places of ``numbers``, which may be anything."""
        return np.where(numbers < 0, numbers, numbers & _PLACE)

    def sizes_of(self, numbers: Ints) -> Ints:
        """The bytes of each row."""
        return np.full(len(numbers), self.row_cost)

    def take(self, numbers: Ints) -> Columns:
        """The rows of ``numbers``, as :meth:`copied`. Raises Moved when they are others by now."""
        places = numbers & _PLACE
        columns = self.copied(places)
        if (self.marks[places] != numbers >> _BITS).any():  # looked at last: what was there is copied now
            raise Moved
        return columns


class Places:
    """The server's side: whose each place of ``rows`` is. Nothing waits: where there is no place, rows take another
    way."""

    def __init__(self, rows: PlacedRows) -> None:
        self.rows = rows
        count = rows.layout.rows
        # of the addresses of these, as much is ever used as there are places in use
        self._whose = np.zeros(count, np.int32)
        self._free: Ints = np.empty(count, np.int64)  # a stack, of places that were used before
        self._freed = 0
        self._fresh = 0  # from here on no place was ever used
        self._back: list[Ints] = []  # given back, and not free yet
        self.granted: dict[int, int] = {}
        """By worker, how many it has and has not put a row in."""

    def __len__(self) -> int:
        """Places that hold a row."""
        self._settle()
        return self._fresh - self._freed - sum(self.granted.values())

    @property
    def free(self) -> int:
        """Places that are nobody's."""
        self._settle()
        return len(self._whose) - self._fresh + self._freed

    @property
    def used(self) -> int:
        """Places that were used at some time."""
        return self._fresh

    def grant(self, worker: int, count: int) -> Ints:
        """``count`` places, or as many as there are, for ``worker`` to put rows in."""
        places = self._some(count)
        self._whose[places] = _FIRST + worker
        self.granted[worker] = self.granted.get(worker, 0) + len(places)
        return places

    def taken(self, worker: int, places: Ints) -> Placed:
        """``worker`` has put rows in ``places``: these. Raises RemoteProtocolError for places that are not its own."""
        known = len(places) and 0 <= int(places.min()) <= int(places.max()) < self._fresh
        if not known or (self._whose[places] != _FIRST + worker).any() or _twice(places):
            raise RemoteProtocolError("Chunk: rows in places that were not granted, or twice in one")
        self._whose[places] = _HELD
        self.granted[worker] -= len(places)
        return Placed(self, places)

    def put(self, columns: Columns) -> Ints:
        """Copy the rows of ``columns`` to places. Raises MemoryError when there are too few."""
        places = self._some(columns.rows)
        if len(places) < columns.rows:
            self._push(places)
            raise MemoryError(f"{columns.rows} places are needed, {len(places)} of {self.rows.layout.rows} are free")
        self.rows.put(places, columns)
        self._whose[places] = _HELD
        return places

    def gone(self, worker: int) -> None:
        """The process of ``worker`` has ended: what it was granted is free."""
        if self.granted.pop(worker, 0):
            places = np.flatnonzero(self._whose[: self._fresh] == _FIRST + worker)
            self._whose[places] = _FREE
            self._push(places)

    def give_back(self, places: Ints) -> None:
        """Nobody needs the rows in ``places``, which hold some, any more."""
        self._back.append(places)  # no more than that: it may be said while another method is at work

    def _some(self, count: int) -> Ints:
        self._settle()
        again = min(count, self._freed)
        self._freed -= again
        places = self._free[self._freed : self._freed + again][::-1].copy()
        fresh = min(count - again, len(self._whose) - self._fresh)
        if fresh:
            places = np.concatenate([places, np.arange(self._fresh, self._fresh + fresh)])
            self._fresh += fresh
        return places

    def _push(self, places: Ints) -> None:
        self._free[self._freed : self._freed + len(places)] = places
        self._freed += len(places)

    def _settle(self) -> None:
        if not self._back:
            return
        several, self._back = self._back, []
        places = np.concatenate(several)
        if (self._whose[places] != _HELD).any() or _twice(places):
            raise KeyError(f"places are given back once, and only such that hold a row; got {places.tolist()[:20]}")
        self._whose[places] = _FREE
        self.rows.marks[places] = self.rows.marks[places] + 1 & _MARK
        self._push(places)


def _twice(places: Ints) -> bool:
    ordered = np.sort(places)
    return bool((ordered[1:] == ordered[:-1]).any())


class Placed:
    """Rows that a worker has put in ``places``, some of ``rows`` of them. They are as columns are for a store; places
    that no store has claimed are given back when there is nothing left of these."""

    __slots__ = ("_held", "_lo", "rows", "slots")

    def __init__(self, places: Places, numbers: Ints) -> None:
        self._held = _Held(places, numbers)
        self.slots = places.rows.layout.slots
        self._lo = 0
        self.rows = len(numbers)

    def slice(self, lo: int, hi: int) -> Placed:
        """Rows ``lo`` to ``hi``, not included."""
        some = object.__new__(Placed)
        some._held, some.slots = self._held, self.slots
        some._lo, some.rows = self._lo + lo, hi - lo
        return some

    def sample_bytes(self) -> Ints:
        """As of :class:`Columns`."""
        return np.full(self.rows, self.slots.row_bytes)

    def claim(self) -> Ints:
        """Their places, which are the caller's from now on. Raises ValueError when they were claimed before."""
        held, end = self._held, self._lo + self.rows
        if held.claimed[self._lo : end].any():
            raise ValueError("places are claimed once")
        held.claimed[self._lo : end] = True
        return held.numbers[self._lo : end]


class _Held:
    """Places that hold rows, until they are ``claimed``."""

    __slots__ = ("claimed", "numbers", "places")

    def __init__(self, places: Places, numbers: Ints) -> None:
        self.places, self.numbers = places, numbers
        self.claimed = np.zeros(len(numbers), np.bool_)

    def __del__(self) -> None:
        if len(rest := self.numbers[~self.claimed]):
            self.places.give_back(rest)


class PlacedStore:
    """A pool's memory (:class:`.store.ColumnStore`) where rows have places: what comes in one is not copied. What is
    left in it when nobody has it any more is given back."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._live = np.zeros(places.rows.layout.rows, np.bool_)
        self._count = 0
        self._over = False  # nobody has it any more, but batches that went with it are still to say so

    def __len__(self) -> int:
        """Live rows."""
        return self._count

    @property
    def held_bytes(self) -> int:
        """Bytes of the memory that rows have."""
        return self._count * self._places.rows.row_cost

    @property
    def shown(self) -> int:
        """Rows are among the first so many that a trainer can gather by itself."""
        return self._places.used

    def append(self, columns: Columns | Placed) -> Ints:
        """Have the rows of ``columns``; their ids ``(rows,)``, valid until released."""
        rows = columns.claim() if isinstance(columns, Placed) else self._places.put(columns)
        self._live[rows] = True
        self._count += len(rows)
        return rows

    def take(self, ids: Any) -> Columns:
        """The rows with these ``ids``, in that order, as columns over fresh, writable arrays."""
        return self._places.rows.copied(np.asarray(ids, np.int64))

    def sources(self, ids: Ints) -> list[tuple[Array, Where]]:
        """For each array of the columns of ``ids`` where its entries lie."""
        return self._places.rows.sources(ids)

    def numbers(self, ids: Ints) -> Ints:
        """What a trainer that can gather them is told of them."""
        return self._places.rows.numbers(ids)

    def lengths(self, ids: Ints, slot: int) -> Ints:
        """Of no slot: all of them are of one size."""
        raise TypeError("rows in places have no sequences")

    def give_back(self, ids: Ints) -> None:
        """Give the rows back. Raises KeyError for an id that is not live, or given twice."""
        if self._over:
            return
        if not self._live[ids].all():
            raise KeyError(f"rows are given back once, and only live ones; got {ids.tolist()[:20]}")
        self._live[ids] = False
        self._count -= len(ids)
        self._places.give_back(ids)

    release = give_back

    def __del__(self) -> None:
        # where a ring of objects is collected, this may come before the end of a batch that is in it too
        self._over = True
        if len(rest := np.flatnonzero(self._live[: self._places.used])):
            self._places.give_back(rest)
