"""Mixtures: each source's stream in its own order, drawn by the weights, and the same again from any state."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from fractions import Fraction
from itertools import count, islice
from operator import length_hint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import pydp2
from pydp2.errors import BadSample, ClientUseError, OptionError, OptionTypeError, StateMismatch
from pydp2.order.random_bits import RandomBits
from pydp2.streams.mixing import MixedBatch
from pydp2.streams.mixture_draws import BLOCK

from ..interruptions import Interruption
from ..list_stream import ListStream, rotated, rows_of
from ..runs import in_ranks

PROVIDER = """
@provider(input_types={"n": integer_value(1000000)}, pool_size=100)
def process(settings, filename):
    for i in range(40):
        yield {"n": int(filename) * 1000 + i}
"""
Seen = tuple[int, int, int, list[Any], list[int]]
STRATEGIES = ("all_exhausted_without_replacement", "first_exhausted", "all_exhausted", "cycle_forever")
weights = st.sampled_from([1, 2, 0.3, 0.7, Fraction(1, 3)])


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    sizes = draw(st.lists(st.integers(1, 30), min_size=1, max_size=4))
    return {
        "rows": [[[100 * source + i] * (i % 3) + [source] for i in range(size)] for source, size in enumerate(sizes)],
        "batches": draw(st.lists(st.integers(1, 7), min_size=len(sizes), max_size=len(sizes))),
        "weights": draw(st.lists(weights, min_size=len(sizes), max_size=len(sizes))),
        "stopping_strategy": draw(st.sampled_from(STRATEGIES)),
        "batching_method": draw(st.sampled_from(["random", "per_stream"])),
        "seed": draw(st.integers(0, 3)),
        "batch_size": draw(st.integers(1, 9)),
        "last_batch": draw(st.sampled_from(["keep", "drop", "pad"])),
    }


def mixture(case: dict[str, Any], **source: Any) -> pydp2.Mixture:
    streams = [ListStream(rows, size, **source) for rows, size in zip(case["rows"], case["batches"], strict=True)]
    options = {
        name: case[name] for name in ("stopping_strategy", "batching_method", "seed", "batch_size", "last_batch")
    }
    return pydp2.mix(list(zip(streams, case["weights"], strict=True)), **options)


def sign(batch: pydp2.Batch) -> Seen:
    assert isinstance(batch, MixedBatch)
    assert batch.origin.source is not None
    assert batch.origin.source.tolist() == batch.source.tolist()
    return batch.pass_id, batch.index, batch.padding, rows_of(batch), batch.source.tolist()


def reference(case: dict[str, Any], passes: int, limit: int) -> list[list[tuple[int, list[int]]]]:
    """Passes of (source, row), drawn one by one with fractions, as docs/mixing.md says it. At most ``limit`` rows of
    each pass; with "per_stream" a row is a batch."""
    exact = [Fraction(weight) for weight in case["weights"]]
    repeats = case["stopping_strategy"] in ("all_exhausted", "cycle_forever")
    following = [0] * len(exact)  # pass of each source
    found = []
    for pass_id in range(passes):
        words = (int(w) for n in count() for w in RandomBits(case["seed"], pass_id, "mix", n).draw(BLOCK))
        ended, rest = [False] * len(exact), [stream(case, i, following[i]) for i in range(len(exact))]
        fresh = [False] * len(exact)
        rows: list[Any] = []
        while len(rows) < limit and not over(case["stopping_strategy"], ended):
            alive = [i for i in range(len(exact)) if repeats or not ended[i]]
            point = Fraction(next(words), 1 << 64) * sum(exact[i] for i in alive)
            chosen = alive[-1]
            for i in alive[:-1]:
                if point < exact[i]:
                    chosen = i
                    break
                point -= exact[i]
            if rest[chosen]:
                rows.append((chosen, rest[chosen].pop(0)))
                fresh[chosen] = False
                continue
            ended[chosen] = fresh[chosen] = True
            following[chosen] += 1
            rest[chosen] = stream(case, chosen, following[chosen])
        following = [p + (not fresh[i]) for i, p in enumerate(following)]
        found.append(rows)
    return found


def stream(case: dict[str, Any], source: int, pass_id: int) -> list[Any]:
    rows, size = rotated(case["rows"][source], pass_id), case["batches"][source]
    if case["batching_method"] == "random":
        return rows
    return [rows[i : i + size] for i in range(0, len(rows), size)]


def over(strategy: str, ended: list[bool]) -> bool:
    return strategy != "cycle_forever" and (any(ended) if strategy == "first_exhausted" else all(ended))


def expected(case: dict[str, Any], passes: int, limit: int) -> list[Seen]:
    batches: list[Seen] = []
    size = case["batch_size"]
    for pass_id, drawn in enumerate(reference(case, passes, limit)):
        if case["batching_method"] == "per_stream":
            batches += [(pass_id, i, 0, rows, [source] * len(rows)) for i, (source, rows) in enumerate(drawn)]
            continue
        for index, low in enumerate(range(0, len(drawn), size)):
            part = drawn[low : low + size]
            missing = size - len(part)
            if missing and case["last_batch"] == "drop":
                break
            padding = missing if case["last_batch"] == "pad" else 0
            part = [part[i % len(part)] for i in range(len(part) + padding)]
            batches.append((pass_id, index, padding, [row for _, row in part], [source for source, _ in part]))
    return batches


LIMIT = 12  # batches of a pass that does not end


def read(mixed: pydp2.Mixture, case: dict[str, Any], passes: int) -> list[pydp2.Batch]:
    """Whole passes, or the first batches of one that does not end."""
    if case["stopping_strategy"] == "cycle_forever":
        return list(islice(mixed, LIMIT))
    return [batch for _ in range(passes) for batch in mixed]


def partly_filled(last_batch: str) -> dict[str, Any]:
    """A case whose last batch is not full."""
    return {
        "rows": [[[1]] * 5, [[2]] * 4], "batches": [2, 3], "weights": [1, 2], "seed": 0, "batch_size": 6,
        "stopping_strategy": STRATEGIES[0], "batching_method": "random", "last_batch": last_batch,
    }  # fmt: skip


@given(cases())
@example(partly_filled("keep"))
@example(partly_filled("drop"))
@example(partly_filled("pad"))
def test_a_mixture_is_what_a_reference_draws_row_by_row(case: dict[str, Any]) -> None:
    forever = case["stopping_strategy"] == "cycle_forever"
    size = case["batch_size"] if case["batching_method"] == "random" else 1
    with mixture(case) as mixed:
        seen = [sign(batch) for batch in read(mixed, case, 3)]
        assert all(cursor.stream.loads == 0 for cursor in mixed._cursors)  # type: ignore[attr-defined]
    assert seen == expected(case, 1 if forever else 3, LIMIT * size if forever else 10**9)


@given(cases())
def test_without_replacement_each_row_of_each_source_comes_once_and_in_its_order(case: dict[str, Any]) -> None:
    case |= {"stopping_strategy": "all_exhausted_without_replacement", "last_batch": "keep"}
    with mixture(case) as mixed:
        for pass_id in range(2):
            seen = [row for batch in mixed for row in zip(batch.source.tolist(), rows_of(batch), strict=True)]
            for number, rows in enumerate(case["rows"]):
                assert [row for source, row in seen if source == number] == rotated(rows, pass_id)


@given(cases(), st.data())
def test_what_follows_a_restore_is_what_would_have_followed(case: dict[str, Any], data: st.DataObject) -> None:
    seen, states = [], []
    with mixture(case) as mixed:
        for batch in read(mixed, case, 3):
            seen.append(sign(batch))
        mixed.load_state_dict(json.loads(json.dumps(fresh_state(case))))
        for number, batch in enumerate(restarted(mixed, len(seen))):
            assert sign(batch) == seen[number]
            states.append(json.dumps(mixed.state_dict(after=batch)))
            assert states[-1] == json.dumps(mixed.state_dict())
    if not states:
        return
    k = data.draw(st.integers(0, len(states) - 1), label="state")
    with mixture(case) as other:
        other.load_state_dict(json.loads(states[k]))
        assert [sign(batch) for batch in restarted(other, len(seen) - k - 1)] == seen[k + 1 :]


def fresh_state(case: dict[str, Any]) -> dict[str, Any]:
    with mixture(case) as mixed:
        return mixed.state_dict()


def restarted(mixed: pydp2.Mixture, batches: int) -> list[pydp2.Batch] | Any:
    """The next batches, over the ends of passes."""
    left = batches
    while left:
        for batch in mixed:
            yield batch
            left -= 1
            if not left:
                return


@given(cases(), st.sets(st.integers(0, 25), max_size=6))
def test_an_exception_in_the_middle_of_a_batch_loses_nothing(case: dict[str, Any], fails_at: set[int]) -> None:
    with mixture(case) as mixed:
        uninterrupted = [sign(batch) for batch in read(mixed, case, 1)]
    seen: list[Seen] = []
    with mixture(case, fails_at=fails_at) as mixed:
        one = iter(mixed)
        while len(seen) < len(uninterrupted):
            try:
                seen.append(sign(next(one)))
            except Interruption:
                continue
    assert seen == uninterrupted


def test_the_sources_come_as_often_as_their_weights_say() -> None:
    rows = [[[source]] * 1000 for source in range(3)]
    streams = [ListStream(each, 100) for each in rows]
    total = 60_000
    sources = list(zip(streams, (0.6, 0.3, 0.1), strict=True))
    with pydp2.mix(sources, batch_size=1000, seed=1, stopping_strategy="cycle_forever") as mixed:
        drawn = np.concatenate([batch.source for batch in islice(mixed, total // 1000)])
        assert mixed.weights == (0.6, 0.3, 0.1)
        assert [each["rows"] for each in mixed.stats()["sources"].values()] == np.bincount(drawn).tolist()
    for source, share in enumerate((0.6, 0.3, 0.1)):
        spread = (total * share * (1 - share)) ** 0.5
        assert abs(int((drawn == source).sum()) - total * share) < 4 * spread
    switches = (np.diff(drawn) != 0).mean()  # rows are independent: not one source for a while, then another
    assert abs(switches - (1 - 0.6**2 - 0.3**2 - 0.1**2)) < 0.01


def test_ranks_draw_the_same_sources_in_the_same_step_and_share_the_rows() -> None:
    rows = [[[100 * source + i] for i in range(50 + 10 * source)] for source in range(2)]
    seen = []
    for rank in range(2):
        streams = [ListStream(each, 5, rank=(rank, 2)) for each in rows]
        with pydp2.mix([(streams[0], 2), (streams[1], 1)], batch_size=7, seed=4) as mixed:
            seen.append([sign(batch) for batch in mixed])
            assert mixed.state_dict()["world_size"] == 2
    assert [each[4] for each in seen[0]] == [each[4] for each in seen[1]]
    drawn = [row for each in seen for batch in each for row in batch[3]]
    assert sorted(drawn) == sorted(row for each in rows for row in each[: len(each) // 10 * 10])


def test_another_world_size_takes_up_a_mixture_only_where_no_batch_was_begun() -> None:
    rows = [[[i] for i in range(60)]] * 2

    def of(ranks: int, **options: Any) -> pydp2.Mixture:
        streams = [ListStream(each, 5, rank=(0, ranks)) for each in rows]
        for each in streams:
            each._stream_identity["last_batch"] = "drop"
        return pydp2.mix([(streams[0], 1), (streams[1], 1)], batch_size=7, last_batch="drop", **options)

    with of(2) as mixed, of(3) as other:
        other.load_state_dict(mixed.state_dict())
        next(iter(mixed))
        with pytest.raises(StateMismatch, match="2 ranks share, and there are 3"):
            other.load_state_dict(mixed.state_dict())
    with of(2, batching_method="per_stream") as mixed, of(3, batching_method="per_stream") as other:
        next(iter(mixed))
        other.load_state_dict(mixed.state_dict())


# -- lengths and passes by number --------------------------------------------------------------------------------------
@given(cases())
@example(
    partly_filled("keep") | {"rows": [[[i] for i in range(9000)], [[0]] * 900], "stopping_strategy": "first_exhausted"}
)
@example(
    partly_filled("keep") | {"rows": [[[i] for i in range(9000)], [[0]] * 900], "stopping_strategy": "all_exhausted"}
)
def test_the_length_is_known_before_each_pass_and_in_it(case: dict[str, Any]) -> None:
    with mixture(case) as mixed:
        if case["stopping_strategy"] == "cycle_forever":
            with pytest.raises(TypeError, match="does not end"):
                len(mixed)
            return
        lengths, found = [], []
        for _ in range(3):
            lengths.append(len(mixed))
            batches = 0
            for batches, _ in enumerate(mixed, 1):
                if batches == 2:
                    lengths[-1] = len(mixed)
            found.append(batches)
            assert mixed.__length_hint__() == batches, "that of the last pass, where the length is not known"
        assert lengths == found
        if mixed._is_steady:
            assert len({*lengths}) == 1


def test_a_mixture_of_mixtures_has_a_length_if_their_passes_are_equally_long() -> None:
    def outer(strategy: Any, method: Any = "random", last_batch: Any = "keep") -> pydp2.Mixture:
        streams = [ListStream([[i]] * (10 + i), 3) for i in range(3)]
        inner = pydp2.mix(
            [(streams[0], 1), (streams[1], 2)], batch_size=4, stopping_strategy=strategy, last_batch=last_batch
        )
        return pydp2.mix([(inner, 1), (streams[2], 3)], batch_size=5, batching_method=method)

    for method in ("random", "per_stream"):
        for last_batch in ("keep", "drop", "pad"):
            with outer(STRATEGIES[0], method, last_batch) as mixed:
                assert len(mixed) == len([*mixed])
        with (
            outer("first_exhausted", method) as mixed,
            pytest.raises(TypeError, match="passes of 'source 0' differ in length"),
        ):
            len(mixed)
    inner = pydp2.mix({ListStream([[1]] * 9, 2): 1}, batch_size=2, batching_method="per_stream")
    with pydp2.mix({inner: 1}, batch_size=2) as mixed, pytest.raises(TypeError, match="per_stream"):
        len(mixed)


def test_a_length_that_takes_too_long_to_find_is_not_known() -> None:
    sources = [(ListStream([[1]], 1), 1), (ListStream([[1]], 1), 10**12)]
    with pydp2.mix(sources, batch_size=2, stopping_strategy="all_exhausted") as mixed:
        with pytest.raises(TypeError, match="not computed"):
            len(mixed)
        assert length_hint(mixed, 7) == 7


@given(cases(), st.lists(st.integers(0, 3), min_size=1, max_size=6), st.integers(0, 3))
def test_a_pass_can_be_had_by_number_if_it_does_not_depend_on_those_before(
    case: dict[str, Any], numbers: list[int], left_after: int
) -> None:
    with mixture(case) as mixed:
        if case["stopping_strategy"] in ("all_exhausted", "cycle_forever"):
            mixed.set_epoch(0)  # it comes anyway
            with pytest.raises(OptionError, match="load a state"):
                mixed.set_epoch(1)
            return
        uninterrupted = [[sign(batch) for batch in mixed] for _ in range(4)]
        state = mixed.state_dict()
    with mixture(case) as mixed:
        for number in numbers:
            mixed.set_epoch(number)
            assert [sign(batch) for batch in mixed] == uninterrupted[number]
            mixed.set_epoch(number)
            assert [sign(batch) for batch in islice(mixed, left_after)] == uninterrupted[number][:left_after]
        mixed.set_epoch(3)
        assert [sign(batch) for batch in mixed] == uninterrupted[3]
        assert mixed.state_dict() == state


# -- loops -------------------------------------------------------------------------------------------------------------
def three() -> pydp2.Mixture:
    streams = [ListStream([[100 * source + i] for i in range(9)], 2) for source in range(3)]
    return pydp2.mix([(stream, 1) for stream in streams], batch_size=4)


def test_a_loop_that_is_left_is_followed_by_the_next_pass_and_a_second_loop_is_refused() -> None:
    with three() as mixed:
        uninterrupted = [[sign(batch) for batch in mixed] for _ in range(3)]
    with three() as mixed:
        for batch in mixed:
            if batch.index == 1:
                break
        assert [sign(batch) for batch in mixed] == uninterrupted[1]
        one = iter(mixed)
        next(one)
        with pytest.raises(ClientUseError, match="in the middle of a pass"):
            iter(mixed)
        assert [sign(batch) for batch in one] == uninterrupted[2][1:]
        one.close()  # type: ignore[attr-defined]
    for use in (lambda: iter(mixed), mixed.stats):
        with pytest.raises(ClientUseError, match="closed"):
            use()
    mixed.close()


def test_a_loop_that_has_had_its_last_batch_is_over_for_the_next_one() -> None:
    with three() as mixed:
        uninterrupted = [[sign(batch) for batch in mixed] for _ in range(2)]
    with three() as mixed:
        one = iter(mixed)
        for _ in uninterrupted[0]:
            next(one)
        assert [sign(batch) for batch in mixed] == uninterrupted[1]
        assert list(one) == []


def test_samples_and_readers_count_what_was_delivered() -> None:
    with three() as mixed:
        assert len(list(mixed.reader()())) == 27
        assert mixed.samples == 27
        assert mixed.names == ("tokens", "mask")


# -- states that do not fit --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"weights": [1, 2]}, "weights was"), ({"seed": 9}, "seed was 0, is 9"),
        ({"batch_size": 3}, "batch_size was 4, is 3"), ({"stopping_strategy": "all_exhausted"}, "_strategy was"),
        ({"batching_method": "per_stream"}, "batching_method was"), ({"last_batch": "pad"}, "last_batch was"),
        ({"rows": [[[1]] * 5, [[8]] * 5]}, "list was"),
    ],
)  # fmt: skip
def test_a_state_of_another_mixture_is_refused_and_the_text_says_what_differs(
    change: dict[str, Any], says: str
) -> None:
    case: dict[str, Any] = {
        "rows": [[[1]] * 5, [[2]] * 5], "batches": [2, 2], "weights": [1, 1], "seed": 0, "batch_size": 4,
        "stopping_strategy": "first_exhausted", "batching_method": "random", "last_batch": "keep",
    }  # fmt: skip
    with mixture(case) as mixed, mixture(case | change) as other, pytest.raises(StateMismatch, match=says):
        other.load_state_dict(mixed.state_dict())


@pytest.mark.parametrize(
    "damage", [None, {}, {"version": 4}, {"word": -1}, {"sources": []}, {"ended": [True]}, {"ended": [0, 0, 0]}]
)
def test_a_damaged_or_newer_state_is_refused_and_the_stream_stays_where_it_was(damage: Any) -> None:
    with three() as mixed:
        uninterrupted = [sign(batch) for batch in mixed]
    with three() as mixed:
        bad = mixed.state_dict() | damage if damage else damage
        one = iter(mixed)
        seen = [sign(next(one))]
        with pytest.raises(StateMismatch):
            mixed.load_state_dict(bad)
        assert seen + [sign(batch) for batch in one] == uninterrupted


# -- what cannot be mixed ----------------------------------------------------------------------------------------------
def test_what_cannot_be_mixed_is_refused_with_a_remedy() -> None:
    one = ListStream([[1]], 1)
    refused: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
        ({}, {}, OptionError, "at least one source"),
        ([one], {}, OptionTypeError, "a list of such pairs"),
        ("a.list", {}, OptionTypeError, "a list of such pairs, got 'a.list'"),
        ({one: 0}, {}, OptionError, "above 0, got 0"),
        ({one: float("nan")}, {}, OptionError, "above 0"),
        ({one: "1"}, {}, OptionTypeError, "above 0"),
        ([(one, 1), (one, 2)], {}, OptionError, "cannot be a source twice"),
        ({one: 1}, {"workers": 2}, OptionTypeError, "open already"),
        ({one: 1}, {"stopping_strategy": "first"}, OptionError, "stopping_strategy must be"),
        ({one: 1}, {"batching_method": "stratified"}, OptionError, "batching_method must be"),
        ({"a.list": 1, "b.list": 1}, {"bind": "ipc://x"}, OptionError, "cannot be shared"),
        ({ListStream([[1]] * 4, 1, rank=(0, 2)): 1}, {"bad": 1}, OptionTypeError, "no option 'bad'"),
    ]
    for sources, options, error, says in refused:
        with pytest.raises(error, match=says):
            pydp2.mix(sources, batch_size=2, **options)
    shared = ListStream([[1]] * 4, 1, rank=(0, 2))
    shared._stream_identity["last_batch"] = "keep"
    with pytest.raises(OptionError, match='connect it with last_batch="drop"'):
        pydp2.mix({shared: 1}, batch_size=2)
    weighted = ListStream([[1]] * 4, 1, rank=(0, 2))
    weighted._stream_identity["weighted"] = True
    with pytest.raises(OptionError, match=r"do not weigh 1 .*different numbers of rows"):
        pydp2.mix({weighted: 1}, batch_size=2)
    pydp2.mix({weighted: 1}, batch_size=2, batching_method="per_stream").close()


def test_a_source_without_rows_is_passed_over_and_cannot_be_repeated() -> None:
    def of(strategy: Any) -> pydp2.Mixture:
        sources = [(ListStream([[1]] * 3, 1), 1), (ListStream([], 1), 1)]
        return pydp2.mix(sources, batch_size=2, stopping_strategy=strategy)

    with of("all_exhausted_without_replacement") as mixed:
        assert sum(map(len, mixed)) == 3
    with of("cycle_forever") as mixed, pytest.raises(OptionError, match="'source 1' gave no row"):
        list(mixed)


def test_a_source_in_the_middle_of_a_pass_is_refused_until_a_state_is_loaded() -> None:
    one = ListStream([[i] for i in range(9)], 2)
    next(iter(one))
    one._session.progress = one._session.progress._replace(loop=None)
    with pydp2.mix({one: 1}, batch_size=4) as mixed, pytest.raises(ClientUseError, match="in the middle of a pass"):
        next(iter(mixed))


# -- with services -----------------------------------------------------------------------------------------------------
LISTS = [([str(i) for i in range(5)], 0.7), ([str(i) for i in range(100, 102)], 0.3)]


def numbers(batch: Any) -> tuple[int, int, list[int], list[int]]:
    return batch.pass_id, batch.index, batch["n"].tolist(), batch.source.tolist()


def test_a_mixture_of_lists_goes_on_from_its_state_with_another_number_of_workers(
    provider_file: Callable[[str], str],
) -> None:
    address = provider_file(PROVIDER)
    seen, states = [], []
    with pydp2.mix(LISTS, address, batch_size=16, seed=3, workers=1, stopping_strategy="all_exhausted") as mixed:
        for _ in range(2):
            for batch in mixed:
                seen.append(numbers(batch))
                states.append(json.dumps(mixed.state_dict()))
        assert set(mixed.stats()["sources"]) == {"source 0", "source 1"}
    for source, (files, _) in enumerate(LISTS):  # without the others, the rows of a client that reads it alone
        with pydp2.load(files, address, batch_size=16, seed=3, workers=1) as alone:
            uninterrupted = [n for _ in range(2) for batch in alone for n in batch["n"].tolist()]
        mine = [n for p, _, rows, of in seen for n, it in zip(rows, of, strict=True) if (p, it) == (0, source)]
        assert mine[: len(uninterrupted)] == uninterrupted[: len(mine)]
    first = [n for p, _, rows, _ in seen if p == 0 for n in rows]
    assert set(first) == {f * 1000 + i for f in [*range(5), 100, 101] for i in range(40)}
    with pydp2.mix(LISTS, address, batch_size=16, seed=3, workers=2, stopping_strategy="all_exhausted") as mixed:
        for k in (len(seen) // 3, len(seen) - 4):
            mixed.load_state_dict(json.loads(states[k]))
            again = [numbers(batch) for batch in restarted(mixed, len(seen) - k - 1)]
            assert again == seen[k + 1 :]


def test_two_ranks_mix_the_same_step_and_go_on_from_a_state(provider_file: Callable[[str], str]) -> None:
    address = provider_file(PROVIDER)
    with pydp2.launch(LISTS[0][0], address, workers=1) as one, pydp2.launch(LISTS[1][0], address, workers=1) as two:
        sources = {one.address: 0.7, two.address: 0.3}
        options: Any = {"batch_size": 8, "seed": 2, "world_size": 2, "stopping_strategy": "first_exhausted"}
        seen: list[list[Any]] = [[], []]
        states: list[list[str]] = [[], []]
        again: list[list[Any]] = [[], []]
        together = threading.Barrier(2)

        def train(rank: int) -> None:
            with pydp2.mix(sources, rank=rank, **options) as mixed:
                for _ in range(2):
                    for batch in mixed:
                        seen[rank].append(numbers(batch))
                        states[rank].append(json.dumps(mixed.state_dict()))
                together.wait(60)
                mixed.load_state_dict(json.loads(states[0][2]))
                again[rank] += [numbers(batch) for batch in restarted(mixed, len(seen[rank]) - 3)]

        in_ranks(train)
    assert states[0] == states[1]
    assert [each[3] for each in seen[0]] == [each[3] for each in seen[1]]
    taken = [n for each in seen for p, _, rows, _ in each if p == 0 for n in rows]
    assert len(taken) == len(set(taken)) > 100
    assert [each[3:] for each in seen] == again


def test_one_rank_takes_up_the_mixture_of_two_between_passes_and_two_that_of_one(
    provider_file: Callable[[str], str],
) -> None:
    """``mix`` connects with another ``last_batch`` where there are several ranks."""
    address = provider_file(PROVIDER)
    with pydp2.launch(LISTS[0][0], address, workers=1) as one, pydp2.launch(LISTS[1][0], address, workers=1) as two:
        sources = {one.address: 0.7, two.address: 0.3}

        def run(ranks: int, state: str | None) -> tuple[list[list[Any]], str]:
            """The rows of one pass, by rank, and the state behind it."""
            rows: list[list[Any]] = [[] for _ in range(ranks)]
            states = [""] * ranks

            def train(rank: int) -> None:
                with pydp2.mix(sources, batch_size=8, seed=2, rank=rank, world_size=ranks) as mixed:
                    if state is not None:
                        mixed.load_state_dict(json.loads(state))
                    rows[rank] += [numbers(batch) for batch in mixed]
                    states[rank] = json.dumps(mixed.state_dict())

            if ranks == 1:
                train(0)
            else:
                in_ranks(train)
            return rows, states[0]

        of_two, behind_two = run(2, None)
        of_one, behind_one = run(1, None)
        after_two, _ = run(1, behind_two)
        after_one, _ = run(1, behind_one)
        assert after_two == after_one
        assert {each[0] for each in after_two[0]} == {1}
        again, _ = run(2, behind_one)
        assert [len(rank) for rank in again] == [len(rank) for rank in of_two]
        assert {each[0] for rank in again for each in rank} == {1}
    assert sum(len(each[2]) for each in of_one[0]) == 280


def test_ranks_share_addresses_by_batch_without_further_options(provider_file: Callable[[str], str]) -> None:
    with (
        pydp2.launch(LISTS[0][0], provider_file(PROVIDER), workers=1) as service,
        pydp2.mix({service.address: 1}, batching_method="per_stream", batch_size=8, rank=0, world_size=2) as mixed,
    ):
        assert mixed.state_dict()["sources"][0]["state"]["stream_identity"]["last_batch"] == "drop"


def test_lists_may_share_a_quarantine(provider_file: Callable[[str], str], tmp_path: Path) -> None:
    provider = provider_file(PROVIDER.replace("for i in", "raise ValueError(filename)\n    for i in"))
    quarantine = tmp_path / "bad.jsonl"
    with pydp2.mix(LISTS, provider, batch_size=16, workers=1, on_error="skip", quarantine=str(quarantine)) as mixed:
        assert list(mixed) == []
    lost = [json.loads(line)["file"] for line in quarantine.read_text("utf-8").splitlines()]
    assert sorted(lost) == sorted(file for files, _ in LISTS for file in files)


def test_a_plain_client_says_that_a_state_is_of_a_mixture(provider_file: Callable[[str], str]) -> None:
    with pydp2.launch(LISTS[0][0], provider_file(PROVIDER), workers=1) as service:
        with service.connect(batch_size=16) as client, pydp2.mix([(client, 1)], batch_size=16) as mixed:
            state = mixed.state_dict()
        with (
            service.connect(batch_size=16, job="other") as client,
            pytest.raises(StateMismatch, match=r"saved for another stream: .*kind was 'mixture', is None"),
        ):
            client.load_state_dict(state)


def test_sources_with_other_slots_are_refused(provider_file: Callable[[str], str]) -> None:
    two = PROVIDER + PROVIDER.replace("1000000", "500000").replace("process", "other")
    one = pydp2.Source(["1"], provider_file(two))
    other = pydp2.Source(["1"], one.provider.replace("process", "other"))
    with pytest.raises(OptionError, match=r"same slots: 'source 0' has n: .*1000000.*declare the same input_types"):
        pydp2.mix([(one, 1), (other, 1)], batch_size=4, workers=1)


def interrupt(monkeypatch: pytest.MonkeyPatch, mixed: pydp2.Mixture) -> None:
    """Have the next batch be interrupted when it was cut, and its rows were taken of the sources."""

    def cut(*_: Any) -> None:
        monkeypatch.undo()
        raise Interruption

    monkeypatch.setattr(mixed, "_behind", cut)


def test_a_relaxed_mixture_that_is_interrupted_loses_and_repeats_nothing(
    provider_file: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its source would give another order the second time."""
    with (
        pydp2.launch(LISTS[0][0], provider_file(PROVIDER), workers=2) as service,
        service.connect(batch_size=16, order="relaxed") as client,
        pydp2.mix([(client, 1)], batch_size=24) as mixed,
    ):
        seen = []
        for _ in range(2):
            one = iter(mixed)
            seen.append(next(one))
            for again in range(3):
                interrupt(monkeypatch, mixed)
                with pytest.raises(Interruption):
                    next(one)
                if again:
                    one = iter(mixed)
            seen += one
        for pass_id in range(2):
            rows = [n for batch in seen if batch.pass_id == pass_id for n in batch["n"].tolist()]
            assert sorted(rows) == [1000 * f + i for f in range(5) for i in range(40)]


