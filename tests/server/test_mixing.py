"""Mixtures: each source's rows in its own order, drawn by the weights, and the same again from any state."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import count, islice
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pydp2.client.row_kinds import MixedBatch
from pydp2.data.columns.batch import Batch
from pydp2.errors import Error, OptionError
from pydp2.order.mixture import BLOCK, MixPlan, WeightSchedule
from pydp2.order.random_bits import RandomBits
from pydp2.server.jobs.mixing import MixStage

from ..list_stage import ListStage, Sequences, StageReader, rotated, rows_of

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


def reader(
    case: dict[str, Any], *, world: int = 1, schedule: WeightSchedule | None = None, **source: Any
) -> StageReader:
    """A reader of the mixture of ``case``. With "per_stream" batches stay as they are."""
    stages = [
        ListStage(rows, size, number, **source)
        for number, (rows, size) in enumerate(zip(case["rows"], case["batches"], strict=True))
    ]
    many, per_stream = len(stages), case["batching_method"] == "per_stream"
    plan = MixPlan(
        case["seed"], case["batch_size"], case["stopping_strategy"], per_stream, case.get("max_passes", (0,) * many),
        case.get("weight_by"),
    )  # fmt: skip
    schedule = schedule or WeightSchedule(((0, tuple(map(Fraction, case["weights"]))),))
    stage = MixStage(stages, [f"source {number}" for number in range(many)], plan, schedule)
    last_batch = "keep" if per_stream else case["last_batch"]
    return StageReader(stage, case["batch_size"], last_batch=last_batch, world=world, sources=many, schedule=schedule)


def sign(batch: Batch) -> Seen:
    assert isinstance(batch, MixedBatch)
    if len(batch) and batch.origin.source is not None:
        assert batch.origin.source.tolist() == batch.source.tolist()
    return batch.pass_id, batch.index, batch.padding, rows_of(batch), batch.source.tolist()


def reference(case: dict[str, Any], passes: int, limit: int) -> list[list[tuple[int, list[int]]]]:
    """Passes of (source, row), drawn one by one with fractions, as docs/mixing.md says it. At most ``limit`` rows of
    each pass; with "per_stream" a row is a batch."""
    exact = [Fraction(weight) for weight in case["weights"]]
    repeats = case["stopping_strategy"] in ("all_exhausted", "cycle_forever")
    found = []
    for pass_id in range(passes):
        rounds = [0] * len(exact)
        words = (int(w) for n in count() for w in RandomBits(case["seed"], pass_id, "mix", n).draw(BLOCK))
        ended, rest = [False] * len(exact), [stream(case, i, pass_id) for i in range(len(exact))]
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
                continue
            ended[chosen] = True
            rounds[chosen] += 1
            rest[chosen] = stream(case, chosen, pass_id + (rounds[chosen] << 16))
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


def read(mixed: StageReader, case: dict[str, Any], passes: int) -> Iterator[Batch]:
    """Yield the batches of whole passes, or the first ones of a pass that does not end."""
    if case["stopping_strategy"] == "cycle_forever":
        yield from islice(mixed.batches(), LIMIT)
        return
    while mixed.state.pass_id < passes:
        yield from mixed.batches()


def partly_filled(last_batch: str) -> dict[str, Any]:
    """A case whose last batch is not full."""
    return {
        "rows": [[[1]] * 5, [[2]] * 4], "batches": [2, 3], "weights": [1, 2], "seed": 0, "batch_size": 6,
        "stopping_strategy": STRATEGIES[0], "batching_method": "random", "last_batch": last_batch,
    }  # fmt: skip


@given(cases(), st.sets(st.integers(0, 40)))
@example(partly_filled("keep"), set())
@example(partly_filled("drop"), {0, 1})
@example(partly_filled("pad"), set())
def test_a_mixture_is_what_a_reference_draws_row_by_row(case: dict[str, Any], hesitates: set[int]) -> None:
    forever = case["stopping_strategy"] == "cycle_forever"
    size = case["batch_size"] if case["batching_method"] == "random" else 1
    seen = [sign(batch) for batch in read(reader(case, hesitates=hesitates), case, 3)]
    assert seen == expected(case, 1 if forever else 3, LIMIT * size if forever else 10**9)


@given(cases())
def test_without_replacement_each_row_of_each_source_comes_once_and_in_its_order(case: dict[str, Any]) -> None:
    case |= {"stopping_strategy": "all_exhausted_without_replacement", "last_batch": "keep"}
    mixed = reader(case)
    for pass_id in range(2):
        batches: list[Any] = mixed.passes(1)
        seen = [row for batch in batches for row in zip(batch.source.tolist(), rows_of(batch), strict=True)]
        for number, rows in enumerate(case["rows"]):
            assert [row for source, row in seen if source == number] == rotated(rows, pass_id)


@given(cases(), st.sets(st.integers(0, 40)))
def test_the_share_of_a_pass_rises_to_1(case: dict[str, Any], hesitates: set[int]) -> None:
    case |= {"last_batch": "keep"}
    mixed = reader(case, hesitates=hesitates)
    if case["stopping_strategy"] == "cycle_forever":
        assert {mixed.job.progress()["share"] for _ in islice(mixed.batches(), LIMIT)} == {None}
        return
    for pass_id in range(2):
        found = []
        for batch in mixed.batches():
            mixed.job.note_unused(0)
            found.append((mixed.job.progress(), batch.index))
        shares = [round(progress["share"], 9) for progress, _ in found]
        assert shares == sorted(shares)
        assert shares[-1] == 1.0
        assert [progress["batch"] for progress, _ in found] == [index + 1 for _, index in found]
        assert all(progress["is_estimate"] == (case["stopping_strategy"] != STRATEGIES[0]) for progress, _ in found)
        assert mixed.state.pass_id == pass_id + 1


@given(cases(), st.data())
def test_what_follows_a_restore_is_what_would_have_followed(case: dict[str, Any], data: st.DataObject) -> None:
    mixed, seen, states = reader(case), [], []
    for batch in read(mixed, case, 3):
        seen.append(sign(batch))
        states.append(mixed.save())
    if not states:
        return
    k = data.draw(st.integers(0, len(states) - 1), label="state")
    other = reader(case)
    other.load(states[k])
    again = (
        islice(other.batches(), LIMIT - k - 1) if case["stopping_strategy"] == "cycle_forever" else read(other, case, 3)
    )
    assert [sign(batch) for batch in again] == seen[k + 1 :]


@given(cases(), st.integers(1, 3), st.integers(1, 3), st.data())
def test_another_number_of_ranks_goes_on_with_the_same_batches(
    case: dict[str, Any], before: int, after: int, data: st.DataObject
) -> None:
    if case["stopping_strategy"] == "cycle_forever":
        case |= {"stopping_strategy": "all_exhausted"}
    case |= {"last_batch": "keep"}
    uninterrupted = [sign(batch) for batch in read(reader(case), case, 1)]
    mixed = reader(case, world=before)
    groups = list(islice(mixed.groups(), data.draw(st.integers(1, 5), label="groups")))
    seen = [sign(batch) for group in groups for batch in group]
    other = reader(case, world=after)
    if mixed.state.pass_id == 0:
        other.load(mixed.save())
        seen += [sign(batch) for batch in other.batches()]
    assert seen == uninterrupted


def test_the_sources_come_as_often_as_their_weights_say() -> None:
    shares = (0.6, 0.3, 0.1)
    case = partly_filled("keep") | {"rows": [[[source]] * 1000 for source in range(3)], "batches": [100] * 3}
    case |= {"weights": shares, "batch_size": 1000, "stopping_strategy": "cycle_forever", "seed": 1}
    total = 60_000
    mixed = reader(case)
    drawn = np.concatenate([sign(batch)[4] for batch in islice(mixed.batches(), total // 1000)])
    figures = mixed.job.stage.stats()["sources"]
    assert [each["rows"] for each in figures.values()] == np.bincount(drawn).tolist()
    assert [each["weight"] for each in figures.values()] == pytest.approx(shares)
    for source, share in enumerate(shares):
        spread = (total * share * (1 - share)) ** 0.5
        assert abs(int((drawn == source).sum()) - total * share) < 4 * spread
    switches = (np.diff(drawn) != 0).mean()  # rows are independent: not one source for a while, then another
    assert abs(switches - (1 - 0.6**2 - 0.3**2 - 0.1**2)) < 0.01


# -- weights that change -----------------------------------------------------------------------------------------------
def long_case(**changes: Any) -> dict[str, Any]:
    rows: list[Sequences] = [[[source] * (1 + 4 * source) for _ in range(40)] for source in range(2)]
    case = partly_filled("keep") | {"rows": rows, "batches": [7, 9], "weights": [1, 1], "batch_size": 8}
    return case | {"stopping_strategy": "cycle_forever"} | changes


def shares_by_batch(batches: list[Batch]) -> list[float]:
    return [float(np.mean(np.array(sign(batch)[4]) == 1)) for batch in batches]


def test_a_schedule_jumps_or_runs_along_a_line() -> None:
    points = ((0, (Fraction(1), Fraction(0))), (10, (Fraction(0), Fraction(1))))
    jump = shares_by_batch(list(islice(reader(long_case(), schedule=WeightSchedule(points)).batches(), 20)))
    assert jump == [0.0] * 10 + [1.0] * 10
    case = long_case(batch_size=400)
    line = shares_by_batch(list(islice(reader(case, schedule=WeightSchedule(points, True)).batches(), 15)))
    assert line == pytest.approx([n / 10 for n in range(10)] + [1.0] * 5, abs=0.1)


@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 3), st.integers(1, 3)), max_size=4),
    st.booleans(), st.integers(1, 3), st.integers(0, 9), st.integers(1, 3), st.sampled_from([None, 0]),
)  # fmt: skip
def test_weights_that_change_are_the_same_again_after_a_restore(
    changes: list[tuple[int, int, int]], linear: bool, world: int, stop: int, world_after: int, weight_by: int | None
) -> None:
    steps = {step: (Fraction(a), Fraction(b)) for step, a, b in changes} | {0: (Fraction(1), Fraction(2))}
    case = long_case(weight_by=weight_by)

    def schedule() -> WeightSchedule:
        return WeightSchedule(tuple(sorted(steps.items())), linear)

    whole = list(islice(reader(case, world=world, schedule=schedule()).groups(), 14))
    first = reader(case, world=world, schedule=schedule())
    seen = list(islice(first.groups(), stop + 1))
    other = reader(case, world=world, schedule=schedule())
    other.load(first.save())
    seen += list(islice(other.groups(), 13 - stop))
    assert [[sign(batch) for batch in group] for group in seen] == [[sign(batch) for batch in group] for group in whole]
    if world_after != world:  # another number of ranks goes on with the weights of the step that follows
        third = reader(case, world=world_after, schedule=schedule())
        third.load(first.save())
        batches = [batch for group in islice(third.groups(), 3) for batch in group]
        assert [batch.index for batch in batches] == [*range((stop + 1) * world, (stop + 1) * world + 3 * world_after)]


def test_weights_that_were_set_hold_from_the_next_step_on_and_are_part_of_the_state() -> None:
    case = long_case()
    mixed = reader(case, world=2)
    groups = mixed.groups()
    seen = list(islice(groups, 3))
    assert mixed.job.set_weights((Fraction(0), Fraction(1))) == (0, 4)
    seen += list(islice(groups, 5))
    assert [shares_by_batch(group) for group in seen[4:]] == [[1.0, 1.0]] * 4
    assert shares_by_batch(seen[3]) != [1.0, 1.0]
    text = mixed.save()
    rest = [[sign(batch) for batch in group] for group in islice(groups, 4)]
    other = reader(case, world=2)
    other.load(text)
    assert [[sign(batch) for batch in group] for group in islice(other.groups(), 4)] == rest
    assert other.state.next_pass().buckets == other.state.buckets, "they hold in the next pass, too"
    with pytest.raises(OptionError, match="above 0"):
        other.job.set_weights((Fraction(0), Fraction(0)))


def test_weights_that_were_set_between_two_passes_hold_from_the_next_one_on() -> None:
    mixed = reader(long_case(stopping_strategy="first_exhausted"))
    assert len(list(mixed.batches())) > 3
    assert mixed.job.set_weights((Fraction(1), Fraction(0))) == (1, 0)
    assert set(shares_by_batch(list(mixed.batches()))) == {0.0}
    assert set(shares_by_batch(list(mixed.batches()))) == {0.0}
    assert mixed.state.buckets["weights"] == [[1, 0, ["1", "0"]]]
    mixed.state = mixed.state.before_pass(0)  # a state of the time before, which lacks them
    mixed.state.buckets.clear()
    assert set(shares_by_batch(list(mixed.batches()))) != {0.0}


def test_weights_of_another_schedule_hold_for_rows_that_were_not_drawn() -> None:
    case = long_case()
    mixed = reader(case)
    seen = [sign(batch) for batch in islice(mixed.batches(), 5)]
    other = reader(case, schedule=WeightSchedule(((0, (Fraction(0), Fraction(1))),)))
    other.load(mixed.save())
    assert shares_by_batch(list(islice(other.batches(), 5))) == [1.0] * 5
    assert seen


def test_weights_by_time_steps_give_each_source_its_share_of_them() -> None:
    case = long_case(weights=[3, 1], weight_by=0, batch_size=50)
    rows = [row for batch in islice(reader(case).batches(), 40) for row in rows_of(batch)]
    steps = [sum(len(row) for row in rows if row[0] == source) for source in range(2)]
    assert steps[0] / sum(steps) == pytest.approx(0.75, abs=0.01)


def test_a_source_is_read_as_often_as_allowed_and_no_more() -> None:
    case = long_case(max_passes=(2, 0), weights=[5, 1], stopping_strategy="all_exhausted")
    rows = [row[0] for batch in reader(case).batches() for row in rows_of(batch)]
    assert rows.count(0) == 80
    assert rows.count(1) >= 40
    both = long_case(max_passes=(2, 1))
    rows = [row[0] for batch in reader(both).batches() for row in rows_of(batch)]
    assert (rows.count(0), rows.count(1)) == (80, 40), "a pass that would not end does, when nothing is left"


# -- ends and errors ---------------------------------------------------------------------------------------------------
def test_a_source_without_rows_is_passed_over_and_cannot_be_repeated() -> None:
    case = partly_filled("keep") | {"rows": [[[1]] * 5, []]}
    assert sum(len(batch) for batch in reader(case).batches()) == 5
    with pytest.raises(OptionError, match="'source 1' gave no row in a whole pass"):
        list(reader(case | {"stopping_strategy": "cycle_forever"}).batches())


def test_a_source_that_fails_ends_the_pass() -> None:
    mixed = reader(partly_filled("keep"), fails_at={2})
    with pytest.raises(Error, match="it fails"):
        list(mixed.batches())


@given(cases())
def test_a_pass_can_be_had_by_number(case: dict[str, Any]) -> None:
    if case["stopping_strategy"] == "cycle_forever":
        case |= {"stopping_strategy": "all_exhausted"}
    uninterrupted = [sign(batch) for batch in read(reader(case), case, 3)]
    mixed = reader(case)
    mixed.state = mixed.state.before_pass(2)
    assert [sign(batch) for batch in mixed.batches()] == [each for each in uninterrupted if each[0] == 2]
