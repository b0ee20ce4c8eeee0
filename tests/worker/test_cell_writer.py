"""A worker's places: asked for with the first of them, used as far as they go, done without where there are none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pydp2.data.columns.columns import Columns
from pydp2.data.rowstore.cells import CellStore
from pydp2.data.rowstore.region import HEAP_NOTE_PREFIX, RegionLayout
from pydp2.data.schema.input_types import Slots, dense_vector
from pydp2.errors import RemoteProtocolError
from pydp2.host.worker.cell_writer import CellWriter
from pydp2.transport import SharedRegion
from tests.transport.conftest import Ends

SLOTS = Slots((dense_vector(300),))
LAYOUT = RegionLayout(SLOTS, 1 << 20, movable=True)


def columns(*values: int) -> Columns:
    return Columns(SLOTS, len(values), [[np.repeat(np.array(values, np.float32)[:, None], 300, axis=1)]])


def frame(*places: int) -> list[memoryview]:
    return [memoryview(np.array(places, "<i8").tobytes())]


class Service(Ends):
    """A hub with memory for rows, and a worker's room at its line."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.lasting = SharedRegion(LAYOUT.size)
        self.rows = CellStore(LAYOUT, self.lasting.memory)
        assert self.lasting.writable_descriptor is not None
        self.hub.fd_offer.offered = self.lasting.writable_descriptor, HEAP_NOTE_PREFIX + LAYOUT.note
        self.room = CellWriter(self.line, SLOTS)
        self.line.send([b"hello"])
        self.received()

    def heard(self) -> None:
        """The hub has heard all that the room has asked for."""
        self.line.send([b"x"])
        self.received()

    def close(self) -> None:
        super().close()
        self.lasting.close()
        del self.rows, self.room, self.lasting  # a mapping keeps a descriptor as long as there is one


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = Service(f"ipc://{tmp_path}/s")
    yield made
    made.close()


def test_rows_are_put_in_the_places_in_the_order_in_which_these_were_granted(service: Service) -> None:
    room = service.room
    assert room.write(columns(1)) is None
    room.add_cells(frame(7, 3, 9))
    assert room.write(columns(1)) is None  # the memory is under way
    service.heard()
    room.add_cells(frame(4))
    first, second = room.write(columns(1, 2)), room.write(columns(5, 6))
    assert first is not None
    assert second is not None
    assert (first.tolist(), second.tolist()) == ([7, 3], [9, 4])
    assert service.rows.take(np.array([7, 3, 9, 4])).arrays[0][0][:, 299].tolist() == [1, 2, 5, 6]


def test_rows_for_which_there_are_too_few_places_go_another_way_and_leave_them(service: Service) -> None:
    room = service.room
    room.add_cells(frame(7, 3))
    service.heard()
    assert room.write(columns(1, 2, 3)) is None
    found = room.write(columns(8, 9))
    assert found is not None
    assert found.tolist() == [7, 3]
    assert room.write(columns(1)) is None


@pytest.mark.parametrize("frames", [[], frame(1) * 2, [memoryview(b"1234567")]])
def test_what_cannot_be_places_is_refused(service: Service, frames: list[memoryview]) -> None:
    with pytest.raises(RemoteProtocolError, match="GrantCells"):
        service.room.add_cells(frames)


@pytest.mark.parametrize("place", [LAYOUT.max_rows, 1 << 61, -LAYOUT.max_rows - 1])
def test_a_place_that_there_is_not_is_refused(service: Service, place: int) -> None:
    service.room.add_cells(frame(place))
    service.heard()
    with pytest.raises(RemoteProtocolError, match="no cells with these numbers"):
        service.room.write(columns(1))


def test_samples_of_several_sizes_cannot_have_places(service: Service) -> None:
    with pytest.raises(RemoteProtocolError, match="GrantCells"):
        CellWriter(service.line, Slots((dense_vector(3),))).add_cells(frame(1))


@pytest.mark.parametrize(
    "note", [b"", HEAP_NOTE_PREFIX, HEAP_NOTE_PREFIX + (1 << 60).to_bytes(8, "little"), b"\xff" * 64]
)
def test_memory_that_is_not_what_is_said_of_it_is_done_without(service: Service, note: bytes) -> None:
    assert service.lasting.writable_descriptor is not None
    service.hub.fd_offer.offered = service.lasting.writable_descriptor, note
    service.room.add_cells(frame(1, 2))
    service.heard()
    for _ in range(3):
        assert service.room.write(columns(1)) is None


def test_memory_that_can_only_be_read_is_done_without(service: Service) -> None:
    assert service.lasting.read_only_descriptor is not None
    service.hub.fd_offer.offered = service.lasting.read_only_descriptor, HEAP_NOTE_PREFIX + LAYOUT.note
    service.room.add_cells(frame(1, 2))
    service.heard()
    assert service.room.write(columns(1)) is None
