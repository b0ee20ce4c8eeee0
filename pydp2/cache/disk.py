"""CACHE_PASS_ON_DISK: whole files on the disk, for later passes and later runs.

All that touches the disk is done by a thread of its own, because a disk may take its time: it looks for the entry of a
file, verifies it before its first use, and writes what is offered. What it finds comes back as answers. Where the disk
cannot keep up, is full or fails, files are not kept; nobody waits for it longer than it moves.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pydp2.cache import folder as place
from pydp2.cache.entry import Damaged, Hole, Label, Reader, Writer, room_of
from pydp2.cache.terms import Answer, Found, Missing, Origin, Said, Settled, WeightedSamples, key_of
from pydp2.inputs import Columns
from pydp2.parts import named

BLOCK = 4 << 20  # bytes of samples that are written together
PENDING = 64 << 20  # bytes that may wait to be written; a file that would come on top is not kept
_RACY = 20_000_000  # ns; a file that was changed less than this ago may change again and look the same
_STUCK = 10.0  # seconds without a step, and nobody waits for the disk any more
_PAUSE = 60.0  # seconds without trying after the disk failed
_FAILURES = (OSError, MemoryError)  # of a disk, and of what is read from it or written to it
_LEAVING = 2.0  # seconds for what is due when the service ends


@dataclass
class _Open:
    """A file that is being written."""

    stamp: tuple[int, ...]
    writer: Writer | None = None
    waiting: list[Any] = field(default_factory=list)  # offered, of the next block
    bytes: int = 0
    holes: list[Hole] = field(default_factory=list)
    dropped: bool = False


class DiskCache:
    """Entries of ``origin`` in the directory ``folder``, of at most ``limit`` bytes with all others that are there;
    None: half of what is free. Answers come by :meth:`answers` once :attr:`handle` can be read."""

    def __init__(self, folder: Path, origin: Origin, limit: int | None) -> None:
        self._folder = folder
        self._origin = origin
        self._place = folder / origin.key
        self.limit = limit
        self.used = 0
        """Bytes in the directory, as far as is known."""
        self.read = self.written = 0
        """Files that came from the disk, and files that went to it."""
        self._began = time.time_ns()
        self._open: dict[int, _Open] = {}
        self._verified: dict[int, tuple[int, int, int]] = {}
        self._copies: dict[int, int] = {}
        self._ready = False
        self._full = False
        self._said: set[str] = set()
        self._failed_at: float | None = None
        self._condition = threading.Condition()
        self._due: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._pending = 0
        self._since: float | None = None  # the thread is in one step since then
        self._ends = False
        self._answers: deque[Answer] = deque()
        self.handle, self._wake = os.pipe()
        os.set_blocking(self.handle, False)
        os.set_blocking(self._wake, False)
        self._thread: threading.Thread | None = None

    # -- for the loop ----------------------------------------------------------------------------------------------
    @property
    def keeps(self) -> bool:
        """Whether it is of use to offer a file."""
        failed = self._failed_at
        return not self._full and not self.stuck and (failed is None or time.monotonic() - failed > _PAUSE)

    @property
    def stuck(self) -> bool:
        """The disk has not moved for long: nobody should wait for it."""
        since = self._since
        return since is not None and time.monotonic() - since > _STUCK

    def look(self, file: int) -> None:
        """Find ``file``: Found or Missing will be answered."""
        self._do(self._look, file)

    def offer(self, file: int, stamp: tuple[int, ...], samples: WeightedSamples | None, holes: Sequence[Any]) -> bool:
        """Keep what is next in ``file``. It must not change afterwards. False: the disk does not keep up, and the file
        will not be kept."""
        size = 0 if samples is None else int(samples.sizes[samples.lo : samples.hi].sum())
        if self._pending + size > PENDING and self._pending:
            text = "the disk is too slow for the cache: some files are not kept, and are read again in the next pass"
            self._say(text, once="slow")
            return False
        with self._condition:
            self._pending += size
        self._do(self._add, file, stamp, samples, [(y, slot, why) for y, slot, why in holes], size)
        return True

    def complete(self, file: int, stamp: tuple[int, ...]) -> None:
        """``file`` ended and was offered whole: Settled will be answered."""
        self._do(self._finish, file, stamp)

    def drop(self, file: int) -> None:
        """``file`` will not be complete."""
        self._do(self._abandon, file)

    def answers(self) -> list[Answer]:
        """What was found and done since the last call."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.handle, 4096)
        out = []
        while self._answers:
            out.append(self._answers.popleft())
        return out

    def figures(self) -> dict[str, Any]:
        """How it is going, as plain data."""
        return {
            "directory": str(self._folder), "read": self.read, "written": self.written, "bytes": self.used,
            "limit": self.limit,
        }  # fmt: skip

    def end(self) -> None:
        """Nothing more will be asked for."""
        with self._condition:
            self._ends = True
            self._condition.notify_all()

    def close(self) -> None:
        """Write what was complete, as far as that is soon done, and let go."""
        self.end()
        if self._thread is not None:
            self._thread.join(_LEAVING)
            if self._thread.is_alive():
                return  # it ends with the process; the pipe is its own until then
        os.close(self.handle)
        os.close(self._wake)

    def _do(self, step: Callable[..., None], *given: Any) -> None:
        with self._condition:
            self._due.append((step, given))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="pydp2-cache", daemon=True)
                self._thread.start()
            self._condition.notify_all()

    # -- the thread ------------------------------------------------------------------------------------------------
    def _work(self) -> None:
        while True:
            with self._condition:
                self._since = None
                self._condition.wait_for(lambda: self._due or self._ends)
                if not self._due:
                    break
                step, given = self._due.popleft()
                self._since = time.monotonic()
            if not self._ready:
                self._prepare()
            step(*given)
        for file in list(self._open):
            self._abandon(file)

    def _moved(self) -> None:
        self._since = time.monotonic()

    def _answer(self, answer: Answer) -> None:
        self._answers.append(answer)
        with contextlib.suppress(BlockingIOError):  # it is full of what says the same
            os.write(self._wake, b".")

    def _say(self, text: str, kind: str = "", *, once: str = "") -> None:
        if once:
            if once in self._said:
                return
            self._said.add(once)
        self._answer(Said(text, kind))

    def _prepare(self) -> None:
        self._ready = True
        self._number_copies()
        try:
            place.prepare(self._folder, self._origin.key)
        except OSError as error:
            self._fail(error)
        self.used = place.sweep(self._folder) + sum(found.size for found in place.entries(self._folder))
        if self.limit is None:
            with contextlib.suppress(OSError):
                free = os.statvfs(self._folder)
                self.limit = self.used + free.f_bavail * free.f_frsize // 2

    def _number_copies(self) -> None:
        """Entries of the list that are alike are kept apart, as in memory: they may be told apart by what they draw."""
        files = self._origin.files
        hashes = np.fromiter(map(hash, files), np.int64, len(files))
        values, count = np.unique(hashes, return_counts=True)
        if len(values) == len(files):
            return
        several = set(values[count > 1].tolist())
        seen: dict[str, int] = {}
        for file in np.flatnonzero(np.isin(hashes, list(several))).tolist():
            text = files[file]
            self._copies[file] = seen.get(text, 0)
            seen[text] = self._copies[file] + 1

    def _label(self, file: int, stamp: tuple[int, ...] = ()) -> Label:
        origin = self._origin
        return Label(
            key=origin.key, provider=origin.provider, text=origin.files[file], copy=self._copies.get(file, 0),
            stamp=stamp,
        )  # fmt: skip

    def _path(self, file: int) -> Path:
        label = self._label(file)
        return self._place / key_of(label.text, label.copy)

    def _stamp(self, file: int) -> tuple[int, ...] | None:
        """What tells a file from a changed one; () where the entry is none, None where it may be changing just now."""
        root, entry = Path(self._origin.root), self._origin.files[file]
        known = _known(root / entry) or _known(root / named(entry))
        if known is None:
            return ()
        if 0 <= time.time_ns() - known.st_mtime_ns < _RACY:
            return None
        return known.st_size, known.st_mtime_ns, known.st_ino

    # -- looking ---------------------------------------------------------------------------------------------------
    def _look(self, file: int) -> None:
        stamp = self._stamp(file)
        path = self._path(file)
        try:
            found = self._found(file, path, stamp)
        except FileNotFoundError:
            found = None
        except (Damaged, *_FAILURES) as error:
            why = _reason(error)
            entry = self._origin.files[file]
            self._say(f"{path}, which has the samples of {entry}, cannot be used: {why}; they are read again", "cache")
            found = None
        if found is None:
            self._answer(Missing(file, stamp))
        else:
            self.read += 1
            self._answer(found)

    def _found(self, file: int, path: Path, stamp: tuple[int, ...] | None) -> Found | None:
        reader = Reader(path)
        label = self._label(file)
        there = reader.index.label
        if (there.key, there.text, there.copy) != (label.key, label.text, label.copy):
            raise Damaged(f"it holds the samples of {there.text!r:.200}")
        if there.stamp != stamp:
            return None  # the file is another than it was
        known = (reader.stat.st_ino, reader.stat.st_size, reader.stat.st_mtime_ns)
        if self._verified.get(file) != known:
            reader.verify(self._moved)
            self._touch(file, path)
        return Found(file, reader.pieces(self._origin.slots, weighted=self._origin.weighted), reader.index.holes)

    def _touch(self, file: int, path: Path) -> None:
        """The entry is in use: it is the last to be thrown out, and need not be verified again."""
        with contextlib.suppress(OSError):
            os.utime(path)
            known = path.stat()
            self._verified[file] = (known.st_ino, known.st_size, known.st_mtime_ns)

    # -- writing ---------------------------------------------------------------------------------------------------
    def _add(
        self, file: int, stamp: tuple[int, ...], samples: WeightedSamples | None, holes: list[Hole], size: int
    ) -> None:
        held = self._open.setdefault(file, _Open(stamp))
        if samples is not None and not held.dropped:
            held.waiting.append(samples)
            held.bytes += size
        held.holes += holes
        if held.bytes >= BLOCK:
            self._flush(held)
        with self._condition:
            self._pending -= size

    def _flush(self, held: _Open) -> None:
        """Write the block that is waiting."""
        waiting, held.waiting, held.bytes = held.waiting, [], 0
        if not waiting or held.dropped:
            return
        weights = None
        try:
            columns = Columns.concat([each.columns.slice(each.lo, each.hi) for each in waiting])
            if self._origin.weighted:
                weights = np.concatenate([each.weights[each.lo : each.hi] for each in waiting])
            if held.writer is None:
                held.writer = self._new()
            if self._make_room(room_of(columns, weights)):
                before = held.writer.size
                held.writer.add(columns, weights)
                self.used += held.writer.size - before
            else:
                self._lose(held)
        except _FAILURES as error:
            self._fail(error)
            self._lose(held)

    def _new(self) -> Writer:
        try:
            made = Writer(self._place)
        except FileNotFoundError:  # it was empty, and another service removed it
            place.prepare(self._folder, self._origin.key)
            made = Writer(self._place)
        self.used += made.size
        return made

    def _lose(self, held: _Open) -> None:
        held.dropped = True
        held.waiting = []
        if held.writer is not None:
            self.used -= held.writer.size
            held.writer.drop()
            held.writer = None

    def _finish(self, file: int, stamp: tuple[int, ...]) -> None:
        held = self._open.setdefault(file, _Open(stamp))
        self._flush(held)
        if not held.dropped and self._stamp(file) == held.stamp:  # else what was read may be something between
            path = self._path(file)
            try:
                if held.writer is None:
                    held.writer = self._new()
                index = held.writer.closing(self._label(file, held.stamp), held.holes)
                if self._make_room(len(index)):
                    held.writer.finish(path, index)
                    self.used += len(index)
                    self._touch(file, path)
                    self.written += 1
                    self._failed_at = None
                    self._said.discard("failed")
                else:
                    self._lose(held)
            except _FAILURES as error:
                self._fail(error)
                self._lose(held)
        else:
            self._lose(held)
        del self._open[file]
        self._answer(Settled(file))

    def _abandon(self, file: int) -> None:
        held = self._open.pop(file, None)
        if held is not None:
            self._lose(held)

    def _fail(self, error: Exception) -> None:
        self._failed_at = time.monotonic()
        self._say(
            f"the cache cannot be written to {self._folder}: {_reason(error)}; the pass goes on, and files "
            "are read again in the next one",
            once="failed",
        )

    def _make_room(self, size: int) -> bool:
        """Throw out what was used longest ago, never what was used since this service began: a pass over more than fits
        would throw out exactly what the next one wants first."""
        if self.limit is None or self.used + size <= self.limit:
            return True
        own = sum(held.writer.size for held in self._open.values() if held.writer is not None)
        found = sorted(place.entries(self._folder))
        self.used = own + sum(each.size for each in found)
        for oldest in found:
            if self.used + size <= self.limit or oldest.used >= self._began:
                break
            if place.remove(oldest):
                self.used -= oldest.size
        if self.used + size <= self.limit:
            return True
        self._full = True
        self._say(
            f"the cache in {self._folder} is full at {self.limit} bytes: the files that did not fit are read again in "
            "every pass; raise cache_size to keep all",
            once="full",
        )
        return False


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or "there is no memory for it"


def _known(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except (OSError, ValueError):
        return None
