"""Threads that share a client: one after the other, never two at once; any of them may close it."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import pydp2
from pydp2.client import connection
from pydp2.errors import ClientUseError
from tests.provider_code import numbers
from tests.runs import Program, processes, wait_until

CODE = numbers(400, "should_shuffle=False", before="if i == 200 and filename == 'slow': time.sleep(30)")


@pytest.fixture
def connect(provider_file: Callable[[str], str]) -> Iterator[Callable[..., pydp2.Client]]:
    """``connect(file)`` is a client of a service over one file."""
    services: list[pydp2.Service] = []

    def make(file: str = "quick", **options: Any) -> pydp2.Client:
        services.append(pydp2.launch([file], provider_file(CODE), workers=1))
        return services[-1].connect(batch_size=10, **options)

    yield make
    for service in services:
        service.close()


class Caller:
    """A thread that calls ``what()``; its result, or the error that came out."""

    def __init__(self, what: Callable[[], Any]) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self._what = what
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = self._what()
        except BaseException as error:
            self.error = error

    def join(self) -> Any:
        self._thread.join(30)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error
        return self.result


def waiting(data: pydp2.Client) -> Any:
    """An iterator that waits in a thread, behind the last batch that there is for now."""
    one = iter(data)
    for _ in range(20):
        next(one)
    caller = Caller(lambda: next(one))
    assert wait_until(lambda: bool(data._session.current_call))
    time.sleep(0.05)
    return caller


def test_an_iterator_may_be_handed_from_thread_to_thread(connect: Callable[..., pydp2.Client]) -> None:
    with connect() as data:
        one = iter(data)
        got = [next(one).index]
        for _ in range(10):
            got.append(Caller(lambda: next(one).index).join())
            got.append(next(one).index)
        got += Caller(lambda: [batch.index for batch in one]).join()
        assert got == [*range(40)]
        assert Caller(lambda: sum(1 for _ in data)).join() == 40


def test_threads_with_a_lock_around_next_share_a_pass(connect: Callable[..., pydp2.Client]) -> None:
    with connect() as data:
        one, lock, got = iter(data), threading.Lock(), []

        def take() -> None:
            while True:
                with lock:
                    batch = next(one, None)
                    if batch is None:
                        return
                    got.append(batch.index)

        callers = [Caller(take) for _ in range(4)]
        for caller in callers:
            caller.join()
        assert got == [*range(40)]


def test_a_second_thread_inside_is_refused_and_the_first_undisturbed(connect: Callable[..., pydp2.Client]) -> None:
    data = connect("slow")
    caller = waiting(data)
    state = data.state_dict()
    for use in (lambda: next(iter(data)), lambda: iter(data), lambda: data.load_state_dict(state)):
        with pytest.raises(ClientUseError, match="another thread is inside this client"):
            use()
    assert data.state_dict() == state
    data.close()
    with pytest.raises(ClientUseError, match="closed"):
        caller.join()


def test_threads_that_all_call_next_at_once_get_each_batch_once_or_are_refused(
    connect: Callable[..., pydp2.Client],
) -> None:
    with connect() as data:
        one = iter(data)
        got: list[int] = []
        refused: list[str] = []

        def take() -> None:
            while True:
                try:
                    batch = next(one, None)
                except ClientUseError as error:
                    refused.append(str(error))
                    continue
                if batch is None:
                    return
                got.append(batch.index)

        callers = [Caller(take) for _ in range(4)]
        for caller in callers:
            caller.join()
        assert sorted(got) == [*range(40)]
        assert all(text.startswith("another thread is inside this client") for text in refused)


def test_close_ends_the_wait_of_another_thread_at_once(
    connect: Callable[..., pydp2.Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_POLL_SECONDS", 100.0)
    data = connect("slow")
    caller = waiting(data)
    began = time.monotonic()
    data.close()
    with pytest.raises(ClientUseError, match=r"this client is closed; connect\(\) again for more passes"):
        caller.join()
    assert time.monotonic() - began < 25.0
    with pytest.raises(ClientUseError, match="closed"):
        iter(data)
    data.close()


def test_several_threads_may_close_at_once(connect: Callable[..., pydp2.Client]) -> None:
    data = connect("slow")
    caller = waiting(data)
    for closer in [Caller(data.close) for _ in range(4)]:
        closer.join()
    with pytest.raises(ClientUseError, match="closed"):
        caller.join()


def test_close_while_batches_are_taken_gives_batches_and_then_one_clear_error(
    connect: Callable[..., pydp2.Client],
) -> None:
    data = connect()
    got: list[int] = []

    def take() -> None:
        while True:
            for batch in data:
                got.append(batch.index)

    caller = Caller(take)
    assert wait_until(lambda: len(got) > 10)
    data.close()
    with pytest.raises(ClientUseError, match="closed"):
        caller.join()
    assert got == [n % 40 for n in range(len(got))]


def test_the_service_of_load_has_ended_when_close_returns(provider_file: Callable[[str], str]) -> None:
    data = pydp2.load(["slow"], provider_file(CODE), batch_size=10, workers=1)
    caller = waiting(data)
    data.close()
    assert processes("pydp2-") == []
    with pytest.raises(ClientUseError, match="closed"):
        caller.join()


def test_a_signal_handler_may_close_what_waits(connect: Callable[..., pydp2.Client]) -> None:
    data = connect("slow")
    one = iter(data)
    for _ in range(20):
        next(one)
    before = signal.signal(signal.SIGUSR1, lambda *_: data.close())

    def send() -> None:
        assert wait_until(lambda: bool(data._session.current_call))
        time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGUSR1)

    sender = Caller(send)
    try:
        with pytest.raises(ClientUseError, match="closed"):
            next(one)
    finally:
        sender.join()
        signal.signal(signal.SIGUSR1, before)
    assert not data._end.alive


def test_an_iterator_that_is_dropped_in_another_thread_disturbs_nobody(connect: Callable[..., pydp2.Client]) -> None:
    with connect() as data:
        for _ in range(10):
            held = [iter(data)]
            next(held[0])
            Caller(held.clear).join()
        got, stop = [], threading.Event()
        gc.freeze()  # a collection looks at what is made from here on, and is quick

        def collect() -> None:
            while not stop.is_set():
                gc.collect()

        collector = Caller(collect)
        for _ in range(5):
            loop: list[Any] = [iter(data)]
            loop.append(loop)  # only the collector drops it
            next(loop[0])
            loop[0].close()
            del loop
            got += [batch.index for batch in data]
        stop.set()
        collector.join()
        gc.unfreeze()
        assert got == [*range(40)] * 5


ENDS = """
import threading, time
import pydp2

