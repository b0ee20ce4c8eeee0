"""What workers say is taken in order, from the processes that the engine started and from no others."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pydp2.errors import RemoteProtocolError
from pydp2.host.watchdog import WorkerConnection
from pydp2.host.worker_inbox import WorkerInbox
from pydp2.protocol import messages as m
from pydp2.protocol.link_states import LinkRole, worker_link
from pydp2.transport.in_process import InProcessHub, InProcessLine

WORKER, PID = 3, 4711
HELLO, DECLARED = m.Hello(m.WIRE_VERSION, WORKER, PID), m.Declared({}, "", [])
CHUNK = m.Chunk(0, [], [], 0, 0)


class Side:
    """An inbox, and what comes out of it."""

    def __init__(self) -> None:
        self.hub = InProcessHub()
        self.connections: dict[int, WorkerConnection] = {}
        self.taken: list[tuple[int, m.Message]] = []
        self.killed: list[int] = []
        self.log: list[str] = []
        hub: Any = self.hub
        engine: Any = SimpleNamespace(kill=self.killed.append)
        self.inbox = WorkerInbox(hub, engine, self.connections, self._handle, self._may_begin, self._write)

    def _handle(self, worker: int, connection: WorkerConnection, frames: list[memoryview], now: float) -> None:
        message, _ = m.decode(frames)
        connection.link.check_received(message)
        self.taken.append((worker, message))

    def _may_begin(self, worker: int) -> bool:
        if worker not in (WORKER, 4):
            raise RemoteProtocolError("it was not started")
        return worker == WORKER

    def _write(self, text: str, kind: str) -> None:
        self.log.append(text)

    def start(self) -> None:
        """The engine tells that the worker is a process."""
        self.connections.setdefault(WORKER, WorkerConnection(b"", worker_link(LinkRole.SERVER))).pid = PID
        self.inbox.started(WORKER, PID, 0.0)

    def say(self, *messages: m.Message) -> InProcessLine:
        line = InProcessLine(self.hub)
        for message in messages:
            line.send([m.encode(message)])
        return line


@pytest.fixture
def side() -> Iterator[Side]:
    made = Side()
    yield made
    made.hub.close()


def test_what_a_worker_says_is_taken_in_order(side: Side) -> None:
    side.start()
    side.say(HELLO, DECLARED, CHUNK).close()
    assert not side.inbox.receive(0.0)
    assert side.taken == [(WORKER, HELLO), (WORKER, DECLARED), (WORKER, CHUNK)]
    assert side.log == side.killed == []


@pytest.mark.parametrize("known", [False, True], ids=["before there is a connection", "before it has a process"])
def test_what_it_said_before_the_engine_told_of_it_comes_then(known: bool, side: Side) -> None:
    if known:
        side.connections[WORKER] = WorkerConnection(b"", worker_link(LinkRole.SERVER))
    side.say(HELLO, DECLARED).close()
    side.inbox.receive(0.0)
    assert side.taken == []
    side.start()
    assert side.taken == [(WORKER, HELLO), (WORKER, DECLARED)]


def test_another_process_is_not_believed(side: Side) -> None:
    side.start()
    side.say(m.Hello(m.WIRE_VERSION, WORKER, PID + 1)).close()
    side.inbox.receive(0.0)
    assert side.log == [
        f"worker None broke the protocol: Hello from worker {WORKER} in process {PID + 1}, it is in {PID}"
    ]
    assert side.taken == side.killed == []


def test_a_second_connection_of_a_worker_takes_nothing_from_the_first(side: Side) -> None:
    side.start()
    first = side.say(HELLO)
    side.inbox.receive(0.0)
    second = side.say(HELLO, DECLARED)
    side.inbox.receive(0.0)
    assert len(side.log) == 1
    assert side.killed == []
    first.send([m.encode(DECLARED)])
    side.inbox.receive(0.0)
    assert side.taken == [(WORKER, HELLO), (WORKER, DECLARED)]
    first.close()
    second.close()


def test_a_worker_that_has_ended_is_heard_no_more_and_one_that_nobody_started_breaks_the_protocol(side: Side) -> None:
    side.say(m.Hello(m.WIRE_VERSION, 4, PID)).close()
    side.inbox.receive(0.0)
    assert side.log == []
    side.say(m.Hello(m.WIRE_VERSION, 5, PID)).close()
    side.inbox.receive(0.0)
    assert side.log == ["worker None broke the protocol: it was not started"]
    side.inbox.started(4, PID, 0.0)
    assert side.taken == []


@pytest.mark.parametrize("early", [False, True])
def test_a_worker_that_breaks_the_protocol_is_killed(early: bool, side: Side) -> None:
    if not early:
        side.start()
    side.say(HELLO, CHUNK).close()
    side.inbox.receive(0.0)
    if early:
        side.start()
    assert side.killed == [WORKER]
    assert side.connections[WORKER].kill_reason.startswith("broke the protocol: ")
    assert f"worker {WORKER} broke the protocol" in side.log[0]


def test_after_its_end_nothing_of_a_worker_is_taken(side: Side) -> None:
    side.start()
    line = side.say(HELLO)
    side.inbox.receive(0.0)
    side.inbox.forget(side.connections.pop(WORKER))
    line.send([m.encode(DECLARED)])
    line.send([m.encode(CHUNK), bytes(100)])
    side.inbox.receive(0.0)
    assert side.taken == [(WORKER, HELLO)]
    assert side.log == []
    line.close()


def test_at_most_so_many_messages_are_taken_at_a_time_and_all_of_them_if_no_number_is_given(side: Side) -> None:
    side.start()
    side.say(HELLO, DECLARED, *[CHUNK] * 998).close()
    assert side.inbox.receive(0.0, 256)
    assert len(side.taken) == 256
    assert not side.inbox.receive(0.0)
    assert len(side.taken) == 1000
