"""Passes that workers of a framework's loader read: in turn, they give what one client gives, from any place on."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import pydp2
from pydp2.errors import ClientUseError, OptionError, StateMismatch
from pydp2.frameworks.shared_service import Ranks
from pydp2.frameworks.worker_passes import WorkerPasses
from pydp2.frameworks.worker_share import PassRecord
from tests.provider_code import sequences
from tests.runs import NUMBERS_OPTIONS, wait_until
from tests.warm_starts import run_program

from .conftest import FILES, in_turn, samples

Samples = list[int]
_numbers = count()
DEADLINE = 60.0
RANK = """
import json, sys, time
from pydp2.frameworks.shared_service import Ranks
from pydp2.frameworks.worker_passes import WorkerPasses
rank, provider = int(sys.argv[1]), sys.argv[2]
passes = WorkerPasses([str(n) for n in range(8)], provider, Ranks(rank, 2, 2, "RUN"), job="train", workers=1,
                      batch_size=16, seed=5)
seen = []
for batch, _ in passes.read(0, 1, "one", with_state=False):
    time.sleep(rank * 0.2)
    seen.append(batch[0].tolist()[: len(batch) - batch.padding])
print(json.dumps(seen))
"""


@pytest.fixture
def passes(service: pydp2.Service) -> WorkerPasses:
    """Passes of a job of their own."""
    return WorkerPasses(service.address, None, Ranks(), job=f"job {next(_numbers)}", **NUMBERS_OPTIONS)


@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 3), (3, 2)])
def test_the_state_behind_any_batch_continues_there_with_any_number_of_workers(
    passes: WorkerPasses, expected: list[list[Samples]], before: int, after: int
) -> None:
    states = [state for _, state in in_turn(passes, before)]
    for done in (1, 2, len(states) // 2, len(states) - 1, len(states)):
        passes.load_state_dict(states[done - 1])
        rest = expected[0][done:] or expected[1]
        assert [found for found, _ in in_turn(passes, after)] == rest, "the state behind all begins the next pass"
    assert [found for found, _ in in_turn(passes, after)] == expected[2]


def test_of_a_provider_that_draws_anew_in_each_pass_the_next_pass_is_not_compared_with_a_state_of_the_one_before(
    provider_file: Callable[[str], str],
) -> None:
    address = provider_file(
        "@provider(input_types=[integer_value(1 << 30)], pool_size=20)\n"
        "def process(settings, filename):\n"
        "    yield from (int(settings.rng.integers(1 << 30)) for _ in range(30))"
    )
    with pydp2.launch(FILES, address, workers=1) as service:
        with service.connect(job="one", **NUMBERS_OPTIONS) as data:
            expected = [[samples(batch) for batch in data] for _ in range(2)]
        passes = WorkerPasses(service.address, None, Ranks(), job="two", **NUMBERS_OPTIONS)
        share = in_turn(passes, 2)
        for _ in range(5):
            _, state = next(share)
        share.close()
        for _ in range(2):
            passes.load_state_dict(state)
            assert [found for found, _ in in_turn(passes, 2)] == expected[0][5:]
            assert [found for found, _ in in_turn(passes, 3)] == expected[1]


def test_a_state_of_workers_is_one_of_a_client_and_the_other_way_round(
    service: pydp2.Service, passes: WorkerPasses, expected: list[list[Samples]]
) -> None:
    states = [state for _, state in in_turn(passes, 2)]
    with service.connect(job="other", **NUMBERS_OPTIONS) as data:
        data.load_state_dict(states[2])
        batches = iter(data)
        assert samples(next(batches)) == expected[0][3]
        state = data.state_dict()
    passes.load_state_dict(state)
    assert [found for found, _ in in_turn(passes, 2)] == expected[0][4:]


def test_the_rank_that_has_the_service_keeps_it_for_slower_ones_although_nobody_closes_it(
    provider: str, tmp_path: Path, expected: list[list[Samples]]
) -> None:
    (tmp_path / "rank.py").write_text(RANK.replace("RUN", tmp_path.name))
    words = [["rank.py", str(rank), provider] for rank in range(2)]
    with ThreadPoolExecutor() as pool:
        ended = list(pool.map(lambda each: run_program(each, tmp_path, DEADLINE), words))
    for done in ended:
        assert done.returncode == 0, done.stdout + done.stderr
    steps = zip(*(json.loads(done.stdout) for done in ended), strict=True)
    assert [batch for step in steps for batch in step if batch] == expected[0]


def test_a_pass_that_is_left_by_some_workers_before_others_began_is_over_for_all(
    passes: WorkerPasses, expected: list[list[Samples]]
) -> None:
    first = passes.read(0, 2, "left", with_state=False)
    assert samples(next(first)[0]) == expected[0][0]
    first.close()
    assert [found for found, _ in in_turn(passes, 2)] == expected[1]


def test_a_pass_whose_iterator_is_kept_has_no_job_once_the_next_one_begins(
    service: pydp2.Service, passes: WorkerPasses, expected: list[list[Samples]]
) -> None:
    """Each of them would have a pool, until the service has no memory for another."""
    kept = []
    for number in range(20):
        kept.append(passes.read(0, 1, f"pass {number}", with_state=False))
        assert samples(next(kept[-1])[0])
        assert wait_until(
            lambda: len([job for job in service.stats()["jobs"] if job.startswith(f"{passes._shares.job} ")]) == 1
        )
    with pytest.raises(ClientUseError, match="closed"):
        next(kept[0])


def test_epochs_that_have_the_same_name_are_passes_of_their_own(
    passes: WorkerPasses, expected: list[list[Samples]]
) -> None:
    for each in expected[:2]:
        assert [samples(batch) for batch, _ in passes.read(0, 1, "the same", with_state=False)] == each


def test_a_copy_in_another_process_reads_the_same_passes(provider: str, expected: list[list[Samples]]) -> None:
    passes = WorkerPasses(FILES, provider, Ranks(), job="train", workers=1, **NUMBERS_OPTIONS)
    try:
        other = copy.deepcopy(passes)  # as another process gets it
        assert [found for found, _ in in_turn(other, 2)] == expected[0]
        assert [found for found, _ in in_turn(passes, 2)] == expected[1]
        other.close()  # ends nothing: the service is not its own
        assert [found for found, _ in in_turn(passes, 2)] == expected[2]
    finally:
        passes.close()


def test_a_state_is_loaded_while_workers_of_another_process_still_read_what_was_left(
    passes: WorkerPasses, expected: list[list[Samples]]
) -> None:
    older = in_turn(copy.deepcopy(passes), 2)
    (_, state), _ = next(older), next(older)
    passes.load_state_dict(state)
    assert [found for found, _ in in_turn(passes, 2)] == expected[0][1:]
    assert next(older)[0] == expected[0][2]
    older.close()


def test_bounds_of_buckets_that_a_pass_found_hold_in_the_next(provider_file: Callable[[str], str]) -> None:
    provider = provider_file(sequences(80, "(i * int(filename)) % 17 + 1", "pool_size=60"))
    options: dict[str, Any] = {**NUMBERS_OPTIONS, "bucket_by": 0, "num_buckets": 3}

    def rows(batch: pydp2.Batch) -> list[int]:
        return batch[0].values.tolist()  # type: ignore[no-any-return, union-attr]

    with pydp2.load(FILES[1:], provider, workers=1, **options) as data:
        expected = [[rows(batch) for batch in data] for _ in range(2)]
    passes = WorkerPasses(FILES[1:], provider, Ranks(), job="train", workers=1, **options)
    try:
        for number, each in enumerate(expected):
            assert [rows(batch) for batch, _ in passes.read(0, 1, str(number), with_state=False)] == each
    finally:
        passes.close()


def test_a_share_that_is_not_that_of_a_rank_is_refused(provider: str) -> None:
    with pytest.raises(OptionError, match="a loader takes its workers in turn, so each has a rank"):
        WorkerPasses(FILES, provider, Ranks(), job="train", share="dynamic", **NUMBERS_OPTIONS)


def test_the_state_of_another_stream_is_refused_where_it_is_loaded(
    service: pydp2.Service, passes: WorkerPasses
) -> None:
    with service.connect(job="smaller", batch_size=8) as data:
        state = data.state_dict()
    with pytest.raises(StateMismatch, match="batch_size"):
        passes.load_state_dict(state)


def test_all_workers_of_a_pass_begin_it_alike_also_if_one_has_found_bounds_meanwhile() -> None:
    record = PassRecord({"pass": 0})
    first, _ = record.claim(0, "one")
    record.keep_bounds({"bounds": [8, 16]})
    assert record.claim(1, "one")[0] == first == {"pass": 0}
    later = [record.claim(worker, "two")[0] for worker in range(2)]
    assert [(start["pass"], start["buckets"]) for start in later] == [(1, {"bounds": [8, 16]})] * 2
