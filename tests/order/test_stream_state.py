"""A state is the same behind each of its forms; from what the trainers of a job say no batch is lost or repeated."""

from __future__ import annotations

import json
import string
from dataclasses import replace
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.data.columns import sample_set
from pydp2.data.columns.checksum_log import ChecksumLog, FileChecksum, LoggedChecksums
from pydp2.errors import RemoteProtocolError, StateMismatch
from pydp2.order.snapshot import FilePosition, PoolChecks, SnapshotPoint, decode_begins, encode_pool
from pydp2.order.stream_state import StreamState
from pydp2.protocol import messages as m

FILES = 12
BATCHES = 40


@st.composite
def points(draw: st.DrawFn, batch: int) -> SnapshotPoint:
    """A point not beyond ``batch``: files of its pool are in the cycle, or have ended."""
    in_tail = draw(st.booleans())
    cycle = [] if in_tail else draw(st.lists(st.integers(0, FILES - 1), max_size=4, unique=True))
    samples = draw(st.dictionaries(st.integers(0, FILES - 1), st.sets(st.integers(0, 50), min_size=1), max_size=5))
    names = sorted((file, y) for file, ys in samples.items() for y in ys)
    files, ys = np.ascontiguousarray(np.array(names, np.int64).reshape(-1, 2).T)
    ends = [0 if file in cycle else max(samples[file]) + draw(st.integers(1, 9)) for file in sorted(samples)]
    first = {**dict.fromkeys(cycle, 51), **{file: min(of) for file, of in samples.items()}}
    begun = draw(st.sets(st.sampled_from(sorted(first)))) if first else set()
    crcs = st.lists(st.integers(0, (1 << 32) - 1), min_size=3, max_size=3)
    begins = {file: [(draw(st.integers(0, first[file])), draw(crcs))] for file in begun}
    for file in begun & set(cycle):
        if draw(st.booleans()) and (lowest := begins[file][0][0]) < 51:
            begins[file].append((draw(st.integers(lowest + 1, 51)), draw(crcs)))
    pool = encode_pool(
        sample_set.encode_set(files, ys), PoolChecks(np.array(ends, np.int64), np.array(ends, np.int64), begins)
    )
    assert decode_begins(pool) == begins
    positions = [FilePosition(file, 51, *draw(st.sampled_from([(0, []), (64, [7])]))) for file in cycle]
    consumed = draw(st.integers(0, len(names))) if in_tail else 0
    return SnapshotPoint(
        draw(st.integers(0, batch)), pool, in_tail, consumed, FILES, 0, 0, positions, *draw(st.tuples(*[counts] * 3))
    )


counts = st.integers(0, 1000)


def checksums_of(files: set[int]) -> LoggedChecksums:
    """What is known of a file is the same, whoever knows it."""
    log = ChecksumLog()
    for file in sorted(files):
        log.note(file, FileChecksum(file + 1, 11 * file, file % 2 == 1))
    return log.view()


@st.composite
def states(draw: st.DrawFn, passes: int = 3) -> StreamState:
    batch = draw(st.integers(0, BATCHES))
    point = draw(st.none() | points(batch))
    in_tail = point is not None and point.in_tail and point.tail_consumed
    return StreamState(
        draw(st.integers(0, passes - 1)),
        batch,
        sorted(draw(st.sets(st.integers(batch + 1, BATCHES + 5), max_size=4))),
        {file: (3 * file, string.printable[file:40]) for file in draw(st.sets(st.integers(0, FILES - 1)))},
        point,
        checksums_of(draw(st.sets(st.integers(0, FILES - 1)))),
        draw(st.sampled_from([{}, {"bounds": [3, 9]}, {"bounds": [3, 9], "group": 4}])),
        (batch, point.tail_consumed) if in_tail and draw(st.booleans()) else (0, 0),
    )


@given(states())
def test_a_state_comes_back_from_json_msgpack_and_the_wire_as_it_was(state: StreamState) -> None:
    plain = state.to_dict()
    text = json.loads(json.dumps(state.to_dict(sample_set.set_to_text)))
    assert StreamState.from_dict(text, sample_set.set_from_text).to_dict() == plain
    assert StreamState.from_dict(msgpack.unpackb(msgpack.packb(plain)), files=FILES).to_dict() == plain
    message, frames = state.to_wire(5, 2)
    begin, body = m.decode([m.encode(message), *frames])
    assert isinstance(begin, m.BeginPass)
    assert (begin.request_id, begin.credit) == (5, 2)
    assert StreamState.from_wire(begin, body, FILES).to_dict() == plain


@given(states())
def test_a_state_in_the_tail_has_the_samples_of_the_tail_that_are_used(state: StreamState) -> None:
    point = state.with_tail_in_point().point
    batch, consumed = state.tail
    if point is not None and point.in_tail and consumed:
        assert (point.batch_index, point.tail_consumed) == (batch, consumed)
    else:
        assert point == state.point


