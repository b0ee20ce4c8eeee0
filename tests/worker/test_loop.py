"""The loop of a worker, told what to do by a scripted server: which generator runs, and what is sent when."""

from __future__ import annotations

import itertools
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pydp2 import integer_value, integer_value_sequence, provider
from pydp2.errors import NotRepeatable, ProviderError
from pydp2.host.engine.base import StatusPage
from pydp2.host.worker.background_flush import background_flush
from pydp2.host.worker.loop import LoopOptions, WorkerLoop
from pydp2.host.worker.process_state import ProcessState
from pydp2.protocol import messages as m
from pydp2.protocol.file_ranges import SAMPLE_COST, FileAssignment
from pydp2.protocol.link_states import LinkRole, worker_link
from pydp2.protocol.worker_status import ATTEMPT, FILE, WorkerStatus
from pydp2.providers.source_providers import SourceProviders
from pydp2.server.dispatch.ledger import NO_PAUSE
from pydp2.server.workers.chunk_decoder import decode_chunk
from pydp2.transport import in_process
from tests.simulated.chunks import Ledger, Outcome, Yield, again, expected, fresh, together, values_of, weigh_of

ALL = 1 << 60
Process = Callable[[Any, str], Iterable[Any]]
TYPES = {"id": integer_value(100), "words": integer_value_sequence(50)}


class Script:
    """A server with one worker, in a thread of this process; ``process`` is run over the files ``f0, f1, …``."""

    def __init__(self, process: Process, *, files: int = 8, ahead: int = 4, **options: Any) -> None:
        decorated = provider(input_types=TYPES, **options)(process)
        names = [f"f{i}" for i in range(files)]
        running = decorated.start(args=None, is_train=True, input_order=None, file_list=names)
        self.declared = running.schema
        self.hub = in_process.InProcessHub()
        self.line = in_process.InProcessLine(self.hub)
        self.page = StatusPage(1)
        self.surroundings = ProcessState(0, self.page.row(0), os.dup(1), str(Path.cwd()))
        link = worker_link(LinkRole.WORKER)
        for greeting in (m.Hello(m.WIRE_VERSION, 0, 1), m.Declared({}, "", [])):
            link.check_sending(greeting)
            self.line.send([m.encode(greeting)])
        self._peer = b""
        self._link = worker_link(LinkRole.SERVER)
        for _ in range(2):
            self._hear()
        self.status_row = WorkerStatus(self.page.row(0))
        self.runner = WorkerLoop(
            self.line,
            link,
            SourceProviders([running]),
            names,
            self.status_row,
            self.surroundings,
            LoopOptions(max_unbound=ahead, times_samples=True),
        )
        self.died: BaseException | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        self.ledger = Ledger(self.declared, [fresh(i) for i in range(files)])
        self.blocked: list[list[int]] = []
        self.say(m.BeginDispatch(1, 0, 1))

    def _run(self) -> None:
        try:
            with background_flush(self.runner):
                self.runner.run()
        except BaseException as error:
            self.died = error

    def say(self, message: m.Message) -> None:
        self._link.check_sending(message)
        self.hub.send(self._peer, [m.encode(message)])

    def assign(
        self, *files: int, limit: int = ALL, pause: int = NO_PAUSE, bound: bool = True, dispatch_id: int = 1,
        turn: int = 1, ramp: int = 0,
    ) -> None:  # fmt: skip
        items = []
        for file in files:
            entry = self.ledger.entries[file]
            entry.limit = limit
            items.append(
                FileAssignment(
                    file, entry.attempt, file, entry.committed, entry.spent_bytes, limit, pause, bound, entry.crcs,
                    block_length=turn, ramp_until=ramp,
                )
            )  # fmt: skip
        self.say(m.Assign(dispatch_id, [item.to_wire() for item in items]))

    def grant(self, file: int, limit: int = ALL, pause: int = NO_PAUSE, bound: bool = True) -> None:
        entry = self.ledger.entries[file]
        entry.limit = limit
        self.say(m.Grant([[entry.attempt, limit, pause, int(bound)]]))

    def want(self, file: int, until: int = 0) -> None:
        self.say(m.Want(self.ledger.entries[file].attempt, until))

    def _hear(self) -> tuple[m.Message, Sequence[memoryview]]:
        deadline = time.monotonic() + 10
        while (received := self.hub.receive()) is None:
            assert time.monotonic() < deadline, "the worker says nothing"
            time.sleep(0.0005)
        self._peer, frames = received
        message, body = m.decode(frames)
        self._link.check_received(message)
        return message, body

    def chunk(self) -> m.Chunk:
        """The next chunk, committed; who waits in it stands in ``blocked``."""
        message, body = self._hear()
        assert isinstance(message, m.Chunk)
        self.blocked += message.blocked
        self._commit(message, body)
        for file, attempt, y, _ in message.blocked:
            entry = self.ledger.entries[file]
            assert (attempt, y) == (entry.attempt, entry.committed), "it waits where its samples end"
        return message

    def hear_returned(self) -> set[int]:
        """The files that the next message returns."""
        message, _ = self._hear()
        assert isinstance(message, m.ReturnFiles)
        attempts = {entry.attempt: file for file, entry in enumerate(self.ledger.entries)}
        return {attempts[attempt] for attempt in message.attempts}

    def _commit(self, message: m.Chunk, body: Sequence[memoryview]) -> None:
        for part, run in decode_chunk(message, body, self.declared):
            self.ledger.take(part, run)

    def until(self, what: Callable[[], bool]) -> None:
        """Take chunks until ``what()``."""
        while not what():
            self.chunk()

    def ended(self, *files: int) -> bool:
        return all(self.ledger.entries[file].ended for file in files)

    def close(self) -> None:
        if self.thread.is_alive():
            self.say(m.Quit())
        self.thread.join(10)
        os.close(self.surroundings._output_descriptor)
        self.line.close()
        self.hub.close()
        assert not self.thread.is_alive()
        if self.died is not None:
            raise self.died


