"""Packed sequences: no token is lost, each is where the segments say, and any state gives the same next row."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable
from itertools import islice
from operator import length_hint
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import pydp2
from pydp2.errors import BadSample, ClientUseError, OptionError, OptionTypeError, StateMismatch
from pydp2.streams.sequence_packing import PackedBatch

from ..interruptions import Interruption
from ..list_stream import ListStream, Sequences, rotated
from ..runs import in_ranks
from .test_packed_rows import naive_fit

PROVIDER = """
@provider(input_types={"n": integer_value(1000), "tokens": integer_value_sequence(100000)}, pool_size=100)
def process(settings, filename):
    for i in range(40):
        yield {"n": i, "tokens": [int(filename) * 1000 + i] * (i * 7 % 23)}
"""
STRATEGIES = [("wrapped", "pad"), ("wrapped", "drop"), ("wrapped", "carry"), ("bfd_split", "pad"), ("bfd", "pad")]


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    lengths = draw(st.lists(st.one_of(st.integers(0, 12), st.integers(0, 60)), max_size=60))
    strategy, last_row = draw(st.sampled_from(STRATEGIES))
    return {
        "documents": [[1000 * i + j for j in range(length)] for i, length in enumerate(lengths)],
        "source_batch": draw(st.integers(1, 9)),
        "length": draw(st.integers(1, 20)),
        "batch_size": draw(st.integers(1, 6)),
        "strategy": strategy,
        "last_row": last_row,
        "last_batch": draw(st.sampled_from(["keep", "drop", "pad"])),
    }


OPTIONS = ("length", "batch_size", "strategy", "last_row", "last_batch")


def packed(case: dict[str, Any], **source: Any) -> pydp2.PackedSequences:
    stream = ListStream(case["documents"], case["source_batch"], **source)
    return pydp2.pack_sequences(
        stream, slot=["tokens", "mask"], pad_token=7, **{name: case[name] for name in OPTIONS}
    )  # fmt: skip


def sign(batch: pydp2.Batch) -> Any:
    assert isinstance(batch, PackedBatch)
    values = [batch[name].tolist() for name in batch.names or ()]
    return batch.pass_id, batch.index, batch.padding, values, [each.tolist() for each in batch.segments]


@given(cases())
def test_segments_positions_and_masks_say_where_each_sequence_is(case: dict[str, Any]) -> None:
    length = case["length"]
    with packed(case) as data:
        for _ in range(2):
            before: Any = None
            for batch in data:
                rows = len(batch)
                tokens, mask, positions, numbers = (np.asarray(batch[name]) for name in batch.names or ())
                assert batch.keys() == ("tokens", "mask", "position_ids", "segment_ids")
                assert {array.shape for array in (tokens, mask, positions, numbers)} == {(rows, length)}
                assert {array.dtype for array in (tokens, mask, positions, numbers)} == {np.dtype(np.int32)}
                assert rows == case["batch_size"] or case["last_batch"] == "keep"
                documents = rotated(case["documents"], batch.pass_id)
                earlier = rotated(case["documents"], batch.pass_id - 1)
                unused = np.ones((rows, length), bool)
                last = -1, 0
                origins = batch.origin.sample.tolist()
                for n, (row, start, size, document, offset) in enumerate(zip(*map(list, batch.segments), strict=True)):
                    here = slice(start, start + size)
                    assert (row, start) >= last
                    last = row, start + size
                    uninterrupted = documents[document] if document >= 0 else earlier[document]
                    assert uninterrupted == case["documents"][origins[n]]
                    assert tokens[row, here].tolist() == uninterrupted[offset : offset + size]
                    assert mask[row, here].tolist() == [token + 1 for token in uninterrupted[offset : offset + size]]
                    assert positions[row, here].tolist() == [*range(size)]
                    assert unused[row, here].all()
                    unused[row, here] = False
                    assert len({*numbers[row, here].tolist()}) == 1
                for row in range(rows):
                    used = numbers[row][~unused[row]]
                    assert (np.diff(used) >= 0).all()
                    assert {*used.tolist()} == {*range(1, (batch.segments.row == row).sum() + 1)}
                    assert not unused[row, : len(used)].any()  # padding stands at the end
                assert (tokens[unused] == 7).all()
                assert not positions[unused].any()
                assert not numbers[unused].any()
                edges = batch.cu_seqlens
                assert edges.dtype == np.int32
                assert (edges[0], edges[-1]) == (0, rows * length)
                assert batch.max_seqlen == max(np.diff(edges))
                inside = np.cumsum(np.ones(rows * length)) - 1 - np.repeat(edges[:-1], np.diff(edges))
                assert (inside.reshape(rows, length)[~unused] == positions[~unused]).all()
                assert [part.tolist() for part in batch.unpack()] == [
                    tokens[row, start : start + size].tolist()
                    for row, start, size in zip(*batch.segments[:3], strict=True)
                ]
                if before is not None:
                    assert before.padding == 0
                before = batch


def pieces(data: pydp2.PackedSequences) -> tuple[list[list[int]], list[tuple[int, int, list[int]]]]:
    """The rows of a pass without their padding, and (document, offset, tokens) of each segment."""
    rows, found = [], []
    for batch in data:
        for row in range(len(batch) - batch.padding):
            here = batch.segments.row == row
            rows.append(
                [t for part, is_here in zip(batch.unpack(), here, strict=True) if is_here for t in part.tolist()]
            )
        for row, document, offset, part in zip(
            batch.segments.row, batch.segments.document, batch.segments.offset, batch.unpack(), strict=True
        ):
            if row < len(batch) - batch.padding:
                found.append((int(document), int(offset), part.tolist()))
    return rows, found


@given(cases())
def test_packing_loses_no_token_and_unpacking_gives_the_sequences_back(case: dict[str, Any]) -> None:
    case |= {"last_batch": "keep"}
    left: list[int] = []
    with packed(case) as data:
        for pass_id in range(3):
            documents = rotated(case["documents"], pass_id)
            all_tokens = [token for document in documents for token in document]
            rows, found = pieces(data)
            if case["strategy"] == "wrapped":
                stream = left + all_tokens
                uninterrupted = len(stream) // case["length"] * case["length"]
                left = stream[uninterrupted:] if case["last_row"] == "carry" else []
                assert [token for row in rows for token in row] == stream[
                    : None if case["last_row"] == "pad" else uninterrupted
                ]
                assert all(len(row) == case["length"] for row in rows[:-1])
                if case["last_row"] != "pad":
                    continue
            back: list[list[int]] = [[] for _ in documents]
            for document, offset, part in sorted(found):
                assert offset == len(back[document])
                back[document] += part
            kept = case["length"] if case["strategy"] == "bfd" else None
            assert back == [document[:kept] for document in documents]
        stats = data.stats()
        assert stats["truncated"] == (
            3 * sum(max(len(each) - case["length"], 0) for each in documents) if case["strategy"] == "bfd" else 0
        )
        assert stats["tokens"] + stats["padding"] == stats["rows"] * case["length"]


@given(cases())
def test_best_fit_places_what_fits_whole(case: dict[str, Any]) -> None:
    case |= {"strategy": "bfd_split", "last_row": "pad", "last_batch": "keep"}
    with packed(case) as data:
        _, found = pieces(data)
    documents = case["documents"]
    assert all(
        len(documents[document]) == len(part)
        for document, _, part in found
        if len(documents[document]) <= case["length"]
    )


def reference_rows(case: dict[str, Any]) -> list[list[tuple[int, int, list[int]]]]:
    """Rows of (document, offset, tokens): windows of as many documents as fill 64 rows, packed one after the other."""
    length, rows, window, filled = case["length"], [], [], 0
    documents = case["documents"]
    for number, document in enumerate(documents):
        cuts = range(0, len(document), length)[: 1 if case["strategy"] == "bfd" else None]
        window += [(number, offset, document[offset : offset + length]) for offset in cuts]
        filled += len(document)
        if filled >= 64 * length or number == len(documents) - 1:
            for row in naive_fit([len(tokens) for _, _, tokens in window], length):
                rows.append([window[i] for i in row])
            window, filled = [], 0
    return rows


@given(
    st.lists(st.lists(st.integers(0, 9), max_size=12), max_size=80),
    st.integers(1, 4),
    st.integers(1, 9),
    st.sampled_from(["bfd", "bfd_split"]),
)
@example([[1, 2, 3]] * 50, 1, 4, "bfd")
@example([[1, 2, 3]] * 90, 2, 7, "bfd_split")
def test_best_fit_packs_window_after_window(
    documents: list[list[int]], length: int, source_batch: int, strategy: str
) -> None:
    case = {"documents": documents, "source_batch": source_batch, "length": length, "batch_size": 3}
    case |= {"strategy": strategy, "last_row": "pad", "last_batch": "keep"}
    rows: list[list[tuple[int, int, list[int]]]] = []
    with packed(case) as data:
        for batch in data:
            mine: list[Any] = [[] for _ in range(len(batch))]
            for row, document, offset, part in zip(
                batch.segments.row, batch.segments.document, batch.segments.offset, batch.unpack(), strict=True
            ):
                mine[row].append((int(document), int(offset), part.tolist()))
            rows += mine
    assert rows == reference_rows(case)


# -- states ------------------------------------------------------------------------------------------------------------
@given(cases(), st.data())
def test_what_follows_a_restore_is_what_would_have_followed(case: dict[str, Any], data: st.DataObject) -> None:
    seen, states = [], []
    with packed(case) as stream:
        for _ in range(3):
            for batch in stream:
                seen.append(sign(batch))
                states.append(json.dumps(stream.state_dict()))
                assert states[-1] == json.dumps(stream.state_dict(after=batch))
        assert stream._cursors[0].stream.loads == 0  # type: ignore[attr-defined]
    if not states:
        return
    k = data.draw(st.integers(0, len(states) - 1), label="state")
    with packed(case) as stream:
        stream.load_state_dict(json.loads(states[k]))
        again = [sign(batch) for _ in range(seen[k][0], 3) for batch in stream]
        assert again == seen[k + 1 :]


@given(cases(), st.sets(st.integers(0, 12), max_size=5))
def test_an_exception_in_the_middle_of_a_batch_loses_nothing(case: dict[str, Any], fails_at: set[int]) -> None:
    with packed(case) as data:
        uninterrupted = [sign(batch) for batch in data]
    seen: list[Any] = []
    with packed(case, fails_at=fails_at) as data:
        one = None
        while len(seen) < len(uninterrupted):
            try:
                one = one or iter(data)
                seen.append(sign(next(one)))
            except Interruption:
                continue
    assert seen == uninterrupted


@given(cases(), st.lists(st.integers(0, 3), min_size=1, max_size=4))
def test_a_pass_can_be_had_by_number_if_nothing_is_carried_into_it(case: dict[str, Any], numbers: list[int]) -> None:
    with packed(case) as data:
        if case["last_row"] == "carry":
            with pytest.raises(OptionError, match="load a state"):
                data.set_epoch(2)
            return
        uninterrupted = [[sign(batch) for batch in data] for _ in range(4)]
    with packed(case) as data:
        for number in numbers:
            data.set_epoch(number)
            assert [sign(batch) for batch in data] == uninterrupted[number]


@given(cases())
def test_the_number_of_batches_is_not_known_and_estimated_by_the_last_pass(case: dict[str, Any]) -> None:
    with packed(case) as data:
        with pytest.raises(TypeError, match="lengths of the sequences"):
            len(data)
        assert length_hint(data, 99) == 99
        batches = len([*data])
        assert length_hint(data, 99) == batches
    with pydp2.mix({packed(case): 1}, batch_size=2) as mixed, pytest.raises(TypeError, match="packed sequences"):
        len(mixed)


def test_a_pass_that_is_left_carries_nothing_to_the_next_one() -> None:
    documents = [[10 * i + j for j in range(7)] for i in range(6)]
    options: Any = {"slot": "tokens", "length": 4, "batch_size": 2, "strategy": "wrapped", "last_row": "carry"}
    with pydp2.pack_sequences(ListStream(documents, 2), **options) as data:
        next(iter(data))
        assert np.asarray(next(iter(data))["tokens"]).ravel().tolist() == [10, 11, 12, 13, 14, 15, 16, 20]
        held = next(iter(data))
        list(data)
        with pytest.raises(ClientUseError, match="not of the present pass"):
            data.state_dict(after=held)


def test_a_batch_can_be_copied_with_what_it_says() -> None:
    with pydp2.pack_sequences(ListStream([[1, 2, 3], [4]], 2), slot="tokens", length=4, batch_size=1) as data:
        batch = next(iter(data))
    assert sign(copy.deepcopy(batch)) == sign(batch)


def packed_mixture(rank: tuple[int, int] = (0, 1)) -> pydp2.PackedSequences:
    documents = [[[100 * i + s] * (i * 5 % 11) for i in range(64)] for s in range(2)]
    streams = [(ListStream(each, 4, rank=rank), s + 1) for s, each in enumerate(documents)]
    mixed = pydp2.mix(streams, batch_size=4, seed=5, stopping_strategy="all_exhausted")
    return pydp2.pack_sequences(mixed, slot="tokens", length=16, batch_size=3, strategy="wrapped")


def test_a_mixture_is_packed_and_goes_on_from_its_state() -> None:
    with packed_mixture() as data:
        seen = [sign(batch) for _ in range(2) for batch in data]
        assert data.stats()["source"]["sources"]["source 0"]["rows"] > 0
    with packed_mixture() as data:
        for batch in islice(data, 3):
            state = json.dumps(data.state_dict(after=batch))
        data.load_state_dict(json.loads(state))
        assert [sign(batch) for _ in range(2) for batch in data] == seen[3:]


def test_ranks_go_on_from_the_states_of_all_of_them_and_from_no_others() -> None:
    seen: list[list[Any]] = []
    states = []
    for rank in range(2):
        with packed_mixture((rank, 2)) as data:
            seen.append([sign(batch) for batch in data])
        with packed_mixture((rank, 2)) as data:
            states.append([data.state_dict(after=batch) for batch in islice(data, 3)][-1])
    places = [each["sources"][0] for each in states]
    assert places[0] != places[1]  # they had used up different numbers of batches
    for rank in range(2):
        with packed_mixture((rank, 2)) as data:
            data.load_state_dict(json.loads(json.dumps(states)))
            assert [sign(batch) for batch in data] == seen[rank][3:]
            for wrong, says in (
                (states[rank], "as a list by rank"),
                (states[::-1], "ranks 0 to 1 of 2, in this order"),
            ):
                with pytest.raises(StateMismatch, match=says):
                    data.load_state_dict(wrong)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"length": 5}, "length was 4, is 5"), ({"batch_size": 3}, "batch_size was 2, is 3"),
        ({"strategy": "bfd"}, "strategy was 'bfd_split', is 'bfd'"), ({"pad_token": 1}, "pad_token was 0, is 1"),
        ({"slot": "mask"}, "slots was"), ({"last_batch": "drop"}, "last_batch was"),
    ],
)  # fmt: skip
def test_a_state_of_other_rows_is_refused_and_the_text_says_what_differs(change: dict[str, Any], says: str) -> None:
    options: dict[str, Any] = {"slot": "tokens", "length": 4, "batch_size": 2}
    with (
        pydp2.pack_sequences(ListStream([[1, 2]], 2), **options) as data,
        pydp2.pack_sequences(ListStream([[1, 2]], 2), **options | change) as other,
        pytest.raises(StateMismatch, match=says),
    ):
        other.load_state_dict(data.state_dict())


@pytest.mark.parametrize(
    "damage",
    [
        {"skip": -1}, {"sources": []}, {"rank": [0, 3]}, {"ended": 1}, {"ended": True},
        *({"carried": each} for each in (
            [[[1]], [0], [0], [2]], [[[1 << 40]], [0], [0], [1]], [[[1 << 63]], [0], [0], [1]],
            [[[1.5]], [0], [0], [1]], [[["a"]], [0], [0], [1]], [[[[1]]], [0], [0], [1]], [[[1]], 0, 0, [1]],
            [[[1]], [0, 1], [0], [1]], [[[1]], [0], [-1], [1]], [[[1, 2]], [0, 1], [0, 0], [-1, 3]],
        )),
    ],
)  # fmt: skip
def test_a_damaged_state_is_refused(damage: dict[str, Any]) -> None:
    options: dict[str, Any] = {"slot": 0, "length": 4, "batch_size": 1, "strategy": "wrapped"}
    with pydp2.pack_sequences(ListStream([[1, 2, 3]] * 3, 1), **options) as data:
        next(iter(data))
        with pytest.raises(StateMismatch, match=r"damaged|ranks 0 to 0 of 1"):
            data.load_state_dict(data.state_dict() | damage)
        assert [len(list(data)) for _ in range(2)] == [3, 3]


def test_rows_of_whole_sequences_carry_no_tokens() -> None:
    with pydp2.pack_sequences(ListStream([[1, 2, 3]], 1), slot=0, length=4, batch_size=1) as data:
        with pytest.raises(StateMismatch, match="it is damaged"):
            data.load_state_dict(data.state_dict() | {"carried": [[[1]], [0], [0], [1]]})
        assert len(list(data)) == 1


def loaded(stream: ListStream, strategy: str, state: dict[str, Any]) -> pydp2.PackedSequences:
    """Rows of ``stream``, which go on from ``state`` although the list has changed."""
    stream._stream_identity = state["sources"][0]["state"]["stream_identity"]
    rows = pydp2.pack_sequences(stream, slot=0, length=6, batch_size=2, strategy=strategy)  # type: ignore[arg-type]
    rows.load_state_dict(state)
    return rows


@pytest.mark.parametrize(
    ("strategy", "changed"),
    [
        ("wrapped", [[1] * 10, [2] * 2, [3] * 10]), ("wrapped", [[1] * 10, [], [3] * 10]), ("wrapped", [[1] * 10]),
        ("bfd_split", [[1] * 10]), ("bfd_split", []), ("bfd", [[1] * 10, [2] * 2]),
    ],
)  # fmt: skip
def test_a_state_that_has_used_more_than_there_is_now_is_refused_and_nothing_is_lost(
    strategy: Any, changed: Sequences
) -> None:
    documents = [[i] * 10 for i in range(1, 5)]  # 12 tokens are used, or two rows of the window
    with pydp2.pack_sequences(ListStream(documents, 1), slot=0, length=6, batch_size=2, strategy=strategy) as rows:
        next(iter(rows))
        state = rows.state_dict()
    assert state["skip"] == 2
    with loaded(ListStream(changed, 1), strategy, state) as rows:
        for _ in range(2):
            with pytest.raises(StateMismatch, match=r"is 2 .* into .*: the data have changed, or the state is damaged"):
                next(iter(rows))
        rows.set_epoch(1)
        assert sum(batch.segments.length.sum() for batch in rows) == sum(
            min(len(each), 6) if strategy == "bfd" else len(each) for each in changed
        )


# -- what cannot be packed ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"slot": "words"}, OptionError, "name or number of a slot"), ({"slot": 2}, OptionError, "name or number"),
        ({"slot": []}, OptionError, "at least one slot"), ({"slot": [0, "tokens"]}, OptionError, "each once"),
        ({"length": 0}, OptionError, "length must be at least 1"), ({"batch_size": "2"}, OptionTypeError, "batch_size"),
        ({"strategy": "ffd"}, OptionError, "strategy must be"), ({"last_row": "keep"}, OptionError, "last_row must be"),
        ({"strategy": "bfd", "last_row": "carry"}, OptionError, 'needs strategy="wrapped"'),
        ({"pad_token": -1}, OptionError, "pad_token"),
    ],
)  # fmt: skip
def test_what_cannot_be_packed_is_refused(options: dict[str, Any], error: type[Exception], says: str) -> None:
    with ListStream([[1]], 1) as stream, pytest.raises(error, match=says):
        pydp2.pack_sequences(stream, **{"slot": "tokens", "length": 4, "batch_size": 1} | options)


def test_only_streams_are_packed_and_only_sequences_of_integers(provider_file: Callable[[str], str]) -> None:
    with pytest.raises(OptionTypeError, match="needs a stream"):
        pydp2.pack_sequences([], slot=0, length=4, batch_size=1)  # type: ignore[arg-type]
    with (
        pydp2.load(["1"], provider_file(PROVIDER), batch_size=4, workers=1) as data,
        pytest.raises(OptionError, match=r"sequences of integers, declared as .*, and n is InputType"),
    ):
        pydp2.pack_sequences(data, slot="n", length=4, batch_size=1)


def test_slots_that_are_packed_together_need_sequences_of_one_length(provider_file: Callable[[str], str]) -> None:
    two = PROVIDER.replace('"n": integer_value(1000)', '"n": integer_value_sequence(1000)').replace(
        '"n": i,', '"n": [i],'
    )
    data = pydp2.load(["1"], provider_file(two), batch_size=4, workers=1, shuffle=False)
    with (
        pydp2.pack_sequences(data, slot=["tokens", "n"], length=4, batch_size=1) as rows,
        pytest.raises(BadSample, match="a sample has 0 steps in tokens, 1 in n; yield equally many"),
    ):
        list(rows)


# -- with services -----------------------------------------------------------------------------------------------------
def sequences_of(files: range) -> Sequences:
    return [[f * 1000 + i] * (i * 7 % 23) for f in files for i in range(40)]


@pytest.mark.parametrize("strategy", ["wrapped", "bfd_split"])
def test_rows_of_a_service_go_on_from_a_state_on_another_one(
    strategy: Any, provider_file: Callable[[str], str]
) -> None:
    address, files = provider_file(PROVIDER), [str(f) for f in range(4)]

    def of(workers: int) -> pydp2.PackedSequences:
        data = pydp2.load(files, address, batch_size=8, workers=workers, seed=2)
        return pydp2.pack_sequences(data, slot="tokens", length=32, batch_size=4, strategy=strategy)

    seen, states = [], []
    with of(1) as rows:
        for _ in range(2):
            for batch in rows:
                seen.append(sign(batch))
                states.append(json.dumps(rows.state_dict()))
    tokens = [t for p, _, _, values, _ in seen if p == 0 for row, ids in zip(values[0], values[2], strict=True)
              for t, number in zip(row, ids, strict=True) if number]  # fmt: skip
    assert sorted(tokens) == sorted(token for each in sequences_of(range(4)) for token in each)
    with of(2) as rows:
        for k in (1, len(seen) // 2 + 3):
            rows.load_state_dict(json.loads(states[k]))
            assert [sign(batch) for _ in range(seen[k][0], 2) for batch in rows] == seen[k + 1 :]


@pytest.mark.parametrize("strategy", ["wrapped", "bfd"])
def test_a_rank_that_was_behind_its_last_batch_goes_on_with_one_that_was_not(
    strategy: Any, provider_file: Callable[[str], str]
) -> None:
    with pydp2.launch([str(f) for f in range(6)], provider_file(PROVIDER), workers=1) as service:
        seen: list[list[Any]] = [[], []]
        states: list[list[Any]] = [[], []]
        again: list[list[Any]] = [[], []]
        together = threading.Barrier(2)

        def train(rank: int) -> None:
            data = service.connect(batch_size=8, rank=rank, world_size=2, last_batch="drop", timeout=30)
            with pydp2.pack_sequences(data, slot="tokens", length=32, batch_size=2, strategy=strategy) as rows:
                for _ in range(2):
                    for batch in rows:
                        if batch.pass_id == 0:
                            states[rank].append(rows.state_dict())
                        else:
                            seen[rank].append(sign(batch))
                together.wait(60)
                rows.load_state_dict([json.loads(json.dumps(states[0][-4])), states[1][-1]])
                for _ in range(2):
                    again[rank] += [sign(batch) for batch in rows if batch.pass_id == 1]

        in_ranks(train)
    assert again == seen


def test_bad_data_end_a_pass_of_packed_sequences_and_the_next_loop_begins_the_next(
    provider_file: Callable[[str], str],
) -> None:
    two = """
