"""Workers are killed at random: the trainer sees what it would have seen without, and no file is blamed."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

import pydp2

from ..runs import Seen, at_rest, consume, processes, wait_until

CODE = """
import os

@provider(input_types=dict(number=integer_value(1 << 40), words=integer_value_sequence(100)), pool_size=2000{arguments})
def process(settings, filename):
    first, count = map(int, filename.split("+"))
    for i in range(first, first + count):
        yield dict(number=i, words=settings.rng.integers(0, 100, i % 7).tolist())
"""
FILES = [f"{1_000_000 * n}+{[0, 1, 40, 700, 3000][n % 5]}" for n in range(30)]
TOTAL = sum(int(name.split("+")[1]) for name in FILES)


def all_of(data: pydp2.Client, each: Callable[[pydp2.Batch], object] = len) -> tuple[Seen, list[list[int]]]:
    """A pass with everything in its batches that can differ."""
    rest: list[list[int]] = []

    def keep(batch: pydp2.Batch) -> None:
        words = batch["words"]
        rest.append([batch.index, batch.size, batch.pool_weight, *words.values.tolist()])
        rest.append(words.sequence_start_positions.tolist())
        each(batch)

    return consume(data, keep), rest


def victims(data: pydp2.Client, *, in_reserve: bool = True) -> list[int]:
    """Workers that may be killed: those that have sent samples, and the one in reserve, if there is another or
    ``in_reserve``.

    A file that three workers in a row do not get through is blamed, also where it is the machine that gives none of
    them the time to begin."""
    workers = data.stats()["workers"]
    read = [each["pid"] for each in workers if each["active"] and each["samples_per_second"]]
    return read if read and not in_reserve else read + [each["pid"] for each in workers if not each["active"]]


@pytest.mark.parametrize(
    ("shuffle", "workers"),
    [(True, 3), *(pytest.param(*each, marks=pytest.mark.slow) for each in [(False, 1), (True, 1), (False, 3)])],
)
def test_a_pass_with_workers_killed_at_random_is_the_pass_without(
    shuffle: bool, workers: int, provider_file: Callable[[str], str], capfd: pytest.CaptureFixture[str]
) -> None:
    """Batch for batch, value for value, in two passes; each kill costs a log line and nothing else."""
    address = provider_file(CODE.format(arguments=""))
    options: dict[str, Any] = {"batch_size": 64, "shuffle": shuffle, "seed": 7}
    with pydp2.load(FILES, address, workers=workers, **options) as data:
        undisturbed = [all_of(data), all_of(data)]
    assert sum(map(len, undisturbed[0][0].batches)) == TOTAL
    random = Random(workers + shuffle)
    kills = 0

    def kill(batch: pydp2.Batch) -> None:
        nonlocal kills
        if batch.index % 8 == 4 and (living := victims(data, in_reserve=kills % 2 == 0)):
            with contextlib.suppress(ProcessLookupError):  # one that was killed before and is only now cleared away
                os.kill(random.choice(living), signal.SIGKILL)
                kills += 1

    with pydp2.load(FILES, address, workers=workers, memory_limit="2MB", **options) as data:
        disturbed = [all_of(data, kill), all_of(data, kill)]
        lost = data.stats()["workers_lost"]
    assert [seen.error for seen, _ in disturbed] == [None, None]
    for (seen, rest), (seen_before, rest_before) in zip(disturbed, undisturbed, strict=True):
        assert seen.batches == seen_before.batches
        assert rest == rest_before
    assert kills > 20
    assert lost > 2
    screen = capfd.readouterr().err.splitlines()
    assert [line for line in screen if not line.startswith("pydp2: worker lost: ")] == []


def test_all_workers_killed_at_once_again_and_again(provider_file: Callable[[str], str]) -> None:
    """The spare one too: the next are forked afresh, and the pass ends as if nothing had been."""
    address = provider_file(CODE.format(arguments=""))

    def kill(batch: pydp2.Batch) -> None:
        if batch.index % 50 == 25:
            for pid in victims(data):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    with pydp2.load(FILES, address, workers=2, batch_size=64, memory_limit="2MB") as data:
        disturbed = all_of(data, kill)
    with pydp2.load(FILES, address, workers=2, batch_size=64) as data:
        assert all_of(data) == disturbed


def test_a_cached_pass_is_the_same_after_kills(provider_file: Callable[[str], str]) -> None:
    address = provider_file(CODE.format(arguments=", cache=CacheType.CACHE_PASS_IN_MEM"))

    def kill(batch: pydp2.Batch) -> None:
        if batch.index % 40 == 20 and (living := victims(data)):
            with contextlib.suppress(ProcessLookupError):  # one that was killed before and is only now cleared away
                os.kill(living[0], signal.SIGKILL)

    with pydp2.load(FILES, address, workers=2, batch_size=64, seed=3) as data:
        undisturbed = [all_of(data), all_of(data)]
    with pydp2.load(FILES, address, workers=2, batch_size=64, seed=3) as data:
        assert [all_of(data, kill), all_of(data, kill)] == undisturbed


def test_workers_killed_while_the_trainer_rests_are_replaced(provider_file: Callable[[str], str]) -> None:
    """However many: nobody has to ask for a batch for that."""
    with pydp2.load(FILES, provider_file(CODE.format(arguments="")), workers=2, batch_size=64) as data:
        stream = iter(data)
        next(stream)
        for _ in range(15):
            living: list[int] = []
            assert wait_until(lambda living=living: bool(living.extend(victims(data)) or living))
            killed = living[0]
            os.kill(killed, signal.SIGKILL)
            assert wait_until(lambda killed=killed: len(set(processes("pydp2-worker")) - {killed}) == 3)
        assert sum(len(batch) for batch in stream) == TOTAL - 64


@pytest.mark.parametrize(("timeout", "waited"), [(1.5, 1.5), (None, 1)])
def test_workers_that_are_stopped_between_two_samples_are_replaced(
    provider_file: Callable[[str], str], capfd: pytest.CaptureFixture[str], timing: Callable[..., None],
    timeout: float | None, waited: float,
) -> None:  # fmt: skip
    """No sample of theirs takes too long then, so it is the process that is looked at."""
    timing(stopped_worker=1.0)
    with pydp2.load(
        FILES, provider_file(CODE.format(arguments="")), workers=2, batch_size=64, shuffle=False, memory_limit="1MiB",
        sample_timeout=timeout,
    ) as data:  # fmt: skip
        stream = iter(data)
        seen = [*next(stream)["number"].tolist()]
        # they have read as far ahead as they may: all wait for the trainer, and none is in the middle of a sample
        assert wait_until(lambda: at_rest(processes("pydp2-worker")))
        stopped = processes("pydp2-worker")
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        for batch in stream:
            seen += batch["number"].tolist()
    assert seen == [first + i for first, count in (map(int, name.split("+")) for name in FILES) for i in range(count)]
    screen = capfd.readouterr().err
    assert f"was killed because a signal had stopped it for longer than {waited:g} s; its files go to another" in screen
    assert not set(stopped) & set(processes("pydp2-worker"))
