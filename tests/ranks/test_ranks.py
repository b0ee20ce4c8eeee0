"""Several trainers share a job: who gets what, and what happens when one of them dies, hangs or goes back."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

import pydp2
from pydp2.client.connection import Connection
from pydp2.errors import JobTaken, OptionError, Rewound
from pydp2.protocol import messages as m
from tests.provider_code import sequences
from tests.runs import NUMBERS_OPTIONS as OPTIONS
from tests.runs import Numbered, numbered

from .conftest import FILES


@pytest.fixture
def needs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many batches were used, in the words of each Need that a client sends."""
    said: list[int] = []
    send = Connection.send

    def spy(connection: Connection, message: m.Message, frames: Any = ()) -> None:
        if isinstance(message, m.Need):
            said.append(message.used_batches)
        send(connection, message, frames)

    monkeypatch.setattr(Connection, "send", spy)
    return said


def together(clients: list[pydp2.Client]) -> list[list[Numbered]]:
    """What each sees of the rest of a pass, in steps."""
    streams = [iter(client) for client in clients]
    seen: list[list[Numbered]] = [[] for _ in clients]
    going = [*range(len(clients))]
    while going:
        for rank in [*going]:
            batch = next(streams[rank], None)
            if batch is None:
                going.remove(rank)
            else:
                seen[rank].append(numbered(batch))
    return seen


def ranks(service: pydp2.Service, stack: ExitStack, world: int, **options: Any) -> list[pydp2.Client]:
    return [
        stack.enter_context(service.connect(rank=rank, world_size=world, **OPTIONS | options)) for rank in range(world)
    ]


@pytest.mark.parametrize("world", [1, 2, 3])
def test_ranks_share_the_batches_that_one_trainer_sees(
    service: pydp2.Service, alone: list[Numbered], world: int
) -> None:
    with ExitStack() as stack:
        clients = ranks(service, stack, world)
        for rank, seen in enumerate(together(clients)):
            assert seen == alone[rank::world]
            assert len(clients[rank]) == len(seen)
        second = together(clients)
        assert sorted(n for seen in second for _, batch in seen for n in batch) == sorted(
            n for _, batch in alone for n in batch
        )


@pytest.mark.parametrize("last_batch", ["drop", "pad"])
def test_with_drop_and_pad_all_ranks_get_equally_many(
    service: pydp2.Service, alone: list[Numbered], last_batch: str
) -> None:
    with ExitStack() as stack:
        seen = together(ranks(service, stack, 3, last_batch=last_batch))
        assert len({len(each) for each in seen}) == 1
        merged = sorted((one for each in seen for one in each), key=lambda one: one[0])
        uninterrupted = [one for one in alone if len(one[1]) == 16]
        if last_batch == "drop":
            assert merged == uninterrupted[: len(uninterrupted) // 3 * 3]
        else:
            assert merged[: len(alone)] == alone
            assert all(batch == [] for _, batch in merged[len(alone) :]), "padding alone"


def test_a_pass_taken_up_behind_batches_that_are_padding_alone_is_over(
    service: pydp2.Service, alone: list[Numbered]
) -> None:
    with ExitStack() as stack:
        clients = ranks(service, stack, 3, last_batch="pad")
        steps = [(batches, clients[0].state_dict()) for batches in zip(*clients, strict=True)]
        (*_, last), state = steps[-1]
        assert len(last) == last.padding, "padding alone"
        for client in clients:
            client.load_state_dict(state)
        assert together(clients) == [[], [], []]
        assert sorted(n for each in together(clients) for _, batch in each for n in batch) == sorted(
            n for _, batch in alone for n in batch
        ), "the pass behind it"


@pytest.mark.parametrize(
    ("world", "after"),
    [(1, 3), (2, 1), (3, 2), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((2, 4), (4, 4)))],
)
def test_another_number_of_ranks_goes_on_with_the_same_sequence(
    service: pydp2.Service, address: str, alone: list[Numbered], world: int, after: int
) -> None:
    with ExitStack() as stack:
        clients = ranks(service, stack, world)
        streams = [iter(client) for client in clients]
        for _ in range(after):
            for stream in streams:
                next(stream)
        states = [json.dumps(client.state_dict()) for client in clients]
    assert len(set(states)) == 1, "the state is the same in all ranks"
    for other in (1, 2, 3):
        with ExitStack() as stack:
            there = stack.enter_context(pydp2.launch(FILES, address, workers=3))
            clients = ranks(there, stack, other)
            for client in clients:
                client.load_state_dict(json.loads(states[0]))
            for rank, seen in enumerate(together(clients)):
                assert seen == alone[after * world :][rank::other]


