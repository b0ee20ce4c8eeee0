"""The memory in which rows of one size have their places (docs/architecture.md): made when the provider is known, shown
to workers and trainers, given out to workers ahead of what they send."""

from __future__ import annotations

import contextlib
import mmap
import os

from pydp2.inputs.columns import Ints
from pydp2.inputs.declaration import Declaration
from pydp2.inputs.placed import NOTED, Placed, PlacedRows, PlacedStore, Places
from pydp2.inputs.shelf import Layout
from pydp2.transport import Lasting

_AHEAD = 16 << 20  # bytes of rows that a worker may put in places before it is granted more
_LEAST = 8  # places
_KEPT_FREE = 4  # one grant takes at most one of so many free places: rows that come as columns need some as well
_ROOM = 4  # times the memory that a service may use: of these addresses, more than the machine has are never used


class Placing:
    """The places of a service: for workers, whom it grants them; for trainers; and for the stores of jobs."""

    def __init__(self, lasting: Lasting, layout: Layout) -> None:
        self._lasting = lasting
        self._places = Places(PlacedRows(layout, lasting.memory))
        self._note = NOTED + layout.note
        self._rows_end = layout.notes[0].offset
        self._ahead = max(_LEAST, _AHEAD // layout.slots.row_bytes)
        assert lasting.descriptor is not None
        assert lasting.writable is not None
        self.for_trainers = lasting.descriptor, self._note
        self.for_workers = lasting.writable, self._note

    def due(self, worker: int) -> Ints | None:
        """What ``worker`` is to be granted now; None: it has enough, or there is nothing."""
        has = self._places.granted.get(worker, 0)
        if 2 * has > self._ahead:
            return None
        places = self._places.grant(worker, min(self._ahead - has, self._places.free // _KEPT_FREE))
        return places if len(places) else None

    def taken(self, worker: int, places: Ints) -> Placed:
        """``worker`` has put rows in ``places``. Raises RemoteProtocolError for places that are not its own."""
        return self._places.taken(worker, places)

    def gone(self, worker: int) -> None:
        """The process of ``worker`` has ended."""
        self._places.gone(worker)

    def store(self) -> PlacedStore:
        """For the pool of a pass."""
        return PlacedStore(self._places)

    def rest(self) -> None:
        """There is no job: give the memory back."""
        if not len(self._places):
            with contextlib.suppress(OSError):  # it can be used again all the same
                self._lasting.memory.madvise(mmap.MADV_REMOVE, 0, self._rows_end)

    def close(self) -> None:
        """Show it to nobody any more."""
        self._lasting.close()


def placing(declaration: Declaration, limit: int) -> Placing | None:
    """For samples of ``declaration`` in a service that may use ``limit`` bytes; None where they have no places: they
    are small or of several sizes, they are kept in a cache, or memory cannot be shared here."""
    if not declaration.placed:
        return None
    room = max(_ROOM * limit, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    layout = Layout(declaration.slots, room)
    if not layout.rows:  # not even one would fit
        return None
    try:
        lasting = Lasting(layout.size, common=True)
    except OSError:  # so many addresses are not to be had
        return None
    if lasting.descriptor is None:
        return None
    try:
        return Placing(lasting, layout)
    except MemoryError:  # nor is there any for what is kept of each place
        lasting.close()
        return None
