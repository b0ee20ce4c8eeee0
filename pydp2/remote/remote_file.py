"""Open remote files in the process of a reader, which reads the blocks that the fetch process has put on disk.

A reader has no library of a store, no thread, and one connection for each open file, so it may be forked as long as no
remote file is open.

The fetch process keeps the blocks of its last answers to a reader as long as it lives. If it has died, the blocks may
be removed at any time. So after each read the reader looks whether the connection is still there; if not, what was read
does not count, and the reader asks the next fetch process.
"""

from __future__ import annotations

import atexit
import contextlib
import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from pydp2.errors import ListError, StoreError
from pydp2.file_parts import file_of
from pydp2.remote.owner import FetchOptions, FetchOwner
from pydp2.remote.retries import TIMEOUT_SECONDS
from pydp2.remote.urls import is_remote, shown_url
from pydp2.remote.wire import HELD_RANGES, Channel
from pydp2.system.stdlib import fcntl, os, socket, threading, time
from pydp2.system.user_folders import cache_home

_LOST_SECONDS = 30.0
"""Seconds within which another fetch process must answer after one has ended."""
_RETRY_SECONDS = 0.1
_MAX_AHEAD = 16  # files that are opened ahead

WaitHook = Callable[[bool], None]
T = TypeVar("T")


class MissingFile(FileNotFoundError):
    """There is no such remote file."""


class RefusedFile(StoreError):
    """The store refuses the file, or pydp2 has no credentials or no package for it. It will do so again."""


class _Process:
    """State of a reading process: where its fetch process is, and the files that it has asked for ahead."""

    def __init__(self) -> None:
        self.address = ""
        self.on_wait: WaitHook = lambda _: None
        self.own: FetchOwner | None = None
        self.ahead: dict[str, Channel] = {}
        self.lock = threading.Lock()


_process = _Process()


def use_fetch_process(address: str) -> None:
    """Let this process, and those forked from it, read through the fetch process at ``address``."""
    while _process.ahead:
        _process.ahead.popitem()[1].close()  # of another fetch process
    _process.address = address


def report_waits(hook: WaitHook) -> None:
    """Call ``hook(True)`` when this process begins to wait for a store, and ``hook(False)`` when the wait is over."""
    _process.on_wait = hook


def open_ahead(entry: str) -> None:
    """Ask for the beginning of a file that will be opened soon, if ``entry`` is a remote one, and do not wait."""
    if not _process.address or not is_remote(entry) or (url := file_of(entry)) in _process.ahead:
        return
    with contextlib.suppress(OSError):  # whoever opens it connects again
        channel = _connect(_process.address)
        channel.send({"open": url})
        _process.ahead[url] = channel
    if len(_process.ahead) > _MAX_AHEAD:
        _process.ahead.pop(next(iter(_process.ahead))).close()


def fetch_options(folder: str | None = None, size: int | None = None, timeout: float = TIMEOUT_SECONDS) -> FetchOptions:
    """Return the options of a fetch process with the defaults filled in."""
    return FetchOptions(folder or str(cache_home() / "pydp2" / "remote"), size, timeout)


def _address() -> str:
    """Return the address of the fetch process. A program without a service starts one of its own, and another one if
    that has ended."""
    if _process.address:
        return _process.address
    with _process.lock:
        if _process.own is not None and _process.own.has_ended():
            _process.own.close()
            _process.own = None
        if _process.own is None:
            _process.own = FetchOwner(fetch_options())
            atexit.register(_end_own, os.getpid())
        return _process.own.address


def _end_own(pid: int) -> None:
    atexit.unregister(_end_own)
    with _process.lock:
        if _process.own is not None and os.getpid() == pid:
            _process.own.close()
            _process.own = None


@contextlib.contextmanager
def _ended_after_use() -> Iterator[None]:
    """End the program's own fetch process behind the block, if it is started there: a service has another one."""
    had_one = _process.own is not None
    try:
        yield
    finally:
        if not had_one:
            _end_own(os.getpid())


def _connect(address: str) -> Channel:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(address)
    except BaseException:
        connection.close()
        raise
    return Channel(connection)


