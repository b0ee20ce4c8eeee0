"""What a loop over a client begins with: after a whole pass, a break, an interrupt, an error; and states of batches."""

from __future__ import annotations

import json
import os
import queue
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import pydp2
from pydp2.errors import BadSample, ClientUseError, ServiceLost, StateMismatch
from tests.provider_code import numbers
from tests.runs import NUMBERS, Program, numbered, wait_until
from tests.runs import NUMBERS_OPTIONS as OPTIONS

FILES = [str(n) for n in range(12)]
CACHED = NUMBERS.replace("pool_size=200", "pool_size=200, cache=CacheType.CACHE_PASS_IN_MEM")
WEIGHTED = NUMBERS.replace("pool_size=200", "pool_size=200, calc_batch_size=lambda s: s[0] % 3")
Seen = tuple[int, int, list[int]]


def sign(batch: pydp2.Batch) -> Seen:
    return (batch.pass_id, *numbered(batch))


@pytest.fixture
def service(provider_file: Callable[[str], str]) -> Iterator[pydp2.Service]:
    with pydp2.launch(FILES, provider_file(NUMBERS), workers=2) as service:
        yield service


@pytest.fixture
def uninterrupted(service: pydp2.Service) -> list[list[Seen]]:
    """Two passes as one trainer sees them."""
    with service.connect(**OPTIONS) as data:
        return [[sign(batch) for batch in data] for _ in range(2)]


# -- after the last batch ----------------------------------------------------------------------------------------------
KINDS = {"plain": NUMBERS, "cached": CACHED, "weighted": WEIGHTED}
EACH_ONCE = {("plain", "pad"), ("cached", "drop"), ("weighted", "keep")}


@pytest.mark.parametrize(
    ("kind", "last_batch"),
    [
        pytest.param(kind, last_batch, marks=() if (kind, last_batch) in EACH_ONCE else pytest.mark.slow)
        for kind in KINDS
        for last_batch in ("keep", "drop", "pad")
    ],
)
def test_after_as_many_batches_as_a_pass_has_the_next_loop_is_the_next_pass(
    kind: str, last_batch: str, provider_file: Callable[[str], str]
) -> None:
    """Its end need not have been pulled; until another loop begins the state is that behind the last batch."""
    code = KINDS[kind]
    with pydp2.load(FILES, provider_file(code), workers=2, last_batch=last_batch, **OPTIONS) as data:
        expected = [[sign(batch) for batch in data] for _ in range(3)]
    with pydp2.load(FILES, provider_file(code), workers=2, last_batch=last_batch, **OPTIONS) as data:
        held = []
        for pass_id, batches in enumerate(expected):
            held.append(iter(data))
            assert [sign(next(held[-1])) for _ in batches] == batches
            state = data.state_dict()
            assert (state["pass"], state["batch"]) == (pass_id, len(batches))
            if pass_id:
                assert list(held[-2]) == []
        assert list(held[-1]) == []


def test_in_the_middle_of_a_pass_it_is_refused_however_many_batches_the_last_one_had(
    provider_file: Callable[[str], str],
) -> None:
    """The count of an earlier pass would be a guess: here the second pass has more batches than the first."""
    code = numbers("30 * (settings.pass_id + 1)", "should_shuffle=False")
    with pydp2.load(["a"], provider_file(code), workers=1, batch_size=10) as data:
        assert len(list(data)) == len(data) == 3
        one = iter(data)
        for _ in range(3):
            next(one)
        with pytest.raises(ClientUseError, match="in the middle of a pass"):
            iter(data)
        assert [batch.index for batch in one] == [3, 4, 5]
        assert len(data) == 6


def test_a_pass_that_was_taken_up_ends_like_others(service: pydp2.Service, uninterrupted: list[list[Seen]]) -> None:
    with service.connect(**OPTIONS) as data:
        one = iter(data)
        for _ in range(5):
            next(one)
        state = data.state_dict()
        data.load_state_dict(state)
        one = iter(data)
        assert [sign(next(one)) for _ in uninterrupted[0][5:]] == uninterrupted[0][5:]
        inside = data.state_dict()
        assert [sign(batch) for batch in data] == uninterrupted[1]
        data.load_state_dict(inside)
        assert [sign(batch) for batch in data] == []
        assert [sign(batch) for batch in data] == uninterrupted[1]


