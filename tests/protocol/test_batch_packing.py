"""Several batches in one message: the same ones come out, and nothing that could not have gone in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.errors import RemoteProtocolError
from pydp2.protocol import messages as m
from pydp2.protocol.batch_packing import MAX_BATCHES, can_follow, pack_heads, unpack_head

number = st.integers(0, m.INT_LIMIT - 1)
BOUNDS = {"bounds": [8, 16], "group": 2}


def bucket_of(longest: int, group_longest: int) -> dict[str, Any]:
    return {"longest": longest, "group_longest": group_longest, **BOUNDS}


def head(index: int = 0, **others: Any) -> m.BatchHead:
    return replace(m.BatchHead(1, index, 3, 3, 9, 0, 0, index + 1, [], {}, 0), **others)


@given(st.lists(st.tuples(*[number] * 10), min_size=1, max_size=MAX_BATCHES), st.booleans(), st.booleans())
def test_what_comes_out_is_what_went_in(batches: list[tuple[int, ...]], buckets: bool, point: bool) -> None:
    heads = [
        m.BatchHead(4, *numbers[:7], [], {}, 0, bucket_of(*numbers[8:]) if buckets else {}, checksum_records=numbers[7])
        for numbers in batches
    ]
    if point:
        heads[0] = replace(heads[0], snapshot={"index": 3}, early_end_frames=2)
    assert all(can_follow(each, heads[0]) for each in heads[1:])
    header = m.encode(pack_heads(heads))
    message, _ = m.decode([header])
    assert isinstance(message, m.BatchHead)
    assert unpack_head(message) == heads


@pytest.mark.parametrize(
    "other",
    [
        head(1, snapshot={"index": 1}),
        head(1, early_end_frames=1),
        head(1, acknowledged_ahead=[4]),
        head(1, request_id=2),
        head(1, bucket=bucket_of(8, 16)),
    ],
)
def test_what_is_more_than_plain_numbers_begins_a_message_of_its_own(other: m.BatchHead) -> None:
    assert can_follow(head(1), head(0))
    assert not can_follow(other, head(0))
    assert not can_follow(head(1), head(0, acknowledged_ahead=[4]))


@pytest.mark.parametrize(
    "more",
    [
        [[1, 3, 3, 9, 0, 0, 2, 0, 8]],
        [[1, 3, 3, 9, 0, 0, 2, 0, 8, 0, 0]],
        [[1, 3, 3, 9, 0, 0, 2, 0, 8, -1]],
        [[1, 3, 3, 9, 0, 0, 2, 0, 8, 1 << 62]],
        [[1, 3, 3, 9, 0, 0, 2, 0, 8, True]],
        [[1, 3, 3, 9, 0, 0, 2, 0, 8, "8"]],
        [1],
        [{}],
        [[1, 3, 3, 9, 0, 0, 2, 0, 8, 0]] * MAX_BATCHES,
    ],
)
def test_what_cannot_be_batches_is_refused(more: list[Any]) -> None:
    with pytest.raises(RemoteProtocolError, match=r"^BatchHead: "):
        unpack_head(head(following=more))
