"""F12 to F15: generators that hang, harm their surroundings, do not repeat themselves, or kill every worker."""

from __future__ import annotations

import os
import re
import signal
import time
from functools import partial
from random import Random
from typing import Any

import pydp2
from pydp2.errors import FileCondemned, NotRepeatable

from ..runs import processes, wait_until
from .bench import Bench, caught
from .case import Event, Fault, Report, Schedule
from .data import Dataset, Judge, expected, nothing_but
from .workers_die import poisson, read

BATCH = 64

# -- F12 ---------------------------------------------------------------------------------------------------------------
HANGS = {
    "sleep": "time.sleep(10_000)",
    "lock": "lock = __import__('threading').Lock(); lock.acquire(); lock.acquire()",
    "C loop": "sum(range(10**13))",
    "regular expression": "__import__('re').match('(a+)+$', 'a' * 64 + 'b')",
    "read": "os.read(os.pipe()[0], 1)",
    "deaf": "__import__('signal').signal(15, 1); time.sleep(10_000)",
}


def draw_hangs(random: Random, size: str) -> tuple[dict[str, Any], list[Event]]:
    """Which ways to hang, each at a sample of a file."""
    ways = random.sample(list(HANGS), 2) if size == "quick" else list(HANGS)
    return {"workers": random.choice([1, 2, 3])}, [Event(way, random.randrange(200), random.random()) for way in ways]


def play_hangs(bench: Bench, schedule: Schedule) -> Report:
    """Killed after ``sample_timeout`` and at most a second, its stack shown, tried three times, then named; the rest is
    exact."""
    counts, limit, longest = (200,) * 8, 0.4, 0.0
    options: dict[str, Any] = {"workers": schedule.setup["workers"], "batch_size": BATCH, "seed": schedule.seed}
    for event in schedule.events:
        file, y = int(event.which * len(counts)), int(event.at)
        data = nothing_but(counts, file, y, HANGS[event.what])
        before = len(bench.screen)
        judge = Judge(expected(counts, data.pool_size, BATCH, schedule.seed, ends=((file, y),)))
        with pydp2.load(
            data.files, data.write(bench.folder), args=data.args(), sample_timeout=limit, on_error="skip", **options
        ) as client:
            began = time.monotonic()
            for batch in client:
                judge.take(batch)
            longest = max(longest, time.monotonic() - began)
        judge.end()
        screen = bench.screen[before:]
        assert screen.count(f"file-{file:05d}, sample {y} takes longer than {limit:g} s; the stack:") == 3, screen[
            -3000:
        ]
        assert screen.count("in process") >= 1, f"{event.what}: no stack was shown: {screen[-3000:]}"
        assert "three workers died while process() produced it" in screen, screen[-3000:]
    return Report(3 * len(schedule.events), {"longest pass with three hangs, s": longest})


# -- F13 ---------------------------------------------------------------------------------------------------------------
SURROUNDINGS = {
    "thread": "__import__('threading').Thread(target=time.sleep, args=(1000,), daemon=True).start()",
    "child": "__import__('subprocess').Popen(['sleep', '1000'])",
    "session": "__import__('subprocess').Popen(['sleep', '1000'], start_new_session=True)",
    "folder": "os.chdir('/')",
    "environment": "os.environ.clear()",
    "seeds": "__import__('random').seed(0); __import__('numpy').random.seed(0)",
    "stdout": "os.closerange(1, 2)",
    "signals": "[__import__('signal').signal(n, 1) for n in (1, 2, 15)]",
    "umask": "os.umask(0o777)",
    "chatter": "[print('x' * 99) for _ in range(30_000 * os.path.exists('/dev/fd/1'))]",
    "stderr": "os.closerange(2, 3); os.closerange(0, 1)",
    "limits": "__import__('sys').setrecursionlimit(60)",
    "collector": "__import__('gc').disable()",
    "warnings": "__import__('warnings').simplefilter('error')",
}
LEAK = "globals().setdefault('kept', []).append(b'x' * (y < 5) * (5 << 20))"  # 25 MB of each file
WORKER_MEMORY = 150 << 20