def test_a_relaxed_mixture_whose_source_was_moved_says_so_and_begins_the_next_pass(
    provider_file: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows would be lost and repeated without a word."""
    with (
        pydp2.launch(LISTS[0][0], provider_file(PROVIDER), workers=2) as service,
        service.connect(batch_size=16, order="relaxed") as client,
        pydp2.mix([(client, 1)], batch_size=16) as mixed,
    ):
        one = iter(mixed)
        next(one)
        interrupt(monkeypatch, mixed)
        with pytest.raises(Interruption):
            next(one)
        mixed._cursors[0].leave()
        with pytest.raises(
            StateMismatch, match="cannot go back to where the loop was interrupted, so the rest of pass 0"
        ):
            next(one)
        again = list(mixed)
        assert {batch.pass_id for batch in again} == {1}
        assert sorted(n for batch in again for n in batch["n"].tolist()) == [
            1000 * f + i for f in range(5) for i in range(40)
        ]


def test_a_rank_of_a_mixture_that_is_interrupted_leaves_the_others_in_their_pass(
    provider_file: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    address = provider_file(PROVIDER)
    with pydp2.launch(LISTS[0][0], address, workers=1) as one, pydp2.launch(LISTS[1][0], address, workers=1) as two:
        sources = {one.address: 0.7, two.address: 0.3}
        options: Any = {"batch_size": 8, "seed": 2, "world_size": 2, "stopping_strategy": "all_exhausted"}

        def train(seen: list[list[Any]], *, interrupted: bool) -> None:
            def of(rank: int) -> None:
                with pydp2.mix(sources, rank=rank, **options) as mixed:
                    for _ in range(2):
                        loop = iter(mixed)
                        while True:
                            if interrupted and rank and len(seen[rank]) % 3 == 1:
                                interrupt(monkeypatch, mixed)
                                with pytest.raises(Interruption):
                                    next(loop)
                                loop = iter(mixed)
                            batch = next(loop, None)
                            if batch is None:
                                break
                            seen[rank].append(numbers(batch))

            in_ranks(of)

        uninterrupted: list[list[Any]] = [[], []]
        train(uninterrupted, interrupted=False)
        found: list[list[Any]] = [[], []]
        train(found, interrupted=True)
    assert len(uninterrupted[1]) > 20
    assert found == uninterrupted


def test_ranks_of_a_mixture_go_to_an_epoch_when_all_have_ended_theirs(provider_file: Callable[[str], str]) -> None:
    seen: list[list[tuple[int, int]]] = [[], []]
    with pydp2.launch(LISTS[0][0], provider_file(PROVIDER), workers=1) as service:

        def train(rank: int) -> None:
            with pydp2.mix({service.address: 1}, batch_size=8, rank=rank, world_size=2) as mixed:
                for epoch in (0, 4, 2):
                    mixed.set_epoch(epoch)
                    for batch in mixed:
                        seen[rank].append((batch.pass_id, len(batch)))
                        time.sleep(0.005 * rank)

        in_ranks(train)
    assert seen[0] == seen[1]
    assert [pass_id for pass_id, _ in seen[0]] == [pass_id for pass_id in (0, 4, 2) for _ in range(12)]


def test_ranks_of_a_mixture_go_on_behind_a_pass_that_bad_data_ended(provider_file: Callable[[str], str]) -> None:
    bad = PROVIDER.replace("yield {", "yield {'n': -1} if filename == '3' and i == 30 else {")
    ends: list[list[tuple[int, int]]] = [[], []]
    with pydp2.launch(LISTS[0][0], provider_file(bad), workers=1) as service:

        def train(rank: int) -> None:
            with pydp2.mix({service.address: 1}, batch_size=8, rank=rank, world_size=2) as mixed:
                for _ in range(3):
                    had: list[int] = []

                    def read() -> None:
                        for batch in mixed:
                            had.append(batch.pass_id)  # noqa: B023 - called at once
                            time.sleep(0.005 * rank)

                    with pytest.raises(BadSample):
                        read()
                    ends[rank].append((had[-1], len(had)))

        in_ranks(train)
    assert ends[0] == ends[1]
    assert [pass_id for pass_id, _ in ends[0]] == [0, 1, 2]


def test_a_source_whose_batches_go_to_whoever_asks_first_is_refused(provider_file: Callable[[str], str]) -> None:
    with (
        pydp2.launch(LISTS[0][0], provider_file(PROVIDER), workers=1) as service,
        service.connect(batch_size=16, share="dynamic") as client,
        pytest.raises(OptionError, match=r'share="dynamic".*share it by ranks'),
    ):
        pydp2.mix([(client, 1)], batch_size=16)


def test_sources_of_other_ranks_are_refused(provider_file: Callable[[str], str]) -> None:
    """Each rank would read all of a source that has one."""
    with (
        pydp2.launch(LISTS[0][0], provider_file(PROVIDER), workers=1) as service,
        service.connect(batch_size=16) as alone,
    ):
        with pytest.raises(OptionError, match=r"source 0.*is read as rank 0 of 1, and the mixture as rank 1 of 2"):
            pydp2.mix([(alone, 1)], batch_size=16, rank=1, world_size=2)
        with (
            service.connect(batch_size=16, job="other", rank=1, world_size=2, last_batch="drop") as second,
            pytest.raises(OptionError, match=r"source 1.*as rank 1 of 2, and the mixture as rank 0 of 1"),
        ):
            pydp2.mix([(alone, 1), (second, 1)], batch_size=16)
        with pytest.raises(OptionTypeError, match="provider belongs to the sources, and these are open already"):
            pydp2.mix([(alone, 1)], "x.y", batch_size=16)
