"""Remember how many samples each file of a list has, beside the entries of the cache on disk (docs/caching.md,
"Counts").

::

    head | label (msgpack) | one row for each entry of a list, in the order of their names

A row has the name of the entry, the stamp of the file when it was counted, and the count. Services share the file: each
reads it again, under a lock of the folder, before it replaces it.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import mmap
import os
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import compress
from pathlib import Path
from typing import Any, cast

import msgpack
import numpy as np
import numpy.typing as npt

from pydp2.data.columns.block_list import BlockList
from pydp2.server.cache import folder as cache_folder
from pydp2.server.cache.disk_messages import CacheNotice, CacheSource, cache_key
from pydp2.server.cache.disk_thread import DISK_ERRORS, DiskThread, failure_text
from pydp2.server.cache.entry_names import EntryNames
from pydp2.server.cache.file_format import DamagedEntry, own_file, read_exactly
from pydp2.system.log_events import LogEvent

_MAGIC = b"pydp2 count\n"
_VERSION = 1
# Magic, version, size of the label, number of rows, digest of label and rows.
_HEAD = struct.Struct("<12sIIQ16s")
_STAMP = [("size", "<i8"), ("mtime", "<i8"), ("inode", "<i8")]
COUNT = np.dtype([("samples", "<i8"), ("dropped", "<i8"), ("weight", "<i8"), ("plain", "?"), ("early", "?")])
"""Count of a file: delivered samples, dropped samples, weight of the delivered ones; ``plain``: each sample weighs 1;
``early``: the file ended before its data did."""
_ROW = np.dtype([("name", "S24"), *_STAMP, ("count", COUNT)])
_COUNTED = np.dtype([("file", "<i8"), *_STAMP, ("count", COUNT)])
_NO_FILE = (-1, 0, 0)  # stamp in a row of an entry that names no file
_LOCK_SECONDS = 5.0  # seconds to wait for another service that writes its counts
_POLL_SECONDS = 0.01
_DAY_SECONDS = 86_400.0
_FEW = 4096  # files that are looked up at a time

Rows = npt.NDArray[Any]


@dataclass(frozen=True)
class CountsLoaded:
    """Remembered counts of ``files`` (int64), with one row of ``counts`` (COUNT) for each. ``is_last``: there are no
    more."""

    files: npt.NDArray[np.int64]
    counts: Rows
    is_last: bool = True


@dataclass(slots=True)
class StampBefore:
    """Stamp of ``file`` before it was read. ``stamp``: None until it is known, and if the file may have changed
    meanwhile."""

    file: int
    stamp: tuple[int, ...] | None = None


CountAnswer = CountsLoaded | CacheNotice


class CountStore(DiskThread[CountAnswer]):
    """Counts of the entries of ``source``, in the directory ``folder`` of the cache. ``block_list``: samples that
    are not delivered, so they are not counted."""

    def __init__(self, folder: Path, source: CacheSource, block_list: BlockList | None = None) -> None:
        super().__init__("pydp2-counts")
        self.key = source.key
        self._folder = folder
        self._source = source
        # all counts are loaded before the first pass, which cannot wait for the versions of remote files
        self._names = EntryNames(replace(source, fetch_address=""))
        self._block_list = block_list or BlockList()
        self._path = folder / source.key / cache_folder.COUNTS_NAME
        self._counted = bytearray()  # rows (_COUNTED) that are not written yet
        # One hash of stamp and count for each file, 0 for none. Mapped memory takes pages only for counted files.
        mapped = mmap.mmap(-1, 8 * max(1, len(source.files)), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._remembered = np.frombuffer(mapped, np.int64)
        self._failed = False
        self._noted_at = -math.inf  # when the last use was noted, on time.monotonic

    def load(self) -> None:
        """Load the remembered counts; the answers are CountsLoaded."""
        self._enqueue(self._load)

    def begin(self, file: int) -> StampBefore:
        """Note that the reading of ``file`` begins; pass the result to :meth:`end`."""
        before = StampBefore(file)
        self._enqueue(self._begin, before, time.time_ns())
        return before

    def end(self, before: StampBefore, count: Rows) -> None:
        """Note that the file was read to its end, and has ``count`` (COUNT). The next :meth:`write` stores it, unless
        it is known already, or the file changed meanwhile."""
        self._enqueue(self._end, before, count)

    def write(self) -> None:
        """Write the counts of the files that ended."""
        self._enqueue(self._write)

    def find(self) -> CountsLoaded:
        """Return the remembered counts, at once, without the thread; none if they cannot be read."""
        rows = np.empty(0, _ROW)
        with contextlib.suppress(DamagedEntry, *DISK_ERRORS):
            rows = read_counts(self._path)[1]
        found = [*self._find(rows)]
        return CountsLoaded(
            np.concatenate([loaded.files for loaded in found]), np.concatenate([e.counts for e in found])
        )

    # -- the thread ------------------------------------------------------------------------------------------------
    def _load(self) -> None:
        rows = np.empty(0, _ROW)
        try:
            rows = read_counts(self._path)[1]
            self._note_use()
        except FileNotFoundError:
            pass
        except (DamagedEntry, *DISK_ERRORS) as error:
            text = f"{self._path}, which has counts of samples, cannot be used: {failure_text(error)}; files are"
            self._answer(CacheNotice(f"{text} counted again", LogEvent.CACHE_UNREADABLE))
        for found in self._find(rows):
            self._answer(found)

    def _note_use(self) -> None:
        """Set the modification time of the file, which says that the counts are in use."""
        self._noted_at = time.monotonic()
        os.utime(self._path)

    def _find(self, rows: Rows) -> Iterator[CountsLoaded]:
        """Yield the counts in ``rows`` whose stamp is the present one of their file, some at a time."""
        number = len(self._source.files) if len(rows) else 0
        for first in range(0, number, _FEW):
            self._note_progress()
            files = np.arange(first, min(first + _FEW, number))
            names = self._names_of(files)
            found = rows[np.minimum(np.searchsorted(rows["name"], names), len(rows) - 1)]
            known = np.flatnonzero(found["name"] == names)
            stamps = found[[field for field, _ in _STAMP]][known].tolist()
            same = [
                self._names.stamp(file) == (() if stamp == _NO_FILE else stamp)
                for file, stamp in zip(files[known].tolist(), stamps, strict=True)
            ]
            known = known[np.array(same, bool)]
            counts = found["count"][known].tolist()
            self._remembered[files[known]] = list(map(_hash, compress(stamps, same), counts))
            yield CountsLoaded(files[known], found["count"][known], is_last=False)
        yield CountsLoaded(np.empty(0, np.int64), np.empty(0, COUNT))

    def _names_of(self, files: npt.NDArray[np.int64]) -> npt.NDArray[np.bytes_]:
        return np.fromiter((self._name_of(file).encode() for file in files.tolist()), "S24", len(files))

    def _name_of(self, file: int) -> str:
        name, digest = self._names.name(file), self._block_list.digest_of(file)
        return cache_key(name, digest) if digest else name

    def _begin(self, before: StampBefore, when_ns: int) -> None:
        before.stamp = self._names.stamp_before(before.file, when_ns)

    def _end(self, before: StampBefore, count: Rows) -> None:
        stamp, file = before.stamp, before.file
        if stamp is None:
            return
        # Every pass calls this, and mostly nothing is new: then do not access the disk.
        known = _hash(stamp or _NO_FILE, count.tolist())
        if known != self._remembered[file] and self._names.stamp(file) == stamp:
            self._remembered[file] = known
            self._counted += np.array((file, *(stamp or _NO_FILE), count), _COUNTED).tobytes()

    def _write(self) -> None:
        counted, self._counted = np.frombuffer(self._counted, _COUNTED), bytearray()
        if not len(counted):
            if time.monotonic() - self._noted_at > _DAY_SECONDS:
                with contextlib.suppress(OSError):
                    self._note_use()
            return
        # the last count of each file
        counted = counted[len(counted) - 1 - np.unique(counted["file"][::-1], return_index=True)[1]]
        rows = np.empty(len(counted), _ROW)
        rows["name"] = self._names_of(counted["file"])
        for field in ("count", *(field for field, _ in _STAMP)):
            rows[field] = counted[field]
        try:
            with self._locked():
                self._merge(rows)
        except DISK_ERRORS as error:
            if not self._failed:
                self._failed = True
                text = (
                    f"the counts of samples cannot be remembered in {self._folder}: {failure_text(error)}; without "
                    "them len() of a client is known after one full pass"
                )
                self._answer(CacheNotice(text, LogEvent.CACHE_NOT_WRITTEN))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other services from writing counts inside the context. Raises OSError if one of them takes
        too long."""
        lock = os.open(cache_folder.prepare_folder(self._folder, self._source.key), os.O_RDONLY | os.O_CLOEXEC)
        deadline = time.monotonic() + _LOCK_SECONDS
        try:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(_POLL_SECONDS)
            yield
        finally:
            os.close(lock)

    def _merge(self, rows: Rows) -> None:
        """Write ``rows`` to the file, in place of those with the same names."""
        with contextlib.suppress(DamagedEntry, FileNotFoundError):
            known = read_counts(self._path)[1]
            rows = np.concatenate([rows, known[~np.isin(known["name"], rows["name"])]])
        label = cast(bytes, msgpack.packb({"key": self._source.key, "provider": self._source.provider}))
        body = label, rows[np.argsort(rows["name"], kind="stable")].view(np.uint8).data
        new = self._path.with_name(f"{cache_folder.TEMPORARY_PREFIX}{os.urandom(8).hex()}")
        try:
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # shows others that it is no leftover
                file.write(_HEAD.pack(_MAGIC, _VERSION, len(label), len(rows), _digest(*body)))
                file.writelines(body)
                file.flush()
                cache_folder.flush_writes(file.fileno())
                new.rename(self._path)  # still locked: otherwise others would remove it
        except BaseException:
            with contextlib.suppress(OSError):
                new.unlink()
            raise


