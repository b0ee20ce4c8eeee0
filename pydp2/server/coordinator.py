"""The workers of a service: how many there are, which of them work, what happens when one is lost. Pure.

``handle(event)`` gives the actions that follow. One worker more than asked for stands by, its provider ready, so that a
loss costs no more than handing over the lost one's files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydp2.errors import ProviderError, ServiceLost, provider_error
from pydp2.order import Run
from pydp2.order.saved import Recall
from pydp2.protocol.ranges import Part
from pydp2.server.actions import Action, Event, Fatal, Log, Spawn, WorkerBroken, WorkerGone, WorkerReady
from pydp2.server.attempts import Attempts
from pydp2.server.reading import Reading
from pydp2.server.spec import seats

_START_DEATHS = 5
"""So many workers lost in a row before their provider was ready, and the service gives up."""
_VAIN_DEATHS = 20
_VAIN = (
    "{} workers in a row ended outside of process(), without a sample between them (the last one {}); "
    "look at what they wrote"
)


@dataclass(slots=True)
class _Worker:
    number: int
    seat: int
    ready: bool = False
    active: bool = False


class Coordinator:
    """Keeps ``workers`` workers at work and one in reserve, on ``seats`` seats."""

    def __init__(self, workers: int) -> None:
        self.target = workers
        self.seats = seats(workers)
        self.declaration: dict[str, Any] | None = None
        self.readings: dict[int, Reading] = {}
        """What is read now, by number: one for each job that is in a pass."""
        self._jobs: dict[int, str] = {}  # whose each is
        self.lost = 0
        self._workers: dict[int, _Worker] = {}
        self._free = list(range(self.seats))
        self._next = 0
        self._start_deaths = 0
        self._vain = self._seen_committed = 0
        self._begun = self._committed = 0  # readings, and samples of those that are over
        self._attempts: Attempts[Reading] = Attempts()
        self._closing = False

    # -- events ----------------------------------------------------------------------------------------------------
    def start(self) -> list[Action]:
        """Start the workers."""
        return self._replenish()

    def handle(self, event: Event) -> list[Action]:
        """What follows from ``event``."""
        match event:
            case WorkerReady(worker, declaration):
                return self._ready(worker, declaration)
            case WorkerBroken(_, error):
                return [Fatal(error)]
            case WorkerGone():
                return self._gone(event)

    def _ready(self, number: int, declaration: dict[str, Any]) -> list[Action]:
        worker = self._workers.get(number)
        if worker is None:
            return []
        if self.declaration is None:
            self.declaration = declaration
        elif declaration != self.declaration:
            return [Fatal(_different(self.declaration, declaration))]
        worker.ready = True
        self._start_deaths = 0
        return self._promote()

    def _gone(self, event: WorkerGone) -> list[Action]:
        worker = self._workers.pop(event.worker, None)
        if worker is None or self._closing:
            return []
        self._free.append(worker.seat)
        out: list[Action] = []
        if not worker.ready:
            self._start_deaths += 1
            # whoever kills workers at random meets some that are starting: that is not the provider's doing
            most = _START_DEATHS if event.of_itself else _VAIN_DEATHS
            if self._start_deaths >= most or self.declaration is None:
                return [
                    Fatal(
                        ProviderError(
                            f"a worker {event.how} while it imported the provider or ran its init_hook; "
                            "run `pydp2 check` to see it happen in the foreground"
                        )
                    )
                ]
        if worker.active:
            self.lost += 1
            where = self._where(event)
            out.append(Log(f"worker {worker.number} {event.how}{where}; its files go to another", kind="worker lost"))
            if self.readings and event.of_itself and self._in_vain(bool(where)):
                return [Fatal(ServiceLost(_VAIN.format(_VAIN_DEATHS, event.how)))]
            for reading in self.readings.values():
                reading.lose(
                    worker.number, event.running, event.how, hungry=event.hungry, sample_timeout=event.sample_timeout
                )
        return out + self._promote() + self._replenish()

    def _where(self, event: WorkerGone) -> str:
        """The sample that a lost worker was asking for, in words, if anybody still wants it."""
        if event.running is None:
            return ""
        file, attempt, ordinal = event.running
        reading = self._attempts.of(attempt)
        return "" if reading is None else f" in file {reading.label(file)}, sample {ordinal}"

    def _in_vain(self, blamed: bool) -> bool:
        """Whether too many were lost in a row, none of them in a file that can be blamed, without a sample between."""
        committed = self._committed + sum(reading.samples_committed for reading in self.readings.values())
        if blamed or committed != self._seen_committed:
            self._seen_committed, self._vain = committed, 0
        self._vain += not blamed
        return self._vain >= _VAIN_DEATHS

    # -- state -----------------------------------------------------------------------------------------------------
    @property
    def active(self) -> list[int]:
        """Workers that read."""
        return [w.number for w in self._workers.values() if w.active]

    @property
    def expecting(self) -> int:
        """Workers that are starting and will be needed."""
        starting = sum(1 for w in self._workers.values() if not w.ready)
        return min(starting, self.target - len(self.active))

    def seat_of(self, worker: int) -> int | None:
        """Where ``worker`` sits, while it lives."""
        known = self._workers.get(worker)
        return None if known is None else known.seat

    def files_of(self, worker: int) -> int:
        """How many files ``worker`` was given that have not ended."""
        return sum(reading.load(worker) for reading in self.readings.values())

    # -- readings --------------------------------------------------------------------------------------------------
    def begin(self, reading: Reading, job: str = "") -> None:
        """From now on workers read for ``reading`` of ``job`` too."""
        self._begun += 1
        self._jobs[self._begun] = job
        reading.number, reading.attempts = self._begun, self._attempts
        self.readings[reading.number] = reading
        self._divide()
        for worker in self.active:
            reading.join(worker)

    def end(self, reading: Reading) -> list[Action]:
        """Nothing more of ``reading`` is wanted: what workers have of it is dropped."""
        if reading.number not in self.readings:
            return []
        out = self._named(reading, reading.end())
        del self.readings[reading.number], self._jobs[reading.number]
        self._committed += reading.samples_committed
        self._divide()
        return out

    def _named(self, reading: Reading, actions: list[Action]) -> list[Action]:
        """``actions`` of one reading: where there are several, what is told names the job."""
        if len(self.readings) < 2:
            return actions
        job = self._jobs[reading.number]
        return [Log(f"job {job!r}: {act.text}", act.kind) if isinstance(act, Log) else act for act in actions]

    def _divide(self) -> None:
        """Share the read-ahead budget out."""
        for reading in self.readings.values():
            reading.credit.resize(reading.budget // len(self.readings))

    def dispatch(self) -> list[Action]:
        """Files and credit that can be given out now."""
        expecting = self.expecting
        return [act for each in self.readings.values() for act in self._named(each, each.dispatch(expecting))]

    # -- what workers send -----------------------------------------------------------------------------------------
    def recalled(self, part: Part) -> Recall | None:
        """What was asked for of the file of ``part``, when that is read again in part by the attempt that sends it."""
        reading = self._attempts.of(part.attempt)
        return None if reading is None else reading.recalled(part)

    def commit(self, worker: int, part: Part, run: Run | None) -> None:
        """A range that came from ``worker``. Late output of what is over is dropped without a word."""
        reading = self._attempts.of(part.attempt)
        if reading is not None:
            reading.commit(worker, part, run)

    def blocked(self, worker: int, file: int, attempt: int, ordinal: int, need: int) -> None:
        """``worker`` waits in ``file``: for credit of ``need``, or (0) at a stop."""
        reading = self._attempts.of(attempt)
        if reading is not None:
            reading.blocked(worker, file, attempt, ordinal, need)

    def close(self) -> None:
        """Workers that go are not replaced any more."""
        self._closing = True

    # -- inside ----------------------------------------------------------------------------------------------------
    def _promote(self) -> list[Action]:
        for worker in self._workers.values():
            if len(self.active) >= self.target:
                break
            if worker.ready and not worker.active:
                worker.active = True
                for reading in self.readings.values():
                    reading.join(worker.number)
        return []

    def _replenish(self) -> list[Action]:
        out: list[Action] = []
        while len(self._workers) < self.target + 1:
            worker = _Worker(self._next, self._free.pop(0))
            self._next += 1
            self._workers[worker.number] = worker
            out.append(Spawn(worker.number, worker.seat))
        return out


def _different(first: dict[str, Any], other: dict[str, Any]) -> ProviderError:
    names = [name for name in first if first.get(name) != other.get(name)]
    shown = "; ".join(f"{name}: {first.get(name)!r:.200} and {other.get(name)!r:.200}" for name in names)
    return provider_error(
        f"the init_hook declares something else in another worker ({shown}); it must depend on its arguments alone",
        "ValueError",
    )
