"""Read and write the state directory of a service, from which it continues when it is started again.

There are two snapshots, so that one is complete whatever happens while the other is written. A new snapshot is written
beside them and synchronized with the disk. Only then it replaces the last one, which replaces the one before it. A
thread writes, because a disk may be slow.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import threading
from hashlib import blake2b
from pathlib import Path
from typing import Any, cast

import msgpack

from pydp2.errors import OptionError, StateMismatch
from pydp2.options.timing import DEFAULT_TIMING
from pydp2.system.file_bytes import read_own
from pydp2.system.log_events import LogEvent, WriteLog

VERSION = 3
LAST, BEFORE, NEW = "snapshot", "snapshot.old", "snapshot.new"
_MAGIC = b"pydp2 state\n"
_MAX_BYTES = 1 << 31  # bytes of a snapshot: as many jobs as a service may have, each with the largest pool
_HEAD = struct.Struct("<12sIQQ16s")  # magic, version, serial, size of the body, digest of all but itself


class DamagedSnapshot(Exception):
    """A file is not a complete snapshot."""


def encode(serial: int, jobs: list[dict[str, Any]], version: int = VERSION) -> bytes:
    """Return a snapshot as bytes. A later one has a greater ``serial``."""
    body = cast(bytes, msgpack.packb(jobs))
    return _HEAD.pack(_MAGIC, version, serial, len(body), _digest(version, serial, body)) + body


def decode(data: bytes) -> tuple[int, list[Any]]:
    """Return the serial and the jobs of a snapshot that :func:`encode` wrote. Raises DamagedSnapshot, or StateMismatch
    for the snapshot of another release."""
    if len(data) < _HEAD.size:
        raise DamagedSnapshot(f"it has {len(data)} bytes, its head alone needs {_HEAD.size}")
    magic, version, serial, size, digest = _HEAD.unpack_from(data)
    body = data[_HEAD.size :]
    if magic != _MAGIC:
        raise DamagedSnapshot("it does not begin as one")
    if len(body) != size:
        raise DamagedSnapshot(f"it has {len(body)} bytes of {size}")
    if digest != _digest(version, serial, body):
        raise DamagedSnapshot("its checksum is wrong")
    if version != VERSION:
        writer = "a newer" if version > VERSION else "an older"
        raise StateMismatch(
            f"it has version {version}, this pydp2 reads version {VERSION}: it was written by {writer} release"
        )
    jobs = msgpack.unpackb(body, strict_map_key=True, max_ext_len=0)
    if not isinstance(jobs, list):
        raise DamagedSnapshot("it is no list of jobs")
    return serial, jobs


def _reason(error: OSError) -> str:
    return "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror or str(error)


def _digest(version: int, serial: int, body: bytes) -> bytes:
    return blake2b(body, digest_size=16, salt=struct.pack("<IQ", version, serial)).digest()


class StateDir:
    """State directory ``path``. Problems with it are reported by ``log(text, event)``. The service waits at most
    ``patience`` seconds for a snapshot to be on the disk.

    Methods raise OptionError if it cannot be read or written, StateMismatch if a newer release wrote it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        log: WriteLog,
        patience: float = DEFAULT_TIMING.snapshot_write,
    ) -> None:
        self._path = Path(path)
        self._log = log
        self._patience = patience
        self._serial = 0
        self.intact = True
        """True if the snapshot that was read is the last one that was written."""
        self.loss = ""
        """Reason, for trainers, why the last snapshot cannot be used; "" if it can."""
        self._jobs: list[dict[str, Any]] = []
        self._failed: str | None = None  # why the last snapshot could not be written
        self._pending_warning: str | None = None  # the same for an earlier one, if it was not logged yet
        self._warning_logged = False
        self._pending: bytes | None = None
        self._written = threading.Condition()
        self._busy = False
        self._ends = False
        self._thread: threading.Thread | None = None

    # -- reading ---------------------------------------------------------------------------------------------------
    def read(self) -> list[Any]:
        """Return the jobs of the latest complete snapshot; [] if there is none. A snapshot that cannot be read is an
        error and does not count as damaged, because it would be overwritten then."""
        found: dict[str, tuple[int, list[Any]]] = {}
        wrong: dict[str, str] = {}
        text = ""
        for name in (BEFORE, LAST, NEW):
            try:
                found[name] = decode(read_own(self._path / name, _MAX_BYTES))
            except FileNotFoundError:
                continue
            except DamagedSnapshot as error:
                wrong[name] = str(error)
            except OSError as error:
                raise OptionError(
                    f"state_dir={str(self._path)!r} must have snapshots that can be read, {self._path / name} cannot: "
                    f"{_reason(error)}; make it readable and start the service again, or choose another directory"
                ) from None
            except StateMismatch as error:
                raise StateMismatch(
                    f"state_dir={str(self._path)!r} holds a snapshot that cannot be used: {error}; use that one, or "
                    "another directory"
                ) from None
        if LAST in wrong:
            self.intact = NEW in found
            instead = "the service begins anew"
            if found:
                instead = "a later one is used" if self.intact else "the one before it is used"
            text = f"the snapshot {self._path / LAST} is damaged ({wrong[LAST]}); {instead}"
            self._log(text, LogEvent.STATE_DAMAGED)
        elif found.keys() == {BEFORE}:
            self.intact = False
            text = f"{self._path / BEFORE} is used: a later snapshot could not be written"
            self._log(text, LogEvent.STATE_DAMAGED)
        if not self.intact:
            self.loss = text
        if not found:
            return []
        latest = max(found, key=lambda name: found[name][0])
        self._serial, self._jobs = found[latest]
        if latest == NEW:
            self._keep_new(is_last_whole=LAST in found)
        return self._jobs

    def _keep_new(self, *, is_last_whole: bool) -> None:
        """Rename the snapshot that a killed service has written, but not renamed, to the last one, before the next
        snapshot replaces it."""
        try:
            self._rename_new(keep_last=is_last_whole)
        except OSError as error:
            raise self._unwritable(error) from None

    def check(self) -> None:
        """Raise OptionError unless files can be made here."""
        trial = self._path / NEW
        try:
            with contextlib.suppress(FileExistsError):  # also for a broken link, whose target is not made
                trial.touch(0o600, exist_ok=False)
                trial.unlink()
        except OSError as error:
            raise self._unwritable(error) from None

    def _unwritable(self, error: OSError) -> OptionError:
        return OptionError(
            f"state_dir={str(self._path)!r} must be a directory that can be written: {error.strerror}; choose another "
            "place, or leave the option out"
        )

    # -- writing ---------------------------------------------------------------------------------------------------
    def write(self, jobs: list[dict[str, Any]], *, wait: bool = False) -> None:
        """Write a snapshot of ``jobs`` soon. With ``wait``, return once it is on the disk."""
        if jobs != self._jobs or self._failed is not None:
            self._jobs = jobs
            self._serial += 1
            with self._written:
                self._pending = encode(self._serial, jobs)
                if self._thread is None:
                    self._thread = threading.Thread(target=self._work, name="pydp2-state", daemon=True)
                    self._thread.start()
                self._written.notify_all()
        done = True
        if wait:
            with self._written:
                done = self._written.wait_for(lambda: self._pending is None and not self._busy, self._patience)
        self._report(None if done else f"the disk took more than {self._patience:g} s")

    def _report(self, slow: str | None) -> None:
        with self._written:
            why, self._pending_warning = slow or self._failed or self._pending_warning, None
        if why is None:
            if self._warning_logged and not self._busy:
                self._warning_logged = False
                self._log(f"the state can be written to {self._path} again", LogEvent.STATE_WRITTEN)
        elif not self._warning_logged:
            self._warning_logged = True
            self._log(
                f"the state cannot be written to {self._path}: {why}; the pass goes on, but until this is fixed a "
                "restarted service can resume only from the states of its trainers",
                LogEvent.STATE_NOT_WRITTEN,
            )

    def _work(self) -> None:
        while True:
            with self._written:
                self._written.wait_for(lambda: self._pending is not None or self._ends)
                if self._pending is None:
                    return
                data, self._pending = self._pending, None
                self._busy = True
            try:
                self._replace(data)
                failed = None
            except OSError as error:
                failed = error.strerror or str(error)
                with contextlib.suppress(OSError):  # shows a reader that this is not the last snapshot any more
                    (self._path / LAST).rename(self._path / BEFORE)
                with contextlib.suppress(OSError):
                    (self._path / NEW).unlink()
            with self._written:
                self._failed = failed
                self._pending_warning = failed or self._pending_warning
                self._busy = False
                self._written.notify_all()

    def _replace(self, data: bytes) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file = os.open(self._path / NEW, flags, 0o600)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(file, view) :]
            os.fsync(file)
        finally:
            os.close(file)
        self._rename_new(keep_last=True)

    def _rename_new(self, *, keep_last: bool) -> None:
        """Rename the new snapshot to LAST; with ``keep_last``, rename the old LAST to BEFORE first."""
        if keep_last:
            with contextlib.suppress(FileNotFoundError):
                (self._path / LAST).rename(self._path / BEFORE)
        (self._path / NEW).rename(self._path / LAST)
        folder = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def close(self) -> None:
        """Write the pending snapshot and stop the thread."""
        with self._written:
            self._ends = True
            self._written.notify_all()
        if self._thread is not None:
            self._thread.join(self._patience)
