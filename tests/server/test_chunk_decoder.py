"""Chunks whose rows lie in cells: what is not committed is given back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from pydp2.data.rowstore.cells import CellStore
from pydp2.data.rowstore.region import RegionLayout
from pydp2.data.schema.input_types import Slots, dense_vector
from pydp2.data.schema.provider_schema import Schema
from pydp2.errors import RemoteProtocolError
from pydp2.order.sample_source import SampleRun
from pydp2.order.snapshot import Reread
from pydp2.protocol.file_ranges import FILE_OPEN, FileRange
from pydp2.protocol.messages import Chunk
from pydp2.server.actions import WorkerGone
from pydp2.server.dispatch.file_dispatcher import CycleReading, FileDispatcher, ReadContext
from pydp2.server.workers.chunk_decoder import DecodedRange, commit_chunk, decode_chunk

SLOTS = Slots((dense_vector(4096),), ("x",))
SCHEMA = Schema(
    slots=SLOTS,
    shuffle=True,
    pool_size=-1,
    min_pool_size=-1,
    can_over_batch_size=True,
    weighted=False,
    cache=0,
    check=True,
    check_fail_continue=False,
)
WORKER = 3


@pytest.fixture
def store() -> CellStore:
    layout = RegionLayout(SLOTS, 1 << 20, movable=True)
    return CellStore(layout, bytearray(layout.size))


def decoded(
    store: CellStore, parts: list[FileRange], wanted: Callable[[FileRange], Reread | None] = lambda _: None
) -> list[DecodedRange]:
    rows = sum(part.rows for part in parts)
    cells = store.grant(WORKER, rows)
    chunk = Chunk(rows, [part.to_wire() for part in parts], [], 0, 0, 1)
    body = [memoryview(cells).cast("B")]
    return decode_chunk(
        chunk, body, SCHEMA, wanted, claim=lambda _, frames: store.accept_filled(WORKER, frames[0].view(np.int64))
    )


def part(file: int, first: int, rows: int, count: int | None = None) -> FileRange:
    return FileRange(file, 1, first, rows if count is None else count, rows, FILE_OPEN, [0, 0], [], {})


def test_a_chunk_whose_parts_contradict_what_was_asked_for_gives_its_cells_back(store: CellStore) -> None:
    asked = Reread(np.array([2, 5]))
    with pytest.raises(RemoteProtocolError, match="3 samples where 2 were asked for"):
        decoded(store, [part(0, 0, 2), part(1, 0, 3, count=8)], lambda each: asked if each.file == 1 else None)
    assert len(store) == 0


def test_what_is_behind_a_range_that_is_refused_gives_its_cells_back(store: CellStore) -> None:
    committed: list[SampleRun] = []

    def commit(each: FileRange, run: SampleRun | None) -> None:
        if each.file == 1:
            raise RemoteProtocolError("a gap")
        assert run is not None
        committed.append(run)

    ranges = decoded(store, [part(0, 0, 2), part(1, 0, 3), part(2, 0, 4)])
    assert len(store) == 9
    with pytest.raises(RemoteProtocolError, match="a gap"):
        commit_chunk(ranges, commit)
    assert len(store) == 2
    committed[0].release()
    assert len(store) == 0


def test_late_output_of_an_attempt_that_was_given_up_gives_its_cells_back(store: CellStore) -> None:
    pass_files = FileDispatcher(
        ReadContext(workers=1, budget=1 << 20, label=str), CycleReading(length=1), pass_id=0, seed=0, order=np.arange(1)
    )
    pass_files.open_file(0)
    pass_files.add_worker(WORKER)
    pass_files.dispatch()
    pass_files.worker_lost(WorkerGone(WORKER, None, "was killed"))
    ranges = decoded(store, [part(0, 0, 2)])
    assert len(store) == 2
    commit_chunk(ranges, partial(pass_files.commit, WORKER))
    assert len(store) == 0
    assert pass_files.samples_committed == 0
