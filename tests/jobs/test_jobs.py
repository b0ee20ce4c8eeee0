"""Several jobs on one service: each has the stream that it would have alone, whatever the others do."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

import pydp2
from pydp2.api import machine
from pydp2.errors import JobTaken, OptionError

from ..runs import wait_until
from .conftest import JOBS, Stream, stream


def test_jobs_side_by_side_have_the_streams_that_each_has_alone(
    service: pydp2.Service, alone: dict[str, Stream]
) -> None:
    def read(name: str) -> Stream:
        with service.connect(job=name, **JOBS[name]) as data:
            return stream(data)

    with ThreadPoolExecutor(len(JOBS)) as pool:
        for name, found in zip(JOBS, pool.map(read, JOBS), strict=True):
            assert found == alone[name], name


def test_jobs_of_one_trainer_that_takes_a_batch_of_each_in_turn_have_them_too(
    service: pydp2.Service, alone: dict[str, Stream]
) -> None:
    with ExitStack() as stack:
        clients = {name: stack.enter_context(service.connect(job=name, **options)) for name, options in JOBS.items()}
        found: dict[str, Stream] = {name: [] for name in JOBS}
        for _ in range(2):
            streams = {name: iter(client) for name, client in clients.items()}
            while streams:
                for name in list(streams):
                    batch = next(streams[name], None)
                    if batch is None:
                        del streams[name]
                    else:
                        found[name].append(batch[0].tolist())
    assert found == alone


def test_one_place_of_one_job_is_one_trainer_s(service: pydp2.Service) -> None:
    with service.connect(job="train", **JOBS["train"]), service.connect(job="eval", **JOBS["eval"]):
        with pytest.raises(JobTaken, match="another trainer reads this job"):
            service.connect(job="train", **JOBS["train"])
        with pytest.raises(OptionError, match="job 'eval' runs with other options: batch_size is 7 there, 8"):
            service.connect(job="eval", **JOBS["eval"] | {"batch_size": 8})


def test_a_job_that_the_memory_does_not_hold_beside_the_others_is_refused_with_the_figures(
    service: pydp2.Service, alone: dict[str, Stream]
) -> None:
    half = (machine.memory().bytes - machine.memory().bytes // 4) * 6 // 10
    with service.connect(job="train", **JOBS["train"] | {"pool_bytes": half}) as train:
        with pytest.raises(OptionError) as refused:
            service.connect(job="eval", **JOBS["eval"] | {"pool_bytes": half})
        told = str(refused.value)
        assert f"pool_bytes={half} of job 'eval', pool_bytes={half} of job 'train' and memory_limit=" in told
        assert re.search(r" are \d+ bytes together, more than the \d+ bytes .*; lower one of them", told)
        assert set(service.stats()["jobs"]) == {"train"}
        assert stream(train) == alone["train"]
    with service.connect(job="eval", **JOBS["eval"] | {"pool_bytes": half}) as evaluation:
        assert stream(evaluation) == alone["eval"]


def test_more_jobs_than_can_be_told_of_are_refused(service: pydp2.Service) -> None:
    with ExitStack() as stack:
        for number in range(16):
            stack.enter_context(service.connect(job=f"job {number}", batch_size=8, pool_bytes=1 << 20))
        assert len(service.stats()["jobs"]) == 16
        with pytest.raises(OptionError, match="the service has 16 jobs, and the limit is 16; wait until one"):
            service.connect(job="one more", batch_size=8, pool_bytes=1 << 20)


def test_figures_are_told_for_each_job_and_for_all_together(service: pydp2.Service) -> None:
    with (
        service.connect(job="train", **JOBS["train"]) as train,
        service.connect(job="eval", **JOBS["eval"]) as evaluation,
    ):
        first = len(stream(train, 1))
        second = len(stream(evaluation, 1))
        stats = service.stats()
        assert {name: job["batches"] for name, job in stats["jobs"].items()} == {"train": first, "eval": second}
        assert stats["batches"] == first + second
        assert stats["attached"]
    assert wait_until(lambda: service.stats()["jobs"] == {}), "they left in order"
    assert not service.stats()["attached"]
