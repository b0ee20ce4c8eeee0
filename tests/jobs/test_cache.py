"""One cache for several jobs: one reading of the files serves all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import pydp2

from .conftest import FILES, JOBS, Data, Stream, stream


def test_jobs_that_begin_together_read_each_file_once_in_all(
    cached: pydp2.Service, data: Data, alone_cached: dict[str, Stream]
) -> None:
    def read(name: str) -> Stream:
        with cached.connect(job=name, **JOBS[name]) as client:
            return stream(client)

    with ThreadPoolExecutor(len(JOBS)) as pool:
        for name, found in zip(JOBS, pool.map(read, JOBS), strict=True):
            assert found == alone_cached[name], name
    assert data.opened() == Counter(FILES)


def test_a_job_that_comes_later_finds_what_the_first_one_has_read(
    cached: pydp2.Service, data: Data, alone_cached: dict[str, Stream]
) -> None:
    with cached.connect(job="train", **JOBS["train"]) as train:
        first = stream(train, 1)
        assert data.opened() == Counter(FILES)
        with cached.connect(job="eval", **JOBS["eval"]) as evaluation:
            assert stream(evaluation) == alone_cached["eval"]
        assert first + stream(train, 1) == alone_cached["train"]
    assert data.opened() == {}


LARGE = """
import numpy

@provider(input_types=[integer_value(100000), dense_vector(1000)], cache=CacheType.CACHE_PASS_IN_MEM{arguments})
def process(settings, filename):
    with open({log!r}, "a") as log:
        log.write(filename + "\\n")
    for i in range(80):
        yield int(filename) * 1000 + i, numpy.zeros(1000, numpy.float32)
"""


@pytest.mark.parametrize("limit", [16 << 20, 4 << 20])
def test_a_job_does_not_wait_for_a_trainer_that_asks_for_nothing(
    provider_file: Callable[[str], str], tmp_path: Path, limit: int
) -> None:
    """Its files lie half read at the workers, as far as its credit goes; who needs them reads them by itself. With the
    lower limit the cache is full before all of them are in it."""
    log = tmp_path / "opened"
    address = provider_file(LARGE.format(arguments=", pool_size=50", log=str(log)))
    options = {"workers": 2, "memory_limit": limit}
    files = [str(n) for n in range(20)]  # more than take turns: these have half of the credit
    alone = {}
    for name, how in JOBS.items():
        with pydp2.load(files, address, **options, **how) as client:
            alone[name] = stream(client)
    log.unlink()
    with (
        pydp2.launch(files, address, **options) as service,
        service.connect(job="train", **JOBS["train"]) as train,
    ):
        batches = iter(train)
        found = [next(batches)[0].tolist()]
        for name in ("eval", "peek"):
            with service.connect(job=name, **JOBS[name]) as other:
                assert stream(other) == alone[name]
        assert max(Counter(log.read_text().split()).values()) > 1, "or nobody had to help himself"
        found += [batch[0].tolist() for batch in batches]
        assert found + stream(train, 1) == alone["train"]


def test_without_the_cache_each_job_reads_for_itself(service: pydp2.Service, data: Data) -> None:
    for name in JOBS:
        with service.connect(job=name, **JOBS[name]) as client:
            stream(client, 1)
    assert data.opened() == Counter(FILES * 3)


DRAWS = """
import os, time

@provider(input_types=[integer_value(1000)], cache=CacheType.CACHE_PASS_IN_MEM, should_shuffle=False)
def process(settings, filename):
    numbers = list(range(int(filename), int(filename) + 100))
    settings.rng.shuffle(numbers)
    for i, number in enumerate(numbers):
        while i >= 50 and not os.path.exists({left!r}):
            time.sleep(0.002)
        yield number
"""


def test_a_pass_that_was_left_leaves_nothing_of_its_draws_in_what_the_next_one_caches(
    provider_file: Callable[[str], str], tmp_path: Path
) -> None:
    """Each pass draws another order within a file, so what is cached must be of one pass alone."""
    left = tmp_path / "left"
    with pydp2.load(["0", "100", "200"], provider_file(DRAWS.format(left=str(left))), batch_size=10, workers=3) as data:
        assert len(next(iter(data))[0]) == 10
        left.touch()
        passes = [[number for batch in data for number in batch[0].tolist()] for _ in range(3)]
        assert data.stats()["cache"]["files"] == 3
    assert [sorted(each) for each in passes] == [list(range(300))] * 3
    assert passes[0] == passes[1] == passes[2], "the later ones come from the cache"