TRAINER = """
import sys, pydp2
with pydp2.connect(sys.argv[1], rank=1, world_size=2, batch_size=16, seed=5) as data:
    for batch in data:
        print(batch.index, flush=True)
        if batch.index == 7:
            sys.stdin.read()
"""


def test_what_a_killed_rank_had_not_used_goes_to_the_one_that_takes_its_place(
    service: pydp2.Service, alone: list[Numbered]
) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", TRAINER, service.address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with ExitStack() as stack:
        stack.callback(child.communicate)
        stack.callback(child.kill)
        first = stack.enter_context(service.connect(rank=0, world_size=2, **OPTIONS))
        assert child.stdout is not None
        stream = iter(first)
        mine = [numbered(next(stream)) for _ in range(3)]
        assert [int(child.stdout.readline()) for _ in range(4)] == [1, 3, 5, 7]
        child.kill()
        child.wait()  # a service bears with a place that is taken for a second, and it may take longer to die
        with service.connect(rank=1, world_size=2, **OPTIONS) as other:
            rest = iter(other)
            batch = next(rest)
            assert batch.index == 7, "it was in its hand; that 5 is used is seen although no message may have said so"
            theirs = [numbered(batch)]
            while len(mine) + len(theirs) + 3 < len(alone):
                mine += [numbered(batch) for batch in [next(stream, None)] if batch is not None]
                theirs += [numbered(batch) for batch in [next(rest, None)] if batch is not None]
            mine += [numbered(batch) for batch in stream]
            theirs += [numbered(batch) for batch in rest]
    assert sorted([*mine, *theirs]) == sorted([*alone[0::2], *alone[7::2]])


def test_a_rank_reports_many_small_batches_in_a_message(
    service: pydp2.Service, alone: list[Numbered], needs: list[int]
) -> None:
    with ExitStack() as stack:
        clients = ranks(service, stack, 2, batch_size=1)
        seen = together(clients)
    count = sum(map(len, seen))
    assert count == sum(len(rows) for _, rows in alone)
    assert len(needs) < count / 4


