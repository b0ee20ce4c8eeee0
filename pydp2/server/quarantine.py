"""Write the quarantine: a file with one line of JSON for each loss of a pass, which ``pydp2 check --replay`` reads.

Lines are only ever appended, one complete line at a time. A loss that the file has already, also from an earlier
service, is not written again: a pass that goes back to a saved state, or is repeated, has the same losses.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from hashlib import blake2b

from pydp2.errors import OptionError
from pydp2.server.actions import ENDED_EARLY, TIMED_OUT, Loss
from pydp2.system.log_events import LogEvent, WriteLog


def _is_text(value: object) -> bool:
    return type(value) is str


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _is_seconds(value: object) -> bool:
    return type(value) in (int, float) and 0 < value < math.inf  # type: ignore[operator]


_KINDS = ("dropped", "raised", "condemned", TIMED_OUT, "bad sample", "not repeated", ENDED_EARLY)


def _is_kind(value: object) -> bool:
    return value in _KINDS


_VALUES: dict[str, tuple[Callable[[object], bool], str]] = {
    "pass": (_is_count, "a whole number from 0"),
    "file": (_is_text, "a text"),
    "y": (_is_count, "a whole number from 0"),
    "slot": (_is_text, "a text"),
    "reason": (_is_text, "a text"),
    "kind": (_is_kind, f"one of {', '.join(_KINDS)}"),
    "exception": (_is_text, "a text"),
    "sample_timeout": (_is_seconds, "a number of seconds above 0"),
}  # keys of a line, with a check of each value
_LOCK_SECONDS = 5.0  # seconds to wait for another service that is testing whether the file can be written
_POLL_SECONDS = 0.01
_OPTIONAL = ("exception", "sample_timeout")


class Quarantine:
    """Writer of losses to ``path`` (None: nowhere). It calls ``log(text, kind)``, once, if the file cannot be written
    any more.

    Raises OptionError if the file cannot be written now.
    """

    def __init__(self, path: str | None, log: WriteLog) -> None:
        self._path = path
        self._log = log
        self._file = -1
        self._known: set[bytes] = set()
        self._torn = False  # True if the last line has no line feed
        self._warning_logged = False
        if path is None:
            return
        try:
            self._open(path)
        except OSError as error:
            self.close()
            raise OptionError(
                f"quarantine={path!r} must be a file that can be written: {error.strerror}; choose another place, or "
                "leave the option out"
            ) from None

    def _open(self, path: str) -> None:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        self._file = os.open(path, flags, 0o666)
        if not stat.S_ISREG(os.fstat(self._file).st_mode):
            raise OSError(0, "it is no regular file")
        for _, loss in read(path):
            if isinstance(loss, Loss):
                self._known.add(_key(loss))
        is_alone = self._lock(fcntl.LOCK_EX)
        size = os.fstat(self._file).st_size
        self._torn = size > 0 and os.pread(self._file, 1, size - 1) != b"\n"
        if is_alone:  # otherwise the truncation could remove a line of another service
            os.write(self._file, b"\n")  # a full disk gives an error only on a write
            os.ftruncate(self._file, size)
        self._share()

    def _share(self) -> None:
        """Keep other services from testing the file as long as this one may write. Raises OSError if a service that is
        testing it takes too long."""
        deadline = time.monotonic() + _LOCK_SECONDS
        while not self._lock(fcntl.LOCK_SH):
            if time.monotonic() > deadline:
                raise OSError(0, "another process keeps it locked")
            time.sleep(_POLL_SECONDS)

    def _lock(self, kind: int) -> bool:
        """Lock the file; return False if another process has locked it. On a file system without locks, no service
        tests the file."""
        try:
            fcntl.flock(self._file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return kind == fcntl.LOCK_SH
        return True

    def write(self, loss: Loss) -> None:
        """Append ``loss``, unless the file has it already."""
        if self._file < 0:
            return
        key = _key(loss)
        if key in self._known:
            return
        line = _line(loss)
        try:
            written = os.write(self._file, b"\n" * self._torn + line)
            self._torn = written < self._torn + len(line)
            if self._torn:
                raise OSError(0, "there is no room left")
        except OSError as error:
            if not self._warning_logged:
                self._warning_logged = True
                self._log(
                    f"the quarantine {self._path} cannot be written any more: {error.strerror}; the pass goes on, and "
                    "its further losses are not recorded there",
                    LogEvent.QUARANTINE_FAILED,
                )
            return
        self._known.add(key)

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _line(loss: Loss) -> bytes:
    values = asdict(loss)
    values = {"pass": values.pop("pass_id"), **values}
    for name in _OPTIONAL:
        if not values[name]:
            del values[name]
    try:
        return json.dumps(values, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:  # write undecodable bytes of a name as escapes
        return json.dumps(values).encode() + b"\n"


def read(path: str | os.PathLike[str]) -> Iterator[tuple[int, Loss | str]]:
    """Yield the number, from 1, and the loss of each line of a quarantine; for a damaged line, a text that says what is
    wrong. Raises OSError."""
    with open(path, "rb") as lines:  # binary mode splits lines at line feeds only
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield number, _parsed(line)


def _parsed(line: bytes) -> Loss | str:
    try:
        values = json.loads(line.decode())
    except UnicodeDecodeError:
        return "it is not UTF-8"
    except (ValueError, RecursionError):
        return "it is no JSON"
    if not isinstance(values, dict):
        return "it is no JSON object"
    for name, (allowed, need) in _VALUES.items():
        if name not in values:
            if name not in _OPTIONAL or (name == "sample_timeout" and values["kind"] == TIMED_OUT):
                return f"{name!r} is missing"
        elif not allowed(values[name]):
            return f"{name!r} must be {need}, got {values[name]!r:.40}"
    pass_id, *rest = (values[name] for name in _VALUES if name not in _OPTIONAL)
    return Loss(pass_id, *rest, **{name: values[name] for name in _OPTIONAL if name in values})


def _key(loss: Loss) -> bytes:
    text = f"{loss.pass_id} {loss.y} {loss.file}".encode("utf-8", "surrogatepass")
    return blake2b(text, digest_size=12).digest()
