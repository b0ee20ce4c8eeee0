"""F16: a disk that is full, or that cannot be written, under the quarantine and under the state directory. Under a
cache on disk it is met by tests/conformance/test_disk_cache.py.
"""

from __future__ import annotations

import json
import resource
import shutil
from pathlib import Path
from random import Random
from typing import Any

import pydp2
from pydp2.errors import OptionError

from ..runs import wait_until
from .bench import Bench, caught
from .case import Event, Fault, Report, Schedule
from .server_dies import BATCH, Stage, a_stream

PROVIDER = """
from pydp2 import *

@provider(input_types=[integer_value(1000)], check=True, check_fail_continue=True, should_shuffle=False)
def process(settings, filename):
    for y in range(1000):
        yield y if y % 5 else 10_000
"""
GOOD = [y for y in range(1000) if y % 5]

# The limit is set before the service starts: the server, which writes, has it too. SIGXFSZ is ignored by Python.
FULL = """
import resource, sys
import pydp2
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
with pydp2.load(["a", "b"], "dropping.process", batch_size=50, workers=2, quarantine=sys.argv[2]) as data:
    print(sum(int(batch[0].sum()) for batch in data))
"""


def draw(random: Random, size: str) -> tuple[dict[str, Any], list[Event]]:
    """After how many bytes the disk is full; then what becomes of the state directory, after how many batches."""
    setup = a_stream(random, size) | {"pause": 0.005}
    first = sum(setup["counts"]) // BATCH // 2  # before the first pass is over: its end has to be written
    events = [Event("full", random.randint(2000, 30_000)) for _ in range(2 if size == "quick" else 10)]
    events += [Event(random.choice(STATE), random.randint(1, max(1, first)), random.random())]
    if events[-1].what == "state full":
        setup["raising"] = []  # the log is a file, too, with the same limit: the warning has to be the first in it
    return setup, events


STATE = ("state full", "state gone", "state no directory")


def play(bench: Bench, schedule: Schedule) -> Report:
    """Both parts: the quarantine's disk, and that of the state."""
    setup, events = schedule.setup, schedule.events
    report = play_quarantine(bench, [event for event in events if event.what == "full"])
    for event in events:
        if event.what in STATE:
            stage = Stage(bench, schedule)
            try:
                report.notes.append(play_state(stage, event, setup))
            finally:
                stage.close()
            report.kills += stage.kills
    return report


def play_state(stage: Stage, event: Event, setup: dict[str, Any]) -> str:
    """It is said once, and the pass goes on, exact. After a kill and a restart it is exact as well, or several trainers
    are told to load a state. What came of it."""
    bench, folder = stage.bench, stage.folder
    trainers = stage.trainers()
    trainers.wait(int(event.at))
    aside = folder.with_name("aside")
    if event.what == "state full":
        limit = 100 + int(event.which * 300)  # less than any snapshot of the job, and room for the warning
        resource.prlimit(stage.service.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    elif event.what == "state gone":
        shutil.rmtree(folder)
    else:
        folder.rename(aside)
        folder.write_text("")
    batches = trainers.wait(int(event.at) + max(5, sum(setup["counts"]) // BATCH))  # that is, to the end of the pass
    is_written = setup["share"] not in ("one", "dynamic")  # of these the service writes nothing
    if is_written:
        assert wait_until(lambda: "the state cannot be written" in bench.screen), bench.screen[-2000:]
    if batches:
        stage.kill()
        if event.what == "state no directory":
            error = caught(stage.start)
            assert isinstance(error, OptionError), f"a state directory that is a file gave {error!r}"
            folder.unlink()
            aside.rename(folder)
        stage.start()
    trainers.end()
    said = bench.screen.count("the state cannot be written")
    assert said == 1 or (not is_written and said == 0), f"it was said {said} times"
    trainers.judge(stage.data, stage.seed, setup)
    assert not trainers.rewound or setup["share"] != "one", "one trainer was sent back"
    ending = "told to load a state" if trainers.rewound else "exact"
    return f"{event.what}, {'several' if setup['share'] != 'one' else 'one'}: {ending}"


def play_quarantine(bench: Bench, events: list[Event]) -> Report:
    """The pass is exact, the disk is complained of once, and the lines that were written are whole but for the last."""
    (bench.folder / "dropping.py").write_text(PROVIDER)
    written = []
    for number, event in enumerate(events):
        path = bench.folder / f"losses-{number}.jsonl"
        done = bench.command(FULL, str(int(event.at)), str(path))
        assert done.returncode == 0, done.stderr[-3000:]
        assert done.stdout.split() == [str(2 * sum(GOOD))], f"{done.stdout} {done.stderr[-2000:]}"
        assert done.stderr.count("cannot be written any more") == 1, done.stderr[-3000:]
        *lines, _ = path.read_bytes().split(b"\n")
        written.append(len([json.loads(line) for line in lines]))
    nowhere = Path("/dev/full")
    for path in (nowhere, bench.folder / "no" / "folder", bench.folder):
        error = caught(lambda path=path: _start(bench, path))  # type: ignore[misc]
        assert isinstance(error, OptionError), f"a quarantine in {path} gave {error!r}"
    figures: dict[str, float | list[float]] = {"lines before the disk was full": sum(written) / max(1, len(written))}
    return Report(0, figures)


def _start(bench: Bench, path: Path) -> None:
    with pydp2.launch(["a"], f"{bench.folder}/dropping.py:process", workers=1, quarantine=str(path)):
        pass


FAULTS = (Fault("F16", "full and broken disks", "one warning; the pass is exact", draw, play),)
