"""Run contestants in alternation: each one once in each round, each run in a fresh process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from benchmarks import data, processes, single_run
from benchmarks.job import WORKLOADS, Job

ROOT = Path(__file__).resolve().parents[1]
_TRIES = 3
_LOOK = 0.05  # seconds between two looks at the memory
_NO_GPU = "CUDA_VISIBLE_DEVICES"
_QUIET = {
    _NO_GPU: "",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "RAY_USAGE_STATS_ENABLED": "0",
    "GLOG_minloglevel": "3",
}
Say = Callable[[str], None]


@dataclass(frozen=True)
class Contestant:
    """Way to do the job: a peer (a key of ``single_run.PEERS``) and its options."""

    name: str
    peer: str
    options: tuple[tuple[str, Any], ...] = ()


CONTESTANTS = (
    Contestant("bare", "bare"),
    Contestant("pydp2", "pydp2"),
    Contestant("pydp2 relaxed", "pydp2", (("order", "relaxed"),)),
    Contestant("pydp2 cached", "pydp2", (("cache", True),)),
    Contestant("torch", "torch"),
    Contestant("spdl", "spdl"),
    Contestant("grain", "grain"),
    Contestant("tf.data", "tf"),
    Contestant("tf.data cached", "tf", (("cache", True),)),
    Contestant("paddle", "paddle"),
    Contestant("ray", "ray"),
)
NATIVE = {
    "words": (Contestant("pydp2", "pydp2"), Contestant("torchdata", "torchdata")),
    "rows": (
        Contestant("pydp2", "pydp2", (("blocks", True),)),
        Contestant("torchdata", "torchdata"),
        Contestant("grain ArrayRecord", "arrayrecord"),
        Contestant("mosaicml MDS", "mosaicml"),
        Contestant("memmap", "memmap"),
    ),
    "jpeg": (
        Contestant("pydp2", "pydp2"),
        Contestant("torchdata", "torchdata"),
        Contestant("spdl threads", "spdl_threads"),
        Contestant("mosaicml MDS", "mosaicml"),
    ),
}
"""Peers that read their own formats or work in their own way, by workload."""
HOSTS = (
    Contestant("pydp2", "pydp2"),
    Contestant("pydp2 keys", "pydp2", (("network", "keys"),)),
    Contestant("pydp2 workers", "pydp2", (("network", "workers"),)),
    Contestant("pydp2 hosts", "pydp2", (("network", "hosts"),)),
    Contestant("pydp2 row server", "pydp2", (("network", "row server"),)),
    Contestant("pydp2 2 row servers", "pydp2", (("network", "row server"), ("hosts", 2))),
)
"""Contestants with hosts: workers and trainer on the host of the service; a trainer over TCP, with keys; workers over
TCP, as on another host; both; both, with rows that stay on the host of the workers; the same with two such hosts."""
TRAINING = (
    Contestant("cached batch", "repeated"),
    Contestant("pydp2", "pydp2"),
    Contestant("torch", "torch"),
    Contestant("spdl", "spdl"),
    Contestant("grain", "grain"),
)
"""Loaders for a training, and the same training without a loader."""
ALWAYS = ("bare", "pydp2")
PEERS = tuple(dict.fromkeys(c.peer for c in CONTESTANTS if c.peer not in ALWAYS))
NATIVE_PEERS = tuple(dict.fromkeys(c.peer for of in NATIVE.values() for c in of if c.peer != "pydp2"))


@dataclass(frozen=True)
class Plan:
    """Plan of rounds.

    Args:
        peers: keys of ``single_run.PEERS``; bare and pydp2 always take part.
        workers: numbers of workers; there is a table for each.
        pythons: interpreters of peers that need a separate environment.
        memory: True for one more round, which measures memory and is not timed, because measuring takes time.
        passes: number of passes of each run.
        deadline: seconds that one run may take.
        others: largest share of the cores for processes outside a run; above that the run is repeated, at most twice.
        plain: only pydp2 and the peers take part, each in one way, without bare generator, relaxed order and cache.
        native: the contestants of :data:`NATIVE` take part instead; hosts: those of :data:`HOSTS`; training: those of
            :data:`TRAINING`, which may use a GPU.
        options: options of the jobs of a workload.
    """

    workloads: tuple[str, ...] = tuple(WORKLOADS)
    peers: tuple[str, ...] = PEERS
    workers: tuple[int, ...] = (2,)
    rounds: int = 5
    scale: float = 1.0
    folder: Path = Path(tempfile.gettempdir()) / "pydp2-benchmark-data"
    pythons: Mapping[str, str] | None = None
    memory: bool = True
    deadline: float = 300.0
    others: float = 1.0
    plain: bool = False
    native: bool = False
    hosts: bool = False
    training: bool = False
    passes: int = 2
    options: Mapping[str, tuple[tuple[str, Any], ...]] | None = None

    def contestants(self, workload: str) -> list[Contestant]:
        if self.training:
            return [c for c in TRAINING if c.peer in ("repeated", "pydp2", *self.peers)]
        if self.hosts:  # the workers must be divisible among them
            return [c for c in HOSTS if all(number % dict(c.options).get("hosts", 1) == 0 for number in self.workers)]
        if self.native:
            return [c for c in NATIVE[workload] if c.peer in ("pydp2", *self.peers)]
        if self.plain:
            return [c for c in CONTESTANTS if c.peer in ("pydp2", *self.peers) and not c.options]
        return [c for c in CONTESTANTS if c.peer in (*ALWAYS, *self.peers)]

    def job(self, contestant: Contestant, workload: str, folder: Path, workers: int) -> Job:
        """Return the job of one run."""
        options = contestant.options + (self.options or {}).get(workload, ())
        return Job(contestant.peer, workload, str(folder), workers, self.passes, options)

    def python(self, peer: str) -> str:
        return (self.pythons or {}).get(peer, sys.executable)


def alternating(contestants: Sequence[Contestant], number: int) -> list[Contestant]:
    """Return the order of round ``number``. Each round rotates it by one, so that each contestant has every place."""
    turn = number % len(contestants) if contestants else 0
    return [*contestants[turn:], *contestants[:turn]]


def run(job: Job, python: str, deadline: float = 300.0, watch: bool = False) -> dict[str, Any]:
    """Carry out one run in a separate process, and end all its processes afterwards.

    Returns:
        the result of :mod:`benchmarks.single_run`; ``{"failed": "…"}`` if it ended otherwise or took longer than
        ``deadline``; with ``watch`` also ``peak``, the most bytes that all of its processes had together.
    """
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory(prefix="pb-", ignore_cleanup_errors=True) as folder:
        quiet = {name: value for name, value in _QUIET.items() if name != _NO_GPU or not job.option("train")}
        given = {processes.MARK: mark, "PYTHONPATH": str(ROOT), "TMPDIR": folder, "PYTHONUNBUFFERED": "1"}
        out, err = Path(folder) / "said", Path(folder) / "complained"
        command = [python, "-m", "benchmarks.single_run", single_run.to_argument(job)]
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, **quiet, **given},
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
        try:
            peak = _wait(process, mark, deadline, watch)
        finally:
            processes.end(mark)
            process.wait()
        result = _result(process.returncode, out.read_text(errors="replace"), err.read_text(errors="replace"), deadline)
    return {**result, "peak": peak} if watch and "passes" in result else result


def disturbed(result: dict[str, Any]) -> float:
    """Return the largest share of the cores that processes outside the run took in one of its passes."""
    return max((p["others"] for p in result.get("passes", ())), default=0.0)


def least_disturbed(once: Callable[[], dict[str, Any]], others: float) -> dict[str, Any]:
    """Call ``once()``, and again while it was disturbed more than ``others``; return the least disturbed result."""
    results = [once()]
    while disturbed(results[-1]) > others and len(results) < _TRIES:
        results.append(once())
    return min(results, key=disturbed)


def _wait(process: subprocess.Popen[bytes], mark: str, deadline: float, watch: bool) -> int:
    """Wait until the process has ended or the deadline has passed; return the peak of memory, 0 without ``watch``."""
    peak = 0
    until = time.monotonic() + deadline
    while (left := until - time.monotonic()) > 0:
        try:
            process.wait(min(_LOOK, left) if watch else left)
            break
        except subprocess.TimeoutExpired:
            if watch:
                peak = max(peak, processes.pss(mark))
    return peak


def _result(code: int, printed: str, complained: str, deadline: float) -> dict[str, Any]:
    lines = printed.splitlines()
    if code == 0 and lines and lines[-1].startswith("{"):
        return json.loads(lines[-1])
    if code < 0:
        return {"failed": f"killed by signal {-code}, after {deadline:.0f} s if it was ours"}
    return {"failed": (complained.strip().splitlines() or [f"exit code {code}"])[-1], "complained": complained[-4000:]}


def rounds(plan: Plan, say: Say = print) -> dict[str, Any]:
    """Carry out all rounds of a plan.

    Returns:
        plain data: ``runs`` (round, workload, workers, contestant, and the result of :func:`run`), ``absent``
        (contestant and workload to the reason), ``versions`` (contestant to its libraries). Round 0 is the one in which
        memory is measured.
    """
    runs: list[dict[str, Any]] = []
    absent: dict[str, str] = {}
    versions: dict[str, dict[str, str]] = {}

    @cache
    def probe(peer: str, pictures: bool) -> dict[str, Any]:
        """Return the result of a job without passes, which only imports the peer."""
        options = (("train", True),) if plan.training else ()
        job = Job(peer, "jpeg" if pictures else "words", str(plan.folder), passes=0, options=options)
        return run(job, plan.python(peer), plan.deadline)

    for workload in plan.workloads:
        try:
            folder = data.make(workload, plan.folder, plan.scale)
        except ModuleNotFoundError as error:
            absent[workload] = f"{error.name} is not installed"
            say(f"{workload}: left out: {absent[workload]}")
            continue
        present = []
        for contestant in plan.contestants(workload):
            result = probe(contestant.peer, workload == "jpeg")
            if "versions" in result:
                present.append(contestant)
                versions[contestant.name] = result["versions"]
            else:
                absent[f"{contestant.name}, {workload}"] = reason = result.get("absent") or result["failed"]
                say(f"{workload}: without {contestant.name}: {reason}")
        for number in range(0 if plan.memory else 1, plan.rounds + 1):
            for workers in plan.workers:
                for contestant in alternating(present, number):
                    job = plan.job(contestant, workload, folder, workers)
                    once = partial(run, job, plan.python(contestant.peer), plan.deadline, watch=number == 0)
                    result = least_disturbed(once, plan.others)
                    runs.append(
                        {"round": number, "workload": workload, "workers": workers, "contestant": contestant.name}
                        | result
                    )
                    say(_line(runs[-1], plan.rounds))
    return {"runs": runs, "absent": absent, "versions": versions}


def _line(run: dict[str, Any], rounds: int) -> str:
    where = f"{run['workload']}, {run['workers']} workers, " + (
        f"round {run['round']} of {rounds}" if run["round"] else "memory"
    )
    if "passes" not in run:
        return f"{where}: {run['contestant']} failed: {run.get('failed') or run.get('absent')}"
    rates = ", ".join(
        f"{p['samples'] / p['seconds']:,.0f}/s" + (f", p99 {p['felt']['p99']:.2f} ms" if "felt" in p else "")
        for p in run["passes"]
    )
    return f"{where}: {run['contestant']} {rates}"