@given(states())
def test_before_another_pass_nothing_is_known_but_the_bounds_of_buckets(state: StreamState) -> None:
    following = state.next_pass()
    bounds = {"bounds": state.buckets["bounds"]} if state.buckets else {}
    assert following.to_dict() == StreamState(state.pass_id + 1, buckets=bounds).to_dict()
    assert following.before_pass(state.pass_id).position == {"pass": state.pass_id, "batch": 0}


@given(states())
def test_of_one_rank_a_restarted_service_takes_the_state_as_it_is(state: StreamState) -> None:
    ahead = [index for index in state.acknowledged_ahead if index >= state.batch]
    assert StreamState.merge([state]).to_dict() == replace(state, acknowledged_ahead=ahead).to_dict()


def used(state: StreamState) -> set[int]:
    """Batches of its pass that are used, as a state says."""
    return {*range(state.batch), *state.acknowledged_ahead}


@given(st.lists(states(passes=1), min_size=1, max_size=4))
def test_ranks_go_on_at_the_last_of_them_and_from_a_point_that_is_not_beyond(said: list[StreamState]) -> None:
    merged = StreamState.merge(said)
    assert merged.batch == min(state.batch for state in said)
    assert used(merged) == set.intersection(*map(used, said)), "no rank misses a batch that it wants"
    saved = [state.with_tail_in_point().point for state in said]
    known = [point for point in saved if point is not None]
    earlier = [point.batch_index for point in known if point.batch_index <= merged.batch]
    assert (None if merged.point is None else merged.point.batch_index) == max(earlier, default=None)


@given(st.lists(states(), min_size=1, max_size=4))
def test_a_pass_had_begun_if_a_rank_has_had_something_of_it(said: list[StreamState]) -> None:
    begun = {state.pass_id for state in said if used(state)}
    merged = StreamState.merge(said)
    assert merged.pass_id == (max(begun) if begun else min(state.pass_id for state in said))
    assert merged.early_ends == {
        file: early_end
        for state in said
        if state.pass_id == merged.pass_id
        for file, early_end in state.early_ends.items()
    }


def test_between_two_states_the_earlier_point_and_the_checksums_of_both_count() -> None:
    point = SnapshotPoint(0, b"", False, 0, 0, 0, 0, [], 0, 0)
    earlier = StreamState(0, 4, point=point, checksums=checksums_of({1}))
    later = StreamState(0, 8, point=replace(point, batch_index=7), checksums=checksums_of({2}))
    between = later.before(6, earlier)
    assert (between.batch, between.point) == (6, point)
    assert between.checksums.by_file().files.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"pass": 1 << 32}, "pass: 4294967296"), ({"batch": None}, "batch: None"), ({"early_ends": [[FILES, 0, ""]]},
        f"early_ends: {FILES}"), ({"checksums": b"x"}, "checksums"), ({"buckets": {"group": -1}}, "buckets: -1"),
        ({"point": {}}, "point lacks 'pool'"), ({"acknowledged_ahead": 3}, "acknowledged_ahead: 3"),
    ],
)  # fmt: skip
def test_a_field_that_cannot_be_is_named(change: dict[str, Any], text: str) -> None:
    with pytest.raises(StateMismatch, match=text):
        StreamState.from_dict({**StreamState().to_dict(), **change}, files=FILES)


def test_a_field_that_is_missing_is_named() -> None:
    plain = StreamState().to_dict()
    for name in plain:
        with pytest.raises(StateMismatch, match=f"{name} lacks '{name}'"):
            StreamState.from_dict({key: value for key, value in plain.items() if key != name})


@pytest.mark.parametrize(
    ("change", "body", "text"),
    [
        ({"checksum_frames": 1}, [], "1 frames of checksums, but 0 in all"),
        ({"early_end_frames": 1}, [], "1 frames of early-end records, but 0 in all"),
        ({"snapshot": {"index": 0}}, [], "a point and its pool come together"),
        ({}, [b"pool"], "a point and its pool come together"),
        ({}, [b""] * 1025, "1025 frames, at most 1024"),
    ],
)
def test_frames_that_are_not_those_of_the_message_are_refused(
    change: dict[str, Any], body: list[bytes], text: str
) -> None:
    message, _ = StreamState().to_wire(1, 1)
    with pytest.raises(RemoteProtocolError, match=text):
        StreamState.from_wire(replace(message, **change), body, FILES)


def test_a_file_that_the_list_does_not_have_is_named() -> None:
    message, frames = StreamState(early_ends={7: (1, "why")}).to_wire(1, 1)
    with pytest.raises(StateMismatch, match="early-end record of file 7, but the list has 5 files"):
        StreamState.from_wire(message, frames, 5)