@pytest.mark.parametrize("share", ["ranks", "dynamic"])
def test_each_of_several_trainers_has_its_own_end(service: pydp2.Service, share: str) -> None:
    """They take what is theirs, and begin the next pass without having pulled the end of this one."""
    seen: list[list[Seen]] = [[], []]
    errors: list[BaseException] = []
    with service.connect(**OPTIONS) as data:
        expected = [sign(batch) for _ in range(3) for batch in data]
    counts = [sum(1 for one in expected if one[0] == 0 and one[1] % 2 == rank) for rank in range(2)]

    def train(rank: int) -> None:
        place = {"rank": rank, "world_size": 2} if share == "ranks" else {"share": "dynamic"}
        try:
            with service.connect(**OPTIONS, **place) as data:
                for _ in range(3):
                    one = iter(data)
                    for _ in range(counts[rank] if share == "ranks" else 10_000):
                        batch = next(one, None)
                        if batch is None:
                            break
                        seen[rank].append(sign(batch))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert sorted(seen[0] + seen[1]) == sorted(expected)


def test_an_error_behind_the_last_batch_is_raised_by_the_next_loop(provider_file: Callable[[str], str]) -> None:
    code = numbers(31, "should_shuffle=False", before="if i == 30: yield 'no number'")
    with pydp2.load(["a"], provider_file(code), workers=1, batch_size=10) as data:
        one = iter(data)
        assert [next(one).index for _ in range(3)] == [0, 1, 2]
        with pytest.raises(BadSample):
            iter(data)
        assert next(iter(data)).pass_id == 1


# -- after an interrupt ------------------------------------------------------------------------------------------------
SLOW = """
import os, sys, threading, time
import pydp2
from pydp2 import *

@provider(input_types=[integer_value(1000)], should_shuffle=False)
def process(settings, filename):
    for i in range(50):
        while i == 20 and not os.path.exists("go"):
            time.sleep(0.01)
        yield i

if __name__ == "__main__":
    kept = []  # as IPython keeps the last exception: with its traceback, and all that hangs on that
    with pydp2.load(["a"], process, batch_size=10, workers=1, prefetch=1) as data:
        def loop(said):
            for batch in data:
                said.append((batch.pass_id, batch.index))
                print("got", batch.index, flush=True)
        first, second = [], []
        def tell():
            while not (len(first) == 2 and data._session.progress.is_in_call):
                time.sleep(0.005)
            time.sleep(0.05)
            print("waits", flush=True)
        threading.Thread(target=tell, daemon=True).start()
        try:
            loop(first)
        except KeyboardInterrupt as error:
            if sys.argv[1] == "kept":
                kept.append(error)
                sys.last_value, sys.last_traceback = error, error.__traceback__
        open("go", "w").close()
        state = data.state_dict()
        loop(second)
        print("result", first, (state["pass"], state["batch"]), second, flush=True)
        print("then", [(batch.pass_id, batch.index) for batch in data], flush=True)
"""


@pytest.mark.parametrize("how", ["kept", "dropped"])
def test_after_ctrl_c_in_a_wait_the_next_loop_goes_on_behind_the_last_batch(
    how: str, program: Callable[..., Program]
) -> None:
    running = program(SLOW, how)
    running.said("waits")
    running.signal(signal.SIGINT)
    assert running.said("result") == "result [(0, 0), (0, 1)] (0, 2) [(0, 2), (0, 3), (0, 4)]"
    assert running.said("then") == f"then {[(1, index) for index in range(5)]}"
    assert running.ended(20) == 0


def interrupt(data: pydp2.Client, one: Any, go: Path) -> KeyboardInterrupt:
    """What comes out of next(one) when a signal comes while it waits for the third batch, which is held back until
    then."""
    assert [next(one).index for _ in range(2)] == [0, 1]
    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)

    def send() -> None:
        if wait_until(lambda: data._session.progress.is_in_call):
            time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGUSR1)

    sender = threading.Thread(target=send)
    try:
        sender.start()
        next(one)
    except KeyboardInterrupt as error:
        return error
    finally:
        sender.join()
        signal.signal(signal.SIGUSR1, before)
        go.touch()
    raise AssertionError("it was not interrupted")


WAITS = numbers(40, "should_shuffle=False", before="while i == 20 and not os.path.exists(filename): time.sleep(0.01)")


