"""F17: a cache on disk that was damaged, whose files or provider changed, or that several services use at once."""

from __future__ import annotations

import os
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import pydp2
from pydp2.errors import ServiceLost

from .bench import Bench
from .case import Event, Fault, Report, Schedule

# What a sample is depends on the file and on the code; each run of the generator leaves a line.
CODE = """
from pydp2 import *

@provider(input_types=[integer_value_sequence(1 << 40)], pool_size={pool}, cache=CacheType.CACHE_PASS_ON_DISK)
def process(settings, filename):
    with open("opened", "a") as opened:
        opened.write(filename + "\\n")
    with open(filename) as lines:
        for line in lines:
            yield [int(line), {code}] * 20
"""
BYTES = ("bit", "cut", "noise", "empty", "gone", "swapped", "longer")
KINDS = (*BYTES, "file", "code", "two services", "killed", "temporary", "limit")
BATCH = 32


def draw(random: Random, size: str) -> tuple[dict[str, Any], list[Event]]:
    """How many samples each file has; what becomes of the cache between runs."""
    few = size == "quick"
    counts = [random.choice([0, 1, random.randint(2, 300)]) for _ in range(8 if few else 40)]
    kinds = random.sample(KINDS, 5) if few else [*KINDS, *random.choices(KINDS, k=20)]
    events = [Event(kind, random.randint(0, 7), random.random()) for kind in kinds]
    return {"counts": counts, "workers": random.choice([1, 2]), "pool": random.choice([-1, 50, 400])}, events


