"""Stages over lists: the batches of a source without files, for tests that try hundreds of cases."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from pydp2.client.row_kinds import MixedRows, PackedRows, RowKind, batch_of
from pydp2.data.columns.batch import Batch
from pydp2.data.columns.columns import Columns
from pydp2.data.rowstore.pool_memory import PoolMemory
from pydp2.data.schema.input_types import Slots, integer_value_sequence
from pydp2.data.schema.provider_schema import Schema
from pydp2.errors import Error
from pydp2.order.stream_state import StreamState
from pydp2.protocol import messages as m
from pydp2.server.jobs.derived import DerivedJob
from pydp2.server.jobs.groups import BatchGroup, PassBroken, PassEnded, PassShare
from pydp2.server.jobs.plan import JobPlan
from pydp2.server.jobs.stages import END, FilesStage, RowBlock, RowStage, StageEnd

SLOTS = Slots((integer_value_sequence(1 << 20), integer_value_sequence(1 << 20)), ("tokens", "mask"))
SCHEMA = Schema(
    slots=SLOTS, shuffle=False, pool_size=-1, min_pool_size=-1, can_over_batch_size=True, weighted=False, cache=0,
    check=False, check_fail_continue=False,
)  # fmt: skip
Sequences = list[list[int]]
_ROUND = 1 << 16


def rotated(sequences: Sequences, pass_id: int) -> Sequences:
    """What pass ``pass_id`` of a source with ``sequences`` has: the same in another order."""
    shift = (pass_id + pass_id // _ROUND) % max(len(sequences), 1)
    return sequences[shift:] + sequences[:shift]


class ListStage(FilesStage):
    """RowStage of ``sequences``, rotated by one in each pass, with the list entry ``number``. ``hesitates``: calls that
    find nothing yet, counted from 0; ``fails_at``: calls that fail."""

    pool_samples = 0
    dropped_in_pass = 0

    def __init__(
        self, sequences: Sequences, batch_size: int, number: int = 0, *, hesitates: Collection[int] = (),
        fails_at: Collection[int] = (),
    ) -> None:  # fmt: skip
        self.slots, self.mark = SLOTS, StreamState(0)
        self.sequences, self.batch_size, self.number = sequences, batch_size, number
        self.hesitates, self.fails_at = set(hesitates), set(fails_at)
        self.taken = self.opened = self.calls = 0

    def first_mark(self, pass_id: int) -> StreamState:
        return StreamState(pass_id)

    def open(self, mark: StreamState) -> None:
        self.mark = mark
        self.opened += 1

    def pull(self) -> RowBlock | StageEnd | None:
        call, self.calls = self.calls, self.calls + 1
        if call in self.fails_at:
            raise Error("it fails")
        if call in self.hesitates:
            return None
        pass_id, batch = self.mark.pass_id, self.mark.batch
        low = batch * self.batch_size
        rows = rotated(self.sequences, pass_id)[low : low + self.batch_size]
        if not rows:
            return END
        self.mark = StreamState(pass_id, batch + 1)
        self.taken += len(rows)
        samples = [self.sequences.index(row) for row in rows]
        origins = np.array([[self.number] * len(rows), samples], np.int64)
        return RowBlock(columns_of(rows), origins, len(rows))

    def close(self) -> None:
        self.mark = StreamState(self.mark.pass_id)

    def share(self) -> PassShare:
        return PassShare(min(self.mark.batch * self.batch_size, len(self.sequences)), len(self.sequences), False)

    def learn(self, early_ends: Any, checksums: Any) -> None:
        assert not early_ends

    def take_checksums(self) -> bytes:
        return b""

    def label(self, file: int) -> str:
        return str(file)

    def to_plain(self, mark: StreamState) -> Any:
        return mark.position

    def from_plain(self, plain: Any) -> StreamState:
        return StreamState(plain["pass"], plain["batch"])

    def files(self) -> Iterator[FilesStage]:
        yield self


def columns_of(rows: Sequences) -> Columns:
    steps = np.array([len(row) for row in rows], np.int32)
    flat = np.array([number for row in rows for number in row], np.int32)
    return Columns(SLOTS, len(rows), [[steps, flat], [steps, flat + 1]])


class StageReader:
    """Job of ``world`` ranks over ``stage``, read by one loop: batches with the states behind their groups."""

    def __init__(
        self, stage: RowStage[Any], batch_size: int, *, last_batch: str = "keep", world: int = 1, sources: int = 1,
        length: int = 0, schedule: Any = None, balance: str | None = None,
    ) -> None:  # fmt: skip
        plan = JobPlan(batch_size, 0, False, "strict", 16, 1 << 30, last_batch, balance=balance)
        self.job = DerivedJob(plan, SCHEMA, stage, PoolMemory(stage.slots), schedule)
        starts = range(sources)
        self._kind: RowKind
        if length:
            self._kind = PackedRows(stage.slots, starts, length, gives_origins=True)
        else:
            self._kind = MixedRows(stage.slots, starts, gives_origins=True)
        self._world = world
        self.state = StreamState(0)
        """State behind the last group."""

    def passes(self, count: int) -> list[Batch]:
        """Return the batches of the next passes, or of the rest of the one under way and the next ones."""
        return [batch for _ in range(count) for batch in self.batches()]

    def batches(self) -> Iterator[Batch]:
        """Yield the batches of the pass of :attr:`state`; behind its end the state is that before the next pass."""
        for group in self.groups():
            yield from group

    def groups(self) -> Iterator[list[Batch]]:
        """Yield the same batches group by group."""
        current = self.job.open(self.state, self._world)
        try:
            while True:
                outcome = current.next_group()
                if isinstance(outcome, PassEnded):
                    self.end = outcome
                    self.state = self.state.next_pass()
                    return
                if isinstance(outcome, PassBroken):
                    raise outcome.error
                if isinstance(outcome, BatchGroup):
                    self.state = outcome.after
                    yield [self._batch(made, outcome.after.pass_id) for made in outcome.batches]
        finally:
            self.job.close()

    def _batch(self, made: Any, pass_id: int) -> Batch:
        cut, origins = made.cut, made.cut.origins
        head = m.BatchHead(
            1, cut.index, len(cut.row_ids), cut.size, cut.pool_weight, cut.padding, 0, 0, [], {}, 0, made.bucket
        )
        data = None if origins is None else memoryview(origins.tobytes())
        batch = batch_of(self._kind, made.rows.columns(), head, pass_id, data)
        made.rows.release()
        return batch

    def save(self) -> str:
        """Return the state as text."""
        return json.dumps(self.state.to_dict(lambda data: data.hex()))

    def load(self, text: str) -> None:
        """Go to a state that :meth:`save` returned."""
        self.state = StreamState.from_dict(json.loads(text), bytes.fromhex, files=99)


def rows_of(batch: Batch) -> Sequences:
    """The tokens of each row."""
    found: Any = batch["tokens"]
    edges = found.sequence_start_positions
    return [found.values[lo:hi].tolist() for lo, hi in pairwise(edges.tolist())]
