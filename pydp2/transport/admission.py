"""Tell peers that connect to the public socket of an ipc hub where to connect, or why they may not.

libzmq accepts every connection, and ends the process when there is no descriptor for one more. So it listens at a
path of its own, beside the public one. On the public one the hub accepts by itself: it looks which user the peer's
process belongs to and how many descriptors are left, answers in one line, and hangs up. No peer can keep it waiting,
because it waits for nothing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from pydp2.system.stdlib import socket, time
from pydp2.transport.descriptors import (
    descriptor_limit,
    file_identity,
    foreign_user,
    open_descriptors,
    peer_credentials,
    unix_listener,
    unlink_own,
)
from pydp2.transport.service_address import INNER_SUFFIX

_ADMIT, _LATER, _REFUSE = "pydp2 connect", "pydp2 later", "pydp2 refused"
"""Words that an answer begins with; a blank and the rest of the answer follow."""
_MAX_ANSWER_BYTES = 4096  # bytes of an answer
_MAX_ANSWERS = 64  # answers in one turn of the hub's loop
CONNECTING_SECONDS = 1.0  # seconds after which an admitted peer is connected, and counts among the open descriptors
_RETRY_SECONDS = 0.05  # seconds until a peer that was told to wait asks again


class AdmissionRefused(Exception):
    """The hub does not want this peer; the text says why. To ask again would not help."""


class HubUnavailable(Exception):
    """No hub listens at the address, or (with a text) the hub has no room now."""


class Admission:
    """Hub's end of admission, for a hub at ``path``. ``reserve``: descriptors that are kept for
    other things. ``before_admitting``: called before each count of them, so that nobody takes what is there meanwhile.
    Raises OSError.

    ``refusal``: why peers were told to come later, since that was last cleared; ``foreign``: numbers of the other
    users who came, since that was last cleared.
    """

    def __init__(self, path: str, reserve: int, before_admitting: Callable[[], None] = lambda: None) -> None:
        self.path, self.inner_path = path, f"{path}{INNER_SUFFIX}"
        self.refusal = ""
        self.foreign: list[int] = []
        self._reserve = reserve
        self._before_admitting = before_admitting
        self._on_their_way: list[tuple[int, float]] = []  # processes of peers that were admitted, and when
        self._bound: dict[str, tuple[int, int] | None] = {}  # the files of the sockets
        self._listener = self._listen(path)
        self._spare_descriptor = os.dup(self._listener.fileno())

    def _listen(self, path: str) -> socket.socket:
        listener = unix_listener(path, socket.SOCK_STREAM)
        self._bound[path] = file_identity(path)
        return listener

    def listen_inner(self) -> int:
        """Return a descriptor, the caller's, of the socket that admitted peers connect to. Raises OSError."""
        return self._listen(self.inner_path).detach()

    def fileno(self) -> int:
        """Return a descriptor that is readable when a peer asks."""
        return self._listener.fileno()

    def answer_requests(self) -> None:
        """Answer the peers that ask, some at a time; never block."""
        for _ in range(_MAX_ANSWERS):
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:  # no descriptor left: one was kept for this
                self._answer_with_spare()
                return
            with connection:
                self._reply(connection)

    def _answer_with_spare(self) -> None:
        self._close_spare()
        with contextlib.suppress(OSError):  # another thread of this process was quicker
            connection, _ = self._listener.accept()
            with connection:
                self._reply(connection)
        with contextlib.suppress(OSError):
            self._spare_descriptor = os.dup(self._listener.fileno())

    def _close_spare(self) -> None:
        if self._spare_descriptor >= 0:
            os.close(self._spare_descriptor)
            self._spare_descriptor = -1

    def _reply(self, connection: socket.socket) -> None:
        if (user := foreign_user(connection)) is not None:
            self.foreign.append(user)
            text = f"{_REFUSE} this service belongs to user {os.geteuid()}, and only this user may connect to it"
        elif why := self._why_full(connection):
            self.refusal = why
            text = f"{_LATER} {why}"
        else:
            text = f"{_ADMIT} {os.path.basename(self.inner_path)}"  # noqa: PTH119
        connection.setblocking(False)
        with contextlib.suppress(OSError):  # the peer did not wait
            connection.send(text.encode())

    def note_connected(self, process: int) -> None:
        """Note that a peer in ``process`` is connected, and counts among the open descriptors."""
        for at, (admitted, _) in enumerate(self._on_their_way):
            if admitted == process:
                del self._on_their_way[at]
                return

    def _why_full(self, connection: socket.socket) -> str:
        """Return why the peer of ``connection`` cannot be admitted now, or '' and count it as admitted."""
        now = time.monotonic()
        self._on_their_way = [
            (process, when)
            for process, when in self._on_their_way
            if now - when < CONNECTING_SECONDS and _is_alive(process)
        ]
        self._before_admitting()
        most, used = descriptor_limit(), open_descriptors()
        if used + len(self._on_their_way) + self._reserve >= most:
            return (
                f"the service has no descriptors left for another peer: it needs one more and keeps {self._reserve} "
                f"for itself, it has {most} (RLIMIT_NOFILE) and {used} of them are open; raise the limit with "
                "`ulimit -n` before it is started, or end others that are connected"
            )
        self._on_their_way.append(((peer_credentials(connection) or (0, 0, 0))[0], now))
        return ""

    def close(self) -> None:
        """Remove and close both sockets."""
        for path, identity in self._bound.items():
            unlink_own(path, identity)
        self._listener.close()
        self._close_spare()


def _is_alive(process: int) -> bool:
    """Return False if there is no such process any more; True for one that is not known (0)."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def request_admission(path: str, deadline: float | None) -> str:
    """Ask the hub at ``path`` for a connection and return the path to connect to. Ask again where told to wait, until
    ``deadline`` (``time.monotonic``; None: as long as the hub is there). Raises HubUnavailable and AdmissionRefused."""
    why = ""
    while True:
        answer = _ask(path, deadline)
        if answer.startswith(f"{_ADMIT} "):
            return os.path.join(os.path.dirname(path), answer.removeprefix(f"{_ADMIT} "))  # noqa: PTH118, PTH120
        if answer.startswith(f"{_REFUSE} "):
            raise AdmissionRefused(answer.removeprefix(f"{_REFUSE} "))
        if answer and not answer.startswith(f"{_LATER} "):
            raise AdmissionRefused(
                "the process that listens there speaks another protocol, perhaps that of another release of pydp2"
            )
        why = answer.removeprefix(f"{_LATER} ") or why  # the last question may come too late for an answer
        if deadline is not None and time.monotonic() + _RETRY_SECONDS > deadline:
            raise HubUnavailable(why)
        time.sleep(_RETRY_SECONDS)


def _ask(path: str, deadline: float | None) -> str:
    """Return the answer of the hub; '' if it had no time to give one. Raises HubUnavailable where no hub listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(None if deadline is None else max(0.001, deadline - time.monotonic()))
        try:
            connection.connect(path)
            data = b""
            while len(data) < _MAX_ANSWER_BYTES and (more := connection.recv(_MAX_ANSWER_BYTES)):
                data += more
        except (FileNotFoundError, ConnectionRefusedError):
            raise HubUnavailable from None
        except PermissionError:
            raise AdmissionRefused("it belongs to another user") from None
        except (BlockingIOError, ConnectionResetError, TimeoutError):  # many peers ask at the same time
            return ""
    return data.decode(errors="replace")