class _Connection:
    """Connection for one remote file, which is opened again if the fetch process ends."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._channel: Channel | None = None
        self._lock = threading.RLock()
        try:
            self.opened = self._ask_again(None)
        except BaseException:
            self.close()
            raise
        self.path, self.size = self.opened["path"], int(self.opened["size"])

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to ``request``. Raises StoreError, FileNotFoundError."""
        with self._lock:
            return self._ask_again(request)

    def _ask_again(self, request: dict[str, Any] | None) -> dict[str, Any]:
        """Return the answer to ``request``, None: to the opening."""
        return _until_answered(self.url, lambda: self._ask_once(request))

    def _ask_once(self, request: dict[str, Any] | None) -> dict[str, Any]:
        try:
            if self._channel is None:
                answer = self._open()
                if request is None:
                    return answer
                if answer["version"] != self.opened["version"] or answer["path"] != self.path:
                    raise StoreError(
                        f"{shown_url(self.url)} has changed while it is read: it was version {self.opened['version']}, "
                        f"and is version {answer['version']}; read it again from its beginning"
                    )
            assert request is not None
            assert self._channel is not None
            return _answer(self._channel, self.url, request)
        except (EOFError, ConnectionError, FileNotFoundError):
            self.close()
            raise

    def _open(self) -> dict[str, Any]:
        """Connect, and return the answer to the opening, which may have been asked for ahead."""
        if (ahead := _process.ahead.pop(self.url, None)) is not None:
            self._channel = ahead
            return _answer(ahead, self.url, None)
        self._channel = channel = _connect(_address())
        return _answer(channel, self.url, {"open": self.url})

    def has_ended(self) -> bool:
        """Return True if the fetch process that gave the last answer has ended."""
        return self._channel is None or self._channel.has_ended()

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None


def _until_answered(url: str, attempt: Callable[[], T]) -> T:
    """Return what ``attempt`` returns. Repeat it if there is no fetch process, because it has ended or does not run
    yet: another one takes its place soon. Raises StoreError if that takes too long."""
    deadline: float | None = None
    while True:
        try:
            return attempt()
        except (EOFError, ConnectionError, FileNotFoundError) as error:
            if isinstance(error, MissingFile):
                raise
        now = time.monotonic()
        deadline = deadline or now + _LOST_SECONDS
        if now > deadline:
            raise StoreError(
                f"{shown_url(url)} cannot be read: the process that fetches remote files has ended, and no other one "
                f"answered within {_LOST_SECONDS:g} s; look at the output of the program"
            )
        time.sleep(_RETRY_SECONDS)


def _answer(channel: Channel, url: str, request: dict[str, Any] | None) -> dict[str, Any]:
    """Return the answer to ``request``; None: it was sent before. Raises StoreError, FileNotFoundError; EOFError,
    OSError: the other end is gone."""
    _process.on_wait(True)
    try:
        if request is not None:
            channel.send(request)
        while "waits" in (answer := channel.receive()):
            pass
    finally:
        _process.on_wait(False)
    if "failure" not in answer:
        return answer
    if answer["failure"] == "missing":
        raise MissingFile(answer["text"])
    raise (RefusedFile if answer["failure"] in ("denied", "refused") else StoreError)(answer["text"])


