"""F25: lists as they should not be; each has an outcome that is known."""

from __future__ import annotations

import os
import threading
import time
import warnings
import zlib
from pathlib import Path
from random import Random
from typing import Any

import pydp2
from pydp2.errors import ListError, ProviderError

from ..runs import processes
from .bench import Bench, caught, resident
from .case import Event, Fault, Report, Schedule

ENTRIES = """
import zlib

@provider(input_types=[integer_value(1 << 32)])
def process(settings, filename):
    yield zlib.crc32(filename.encode())
"""
READ = """
@provider(input_types=[integer_value(1000)])
def process(settings, filename):
    with open(filename) as lines:
        yield len(lines.read())
"""
TEXTS: dict[str, tuple[bytes, list[str]]] = {
    "CRLF": (b"a\r\nb\r\n", ["a", "b"]),
    "BOM": (b"\xef\xbb\xbfa\nb\n", ["a", "b"]),
    "blank lines": (b"\n\na\n\n\nb\n\n", ["a", "b"]),
    "duplicates": (b"a\nb\na\n", ["a", "b", "a"]),
    "spaces": (b"a b\n c \n", ["a b", "c"]),
    "UTF-8": ("zürich\n日本\n".encode(), ["zürich", "日本"]),
    "comments": (b"# a comment\na\n", ["a"]),
    "patterns of nothing": (b"[ab]?\nwhat?\n", ["[ab]?", "what?"]),
    "dots": (b"../x\n./y\n/z\n", ["../x", "./y", "/z"]),
    "a line of a megabyte": (b"x" * 1_000_000 + b"\ny\n", ["x" * 1_000_000, "y"]),
    "no last newline": (b"a\nb", ["a", "b"]),
}
LISTS = (
    "a pattern",
    "a pattern of nothing",
    "missing",
    "empty",
    "directory",
    "FIFO",
    "no permission",
    "NUL",
    "not UTF-8",
    "a million",
    "changed mid-pass",
)
FILES = ("missing file", "directory as file", "no permission file", "empty file")


def draw(random: Random, size: str) -> tuple[dict[str, Any], list[Event]]:
    """Which lists."""
    kinds = [*TEXTS, *LISTS, *FILES]
    if size == "quick":
        kinds = random.sample([kind for kind in kinds if kind != "a million"], 6)
    return {"workers": random.choice([1, 2])}, [Event(kind) for kind in kinds]


def play(bench: Bench, schedule: Schedule) -> Report:
    """Every list gives its entries as they stand there, or one clear error; none hangs."""
    notes: list[str] = []
    figures: dict[str, float] = {}
    for number, event in enumerate(schedule.events):
        folder = bench.folder / f"list-{number}"
        folder.mkdir()
        path, kind = folder / "train.list", event.what
        if kind in TEXTS:
            path.write_bytes(TEXTS[kind][0])
            _gives(bench, path, TEXTS[kind][1], schedule)
        elif kind in FILES:
            _file(bench, folder, path, kind, schedule, notes)
        else:
            _list(bench, path, kind, schedule, notes, figures)
    return Report(0, {"lists": len(schedule.events)} | figures, notes)


def _read(bench: Bench, files: Any, code: str, schedule: Schedule, **options: Any) -> list[int]:
    how = {"batch_size": 64, "shuffle": False, "workers": schedule.setup["workers"]} | options
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an empty list warns
        with pydp2.load(files, bench.write("listed", code), **how) as client:
            return [value for batch in client for value in batch[0].tolist()]


def _gives(bench: Bench, path: Path, entries: list[str], schedule: Schedule) -> None:
    seen = _read(bench, path, ENTRIES, schedule)
    assert seen == [zlib.crc32(entry.encode()) for entry in entries], f"other entries than {entries[:3]!r:.60}"


