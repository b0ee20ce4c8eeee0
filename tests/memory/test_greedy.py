"""Trainers that ask for more than they use, and jobs that say that they have more ranks than come: what they cost the
service is bounded, and its other trainers go on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

import pydp2
from pydp2.errors import OptionError
from pydp2.protocol import messages as m
from pydp2.protocol.batch_packing import BATCH_COST
from pydp2.system.process_memory import resident_bytes
from tests.provider_code import dense
from tests.raw_trainer import raw_trainers
from tests.runs import wait_until

MB = 1_000_000
ROW = 10_000  # bytes
CODE = dense(2000, 2500, "pool_size=64")
JOB = {"batch_size": 32, "pool_bytes": 4 * MB, "seed": 1}
BATCH = 32 * ROW + BATCH_COST
BATCHES = 500
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at the server's memory in /proc")


@pytest.fixture
def service(provider_file: Callable[[str], str]) -> Iterator[pydp2.Service]:
    with pydp2.launch([*"abcdefgh"], provider_file(CODE), workers=1, memory_limit=32 * MB) as service:
        yield service


def a_pass(service: pydp2.Service, job: str = "other") -> int:
    """The number of batches that another trainer gets meanwhile."""
    with service.connect(job=job, **JOB) as data:
        return sum(1 for _ in data)


@pytest.mark.parametrize("grants", [[2**61], [2**62 - 1, 2**62 - 1, 2**62 - 1], [1] * 300])
def test_who_asks_for_everything_and_reads_nothing_is_sent_prefetch_bytes(
    service: pydp2.Service, grants: list[int]
) -> None:
    limit = 10 * MB
    before = resident_bytes(service.pid)
    with raw_trainers(service.address) as raw:
        greedy = raw()
        assert isinstance(greedy.attach(**JOB, prefetch_bytes=limit, prefetch=2**31), m.Welcome)
        greedy.begin(credit=grants[0])
        for count in grants[1:]:
            greedy.say(m.Need(1, count, 0, 0, 0))
        most = limit // BATCH

        def cut() -> int:
            return int(service.stats()["jobs"]["default"]["batches_in_pass"])

        assert wait_until(lambda: cut() >= most, 30)
        assert a_pass(service) == BATCHES
        assert cut() <= most + 1, "the one that was too many waits to be sent"
        assert resident_bytes(service.pid) - before < 2 * limit + 32 * MB
        for _ in range(5):
            assert isinstance(greedy.hear(), m.BatchHead)
        greedy.say(m.Need(1, 0, 5, 0, 0))
        assert wait_until(lambda: most + 5 <= cut() <= most + 6), "what is used is followed by as much"


@pytest.mark.parametrize("loads", [False, True], ids=["again", "back"])
def test_who_begins_again_and_again_and_reads_nothing_is_sent_prefetch_bytes_once(
    service: pydp2.Service, loads: bool
) -> None:
    limit = 4 * MB
    before = resident_bytes(service.pid)
    with raw_trainers(service.address) as raw:
        greedy = raw()
        assert isinstance(greedy.attach(**JOB, prefetch_bytes=limit), m.Welcome)
        heard: list[int] = []
        for run in range(1, 100):
            greedy.begin(run, credit=50, loaded=f"state {run}" if loads else "")
            if run == 1:
                assert wait_until(lambda: service.stats()["batches_in_pass"] >= limit // BATCH)
        assert a_pass(service) == BATCHES
        assert resident_bytes(service.pid) - before < 2 * limit + 32 * MB
        for _ in range(limit // BATCH):
            message = greedy.hear()
            assert isinstance(message, m.BatchHead)
            heard.append(message.request_id)
        assert set(heard) == {1}
        assert greedy.hear(0.0) is None
        greedy.say(m.Need(99, 0, 0, 0, 0))  # it has read all of it, and waits
        message = greedy.hear()
        assert isinstance(message, m.BatchHead)
        assert (message.request_id, message.batch_index) == (99, 0)


def test_passes_that_are_begun_and_left_unread_cost_no_more_and_the_next_one_is_whole(service: pydp2.Service) -> None:
    limit = 2 * MB
    with service.connect(**JOB, prefetch_bytes=limit) as data:
        for _ in range(50):
            iter(data).close()  # type: ignore[attr-defined]
        assert resident_bytes(service.pid) < 130 * MB
        assert [batch.index for batch in data] == [*range(BATCHES)]


@pytest.mark.parametrize(
    ("prefetch", "limit"),
    [
        (1, 1),
        (2, 3 * BATCH),
        (100_000, BATCH),
        (100_000, 64 << 20),
        *(
            pytest.param(prefetch, limit, marks=pytest.mark.slow)
            for prefetch in (1, 2, 100_000)
            for limit in (1, BATCH, 3 * BATCH, 64 << 20)
        ),
    ],
)
def test_with_any_prefetch_and_any_bytes_the_stream_is_the_same(
    service: pydp2.Service, limit: int, prefetch: int
) -> None:
    before = resident_bytes(service.pid)
    with service.connect(**JOB, prefetch=prefetch, prefetch_bytes=limit) as data:
        rows = 0
        for index, batch in enumerate(data):
            assert batch.index == index
            rows += len(batch)
            if index == 50:
                assert resident_bytes(service.pid) - before < 2 * max(limit, 2 * BATCH) + 40 * MB
    assert rows == 16_000


@pytest.mark.parametrize("share", ["ranks", "dynamic"])
def test_ranks_and_shared_trainers_take_turns_whatever_they_ask_for(service: pydp2.Service, share: str) -> None:
    places = [{"share": share}] * 2 if share == "dynamic" else [{"rank": r, "world_size": 2} for r in (0, 1)]
    before = resident_bytes(service.pid)
    with ExitStack() as stack:
        clients = [
            stack.enter_context(service.connect(**JOB, **where, prefetch=1000, prefetch_bytes=2 * MB))
            for where in places
        ]
        pool = stack.enter_context(ThreadPoolExecutor(2))  # the last ones wait for what others have in their hands
        seen = [*pool.map(lambda client: [batch.index for batch in client], clients)]
    assert sorted(index for each in seen for index in each) == [*range(BATCHES)]
    assert resident_bytes(service.pid) - before < 60 * MB


def test_the_batches_of_a_rank_that_reads_nothing_have_prefetch_bytes(service: pydp2.Service) -> None:
    """And the others wait for it, as for one that takes nothing at all."""
    limit = 3 * MB
    with raw_trainers(service.address) as raw:
        greedy = raw()
        assert isinstance(greedy.attach(world_size=2, **JOB, prefetch_bytes=limit), m.Welcome)
        greedy.begin(credit=2**61)
        with service.connect(rank=1, world_size=2, **JOB, prefetch_bytes=limit) as data:
            stream = iter(data)
            for _ in range(limit // BATCH):
                next(stream)
            assert wait_until(lambda: service.stats()["jobs"]["default"]["batches_in_pass"] >= 2 * (limit // BATCH))
            assert a_pass(service) == BATCHES
            cut = service.stats()["jobs"]["default"]["batches_in_pass"]
            assert cut <= 2 * (limit // BATCH + 3 + 2)


# -- many ranks --------------------------------------------------------------------------------------------------------
def test_jobs_of_many_ranks_cost_what_their_trainers_cost(service: pydp2.Service) -> None:
    """Fifteen jobs of 65,536 ranks with one trainer each: what is cut for the others has the bytes of a pool."""
    before = resident_bytes(service.pid)
    pool, limit = MB // 2, MB // 2
    with raw_trainers(service.address) as raw:
        for number in range(15):
            one = raw()
            job = {**JOB, "pool_bytes": pool, "prefetch_bytes": limit}
            assert isinstance(one.attach(f"job {number}", number, 65_536, **job), m.Welcome)
            one.begin(credit=2**61)
        assert a_pass(service) == BATCHES
        cut = [job["batches_in_pass"] for name, job in service.stats()["jobs"].items() if name != "other"]
        assert cut == [0] * 15, "no group of so many is whole"
        assert resident_bytes(service.pid) - before < 15 * 3 * (pool + limit) + 32 * MB


def test_a_job_of_more_ranks_than_there_can_be_is_refused_here_and_by_the_service(service: pydp2.Service) -> None:
    with pytest.raises(OptionError, match="world_size must be at most 65536: no job has more trainers; got 65537"):
        service.connect(rank=0, world_size=65_537, **JOB)
    with raw_trainers(service.address) as raw:
        for world_size in (65_537, 10**6, 2**61):
            answer = raw().attach(rank=0, world_size=world_size, **JOB)
            assert isinstance(answer, m.Refused)
            assert "world_size must be at most 65536" in answer.error["message"]
        assert isinstance(raw().attach(rank=65_535, world_size=65_536, **JOB), m.Welcome)


def test_names_that_are_too_long_are_refused_by_the_service_too(service: pydp2.Service) -> None:
    with raw_trainers(service.address) as raw:
        for wrong in ({"job": "x" * 60_000}, {"job": ""}, {"session": "s" * 60_000}):
            assert isinstance(raw().attach(**wrong, **JOB), m.Refused)
    assert service.stats()["jobs"] == {}


def test_numbers_of_batches_that_are_not_wanted_may_be_as_many_as_a_message_holds(service: pydp2.Service) -> None:
    with raw_trainers(service.address) as raw:
        odd = raw()
        assert isinstance(odd.attach(share="dynamic", **JOB), m.Welcome)
        odd.begin(credit=3, ahead=[2**61 + n for n in range(4000)])
        assert isinstance(odd.hear(), m.BatchHead)
        assert a_pass(service) == BATCHES


def test_prefetch_bytes_that_no_memory_holds_are_refused(service: pydp2.Service) -> None:
    with pytest.raises(OptionError, match=r"prefetch_bytes=\d+, pool_bytes=\d+ and memory_limit=\d+ together exceed"):
        service.connect(**JOB, prefetch_bytes="4000TiB")