def test_after_an_interrupt_the_same_iterator_goes_on(
    provider_file: Callable[[str], str],
    tmp_path: Path,
) -> None:
    with pydp2.load([str(tmp_path / "go")], provider_file(WAITS), workers=1, batch_size=10, prefetch=1) as data:
        one = iter(data)
        error = interrupt(data, one, tmp_path / "go")
        assert next(one).index == 2
        with pytest.raises(ClientUseError, match="in the middle of a pass"):  # it has returned since
            iter(data)
        assert [batch.index for batch in one] == [3]
        del error


def test_after_an_interrupt_a_new_loop_takes_the_pass_of_the_old_one(
    provider_file: Callable[[str], str], tmp_path: Path
) -> None:
    with pydp2.load([str(tmp_path / "go")], provider_file(WAITS), workers=1, batch_size=10, prefetch=1) as data:
        one = iter(data)
        error = interrupt(data, one, tmp_path / "go")
        other = iter(data)
        with pytest.raises(ClientUseError, match="a newer loop over this client has taken over its pass"):
            next(one)
        assert [batch.index for batch in other] == [2, 3]
        assert [batch.pass_id for batch in data] == [1] * 4
        del error


def test_an_iterator_that_is_closed_after_an_interrupt_has_left_its_pass(
    provider_file: Callable[[str], str], tmp_path: Path
) -> None:
    with pydp2.load([str(tmp_path / "go")], provider_file(WAITS), workers=1, batch_size=10, prefetch=1) as data:
        one = iter(data)
        error = interrupt(data, one, tmp_path / "go")
        one.close()  # type: ignore[attr-defined]
        assert {batch.pass_id for batch in data} == {1}
        del error


# -- after an error ----------------------------------------------------------------------------------------------------
def test_after_an_error_of_the_data_the_next_pass_begins(provider_file: Callable[[str], str]) -> None:
    code = numbers(40, "should_shuffle=False", before="if i == 20 and settings.pass_id == 0: yield 'no number'")
    with pydp2.load(["a"], provider_file(code), workers=1, batch_size=10) as data:
        with pytest.raises(BadSample):
            list(data)
        assert [(batch.pass_id, batch.index) for batch in data] == [(1, 0), (1, 1), (1, 2), (1, 3)]


def test_an_error_that_waits_while_the_lease_ends_is_not_lost(provider_file: Callable[[str], str]) -> None:
    """The trainer asks anew then, and the service knows that there was an error."""
    code = numbers(11, "should_shuffle=False", before="if i == 10: yield 'no number'")
    with pydp2.load(["a"], provider_file(code), workers=1, batch_size=10, lease=0.5) as data:
        one = iter(data)
        next(one)
        assert data.stats()["batches"] == 1
        waits = data._connection  # the error is asked for, and then lies here unread
        data._ask(time.monotonic(), waits=True)
        assert waits._line.wait(10_000)
        time.sleep(1.0)  # longer than the lease
        with pytest.raises(BadSample):
            next(one)


def test_after_the_service_is_lost_the_state_stays_behind_the_last_batch(service: pydp2.Service) -> None:
    with service.connect(**OPTIONS) as data:
        one = iter(data)
        for _ in range(3):
            next(one)
        os.kill(service.pid, signal.SIGKILL)
        with pytest.raises(ServiceLost):
            list(one)
        state = data.state_dict()
        for _ in range(2):
            with pytest.raises(ServiceLost):
                list(data)
            assert data.state_dict() == state
        assert state["pass"] == 0


# -- states of batches -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("code", [NUMBERS, CACHED, WEIGHTED], ids=["plain", "cached", "weighted"])
def test_a_state_behind_any_batch_goes_on_behind_it_however_many_were_taken_since(
    code: str, provider_file: Callable[[str], str]
) -> None:
    dice = random.Random(code)
    with pydp2.load(FILES, provider_file(code), workers=2, **OPTIONS) as data:
        for pass_id in range(2):
            batches, states = [], []
            for batch in data:
                batches.append(batch)
                states.append(data.state_dict())
                k = dice.randrange(len(batches))
                assert data.state_dict(after=batches[k]) == states[k]
            assert data.state_dict()["pass"] == pass_id + 1
            assert [data.state_dict(after=batch) for batch in batches] == states, "the pass is over, they are held"
        seen = [sign(batch) for batch in batches]
        chosen = [0, len(batches) - 1, *dice.sample(range(len(batches)), 5)]
        saved = {k: json.dumps(data.state_dict(after=batches[k])) for k in chosen}
    with pydp2.load(FILES, provider_file(code), workers=1, **OPTIONS) as data:
        for k, state in saved.items():
            data.load_state_dict(json.loads(state))
            assert [sign(batch) for batch in data] == seen[k + 1 :]


