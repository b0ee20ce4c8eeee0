"""Keep all threads but one out of a client; another thread may ask that one to come out.

ZeroMQ sockets may move from one thread to another, but two threads must never use them at once. A lock would not do: a
signal handler may raise between taking it and noting that it is taken, and also after its release, when the batch in
hand would be lost. So a call enters by putting its own token into a dict, and leaves by deleting the token. No
exception can leave half of that. The deletion is a statement and not a call, because an exception could come behind a
call.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from pydp2.client.look_ahead import LookAhead
from pydp2.client.progress import Progress
from pydp2.errors import ClientUseError
from pydp2.system import single_pass
from pydp2.system.stdlib import time

CLOSE_SECONDS = 5.0
"""Number of seconds that a thread inside a client has to come out once the client is closed."""
_RECLAIM_SECONDS = 10.0  # seconds that a call waits for the thread that works for it
_POLL_SECONDS = 0.005  # seconds between two checks whether a thread has come out
_Result = TypeVar("_Result")


class ClientGuard:
    """Part of a client that its finalizer needs as well. ``progress``: the progress of the client."""

    def __init__(self, progress: Progress) -> None:
        self.pid = os.getpid()
        self._forks = single_pass.forks
        self.progress = progress
        self.current_call: dict[int, list[int]] = {}
        """Dict whose key 0 has the token of the call that is inside: a list with the id of its thread."""
        self.is_damaged = False
        """True if the pass has to be requested again before the next batch."""
        self.closing = False
        self._lock = threading.RLock()  # for the pipe; reentrant, because a signal handler may close the client too
        self.look_ahead = LookAhead()
        """Thread that works for the next call, between two calls."""
        self._pipe: tuple[int, int] | None = os.pipe()
        os.set_blocking(self._pipe[1], False)

    def guarded(
        self, change: Callable[..., tuple[_Result, Progress]], *arguments: Any, patience: float | None = None
    ) -> _Result:
        """Call ``change`` while no other call is inside. It returns the result of this method and the new progress,
        which is stored as the last step (:mod:`.run_protocol`). ``patience``: seconds to wait for the thread that works
        for this call.

        Raises ClientUseError if another call is inside, the client is closed, or it belongs to the parent process.
        """
        token = [threading.get_ident()]
        try:
            self._enter(token, _RECLAIM_SECONDS if patience is None else patience)
            result, progress = change(*arguments)
            self.progress = progress
            return result
        finally:
            if 0 in self.current_call and self.current_call[0] is token:
                del self.current_call[0]

    def _enter(self, token: list[int], patience: float) -> None:
        if self._forks != single_pass.forks:
            self.check_process()
        if self.current_call.setdefault(0, token) is not token:
            raise ClientUseError(
                "another thread is inside this client, waiting for a batch; let one thread at a time iterate it, or "
                "put a lock around next()"
            )
        if self.closing:
            self.check()
        if not self.look_ahead.reclaim(patience):
            raise ClientUseError(
                f"a thread that prepares the next batch has not come out for {patience:g} s; find out whether "
                "this process was stopped, and call again"
            )

    @property
    def in_own_process(self) -> bool:
        """True if this process made the client; False in a fork of it."""
        return self._forks == single_pass.forks

    def check_process(self) -> None:
        """Raise ClientUseError in a fork of the process that made the client."""
        if not self.in_own_process:
            raise ClientUseError(
                "this client was made before a fork and belongs to the parent process; call connect() in each process "
                "(with torch's DataLoader: num_workers=0)"
            )

    def check(self) -> None:
        """Raise ClientUseError once the client is to be closed."""
        if self.closing:
            raise ClientUseError("this client is closed; connect() again for more passes")

    @property
    def is_reentrant(self) -> bool:
        """True if the calling thread itself is inside a call."""
        token = self.current_call.get(0)
        return token is not None and token[0] == threading.get_ident()

    @property
    def wake_fd(self) -> int | None:
        """Descriptor that is readable once the client is to be closed, None when it is closed."""
        return None if self._pipe is None else self._pipe[0]

    def stop(self, seconds: float) -> bool:
        """Make the call that is inside come out, and let no other in. Return False if another thread stayed inside for
        ``seconds``."""
        self.closing = True
        with self._lock, contextlib.suppress(BlockingIOError):
            if self._pipe is not None:
                os.write(self._pipe[1], b".")
        deadline = time.monotonic() + seconds
        while self.current_call and not self.is_reentrant:
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_SECONDS)
        return self.look_ahead.reclaim(seconds)

    def release(self) -> None:
        """End the thread and close the descriptors."""
        self.look_ahead.close(_RECLAIM_SECONDS)
        with self._lock:
            pipe, self._pipe = self._pipe, None
            for descriptor in pipe or ():
                os.close(descriptor)
