"""What stands inside Assign and Chunk: files to run and ranges of files."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.errors import RemoteProtocolError, provider_error, to_wire
from pydp2.protocol.file_ranges import (
    FILE_ENDED,
    FILE_OPEN,
    FILE_RAISED,
    FileAssignment,
    FileRange,
    check_ints,
    dropped_bytes,
)
from pydp2.protocol.messages import INT_LIMIT
from tests.protocol.conftest import assignments, parts


@given(parts())
def test_a_part_arrives_equal(part: FileRange) -> None:
    wire = msgpack.unpackb(msgpack.packb(part.to_wire()))
    assert FileRange.from_wire(wire) == part


@given(assignments)
def test_an_assignment_arrives_equal(assignment: FileAssignment) -> None:
    assert FileAssignment.from_wire(msgpack.unpackb(msgpack.packb(assignment.to_wire()))) == assignment


def test_an_assignment_has_turns_of_some_samples() -> None:
    wire = FileAssignment(0, 1, 0, 0, 0, 100, 0, True, []).to_wire()
    wire[16] = 0
    with pytest.raises(RemoteProtocolError, match="turns of no samples"):
        FileAssignment.from_wire(wire)


@given(parts(), st.lists(st.text(max_size=600), max_size=5))
def test_a_part_never_takes_more_of_a_header_than_it_says(part: FileRange, texts: list[str]) -> None:
    """Whatever its texts hold: a reason may carry bytes of a file that are no text."""
    part.first_index, part.count = 0, len(texts) + part.rows
    part.dropped = [[y, text + "\udcff", text] for y, text in enumerate(texts)]
    wire = part.to_wire()
    assert len(msgpack.packb(wire)) <= part.wire_bytes
    assert FileRange.from_wire(wire).rows == part.rows


def test_the_longest_reason_and_the_largest_numbers_take_what_is_said() -> None:
    assert dropped_bytes("é" * 500, "é" * 10_000) == dropped_bytes("é" * 100, "é" * 400)
    error = to_wire(provider_error("😀" * 100_000, "FileNotFoundError"))
    dropped_samples = [[INT_LIMIT + i, "😀" * 1000, "😀" * 1000] for i in range(3)]
    part = FileRange(
        INT_LIMIT, INT_LIMIT, INT_LIMIT, INT_LIMIT, INT_LIMIT, FILE_RAISED, [INT_LIMIT], dropped_samples, error
    )
    size = len(msgpack.packb(part.to_wire()))
    assert size <= part.wire_bytes < 1.1 * size


GOOD = [7, 1, 100, 4, 3, FILE_OPEN, [5], [[101, "slot 0", "why"]], {}, 0]


def with_field(position: int, value: object) -> list[object]:
    return [*GOOD[:position], value, *GOOD[position + 1 :]]


@pytest.mark.parametrize(
    ("wire", "reason"),
    [
        (None, "malformed part"),
        ({}, "malformed part"),
        (GOOD[:-1], "malformed part"),
        ([*GOOD, 1], "malformed part"),
        *((with_field(i, value), "integers from 0") for i in range(6) for value in (-1, True, 1.5, "1", None, 2**63)),
        *((with_field(i, value), "malformed part") for i in (6, 7) for value in (None, {}, "x", 3)),
        (with_field(6, [-1]), "integers from 0"),
        (with_field(6, ["a"]), "integers from 0"),
        (with_field(8, []), "malformed part"),
        *((with_field(9, value), "integers from 0") for value in (-1, True, "1", None)),
        (with_field(5, 3), "contradict"),
        (with_field(5, FILE_RAISED), "contradict"),
        (with_field(8, {"kind": "x"}), "contradict"),
        (with_field(4, 4), "contradict"),
        (with_field(4, 2**62), "contradict"),
        *(
            (with_field(7, [dropped_sample]), "malformed hole")
            for dropped_sample in (
                1,
                [],
                [101],
                [101, "a"],
                [101, "a", "b", "c"],
                [101, "a", 1],
                ["101", "a", "b"],
                [101, b"a", "b"],
                [101, "a", None],
                [101.0, "a", "b"],
                [True, "", ""],
            )
        ),
        (with_field(7, [[99, "a", "b"]]), "outside its range"),
        (with_field(7, [[104, "a", "b"]]), "outside its range"),
        (with_field(7, [[101, "a", ""], [101, "b", ""]]), "out of order"),
        (with_field(7, [[102, "a", ""], [101, "b", ""]]), "out of order"),
    ],
)
def test_a_part_that_contradicts_itself_is_refused(wire: Any, reason: str) -> None:
    with pytest.raises(RemoteProtocolError, match=f"^Chunk.*{reason}"):
        FileRange.from_wire(wire)


def test_the_good_one_is_taken() -> None:
    assert FileRange.from_wire(GOOD).dropped == [[101, "slot 0", "why"]]
    assert FileRange.from_wire([7, 1, 100, 0, 0, FILE_ENDED, [], [], {}, 0]).state == FILE_ENDED


@pytest.mark.parametrize("wire", [None, [], [1] * 9, [*[1] * 8, ["x"]], [*[1] * 8, [1], 1], [*[1] * 7, -1, []], "abc"])
def test_an_assignment_of_another_shape_is_refused(wire: Any) -> None:
    with pytest.raises(RemoteProtocolError, match=r"^Assign"):
        FileAssignment.from_wire(wire)


def test_numbers_are_counted_and_bounded() -> None:
    assert check_ints("x", [0, INT_LIMIT], 2) == [0, INT_LIMIT]
    for wrong in ([0], [0, 1, 2], (0, 1), [0, INT_LIMIT + 1], [0, False], None):
        with pytest.raises(RemoteProtocolError, match=r"^x: expected"):
            check_ints("x", wrong, 2)