def test_ranks_have_the_same_state_behind_batches_of_the_same_step(
    service: pydp2.Service, uninterrupted: list[list[Seen]]
) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(service.connect(rank=r, world_size=2, **OPTIONS)) for r in range(2)]
        streams = [iter(client) for client in clients]
        taken = [[next(stream) for stream in streams] for _ in range(8)]
        next(streams[0])
        states = [json.dumps(clients[r].state_dict(after=taken[3][r])) for r in range(2)]
    assert states[0] == states[1]
    with service.connect(**OPTIONS) as data:
        data.load_state_dict(json.loads(states[0]))
        assert [sign(batch) for batch in data] == uninterrupted[0][8:]


def test_dynamic_a_state_behind_a_batch_lacks_what_was_taken_later(
    service: pydp2.Service, uninterrupted: list[list[Seen]]
) -> None:
    with ExitStack() as stack:
        one, other = (stack.enter_context(service.connect(share="dynamic", prefetch=1, **OPTIONS)) for _ in range(2))
        streams = iter(one), iter(other)
        mine = [next(streams[0]) for _ in range(2)]
        theirs = [next(streams[1]).index for _ in range(4)]
        mine += [next(streams[0]) for _ in range(5)]
        for k in range(7):
            state = one.state_dict(after=mine[k])
            used = {*range(state["batch"]), *state["acknowledged_ahead"]}
            assert used >= {batch.index for batch in mine[: k + 1]}
            assert not used & {batch.index for batch in mine[k + 1 :]}
            assert used <= {batch.index for batch in mine[: k + 1]} | {*theirs}
    with service.connect(share="dynamic", **OPTIONS) as data:
        data.load_state_dict(state)
        assert [sign(batch) for batch in data] == [seen for seen in uninterrupted[0] if seen[1] not in used]


def test_a_batch_that_is_none_of_the_present_pass_has_no_state(service: pydp2.Service) -> None:
    with service.connect(**OPTIONS) as data, service.connect(job="other", **OPTIONS) as other:
        old = list(data)[3]
        assert data.state_dict(after=old)["batch"] == 4
        foreign = next(iter(other))
        one = iter(data)
        new = next(one)
        for wrong in (old, foreign):
            with pytest.raises(ClientUseError, match="is not of the present pass of this client, which is at pass 1"):
                data.state_dict(after=wrong)
        import copy

        with pytest.raises(ClientUseError, match="after must be a batch that this client delivered, not a copy"):
            data.state_dict(after=copy.copy(new))
        data.load_state_dict(data.state_dict(after=new))
        with pytest.raises(ClientUseError, match="not of the present pass"):
            data.state_dict(after=new)


def test_relaxed_order_has_no_state_behind_a_batch(service: pydp2.Service) -> None:
    with service.connect(order="relaxed", **OPTIONS) as data:
        for batch in data:
            with pytest.raises(StateMismatch, match="between passes"):
                data.state_dict(after=batch)


def test_a_prefetching_trainer_that_is_stopped_anywhere_goes_on_with_the_next_batch(
    service: pydp2.Service, uninterrupted: list[list[Seen]]
) -> None:
    """A thread takes batches ahead of the loop that trains on them."""
    stop = 9
    with service.connect(**OPTIONS) as data:
        ready: queue.Queue[pydp2.Batch | None] = queue.Queue(4)
        ended = threading.Event()

        def prefetch() -> None:
            for batch in data:
                while not ended.is_set():
                    try:
                        ready.put(batch, timeout=0.05)
                        break
                    except queue.Full:
                        continue
                if ended.is_set():
                    return
            ready.put(None)

        thread = threading.Thread(target=prefetch)
        thread.start()
        trained = []
        while len(trained) < stop:
            batch = ready.get()
            assert batch is not None
            trained.append(sign(batch))
        assert wait_until(lambda: not ready.empty()), "another was taken"
        state = data.state_dict(after=batch)
        ended.set()
        thread.join()
        assert data.state_dict()["batch"] > stop
        data.load_state_dict(state)
        assert trained + [sign(batch) for batch in data] == uninterrupted[0]