def draw_surroundings(random: Random, size: str) -> tuple[dict[str, Any], list[Event]]:
    """What generators do, each at a sample of a file."""
    ways = random.sample(list(SURROUNDINGS), 6) if size == "quick" else [*SURROUNDINGS, *SURROUNDINGS]
    return {"workers": random.choice([1, 2, 3])}, [Event(way, random.randrange(200), random.random()) for way in ways]


def play_surroundings(bench: Bench, schedule: Schedule) -> Report:
    """The pass is exact, what they print is bounded, and their children end with them."""
    counts = (200,) * 12
    acts = "\n        ".join(
        f"if (file, y) == ({int(event.which * len(counts))}, {int(event.at)}): {SURROUNDINGS[event.what]}"
        for event in schedule.events
    )
    data = Dataset(counts, pool_size=500, extra=f"{LEAK}\n        {acts}")
    judge = Judge(expected(counts, data.pool_size, BATCH, schedule.seed))
    began = time.monotonic()
    with pydp2.load(
        data.files, data.write(bench.folder), args=data.args(), root=bench.folder, batch_size=BATCH, seed=schedule.seed,
        workers=schedule.setup["workers"], worker_memory=WORKER_MEMORY,
    ) as client:  # fmt: skip
        for batch in client:
            judge.take(batch)
        server, replaced = processes("pydp2-server"), client.stats()["workers_lost"]
    judge.end()
    assert len(server) == 1, "the server did not live to the end"
    seconds, shown = time.monotonic() - began, len(bench.screen)
    assert shown < 1_100_000 * (schedule.setup["workers"] + 1) * (seconds + 1), f"{shown} bytes in {seconds:.1f} s"
    assert wait_until(lambda: all(map(_leads_a_session, processes("sleep")))), f"left: {processes('sleep')}"
    left = processes("sleep")
    for pid in left:
        bench.signal(pid, signal.SIGKILL)
    notes = ["a child in a session of its own outlives its worker"] if left else []
    return Report(0, {"bytes shown": shown, "workers replaced at their memory limit": replaced}, notes)


def _leads_a_session(pid: int) -> bool:
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return True  # it ended while we looked


# -- F14 ---------------------------------------------------------------------------------------------------------------
CHANGES = {
    "value": "if again and y == 30:\n            yield {'name': 7, 'words': []}\n            continue",
    "less": "if again and y == 30:\n            continue",
    "more": "if again and y == 30:\n            yield {'name': file << 32 | y, 'words': []}",
    "words": "if again and y == 30:\n            yield {'name': file << 32 | y, 'words': [5]}\n            continue",
    "end": "if again and y == 30:\n            return",
}
DIE = (  # once some of the file has been committed, the worker dies; from then on the file is another
    # it sleeps in parts: after a stop of the whole process, too, the thread that sends has its time
    "again = file == 1 and os.path.exists(settings.more['mark'])\n        "
    "if (file, y) == (1, 300) and not again:\n            "
    "[time.sleep(0.01) for _ in range(100)]; open(settings.more['mark'], 'w').close(); os._exit(1)\n        "
)


def draw_changes(random: Random, size: str) -> tuple[dict[str, Any], list[Event]]:
    """Ways to be another file the second time."""
    ways = random.sample(list(CHANGES), 2) if size == "quick" else list(CHANGES)
    return {"workers": random.choice([1, 2])}, [Event(way) for way in ways]


