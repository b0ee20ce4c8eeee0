"""What a block list takes out of the runs of a file."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.data.columns.block_list import BlockList
from pydp2.order.sample_source import SampleRun
from pydp2.protocol.file_ranges import DROPPED_COST, FILE_OPEN, SAMPLE_COST, FileRange
from pydp2.server.actions import Log
from pydp2.server.dispatch.blocked_samples import BlockedSamples, are_blocked, split_blocked
from pydp2.server.dispatch.ledger import FileLedger


class Rows:
    """Rows that say which of them were given back."""

    def __init__(self, rows: list[int], released: list[int]) -> None:
        self._rows, self._released = rows, released

    def slice(self, lo: int, hi: int) -> Rows:
        return Rows(self._rows[lo:hi], self._released)

    def take(self, rows: Any) -> Rows:
        return Rows([self._rows[row] for row in rows], self._released)

    def release(self) -> None:
        self._released += self._rows


def run_of(indices: list[int], lo: int = 0, *, released: list[int] | None = None) -> SampleRun:
    """A run of these sample indices, behind ``lo`` rows of something else."""
    y = np.array([*range(-lo, 0), *indices], np.int64)
    columns: Any = None if released is None else Rows(y.tolist(), released)
    return SampleRun(columns, lo, lo + len(indices), y, np.full(len(y), 8), None)


INDICES = st.sets(st.integers(0, 60), min_size=1, max_size=40).map(sorted)


@given(INDICES, INDICES, st.integers(0, 3))
def test_a_run_is_cut_into_its_delivered_and_its_blocked_samples(y: list[int], blocked: list[int], lo: int) -> None:
    run = run_of(y, lo, released=[])
    delivered, left_out = split_blocked(run, np.array(blocked))
    for part, expected in (
        (delivered, [each for each in y if each not in blocked]),
        (left_out, [each for each in y if each in blocked]),
    ):
        assert ([] if part is None else part.sample_indices[part.lo : part.hi].tolist()) == expected
        assert part is None or part.columns.slice(part.lo, part.hi)._rows == expected
    assert delivered is run or left_out is not None, "a run without blocked samples stays as it is"
    assert are_blocked(np.array(y), np.array(blocked)).tolist() == [each in blocked for each in y]


def test_blocked_samples_give_back_their_memory_and_their_credit_when_they_are_committed() -> None:
    released: list[int] = []
    run = run_of([0, 2, 3, 5, 6], released=released)
    ledger = FileLedger(0, 0, blocked=np.array([1, 2, 3, 6, 9]))
    ledger.commit(FileRange(0, 0, 0, 7, 5, FILE_OPEN, [1], [[1, "", "bad"], [4, "", "bad"]], {}), run)
    ledger.leave_out_blocked(run)
    assert released == [2, 3, 6]
    assert [[*one.sample_indices[one.lo : one.hi]] for one in ledger.runs] == [[0, 5]]
    assert [y for y, _, _ in ledger.dropped] == [4]
    assert ledger.spent_bytes - ledger.merged == 2 * (8 + SAMPLE_COST) + DROPPED_COST
    assert (ledger.sample_count, ledger.weight, ledger.dropped_count, ledger.blocked_count) == (2, 2, 1, 3)
    assert len(ledger.run_edges) == 1
    assert ledger.committed == 7


@pytest.mark.parametrize(("end", "missing"), [(0, 3), (3, 2), (9, 1), (10, 0), (11, 0)])
def test_samples_behind_the_end_of_a_file_are_reported_once(end: int, missing: int) -> None:
    block_list = BlockList.of_samples(np.array([4, 4, 4]), np.array([2, 3, 9]))
    blocked = BlockedSamples(block_list, lambda file: f"f{file}")
    said = blocked.check_end(4, end)
    assert bool(said) == bool(missing)
    if said:
        (log,) = said
        assert isinstance(log, Log)
        assert f"names {missing} sample" in log.text
        assert "behind the end of file f4, such as sample 9: the file has " in log.text
        assert not blocked.check_end(4, end)
    assert not blocked.check_end(5, end)