@provider(input_types={"a": integer_value_sequence(9), "b": integer_value_sequence(9)}, should_shuffle=False)
def process(settings, filename):
    for i in range(40):
        yield {"a": [1, 2, 3], "b": [1, 2] if i == 30 else [1, 2, 3]}
"""
    counts: list[list[tuple[int, int]]] = []

    def read(rows: pydp2.PackedSequences) -> None:
        counts.append([])
        for batch in rows:
            counts[-1].append((batch.pass_id, batch.index))

    with (
        pydp2.load(["0"], provider_file(two), workers=1, batch_size=4) as data,
        pydp2.pack_sequences(data, slot=["a", "b"], length=6, batch_size=2, strategy="wrapped") as rows,
    ):
        for _ in range(3):
            with pytest.raises(BadSample, match="packed together need sequences of one length"):
                read(rows)
    assert [{pass_id for pass_id, _ in seen} for seen in counts] == [{0}, {1}, {2}]
    assert len({len(seen) for seen in counts}) == 1


def test_a_token_that_the_slot_has_no_room_for_is_no_padding() -> None:
    with pytest.raises(OptionError, match="pad_token must be at most 2147483647, got 1099511627776"):
        pydp2.pack_sequences(ListStream([[[1]]], 1), slot=0, length=4, batch_size=1, pad_token=1 << 40)


def test_two_ranks_of_a_service_pack_their_shares_and_go_on_from_their_states(
    provider_file: Callable[[str], str],
) -> None:
    with pydp2.launch([str(f) for f in range(6)], provider_file(PROVIDER), workers=1) as service:
        seen: list[list[Any]] = [[], []]
        states: list[list[Any]] = [[], []]
        again: list[list[Any]] = [[], []]
        together = threading.Barrier(2)

        def train(rank: int) -> None:
            data = service.connect(batch_size=8, rank=rank, world_size=2, last_batch="drop")
            with pydp2.pack_sequences(data, slot="tokens", length=32, batch_size=2) as rows:
                for batch in rows:
                    seen[rank].append(sign(batch))
                    states[rank].append(rows.state_dict())
                together.wait(60)
                rows.load_state_dict([json.loads(json.dumps(states[each][6])) for each in range(2)])
                again[rank] += [sign(batch) for batch in rows]

        in_ranks(train)
    assert [each[7:] for each in seen] == again
    packed_tokens = [t for each in seen for _, _, _, values, _ in each
                     for row, ids in zip(values[0], values[2], strict=True)
                     for t, number in zip(row, ids, strict=True) if number]  # fmt: skip
    assert sorted(packed_tokens) == sorted(token for each in sequences_of(range(6)) for token in each)