@pytest.fixture
def script() -> Iterator[Callable[..., Script]]:
    """``script(process, **options)`` is a :class:`Script`; it is ended after the test."""
    made: list[Script] = []

    def make(process: Process, **options: Any) -> Script:
        made.append(Script(process, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def reader(contents: Sequence[Sequence[Yield]], blocks: float = 0.0) -> Process:
    """A provider over ``contents``, for :func:`tests.simulated.chunks.expected`; ``blocks``: how often it yields many
    samples at once."""

    def process(settings: Any, filename: str) -> Iterator[Any]:
        choose, content, y = random.Random(filename), contents[int(filename[1:])], 0
        while y < len(content):
            what = content[y]
            if choose.random() < blocks:
                plain = itertools.takewhile(lambda each: each[0] not in ("end", "raise"), content[y:])
                some = list(plain)[: choose.choice([0, 1, 10, 100])]
                yield together(some)
                y += len(some)
                continue
            y += 1
            if what[0] == "end":
                return
            if what[0] == "raise":
                raise KeyError(filename)
            yield dict(zip(TYPES, values_of(what), strict=True))

    return process


def count(length: int, words: int = 0) -> Process:
    def process(settings: Any, filename: str) -> Iterator[Any]:
        for i in range(length):
            yield {"id": i % 100, "words": [1] * words}

    return process


COST = 4 + 4 + SAMPLE_COST  # of a sample without words


def test_a_file_is_read_to_its_end(script: Callable[..., Script]) -> None:
    one = script(count(10))
    one.assign(0)
    one.until(lambda: one.ended(0))
    assert [sample[0] for sample in one.ledger.found[0].samples] == list(range(10))
    assert one.blocked == []


def test_time_in_a_file_counts_as_busy_before_the_file_has_ended(script: Callable[..., Script]) -> None:
    def slow(settings: Any, filename: str) -> Iterator[Any]:
        for i in range(60):
            time.sleep(0.005)
            yield i, []

    server = script(slow)
    began = time.monotonic()
    server.assign(0)
    last = 0
    while not server.ended(0):
        chunk = server.chunk()
        assert last < chunk.busy_us <= 1e6 * (time.monotonic() - began)
        last = chunk.busy_us
    assert last > 60 * 5000


def test_an_empty_file_ends_at_once(script: Callable[..., Script]) -> None:
    one = script(count(0))
    one.assign(0, 1, 2)
    one.until(lambda: one.ended(0, 1, 2))
    assert one.ledger.found[2] == Outcome(end="ended")


def test_nothing_is_sent_beyond_the_limit_and_the_sample_in_hand_is_told(script: Callable[..., Script]) -> None:
    one = script(count(10))
    one.assign(0, limit=3 * COST + 5)
    one.until(lambda: bool(one.blocked))
    assert one.blocked == [[0, 1, 3, COST]]
    assert one.ledger.entries[0].spent_bytes == 3 * COST
    one.grant(0, 4 * COST)
    one.until(lambda: len(one.blocked) == 2)
    assert one.blocked[-1] == [0, 1, 4, COST]
    one.grant(0)
    one.until(lambda: one.ended(0))
    assert len(one.ledger.found[0].samples) == 10


def test_a_grant_too_small_for_the_sample_in_hand_is_answered_again(script: Callable[..., Script]) -> None:
    one = script(count(3))
    one.assign(0, limit=0)
    one.until(lambda: bool(one.blocked))
    one.grant(0, COST - 1)
    one.until(lambda: len(one.blocked) == 2)
    assert one.blocked == [[0, 1, 0, COST], [0, 1, 0, COST]]
    one.grant(0)
    one.until(lambda: one.ended(0))


def test_a_file_gives_way_at_its_pause_with_everything_before_it_sent(script: Callable[..., Script]) -> None:
    one = script(count(10))
    one.assign(0, pause=4)
    one.until(lambda: bool(one.blocked))
    assert one.blocked == [[0, 1, 4, 0]]
    assert one.ledger.entries[0].committed == 4
    one.grant(0, pause=7)
    one.until(lambda: len(one.blocked) == 2)
    assert one.blocked[1] == [0, 1, 7, 0]
    one.grant(0)
    one.until(lambda: one.ended(0))


def test_a_file_that_ends_at_its_pause_ends(script: Callable[..., Script]) -> None:
    one = script(count(4))
    one.assign(0, pause=4)
    one.until(lambda: bool(one.blocked))
    one.grant(0)
    one.until(lambda: one.ended(0))
    assert one.ledger.found[0].length == 4


def test_the_file_that_the_merge_wants_first_is_read_first(script: Callable[..., Script]) -> None:
    order: list[str] = []

    def process(settings: Any, filename: str) -> Iterator[Any]:
        order.append(filename)
        yield {"id": 1, "words": []}

    one = script(process)
    one.assign(5, 2, 7, 0)
    one.until(lambda: one.ended(5, 2, 7, 0))
    assert order == ["f0", "f2", "f5", "f7"]


def noting(order: list[str], length: int) -> Process:
    """A provider that says in ``order`` whose sample it gives."""

    def process(settings: Any, filename: str) -> Iterator[Any]:
        for i in range(length):
            order.append(filename)
            yield {"id": i % 100, "words": []}

    return process


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it takes, nothing is sent for the sake of time alone."""
    for name in ("FLUSH", "_SLOW"):
        monkeypatch.setattr(f"pydp2.host.worker.loop.{name}", 60.0)


@pytest.mark.usefixtures("unhurried")
def test_at_the_start_files_are_run_turn_by_turn_and_what_came_of_it_is_sent_together(
    script: Callable[..., Script],
) -> None:
    order: list[str] = []
    one = script(noting(order, 20))
    one.assign(0, 1, 2, turn=3, ramp=6)
    first = one.chunk()
    assert order[:18] == ["f0"] * 3 + ["f1"] * 3 + ["f2"] * 3 + ["f0"] * 3 + ["f1"] * 3 + ["f2"] * 3
    assert first.rows == 18
    one.until(lambda: one.ended(0, 1, 2))
    assert order[18:] == ["f0"] * 14 + ["f1"] * 14 + ["f2"] * 14


@pytest.mark.usefixtures("unhurried")
def test_files_that_end_in_their_turns_leave_them_to_others(script: Callable[..., Script]) -> None:
    order: list[str] = []
    one = script(noting(order, 4))
    one.assign(0, 1, turn=3, ramp=9)
    one.assign(2)
    assert one.chunk().rows == 8, "sent when the last one that has turns is done"
    one.until(lambda: one.ended(0, 1, 2))
    assert order == ["f0"] * 3 + ["f1"] * 3 + ["f0"] + ["f1"] + ["f2"] * 4


def test_files_that_are_not_bound_are_opened_only_a_few_at_a_time(script: Callable[..., Script]) -> None:
    one = script(count(5), ahead=2)
    one.assign(0, 1, 2, 3, limit=0, bound=False)
    one.until(lambda: len(one.blocked) == 2)
    assert {item[0] for item in one.blocked} == {0, 1}
    one.assign(4, limit=0)
    one.until(lambda: len(one.blocked) == 3)
    assert one.blocked[2][0] == 4, "a bound one is opened beside them"
    one.grant(0)
    one.until(lambda: one.ended(0) and len(one.blocked) == 4)
    assert one.blocked[3][0] == 2, "and the next one when one of them is done"


def test_a_worker_that_retires_returns_what_it_has_not_begun_and_ends_the_rest(script: Callable[..., Script]) -> None:
    one = script(count(5), ahead=2)
    one.assign(0, 1, 2, 3, limit=0, bound=False)
    one.until(lambda: len(one.blocked) == 2)
    one.say(m.Retire())
    assert one.hear_returned() == {2, 3}
    one.assign(4, 5)
    assert one.hear_returned() == {4, 5}, "these were under way when it was told"
    one.grant(2)
    one.grant(0)
    one.grant(1)
    one.until(lambda: one.ended(0, 1))
    assert not one.blocked[2:]


def test_a_file_that_another_worker_could_read_is_returned_if_it_is_not_begun(script: Callable[..., Script]) -> None:
    one = script(count(5), ahead=2)
    one.assign(0, 1, 2, 3, limit=0, bound=False)
    one.until(lambda: len(one.blocked) == 2)
    for file, returned in ((3, {3}), (3, set()), (0, set()), (2, {2})):
        one.say(m.StealFile(one.ledger.entries[file].attempt))
        assert one.hear_returned() == returned
    one.assign(4)
    one.grant(0)
    one.grant(1)
    one.until(lambda: one.ended(0, 1, 4))


def test_many_files_are_returned_in_messages_that_a_header_holds(script: Callable[..., Script]) -> None:
    one = script(count(5), files=5000, ahead=1)
    one.assign(0, limit=0, bound=False)
    one.until(lambda: len(one.blocked) == 1)
    for first in range(1, 5000, 1000):
        one.assign(*range(first, min(5000, first + 1000)), limit=0, bound=False)
    one.say(m.Retire())
    returned: set[int] = set()
    while len(returned) < 4999:
        returned |= one.hear_returned()
    assert returned == {*range(1, 5000)}


def test_what_a_worker_has_is_sent_when_the_merge_wants_it(script: Callable[..., Script]) -> None:
    go = threading.Semaphore(0)

    def process(settings: Any, filename: str) -> Iterator[Any]:
        for i in range(1000):
            if i == 500:
                assert go.acquire(timeout=10)
            yield {"id": i % 100, "words": []}

    one = script(process)
    one.assign(0)
    one.want(0)
    one.want(3)  # it does not have that one; somebody else may by now
    go.release()
    one.until(lambda: one.ended(0))
    assert len(one.ledger.found[0].samples) == 1000


@pytest.mark.parametrize("after", [1, 2, 3])
def test_samples_do_not_wait_for_one_that_never_comes(script: Callable[..., Script], after: int) -> None:
    go = threading.Semaphore(0)

    def process(settings: Any, filename: str) -> Iterator[Any]:
        for i in range(3):
            if i == after:
                assert go.acquire(timeout=10)
            yield {"id": i, "words": []}
        if after == 3:
            assert go.acquire(timeout=10)

    one = script(process)
    one.assign(0)
    one.until(lambda: len(one.ledger.found[0].samples) == after)
    assert not one.ended(0)
    go.release()
    one.until(lambda: one.ended(0))
    assert [sample[0] for sample in one.ledger.found[0].samples] == [0, 1, 2]


@pytest.mark.parametrize("ending", ["yields", "ends", "raises"])
def test_a_bad_sample_found_while_the_next_one_is_awaited_ends_its_file(
    script: Callable[..., Script], ending: str
) -> None:
    go = threading.Semaphore(0)

    def process(settings: Any, filename: str) -> Iterator[Any]:
        yield {"id": 1, "words": []}
        yield {"id": 100, "words": []}
        assert go.acquire(timeout=10)
        if ending == "yields":
            yield {"id": 2, "words": []}
        elif ending == "raises":
            raise LookupError("late")

    one = script(process)
    one.assign(0)
    one.until(lambda: one.ended(0))
    go.release()
    one.assign(1)
    one.until(lambda: one.ended(1))
    go.release()
    for file in (0, 1):
        assert [sample[0] for sample in one.ledger.found[file].samples] == [0]
        assert "sample 1" in str(one.ledger.errors[file])


def test_the_two_threads_of_a_worker_are_never_at_work_at_the_same_time(
    script: Callable[..., Script], monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 20_000

    def process(settings: Any, filename: str) -> Iterator[Any]:
        for i in range(count):
            if i % 20 == 0:
                time.sleep(0.001)
            yield {"id": i % 100, "words": []}

    monkeypatch.setattr("pydp2.host.worker.loop.FLUSH", 0.0005)
    one = script(process, files=1)
    inside: list[int] = []
    both = sent = 0

    def watched(work: Callable[..., Any]) -> Callable[..., Any]:
        def alone(*args: Any) -> Any:
            nonlocal both, sent
            me = threading.get_ident()
            both += any(other != me for other in inside)
            sent += me == late.ident
            inside.append(me)
            try:
                return work(*args)
            finally:
                inside.remove(me)

        return alone

    over = threading.Event()

    def send() -> None:
        while not over.is_set():
            one.runner.flush_overdue()

    late = threading.Thread(target=send)
    monkeypatch.setattr(one.runner, "_flush", watched(one.runner._flush))
    monkeypatch.setattr(one.runner._builder, "add_sample", watched(one.runner._builder.add_sample))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    late.start()
    try:
        one.assign(0)
        one.until(lambda: one.ended(0))
    finally:
        sys.setswitchinterval(interval)
        over.set()
        late.join(10)
    assert not both
    assert sent, "the other thread never sent anything"
    assert [sample[0] for sample in one.ledger.found[0].samples] == list(range(count))


def test_leaving_a_pass_closes_its_generators_and_the_next_one_begins(script: Callable[..., Script]) -> None:
    closed: list[tuple[str, int]] = []

    def process(settings: Any, filename: str) -> Iterator[Any]:
        try:
            for i in range(100):
                yield {"id": i, "words": []}
        finally:
            closed.append((filename, settings.pass_id))

    one = script(process)
    one.assign(0, 1, limit=5 * COST)
    one.until(lambda: len(one.blocked) == 2)
    one.say(m.EndDispatch(1))
    one.grant(0)  # crossed it on the way
    one.want(1)
    one.say(m.BeginDispatch(2, 1, 1))
    one.ledger = Ledger(one.declared, [fresh(i) for i in range(2)])
    one.assign(1, dispatch_id=2)
    one.until(lambda: one.ended(1))
    assert closed == [("f0", 0), ("f1", 0), ("f1", 1)]
    assert [sample[0] for sample in one.ledger.found[1].samples] == list(range(100))


def test_a_generator_whose_closing_raises_harms_nobody(
    script: Callable[..., Script], capfd: pytest.CaptureFixture[str]
) -> None:
    def process(settings: Any, filename: str) -> Iterator[Any]:
        try:
            yield {"id": 1, "words": []}
            yield {"id": 2, "words": []}
        finally:
            raise SystemError(f"closing {filename}")

    one = script(process)
    one.assign(0, limit=COST)
    one.until(lambda: bool(one.blocked))
    one.say(m.EndDispatch(1))
    one.say(m.BeginDispatch(2, 1, 1))
    one.ledger = Ledger(one.declared, [fresh(0)])
    one.assign(0, limit=COST, dispatch_id=2)
    one.until(lambda: len(one.blocked) == 2)
    assert "closing the generator of f0 raised SystemError: closing f0" in capfd.readouterr().err


def test_quit_ends_the_loop_whatever_is_open(script: Callable[..., Script]) -> None:
    one = script(count(1_000_000))
    one.assign(0, 1, 2)
    one.chunk()
    one.say(m.Quit())
    one.thread.join(10)
    assert not one.thread.is_alive()


def test_the_seat_tells_which_sample_is_asked_for_and_only_then(script: Callable[..., Script]) -> None:
    seen: list[Any] = []
    made: list[Script] = []

    def process(settings: Any, filename: str) -> Iterator[Any]:
        for i in range(3):
            seen.append(
                (made[0].status_row.running_sample, time.monotonic_ns() - made[0].status_row.started_ns < 10**10)
            )
            yield {"id": i, "words": []}

    made.append(script(process))
    one = made[0]
    one.assign(4)
    one.until(lambda: one.ended(4))
    assert seen == [((4, 5, i), True) for i in range(3)]
    assert one.status_row.running_sample is None


def test_calc_batch_size_is_the_user_s_code_too(script: Callable[..., Script]) -> None:
    """A worker that dies in it dies of this sample."""
    seen: list[Any] = []
    made: list[Script] = []

    def weigh(values: Any) -> int:
        seen.append(made[0].status_row.running_sample)
        return 1

    made.append(script(count(2), calc_batch_size=weigh))
    made[0].assign(4)
    made[0].until(lambda: made[0].ended(4))
    assert seen == [(4, 5, 0), (4, 5, 1)]


class Odd(BaseException):
    pass


@pytest.mark.parametrize("kind", [KeyError, SystemExit, KeyboardInterrupt, GeneratorExit, Odd, StopIteration])
def test_whatever_a_generator_raises_ends_its_file_and_no_other(
    script: Callable[..., Script], kind: type[BaseException]
) -> None:
    def process(settings: Any, filename: str) -> Iterator[Any]:
        yield {"id": 1, "words": []}
        if filename == "f0":
            raise kind("oops")

    one = script(process)
    one.assign(0, 1)
    one.until(lambda: one.ended(0, 1))
    error = one.ledger.errors[0]
    assert isinstance(error, ProviderError)
    assert "file f0, sample 1: process raised" in str(error)
    assert one.ledger.found[0].length == 1
    assert one.ledger.found[1].end == "ended"


def test_a_yielded_object_whose_code_raises_ends_its_file(script: Callable[..., Script]) -> None:
    class Hostile(list):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            raise RuntimeError("hostile iter")

        def __len__(self) -> int:
            raise RuntimeError("hostile len")

    def process(settings: Any, filename: str) -> Iterator[Any]:
        yield {"id": 1, "words": []}
        yield {"id": 2, "words": Hostile([1])}

    one = script(process)
    one.assign(0)
    one.until(lambda: one.ended(0))
    assert one.ledger.found[0].length == 1
    assert "file f0, sample 1" in str(one.ledger.errors[0])


def test_a_flood_of_dropped_samples_passes(script: Callable[..., Script]) -> None:
    def process(settings: Any, filename: str) -> Iterator[Any]:
        for i in range(12_000):
            yield {"id": i, "words": []}

    one = script(process, check=True, check_fail_continue=True)
    one.assign(0)
    one.until(lambda: one.ended(0))
    assert len(one.ledger.found[0].samples) == 100
    assert one.ledger.found[0].dropped_samples == list(range(100, 12_000))


def test_many_files_that_wait_are_all_told(script: Callable[..., Script]) -> None:
    one = script(count(5), files=700, ahead=1)
    for start in range(0, 700, 50):
        one.assign(*range(start, start + 50), pause=2)
    one.until(lambda: len(one.blocked) == 700)
    assert sorted(item[0] for item in one.blocked) == list(range(700))
    assert {(item[2], item[3]) for item in one.blocked} == {(2, 0)}


def test_a_second_attempt_goes_on_where_the_first_one_was_committed(script: Callable[..., Script]) -> None:
    one = script(count(50))
    one.assign(0, limit=20 * COST)
    one.until(lambda: bool(one.blocked))
    mark = one.ledger.marks[0][-1]
    assert mark[0] == 20
    other = script(count(50))
    other.ledger = Ledger(other.declared, [again(0, mark)])
    other.assign(0, limit=25 * COST)
    other.until(lambda: bool(other.blocked))
    assert other.blocked == [[0, 1001, 25, COST]]
    other.grant(0)
    other.until(lambda: other.ended(0))
    assert [sample[0] for sample in other.ledger.found[0].samples] == list(range(20, 50))


def test_a_second_attempt_that_differs_is_an_error_that_names_the_file(script: Callable[..., Script]) -> None:
    one = script(count(50))
    one.assign(0, limit=20 * COST)
    one.until(lambda: bool(one.blocked))
    other = script(count(19))
    other.ledger = Ledger(other.declared, [again(0, one.ledger.marks[0][-1])])
    other.assign(0)
    other.until(lambda: other.ended(0))
    assert isinstance(other.ledger.errors[0], NotRepeatable)
    assert "file f0" in str(other.ledger.errors[0])


@pytest.mark.parametrize("credit", [4, 5])
def test_a_file_ends_where_nothing_more_of_it_is_needed_though_the_last_sample_had_to_wait(
    script: Callable[..., Script], credit: int
) -> None:
    one = script(count(50))
    given = FileAssignment(0, 1, 0, 0, 0, credit * COST, NO_PAUSE, True, [], until=5)
    one.say(m.Assign(1, [given.to_wire()]))
    if credit < 5:
        one.until(lambda: bool(one.blocked))
        one.grant(0)
    one.until(lambda: one.ended(0))
    assert [sample[0] for sample in one.ledger.found[0].samples] == [0, 1, 2, 3, 4]


def test_messages_for_files_that_are_done_are_taken_without_a_word(script: Callable[..., Script]) -> None:
    one = script(count(2))
    one.assign(0)
    one.until(lambda: one.ended(0))
    one.grant(0)
    one.want(0)
    one.say(m.Grant([[77, 1, 1, 1]]))
    one.assign(1)
    one.until(lambda: one.ended(1))


def endless(settings: Any, filename: str) -> Iterator[Any]:
    while True:
        time.sleep(0.0005)
        yield {"id": settings.pass_id, "words": []}


def length_of(one: Script, file: int) -> int:
    return len(one.ledger.found[file].samples)


def test_a_file_gives_way_to_one_that_the_merge_of_another_job_waits_for(script: Callable[..., Script]) -> None:
    one = script(endless)
    one.say(m.BeginDispatch(2, 7, 1))
    one.assign(0)
    one.until(lambda: length_of(one, 0) > 50)
    one.assign(1, dispatch_id=2)
    one.want(1)
    one.until(lambda: length_of(one, 1) > 0)
    one.want(0)
    before = length_of(one, 0)
    one.until(lambda: length_of(one, 0) > before)
    assert {sample[1] for sample in one.ledger.found[0].samples} == {0}, "each in its own pass"
    assert {sample[1] for sample in one.ledger.found[1].samples} == {7}


def test_a_file_gives_way_to_one_of_the_same_job_that_the_merge_waits_for(script: Callable[..., Script]) -> None:
    one = script(endless)
    one.assign(0, 1)
    one.until(lambda: length_of(one, 0) > 50)
    one.want(1)
    one.until(lambda: length_of(one, 1) > 0)
    one.want(0)
    before = length_of(one, 0)
    one.until(lambda: length_of(one, 0) > before)


def test_where_the_merges_of_two_jobs_wait_both_are_served_in_turn(script: Callable[..., Script]) -> None:
    heard, over = threading.Semaphore(60), threading.Event()

    def process(settings: Any, filename: str) -> Iterator[Any]:
        while not over.is_set():
            assert heard.acquire(timeout=20), "who waits is heard again before a file is far ahead"
            yield {"id": 1, "words": []}

    one = script(process)
    one.say(m.BeginDispatch(2, 7, 1))
    one.assign(0)
    one.assign(1, dispatch_id=2)
    deadline = time.monotonic() + 20
    first = second = 0
    while min(first, second) < 300 and time.monotonic() < deadline:
        for file in (0, 1):
            one.want(file)
        for _ in range(one.chunk().rows):
            heard.release()
        first, second = (length_of(one, file) for file in (0, 1))
    over.set()
    heard.release(2)
    assert min(first, second) >= 300, (first, second)
    assert max(first, second) < 4 * min(first, second), "neither has much more than the other"


def test_the_end_of_one_reading_is_nothing_to_another(script: Callable[..., Script]) -> None:
    one = script(count(200))
    one.say(m.BeginDispatch(2, 7, 1))
    one.assign(0, limit=150 * COST)
    one.assign(1, limit=150 * COST, dispatch_id=2)
    one.until(lambda: len(one.blocked) == 2)
    one.say(m.EndDispatch(1))
    one.grant(1)
    one.until(lambda: one.ended(1))
    assert [sample[0] for sample in one.ledger.found[1].samples] == list(range(200))


def test_a_file_goes_on_as_itself_when_one_of_another_job_was_closed_in_its_turn(script: Callable[..., Script]) -> None:
    closed = threading.Event()
    seen: list[tuple[str, int, int, int]] = []

    def process(settings: Any, filename: str) -> Iterator[Any]:
        try:
            while filename == "f1" or not closed.is_set():
                time.sleep(0.0005)
                yield {"id": 1, "words": []}
            for _ in range(3):
                row = one.status_row.row
                seen.append((settings.filename, settings.pass_id, row[FILE], row[ATTEMPT]))
                yield {"id": 2, "words": []}
        finally:
            if filename == "f1":
                closed.set()

    one = script(process)
    one.say(m.BeginDispatch(2, 7, 1))
    one.assign(1, limit=COST, dispatch_id=2)
    one.until(lambda: bool(one.blocked))
    one.assign(0)
    one.until(lambda: length_of(one, 0) > 0)
    one.say(m.EndDispatch(2))
    one.until(lambda: one.ended(0))
    assert seen == [("f0", 0, 0, one.ledger.entries[0].attempt)] * 3


good = st.tuples(st.just("good"), st.integers(0, 99))
bad = st.tuples(st.sampled_from(["bad type", "bad value"]), st.integers(0, 99))
contents = st.lists(
    st.builds(
        lambda many, end: [*many, end],
        st.lists(good | good | bad, max_size=30),
        st.sampled_from([("end", 0), ("end", 0), ("raise", 0)]),
    ),
    min_size=1,
    max_size=6,
)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(contents, st.booleans(), st.booleans(), st.integers(0, 2**32), st.sampled_from([0.0, 0.5]))
def test_under_any_credit_pauses_and_wishes_the_same_samples_come(
    files: list[list[Yield]], drop: bool, weighted: bool, seed: int, blocks: float
) -> None:
    choose = random.Random(seed)
    options: dict[str, Any] = {"check": drop, "check_fail_continue": drop}
    if weighted:
        options["calc_batch_size"] = weigh_of(("good", 0))
    one = Script(reader(files, blocks), files=len(files), ahead=choose.choice([1, 2, 8]), **options)
    try:
        waiting: set[int] = set()

        def some_limit(file: int, need: int = 0) -> int:
            spent = one.ledger.entries[file].spent_bytes
            return spent + choose.choice([0, need, need + COST, need + 700, ALL])

        def some_pause(file: int) -> int:
            return one.ledger.entries[file].committed + choose.choice([1, 2, 5, 1 << 40])

        todo = list(range(len(files)))
        choose.shuffle(todo)
        while todo:
            now, todo = todo[: (k := choose.randint(1, 3))], todo[k:]
            for file in now:
                one.assign(
                    file, limit=some_limit(file), pause=some_pause(file), bound=choose.random() < 0.7,
                    turn=choose.randint(1, 9), ramp=choose.choice([0, 0, 1, 7, 30, 1 << 40]),
                )  # fmt: skip
        while not one.ended(*range(len(files))):
            for file, _, y, need in one.chunk().blocked:
                waiting.add(file)
                assert y == one.ledger.entries[file].committed
                assert need in (0, 1) or need >= COST
            for file in sorted(waiting):
                if choose.random() < 0.7 or not one.hub.pending:  # it may wait only as long as there is more to hear
                    waiting.discard(file)
                    one.grant(file, some_limit(file, 900), some_pause(file), bound=True)
            if choose.random() < 0.3:
                one.want(choose.randrange(len(files)), choose.choice([0, 1, 5, 20, 1 << 40]))
        for file, content in enumerate(files):
            assert one.ledger.found[file] == expected(content, drop=drop, weighted=weighted)
    finally:
        one.close()