def _refused(bench: Bench, path: Path, text: str, schedule: Schedule) -> None:
    error = caught(lambda: _read(bench, path, ENTRIES, schedule))
    assert isinstance(error, ListError), f"the list should have been refused with {text!r}, not {error!r}"
    assert text in str(error), f"expected {text!r} in {error}"
    assert "Traceback" not in str(error)


def _list(bench: Bench, path: Path, kind: str, schedule: Schedule, notes: list[str], figures: dict[str, float]) -> None:
    match kind:
        case "a pattern":
            for name in ("b.txt", "a.txt", "c.bin"):
                (path.parent / name).touch()
            path.write_text("*.txt\n")
            names = ["a.txt", "b.txt"]
            seen = _read(bench, path, ENTRIES, schedule, root=path.parent)
            assert seen == [zlib.crc32(name.encode()) for name in names], f"other files than {names}"
        case "a pattern of nothing":
            path.write_text("a\n*.none\n")
            _refused(bench, path, "line 2", schedule)
        case "missing":
            _refused(bench, path, "is missing", schedule)
        case "empty":
            path.write_text("\n")
            assert _read(bench, path, ENTRIES, schedule) == []
        case "directory":
            path.mkdir()
            _refused(bench, path, "is a directory", schedule)
        case "FIFO":
            os.mkfifo(path)  # read to its end, as `pydp2 serve <(…)` wants it; without a writer it is waited for
            writer = threading.Thread(target=path.write_text, args=("a\nb\n",))
            writer.start()
            _gives(bench, path, ["a", "b"], schedule)
            writer.join()
        case "no permission":
            path.write_text("a\n")
            path.chmod(0)
            if os.geteuid() == 0:
                notes.append("no permission: root reads everything")
            else:
                _refused(bench, path, "Permission denied", schedule)
        case "NUL":
            path.write_bytes(b"a\0b\nc\n")
            _refused(bench, path, "NUL", schedule)
        case "not UTF-8":
            path.write_bytes(b"a\n\xff\n")
            _refused(bench, path, "UTF-8; line 2", schedule)
        case "changed mid-pass":
            path.write_text("a\nb\n")
            with pydp2.load(path, bench.write("listed", ENTRIES), batch_size=1, shuffle=False, workers=1) as client:
                stream = iter(client)
                seen = [next(stream)[0].tolist()]
                path.write_text("x\ny\nz\n")
                seen += [batch[0].tolist() for batch in stream]
            assert len(seen) == 2, "the list that was read at the start is the list of the service"
        case "a million":
            with open(path, "w") as out:
                out.writelines(f"a/long/folder/file-{n:07d}.txt\n" for n in range(1_000_000))
            before, began = resident(os.getpid()), time.monotonic()
            address = bench.write(
                "million", ENTRIES.replace("[integer_value(1 << 32)]", "[integer_value(1 << 32)], pool_size=64")
            )
            with pydp2.load(path, address, batch_size=64, workers=2) as client:
                next(iter(client))
                figures["first batch of a million files, s"] = time.monotonic() - began
                memory = resident(os.getpid()) - before + sum(map(resident, processes("pydp2-")))
                figures["MB for a million files"] = memory / 1e6


def _file(bench: Bench, folder: Path, path: Path, kind: str, schedule: Schedule, notes: list[str]) -> None:
    file = folder / "data.txt"
    path.write_text(f"{file}\n")
    match kind:
        case "directory as file":
            file.mkdir()
        case "no permission file":
            file.write_text("abc")
            file.chmod(0)
            if os.geteuid() == 0:
                notes.append("no permission: root reads everything")
                return
        case "empty file":
            file.write_text("")
            assert _read(bench, path, READ, schedule) == [0]
            return
    error = caught(lambda: _read(bench, path, READ, schedule))
    assert isinstance(error, ProviderError), f"a {kind} in the list gave {error!r}"
    assert isinstance(error, OSError), repr(error)
    assert str(error).startswith(f"file {file}, sample 0: process raised"), str(error)


FAULTS = (Fault("F25", "lists as they should not be", "each an outcome that is known", draw, play, 300.0),)