def test_over_tcp_a_rank_reports_each_batch_by_itself(address: str, needs: list[int]) -> None:
    """The service cannot see there what it has used."""
    with pydp2.launch(FILES, address, workers=2, bind="tcp://127.0.0.1:*") as service, ExitStack() as stack:
        count = sum(map(len, together(ranks(service, stack, 2))))
    assert {*range(count // 2)} <= {*needs}


def test_a_second_connection_for_a_rank_is_refused_until_its_lease_is_over(service: pydp2.Service) -> None:
    with service.connect(rank=0, world_size=2, lease=5.0, **OPTIONS) as other:
        stream = iter(other)
        next(stream)
        with pytest.raises(JobTaken, match=r"rank 0 is taken \(process \d+, last heard of \d s ago\); wait until"):
            service.connect(rank=0, world_size=2, lease=5.0, **OPTIONS)
        deadline = time.monotonic() + 40
        while time.monotonic() < deadline:
            try:
                taker = service.connect(rank=0, world_size=2, lease=5.0, **OPTIONS)
            except JobTaken:
                continue
            break
        with taker:
            assert next(iter(taker)).index == 0
            with pytest.raises(Rewound, match="another process has"):
                next(stream)


def test_who_loads_a_state_takes_all_ranks_back(service: pydp2.Service, alone: list[Numbered]) -> None:
    with ExitStack() as stack:
        one, other = ranks(service, stack, 2)
        streams = iter(one), iter(other)
        for _ in range(3):
            next(streams[0])
            next(streams[1])
        state = one.state_dict()
        next(streams[0])
        next(streams[1])
        one.load_state_dict(state)
        again = iter(one)
        assert numbered(next(again)) == alone[6]
        with pytest.raises(Rewound, match="load the same state here, too"):
            list(streams[1])  # what is under way comes before the news, and the rest of the pass never does
        with pytest.raises(Rewound):
            next(iter(other))
        other.load_state_dict(state)
        mine, theirs = [alone[6]], []
        with_them = iter(other)
        for _ in range(len(alone)):
            theirs += [numbered(batch) for batch in [next(with_them, None)] if batch is not None]
            mine += [numbered(batch) for batch in [next(again, None)] if batch is not None]
        assert (mine, theirs) == (alone[6::2], alone[7::2])
    gc.collect()  # an error and the frames that raised it refer to each other, and to what they had received


def test_ranks_in_the_middle_of_a_pass_load_a_state_one_after_the_other(
    service: pydp2.Service, alone: list[Numbered]
) -> None:
    """The second one leaves its pass when the first one is in the pass of the state already."""
    with ExitStack() as stack:
        clients = ranks(service, stack, 2)
        streams = [iter(client) for client in clients]
        for step in range(5):
            for stream in streams:
                next(stream)
            if step == 2:
                state = clients[0].state_dict()
        seen = []
        for client in clients:
            client.load_state_dict(state)
            seen.append(numbered(next(iter(client))))
        assert seen == alone[6:8]


def test_dynamic_sharing_gives_each_batch_to_one_of_those_who_ask(
    service: pydp2.Service, alone: list[Numbered]
) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(service.connect(share="dynamic", **OPTIONS)) for _ in range(3)]
        pool = stack.enter_context(ThreadPoolExecutor(3))  # the last ones wait for what others have in their hands
        seen = [*pool.map(lambda client: [numbered(batch) for batch in client], clients)]
    assert sorted(one for each in seen for one in each) == alone


def test_dynamic_nobody_goes_on_by_itself_after_another_has_loaded_its_state_again(service: pydp2.Service) -> None:
    """Others may have been given the batches meanwhile that it has had since."""
    with ExitStack() as stack:
        one, other = (stack.enter_context(service.connect(share="dynamic", prefetch=1, **OPTIONS)) for _ in range(2))
        state = one.state_dict()
        for client in (one, other, other):
            client.load_state_dict(state)
            stream = iter(client)
            next(stream)
            if client is one:
                kept = stream
        with pytest.raises(Rewound):
            list(kept)


def test_dynamic_who_loads_a_state_late_gets_nothing_of_a_pass_that_the_others_have_had(
    service: pydp2.Service, alone: list[Numbered]
) -> None:
    with ExitStack() as stack:
        one, other = (stack.enter_context(service.connect(share="dynamic", **OPTIONS)) for _ in range(2))
        state = one.state_dict()
        one.load_state_dict(state)
        assert sorted(numbered(batch) for batch in one) == alone
        other.load_state_dict(state)
        assert [*other] == []
        assert other.state_dict()["pass"] == 1


def test_dynamic_a_state_holds_what_was_used_out_of_turn(
    service: pydp2.Service, address: str, alone: list[Numbered]
) -> None:
    with ExitStack() as stack:
        slow, fast = (stack.enter_context(service.connect(share="dynamic", prefetch=1, **OPTIONS)) for _ in range(2))
        one = iter(slow)
        held = next(one).index  # the first one: nobody else has begun
        other = iter(fast)
        had = [next(other).index for _ in range(9)]
        state = json.loads(json.dumps(fast.state_dict()))
    assert state["batch"] == held
    assert set(had[:-1]) <= {*state["acknowledged_ahead"]}
    with pydp2.load(FILES, address, workers=1, share="dynamic", **OPTIONS) as data:
        data.load_state_dict(state)
        rest = [numbered(batch) for batch in data]
    assert rest == [one for one in alone if one[0] >= held and one[0] not in state["acknowledged_ahead"]]


def test_ranks_of_a_job_must_agree_in_what_makes_its_stream(service: pydp2.Service) -> None:
    with service.connect(rank=0, world_size=2, **OPTIONS):
        with pytest.raises(OptionError, match=r"runs with other options: seed is 5 there, 6 here"):
            service.connect(rank=1, world_size=2, batch_size=16, seed=6)
        with pytest.raises(OptionError, match=r"has world_size=2, this trainer says 3"):
            service.connect(rank=1, world_size=3, **OPTIONS)
        with pytest.raises(OptionError, match=r"rank must be below world_size, got rank=2, world_size=2"):
            service.connect(rank=2, world_size=2, **OPTIONS)
        with service.connect(rank=1, world_size=2, prefetch=5, **OPTIONS):
            pass


WAITS = """
import sys, pydp2
with pydp2.connect(sys.argv[1], rank=0, world_size=2, batch_size=16, seed=5) as data:
    print([batch.index for batch in data], flush=True)
"""


def test_it_is_said_which_rank_the_others_wait_for(
    address: str, alone: list[Numbered], capfd: pytest.CaptureFixture[str], timing: Callable[..., None]
) -> None:
    timing(missing_rank=0.5)
    service = pydp2.launch(FILES, address, workers=2)
    child = subprocess.Popen([sys.executable, "-c", WAITS, service.address], stdout=subprocess.PIPE, text=True)
    try:
        text = "job 'default' waits for rank 1, which never came; connect with rank=1, world_size=2"
        screen, deadline = "", time.monotonic() + 30
        while "waits for" not in screen and time.monotonic() < deadline:
            screen += capfd.readouterr().err
            time.sleep(0.05)
        assert screen == "pydp2: late: " + text + "\n"
        (late,) = [event for event in service.stats()["events"] if event["event"] == "rank_late"]
        assert (late["text"], late["about"]) == (text, {"job": "default", "rank": "1"})
        with service.connect(rank=1, world_size=2, **OPTIONS) as other:
            assert [numbered(batch) for batch in other] == alone[1::2]
            out, _ = child.communicate(timeout=30)
    finally:
        child.kill()
        child.communicate()
        service.close()
    assert json.loads(out) == [*range(0, len(alone), 2)]


BUCKETS = sequences(90, "1 + (i * 7 + int(filename)) % 40", "pool_size=400", first="1000 * int(filename)")


def test_all_ranks_get_batches_of_the_same_bucket_in_the_same_step(provider_file: Callable[[str], str]) -> None:
    with ExitStack() as stack:
        service = stack.enter_context(pydp2.launch(FILES, provider_file(BUCKETS), workers=2))
        clients = ranks(service, stack, 3, bucket_by=0, bucket_bounds=[8, 16, 32])
        streams = [iter(client) for client in clients]
        steps = []
        while len(step := [batch for stream in streams if (batch := next(stream, None)) is not None]) == 3:
            steps.append(step)
        full = [step for step in steps if all(len(batch) == 16 for batch in step)]
        assert len(full) > len(steps) / 2
        alike = [step for step in full if len({batch.bucket for batch in step}) == 1]
        assert {batch.bucket for step in alike for batch in step} == {8, 16, 32, None}
        assert len(alike) >= len(full) - 4, "but for the last of each bucket"
        assert all(batch[0].pad()[1].max() <= (batch.bucket or 40) for step in full for batch in step)
