"""A7, A8 and A9: limits on addresses, limits below the size of a row, and the limits of a control group."""

from __future__ import annotations

import contextlib
import hashlib
import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from ..runs import wait_until
from .bench import Bench
from .case import Event, Fault, Report, Schedule, Skip

MB = 1_000_000
FILES, ROWS, PASSES = 6, 10, 2
PROVIDER = """
import numpy as np

@provider(input_types=[{slot}, integer_value(1000)], pool_size={pool}, cache={cache}, should_shuffle=False)
def process(settings, filename):
    for y in range({rows}):
        number = {rows} * int(filename) + y
        yield {value}, number
"""
KINDS = {  # the slot, and what a row of `number` holds in it
    "dense": ("dense_vector({floats})", "np.full({floats}, number, 'f')"),
    "sequence": ("dense_vector_sequence({floats} // 10)", "[np.full({floats} // 10, number, 'f')] * (number % 19)"),
}
# A program under limits: it prints what it saw, or by which error it was refused.
PROGRAM = """
import hashlib, json, sys
how = json.loads(sys.argv[1])
if how["addresses"]:
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (how["addresses"],) * 2)
if how["group"]:
    with open(how["group"] + "/cgroup.procs", "w") as procs:
        import os
        procs.write(str(os.getpid()))
import pydp2
files = [str(n) for n in range(how["files"])]
try:
    with pydp2.load(files, how["provider"], batch_size=4, workers=how["workers"], **how["options"]) as data:
        seen = hashlib.blake2b()
        for _ in range(how["passes"]):
            for batch in data:
                first = batch[0]
                seen.update((first if hasattr(first, "tobytes") else first.values).tobytes() + batch[1].tobytes())
        print("exact", seen.hexdigest(), data.stats()["workers_lost"])
except pydp2.errors.OptionError as error:
    print("refused", error)
"""


