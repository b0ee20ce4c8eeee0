"""Early-end records as raw frames: any number of them, and nothing else."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.errors import RemoteProtocolError
from pydp2.protocol.early_ends import from_frames, split_frames, to_frames
from pydp2.protocol.messages import HEADER_LIMIT, INT_LIMIT

number = st.integers(0, INT_LIMIT - 1)
text = st.text(st.characters(codec="utf-8"), max_size=300)


@given(st.lists(st.tuples(number, number, text).map(list)))
def test_early_end_records_arrive_equal(early_ends: list[list[Any]]) -> None:
    assert from_frames(to_frames(early_ends)) == early_ends


@pytest.mark.parametrize("letter", ["a", "é", "😀", "\udcff"])
def test_no_frame_is_larger_than_a_client_may_send_however_many_and_long_they_are(letter: str) -> None:
    early_ends = [[INT_LIMIT - 1 - n, INT_LIMIT - 1, letter * (n % 400)] for n in range(5000)]
    frames = to_frames(early_ends)
    assert max(map(len, frames)) <= HEADER_LIMIT
    found = from_frames(frames)
    assert [early_end[:2] for early_end in found] == [early_end[:2] for early_end in early_ends]
    if letter != "\udcff":
        assert [early_end[2] for early_end in found] == [early_end[2][:300] for early_end in early_ends]


@pytest.mark.parametrize(
    "frame",
    [
        b"", b"\xc1", b"\xdd\xff\xff\xff\xff", b"x" * (HEADER_LIMIT + 1),
        *(msgpack.packb(value) for value in (
            3, "abc", {}, [3], [[]], [[1, 2]], [[1, 2, "a", 4]], [["1", 2, "a"]], [[1, True, "a"]], [[1, 2, b"a"]],
            [[-1, 2, "a"]], [[1, 1 << 62, "a"]], [[1, 2, "a"]] * 1001,
        )),
    ],
)  # fmt: skip
def test_what_cannot_be_early_end_records_is_refused(frame: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="early-end records"):
        from_frames([frame])


def test_early_end_records_are_told_from_the_frames_before_them() -> None:
    early_ends = [[1, 2, "why"]]
    body = [b"pool", *to_frames(early_ends)]
    assert split_frames("BeginPass", body, 1) == ([b"pool"], early_ends)
    assert split_frames("BeginPass", [b"pool"], 0) == ([b"pool"], [])
    with pytest.raises(RemoteProtocolError, match="BeginPass: 3 frames of early-end records, but 2 in all"):
        split_frames("BeginPass", body, 3)
