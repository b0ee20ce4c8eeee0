"""What a service makes of trainers whose last messages it reads late."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.replay import simulated_spec
from pydp2 import integer_value
from pydp2.data.schema.input_types import Slots
from pydp2.data.schema.provider_schema import Schema
from pydp2.options.file_list import FileList
from pydp2.options.service_spec import SourceTerms
from pydp2.options.timing import Timing
from pydp2.protocol import messages as m
from pydp2.server.gateway import job_table, peers, router
from pydp2.server.gateway.job_table import JobTable
from pydp2.server.gateway.router import ClientGateway
from pydp2.server.snapshots.snapshotter import Snapshotter
from pydp2.server.tracing import TraceRecorder, TraceState
from pydp2.system.log_events import LogEvent

from ..simulated.network import Hub, Network
from .test_host_gateway import Peer

SCHEMA = Schema(
    slots=Slots((integer_value(9),)), shuffle=True, pool_size=-1, min_pool_size=-1, can_over_batch_size=True,
    weighted=False, cache=0, check=False, check_fail_continue=False,
)  # fmt: skip

CLOCK = Network(Random(0)).clock
"""Time passes only where a test says so: a machine that stands still for a moment is no trainer that is silent."""


class Side:
    """A service whose files nobody reads, and trainers of ``world`` ranks that talk to it by hand."""

    def __init__(self, folder: Path, world: int = 2, sources: tuple[SourceTerms, ...] = ()) -> None:
        self.world = world
        self.hub = Hub(Network(Random(0)), "trainer")
        self.log: list[str] = []
        hub: Any = self.hub
        pool: Any = SimpleNamespace(
            target=0, fit_budget=lambda _: None, begin_pass=lambda *_: None, end_pass=lambda *_: []
        )
        snapshots = Snapshotter(None, self._note, Timing())
        spec = simulated_spec(0, folder)
        spec = replace(spec, sources=sources or spec.sources)
        files = FileList.of(["a", "b", "c"])
        jobs = JobTable(spec, files, hub, pool, self._note, snapshots)
        self.trace = TraceRecorder(files)
        self.gateway = ClientGateway(spec, hub, jobs, self._note, snapshots, jobs.stats, self.trace)
        jobs.provider_ready(SCHEMA, "," * (len(spec.sources) - 1))

    def _note(self, text: str, event: LogEvent, /, **about: str | int) -> None:
        self.log.append(text)

    def attach(self, rank: int, session: str, **options: Any) -> Peer:
        """A process that asks for a rank."""
        peer = Peer(self.hub)
        peer.say(m.Attach(m.WIRE_VERSION, "default", rank, self.world, session, {"batch_size": 1, **options}, 1))
        self.pass_time(0.0)
        return peer

    def ask_trace(self) -> Peer:
        """A process that asks for a trace of 100 s."""
        peer = Peer(self.hub)
        peer.say(m.AskTrace(100_000))
        self.pass_time(0.0)
        return peer

    def begin_trace(self) -> None:
        self.gateway.record(on=True)
        self.trace.start(CLOCK.now)
        self.trace.begin(CLOCK.now)

    def pass_time(self, seconds: float) -> None:
        CLOCK.now += seconds
        self.gateway.receive()
        self.gateway.watch(CLOCK.now)


@pytest.fixture(autouse=True)
def _no_shared_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pydp2.server.gateway.resources.create_shared_pool", lambda _: None)


@pytest.fixture(autouse=True)
def _own_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (job_table, peers, router):
        monkeypatch.setattr(module, "time", CLOCK)


@pytest.fixture
def side(tmp_path: Path) -> Side:
    return Side(tmp_path)


def begin(peer: Peer, pass_id: int) -> None:
    peer.say(m.BeginPass(1, pass_id, 0, 2, {}, 0, [], "", {}))


def kinds(peer: Peer) -> list[str]:
    return [type(each).__name__ for each in peer.heard if not isinstance(each, m.Probe)]


def welcome(peer: Peer) -> dict[str, Any]:
    """The position that it was told with its rank."""
    (found,) = [each for each in peer.heard if isinstance(each, m.Welcome)]
    position: dict[str, Any] = found.service["position"]
    return position


def test_a_rank_that_is_taken_again_before_its_last_message_is_read_had_left_in_order(side: Side) -> None:
    first, _ = side.attach(0, "first"), side.attach(1, "other")
    begin(first, 0)
    side.pass_time(0.0)
    goodbye = m.Detach(1, 0)
    first.cut()  # its connection is seen to be gone when something is sent there
    second = side.attach(0, "second")
    assert kinds(second) == [], "it is not known yet whether the first one died"
    side.hub.box.append((b"\0\0\0\0\1", [memoryview(m.encode(goodbye))]))
    side.pass_time(0.06)
    assert welcome(second) == {"pass": 1, "batch": 0}, "the first one left pass 0"
    begin(second, 1)
    side.pass_time(1.0)
    assert kinds(second) == ["Welcome"], "it waits for the next pass"


def test_many_that_come_for_ranks_whose_processes_died_leave_room_for_one_whose_rank_is_still_taken(
    tmp_path: Path,
) -> None:
    side = Side(tmp_path, world=80)
    before = [side.attach(rank, f"before {rank}") for rank in range(80)]
    for peer in before[:70]:
        peer.cut()
    for rank in range(70):
        side.attach(rank, f"next {rank}")
    last = side.attach(75, "next 75")
    assert kinds(last) == [], "the one before it may be about to go"
    before[75].cut()
    side.pass_time(0.3)
    side.pass_time(0.3)
    assert kinds(last) == ["Welcome"]


def test_a_rank_whose_process_died_is_free_when_nothing_more_can_come_of_it(side: Side) -> None:
    first, _ = side.attach(0, "first"), side.attach(1, "other")
    begin(first, 0)
    side.pass_time(0.0)
    first.cut()
    second = side.attach(0, "second")
    side.pass_time(0.1)
    assert kinds(second) == []
    side.pass_time(0.15)
    side.pass_time(0.06)
    assert welcome(second) == {"pass": 0, "batch": 0}, "what the first one had not used"
    side.hub.box.append((b"\0\0\0\0\1", [memoryview(m.encode(m.Detach(1, 0)))]))  # later than anybody waits
    begin(second, 0)
    side.pass_time(1.0)
    assert kinds(second) == ["Welcome"], "it keeps its place"


def test_a_service_that_stood_still_as_it_read_finds_no_trainer_silent(tmp_path: Path) -> None:
    side = Side(tmp_path, world=1)
    trainer = side.attach(0, "first", share="dynamic", lease=5.0)
    begin(trainer, 0)
    side.pass_time(0.0)
    read = side.hub.receive
    stands_still = iter([60.0])  # before the first message is read

    def receive() -> tuple[bytes, list[memoryview]] | None:
        CLOCK.now += next(stands_still, 0.0)
        return read()

    trainer.say(m.Need(1, 0, 0, 0, 0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(side.hub, "receive", receive)
        side.gateway.receive()
    side.pass_time(1.0)
    assert "BeginAgain" not in kinds(trainer)
    side.pass_time(6.0)
    assert "BeginAgain" in kinds(trainer)


def test_a_trainer_is_not_silent_whose_message_is_behind_more_than_are_read_in_a_turn(tmp_path: Path) -> None:
    side = Side(tmp_path, world=1)
    first, second = [side.attach(0, name, share="dynamic", lease=5.0) for name in ("first", "second")]
    for trainer in (first, second):
        begin(trainer, 0)
    side.pass_time(0.0)
    for trainer in [first] * router._MAX_MESSAGES + [second]:
        trainer.say(m.Need(1, 0, 0, 0, 0))
    side.pass_time(6.0)
    side.pass_time(0.0)
    assert "BeginAgain" not in kinds(first) + kinds(second)
    side.pass_time(6.0)
    assert "BeginAgain" in kinds(second)


def test_a_trainer_is_told_the_sources_and_their_first_files(tmp_path: Path) -> None:
    def told(*sources: SourceTerms) -> Any:
        (found,) = [each for each in Side(tmp_path, 1, sources).attach(0, "s").heard if isinstance(each, m.Welcome)]
        return found.service.get("sources")

    terms: dict[str, Any] = {"provider": "p.process", "args": b"", "is_train": True}
    assert told() == [["", 0]]
    assert told(SourceTerms(name="wiki", **terms), SourceTerms(name="code", first_file=2, **terms)) == [
        ["wiki", 0], ["code", 2],
    ]  # fmt: skip


def test_a_trace_is_abandoned_once_the_process_that_asked_for_it_is_gone(side: Side) -> None:
    trainer, asker = side.attach(0, "trainer"), side.ask_trace()
    side.begin_trace()
    assert kinds(trainer) == ["Welcome", "RecordSpans"]
    side.pass_time(3.0)
    assert side.trace.state is TraceState.RECORDING
    asker.cut()
    side.pass_time(3.0)
    assert side.trace.state is TraceState.ABANDONED


def test_the_next_trace_need_not_wait_for_the_end_of_one_whose_process_is_gone(side: Side) -> None:
    first = side.ask_trace()
    side.begin_trace()
    assert kinds(side.ask_trace()) == ["Refused"]
    first.cut()
    assert kinds(side.ask_trace()) == []
    assert side.trace.state is TraceState.ASKED
    side.begin_trace()
    assert side.trace.state is TraceState.RECORDING
