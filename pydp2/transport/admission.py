"""The public socket of an ipc hub: who connects there is told where to connect, or why not.

libzmq accepts whoever comes, and ends the process when there is no descriptor for one more. So it listens at a path of
its own, beside the public one. There the hub accepts by itself: it looks whose process it is and how many descriptors
are left, answers in one line, and hangs up. Nobody can keep it waiting, because it waits for nothing.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time

from pydp2.addresses import BESIDE
from pydp2.transport.descriptors import is_ours, limit, listener_at, opened

_ADMIT, _LATER, _REFUSE = "pydp2 connect", "pydp2 later", "pydp2 refused"
"""An answer begins with one of these, then comes a blank and what is to be said."""
_LONGEST = 4096  # bytes of an answer
_AT_ONCE = 64  # answers in one turn of the hub's loop
_ON_THE_WAY = 1.0  # seconds after which who was let in is connected, and is one of the descriptors that are open
_AGAIN = 0.05  # seconds until somebody who was told to wait asks again


class TurnedAway(Exception):
    """The hub does not want this peer; the text says why. To ask again would not help."""


class NotNow(Exception):
    """Nobody is there to connect to, or (with a text) the hub has no room now."""


class Admission:
    """The hub's end, for a hub at ``path``. ``reserve``: descriptors that are kept for other things. Raises OSError.

    ``refused``: why peers were told to come later, since that was last cleared; ``foreign``: how many came from other
    users.
    """

    def __init__(self, path: str, reserve: int) -> None:
        self.inner = f"{path}{BESIDE}"
        self.refused = ""
        self.foreign = 0
        self._reserve = reserve
        self._let_in: list[float] = []  # when, of those who are on their way
        self._bound: list[str] = []
        self._listener = self._listen(path)
        self._spare = os.dup(self._listener.fileno())

    def _listen(self, path: str) -> socket.socket:
        listener = listener_at(path, socket.SOCK_STREAM)
        self._bound.append(path)
        return listener

    def listen_inside(self) -> int:
        """A descriptor, the caller's, of the socket that those connect to who are let in. Raises OSError."""
        return self._listen(self.inner).detach()

    def fileno(self) -> int:
        """What is readable when somebody asks."""
        return self._listener.fileno()

    def answer(self) -> None:
        """Answer those who ask, some at a time; never blocks."""
        for _ in range(_AT_ONCE):
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:  # no descriptor: one was kept for this
                self._turn_away()
                return
            with connection:
                self._reply(connection)

    def _turn_away(self) -> None:
        self._give_up_spare()
        with contextlib.suppress(OSError):  # somebody else in this process was quicker
            connection, _ = self._listener.accept()
            with connection:
                self._reply(connection)
        with contextlib.suppress(OSError):
            self._spare = os.dup(self._listener.fileno())

    def _give_up_spare(self) -> None:
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1

    def _reply(self, connection: socket.socket) -> None:
        if not is_ours(connection):
            self.foreign += 1
            text = f"{_REFUSE} this service belongs to user {os.geteuid()}, and nobody else may connect to it"
        elif why := self._full():
            self.refused = why
            text = f"{_LATER} {why}"
        else:
            text = f"{_ADMIT} {os.path.basename(self.inner)}"  # noqa: PTH119
        connection.setblocking(False)
        with contextlib.suppress(OSError):  # it did not wait
            connection.send(text.encode())

    def _full(self) -> str:
        """Why nobody can be let in now, or ''. Who can be is counted as let in."""
        now = time.monotonic()
        self._let_in = [when for when in self._let_in if now - when < _ON_THE_WAY]
        most, used = limit(), opened()
        if used + len(self._let_in) + self._reserve >= most:
            return (
                f"the service has no descriptors left for another peer: it needs one more and keeps {self._reserve} "
                f"for itself, it has {most} (RLIMIT_NOFILE) and {used} of them are open; raise the limit with "
                "`ulimit -n` before it is started, or end others that are connected"
            )
        self._let_in.append(now)
        return ""

    def close(self) -> None:
        """Close, and remove both sockets."""
        self._listener.close()
        self._give_up_spare()
        for path in self._bound:
            with contextlib.suppress(OSError):
                os.unlink(path)  # noqa: PTH108


def request_admission(path: str, deadline: float | None) -> str:
    """Ask the hub at ``path`` for a connection, until ``deadline`` (``time.monotonic``; None: as long as it is there):
    the path to connect to. Raises NotNow and TurnedAway; waits where it is told to."""
    while True:
        answer = _ask(path, deadline)
        if answer.startswith(f"{_ADMIT} "):
            return os.path.join(os.path.dirname(path), answer.removeprefix(f"{_ADMIT} "))  # noqa: PTH118, PTH120
        if answer.startswith(f"{_REFUSE} "):
            raise TurnedAway(answer.removeprefix(f"{_REFUSE} "))
        if answer and not answer.startswith(f"{_LATER} "):
            raise TurnedAway("who listens there speaks another language, that of another release of pydp2 perhaps")
        if deadline is not None and time.monotonic() + _AGAIN > deadline:
            raise NotNow(answer.removeprefix(f"{_LATER} "))
        time.sleep(_AGAIN)


def _ask(path: str, deadline: float | None) -> str:
    """The answer of the hub; '' where it had no time to give one. Raises NotNow where nobody is there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(None if deadline is None else max(0.001, deadline - time.monotonic()))
        try:
            connection.connect(path)
            data = b""
            while len(data) < _LONGEST and (more := connection.recv(_LONGEST)):
                data += more
        except (FileNotFoundError, ConnectionRefusedError):
            raise NotNow from None
        except PermissionError:
            raise TurnedAway("it belongs to another user") from None
        except (BlockingIOError, ConnectionResetError, TimeoutError):  # many ask at the same time
            return ""
    return data.decode(errors="replace")