class Round:
    """Files, a provider and a cache; what they should give is known from the files alone."""

    def __init__(self, bench: Bench, schedule: Schedule) -> None:
        self.bench = bench
        self.folder = bench.folder / "data"
        self.cache = bench.folder / "cache"
        self.folder.mkdir()
        self.setup, self.seed = schedule.setup, schedule.seed
        self.files = [f"f{i}" for i in range(len(self.setup["counts"]))]
        self.code = 0
        self.kills = 0
        for number, count in enumerate(self.setup["counts"]):
            self.write(number, [number * 1000 + y for y in range(count)])
        self.provider()

    def write(self, number: int, values: list[int]) -> None:
        """File ``number`` has these."""
        young = self.folder / "young"
        young.write_text("".join(f"{value}\n" for value in values))
        young.rename(self.folder / self.files[number])

    def provider(self) -> None:
        """The provider's module, as its code is now."""
        (self.folder / "kept.py").write_text(CODE.format(pool=self.setup["pool"], code=self.code))

    def launch(self, **options: Any) -> pydp2.Service:
        """A service over the files and the cache."""
        given = {"workers": self.setup["workers"], "root": self.folder, "cache_dir": self.cache} | options
        return pydp2.launch(self.files, "kept.process", **given)

    def run(self, **options: Any) -> list[list[int]]:
        """Two passes, each exact; the batches."""
        with self.launch(**options) as service, service.connect(batch_size=BATCH, seed=self.seed) as data:
            return [self.exact(data) for _ in range(2)]

    def exact(self, data: pydp2.Client) -> list[int]:
        """One pass; it has what the files have now."""
        values, rows = [], []
        for batch in data:
            table = batch[0].values.reshape(-1, 20, 2)
            assert (table == table[:, :1]).all(), "a sample that no generator gave"
            assert (table[:, 0, 1] == self.code).all(), "samples of another provider"
            values += table[:, 0, 0].tolist()
            rows.append(len(batch))
        expected = [int(line) for name in self.files for line in (self.folder / name).read_text().split()]
        assert sorted(values) == sorted(expected), "samples are wrong, missing or there twice"
        return values

    def opened(self) -> Counter[str]:
        """Files that the generator was run for, since the last call."""
        log = self.folder / "opened"
        names = log.read_text().split() if log.exists() else []
        log.unlink(missing_ok=True)
        return Counter(names)

    def entries(self) -> dict[str, Path]:
        """Whole entries of the present provider, by file."""
        young = max((path for path in self.cache.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime_ns)
        found = pydp2.CacheFolder(self.cache).entries()
        return {entry.file: entry.path for entry in found if entry.path.parent == young and not entry.damaged}

    # -- what can happen -----------------------------------------------------------------------------------------------
    def meet(self, event: Event, random: Random) -> set[str]:
        """Let ``event`` happen; the files that have to be read again then, and no others."""
        entries = self.entries()
        name = self.files[int(event.at) % len(self.files)]
        path = entries[name]
        match event.what:
            case "file":
                self.write(self.files.index(name), [random.randrange(1 << 30) for _ in range(random.randint(1, 200))])
                return {name}
            case "code":
                self.code += 1
                self.provider()
                return set(self.files)
            case "two services":
                for other in entries.values():
                    other.unlink()
                with ThreadPoolExecutor(3) as pool:
                    one, *others = pool.map(lambda _: self.run(), range(3))
                assert all(other == one for other in others), "services over one cache had different batches"
                self.opened()
                return set()
            case "killed":
                for other in entries.values():
                    other.unlink()
                self.kill(int(event.which * sum(self.setup["counts"]) / BATCH))
                self.opened()
                return set(self.files) - set(self.entries()) if self.cache.exists() else set(self.files)
            case "temporary":
                (path.parent / ".new-0123456789abcdef").write_bytes(random.randbytes(5000))
                return set()
            case "limit":
                before = self.run()
                size = sum(each.stat().st_size for each in self.cache.rglob("*") if each.is_file())
                assert self.run(cache_size=max(1000, int(event.which * size))) == before
                self.opened()
                return set()
        return self.damage(event.what, path, name, entries, random)

    def kill(self, batches: int) -> None:
        """A service dies while it reads and writes."""
        with self.launch() as service, service.connect(batch_size=BATCH, seed=self.seed) as data:
            try:
                for batch in data:
                    if batch.index >= batches:
                        break
                os.kill(service.pid, signal.SIGKILL)
                self.kills += 1
                list(data)
            except ServiceLost:
                pass

    def damage(self, what: str, path: Path, name: str, entries: dict[str, Path], random: Random) -> set[str]:
        """The bytes of an entry are others."""
        data = bytearray(path.read_bytes())
        if what == "bit":
            data[random.randrange(len(data))] ^= 1 << random.randrange(8)
        elif what == "cut":
            del data[random.randrange(len(data)) :]
        elif what == "noise":
            at = random.randrange(len(data))
            data[at : at + 100] = random.randbytes(100)
        elif what == "longer":
            data += random.randbytes(random.randint(1, 5000))
        elif what == "empty":
            data.clear()
        elif what == "swapped":
            other = random.choice(sorted(entries))
            if other == name:
                return set()
            data = bytearray(entries[other].read_bytes())
        path.unlink()
        if what != "gone":
            path.write_bytes(data)
        return {name}


def play(bench: Bench, schedule: Schedule) -> Report:
    """After each damage the passes are exact, what is damaged is named, and exactly that is read again."""
    stage, random = Round(bench, schedule), Random(schedule.seed)
    first = stage.run()
    assert stage.opened() == Counter(stage.files), "the first run did not read each file once"
    again = 0
    for event in schedule.events:
        told = bench.screen.count("cannot be used")
        expected = stage.meet(event, random)
        batches = stage.run()
        opened = stage.opened()
        assert opened == Counter(dict.fromkeys(expected, 1)), f"{event.what}: {opened} was read, not {expected}"
        named = bench.screen.count("cannot be used") - told
        if event.what in BYTES:
            assert named == (1 if expected and event.what != "gone" else 0), f"{event.what}: {named} were named"
        if event.what not in ("file", "code"):
            assert batches == first, f"{event.what}: other batches than before"
        first = batches
        again += len(expected)
    return Report(stage.kills, {"files read again": again})


FAULTS = (Fault("F17", "a damaged cache", "never wrong data; exactly what changed is read again", draw, play, 300.0),)
