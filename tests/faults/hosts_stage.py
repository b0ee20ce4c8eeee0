"""A service whose workers are on other hosts: agents of this machine, each a program of its own, over TCP with keys."""

from __future__ import annotations

import contextlib
import math
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pydp2
from pydp2.options import timing
from pydp2.transport.key_files import ConnectionFile

from ..runs import Program, wait_until
from .bench import Bench
from .case import Event
from .data import Dataset, Judge, expected
from .relay import Relay

BATCH = 128
BEAT, TIMEOUT = 0.25, 3.0  # seconds; elsewhere 1 and 10
PATIENCE = 60.0
_STRIDE = 8
_PACED = f"y % {_STRIDE} or (open(settings.more['log'], 'a').write(f'{{file}} {{y}}\\n'), time.sleep(0.004))"
AGENT = """
import os, signal, sys
import pydp2

prefix = sys.argv[5:]
if prefix:
    os.execvp(prefix[0], [*prefix, sys.executable, sys.argv[0], *sys.argv[1:5]])
rows = sys.argv[4] or None
host = pydp2.WorkerHost(sys.argv[1], name=sys.argv[2], workers=int(sys.argv[3]), patience=60.0, row_server=rows)
signal.signal(signal.SIGTERM, lambda *_: host.leave())
print("end", host.run(), flush=True)
"""


@dataclass(frozen=True)
class Seen:
    """What a trainer saw of its passes. ``seconds``: of all; ``longest``: its longest wait for a batch that was not the
    first; ``again``: samples that workers gave once more; ``came``: when each batch came."""

    seconds: float
    longest: float
    again: int
    came: Sequence[float] = ()

    def rate(self, since: float, until: float) -> float:
        """Batches a second in a part of the time."""
        return sum(since <= at < until for at in self.came) / (until - since)

    def seconds_to(self, rate: float, since: float) -> float:
        """Seconds after ``since`` until as many batches a second come, for a second at least."""
        later = (at for at in self.came if at >= since)
        return next((at - since for at in later if self.rate(at, at + 1.0) >= rate), math.inf)


class Stage:
    """A service without workers of its own, at the address ``host`` of this machine, and agents that come and go."""

    def __init__(self, bench: Bench, provider: str, files: Sequence[str], host: str, **options: Any) -> None:
        self._bench = bench
        self.connection = bench.folder / "run.json"
        self.agents: dict[str, Program] = {}
        self.relays: dict[str, Relay] = {}
        self.row_server = ""
        """Address of the row servers of agents that are started; "": they send all rows."""
        before, timing.DEFAULT_TIMING = timing.DEFAULT_TIMING, timing.Timing(host_beat=BEAT, host_timeout=TIMEOUT)
        try:
            self.service = pydp2.launch(
                list(files), provider, workers=0, bind=f"tcp://{host}:*", connection=self.connection, **options
            )
        finally:
            timing.DEFAULT_TIMING = before

    def join(self, name: str, workers: int, *, relayed: bool = False, prefix: Sequence[str] = ()) -> None:
        """Start an agent. ``relayed``: it connects through a relay of its own; ``prefix``: a command that runs its
        program."""
        path = self.connection
        if relayed:
            found = ConnectionFile.read(path)
            self.relays[name] = Relay(found.host_address)
            path = self._bench.folder / f"{name}.json"
            ConnectionFile(found.address, found.keys, self.relays[name].address).write(path)
        self.agents[name] = self._bench.program(AGENT, str(path), name, str(workers), self.row_server, *prefix)

    def hosts(self) -> dict[str, dict[str, Any]]:
        """The hosts that the service knows, by name; one that is back before it was found lost has its number behind
        it."""
        return {each["host"].partition("#")[0]: each for each in self.service.stats()["hosts"]}

    def pid(self, name: str) -> int:
        """The process of an agent, once the service has heard of it."""
        assert wait_until(lambda: "pid" in self.hosts().get(name, {})), f"{name} is not there: {self.told()}"
        return int(self.hosts()[name]["pid"])

    def active(self, name: str | None = None) -> int:
        """How many workers are at work, those of the host ``name`` or of all."""
        stats = self.service.stats()
        numbers = {each["number"] for each in stats["hosts"] if name in (None, each["host"].partition("#")[0])}
        return sum(worker["active"] and worker["host"] in numbers for worker in stats["workers"])

    def wait_active(self, workers: int, name: str | None = None) -> float:
        """Seconds until so many workers are at work."""
        began = time.monotonic()
        assert wait_until(lambda: self.active(name) >= workers, PATIENCE), (
            f"{self.active(name)} of {workers} workers are at work: {self.told()}"
        )
        return time.monotonic() - began

    def wait_lost(self, name: str, number: int) -> float:
        """Seconds until session ``number`` of a host is over."""
        began = time.monotonic()
        gone = wait_until(lambda: self.hosts().get(name, {}).get("number") != number, TIMEOUT + 30)
        assert gone, f"the service does not notice that {name} is lost"
        return time.monotonic() - began

    def told(self) -> dict[str, str]:
        """The ends of the agents' screens."""
        return {name: agent.screen[-300:] for name, agent in self.agents.items()}

    def close(self) -> None:
        """End the service; its agents end with it."""
        self.service.close()
        try:
            for name, agent in self.agents.items():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    agent.ended(PATIENCE / 2)
                status = agent.process.poll()
                assert status == 0, f"{name}: {'still runs' if status is None else status}: {agent.screen[-500:]}"
        finally:
            for relay in self.relays.values():
                relay.end()


