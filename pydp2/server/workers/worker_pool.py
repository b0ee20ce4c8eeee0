"""Keep the workers of a service: how many there are, which of them read, and what to do when one is lost. Pure.

``handle(event)`` returns the actions that follow. Each host, this machine or another one, has a spare worker: it stands
by, its provider ready, so that after a loss it only has to take over the files of the lost worker. An error that ends
the service if a worker of this machine has it only turns another host away.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pydp2.errors import Error, ProviderError, ServiceLost, provider_error
from pydp2.options.service_spec import status_rows
from pydp2.order.sample_source import SampleRun
from pydp2.order.snapshot import Reread
from pydp2.protocol.file_ranges import FileRange
from pydp2.protocol.state_table import next_state
from pydp2.server.actions import (
    DEFAULT_JOB,
    THIS_HOST,
    Action,
    Event,
    Fatal,
    Log,
    Spawn,
    TurnAway,
    WorkerBroken,
    WorkerGone,
    WorkerReady,
)
from pydp2.server.dispatch.file_dispatcher import FileDispatcher
from pydp2.server.dispatch.ledger import Attempts
from pydp2.system.log_events import LogEvent, LogFields

_SHARES_SECONDS = 0.5
"""Seconds from the beginning of a pass in which workers that are starting keep their share of its first files. Workers
start one after another, and without this those that come first get nearly all files of a short list."""
_MAX_START_DEATHS = 5
"""Number of workers in a row that may be lost before their provider is ready; then the service gives up."""
_MAX_FRUITLESS_DEATHS = 20
_FRUITLESS = (
    "{} workers in a row ended outside of process(), without a sample between them (the last one {}); "
    "look at what they wrote"
)
_MAX_FRUITLESS_KILLS = 200
"""The same number for workers that were killed from outside during a pass: random kills also hit workers that are just
starting."""
_FRUITLESS_KILLS = (
    "{} workers in a row were killed, without a sample between them (the last one {}); find out what kills them: the "
    "kernel for lack of memory (`dmesg` shows it), or another program"
)


class WorkState(Enum):
    """State of a worker in the pool. The watchdog (:mod:`pydp2.host.watchdog`) has a state of its own for the process:
    it may end any worker, and the pool removes the worker once the process has ended."""

    STARTING = "starting"
    STANDBY = "standby"
    ACTIVE = "active"
    GONE = "gone"


class WorkEvent(Enum):
    """Event that changes the state of a worker."""

    READY = "ready"
    """The provider of the worker is ready."""
    PROMOTE = "promote"
    """The worker gets files from now on."""
    EXIT = "exit"
    """The process of the worker has ended."""


# The loop compares with these in every turn, and in Python 3.11 the access to a member of an Enum is a call.
STARTING, STANDBY, ACTIVE = WorkState.STARTING, WorkState.STANDBY, WorkState.ACTIVE

_W, _E = WorkState, WorkEvent

WORK_TRANSITIONS: dict[tuple[WorkState, WorkEvent], WorkState] = {
    (_W.STARTING, _E.READY): _W.STANDBY,
    (_W.STANDBY, _E.PROMOTE): _W.ACTIVE,
    **{(state, _E.EXIT): _W.GONE for state in (_W.STARTING, _W.STANDBY, _W.ACTIVE)},
}
"""State and event, mapped to the state after the event."""


@dataclass(slots=True)
class _PooledWorker:
    number: int
    status_row: int
    host: int = THIS_HOST
    state: WorkState = STARTING  # changed by move() alone

    def move(self, event: WorkEvent) -> None:
        """Change the state according to ``event``. Raises IllegalTransition if the present state does not allow it."""
        self.state = next_state(WORK_TRANSITIONS, self.state, event)


class HostCapacity:
    """Worker slots of one host. ``target``: number of workers that shall read."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.free_rows = list(range(status_rows(target)))
        self.workers: dict[int, None] = {}
        self.active = 0
        self.standby: set[int] = set()
        self.start_deaths = 0
        self.fruitless_deaths = self.fruitless_kills = self.seen_committed = 0

    @property
    def wanted(self) -> int:
        """Number of processes to run, the spare one included."""
        return self.target + 1 if self.target else 0


