"""Keep the workers of a service: how many there are, which of them work, and what follows when one is lost. Pure.

``handle(event)`` gives the actions that follow. One worker more than asked for stands by, its provider ready, so that a
loss costs no more than handing over the lost one's files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydp2.errors import ProviderError, ServiceLost, provider_error
from pydp2.order.sample_source import SampleRun
from pydp2.order.snapshot import Reread
from pydp2.protocol.file_ranges import FileRange
from pydp2.server.actions import Action, Event, Fatal, Log, Spawn, WorkerBroken, WorkerGone, WorkerReady
from pydp2.server.dispatch.attempts import Attempts
from pydp2.server.dispatch.file_dispatcher import FileDispatcher
from pydp2.server.spec import status_rows
from pydp2.server.state_table import next_state
from pydp2.server.workers.worker_state import ACTIVE, STARTING, WORK_TRANSITIONS, WorkEvent, WorkState

_MAX_START_DEATHS = 5
"""So many workers lost in a row before their provider was ready, and the service gives up."""
_MAX_FRUITLESS_DEATHS = 20
_FRUITLESS = (
    "{} workers in a row ended outside of process(), without a sample between them (the last one {}); "
    "look at what they wrote"
)


@dataclass(slots=True)
class _PooledWorker:
    number: int
    status_row: int
    state: WorkState = STARTING  # changed by move() alone

    def move(self, event: WorkEvent) -> None:
        """Change the work as ``event`` says. Raises IllegalTransition when the present work does not allow it."""
        self.state = next_state(WORK_TRANSITIONS, self.state, event)


class WorkerPool:
    """Keeps ``workers`` workers at work and one in reserve, on ``status_rows`` status rows."""

    def __init__(self, workers: int) -> None:
        self.target = workers
        self.status_rows = status_rows(workers)
        self.schema: dict[str, Any] | None = None
        self.dispatchers: dict[int, FileDispatcher] = {}
        """What is read now, by number: one for each job that is in a pass."""
        self._jobs: dict[int, str] = {}  # whose each is
        self.workers_lost = 0
        self._workers: dict[int, _PooledWorker] = {}
        self._active: dict[int, None] = {}  # those of them that read, in the order in which they began
        self._standby: dict[int, _PooledWorker] = {}
        self._free = list(range(self.status_rows))
        self._next = 0
        self._start_deaths = 0
        self._fruitless_deaths = self._seen_committed = 0
        self._begun = self._committed = 0  # readings, and samples of those that are over
        self._attempts: Attempts[FileDispatcher] = Attempts()
        self._closing = False

    # -- events ----------------------------------------------------------------------------------------------------
    def start(self) -> list[Action]:
        """Start the workers."""
        return self._replenish()

    def handle(self, event: Event) -> list[Action]:
        """Return the actions that follow from ``event``."""
        match event:
            case WorkerReady(worker, schema):
                return self._ready(worker, schema)
            case WorkerBroken(_, error):
                return [Fatal(error)]
            case WorkerGone():
                return self._gone(event)

    def _ready(self, number: int, schema: dict[str, Any]) -> list[Action]:
        worker = self._workers.get(number)
        if worker is None:
            return []
        if self.schema is None:
            self.schema = schema
        elif schema != self.schema:
            return [Fatal(_schema_difference(self.schema, schema))]
        worker.move(WorkEvent.READY)
        self._standby[number] = worker
        self._start_deaths = 0
        return self._promote()

    def _gone(self, event: WorkerGone) -> list[Action]:
        worker = self._workers.pop(event.worker, None)
        if worker is None:
            return []
        before = worker.state
        worker.move(WorkEvent.EXIT)
        self._active.pop(worker.number, None)
        self._standby.pop(worker.number, None)
        if self._closing:
            return []
        self._free.append(worker.status_row)
        out: list[Action] = []
        if before is STARTING:
            self._start_deaths += 1
            # kills at random meet some workers that are starting: that is not the provider's doing
            most = _MAX_START_DEATHS if event.voluntary else _MAX_FRUITLESS_DEATHS
            if self._start_deaths >= most or self.schema is None:
                return [
                    Fatal(
                        ProviderError(
                            f"a worker {event.how} while it imported the provider or ran its init_hook; "
                            "run `pydp2 check` to see it happen in the foreground"
                        )
                    )
                ]
        if before is ACTIVE:
            self.workers_lost += 1
            where = self._describe_sample(event)
            out.append(Log(f"worker {worker.number} {event.how}{where}; its files go to another", kind="worker lost"))
            if self.dispatchers and event.voluntary and self._too_many_lost(bool(where)):
                return [Fatal(ServiceLost(_FRUITLESS.format(_MAX_FRUITLESS_DEATHS, event.how)))]
            for dispatcher in self.dispatchers.values():
                dispatcher.worker_lost(
                    worker.number,
                    event.running_sample,
                    event.how,
                    hungry=event.over_memory,
                    sample_timeout=event.sample_timeout,
                )
        return out + self._promote() + self._replenish()

    def _describe_sample(self, event: WorkerGone) -> str:
        """Return the sample that a lost worker was asking for, in words, if a pass still wants it."""
        if event.running_sample is None:
            return ""
        file, attempt, sample_index = event.running_sample
        dispatcher = self._attempts.dispatcher_of(attempt)
        return "" if dispatcher is None else f" in file {dispatcher.label(file)}, sample {sample_index}"

    def _too_many_lost(self, blamed: bool) -> bool:
        """Return True if too many workers were lost in a row without a sample between them, none of them in a file
        that can be blamed."""
        committed = self._committed + sum(dispatcher.samples_committed for dispatcher in self.dispatchers.values())
        if blamed or committed != self._seen_committed:
            self._seen_committed, self._fruitless_deaths = committed, 0
        self._fruitless_deaths += not blamed
        return self._fruitless_deaths >= _MAX_FRUITLESS_DEATHS

    # -- state -----------------------------------------------------------------------------------------------------
    @property
    def active(self) -> list[int]:
        """Workers that read."""
        return [*self._active]

    def is_active(self, worker: int) -> bool:
        """Return True if ``worker`` reads."""
        return worker in self._active

    @property
    def starting(self) -> int:
        """Workers that are starting and will be needed."""
        starting = len(self._workers) - len(self._active) - len(self._standby)
        return min(starting, self.target - len(self._active))

    def was_started(self, worker: int) -> bool:
        """Return True if there is or was a worker of this number."""
        return worker < self._next

    def status_row_of(self, worker: int) -> int | None:
        """Return the status row of ``worker`` while it lives."""
        known = self._workers.get(worker)
        return None if known is None else known.status_row

    def files_of(self, worker: int) -> int:
        """Return the number of files that ``worker`` was given and that have not ended."""
        return sum(dispatcher.file_count(worker) for dispatcher in self.dispatchers.values())

    # -- readings --------------------------------------------------------------------------------------------------
    def begin_pass(self, dispatcher: FileDispatcher, job: str = "") -> None:
        """Let workers read for ``dispatcher`` of ``job`` too, from now on."""
        self._begun += 1
        self._jobs[self._begun] = job
        dispatcher.number, dispatcher.attempts = self._begun, self._attempts
        self.dispatchers[dispatcher.number] = dispatcher
        self._divide_budget()
        for worker in self._active:
            dispatcher.add_worker(worker)

    def end_pass(self, dispatcher: FileDispatcher) -> list[Action]:
        """Stop reading for ``dispatcher``: workers drop what they have of it."""
        if dispatcher.number not in self.dispatchers:
            return []
        out = self._name_jobs(dispatcher, dispatcher.end())
        del self.dispatchers[dispatcher.number], self._jobs[dispatcher.number]
        self._committed += dispatcher.samples_committed
        self._divide_budget()
        return out

    def _name_jobs(self, dispatcher: FileDispatcher, actions: list[Action]) -> list[Action]:
        """Return the ``actions`` of one dispatcher. Where there are several, what the user is told names the job."""
        if len(self.dispatchers) < 2:
            return actions
        job = self._jobs[dispatcher.number]
        return [Log(f"job {job!r}: {act.text}", act.kind) if isinstance(act, Log) else act for act in actions]

    def _divide_budget(self) -> None:
        """Share the read-ahead budget out."""
        for dispatcher in self.dispatchers.values():
            dispatcher.credit.resize(dispatcher.budget // len(self.dispatchers))

    def dispatch(self) -> list[Action]:
        """Files and credit that can be given out now."""
        expecting = self.starting
        return [act for each in self.dispatchers.values() for act in self._name_jobs(each, each.dispatch(expecting))]

    # -- what workers send -----------------------------------------------------------------------------------------
    def wanted_samples(self, part: FileRange) -> Reread | None:
        """Return what was asked for of the file of ``part``, if the attempt that sends it reads the file again in
        part."""
        dispatcher = self._attempts.dispatcher_of(part.attempt)
        return None if dispatcher is None else dispatcher.wanted_samples(part)

    def commit(self, worker: int, part: FileRange, run: SampleRun | None) -> None:
        """Commit a range that came from ``worker``. Late output of what is over is dropped without a word."""
        dispatcher = self._attempts.dispatcher_of(part.attempt)
        if dispatcher is not None:
            dispatcher.commit(worker, part, run)
        elif run is not None:
            run.release()

    def worker_blocked(self, worker: int, file: int, attempt: int, sample_index: int, need: int) -> None:
        """Note that ``worker`` waits in ``file``: for credit of ``need`` bytes, or (0) at a stop."""
        dispatcher = self._attempts.dispatcher_of(attempt)
        if dispatcher is not None:
            dispatcher.worker_blocked(worker, file, attempt, sample_index, need)

    def close(self) -> None:
        """Workers that go are not replaced any more."""
        self._closing = True

    # -- inside ----------------------------------------------------------------------------------------------------
    def _promote(self) -> list[Action]:
        while self._standby and len(self._active) < self.target:
            number = min(self._standby)  # hardly ever more than one
            self._standby.pop(number).move(WorkEvent.PROMOTE)
            self._active[number] = None
            for dispatcher in self.dispatchers.values():
                dispatcher.add_worker(number)
        return []

    def _replenish(self) -> list[Action]:
        out: list[Action] = []
        while len(self._workers) < self.target + 1:
            worker = _PooledWorker(self._next, self._free.pop(0))
            self._next += 1
            self._workers[worker.number] = worker
            out.append(Spawn(worker.number, worker.status_row))
        return out


def _schema_difference(first: dict[str, Any], other: dict[str, Any]) -> ProviderError:
    names = [name for name in first if first.get(name) != other.get(name)]
    shown = "; ".join(f"{name}: {first.get(name)!r:.200} and {other.get(name)!r:.200}" for name in names)
    return provider_error(
        f"the init_hook declares something else in another worker ({shown}); it must depend on its arguments alone",
        "ValueError",
    )
