"""Streams over lists: the batches of a service without a service, for tests that try hundreds of cases."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from pydp2.client.describe import Fact
from pydp2.data.columns.batch import Batch, Origin, StringArray
from pydp2.data.columns.columns import Columns
from pydp2.data.schema.input_types import Slots, integer_value_sequence
from pydp2.streams.derived_stream import Cut, DerivedPosition, DerivedStream

from .interruptions import Interruption

SLOTS = Slots((integer_value_sequence(1 << 20), integer_value_sequence(1 << 20)), ("tokens", "mask"))
Sequences = list[list[int]]


@dataclass
class ListPosition(DerivedPosition):
    def next_pass(self) -> ListPosition:
        return ListPosition(self.pass_id + 1)


def rotated(sequences: Sequences, pass_id: int) -> Sequences:
    """What pass ``pass_id`` of a stream over ``sequences`` has: the same in another order."""
    shift = pass_id % max(len(sequences), 1)
    return sequences[shift:] + sequences[:shift]


class ListStream(DerivedStream):
    """A stream of ``sequences``, rotated by one in each pass. Batch n is that of rank n mod the number of ranks. The
    origin of a row is its place in ``sequences``.

    ``fails_at``: calls for a batch that raise an Interruption, counted from 0. ``loads``: how often a state was loaded.
    """

    def __init__(
        self, sequences: Sequences, batch_size: int, *, rank: tuple[int, int] = (0, 1), fails_at: Collection[int] = ()
    ) -> None:
        super().__init__([], ListPosition(), batch_size)
        self._gives_origins = True
        self.sequences, self.place, self.fails_at = sequences, rank, set(fails_at)
        self.calls = self.loads = 0
        self._stream_identity = {"list": hash(str(sequences)), "last_batch": "keep" if rank[1] == 1 else "drop"}

    @property
    def slots(self) -> Slots:
        return SLOTS

    @property
    def files(self) -> StringArray:
        return StringArray(np.array([0, 4]), np.frombuffer(b"list", np.uint8))

    @property
    def _rank(self) -> tuple[int, int]:
        return self.place

    def stats(self) -> dict[str, Any]:
        return {"calls": self.calls}

    def _facts(self) -> list[Fact]:
        return [("list", len(self.sequences))]

    def __len__(self) -> int:
        return -(-self._rows_of_pass() // self.batch_size)

    def _rows_of_pass(self) -> int:
        ranks = self.place[1]
        return len(self.sequences) if ranks == 1 else len(self._even_rows(self.sequences)) // ranks

    def _even_rows(self, rows: Sequences) -> Sequences:
        group = self.place[1] * self.batch_size
        return rows[: len(rows) // group * group]

    def _before_pass(self, position: ListPosition, pass_id: int) -> ListPosition:
        return ListPosition(pass_id)

    def load_state_dict(self, state: Any, *, allow: Collection[str] = (), skip: Iterable[int] = ()) -> None:
        self.loads += 1
        super().load_state_dict(state, allow=allow, skip=skip)

    def _own_fields(self, position: ListPosition) -> dict[str, Any]:
        return {}

    def _from_state(self, state: Mapping[str, Any], allow: Collection[str]) -> ListPosition:
        return ListPosition(state["pass"], state["batch"])

    def _seek(self, position: ListPosition) -> None:
        pass

    def _rewind_to(self, position: ListPosition) -> bool:
        return True  # it has no cursors

    def _cut(self, position: ListPosition) -> Cut:
        self.calls += 1
        if self.calls - 1 in self.fails_at:
            raise Interruption
        rank, ranks = self.place
        rows = rotated(self.sequences, position.pass_id)
        if ranks > 1:
            rows = self._even_rows(rows)
        begin = (position.batch * ranks + rank) * self.batch_size
        taken = rows[begin : begin + self.batch_size]
        behind = ListPosition(position.pass_id, position.batch + 1)
        if not taken:
            return None, behind
        lengths = np.array([len(row) for row in taken], np.int32)
        tokens = np.array([token for row in taken for token in row], np.int32)
        columns = Columns(SLOTS, len(taken), [[lengths, tokens], [lengths.copy(), tokens + 1]])
        batch = Batch(columns, pass_id=position.pass_id, index=position.batch, size=len(taken))
        numbers = (begin + np.arange(len(taken)) + position.pass_id) % len(self.sequences)
        batch._origin = Origin(np.zeros(len(taken), np.int64), numbers)
        return batch, behind


def rows_of(batch: Batch) -> Sequences:
    """The sequences of the first slot."""
    value: Any = batch[0]
    return [value.values[low:high].tolist() for low, high in pairwise(value.sequence_start_positions)]
