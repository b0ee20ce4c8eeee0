"""What the oracle says of a simulation, and comparisons with what trainers got."""

from __future__ import annotations

from collections.abc import Sequence

from pydp2.errors import BudgetExceeded, Error, FileCondemned, SampleTooLarge

from ..order.oracle import File, Options, Row, expect
from .cases import Case, Outcome, Sample, sample_bytes


def oracle_files(case: Case) -> list[File]:
    """The scripts, as they end in the end: at an exception, or condemned at the sample that kills."""
    return [
        File(
            [
                Row(i.weight, sample_bytes(i.values), i.values) if isinstance(i, Sample) else None
                for i in s.items[: s.poison]
            ],
            s.raises or s.poison is not None,
            frozenset(y for file, y in case.blocked if file == number),
        )
        for number, s in enumerate(case.files)
    ]


def options(case: Case) -> Options:
    plan = case.plan
    return Options(
        batch_size=plan.batch_size, seed=plan.seed, shuffle=plan.shuffle, pool_size=case.pool_size,
        min_pool_size=case.min_pool_size, interleave=plan.interleave, pool_bytes=plan.pool_bytes,
        can_over=case.can_over, last_batch=plan.last_batch, cached=case.cache_limit is not None, skip=case.skip,
        buckets=plan.buckets.max_buckets if plan.buckets else 0, bounds=plan.buckets.bounds if plan.buckets else None,
        error_budget=case.error_budget,
        group=plan.buckets.group_size if plan.buckets else 1,
    )  # fmt: skip


def compare_relaxed(case: Case, outcome: Outcome) -> None:
    """Each sample once, in any order, and no batch too small but the last."""
    files = oracle_files(case)
    names = [(f, y) for f, file in enumerate(files) for y, item in enumerate(file.items) if item]
    names = [name for name in names if name not in case.blocked]
    found = [name for batch in outcome.batches for name in batch]
    found = found[: len(found) - sum(outcome.paddings)]
    assert len(set(found)) == len(found)
    assert set(found) <= set(names)
    if outcome.is_complete and not outcome.error and case.plan.last_batch != "drop":
        assert sorted(found) == names


def compare(case: Case, outcome: Outcome) -> None:
    """``outcome`` is what the oracle says; of a pass that was left, as far as it went."""
    files = oracle_files(case)
    expected = expect(files, options(case), outcome.pass_id, outcome.bounds)
    if not outcome.is_complete:
        assert outcome.batches == expected.batches[: len(outcome.batches)]
        assert outcome.losses == expected.losses[: len(outcome.losses)]
        return
    assert outcome.batches == expected.batches
    assert outcome.pool_weights == expected.pool_weights
    assert sum(outcome.paddings) == expected.padding
    assert (where(outcome.error) if outcome.error else None) == expected.error
    assert outcome.losses == expected.losses
    if not outcome.error:
        ends = [(n, len(file.items)) for n, file in enumerate(files) if file.raises]
        assert sorted(early_end[:2] for early_end in outcome.early_ends) == ends
        dropped = {(n, y) for n, file in enumerate(files) for y, item in enumerate(file.items) if item is None}
        assert outcome.dropped == len(dropped - case.blocked)


def compare_ranks(case: Case, passes: Sequence[Sequence[Outcome]]) -> None:
    """``passes``, by the number of the trainer, are what the oracle says."""
    bounds: tuple[int, ...] | None = case.plan.buckets.bounds if case.plan.buckets else None
    for pass_id in range(case.passes):
        expected = expect(oracle_files(case), options(case), pass_id, bounds)
        bounds = bounds or expected.bounds
        outcomes = [outcomes[pass_id] for outcomes in passes]
        count = len(expected.batches)
        if case.plan.last_batch == "drop" or (case.plan.last_batch == "pad" and expected.error):
            count -= count % case.ranks
        for number, outcome in enumerate(outcomes):
            rank = number // case.peers
            share = slice(rank, count, case.ranks)
            batches, weights = expected.batches[share], expected.pool_weights[share]
            if case.plan.last_batch == "pad" and rank >= count % case.ranks > 0:
                batches = [*batches, outcome.batches[-1]]
                weights = [*weights, outcome.pool_weights[-1]]
                assert outcome.paddings[-1] == len(outcome.batches[-1]) > 0, "padding alone, for equally many steps"
            assert outcome.batches == batches
            assert outcome.pool_weights == weights
            assert outcome.died or (where(outcome.error) if outcome.error else None) == expected.error
        if case.trainers == 1:
            assert sum(outcomes[0].paddings) == expected.padding


def where(error: Error) -> tuple[str, int, int]:
    """An error of the stream in the oracle's words: what, file, sample index."""
    text = str(error).rpartition("The last one: ")[2]
    words = text.replace(",", "").replace(":", "").split()
    assert (words[0], words[2]) == ("file", "sample"), error
    if isinstance(error, BudgetExceeded):
        return "budget", int(words[1].partition("@")[0]), int(words[3])
    kind = "too large" if isinstance(error, SampleTooLarge) else "raised"
    assert isinstance(error, FileCondemned) or kind == "too large" or "as the script says" in str(error), error
    return kind, int(words[1].partition("@")[0]), int(words[3])
