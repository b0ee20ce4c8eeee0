"""Keep the workers of a service: how many there are, which of them work, and what follows when one is lost. Pure.

``handle(event)`` gives the actions that follow. Each host, this machine or another one, has one worker more than it
works with: it stands by, its provider ready, so that a loss costs no more than handing over the lost one's files.
What ends the service where a worker of this machine meets it only turns another host away.
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

_MAX_START_DEATHS = 5
"""So many workers lost in a row before their provider was ready, and the service gives up."""
_MAX_FRUITLESS_DEATHS = 20
_FRUITLESS = (
    "{} workers in a row ended outside of process(), without a sample between them (the last one {}); "
    "look at what they wrote"
)
_MAX_FRUITLESS_KILLS = 200
"""The same of workers that were killed from outside while there is a pass: kills at random meet some that have only
begun."""
_FRUITLESS_KILLS = (
    "{} workers in a row were killed, without a sample between them (the last one {}); find out what kills them: the "
    "kernel for lack of memory (`dmesg` shows it), or another program"
)


class WorkState(Enum):
    """Work of a worker in the pool. The watch over its process (:mod:`pydp2.host.watchdog`) is independent of it: the
    watchdog may end any worker, and the pool takes its work away once the process has ended."""

    STARTING = "starting"
    STANDBY = "standby"
    ACTIVE = "active"
    GONE = "gone"


class WorkEvent(Enum):
    """Event that changes the work of a worker."""

    READY = "ready"
    """Its provider is ready."""
    PROMOTE = "promote"
    """It is given files from now on."""
    EXIT = "exit"
    """Its process has ended."""


# The loop compares with these in every round, and Python 3.11 looks a member of an Enum up by a call.
STARTING, STANDBY, ACTIVE = WorkState.STARTING, WorkState.STANDBY, WorkState.ACTIVE

_W, _E = WorkState, WorkEvent

WORK_TRANSITIONS: dict[tuple[WorkState, WorkEvent], WorkState] = {
    (_W.STARTING, _E.READY): _W.STANDBY,
    (_W.STANDBY, _E.PROMOTE): _W.ACTIVE,
    **{(state, _E.EXIT): _W.GONE for state in (_W.STARTING, _W.STANDBY, _W.ACTIVE)},
}
"""Work and event to the work after it."""


@dataclass(slots=True)
class _PooledWorker:
    number: int
    status_row: int
    host: int = THIS_HOST
    state: WorkState = STARTING  # changed by move() alone

    def move(self, event: WorkEvent) -> None:
        """Change the work as ``event`` says. Raises IllegalTransition when the present work does not allow it."""
        self.state = next_state(WORK_TRANSITIONS, self.state, event)


class HostCapacity:
    """Worker slots of one host: ``target`` of them work."""

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
    """Keeps ``workers`` workers at work on this machine, more on other hosts, and one of each host in reserve."""

    def __init__(self, workers: int) -> None:
        self.schema: dict[str, Any] | None = None
        self.dispatchers: dict[int, FileDispatcher] = {}
        """What is read now, by number: one for each job that is in a pass."""
        self._jobs: dict[int, str] = {}  # whose each is
        self.workers_lost = 0
        self.no_replacement: ServiceLost | None = None
        """Why no worker can be started on this machine any more. The service ends with it when there is none left."""
        self._workers: dict[int, _PooledWorker] = {}
        self._active: dict[int, None] = {}  # those of them that read, in the order in which they began
        self._hosts = {THIS_HOST: HostCapacity(workers)}
        self._next = 0
        self._begun = self._committed = 0  # readings, and samples of those that are over
        self._attempts: Attempts[FileDispatcher] = Attempts()
        self._closing = False
        self._budget = 0  # of reading ahead, once hosts have come; until then each dispatcher says it

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
                return self._gone(event)

    def _give_up(self, worker: int, error: Error) -> list[Action]:
        """Return what follows when no worker can run where ``worker`` is."""
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

    def _gone(self, event: WorkerGone) -> list[Action]:
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
            where = self._describe_sample(event)
            error = self._fruitless_error(worker.host, event, bool(where))
            if before is ACTIVE:
                self.workers_lost += 1
                self._hand_over_files(event)
            rest = "its files go to another" if before is ACTIVE else "it stood by"
            out.append(Log(f"worker {worker.number} {event.how}{where}; {rest}", kind="worker lost"))
            if error is not None:
                return [Fatal(error)] if worker.host == THIS_HOST else [*out, TurnAway(worker.host, error)]
        self._promote(worker.host)
        return out + self._replenish(worker.host)

    def _start_error(self, worker: _PooledWorker, event: WorkerGone) -> Error | None:
        """Return why no more workers are started where ``worker`` ended before it was ready; None: they are."""
        capacity = self._hosts[worker.host]
        capacity.start_deaths += 1
        # kills at random meet some workers that are starting: that is not the provider's doing
        most = _MAX_START_DEATHS if event.voluntary else _MAX_FRUITLESS_DEATHS
        is_first = self.schema is None and worker.host == THIS_HOST  # its program waits for it, and learns why
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
            dispatcher.worker_lost(
                event.worker,
                event.running_sample,
                event.how,
                over_memory=event.over_memory,
                host_lost=event.host_lost,
                sample_timeout=event.sample_timeout,
                broke_protocol=event.broke_protocol,
            )

    # -- hosts -----------------------------------------------------------------------------------------------------
    def add_host(self, host: int, worker_slots: int) -> list[Action]:
        """Start the workers of ``host``, another machine, which has room for ``capacity`` of them."""
        self._hosts[host] = HostCapacity(worker_slots)
        return self._replenish(host)

    def remove_host(self, host: int, running: Mapping[int, tuple[int, int, int]], how: str) -> None:
        """Give the files of ``host``, which is lost, to the workers of others. ``running``: the samples that its
        workers asked for when it was last heard. None is to blame; but if workers end at a file time and again without
        anything new of it, that file is."""
        capacity = self._hosts.pop(host, None)
        if capacity is None:
            return
        for number in capacity.workers:
            worker = self._workers.pop(number)
            if worker.state is ACTIVE:
                self.workers_lost += capacity.target > 0 or self.files_of(number) > 0  # else the host has left in order
                del self._active[number]
                self._hand_over_files(
                    WorkerGone(number, running.get(number), how, voluntary=False, over_memory=True, host_lost=True)
                )
            worker.move(WorkEvent.EXIT)

    def drain_host(self, host: int) -> None:
        """Give ``host``, which will leave, no new files. Its workers return those that they have not begun."""
        capacity = self._hosts.get(host)
        if capacity is None:  # it leaves before it has begun
            return
        capacity.target = 0
        for number in capacity.workers:
            for dispatcher in self.dispatchers.values():
                dispatcher.retire_worker(number)

    def return_files(self, worker: int, attempts: Container[int]) -> None:
        """Give the files of ``attempts``, which ``worker`` has not begun and will not, to others. Its host leaves."""
        for dispatcher in self.dispatchers.values():
            dispatcher.return_files(worker, attempts)

    def is_drained(self, host: int) -> bool:
        """Return True if no worker of ``host`` has a file that it has not ended."""
        return not any(self.files_of(worker) for worker in self.workers_of(host))

    @property
    def target(self) -> int:
        """Number of workers that there are to be at work, on all hosts."""
        return sum(capacity.target for capacity in self._hosts.values())

    def host_of(self, worker: int) -> int | None:
        """Return the host of ``worker`` while it lives."""
        known = self._workers.get(worker)
        return None if known is None else known.host

    def workers_of(self, host: int) -> list[int]:
        """Return the workers of ``host`` that live."""
        capacity = self._hosts.get(host)
        return [] if capacity is None else [*capacity.workers]

    def _describe_sample(self, event: WorkerGone) -> str:
        """Return the sample that a lost worker was asking for, in words, if a pass still wants it."""
        if event.running_sample is None:
            return ""
        file, attempt, sample_index = event.running_sample
        dispatcher = self._attempts.dispatcher_of(attempt)
        ledger = None if dispatcher is None else dispatcher.ledgers.get(file)
        if dispatcher is None or ledger is None or ledger.attempt != attempt:
            return ""
        job = self._jobs[dispatcher.number]
        of_job = "" if job in ("", DEFAULT_JOB) and len(self.dispatchers) < 2 else f" of job {job!r}"
        return f" in file {dispatcher.label(file)}, sample {sample_index}{of_job}"

    def _fruitless_error(self, host: int, event: WorkerGone, blamed: bool) -> ServiceLost | None:
        """Return why no more workers are started on ``host``: too many were lost in a row without a sample between
        them, none of them in a file that can be blamed. None: they are."""
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
        """Workers that are starting and will be needed."""
        starting = 0
        for capacity in self._hosts.values():
            if capacity.target:
                processes = len(capacity.workers) - len(capacity.standby)
                starting += min(processes, capacity.target) - capacity.active
        return starting

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
            if self._hosts[self._workers[worker].host].target:  # else its host leaves
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
        """Return the ``actions`` of one dispatcher. What the user is told names the job, unless it is the default job
        alone."""
        job = self._jobs[dispatcher.number]
        if job in ("", DEFAULT_JOB) and len(self.dispatchers) < 2:
            return actions
        return [Log(f"job {job!r}: {act.text}", act.kind) if isinstance(act, Log) else act for act in actions]

    def _divide_budget(self) -> None:
        """Share the read-ahead budget out."""
        for dispatcher in self.dispatchers.values():
            dispatcher.credit.resize((self._budget or dispatcher.budget) // len(self.dispatchers))

    def fit_budget(self, budget: int) -> None:
        """Let all readings read ahead by ``budget`` bytes together: hosts have come or gone."""
        self._budget = budget
        self._divide_budget()

    def dispatch(self) -> list[Action]:
        """Files and credit that can be given out now."""
        actions: list[Action] = []
        if self.dispatchers:
            expecting = self.starting
            for dispatcher in self.dispatchers.values():
                actions += self._name_jobs(dispatcher, dispatcher.dispatch(expecting))
        return actions

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
    def _promote(self, host: int) -> None:
        """Let workers of ``host`` that stand by read, as many as it lacks."""
        capacity = self._hosts[host]
        while capacity.standby and capacity.active < capacity.target:
            number = min(capacity.standby)  # hardly ever more than one
            capacity.standby.remove(number)
            self._workers[number].move(WorkEvent.PROMOTE)
            capacity.active += 1
            self._active[number] = None
            for dispatcher in self.dispatchers.values():
                dispatcher.add_worker(number)

    def _replenish(self, host: int) -> list[Action]:
        """Start as many workers of ``host`` as it lacks."""
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
