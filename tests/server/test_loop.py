"""The server's loop, with workers whose messages and ends come in an order that real ones show once in a while."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.replay import SimulatedEngine, simulated_spec
from pydp2 import integer_value, provider
from pydp2.errors import RemoteProtocolError
from pydp2.host.engine.base import Exited
from pydp2.host.watchdog import WorkerConnection
from pydp2.options.file_list import FileList
from pydp2.protocol import messages as m
from pydp2.server import loop
from pydp2.server.loop import Server
from pydp2.transport.in_process import InProcessHub, InProcessLine

WORKERS = 2


@pytest.fixture
def workers() -> SimulatedEngine:
    return SimulatedEngine(WORKERS)


@pytest.fixture
def hub() -> InProcessHub:
    return InProcessHub()


@pytest.fixture
def server(workers: SimulatedEngine, hub: InProcessHub, tmp_path: Path) -> Iterator[Server]:
    engine: Any = workers
    hubs: Any = (hub, InProcessHub())
    with ExitStack() as stack:
        stack.callback(hub.close)
        stack.callback(hubs[1].close)
        ends = [end for _ in range(2) for end in os.pipe()]
        for end in ends:
            stack.callback(os.close, end)
        running = Server(simulated_spec(WORKERS, tmp_path), FileList.of(["a"]), engine, *hubs, ends[0], ends[2])
        stack.callback(running.close, "the test is over", None, asked=True)
        running.workers.start()
        yield running


def rounds(server: Server) -> None:
    while server._round(0.0):
        pass


def hello_comes(server: Server, hub: InProcessHub, worker: int) -> None:
    line = InProcessLine(hub)
    line.send([m.encode(m.Hello(m.WIRE_VERSION, worker, os.getpid()))])
    rounds(server)
    line.close()


def test_the_first_message_of_a_worker_that_was_killed_as_it_began_may_come_behind_its_exit(
    server: Server, workers: SimulatedEngine, hub: InProcessHub, capfd: pytest.CaptureFixture[str]
) -> None:
    rounds(server)
    first, *_ = workers.started
    server.pool.schema = {}  # another one is ready
    workers.tell(Exited(first, os.getpid(), signal.SIGKILL))
    rounds(server)
    hello_comes(server, hub, first)
    assert capfd.readouterr().err == ""
    assert first not in server.workers._local.connections
    assert server.workers._local._number_of == {}


def test_a_process_that_says_it_is_a_worker_that_nobody_started_breaks_the_protocol(
    server: Server, workers: SimulatedEngine, hub: InProcessHub, capfd: pytest.CaptureFixture[str]
) -> None:
    rounds(server)
    hello_comes(server, hub, max(workers.started) + 1)
    assert "which was not started" in capfd.readouterr().err


def test_a_declaration_of_a_host_that_is_none_is_refused_when_it_comes_not_when_the_service_has_its_own(
    server: Server,
) -> None:
    connection = WorkerConnection(host=1)
    with pytest.raises(RemoteProtocolError):
        server.workers._declared(9, connection, m.Declared({"no": "schema"}, "", []))
    assert server.workers._early == []


@pytest.mark.parametrize("fingerprint", ["code,more", ",", "code,"])
def test_a_declaration_needs_one_fingerprint_for_each_source(server: Server, fingerprint: str) -> None:
    declared = provider(input_types=[integer_value(9)])(lambda settings, filename: iter(())).start().schema
    with pytest.raises(RemoteProtocolError, match="one fingerprint for each source is needed"):
        server.workers._declared(9, WorkerConnection(), m.Declared(declared.to_wire(), fingerprint, []))


def do_chores(server: Server) -> None:
    """Do a round in which they are due."""
    server._chores_at = 0.0
    rounds(server)


def busy(seconds: float) -> None:
    """Use so much processor time."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_memory_that_is_free_goes_back_to_the_system_once_in_a_while(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[float] = []
    monkeypatch.setattr(loop, "release_free_heap", lambda: calls.append(time.monotonic()))
    server._release_at = time.monotonic() + 600.0
    do_chores(server)
    assert calls == []
    server._release_at = 0.0
    do_chores(server)
    do_chores(server)
    assert len(calls) == 1


def test_where_it_takes_long_to_give_memory_back_the_server_does_so_less_often(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for milliseconds, least in ((20, 15.0), (100, 55.0)):
        monkeypatch.setattr(loop, "release_free_heap", partial(busy, milliseconds / 1000))
        server._release_at = 0.0
        do_chores(server)
        assert least < server._release_at - time.monotonic() <= 60.0
