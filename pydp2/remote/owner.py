"""Start the fetch process, start it again if it ends, and end it.

The socket of a service belongs to the owner, so a reader can connect before the process runs, and while another one
takes its place: the connection waits. Where nobody starts another one, the socket ends with the process, so that no
reader waits for an answer that cannot come. The process ends when its standard input is closed, that is, with the
owner.
"""

from __future__ import annotations

import json
import mmap
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from pydp2.remote import fetch_status
from pydp2.remote.retries import TIMEOUT_SECONDS
from pydp2.system.process_memory import resident_bytes

_BACKLOG = 1024
_END_SECONDS = 5.0
_RESTART_SECONDS = 1.0


class FetchOptions(NamedTuple):
    """Options of a fetch process. ``folder``: that of the cache; ``size``: its limit in bytes, None for half of the
    free space; ``timeout``: seconds that a store may give no answer."""

    folder: str
    size: int | None = None
    timeout: float = TIMEOUT_SECONDS


class FetchOwner:
    """Owner of a fetch process, which listens at ``address``, a path; default: in a temporary folder, and then it is
    not started again."""

    def __init__(self, options: FetchOptions, address: str = "") -> None:
        self._options = options
        self._pid = os.getpid()
        self._temporary = None if address else tempfile.TemporaryDirectory(prefix="pydp2-fetch-")
        self.address = address or f"{self._temporary.name}/fetch"  # type: ignore[union-attr]  # one of them is there
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.address)
        self._listener.listen(_BACKLOG)
        self._page = _new_page()
        self._memory = mmap.mmap(self._page, fetch_status.SIZE)
        self._status = fetch_status.FetchStatus(self._memory)
        self._process = self._start()
        if self._temporary is not None:
            self._listener.close()

    def _start(self) -> subprocess.Popen[bytes]:
        self._started = time.monotonic()
        given = self._options._asdict() | {"listener": self._listener.fileno(), "status": self._page}
        command = [sys.executable, "-P", "-m", "pydp2.remote.fetch_process", json.dumps(given)]
        package = str(Path(__file__).parents[2])
        path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH", "")]))
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            pass_fds=(self._listener.fileno(), self._page),
            env=os.environ | {"PYTHONPATH": path},
        )

    def has_ended(self) -> bool:
        """Return True if the process has ended; a fork of this process does not know that."""
        return os.getpid() == self._pid and self._process.poll() is not None

    def ensure_running(self) -> int | None:
        """Start the process again if it has ended, but not more than once in a second. Return how it ended (as
        ``Popen.returncode``), None if it runs or is started later. Only of an owner with an address."""
        code = self._process.poll()
        if code is None or time.monotonic() - self._started < _RESTART_SECONDS:
            return None
        self._close_input()
        self._process = self._start()
        return code

    def stats(self) -> dict[str, Any]:
        """Return statistics as plain data; ``memory``: resident bytes of the process."""
        return self._status.read() | {"memory": resident_bytes(self._process.pid)}

    def close(self) -> None:
        """End the process."""
        self._close_input()
        self._process.terminate()  # a fork of this process may still have the other end of its input
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._listener.close()
        self._memory.close()
        os.close(self._page)
        Path(self.address).unlink(missing_ok=True)
        if self._temporary is not None:
            self._temporary.cleanup()

    def _close_input(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()


def _new_page() -> int:
    """Return a descriptor of memory for a :class:`.FetchStatus`."""
    if sys.platform == "linux":
        page = os.memfd_create("pydp2-fetch")
    else:
        with tempfile.TemporaryFile() as file:
            page = os.dup(file.fileno())
    os.truncate(page, fetch_status.SIZE)
    return page
