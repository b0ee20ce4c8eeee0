"""Batches that came as numbers: the rows that they name, a few small ones at a time, and nothing that is not there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.client.received import ReceivedBatch, parse_batches
from pydp2.client.row_sources import RowSources
from pydp2.data.columns.columns import Columns, Ints
from pydp2.data.packers.packer import Packer
from pydp2.data.rowstore.append_only import AppendOnlyStore
from pydp2.data.rowstore.cells import CellStore
from pydp2.data.rowstore.ids import StaleRows
from pydp2.data.rowstore.reader import SharedHeapReader, SharedRows
from pydp2.data.rowstore.region import HEAP_NOTE_PREFIX, RegionLayout
from pydp2.data.schema.input_types import Slots, dense_vector, integer_value, integer_value_sequence
from pydp2.errors import RemoteProtocolError
from pydp2.protocol import messages as m
from pydp2.protocol.batch_packing import MAX_PACK_BYTES, pack_heads
from pydp2.transport import SharedRegion

SLOTS = Slots((integer_value(1 << 20), integer_value_sequence(1 << 20)))
ROWS = 50


def fill(row_store: AppendOnlyStore, factor: int = 1) -> AppendOnlyStore:
    packer = Packer(SLOTS, strict=False)
    for i in range(ROWS):
        packer.add([i, [i] * (i % 4 * factor)])
    columns = packer.finish().columns
    row_store.add(columns, np.arange(ROWS), columns.sample_bytes(), None)
    return row_store


def shelf_of(factor: int = 1) -> AppendOnlyStore:
    layout = RegionLayout(SLOTS, 1 << 20)
    return fill(AppendOnlyStore(layout, bytearray(layout.size)), factor)


SHELF = shelf_of()


def head(index: int, rows: int, kept: int = 0) -> m.BatchHead:
    return m.BatchHead(1, index, rows, rows, 9, 0, 0, index + 1, [], {}, 0, shared_rows=kept)


def frame(ids: Any) -> list[memoryview]:
    return [memoryview(np.asarray(ids, np.int64).tobytes())]


def message(batches: list[list[int]], kept: int = ROWS) -> tuple[m.BatchHead, list[memoryview]]:
    heads = [head(i, len(ids), kept) for i, ids in enumerate(batches)]
    return pack_heads(heads), frame(sum(batches, []))  # noqa: RUF017  # a few


def parsed(seen: SharedRows | None, head: m.BatchHead, body: list[memoryview]) -> list[ReceivedBatch]:
    """The batches of a message for a client that sees the memory ``seen``."""
    slots = SLOTS if seen is None else seen.layout.slots
    return parse_batches(head, body, RowSources(slots, shared_rows=seen))


def map_memory(slots: Slots, region: SharedRegion, note: bytes) -> SharedRows | None:
    """What a client sees of ``region``."""
    sources = RowSources(slots)
    assert region.read_only_descriptor is not None
    assert sources.map_memory(region.read_only_descriptor, note) == (sources.shared_rows is not None)
    return sources.shared_rows


@given(st.lists(st.lists(st.integers(0, ROWS - 1), max_size=9), min_size=1, max_size=20))
def test_each_batch_has_the_rows_that_it_names(batches: list[list[int]]) -> None:
    found = parsed(SHELF, *message(batches))
    assert [one.head.rows for one in found] == [len(ids) for ids in batches]
    assert [one.sizes[0] for one in found] == [8 * len(ids) for ids in batches]
    made = [one.to_batch(3) for one in found]
    for ids, batch in zip(batches, made, strict=True):
        assert batch[0].tolist() == ids
        assert batch[1].values.tolist() == [i for i in ids for _ in range(i % 4)]
        batch[0][:] = -1
        batch[1].values[:] = -2
    assert SHELF.take(np.arange(ROWS)).arrays[0][0].tolist() == list(range(ROWS))


def test_small_ones_are_gathered_together_and_large_ones_alone() -> None:
    for factor, together in ((1, 64), (MAX_PACK_BYTES // 120, 10), (MAX_PACK_BYTES // 20, 1), (MAX_PACK_BYTES, 1)):
        row_store = shelf_of(1)
        row_store.sizes[3] = 12 * factor
        found = [batch.rows for batch in parsed(row_store, *message([[3]] * 64))]
        assert [rows[1:] for rows in found[:together] if rows[0] is found[0][0]] == [
            (i, i + 1) for i in range(together)
        ]
        assert [rows[0] for rows in found].count(found[0][0]) == together


@pytest.mark.parametrize(
    ("ids", "rows", "kept", "frames"),
    [
        ([ROWS], 1, ROWS, 1),
        ([-1], 1, ROWS, 1),
        ([1 << 62], 1, ROWS, 1),
        ([0], 2, ROWS, 1),
        ([0, 1], 1, ROWS, 1),
        ([0], 1, ROWS, 2),
        ([0], 1, ROWS, 0),
        ([0], 1, 1 << 40, 1),
        ([0], 1 << 61, ROWS, 1),
    ],
)
def test_what_cannot_be_rows_of_it_is_refused(ids: list[int], rows: int, kept: int, frames: int) -> None:
    with pytest.raises(RemoteProtocolError):
        parsed(SHELF, head(0, rows, kept), frame(ids) * frames)


def test_numbers_of_a_cache_that_was_never_shown_are_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="not known"):
        parsed(None, *message([[0]]))


@pytest.mark.parametrize("edge", [-5, 1 << 40, 1 << 62, -(1 << 62)])
def test_a_cache_that_says_of_its_rows_what_cannot_be_is_refused(edge: int) -> None:
    for row in (7, 8):
        row_store = shelf_of()
        row_store._offsets[1][0][8] = edge
        (one,) = parsed(row_store, *message([[row]]))
        with pytest.raises(RemoteProtocolError):
            one.to_batch(0)


def test_a_cache_is_seen_as_it_is_filled_and_cannot_be_written_to() -> None:
    layout = RegionLayout(SLOTS, 1 << 20)
    lasting = SharedRegion(layout.size)
    mine = AppendOnlyStore(layout, lasting.memory)
    seen = map_memory(SLOTS, lasting, (1 << 20).to_bytes(8, "little"))
    assert seen is not None
    fill(mine)
    assert seen.take(np.array([7])).samples() == [[7, [7, 7, 7]]]
    assert not seen.sample_indices.flags.writeable
    with pytest.raises(ValueError, match="WRITEABLE"):
        seen.sample_indices.flags.writeable = True
    for note in (
        b"",
        b"\1",
        (1 << 21).to_bytes(8, "little"),
        b"\xff" * 64,
        HEAP_NOTE_PREFIX,
        HEAP_NOTE_PREFIX + (1 << 21).to_bytes(8, "little"),
    ):
        assert map_memory(SLOTS, lasting, note) is None
    lasting.close()


PLACED = Slots((dense_vector(300),))
PLACED_LAYOUT = RegionLayout(PLACED, 1 << 20, movable=True)


def placed() -> tuple[SharedRegion, CellStore, Ints]:
    """Memory of rows that have places, and 9 that lie there: row i is full of i."""
    lasting = SharedRegion(PLACED_LAYOUT.size)
    places = CellStore(PLACED_LAYOUT, lasting.memory)
    rows = np.repeat(np.arange(9, dtype=np.float32)[:, None], 300, axis=1)
    return lasting, places, places.append(Columns(PLACED, 9, [[rows]]))


def test_rows_are_gathered_from_their_places_while_these_are_theirs() -> None:
    lasting, places, ids = placed()
    seen = map_memory(PLACED, lasting, HEAP_NOTE_PREFIX + PLACED_LAYOUT.note)
    assert isinstance(seen, SharedHeapReader)
    numbers = places.handles(ids)
    first, second, third = (
        parsed(seen, head(i, 3, places.high_water), frame(numbers[3 * i : 3 * i + 3]))[0] for i in range(3)
    )
    assert first.sizes == (3 * PLACED.row_bytes, 0, True)
    places.release_later(ids[3:4])
    places.append(Columns.empty(PLACED))  # applies it
    assert len(places) == 8
    made = first.to_batch(0)
    assert made[0][:, 7].tolist() == [0, 1, 2]
    made[0][:] = -1
    with pytest.raises(StaleRows):
        second.to_batch(0)
    assert third.to_batch(0)[0][:, 7].tolist() == [6, 7, 8]
    (again,) = parsed(seen, head(0, 2, places.high_water), frame(numbers[:2]))
    assert again.to_batch(0)[0][:, 0].tolist() == [0, 1]
    lasting.close()


@pytest.mark.parametrize("number", [-1, 9, 1 << 39, -(1 << 62)])
def test_numbers_that_are_those_of_no_place_are_refused(number: int) -> None:
    lasting, places, _ = placed()
    with pytest.raises(RemoteProtocolError, match="not among"):
        parsed(SharedHeapReader(PLACED_LAYOUT, lasting.memory), head(0, 1, places.high_water), frame([number]))
    lasting.close()
