"""Remember how many samples each file of a list has, beside the entries of the cache on disk (docs/caching.md,
"Counts").

::

    head | label (msgpack) | one row for each entry of a list, in the order of their names

A row has the name of the entry, the stamp of the file that it was counted from, and the count. Services share the file:
each reads it again, under a lock of the folder, before it puts a new one in its place.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, cast

import msgpack
import numpy as np
import numpy.typing as npt

from pydp2.cache import folder as place
from pydp2.cache.disk_messages import CacheNotice, CacheOrigin
from pydp2.cache.disk_thread import DISK_ERRORS, DiskThread, failure_text
from pydp2.cache.entry_names import EntryNames
from pydp2.cache.file_format import DamagedEntry, own_file, read_exactly

_MAGIC = b"pydp2 count\n"
_VERSION = 1
# Magic, version, size of the label, number of rows, digest of label and rows.
_HEAD = struct.Struct("<12sIIQ16s")
_STAMP = [("size", "<i8"), ("mtime", "<i8"), ("inode", "<i8")]
COUNT = np.dtype([("samples", "<i8"), ("dropped", "<i8"), ("weight", "<i8"), ("plain", "?"), ("early", "?")])
"""Count of a file: samples that are delivered, dropped ones, the weight of those delivered; ``plain``: each weighs 1;
``early``: the file ended before its data did."""
_ROW = np.dtype([("name", "S24"), *_STAMP, ("count", COUNT)])
_NO_FILE, _UNKNOWN = (-1, 0, 0), (-2, 0, 0)  # stamps of an entry that names no file, and of a file that changes
_LOCK_SECONDS = 5.0  # seconds to wait for another service that writes its counts
_POLL_SECONDS = 0.01
_FEW = 1024  # files that are looked at between two signs of progress

Rows = npt.NDArray[Any]


@dataclass(frozen=True)
class CountsLoaded:
    """Counts that are remembered of ``files`` (int64), one row of ``counts`` (COUNT) each."""

    files: npt.NDArray[np.int64]
    counts: Rows


CountAnswer = CountsLoaded | CacheNotice


class CountStore(DiskThread[CountAnswer]):
    """Counts of the entries of ``origin``, in the directory ``folder`` of the cache."""

    def __init__(self, folder: Path, origin: CacheOrigin) -> None:
        super().__init__("pydp2-counts")
        self._folder = folder
        self._origin = origin
        self._names = EntryNames(origin)
        self._path = folder / origin.key / place.COUNTS_NAME
        self._began_ns = time.time_ns()
        self._stamps = np.empty(len(origin.files), _STAMP)  # of what is read from here on
        self._failed = False

    def load(self) -> None:
        """Look for what is remembered; the answer is CountsLoaded."""
        self._enqueue(self._load)

    def remember(self, files: npt.NDArray[np.int64], counts: Rows) -> None:
        """Remember ``counts`` of ``files`` (int64), which were read to their ends. A file that changed meanwhile is
        left out."""
        self._enqueue(self._remember, files, counts)

    def find(self) -> CountsLoaded:
        """Return what is remembered, at once, without the thread; nothing if it cannot be read."""
        rows = np.empty(0, _ROW)
        with contextlib.suppress(DamagedEntry, *DISK_ERRORS):
            rows = read_counts(self._path)[1]
        self._take_stamps()
        return self._find(rows)

    # -- the thread ------------------------------------------------------------------------------------------------
    def _load(self) -> None:
        rows = np.empty(0, _ROW)
        try:
            rows = read_counts(self._path)[1]
            os.utime(self._path)  # it is in use
        except FileNotFoundError:
            pass
        except (DamagedEntry, *DISK_ERRORS) as error:
            text = f"{self._path}, which has counts of samples, cannot be used: {failure_text(error)}; files are"
            self._answer(CacheNotice(f"{text} counted again", "cache"))
        if not len(rows):  # nobody needs to wait for the stamps
            self._answer(CountsLoaded(np.empty(0, np.int64), np.empty(0, COUNT)))
        self._take_stamps()
        if len(rows):
            self._answer(self._find(rows))

    def _take_stamps(self) -> None:
        for file in range(len(self._stamps)):
            self._stamps[file] = self._stamp(file)

    def _find(self, rows: Rows) -> CountsLoaded:
        """Return those counts in ``rows`` that are of the files as they are."""
        if not len(rows):
            return CountsLoaded(np.empty(0, np.int64), np.empty(0, COUNT))
        files = np.arange(len(self._stamps))
        names = self._names_of(files)
        at = np.minimum(np.searchsorted(rows["name"], names), len(rows) - 1)
        found = rows[at]
        same = (found["name"] == names) & _same_stamps(found, self._stamps)
        return CountsLoaded(files[same], found["count"][same])

    def _stamp(self, file: int) -> tuple[int, ...]:
        if file % _FEW == 0:
            self._note_progress()
        stamp = self._names.stamp_before(file, self._began_ns)
        return _UNKNOWN if stamp is None else stamp or _NO_FILE

    def _names_of(self, files: npt.NDArray[np.int64]) -> npt.NDArray[np.bytes_]:
        return np.array([self._names.name(file).encode() for file in files.tolist()], "S24")

    def _remember(self, files: npt.NDArray[np.int64], counts: Rows) -> None:
        self._began_ns = time.time_ns()
        before = self._stamps[files]
        for file in files.tolist():
            self._stamps[file] = self._stamp(file)
        same = _same_stamps(before, self._stamps[files])
        if not same.any():
            return
        rows = np.empty(int(same.sum()), _ROW)
        rows["name"], rows["count"] = self._names_of(files[same]), counts[same]
        for field, _ in _STAMP:
            rows[field] = before[same][field]
        try:
            with self._locked():
                self._merge(rows)
        except DISK_ERRORS as error:
            if not self._failed:
                self._failed = True
                text = f"the counts of samples cannot be remembered in {self._folder}: {failure_text(error)}; without"
                self._answer(CacheNotice(f"{text} them len() of a client is known after one full pass", ""))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other services from writing counts inside the context. Raises OSError if one of them takes
        too long."""
        lock = os.open(place.prepare_folder(self._folder, self._origin.key), os.O_RDONLY | os.O_CLOEXEC)
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
        """Put ``rows`` in the place of those of the same names."""
        with contextlib.suppress(DamagedEntry, FileNotFoundError):
            known = read_counts(self._path)[1]
            rows = np.concatenate([rows, known[~np.isin(known["name"], rows["name"])]])
        label = cast(bytes, msgpack.packb({"key": self._origin.key, "provider": self._origin.provider}))
        body = label + rows[np.argsort(rows["name"], kind="stable")].tobytes()
        new = self._path.with_name(f"{place.TEMPORARY_PREFIX}{os.urandom(8).hex()}")
        try:
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # others can tell it from one that was left behind
                file.write(_HEAD.pack(_MAGIC, _VERSION, len(label), len(rows), _digest(body)))
                file.write(body)
            new.rename(self._path)
        except BaseException:
            with contextlib.suppress(OSError):
                new.unlink()
            raise


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


def _digest(body: bytes | memoryview) -> bytes:
    return blake2b(body, digest_size=16, person=b"pydp2 counts").digest()


def _same_stamps(one: Rows, other: Rows) -> npt.NDArray[np.bool_]:
    same: npt.NDArray[np.bool_] = one["size"] >= _NO_FILE[0]
    for field, _ in _STAMP:
        same &= one[field] == other[field]
    return same