class WorkerPool:
    """Pool of workers: ``workers`` of them read on this machine, more on other hosts; each host has a spare one."""

    def __init__(self, workers: int) -> None:
        self.schema: dict[str, Any] | None = None
        self.dispatchers: dict[int, FileDispatcher] = {}
        """Dispatchers by dispatch number: one for each job that is in a pass."""
        self._jobs: dict[int, str] = {}  # name of the job by dispatch number
        self._dispatched_since: dict[int, float] = {}  # time by dispatch number
        self.workers_lost = 0
        self.no_replacement: ServiceLost | None = None
        """Error because of which no worker can be started on this machine any more. The service ends with it when no
        worker is left."""
        self._workers: dict[int, _PooledWorker] = {}
        self._active: dict[int, None] = {}  # workers that read, in the order in which they began
        self._hosts = {THIS_HOST: HostCapacity(workers)}
        self._next = 0
        self._begun = self._committed = 0  # number of dispatches; samples of the dispatches that have ended
        self._attempts: Attempts[FileDispatcher] = Attempts()
        self._closing = False
        self._budget = 0  # read-ahead budget in bytes, once hosts have joined; before, that of each dispatcher counts

    # -- events ----------------------------------------------------------------------------------------------------
    def start(self) -> list[Action]:
        """Start the workers of this machine."""
        return self._replenish(THIS_HOST)

    def handle(self, event: Event) -> list[Action]:
        """Return the actions that follow from ``event``."""
        match event:
            case WorkerReady(worker, schema):
                return self._ready(worker, schema)
            case WorkerBroken(worker, error):
                return self._give_up(worker, error)
            case WorkerGone():
                return self._worker_gone(event)

    def _give_up(self, worker: int, error: Error) -> list[Action]:
        """Return the actions if no worker can run on the host of ``worker``."""
        known = self._workers.get(worker)
        host = THIS_HOST if known is None else known.host
        return [Fatal(error) if host == THIS_HOST else TurnAway(host, error)]

    def _ready(self, number: int, schema: dict[str, Any]) -> list[Action]:
        worker = self._workers.get(number)
        if worker is None:
            return []
        if self.schema is None:
            self.schema = schema
        elif schema != self.schema:
            return self._give_up(number, _schema_difference(self.schema, schema))
        worker.move(WorkEvent.READY)
        capacity = self._hosts[worker.host]
        capacity.standby.add(number)
        capacity.start_deaths = 0
        self._promote(worker.host)
        return []

    def _worker_gone(self, event: WorkerGone) -> list[Action]:
        worker = self._workers.get(event.worker)
        if worker is None:
            return []
        if worker.state is STARTING and not self._closing and (error := self._start_error(worker, event)) is not None:
            actions = self._give_up(worker.number, error)
            self._remove(worker)
            return actions
        before = worker.state
        self._remove(worker)
        if self._closing:
            return []
        out: list[Action] = []
        if before is not STARTING:
            where, sample = self._running_sample(event)
            error = self._fruitless_error(worker.host, event, bool(where))
            if before is ACTIVE:
                self.workers_lost += 1
                self._hand_over_files(event)
            rest = "its files go to another" if before is ACTIVE else "it stood by"
            about = {"worker": worker.number, "host": worker.host, **sample}
            out.append(Log(f"worker {worker.number} {event.how}{where}; {rest}", LogEvent.WORKER_LOST, about))
            if error is not None:
                return [Fatal(error)] if worker.host == THIS_HOST else [*out, TurnAway(worker.host, error)]
        self._promote(worker.host)
        return out + self._replenish(worker.host)

    def _start_error(self, worker: _PooledWorker, event: WorkerGone) -> Error | None:
        """Return the error because of which no more workers are started on the host of ``worker``, which ended before
        it was ready; None if more are started."""
        capacity = self._hosts[worker.host]
        capacity.start_deaths += 1
        # Random kills also hit workers that are starting: the provider is not the cause.
        most = _MAX_START_DEATHS if event.voluntary else _MAX_FRUITLESS_DEATHS
        is_first = self.schema is None and worker.host == THIS_HOST  # the program is waiting and gets the error at once
        if capacity.start_deaths < most and not is_first:
            return None
        return ProviderError(
            f"a worker {event.how} while it imported the provider or ran its init_hook; "
            "run `pydp2 check` to see it happen in the foreground"
        )

    def _remove(self, worker: _PooledWorker) -> None:
        """Remove ``worker``, whose process has ended."""
        del self._workers[worker.number]
        capacity = self._hosts[worker.host]
        capacity.active -= worker.state is ACTIVE
        worker.move(WorkEvent.EXIT)
        self._active.pop(worker.number, None)
        capacity.standby.discard(worker.number)
        capacity.workers.pop(worker.number, None)
        capacity.free_rows.append(worker.status_row)

    def _hand_over_files(self, event: WorkerGone) -> None:
        """Give the files of the worker of ``event`` to others."""
        for dispatcher in self.dispatchers.values():
            dispatcher.worker_lost(event)

    # -- hosts -----------------------------------------------------------------------------------------------------
    def add_host(self, host: int, worker_slots: int) -> list[Action]:
        """Start the workers of ``host``, another machine with ``worker_slots`` worker slots."""
        self._hosts[host] = HostCapacity(worker_slots)
        return self._replenish(host)

    def remove_host(self, host: int, running: Mapping[int, tuple[int, int, int]], how: str) -> None:
        """Give the files of ``host``, which is lost, to the workers of other hosts. ``running``: the samples that its
        workers were asking for, according to its last message. No sample is blamed for that; but a file is, if workers
        end at it again and again without a new sample of it."""
        capacity = self._hosts.pop(host, None)
        if capacity is None:
            return
        for number in capacity.workers:
            worker = self._workers.pop(number)
            if worker.state is ACTIVE:
                self.workers_lost += capacity.target > 0 or self.files_of(number) > 0  # not if the host left in order
                del self._active[number]
                self._hand_over_files(
                    WorkerGone(number, running.get(number), how, voluntary=False, over_memory=True, host_lost=True)
                )
            worker.move(WorkEvent.EXIT)

    def drain_host(self, host: int) -> None:
        """Give no new files to ``host``, which will leave. Its workers return the files that they have not begun."""
        capacity = self._hosts.get(host)
        if capacity is None:  # the host leaves before its workers were started
            return
        capacity.target = 0
        for number in capacity.workers:
            for dispatcher in self.dispatchers.values():
                dispatcher.load.retire(number)

    def return_files(self, worker: int, attempts: Container[int]) -> None:
        """Give the files of ``attempts``, which ``worker`` has not begun, to others: its host leaves, or another worker
        has no file."""
        for dispatcher in self.dispatchers.values():
            dispatcher.return_files(worker, attempts)

    def is_drained(self, host: int) -> bool:
        """Return True if no worker of ``host`` has a file that it has not ended."""
        return not any(self.files_of(worker) for worker in self.workers_of(host))

    @property
    def target(self) -> int:
        """Number of workers that shall read, on all hosts."""
        return sum(capacity.target for capacity in self._hosts.values())

    def host_of(self, worker: int) -> int | None:
        """Return the host of ``worker``; None once its process has ended."""
        known = self._workers.get(worker)
        return None if known is None else known.host

    def workers_of(self, host: int) -> list[int]:
        """Return the workers of ``host`` whose process has not ended."""
        capacity = self._hosts.get(host)
        return [] if capacity is None else [*capacity.workers]

    def _running_sample(self, event: WorkerGone) -> tuple[str, LogFields]:
        """Return the sample that a lost worker was asking for, if a pass still needs it, as text and fields."""
        if event.running_sample is None:
            return "", {}
        file, attempt, sample_index = event.running_sample
        dispatcher = self._attempts.dispatcher_of(attempt)
        ledger = None if dispatcher is None else dispatcher.ledgers.get(file)
        if dispatcher is None or ledger is None or ledger.attempt != attempt:
            return "", {}
        job = self._jobs[dispatcher.number]
        of_job = "" if job in ("", DEFAULT_JOB) and len(self.dispatchers) < 2 else f" of job {job!r}"
        label = dispatcher.label(file)
        about: LogFields = {"file": label, "sample": sample_index, "job": job or DEFAULT_JOB}
        return f" in file {label}, sample {sample_index}{of_job}", about

    def _fruitless_error(self, host: int, event: WorkerGone, blamed: bool) -> ServiceLost | None:
        """Return an error if no more workers are started on ``host``, because too many were lost in a row without a new
        sample, and no file can be blamed; None if more are started."""
        capacity = self._hosts[host]
        committed = self._committed + sum(dispatcher.samples_committed for dispatcher in self.dispatchers.values())
        if blamed or committed != capacity.seen_committed:
            capacity.seen_committed, capacity.fruitless_deaths, capacity.fruitless_kills = committed, 0, 0
        if not blamed:
            capacity.fruitless_deaths += event.voluntary
            capacity.fruitless_kills += not event.voluntary and bool(self.dispatchers)
        if capacity.fruitless_deaths >= _MAX_FRUITLESS_DEATHS:
            return ServiceLost(_FRUITLESS.format(_MAX_FRUITLESS_DEATHS, event.how))
        if capacity.fruitless_kills >= _MAX_FRUITLESS_KILLS:
            return ServiceLost(_FRUITLESS_KILLS.format(_MAX_FRUITLESS_KILLS, event.how))
        return None

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
        """Number of workers that are starting and will be needed to read."""
        starting = 0
        for capacity in self._hosts.values():
            if capacity.target:
                processes = len(capacity.workers) - len(capacity.standby)
                starting += min(processes, capacity.target) - capacity.active
        return starting

    def files_of(self, worker: int) -> int:
        """Return the number of files that are assigned to ``worker``."""
        return sum(dispatcher.load.file_count(worker) for dispatcher in self.dispatchers.values())

    # -- dispatches ------------------------------------------------------------------------------------------------
    def begin_pass(self, dispatcher: FileDispatcher, job: str = "") -> None:
        """Let workers also read for ``dispatcher``, which belongs to ``job``, from now on."""
        self._begun += 1
        self._jobs[self._begun] = job
        dispatcher.number, dispatcher.attempts = self._begun, self._attempts
        self.dispatchers[dispatcher.number] = dispatcher
        self._divide_budget()
        for worker in self._active:
            if self._hosts[self._workers[worker].host].target:  # not if its host leaves
                dispatcher.add_worker(worker)

    def end_pass(self, dispatcher: FileDispatcher) -> list[Action]:
        """Stop reading for ``dispatcher``: workers drop its files."""
        if dispatcher.number not in self.dispatchers:
            return []
        out = self._name_jobs(dispatcher, dispatcher.end())
        del self.dispatchers[dispatcher.number], self._jobs[dispatcher.number]
        self._dispatched_since.pop(dispatcher.number, None)
        self._committed += dispatcher.samples_committed
        self._divide_budget()
        return out

    def _name_jobs(self, dispatcher: FileDispatcher, actions: list[Action]) -> list[Action]:
        """Return the ``actions`` of one dispatcher. Log lines get the name of the job, unless the default job is the
        only one."""
        job = self._jobs[dispatcher.number]
        if job in ("", DEFAULT_JOB) and len(self.dispatchers) < 2:
            return actions
        return [
            Log(f"job {job!r}: {act.text}", act.event, {"job": job, **act.fields}) if isinstance(act, Log) else act
            for act in actions
        ]

    def _divide_budget(self) -> None:
        """Divide the read-ahead budget among the dispatchers."""
        for dispatcher in self.dispatchers.values():
            dispatcher.credit.resize((self._budget or dispatcher.budget) // len(self.dispatchers))

    def fit_budget(self, budget: int) -> None:
        """Set the read-ahead budget, in bytes, of all dispatchers together, because hosts have joined or left."""
        self._budget = budget
        self._divide_budget()

    def dispatch(self, now: float) -> list[Action]:
        """Return the actions that assign files and grant credit, as far as that is possible now."""
        actions: list[Action] = []
        if self.dispatchers:
            expecting = self.starting
            for number, dispatcher in self.dispatchers.items():
                began = self._dispatched_since.setdefault(number, now)
                waits = now - began < _SHARES_SECONDS
                actions += self._name_jobs(dispatcher, dispatcher.dispatch(expecting, waits=waits))
        return actions

    # -- messages from workers -------------------------------------------------------------------------------------
    def wanted_samples(self, part: FileRange) -> Reread | None:
        """Return the reread to which ``part`` belongs; None if its attempt reads the whole file, or has ended."""
        dispatcher = self._attempts.dispatcher_of(part.attempt)
        return None if dispatcher is None else dispatcher.wanted_samples(part)

    def commit(self, worker: int, part: FileRange, run: SampleRun | None) -> None:
        """Commit a range that came from ``worker``. Late output of an ended dispatch is dropped silently."""
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
        """Replace no more workers."""
        self._closing = True

    # -- inside ----------------------------------------------------------------------------------------------------
    def _promote(self, host: int) -> None:
        """Let spare workers of ``host`` read, as many as are missing."""
        capacity = self._hosts[host]
        while capacity.standby and capacity.active < capacity.target:
            number = min(capacity.standby)  # there is hardly ever more than one
            capacity.standby.remove(number)
            self._workers[number].move(WorkEvent.PROMOTE)
            capacity.active += 1
            self._active[number] = None
            for dispatcher in self.dispatchers.values():
                dispatcher.add_worker(number)

    def _replenish(self, host: int) -> list[Action]:
        """Start as many workers on ``host`` as are missing."""
        capacity = self._hosts[host]
        if host == THIS_HOST and self.no_replacement is not None:
            return [] if self._workers else [Fatal(self.no_replacement)]
        out: list[Action] = []
        while len(capacity.workers) < capacity.wanted:
            worker = _PooledWorker(self._next, capacity.free_rows.pop(0), host)
            self._next += 1
            self._workers[worker.number] = worker
            capacity.workers[worker.number] = None
            out.append(Spawn(worker.number, worker.status_row, host))
        return out


def _schema_difference(first: dict[str, Any], other: dict[str, Any]) -> ProviderError:
    names = [name for name in first if first.get(name) != other.get(name)]
    shown = "; ".join(f"{name}: {first.get(name)!r:.200} and {other.get(name)!r:.200}" for name in names)
    return provider_error(
        f"the init_hook declares something else in another worker ({shown}); it must depend on its arguments alone",
        "ValueError",
    )