class RemoteFile(io.RawIOBase):
    """Remote file, open for reading: seekable, binary. ``name``: its URL. Several threads may call :meth:`pread`."""

    def __init__(self, url: str) -> None:
        self._connection = _Connection(url)
        self.name = url
        self.size = self._connection.size
        """Bytes of the file."""
        self.version = str(self._connection.opened["version"])
        """Text that changes whenever the content does."""
        self._offset = 0
        self._lock = threading.Lock()
        start, stop = self._connection.opened["range"]
        self._held: list[tuple[int, int]] = [(int(start), int(stop))]  # the last one first
        try:
            self._data = os.open(self._connection.path, os.O_RDONLY | os.O_CLOEXEC)
        except BaseException:
            self._connection.close()
            raise

    def pread(self, count: int, offset: int) -> bytes:
        """Return ``count`` bytes from ``offset`` on, fewer at the end of the file. The position stays. Raises
        StoreError."""
        count = max(0, min(count, self.size - offset))
        if not count:
            return b""
        with self._lock:
            data = self._read_some(count, offset)
            if len(data) == count:
                return data
            parts = [data]
            while count := count - len(parts[-1]):
                offset += len(parts[-1])
                parts.append(self._read_some(count, offset))
            return b"".join(parts)

    def _read_some(self, count: int, offset: int) -> bytes:
        """Return some of ``count`` bytes from ``offset`` on, at least one."""
        while True:
            data = os.pread(self._data, min(count, self._held_from(offset, count)), offset)
            if not self._connection.has_ended():
                return data
            self._held = []

    def _held_from(self, offset: int, count: int) -> int:
        """Return the number of bytes from ``offset`` on that are here; ask for ``count`` if there are none."""
        for start, stop in self._held:
            if start <= offset < stop:
                return stop - offset
        if self._connection.has_ended():
            self._held = []
        start, stop = self._connection.ask({"need": [offset, count]})["range"]
        self._held = [(int(start), int(stop)), *self._held[: HELD_RANGES - 1]]
        return self._held[0][1] - offset

    def readinto(self, buffer: Any) -> int:
        """Read into ``buffer``; return the number of bytes."""
        view = memoryview(buffer).cast("B")
        data = self.pread(len(view), self._offset)
        view[: len(data)] = data
        self._offset += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position, and return it."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._offset, os.SEEK_END: self.size}[whence]
        if base + offset < 0:
            raise ValueError(f"a position must be from 0 on, got {base + offset}")
        self._offset = base + offset
        return self._offset

    def tell(self) -> int:
        """Return the position."""
        return self._offset

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def local_path(self, *, waits: bool = True) -> Path | None:
        """Wait until the whole file is on disk, and return where; it stays there until this file is closed. Without
        ``waits`` return None if it is not there. Raises StoreError."""
        with self._lock:
            # whoever has this lock keeps all blocks, also of a fetch process that has died
            fcntl.flock(self._data, fcntl.LOCK_SH)
            if (0, self.size) not in self._held or self._connection.has_ended():
                if not waits:
                    fcntl.flock(self._data, fcntl.LOCK_UN)
                    return None
                self._connection.ask({"all": True})
                self._held = [(0, self.size)]
        return Path(self._connection.path)

    def close(self) -> None:
        """Close the file."""
        if not self.closed:
            os.close(self._data)
            self._connection.close()
        super().close()


def list_remote(patterns: Sequence[str]) -> dict[str, list[str]]:
    """Return the URLs of all files that match each of ``patterns``, sorted. A fetch process lists them, and ends. A
    part of files that ends a pattern (``?part=3/12``) ends each URL. Raises ListError, StoreError."""
    with _ended_after_use():
        return {pattern: _listed(pattern) for pattern in patterns}


def _listed(entry: str) -> list[str]:
    pattern = file_of(entry)
    try:
        return [f"{url}{entry[len(pattern) :]}" for url in _urls("list", pattern)]
    except MissingFile as error:
        raise ListError(str(error)) from None


def read_remote(url: str, most: int) -> bytes:
    """Return the content of a file of at most ``most`` bytes. A fetch process reads it, and ends. Raises
    FileNotFoundError, StoreError."""
    with _ended_after_use():
        return _until_answered(url, lambda: _read_whole(url, most))


def _read_whole(url: str, most: int) -> bytes:
    with closing(_connect(_address())) as channel:
        opened = _answer(channel, url, {"open": url})
        if opened["size"] > most:
            raise StoreError(f"{shown_url(url)} has {opened['size']} bytes, and may have {most}")
        _answer(channel, url, {"all": True})
        return Path(opened["path"]).read_bytes()


# -- folders -----------------------------------------------------------------------------------------------------------
def remote_children(folder: str) -> list[str]:
    """Return the URLs of files and folders in ``folder``, sorted; those of folders end in ``/``. Raises StoreError,
    FileNotFoundError."""
    return _urls("children", _as_folder(folder))


def remote_files(folder: str) -> list[str]:
    """Return the URLs of all files in ``folder`` and the folders in it, sorted, without names that begin with a dot.
    Raises StoreError, FileNotFoundError."""
    return _urls("list", f"{_as_folder(folder)}**")


def file_version(url: str, address: str) -> tuple[int, str]:
    """Return size and version of the file that the fetch process at ``address`` reads for ``url``. Raises RefusedFile,
    StoreError, FileNotFoundError."""
    with closing(_connect(address)) as channel:
        answer = _answer(channel, url, {"version": url})
        return int(answer["size"]), str(answer["version"])


def _as_folder(url: str) -> str:
    return f"{url.rstrip('/')}/"


def _urls(request: str, url: str) -> list[str]:
    """Return the URLs that answer a request, sorted by their bytes."""
    return _until_answered(url, lambda: _urls_once(request, url))


def _urls_once(request: str, url: str) -> list[str]:
    with closing(_connect(_address())) as channel:
        found: list[str] = []
        answer = _answer(channel, url, {request: url})
        while "urls" in answer:
            found += answer["urls"]
            answer = _answer(channel, url, None)
        return sorted(found, key=str.encode)
