"""F31: a store that is busy, breaks off, is slow or away, while workers and the fetch process are killed."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from random import Random
from typing import Any

import pydp2

from ..remote.http_store import Handler, HttpStore, cut, http_store, reset, slow, status
from .bench import Bench
from .case import Event, Fault, Report, Schedule

BATCH = 32
PROVIDER = """
from pydp2 import *

@provider(input_types={"n": integer_value(1 << 40)}, pool_size=200)
def process(settings, filename):
    with settings.open(filename, "r") as lines:
        for line in lines:
            yield {"n": int(line)}
"""
ANSWERS = {
    "429": status(429), "503": status(503), "patience": status(503, Retry_After="1"), "401": status(401),
    "reset": reset, "cut": cut, "slow": slow,
}  # fmt: skip
KILLS = ("worker", "fetch process")


def draw(random: Random, size: str) -> tuple[dict[str, Any], list[Event]]:
    """What the requests get, by their numbers, and after which of them a process is killed."""
    scale = 1 if size == "quick" else 4
    setup = {
        "lines": [random.choice([0, 1, 400, 3000, 300_000]) for _ in range(12 * scale)],
        "workers": random.choice([1, 2, 4]), "outage": random.choice([0.0, 1.5]) * scale,
        "cache": random.choice([None, 3 << 20]),
    }  # fmt: skip
    kinds = [*ANSWERS, *ANSWERS, *KILLS, "outage"]
    return setup, [Event(random.choice(kinds), random.randint(1, 40 * scale), 0.0) for _ in range(16 * scale)]


class Faulty:
    """Gives each request what the schedule has for its number."""

    def __init__(self, store: HttpStore, events: tuple[Event, ...], outage: float) -> None:
        self.service: pydp2.Service | None = None
        self.kills = 0
        self._lock, self._number, self._away_until = threading.Lock(), 0, 0.0
        self._due = {int(event.at): event.what for event in events}
        self._outage = outage
        store.always = self.answer

    def answer(self, handler: Handler, body: bytes) -> bool:
        with self._lock:
            self._number += 1
            kind = self._due.get(self._number, "")
            if kind == "outage":
                self._away_until = time.monotonic() + self._outage
            if kind in KILLS:
                self._kill(kind)
            if time.monotonic() < self._away_until:
                kind = "503"
        if handler.command == "HEAD" and kind in ("reset", "cut", "slow"):
            kind = "503"
        return kind in ANSWERS and ANSWERS[kind](handler, body)

    def _kill(self, kind: str) -> None:
        assert self.service is not None
        pids = below(self.service.pid, b"fetch_process" if kind == "fetch process" else b"pydp2-worker")
        if pids:
            self.kills += 1
            os.kill(pids[0], signal.SIGKILL)


def below(server: int, what: bytes) -> list[int]:
    """The processes below ``server`` that have ``what`` in their name or command."""
    found, parents = [], {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            text = (folder / "stat").read_text()
            names = (folder / "cmdline").read_bytes() + (folder / "comm").read_bytes()
        except OSError:
            continue
        parents[int(folder.name)] = int(text.rpartition(")")[2].split()[1])
        if what in names:
            found.append(int(folder.name))
    return [pid for pid in found if server in _ancestors(pid, parents)]


def _ancestors(pid: int, parents: dict[int, int]) -> list[int]:
    found = []
    while pid := parents.get(pid, 0):
        found.append(pid)
    return found


def play(bench: Bench, schedule: Schedule) -> Report:
    """The batches are those of the same files on the disk; nobody is blamed for the store."""
    setup = schedule.setup
    names = [f"{number:03}.txt" for number in range(len(setup["lines"]))]
    (bench.folder / "lines.py").write_text(PROVIDER)
    provider = f"{bench.folder / 'lines.py'}:process"
    with http_store() as store:
        for number, (name, count) in enumerate(zip(names, setup["lines"], strict=True)):
            store.files[name] = b"".join(b"%d\n" % (number * 1_000_000 + line) for line in range(count))
            (bench.folder / name).write_bytes(store.files[name])
        job: dict[str, Any] = {"batch_size": BATCH, "seed": schedule.seed}
        with pydp2.load([str(bench.folder / name) for name in names], provider, workers=2, **job) as data:
            wanted = [batch["n"].tolist() for batch in data]
        faulty = Faulty(store, schedule.events, setup["outage"])
        with pydp2.launch(
            [store.url(name) for name in names], provider, workers=setup["workers"], sample_timeout=3.0,
            remote_cache=bench.folder / "cache", remote_cache_size=setup["cache"],
        ) as service:  # fmt: skip
            faulty.service = service
            with service.connect(**job) as client:
                seen = [batch["n"].tolist() for batch in client]
            stats = service.stats()
    assert seen == wanted, f"{len(seen)} batches came, {len(wanted)} from the disk"
    killed = sum(event.what == "worker" for event in schedule.events)
    assert stats["workers_lost"] <= killed, f"{stats['workers_lost']} workers were lost, {killed} were killed"
    return Report(faulty.kills, {"batches": len(seen), "requests": len(store.log)})


FAULTS = (Fault("F31", "a store is busy, breaks off, is slow or away", "exact, no worker blamed", draw, play, 120.0),)
