"""Ledger, credit, reading and coordinator under whatever happens, searched by Hypothesis and not listed.

Around the real ones stand pure models: workers that send ranges within their credit, wires that deliver when they
like, a merge that takes. Whatever was done before, a fair schedule comes to the end, and what the merge took is, each
once and in order, what the oracle says. A sequence that fails is shown as the shortest that does.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
import numpy as np
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pydp2.errors import FileCondemned, provider_error, to_wire
from pydp2.order.file_order import files_in_order
from pydp2.order.merge import Merge
from pydp2.order.plan import PassPlan
from pydp2.order.sample_source import END, WAIT, FileFailure, SampleRun
from pydp2.protocol.file_ranges import (
    DROPPED_COST,
    FILE_ENDED,
    FILE_OPEN,
    FILE_RAISED,
    SAMPLE_COST,
    FileAssignment,
    FileRange,
)
from pydp2.protocol.messages import Assign, BeginDispatch, EndDispatch, Grant, StealFile, Want
from pydp2.server.actions import Fatal, Send, Spawn, WorkerGone, WorkerReady
from pydp2.server.dispatch.file_dispatcher import CycleReading, FileDispatcher, ReadContext
from pydp2.server.workers.worker_pool import WorkerPool
from tests.server.sources import losses_of, source_of

from ..order import oracle
from ..simulated.states import check_file_states, check_worker_states

SAME: dict[str, Any] = {"slots": ["as declared"]}
SIZES = (8, 100, 3000)
FAIR = 3000  # rounds of a fair schedule: far more than any pass here takes


@dataclass(frozen=True)
class File:
    """``count`` sample indices, of which every ``dropped_sample``-th is a dropped sample (0: none); the others are of
    ``size`` bytes, every ``large``-th one of ten times that. ``raises``: it ends with an exception. ``deadly``: the
    sample index at which each worker dies that asks for it, if there is such a one."""

    count: int
    size: int
    dropped_sample: int
    large: int
    raises: bool
    deadly: int

    @property
    def kills(self) -> bool:
        """Whether anybody comes as far as its deadly sample."""
        return self.deadly < self.count

    def item(self, y: int) -> int | None:
        """The bytes of sample ``y``, None where it is dropped."""
        if self.dropped_sample and y % self.dropped_sample == self.dropped_sample - 1:
            return None
        return self.size * (10 if self.large and y % self.large == 0 else 1)

    def as_oracle(self, end: int | None) -> oracle.File:
        """The same in the oracle's words; ``end``: where it was condemned."""
        last = min(self.deadly, self.count, self.count if end is None else end)
        rows = [None if (size := self.item(y)) is None else oracle.Row(1, size) for y in range(last)]
        return oracle.File(rows, self.raises or self.kills or end is not None)


FILES = st.builds(
    File, st.integers(0, 40), st.sampled_from(SIZES), st.sampled_from([0, 0, 1, 2, 7]), st.sampled_from([0, 0, 5]),
    st.booleans(), st.sampled_from([99, 99, 0, 3, 20]),
)  # fmt: skip


@dataclass
class Task:
    """A file at a worker."""

    given: FileAssignment
    y: int
    spent: int
    limit: int
    pause: int
    reported: bool = False


@dataclass
class Worker:
    """A worker that is ready: messages that it has not read, its files, and what it sent and nobody has read."""

    inbox: deque[Any] = field(default_factory=deque)
    tasks: dict[int, Task] = field(default_factory=dict)
    wire: deque[Any] = field(default_factory=deque)


