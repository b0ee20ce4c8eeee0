"""What a job does that dies, stands still, fails or goes back is nothing to the others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from typing import Any

import pytest

import pydp2
from pydp2.errors import ProviderError

from ..provider_code import numbers
from ..runs import wait_until
from .conftest import FILES, JOBS, Data, Stream, stream

TRAINER = """
import sys, pydp2
with pydp2.connect(sys.argv[1], job="eval", **{options!r}) as data:
    for batch in data:
        print(batch.index, flush=True)
        if batch.index == 3:
            sys.stdin.read()
"""


@contextmanager
def other_process(service: pydp2.Service) -> Iterator[subprocess.Popen[str]]:
    """A trainer of job "eval" that stands still after its fourth batch."""
    child = subprocess.Popen(
        [sys.executable, "-c", TRAINER.format(options=JOBS["eval"]), service.address],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert child.stdout is not None
        assert [child.stdout.readline() for _ in range(4)] == ["0\n", "1\n", "2\n", "3\n"]
        yield child
    finally:
        child.kill()
        child.communicate()


@pytest.mark.parametrize("cache", [False, True])
@pytest.mark.parametrize("what", ["stands still", "dies", "is stopped"])
def test_a_trainer_that(
    what: str, cache: bool, data: Data, alone: dict[str, Stream], alone_cached: dict[str, Stream]
) -> None:
    with (
        pydp2.launch(FILES, data.address(cached=cache), workers=2) as service,
        service.connect(job="train", **JOBS["train"]) as train,
        other_process(service) as child,
    ):
        batches = iter(train)
        found = [next(batches)[0].tolist()]
        if what == "dies":
            child.kill()
        elif what == "is stopped":
            os.kill(child.pid, signal.SIGSTOP)
        found += [batch[0].tolist() for batch in batches]
        found += stream(train, 1)
    assert found == (alone_cached if cache else alone)["train"]


def test_a_job_whose_trainer_died_begins_anew_beside_the_others(
    service: pydp2.Service, alone: dict[str, Stream]
) -> None:
    with service.connect(job="train", **JOBS["train"]) as train:
        batches = iter(train)
        found = [next(batches)[0].tolist()]
        with other_process(service):
            pass
        with service.connect(job="eval", **JOBS["eval"]) as evaluation:
            assert stream(evaluation) == alone["eval"]
        found += [batch[0].tolist() for batch in batches]
    assert found == alone["train"][: len(found)]


@pytest.mark.parametrize("cache", [False, True])
def test_workers_that_are_killed_while_all_of_them_read(
    cache: bool, data: Data, alone: dict[str, Stream], alone_cached: dict[str, Stream]
) -> None:
    with (
        pydp2.launch(FILES, data.address(cached=cache, slow=True), workers=2) as service,
        ExitStack() as stack,
    ):
        clients = {name: stack.enter_context(service.connect(job=name, **how)) for name, how in JOBS.items()}
        found: dict[str, Stream] = {name: [] for name in JOBS}
        for turn in range(2):
            going = {name: iter(client) for name, client in clients.items()}
            steps = 0
            while going:
                for name in list(going):
                    batch = next(going[name], None)
                    if batch is None:
                        del going[name]
                    else:
                        found[name].append(batch[0].tolist())
                steps += 1
                if turn == 0 and steps in (2, 12, 22):
                    # none where those that follow the last one are still starting
                    for pid in [worker["pid"] for worker in service.stats()["workers"] if worker["active"]][:1]:
                        with suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
        assert service.stats()["workers_lost"] > 0
    assert found == (alone_cached if cache else alone)


def test_a_job_goes_back_to_a_state_in_the_middle_while_another_reads_on(
    service: pydp2.Service, alone: dict[str, Stream]
) -> None:
    with (
        service.connect(job="train", **JOBS["train"]) as train,
        service.connect(job="eval", **JOBS["eval"]) as evaluation,
    ):
        mine, other = iter(train), iter(evaluation)
        found = [next(mine)[0].tolist() for _ in range(9)]
        theirs = [next(other)[0].tolist() for _ in range(5)]
        state = train.state_dict()
        for _ in range(3):
            next(mine)
        theirs += [next(other)[0].tolist() for _ in range(5)]
        train.load_state_dict(state)
        mine = iter(train)
        while len(found) < len(alone["train"]) // 2:
            found.append(next(mine)[0].tolist())
            if (batch := next(other, None)) is not None:
                theirs.append(batch[0].tolist())
    assert found == alone["train"][: len(found)]
    assert theirs == alone["eval"][: len(theirs)]


def test_a_state_of_one_job_is_taken_up_on_a_service_where_another_one_reads(
    service: pydp2.Service, data: Data, alone: dict[str, Stream]
) -> None:
    with service.connect(job="train", **JOBS["train"]) as train:
        batches = iter(train)
        found = [next(batches)[0].tolist() for _ in range(11)]
        state = train.state_dict()
    with (
        pydp2.launch(FILES, data.address(), workers=3) as there,
        there.connect(job="eval", **JOBS["eval"]) as evaluation,
        there.connect(job="train", **JOBS["train"]) as train,
    ):
        first = stream(evaluation, 1)
        train.load_state_dict(state)
        found += [batch[0].tolist() for batch in train]
        assert first + stream(evaluation, 1) == alone["eval"]
        assert found + stream(train, 1) == alone["train"]


def test_ranks_of_one_job_beside_the_only_one_of_another(service: pydp2.Service, alone: dict[str, Stream]) -> None:
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(service.connect(job="train", rank=rank, world_size=2, **JOBS["train"]))
            for rank in range(2)
        ]
        evaluation = stack.enter_context(service.connect(job="eval", **JOBS["eval"]))
        other = iter(evaluation)
        going = [iter(client) for client in ranks]
        found, theirs = [], []
        while True:
            batches = [next(each, None) for each in going]
            found += [batch[0].tolist() for batch in batches if batch is not None]
            theirs += [batch[0].tolist() for batch in [next(other, None)] if batch is not None]
            if None in batches:
                break
        theirs += [batch[0].tolist() for batch in other]
    assert found == alone["train"][: len(found)]
    assert len(found) == len(alone["train"]) // 2
    assert theirs == alone["eval"][: len(theirs)]


ENDLESS = numbers(1 << 30, "pool_size=100", pause=0.0002)


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_greedy_job_leaves_the_others_their_part_of_the_only_worker(
    provider_file: Callable[[str], str], shuffle: bool, no_hang: None
) -> None:
    done = threading.Event()

    def greedy(service: pydp2.Service) -> int:
        count = 0
        with service.connect(job="greedy", batch_size=10, shuffle=shuffle) as data:
            for _ in data:
                count += 1
                if done.is_set():
                    break
        return count

    with (
        ThreadPoolExecutor(1) as pool,  # it ends after the service: then nobody waits for a batch any more
        pydp2.launch(["a", "b"], provider_file(ENDLESS), workers=1) as service,
    ):
        reader = pool.submit(greedy, service)
        assert wait_until(lambda: service.stats()["batches"] > 5)
        with service.connect(job="small", batch_size=10, shuffle=shuffle) as small:
            assert len(list(islice(small, 50))) == 50
        before = service.stats()["batches"]
        assert wait_until(lambda: service.stats()["batches"] > before + 50), "and it goes on as before"
        done.set()
        assert reader.result() > 50


RAISES = numbers(
    50,
    "pool_size=20",
    first="1000 * int(filename)",
    before="if filename == '7' and i == 30: raise LookupError('as it has to be')",
)


def test_a_job_that_fails_ends_alone(provider_file: Any) -> None:
    options = {"batch_size": 10, "shuffle": False}
    with (
        pydp2.launch(FILES, provider_file(RAISES), workers=2) as service,
        service.connect(job="train", **options) as train,
        service.connect(job="eval", **options) as evaluation,
    ):
        for client in (train, evaluation):
            found = []
            with pytest.raises(ProviderError, match="as it has to be"):
                found += [batch[0].tolist() for batch in client]
        assert wait_until(lambda: not service.stats()["jobs"]["eval"]["samples_in_pass"] % 10)
        again = iter(train)
        assert next(again)[0].tolist() == list(range(10))


def test_what_is_told_of_a_job_names_it_where_there_are_several(data: Data, capfd: pytest.CaptureFixture[str]) -> None:
    said = ""

    def told() -> bool:
        nonlocal said
        said += capfd.readouterr().err
        return "job 'eval': the trainer is gone; its job is free" in said

    with (
        pydp2.launch(FILES, data.address(), workers=2) as service,
        service.connect(job="train", **JOBS["train"]),
    ):
        with other_process(service):
            pass
        assert wait_until(told), said