def oracle(kind: str, floats: int) -> str:
    """What the program must print of its passes: worked out here, from the files alone and without any service."""
    seen = hashlib.blake2b()
    for _ in range(PASSES):
        for first in range(0, FILES * ROWS, 4):
            numbers = np.arange(first, min(first + 4, FILES * ROWS), dtype=np.int32)
            for number in numbers:
                length, width = (1, floats) if kind == "dense" else (int(number) % 19, floats // 10)
                seen.update(np.full(length * width, number, np.float32).tobytes())
            seen.update(numbers.tobytes())
    return seen.hexdigest()


def run(bench: Bench, schedule: Schedule, options: dict[str, Any], *, addresses: int = 0, group: str = "") -> list[str]:
    """The words that the program of the round prints under these limits."""
    setup = schedule.setup
    kind, floats = setup["kind"], setup["floats"]
    slot, value = (text.format(floats=floats) for text in KINDS[kind])
    address = bench.write("limited", PROVIDER.format(slot=slot, value=value, pool=20, cache=setup["cache"], rows=ROWS))
    how = {
        "addresses": addresses, "group": group, "provider": address, "files": FILES, "passes": PASSES,
        "workers": setup["workers"], "options": options,
    }  # fmt: skip
    done = bench.command(PROGRAM, json.dumps(how))
    assert done.returncode == 0, f"{how}: exit code {done.returncode}: {done.stderr[-2000:]}"
    return done.stdout.split(maxsplit=1)


def outcome(bench: Bench, schedule: Schedule, words: list[str], must_name: str) -> bool:
    """Whether passes were exact. Raises AssertionError where they were neither that nor refused by what limits them."""
    assert words, "the program said nothing"
    if words[0] == "refused":
        assert must_name in words[1], f"refused without the limit: {words[1]}"
        assert "lower" in words[1], f"refused without a remedy: {words[1]}"
        return False
    seen, lost = words[1].split()
    assert seen == oracle(schedule.setup["kind"], schedule.setup["floats"]), "other data than without a limit"
    assert lost == "0", f"{lost} workers were lost for a limit"
    return True


def told(exact: int, schedule: Schedule) -> Report:
    return Report(0, {"limits": len(schedule.events), "exact": exact})


# -- A7 ----------------------------------------------------------------------------------------------------------------
SIZES = [300, 400, 450, 500, 550, 600, 650, 700, 800, 900, 1000, 1250, 1500, 2000, 3000, 4000]


def draw_addresses(random: Random, size: str) -> tuple[dict[str, Any], list[Event]]:
    """How many MB of addresses; and rows that travel in places, in slabs, or through the cache."""
    sizes = SIZES if size == "full" else [random.choice(SIZES[:4]), random.choice(SIZES[4:12]), SIZES[-1]]
    setup = {
        "kind": random.choice([*KINDS]), "floats": random.choice([1000, 100_000, 400_000]),
        "cache": random.choice([0, 1]), "workers": random.choice([1, 2, 3]),
    }  # fmt: skip
    return setup, [Event("addresses", megabytes) for megabytes in sizes]


def play_addresses(bench: Bench, schedule: Schedule) -> Report:
    """Every pass is exact, or the service or the job is refused with the limit; no worker is lost for it."""
    exact = 0
    for event in schedule.events:
        limit = int(event.at) * MB
        words = run(bench, schedule, {"pool_bytes": 50 * MB}, addresses=limit)
        good = outcome(bench, schedule, words, f"RLIMIT_AS is {limit}")
        assert good or event.at < 4000, "4 GB of addresses are enough"
        exact += good
    return told(exact, schedule)


# -- A8 ----------------------------------------------------------------------------------------------------------------
def draw_rows(random: Random, size: str) -> tuple[dict[str, Any], list[Event]]:
    """Limits around the size of a row, and around twice that, which leaves a cache room for one."""
    floats = random.choice([1 << 18, 300_000, 1 << 20])
    row = 4 * floats + 4
    limits = [1 << 20, row, 2 * row, 2 * (row + 64) - 2, 2 * (row + 64), 3 * row, 8 * row]
    if size == "quick":
        limits = random.sample(limits, 3)
    setup = {"kind": random.choice([*KINDS]), "floats": floats, "cache": random.choice([1, 3]), "workers": 2}
    return setup, [Event("memory_limit", limit) for limit in limits]


def play_rows(bench: Bench, schedule: Schedule) -> Report:
    """Every pass is exact, with the cache or without it."""
    for event in schedule.events:
        options = {"memory_limit": int(event.at), "pool_bytes": 256 * MB, "cache_dir": str(bench.folder / "cache")}
        assert outcome(bench, schedule, run(bench, schedule, options), "memory_limit"), "nothing is to be refused here"
    return told(len(schedule.events), schedule)


# -- A9 ----------------------------------------------------------------------------------------------------------------
@contextmanager
def group_of(limit: int) -> Iterator[Path]:
    """A control group with ``limit`` bytes of memory, version 1 or 2. Raises Skip where none can be made."""
    tops = [(Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"), (Path("/sys/fs/cgroup"), "memory.max")]
    for top, name in tops:
        group = top / f"pydp2-fault-{uuid.uuid4().hex[:8]}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            with (group / name).open("r+") as told_there:
                told_there.write(str(limit))
        except OSError:
            with contextlib.suppress(OSError):
                group.rmdir()
            continue
        try:
            yield group
        finally:
            assert wait_until(partial(_removed, group)), f"somebody is left in {group}"
        return
    raise Skip("no control group with a limit on memory can be made here")


def _removed(group: Path) -> bool:
    with contextlib.suppress(OSError):
        group.rmdir()
    return not group.exists()


def draw_groups(random: Random, size: str) -> tuple[dict[str, Any], list[Event]]:
    """How many MiB the group may have, and the pool."""
    setup = {
        "kind": "dense", "floats": random.choice([1000, 250_000]), "cache": random.choice([0, 1]), "workers": 2,
        "pool": random.choice([8, 32, 100, 1024]) << 20,
    }  # fmt: skip
    sizes = [64, 128, 200, 256, 320, 400, 512, 1024] if size == "full" else [random.choice([64, 128]), 256, 512]
    return setup, [Event("group", megabytes) for megabytes in sizes]


def play_groups(bench: Bench, schedule: Schedule) -> Report:
    """Every pass is exact, or is refused with the group's limit; the kernel kills nobody."""
    exact = 0
    for event in schedule.events:
        with group_of(int(event.at) << 20) as group:
            words = run(bench, schedule, {"pool_bytes": schedule.setup["pool"]}, group=str(group))
            exact += outcome(bench, schedule, words, f"left in control group {group}")
    return told(exact, schedule)


FAULTS = (
    Fault("A7", "few addresses", "exact, or refused with the limit", draw_addresses, play_addresses, 400.0),
    Fault("A8", "rows larger than a limit", "exact, with a cache or without", draw_rows, play_rows, 200.0),
    Fault("A9", "a small control group", "exact, or refused with the limit", draw_groups, play_groups, 300.0),
)