class Service(RuleBasedStateMachine):
    """A service whose every step is a rule."""

    @initialize(
        files=st.lists(FILES, min_size=1, max_size=7), workers=st.integers(1, 4), cycle_length=st.integers(1, 4),
        budget=st.sampled_from([1, 2_000, 20_000, 1_000_000]), shuffle=st.booleans(), skip=st.booleans(),
        seed=st.integers(0, 5), arrives=st.sampled_from([0, 1, 9]),
    )  # fmt: skip
    def begin(
        self,
        files: list[File],
        workers: int,
        cycle_length: int,
        budget: int,
        shuffle: bool,
        skip: bool,
        seed: int,
        arrives: int,
    ) -> None:
        self.arrives = arrives  # of what a worker sent before its deadly sample, so much comes before the news
        self.files, self.count, self.lanes, self.budget = files, workers, cycle_length, budget
        self.shuffle, self.skip, self.seed = shuffle, skip, seed
        self.pass_id = 0
        self.largest = max([0, *(f.size * 10 for f in files)]) + SAMPLE_COST
        self._launch()

    def _launch(self) -> None:
        self.coordinator, self.now = WorkerPool(self.count), 0.0
        self.workers: dict[int, Worker] = {}
        self.starting: list[int] = []
        self.late: deque[tuple[int, Any]] = deque()
        self._do(self.coordinator.start())
        self._begin_pass()

    def _begin_pass(self) -> None:
        plan = PassPlan(
            seed=self.seed, pass_id=self.pass_id, files=len(self.files), batch_size=1, shuffle=self.shuffle,
            interleave=self.lanes,
        )  # fmt: skip
        order = files_in_order(plan)
        self.reading = FileDispatcher(
            ReadContext(budget=self.budget, workers=self.count, label=str, skip_errors=self.skip),
            CycleReading(
                length=min(plan.cycle_length, len(order)),
                ramp={int(file): 5 for file in order[: plan.cycle_length]} if self.shuffle else {},
            ),
            pass_id=self.pass_id, seed=self.seed, order=order,
        )  # fmt: skip
        self.merge_losses = losses_of(self.reading)
        self.merge = Merge(plan, source_of(self.reading, self.merge_losses), order)
        self.taken: list[tuple[int, int]] = []
        self.over = self.failed = False
        self.coordinator.begin_pass(self.reading)

    def _do(self, actions: list[Any]) -> None:
        for action in actions:
            match action:
                case Send(number, message):
                    if number in self.workers:
                        self.workers[number].inbox.append(message)
                case Spawn(number, _):
                    self.starting.append(number)
                case Fatal(error):
                    raise error

    # -- what may happen -----------------------------------------------------------------------------------------------
    @precondition(lambda self: self.starting)
    @rule(which=st.integers(0, 9))
    def ready(self, which: int) -> None:
        number = self.starting.pop(which % len(self.starting))
        self.workers[number] = Worker()
        self._do(self.coordinator.handle(WorkerReady(number, SAME)))

    @rule()
    def dispatch(self) -> None:
        self.now += 0.2  # seconds
        self._do(self.coordinator.dispatch(self.now))

    @rule()
    def settle(self) -> None:
        """Everybody starts, is given what there is to give, and reads what was said, as most of the time."""
        while self.starting:
            self.ready(0)
        self.dispatch()
        for worker in self.workers.values():
            while worker.inbox:
                self._obey(worker, worker.inbox.popleft())

    @rule(count=st.integers(1, 30))
    def send_all(self, count: int) -> None:
        """Every worker goes on in every file of its own; nothing of it has arrived yet."""
        for number, worker in list(self.workers.items()):
            for file in sorted(worker.tasks):
                self._send(number, file, count)

    @precondition(lambda self: any(worker.inbox for worker in self.workers.values()))
    @rule(which=st.integers(0, 9), count=st.integers(1, 5))
    def obey(self, which: int, count: int) -> None:
        able = [worker for worker in self.workers.values() if worker.inbox]
        worker = able[which % len(able)]
        for _ in range(min(count, len(worker.inbox))):
            self._obey(worker, worker.inbox.popleft())

    def _obey(self, worker: Worker, message: Any) -> None:
        match message:
            case Assign(_, items):
                for item in items:
                    given = FileAssignment.from_wire(item)
                    worker.tasks[given.file] = Task(given, given.start, given.spent_bytes, given.limit, given.pause)
            case Grant(items):
                for attempt, limit, pause, _ in items:
                    for task in worker.tasks.values():
                        if task.given.attempt == attempt:
                            task.limit, task.pause, task.reported = limit, pause, False
            case StealFile(attempt):
                files = [file for file, task in worker.tasks.items() if task.given.attempt == attempt]
                unopened = [file for file in files if worker.tasks[file].y == worker.tasks[file].given.start]
                for file in unopened:
                    del worker.tasks[file]
                worker.wire.append({attempt} if unopened else set())
            case EndDispatch():
                worker.tasks.clear()
            case BeginDispatch() | Want():
                pass  # nothing is kept back here

    @precondition(lambda self: any(worker.tasks for worker in self.workers.values()))
    @rule(which=st.integers(0, 9), file=st.integers(0, 9), count=st.integers(0, 30))
    def send(self, which: int, file: int, count: int) -> None:
        able = sorted(number for number, worker in self.workers.items() if worker.tasks)
        number = able[which % len(able)]
        tasks = sorted(self.workers[number].tasks)
        self._send(number, tasks[file % len(tasks)], count)

    def _send(self, who: int, number: int, count: int) -> None:
        """Up to ``count`` sample indices of a file, as far as credit and stops allow; then a report of what it waits
        for."""
        worker = self.workers.get(who)
        if worker is None:
            return  # it died in a file before
        task, file = worker.tasks[number], self.files[number]
        first, sizes, dropped_samples, waits, dies = task.y, [], [], None, False
        until = min(file.count, task.given.until)
        while task.y < until and task.y - first < count and waits is None and not dies:
            size = file.item(task.y)
            if task.y >= task.pause:
                waits = 0
            elif task.y == file.deadly:
                dies = True
            elif size is None:
                dropped_samples.append([task.y, "name", "too short"])
                task.spent += DROPPED_COST
                task.y += 1
            elif task.spent + size + SAMPLE_COST > task.limit:
                waits = size + SAMPLE_COST
            else:
                sizes.append(size)
                task.spent += size + SAMPLE_COST
                task.y += 1
        ended = task.y >= until
        if ended or task.y > first:
            sample_indices = [y for y in range(first, task.y) if file.item(y) is not None]
            run = (
                SampleRun(None, 0, len(sizes), np.array(sample_indices), np.array(sizes, np.int64), None)
                if sizes
                else None
            )
            state = FILE_OPEN if not ended else FILE_RAISED if file.raises else FILE_ENDED
            error = (
                to_wire(provider_error(f"file {number}, sample {task.y}: raised", "ValueError"))
                if state == FILE_RAISED
                else {}
            )
            part = FileRange(
                number, task.given.attempt, first, task.y - first, len(sizes), state, [task.y], dropped_samples, error
            )
            worker.wire.append((part, run))
        if dies:
            running = number, task.given.attempt, task.y
            self._bury(who, running, self.arrives)
        elif ended:
            del worker.tasks[number]
        elif waits is not None and not task.reported:
            task.reported = True
            worker.wire.append([number, task.given.attempt, task.y, waits])

    @precondition(lambda self: any(worker.wire for worker in self.workers.values()))
    @rule(which=st.integers(0, 9), count=st.integers(1, 9))
    def deliver(self, which: int, count: int) -> None:
        able = [number for number, worker in self.workers.items() if worker.wire]
        number = able[which % len(able)]
        for _ in range(min(count, len(self.workers[number].wire))):
            self._deliver(number, self.workers[number].wire.popleft())

    def _deliver(self, number: int, what: Any) -> None:
        if isinstance(what, tuple):
            self.coordinator.commit(number, *what)
        elif isinstance(what, set):
            self.coordinator.return_files(number, what)
        else:
            self.coordinator.worker_blocked(number, *what)

    @precondition(lambda self: self.workers)
    @rule(which=st.integers(0, 9), blame=st.integers(0, 9), first=st.sampled_from([0, 0, 1, 2, 9]))
    def die(self, which: int, blame: int, first: int) -> None:
        """A worker is killed, in a sample of a file or in none. Of what it sent, some comes before the news."""
        number = sorted(self.workers)[which % len(self.workers)]
        worker = self.workers[number]
        running = None
        if self.skip and blame < len(worker.tasks):
            task = worker.tasks[sorted(worker.tasks)[blame]]
            if task.y < min(self.files[task.given.file].count, task.pause):
                running = (task.given.file, task.given.attempt, task.y)
        self._bury(number, running, first)

    def _bury(self, number: int, running: tuple[int, int, int] | None, first: int) -> None:
        worker = self.workers.pop(number)
        for _ in range(min(first, len(worker.wire))):
            self._deliver(number, worker.wire.popleft())
        self.late.extend((number, what) for what in worker.wire)
        self._do(self.coordinator.handle(WorkerGone(number, running, "was killed", False)))

    @precondition(lambda self: self.late)
    @rule()
    def late_output(self) -> None:
        before = len(self.taken), self.reading.samples_committed
        self._deliver(*self.late.popleft())
        assert (len(self.taken), self.reading.samples_committed) == before, "late output was committed"

    @precondition(lambda self: not self.over)
    @rule(count=st.integers(1, 100))
    def take(self, count: int) -> None:
        while count and not self.over:
            front = self.merge.next_run()
            if isinstance(front, SampleRun):
                some = min(count, front.hi - front.lo)
                self.taken += [
                    (self.merge.current_file, int(y)) for y in front.sample_indices[front.lo : front.lo + some]
                ]
                self.merge.consume(some)
                count -= some
            elif front is WAIT:
                self.reading.want(self.merge.current_file)
                return
            else:
                self.over, self.failed = True, isinstance(front, FileFailure)
                assert self.failed or front is END
                self._compare()
                self._do(self.coordinator.end_pass(self.reading))

    @rule(rare=st.integers(0, 15))
    def leave(self, rare: int) -> None:
        """The trainer leaves the pass, or has its end; the next begins."""
        if rare == 15 or self.over:
            self._do(self.coordinator.end_pass(self.reading))
            self.pass_id += 1
            self._begin_pass()

    @rule(rare=st.integers(0, 15))
    def restart(self, rare: int) -> None:
        """The server is killed and started again: all is gone, the pass begins anew."""
        if rare == 15:
            self._launch()

    # -- what must hold ------------------------------------------------------------------------------------------------
    def _expected(self) -> tuple[list[tuple[int, int]], bool]:
        ends = {file: y for file, (y, _) in self.merge_losses.early_ends.items()}
        files = [file.as_oracle(ends.get(number)) for number, file in enumerate(self.files)]
        options = oracle.Options(
            seed=self.seed, shuffle=self.shuffle, interleave=self.lanes, skip=self.skip, batch_size=1
        )
        names: list[tuple[int, int]] = []
        self.losses: list[tuple[int, int]] = []
        try:
            names += ((file, y) for file, y, _ in oracle.merged(files, options, self.pass_id, self.losses))
        except oracle.Refusal:
            return names, True
        return names, False

    def _compare(self) -> None:
        expected, failed = self._expected()
        assert self.taken == expected
        assert self.failed == failed
        dropped = sum(y < self.files[file].count and self.files[file].item(y) is None for file, y in self.losses)
        assert self.merge_losses.dropped == dropped - self._lost_in_holes()

    def _lost_in_holes(self) -> int:
        """Files that ended early where a dropped sample would have been: losses, but not of a sample."""
        ended = {(file, y) for file, (y, _) in self.merge_losses.early_ends.items()}
        return sum(
            y < self.files[file].count and self.files[file].item(y) is None and (file, y) in ended
            for file, y in self.losses
        )

    @invariant()
    def what_was_taken_is_the_beginning_of_what_the_oracle_says(self) -> None:
        if hasattr(self, "taken") and not self.over:
            assert self.taken == self._expected()[0][: len(self.taken)]

    @invariant()
    def a_file_is_condemned_at_its_deadly_sample_and_nowhere_else(self) -> None:
        if hasattr(self, "reading"):
            for file, entry in self.reading.ledgers.items():
                error = entry.tail.error if isinstance(entry.tail, FileFailure) else entry.early_end
                if isinstance(error, FileCondemned):
                    assert str(error).startswith(f"file {file}, sample {entry.committed}: three workers died")

    @invariant()
    def credit_is_bounded_by_its_budget_and_one_sample(self) -> None:
        if hasattr(self, "reading"):
            entries = self.reading.ledgers.values()
            dropped_samples = DROPPED_COST * sum(len(entry.dropped) for entry in entries)
            least = len(self.merge.cycle)  # a share is at least one byte
            assert self.reading.credit.used <= max(self.budget, 2 * least) + self.largest + dropped_samples
            assert all(entry.use >= 0 for entry in entries)

    @invariant()
    def the_states_of_files_and_workers_agree_with_each_other(self) -> None:
        if hasattr(self, "reading"):
            check_file_states(self.reading)
            check_worker_states(self.coordinator)

    def teardown(self) -> None:
        """Whatever happened: where everybody gets his turn, the pass comes to its end."""
        if not hasattr(self, "reading"):
            return
        for _ in range(FAIR):
            if self.over:
                break
            self.settle()
            self.send_all(100)
            for number, worker in self.workers.items():
                while worker.wire:
                    self._deliver(number, worker.wire.popleft())
            self.take(1000)
        assert self.over, f"stuck after {len(self.taken)} samples: {self.reading.ledgers}"


Service.TestCase.settings = settings(stateful_step_count=50, deadline=None)
test_any_sequence_keeps_order_exactly_once_bounded_credit_and_progress = Service.TestCase