if __name__ == "__main__":
    data = pydp2.load(["slow"], "prov.process", batch_size=10, workers=1)
    seen = []
    def prefetch():
        for batch in data:
            seen.append(batch.index)
    threading.Thread(target=prefetch, daemon=True).start()
    while len(seen) < 20:
        time.sleep(0.01)
    time.sleep(0.1)
    print("ends", len(seen), flush=True)
"""


def test_a_program_may_end_while_a_daemon_thread_waits(
    program: Callable[..., Program], provider_file: Callable[[str], str]
) -> None:
    provider_file(CODE)
    running = program(ENDS)
    assert running.said("ends") == "ends 20"
    assert running.ended(30) == 0
    assert "ZMQ" not in running.screen
    assert processes("pydp2-") == []


FORKS = """
import os, threading, time
import pydp2
from pydp2.errors import ClientUseError

if __name__ == "__main__":
    data = pydp2.load(["quick"], "prov.process", batch_size=10, workers=1)
    seen = []
    def take():
        for batch in data:
            seen.append(batch.index)
            time.sleep(0.002)
    thread = threading.Thread(target=take)
    thread.start()
    while len(seen) < 5:
        time.sleep(0.001)
    pid = os.fork()  # while another thread is inside
    if pid == 0:
        status = 1
        try:
            iter(data)
        except ClientUseError as error:
            status = 0 if "before a fork" in str(error) else 2
        data.close()
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    thread.join()
    print("seen", seen == [*range(40)], flush=True)
    data.close()
"""


def test_a_fork_while_a_thread_is_inside_changes_nothing_for_the_parent(
    program: Callable[..., Program], provider_file: Callable[[str], str]
) -> None:
    provider_file(CODE)
    running = program(FORKS)
    assert running.said("seen") == "seen True"
    assert running.ended(30) == 0
