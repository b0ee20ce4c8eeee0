"""What processes do and send reaches their owner in order, from those that were started and from no others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pydp2.errors import ServiceLost
from pydp2.host.engine import EngineLost, EngineNote, Exited, Started
from pydp2.host.local_workers import EarlyHellos, LocalWorkers
from pydp2.host.watchdog import WorkerConnection
from pydp2.options.file_list import FileList
from pydp2.options.service_spec import SourceTerms, WorkerTerms
from pydp2.options.timing import Timing
from pydp2.protocol import messages as m
from pydp2.protocol.worker_status import ATTEMPT, FIELD_COUNT, FILE, NO_FILE, RUNNING, SAMPLE_INDEX
from pydp2.transport.in_process import InProcessHub, InProcessLine

WORKER, PID, ROW = 3, 4711, 1
HELLO, DECLARED, BROKEN = m.Hello(m.WIRE_VERSION, WORKER, PID), m.Declared({}, "", []), m.Broken({})
CHUNK = m.Chunk(0, [], [], 0, 0)
ENGINE = 99
TERMS = WorkerTerms(
    sources=(SourceTerms(provider="p.process", args=b"", is_train=True),), input_order=(), start="auto",
    worker_memory=None,
    sample_timeout=None, warn_changed=False, skip_errors=False, timing=Timing(tick=0.5, worker_last_words=2.0),
)  # fmt: skip
MOST = 256


class Engine:
    """Engine whose events a test makes."""

    def __init__(self) -> None:
        self.out_of_descriptors = False
        self.happened: list[Any] = []
        self.started: list[tuple[int, int]] = []
        self.killed: list[int] = []
        self.is_lost = False
        self.page = memoryview(bytearray(2 * FIELD_COUNT * 8)).cast("q")
        self.page[FILE] = self.page[FIELD_COUNT + FILE] = NO_FILE

    def start(self, worker: int, status_row: int) -> None:
        self.started.append((worker, status_row))

    def kill(self, worker: int) -> None:
        self.killed.append(worker)

    def is_stopped(self, worker: int) -> bool:
        return False

    def row(self, status_row: int) -> memoryview:
        return self.page[status_row * FIELD_COUNT : (status_row + 1) * FIELD_COUNT]

    def events(self) -> list[Any]:
        if self.is_lost:
            raise EngineLost("it is gone")
        out, self.happened = self.happened, []
        return out

    def fileno(self) -> int:
        return ENGINE


class Poll:
    """Handles that wake a loop."""

    def __init__(self) -> None:
        self.watched: set[Any] = set()

    def add(self, handle: Any) -> None:
        self.watched.add(handle)

    def remove(self, handle: Any) -> None:
        self.watched.remove(handle)


class Side:
    """Workers, and their owner."""

    def __init__(self) -> None:
        self.hub, self.engine, self.poll = InProcessHub(), Engine(), Poll()
        self.taken: list[Any] = []
        self.log: list[str] = []
        ends: Any = (self.engine, self.hub, self.poll)
        self.workers = LocalWorkers(
            TERMS, FileList.of(["a", "b"]), *ends, lambda text, event, **about: self.log.append(text)
        )
        self.connections = self.workers.connections
        self.workers.start(WORKER, ROW)

    # -- the owner -------------------------------------------------------------------------------------------------
    def worker_started(self, worker: int, pid: int) -> None:
        self.taken.append((worker, pid))

    def worker_sent(self, worker: int, connection: WorkerConnection, frames: list[memoryview], now: float) -> None:
        message, _ = m.decode(frames)
        connection.link.check_received(message)
        self.taken.append(message)

    def worker_exited(self, exited: m.WorkerExited, connection: WorkerConnection) -> None:
        self.taken.append(exited)

    # -- what happens ----------------------------------------------------------------------------------------------
    def receive(self, most: int = MOST, now: float = 0.0) -> bool:
        return self.workers.receive(self, {ENGINE}, now, most)

    def tell(self, *events: Any, now: float = 0.0) -> None:
        self.engine.happened += events
        self.receive(now=now)

    def start(self) -> None:
        """The engine tells that the worker is a process."""
        self.tell(Started(WORKER, PID))
        assert self.taken.pop(0) == (WORKER, PID)

    def say(self, *messages: m.Message) -> InProcessLine:
        line = InProcessLine(self.hub)
        for message in messages:
            line.send([m.encode(message)])
        return line


def exited(status: int, running: list[int] | None = None, reason: str = "") -> m.WorkerExited:
    return m.WorkerExited(WORKER, status, running or [], reason, False, False)


@pytest.fixture
def side() -> Iterator[Side]:
    made = Side()
    yield made
    made.hub.close()


# -- messages ----------------------------------------------------------------------------------------------------------
def test_what_a_worker_says_is_taken_in_order(side: Side) -> None:
    side.start()
    side.say(HELLO, DECLARED, CHUNK).close()
    assert not side.receive()
    assert side.taken == [HELLO, DECLARED, CHUNK]
    assert side.log == side.engine.killed == []


def test_what_it_said_before_the_engine_told_of_it_comes_then(side: Side) -> None:
    side.say(HELLO, DECLARED).close()
    side.receive()
    assert side.taken == []
    side.tell(Started(WORKER, PID))
    assert side.taken == [(WORKER, PID), HELLO, DECLARED]


def test_another_process_is_not_believed(side: Side) -> None:
    side.start()
    side.say(m.Hello(m.WIRE_VERSION, WORKER, PID + 1)).close()
    side.receive()
    assert side.log == [
        f"worker None broke the protocol: Hello from worker {WORKER} in process {PID + 1}, it is in {PID}"
    ]
    assert side.taken == side.engine.killed == []


def test_a_second_connection_of_a_worker_takes_nothing_from_the_first(side: Side) -> None:
    side.start()
    first = side.say(HELLO)
    side.receive()
    second = side.say(HELLO, DECLARED)
    side.receive()
    assert len(side.log) == 1
    assert side.engine.killed == []
    first.send([m.encode(DECLARED)])
    side.receive()
    assert side.taken == [HELLO, DECLARED]
    first.close()
    second.close()


def test_one_that_nobody_started_breaks_the_protocol(side: Side) -> None:
    side.say(m.Hello(m.WIRE_VERSION, WORKER + 1, PID)).close()
    side.receive()
    assert side.log == [f"worker None broke the protocol: Hello from worker {WORKER + 1}, which was not started"]


@pytest.mark.parametrize("early", [False, True])
def test_a_worker_that_breaks_the_protocol_is_killed(early: bool, side: Side) -> None:
    if not early:
        side.start()
    side.say(HELLO, CHUNK).close()
    side.receive()
    if early:
        side.start()
    assert side.engine.killed == [WORKER]
    assert side.connections[WORKER].kill_reason.startswith("broke the protocol: ")
    assert f"worker {WORKER} broke the protocol" in side.log[0]


def test_at_most_so_many_messages_are_taken_at_a_time_and_all_of_them_before_an_exit(side: Side) -> None:
    side.start()
    side.say(HELLO, DECLARED, *[CHUNK] * 998).close()
    assert side.receive(256)
    assert len(side.taken) == 256
    side.tell(Exited(WORKER, PID, 9))
    assert len(side.taken) == 1001
    assert side.taken[-1] == exited(9)


# -- exits -------------------------------------------------------------------------------------------------------------
def test_after_its_exit_nothing_of_a_worker_is_taken(side: Side) -> None:
    side.start()
    line = side.say(HELLO)
    side.tell(Exited(WORKER, PID, 9))
    line.send([m.encode(DECLARED)])
    line.send([b"where rows lie in memory that is given up", bytes(100)])
    side.say(HELLO).close()
    side.receive()
    assert side.taken == [HELLO, exited(9)]
    assert side.log == []
    line.close()


def test_a_worker_that_ended_in_order_before_it_was_ready_has_time_for_its_last_words(side: Side) -> None:
    side.start()
    line = side.say(HELLO)
    side.tell(Exited(WORKER, PID, 0), now=10.0)
    side.workers.watch(side, 11.9)
    assert side.taken == [HELLO]
    line.send([m.encode(BROKEN)])
    side.receive(now=11.9)
    side.workers.watch(side, 12.5)
    assert side.taken == [HELLO, BROKEN, exited(0)]
    side.workers.start(WORKER, ROW)  # another session of a host gives numbers anew
    side.workers.watch(side, 20.0)
    assert len(side.taken) == 3, "once"
    assert WORKER in side.connections
    line.close()


@pytest.mark.parametrize(
    ("said", "status"), [((HELLO,), 256), ((HELLO,), 9), ((HELLO, DECLARED), 0), ((HELLO, BROKEN), 0)]
)
def test_every_other_exit_counts_at_once(said: tuple[m.Message, ...], status: int, side: Side) -> None:
    side.start()
    side.say(*said).close()
    side.tell(Exited(WORKER, PID, status))
    assert side.taken == [*said, exited(status)]


@pytest.mark.parametrize(("running", "breaks", "blamed"), [(1, False, [1, 7, 5]), (0, False, []), (0, True, [1, 7, 5])])
def test_an_exit_tells_which_sample_ran_or_which_came_last_where_the_protocol_was_broken(
    running: int, breaks: bool, blamed: list[int], side: Side
) -> None:
    side.start()
    side.say(HELLO, *([CHUNK] if breaks else [DECLARED])).close()
    side.receive()
    row = side.engine.row(ROW)
    row[FILE], row[ATTEMPT], row[SAMPLE_INDEX], row[RUNNING] = 1, 7, 5, running
    side.tell(Exited(WORKER, PID, 9))
    assert side.taken[-1].running == blamed
    assert side.taken[-1].kill_reason.startswith("broke the protocol" if breaks else "")


# -- the engine --------------------------------------------------------------------------------------------------------
def test_a_lack_of_descriptors_does_not_wake_the_loop_until_it_is_over(side: Side) -> None:
    assert side.poll.watched == {ENGINE, side.hub.handle}
    side.engine.out_of_descriptors = True
    side.receive()
    assert ENGINE not in side.poll.watched
    side.engine.happened.append(Started(WORKER, PID))
    side.engine.out_of_descriptors = False
    side.workers.receive(side, set(), 0.0, MOST)
    assert side.taken == [(WORKER, PID)]
    assert ENGINE in side.poll.watched


def test_notes_of_the_engine_are_logged_and_its_loss_ends_the_service(side: Side) -> None:
    side.tell(EngineNote("another zygote is made", "zygote"))
    assert side.log == ["another zygote is made"]
    side.engine.is_lost = True
    with pytest.raises(ServiceLost, match="it is gone"):
        side.receive()


# -- early hellos ------------------------------------------------------------------------------------------------------
def test_what_a_worker_said_before_its_start_is_told_is_kept_in_order() -> None:
    early = EarlyHellos()
    assert early.take(WORKER, PID) == (b"", [])
    early.hold(b"a", HELLO)
    early.add(b"a", DECLARED)
    assert early.take(WORKER, PID) == (b"a", [HELLO, DECLARED])
    assert early.take(WORKER, PID) == (b"", []), "once"


def test_of_several_who_say_so_only_the_process_of_the_worker_is_believed() -> None:
    early = EarlyHellos()
    for peer, pid in ((b"liar", 1), (b"a", PID), (b"other", 2)):
        early.hold(peer, m.Hello(m.WIRE_VERSION, WORKER, pid))
        early.add(peer, m.Broken({"kind": peer.decode()}))
    assert early.take(WORKER, PID) == (b"a", [HELLO, m.Broken({"kind": "a"})])
    early.add(b"liar", DECLARED)
    assert early.take(WORKER, 1) == (b"", []), "the liars are forgotten"


def test_nobody_fills_the_memory_with_such_words() -> None:
    early = EarlyHellos()
    for n in range(1000):
        early.hold(b"%d" % n, m.Hello(m.WIRE_VERSION, n, n))
        for _ in range(100):
            early.add(b"%d" % n, DECLARED)
    kept = [early.take(n, n)[1] for n in range(1000)]
    assert sum(map(bool, kept)) == 64
    assert max(map(len, kept)) == 5