def paced(bench: Bench, samples: int, each: int = 600) -> Dataset:
    """Files of ``each`` samples, of which a worker gives at most 2000 a second and needs little of a core. What is read
    is written down."""
    log = bench.folder / "log"
    return Dataset((each,) * (samples // each), pool_size=2000, extra=_PACED, more={"log": str(log)})


@contextlib.contextmanager
def stage(bench: Bench, data: Dataset, host: str = "127.0.0.1", **options: Any) -> Iterator[Stage]:
    """A stage over ``data``, closed in the end."""
    made = Stage(bench, data.write(bench.folder), data.files, host, args=data.args(), **options)
    try:
        yield made
    finally:
        made.close()


class Strikes(threading.Thread):
    """Does ``act(event)`` for each of ``events`` in turn, when ``share`` of a pass has come to its ``at``."""

    def __init__(self, events: Sequence[Event], act: Callable[[Event], None]) -> None:
        super().__init__(name="strikes", daemon=True)
        self._events, self._act = sorted(events, key=lambda event: event.at), act
        self._changed = threading.Condition()
        self._share = 0.0
        self.error: BaseException | None = None

    def advance(self, share: float) -> None:
        """So much of the pass is over."""
        with self._changed:
            self._share = share
            self._changed.notify()

    def run(self) -> None:
        try:
            for event in self._events:
                with self._changed:
                    self._changed.wait_for(lambda at=event.at: self._share >= at)  # type: ignore[misc]
                self._act(event)
        except BaseException as error:  # told in the thread that waits for us
            self.error = error

    def end(self) -> None:
        """The pass is over, and what has not happened happens now. Raises what went wrong in one."""
        self.advance(2.0)
        self.join()
        if self.error is not None:
            raise self.error


def read(
    made: Stage,
    data: Dataset,
    seed: int,
    events: Sequence[Event] = (),
    act: Callable[[Event], None] = lambda event: None,
) -> Seen:
    """Read a pass in which ``act(event)`` is done for each of ``events``, and compare each batch with the oracle's."""
    log = Path(data.more["log"])
    log.write_text("")
    wanted = expected(data.counts, data.pool_size, BATCH, seed)
    judge, longest, strikes = Judge(wanted), 0.0, Strikes(events, act)
    came: list[float] = []
    with made.service.connect(batch_size=BATCH, seed=seed, timeout=PATIENCE) as client:
        strikes.start()
        try:
            began = asked = time.monotonic()
            for batch in client:
                came.append(time.monotonic())
                if batch.index:
                    longest = max(longest, came[-1] - asked)
                judge.take(batch)
                strikes.advance(batch.index / wanted.batches)
                asked = time.monotonic()
            judge.end()
            seconds = time.monotonic() - began
        finally:
            strikes.end()
    lines = log.read_text().splitlines()
    return Seen(seconds, longest, _STRIDE * (len(lines) - len({*lines})), came)


def nobody_is_blamed(bench: Bench) -> None:
    """No file was condemned, or said to have killed a worker."""
    lines = [line for line in bench.screen.splitlines() if "condemned" in line or "killed worker" in line]
    assert not lines, f"a file is blamed for what happened to its host: {lines}"