def play_changes(bench: Bench, schedule: Schedule) -> Report:
    """Found out and named; what was delivered before is right, nothing of the second run is mixed in."""
    counts = (400,) * 4
    for number, event in enumerate(schedule.events):
        mark = bench.folder / f"mark-{number}"
        extra = DIE + CHANGES[event.what]
        data = Dataset(counts, pool_size=100, extra=extra, more={"mark": str(mark)})
        judge = Judge(expected(counts, data.pool_size, BATCH, schedule.seed))
        with pydp2.load(
            data.files, data.write(bench.folder), args=data.args(), batch_size=BATCH, seed=schedule.seed,
            workers=schedule.setup["workers"],
        ) as client:  # fmt: skip
            error = caught(partial(judge.all, client))
        assert isinstance(error, NotRepeatable), f"a file that changed ({event.what}) between two runs gave {error!r}"
        assert str(error).startswith("file file-00001: process() did not repeat itself"), str(error)
        assert mark.exists()
        mark.unlink()
        before = len(bench.screen)
        with pydp2.load(
            data.files, data.write(bench.folder), args=data.args(), batch_size=BATCH, seed=schedule.seed,
            workers=schedule.setup["workers"], on_changed="warn",
        ) as client:  # fmt: skip
            samples = sum(len(batch) for batch in client)
        assert abs(samples - data.total) <= 100, f"{samples} samples came of a pass that bears with changes"
        named = bench.screen[before:].count("file file-00001")
        assert named >= 1, "a file that changed was not named"
    return Report(2 * len(schedule.events))


# -- F15 ---------------------------------------------------------------------------------------------------------------
def draw_poison(random: Random, size: str) -> tuple[dict[str, Any], list[Event]]:
    """Two deadly files among many, and workers killed beside them."""
    files = 30 if size == "quick" else 100
    poison = [[file, random.randrange(200)] for file in random.sample(range(files), 2)]
    batches = files * 200 // 128
    events = [Event("SIGKILL", n, random.random()) for n in sorted(random.sample(range(1, batches - 5), 5))]
    if size == "full":
        events = poisson(random, "SIGKILL", 0.2, 20.0)
    how = random.choice(["os._exit(1)", "os.abort()", "os.kill(os.getpid(), 9)", "__import__('ctypes').string_at(0)"])
    setup = {
        "workers": random.choice([1, 2, 3]), "files": files, "samples": files * 200, "by_clock": size == "full",
        "poison": poison, "how": how,
    }  # fmt: skip
    return setup, events


def play_poison(bench: Bench, schedule: Schedule) -> Report:
    """Both are condemned, each after three deaths at its sample; no other file is, and the rest is exact."""
    setup = schedule.setup
    acts = "\n        ".join(
        f"if (file, y) == ({file}, {y}): open(f'{{settings.more[\"folder\"]}}/death-{file}-{{time.monotonic_ns()}}', "
        f"'w').close(); {setup['how']}"
        for file, y in setup["poison"]
    )
    data = Dataset((200,) * setup["files"], pool_size=1000, extra=acts, more={"folder": str(bench.folder)})
    ends = tuple((file, y) for file, y in setup["poison"])
    seen = read(bench, schedule, data, ends=ends, on_error="skip", memory_limit="4MiB")
    for file, y in setup["poison"]:
        deaths = len(list(bench.folder.glob(f"death-{file}-*")))
        assert deaths == 3, f"file {file} killed {deaths} workers at sample {y}"
    skipped = re.findall(r"file file-(\d+), sample (\d+): three workers died", bench.screen)
    told = sorted([int(file), int(y)] for file, y in skipped)
    assert told == sorted(setup["poison"]), f"condemned: {told}, deadly: {setup['poison']}"
    with pydp2.load(data.files, data.write(bench.folder), args=data.args(), batch_size=BATCH, workers=2) as client:
        error = caught(lambda: list(client))
    assert isinstance(error, FileCondemned), f"a deadly file gave {error!r}"
    return Report(seen["kills"] + 9)


FAULTS = (
    Fault(
        "F12", "generators hang", "killed at sample_timeout + 1 s, stack shown, tried three times, named", draw_hangs,
        play_hangs,
    ),
    Fault(
        "F13", "generators harm their surroundings", "exact; children end; output bounded; the server lives",
        draw_surroundings, play_surroundings,
    ),
    Fault("F14", "another sample when run again", "found out and named", draw_changes, play_changes),
    Fault("F15", "files that kill every worker", "condemned after 3 deaths, the rest exact, innocents never",
          draw_poison, play_poison),
)  # fmt: skip
