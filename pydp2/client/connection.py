"""A connection to a service: messages, checked; shared by trainers and by whoever asks for figures."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydp2.client.lots import Shown, opened
from pydp2.errors import Error, ProtocolError, RemoteProtocolError, ServiceLost, ServiceUnreachable, from_wire
from pydp2.inputs import Slots
from pydp2.protocol import messages as m
from pydp2.protocol.moves import Role, client_link
from pydp2.transport import Line
from pydp2.transport.sockets import context

_RETRY = 0.1  # seconds between attempts to connect
_LOOK = 1.0  # seconds after which a wait looks again whether the other side lives


class Connection:
    """Messages to and from a service, checked."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._zmq = context()
        try:
            self._line = Line(self._zmq, address, watch=True)
        except Error:
            self._zmq.term()
            raise
        self._link = client_link(Role.CLIENT)
        self.progress = (0, 0)
        """The run that was asked for last, and how many batches of it are used once the connection ends in order."""
        self.away = False
        """The service went away without a word, or said that it may come back."""
        self.shown: Shown | None = None
        """Memory of the service, its cache or its rows, once it is known that it can be read."""
        self._slots: Slots | None = None

    def send(self, message: m.Message, frames: Sequence[bytes] = ()) -> None:
        """Send one message, with raw frames."""
        self._link.sending(message)
        self._line.send([m.encode(message), *frames])

    def receive(self, deadline: float | None) -> tuple[m.Message, list[memoryview]] | None:
        """The next message, or None when ``deadline`` (``time.monotonic``) has passed.

        Raises ServiceLost, but only where it waits: to look into what came is not to ask whether more can come.
        """
        while True:
            frames = self._line.receive()
            left = _LOOK if deadline is None else deadline - time.monotonic()
            if frames is None and left <= 0:
                return None
            if frames is None and self._line.lost:
                frames = self._line.receive()  # what had come before the end is still to be taken
                if frames is None:
                    self.away = True
                    raise ServiceLost(
                        f"the service at {self.address} went away without a word; look at what it wrote last"
                    )
            if frames is not None:
                self._look()
                message, body = m.decode(frames)
                self._link.received(message)
                if isinstance(message, m.Closing):
                    if message.error:
                        raise from_wire(message.error)
                    self.away = message.back
                    raise ServiceLost(f"the service at {self.address} ended: {message.reason}")
                if isinstance(message, m.Probe):
                    continue
                return message, list(body)
            self._line.wait(max(1, int(min(left, _LOOK) * 1000)))

    def renew(self, first: m.Message, deadline: float) -> m.Message:
        """Connect anew, say ``first``, until ``deadline``; the answer. Raises ServiceUnreachable, ServiceLost."""
        other, answer = connect_once(self.address, first, deadline)
        self.close(0)
        self._zmq, self._line, self._link = other._zmq, other._line, other._link
        self.away = False
        return answer

    def borrow(self, shown: Slots | None = None) -> None:
        """Have batches come through shared memory from now on, where that can be; of samples with the slots ``shown``
        that lie in memory which the service shows, gather them here."""
        self._line.borrow()
        self._slots = shown
        if shown is not None:
            self._line.ask()

    def _look(self) -> None:
        """Whether the service has shown its memory."""
        wish = self._line.wish
        if wish is None or not wish.open or self._slots is None or (given := wish.look()) is None:
            return
        self.shown = opened(self._slots, *given)
        if self.shown is None:
            wish.close()
        else:
            wish.use()

    def stale(self) -> None:
        """The message that ended a pass belonged to one that was left before."""
        self._link.stale()

    def close(self, linger_ms: int = 200) -> None:
        """Close the connection."""
        self._line.close(0 if self._line.lost else linger_ms)
        self.shown = None
        self._zmq.term()


def connect_once(
    address: str, first: m.Message, deadline: float, gone: Callable[[], bool] | None = None
) -> tuple[Connection, m.Message]:
    """Connect, say ``first``, and wait for the answer; try again until ``deadline`` while nobody is there.

    ``gone()``: nobody will be there any more.
    """
    began = time.monotonic()
    path = address.removeprefix("ipc://") if address.startswith("ipc://") else None
    while True:
        if path is None or Path(path).exists():
            connection = Connection(address)
            try:
                connection.send(first)
                answer = connection.receive(deadline)
            except ServiceLost:
                connection.close(0)
                if not connection.away:
                    raise
                answer = None
            except BaseException:
                connection.close(0)
                raise
            else:
                if answer is not None:
                    return connection, answer[0]
                connection.close(0)
        if time.monotonic() + _RETRY > deadline or (gone is not None and gone()):
            raise ServiceUnreachable(
                f"nobody answers at {address} (tried for {time.monotonic() - began:.0f} s); start it with "
                "`pydp2 serve LIST --provider ADDRESS` and use the address that it prints"
            )
        time.sleep(_RETRY)


def welcomed(answer: m.Message) -> m.Welcome:
    """``answer`` to Attach when it lets us in. Raises what it refuses us with, or RemoteProtocolError."""
    if isinstance(answer, m.Refused):
        raise from_wire(answer.error)
    if not isinstance(answer, m.Welcome):
        raise RemoteProtocolError(f"expected Welcome, got {type(answer).__name__}")
    return answer


def ask_stats(address: str, timeout: float = 5.0) -> dict[str, Any]:
    """Ask the service at ``address`` once how it is doing."""
    connection, answer = connect_once(address, m.AskStats(), time.monotonic() + timeout)
    connection.close()
    if not isinstance(answer, m.Stats):
        raise RemoteProtocolError(f"expected Stats, got {type(answer).__name__}")
    return answer.data


def part(connection: Connection, on_close: Callable[[], None] | None, owner: int) -> None:
    """Leave the job, then do what follows from it."""
    if os.getpid() != owner:
        return  # a fork: the connection is the parent's, touching its sockets here would break it there
    try:
        with contextlib.suppress(ProtocolError):  # the service ended first
            connection.send(m.Detach(*connection.progress))
    finally:
        connection.close()
        if on_close is not None:
            on_close()