def _hash(stamp: tuple[int, ...], count: tuple[int, ...]) -> int:
    return hash((stamp, count)) or 1


def read_counts(path: Path) -> tuple[dict[str, Any], Rows]:
    """Return the label and the rows of the counts in ``path``. Raises DamagedEntry, or OSError if it cannot be
    opened."""
    with own_file(path) as (file, known):
        if known.st_size < _HEAD.size:
            raise DamagedEntry(f"it has {known.st_size} bytes, its head alone needs {_HEAD.size}")
        data = read_exactly(file, known.st_size)
    magic, version, label_size, count, digest = _HEAD.unpack_from(data)
    if magic != _MAGIC or version != _VERSION:
        raise DamagedEntry("it does not begin as counts of this version")
    body = memoryview(data)[_HEAD.size :]
    if len(body) != label_size + count * _ROW.itemsize or digest != _digest(body):
        raise DamagedEntry("its checksum is wrong")
    try:
        label = msgpack.unpackb(body[:label_size], strict_map_key=True, max_ext_len=0)
        label = {name: str(label[name]) for name in ("key", "provider")}
    except (ValueError, TypeError, KeyError) as error:  # errors of msgpack are ValueErrors
        raise DamagedEntry(f"its label is not valid: {error!r:.200}") from None
    rows = np.frombuffer(body[label_size:], _ROW)
    if (rows["name"][1:] <= rows["name"][:-1]).any() or any(
        (rows["count"][name] < 0).any() for name in ("samples", "dropped", "weight")
    ):
        raise DamagedEntry("its rows are not valid")
    return label, rows


def _digest(*body: bytes | memoryview) -> bytes:
    made = blake2b(digest_size=16, person=b"pydp2 counts")
    for part in body:
        made.update(part)
    return made.digest()
