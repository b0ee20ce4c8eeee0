"""Cache whole files on the disk (CACHE_PASS_ON_DISK), for later passes and later runs.

A thread of its own makes all accesses to the disk, because a disk may be slow: it looks for the entry of a file,
verifies it before its first use, and writes the samples that are offered. Its results come back as answers. If the disk
cannot keep up, is full or fails, files are not cached; the service waits for it only as long as it makes progress.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pydp2.data.columns.checksum import EndChecksum
from pydp2.data.columns.columns import Columns
from pydp2.server.cache import folder as cache_folder
from pydp2.server.cache.disk_messages import (
    CacheNotice,
    CacheSource,
    DiskAnswer,
    DiskHit,
    DiskMiss,
    OfferSettled,
    WeightedRun,
)
from pydp2.server.cache.disk_thread import DISK_ERRORS, DiskThread, failure_text
from pydp2.server.cache.entry_names import EntryNames
from pydp2.server.cache.file_format import (
    CacheEntryReader,
    CacheEntryWriter,
    DamagedEntry,
    DroppedSample,
    block_bytes,
)
from pydp2.system.log_events import LogEvent

BLOCK_BYTES = 4 << 20  # bytes of samples that are written together
MAX_PENDING_BYTES = 64 << 20  # bytes that may wait to be written; a file that would exceed this is not cached
_RETRY_SECONDS = 60.0  # seconds without an attempt after the disk failed
_COUNT_PARTS = 64  # count the directory again after this service has written 1/64 of the limit
_COUNT_PAUSE = 20  # least time between two counts, as a multiple of the time that a count takes
_DAY_NS = 86_400 * 10**9
_OLDEST = 1024  # entries to be removed that are found in one scan


@dataclass
class _PendingFile:
    """File that is being written."""

    stamp: tuple[int, ...]
    writer: CacheEntryWriter | None = None
    waiting: list[Any] = field(default_factory=list)  # offered samples of the next block
    waiting_bytes: int = 0
    dropped: list[DroppedSample] = field(default_factory=list)
    abandoned: bool = False


class DiskCache(DiskThread[DiskAnswer]):
    """Cache of entries of ``source`` in the directory ``folder``, "" for the default one. All entries of the directory
    together have at most ``limit`` bytes; None: half of the free space. :meth:`take_answers` returns answers once
    :attr:`wake_fd` can be read. Raises OptionError if there is no default directory."""

    def __init__(self, folder: str | Path, source: CacheSource, limit: int | None) -> None:
        self._folder = folder = Path(folder or cache_folder.default_folder())
        super().__init__("pydp2-cache")
        self._source = source
        self._names = EntryNames(source)
        self._key_folder = folder / source.key
        self.limit = limit
        self.used_bytes = 0
        """Number of bytes in the directory, as far as it is known."""
        self.files_read = self.files_written = 0
        """Number of files that were read from the disk, and of files that were written to it."""
        self._began_ns = time.time_ns()
        self._pending_files: dict[int, _PendingFile] = {}
        self._verified: dict[int, tuple[int, int, int]] = {}
        self._full = False
        self._notices_sent: set[str] = set()
        self._failed_at: float | None = None
        self._pending_bytes = 0
        self._bytes_since_count = 0  # bytes that this service wrote
        self._next_count_at = 0.0
        self._oldest: list[cache_folder.EntryFile] = []  # entries that are the next to be removed, the last one first

    # -- for the loop ----------------------------------------------------------------------------------------------
    @property
    def accepts_offers(self) -> bool:
        """True if an offered file would be written."""
        failed = self._failed_at
        return not self._full and not self.is_stalled and (failed is None or time.monotonic() - failed > _RETRY_SECONDS)

    def look_up(self, file: int) -> None:
        """Look for ``file``; the answer is DiskHit or DiskMiss."""
        self._enqueue(self._look_up, file)

    def offer(self, file: int, stamp: tuple[int, ...], samples: WeightedRun | None, dropped: Sequence[Any]) -> bool:
        """Write the next samples of ``file``, which must not change afterwards. Return False if the disk does not keep
        up; then the file will not be cached."""
        size = 0 if samples is None else int(samples.sizes[samples.lo : samples.hi].sum())
        if self._pending_bytes + size > MAX_PENDING_BYTES and self._pending_bytes:
            text = "the disk is too slow for the cache: some files are not kept, and are read again in the next pass"
            self._notify(text, once="slow")
            return False
        with self._condition:
            self._pending_bytes += size
        self._enqueue(self._add_samples, file, stamp, samples, [(y, slot, why) for y, slot, why in dropped], size)
        return True

    def finish_file(self, file: int, stamp: tuple[int, ...], end: EndChecksum = (0, 0)) -> None:
        """Finish ``file``, which ended and was offered completely; the answer is OfferSettled."""
        self._enqueue(self._finish_file, file, stamp, end)

    def discard(self, file: int) -> None:
        """Discard ``file``, which will not be complete."""
        self._enqueue(self._abandon, file)

    def figures(self) -> dict[str, Any]:
        """Return statistics as plain data."""
        return {
            "directory": str(self._folder),
            "read": self.files_read,
            "written": self.files_written,
            "bytes": self.used_bytes,
            "limit": self.limit,
        }

    # -- the thread ------------------------------------------------------------------------------------------------
    def _finish(self) -> None:
        for file in list(self._pending_files):
            self._abandon(file)

    def _notify(self, text: str, event: LogEvent = LogEvent.CACHE_NOT_WRITTEN, *, once: str = "") -> None:
        if once:
            if once in self._notices_sent:
                return
            self._notices_sent.add(once)
        self._answer(CacheNotice(text, event))

    def _prepare(self) -> None:
        try:
            cache_folder.prepare_folder(self._folder, self._source.key)
        except OSError as error:
            self._note_failure(error)
        self._count()
        if self.limit is None:
            with contextlib.suppress(OSError):
                free = os.statvfs(self._folder)
                self.limit = self.used_bytes + free.f_bavail * free.f_frsize // 2

    def _path(self, file: int) -> Path:
        return self._key_folder / self._names.name(file)

    # -- looking ---------------------------------------------------------------------------------------------------
    def _look_up(self, file: int) -> None:
        stamp = self._names.stamp(file)
        path = self._path(file)
        try:
            found = self._load_entry(file, path, stamp)
        except FileNotFoundError:
            found = None
        except (DamagedEntry, *DISK_ERRORS) as error:
            why = failure_text(error)
            entry = self._source.files[file]
            self._notify(
                f"{path}, which has the samples of {entry}, cannot be used: {why}; they are read again",
                LogEvent.CACHE_UNREADABLE,
            )
            found = None
        if found is None:
            self._answer(DiskMiss(file, stamp))
        else:
            self.files_read += 1
            self._answer(found)

    def _load_entry(self, file: int, path: Path, stamp: tuple[int, ...] | None) -> DiskHit | None:
        reader = CacheEntryReader(path)
        label = self._names.label(file)
        stored = reader.index.label
        if (stored.key, stored.list_entry, stored.duplicate) != (label.key, label.list_entry, label.duplicate):
            raise DamagedEntry(f"it holds the samples of {stored.list_entry!r:.200}")
        if stored.stamp != stamp:
            return None  # the file has changed
        known = (reader.stat.st_ino, reader.stat.st_size, reader.stat.st_mtime_ns)
        if self._verified.get(file) != known:
            reader.verify(self._note_progress)
            self._verified[file] = known
        self._touch(file, path, reader.stat.st_mtime_ns)
        pieces = reader.pieces(self._source.slots, weighted=self._source.weighted)
        return DiskHit(file, stored.stamp, pieces, reader.index.dropped, reader.index.end)

    def _touch(self, file: int, path: Path, last_used: int = 0) -> None:
        """Note in the modification time that the entry is in use: then it is the last to be removed. Do so once a day
        at most, because a new time makes other services verify all bytes again."""
        now = time.time_ns()
        if max(self._began_ns, now - _DAY_NS) <= last_used <= now + _DAY_NS:
            return
        with contextlib.suppress(OSError):
            os.utime(path)
            known = path.stat()
            self._verified[file] = (known.st_ino, known.st_size, known.st_mtime_ns)

    # -- writing ---------------------------------------------------------------------------------------------------
    def _add_samples(
        self, file: int, stamp: tuple[int, ...], samples: WeightedRun | None, dropped: list[DroppedSample], size: int
    ) -> None:
        pending = self._pending_files.setdefault(file, _PendingFile(stamp))
        if samples is not None and not pending.abandoned:
            pending.waiting.append(samples)
            pending.waiting_bytes += size
        pending.dropped += dropped
        if pending.waiting_bytes >= BLOCK_BYTES:
            self._write_block(pending)
        with self._condition:
            self._pending_bytes -= size

    def _write_block(self, pending: _PendingFile) -> None:
        """Write the block that is waiting."""
        waiting, pending.waiting, pending.waiting_bytes = pending.waiting, [], 0
        if not waiting or pending.abandoned:
            return
        weights = None
        try:
            columns = Columns.concat([part.columns.slice(part.lo, part.hi) for part in waiting])
            if self._source.weighted:
                weights = np.concatenate([part.weights[part.lo : part.hi] for part in waiting])
            if pending.writer is None:
                pending.writer = self._new_writer()
            if self._make_room(block_bytes(columns, weights)):
                before = pending.writer.size
                pending.writer.write_block(columns, weights)
                self.used_bytes += pending.writer.size - before
            else:
                self._discard_writer(pending)
        except DISK_ERRORS as error:
            self._note_failure(error)
            self._discard_writer(pending)

    def _new_writer(self) -> CacheEntryWriter:
        try:
            made = CacheEntryWriter(self._key_folder)
        except FileNotFoundError:  # another service removed the empty folder
            cache_folder.prepare_folder(self._folder, self._source.key)
            made = CacheEntryWriter(self._key_folder)
        self.used_bytes += made.size
        return made

    def _discard_writer(self, pending: _PendingFile) -> None:
        pending.abandoned = True
        pending.waiting = []
        if pending.writer is not None:
            self.used_bytes -= pending.writer.size
            pending.writer.discard()
            pending.writer = None

    def _finish_file(self, file: int, stamp: tuple[int, ...], end: EndChecksum) -> None:
        pending = self._pending_files.setdefault(file, _PendingFile(stamp))
        self._write_block(pending)
        # If the file changed while it was read, its samples may be of two versions.
        if not pending.abandoned and self._names.stamp(file) == pending.stamp:
            path = self._path(file)
            try:
                if pending.writer is None:
                    pending.writer = self._new_writer()
                index = pending.writer.pack_index(self._names.label(file, pending.stamp), pending.dropped, end)
                if self._make_room(len(index)):
                    pending.writer.commit(path, index)
                    self.used_bytes += len(index)
                    self._touch(file, path)
                    self.files_written += 1
                    self._failed_at = None
                    self._notices_sent.discard("failed")
                else:
                    self._discard_writer(pending)
            except DISK_ERRORS as error:
                self._note_failure(error)
                self._discard_writer(pending)
        else:
            self._discard_writer(pending)
        del self._pending_files[file]
        self._answer(OfferSettled(file))

    def _abandon(self, file: int) -> None:
        pending = self._pending_files.pop(file, None)
        if pending is not None:
            self._discard_writer(pending)

    def _note_failure(self, error: Exception) -> None:
        self._failed_at = time.monotonic()
        self._notify(
            f"the cache cannot be written to {self._folder}: {failure_text(error)}; the pass goes on, and files "
            "are read again in the next one",
            once="failed",
        )

    def _make_room(self, size: int) -> bool:
        """Free room for ``size`` bytes that are about to be written; return False if there is none."""
        if self.limit is None:
            return True
        self._bytes_since_count += size
        if self._bytes_since_count > self.limit // _COUNT_PARTS and time.monotonic() >= self._next_count_at:
            self._count()
        if self.used_bytes + size <= self.limit or self._remove_oldest(size, self.limit):
            return True
        self._full = True
        self._notify(
            f"the cache in {self._folder} is full at {self.limit} bytes: the files that did not fit are read again in "
            "every pass; raise cache_size to keep all",
            once="full",
        )
        return False

    def _count(self) -> None:
        """Count the bytes in the directory, because other services write there too."""
        began = time.monotonic()
        self.used_bytes = cache_folder.used_bytes(self._folder, self._note_progress)
        self._bytes_since_count = 0
        now = time.monotonic()
        self._next_count_at = now + _COUNT_PAUSE * (now - began)

    def _remove_oldest(self, size: int, limit: int) -> bool:
        """Remove the entries used longest ago, but none that was used since this service began: a pass larger than the
        limit would remove exactly the entries that the next pass needs first. Return False if there is still no room
        for ``size``."""
        has_looked = has_removed = False
        while self.used_bytes + size > limit:
            if self._oldest:
                oldest = self._oldest.pop()
                if not cache_folder.was_used_since(oldest) and cache_folder.remove_entry(oldest):
                    self.used_bytes -= oldest.size
                    has_removed = True
            elif has_looked and not has_removed:
                return False
            else:
                self._count()
                self._oldest = self._find_oldest()
                has_looked, has_removed = True, False
        return True

    def _find_oldest(self) -> list[cache_folder.EntryFile]:
        """Return some of the entries that were not used since this service began, the one used longest ago last. An
        entry whose time is in the future counts as unused for long: a clock was wrong, and it would never be
        removed."""
        latest = time.time_ns() + _DAY_NS  # the clock of a file server may be a little ahead

        def last_used(entry: cache_folder.EntryFile) -> int:
            return entry.last_used if entry.last_used <= latest else 0

        unused = (file for file in cache_folder.entry_files(self._folder) if last_used(file) < self._began_ns)
        return heapq.nsmallest(_OLDEST, unused, key=last_used)[::-1]
