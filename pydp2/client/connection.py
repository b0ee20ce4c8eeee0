"""A connection to a service: messages, checked; shared by trainers and by whoever asks for figures."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from pydp2.client.lazy_rows import SharedRows, open_shared_rows
from pydp2.client.session import ClientGuard
from pydp2.errors import Error, ProtocolError, RemoteProtocolError, ServiceLost, ServiceUnreachable, from_wire
from pydp2.protocol import messages as m
from pydp2.protocol.link_states import LinkRole, LinkState, client_link
from pydp2.schema.input_types import Slots
from pydp2.service_address import without_token
from pydp2.transport import AdmissionRefused, HubUnavailable, Line
from pydp2.transport.sockets import Frame, new_context

_RETRY_SECONDS = 0.1  # seconds between attempts to connect
CLOSE_SECONDS = 5.0
"""A thread that is inside a client has so long to come out once that is closed."""
_POLL_SECONDS = 1.0  # seconds after which a wait looks again whether the other side lives


class NotAdmitted(ServiceUnreachable):
    """The service is there and does not let us in: to wait for it would not help."""


class Connection:
    """Messages to and from a service, checked. It is asked until ``deadline`` (``time.monotonic``) to let us in. A
    thread that waits here is woken when ``session`` is to be closed.

    An exception that a signal handler raises anywhere in here loses no message, but where ``is_damaged`` tells of it.
    (Where it comes just when the service has handed a descriptor over, that stays open.)

    ``name``: its address as it may be shown. Raises HubUnavailable, NotAdmitted, ServiceUnreachable.
    """

    def __init__(self, address: str, deadline: float, session: ClientGuard | None = None) -> None:
        self.address = address
        self.name = without_token(address)
        self._session = session
        self._zmq = new_context()
        try:
            self._line = Line(self._zmq, address, watch=True, deadline=deadline)
        except AdmissionRefused as why:
            self._zmq.term()
            raise NotAdmitted(f"the service at {self.name} turned this process away: {why}") from None
        except BaseException:
            self._zmq.term()
            raise
        self._link = client_link(LinkRole.CLIENT)
        self.inbox: list[Any] = []
        """What came and was not taken yet: messages with their raw frames, as pairs, or what the caller has put in
        their place; behind them frames that are not decoded. A step replaces some of it at once, or nothing."""
        self.is_damaged = False
        """A call was cut off where what came may be lost, or what was to be said unsaid: all has to be asked anew."""
        self.is_away = False
        """The service went away without a word, or said that it may come back."""
        self.shared_rows: SharedRows | None = None
        """Memory of the service, its cache or its rows, once it is known that it can be read."""
        self._slots: Slots | None = None

    def send(self, message: m.Message, frames: Sequence[bytes] = ()) -> None:
        """Send one message, with raw frames."""
        self._link.check_sending(message)
        self._line.send([m.encode(message), *frames])

    def fetch(self, deadline: float | None = None) -> None:
        """Take in what came; with ``deadline`` (``time.monotonic``), wait until then for something where that is
        nothing.

        Raises ServiceLost, but only where it waits: to look into what came is not to ask whether more can come.
        ClientUseError where it waits and the client is closed. RemoteProtocolError for what is no message.
        """
        while True:
            came = self._decode()
            left = 0.0 if deadline is None else deadline - time.monotonic()
            if came or left <= 0:
                return
            if self._line.is_lost:
                if self._decode():  # what had come before the end is still to be taken
                    return
                self._raise_if_refused()
                self.is_away = True
                raise ServiceLost(f"the service at {self.name} ended without a message; see the last lines of its log")
            self._line.wait(
                max(1, int(min(left, _POLL_SECONDS) * 1000)), None if self._session is None else self._session.wake_fd
            )
            if self._session is not None:
                self._session.check()

    def check_damage(self) -> None:
        """Find out whether the last call was cut off where something that came may be lost: ``is_damaged``."""
        if self._line.is_interrupted:
            self.is_damaged = True
            self._line.drop_partial_message(self.inbox)

    @staticmethod
    def is_undecoded(item: Any) -> bool:
        """Whether ``item`` of the inbox is a frame."""
        return isinstance(item, Frame)

    def _decode(self) -> bool:
        """Put messages in the place of their frames; whether there are any that were not there before."""
        self.check_damage()
        self._line.receive_frames(self.inbox)
        at, came = 0, False
        while at < len(self.inbox):
            if not self.is_undecoded(self.inbox[at]):
                at += 1
                continue
            count = self._line.message_length(self.inbox, at)
            if not count:
                break
            came = self._decode_one(at, at + count) or came
        return came

    def _decode_one(self, begin: int, end: int) -> bool:
        """The same of the message whose frames stand from ``begin`` to ``end``."""
        self._receive_shared_rows()
        frames, torn = self.inbox[begin:end], self.is_damaged
        if self._line.is_in_slab(frames):  # which can be looked at once
            self.is_damaged = True
            del self.inbox[begin:end]
            end = begin
        message, body = m.decode(self._line.open_message(frames))
        if not isinstance(message, m.Closing):  # that is received when its turn comes
            self._link.check_received(message)
        kept: list[Any] = [] if isinstance(message, m.Probe) else [(message, list(body))]
        self.inbox[begin:end] = kept
        self.is_damaged = torn
        return bool(kept)

    def receive(self, deadline: float) -> m.Message | None:
        """The next message, or None when ``deadline`` (``time.monotonic``) has passed. Raises what :meth:`fetch` does,
        and ServiceLost, or the error that the service could not survive, where that says that it ends."""
        self.fetch(deadline)
        if not self.inbox or self.is_undecoded(self.inbox[0]):
            return None
        message: m.Message = self.inbox.pop(0)[0]
        if isinstance(message, m.Closing):
            raise self.service_closing(message)
        return message

    def service_closing(self, closing: m.Closing) -> Error:
        """What follows from the last words of the service."""
        if self._link.state is not LinkState.CLOSED:
            self._link.check_received(closing)
        if closing.error:
            return from_wire(closing.error)
        self.is_away = closing.will_restart
        return ServiceLost(f"the service at {self.name} ended: {closing.reason}")

    def _raise_if_refused(self) -> None:
        """Raise NotAdmitted where the service let nobody in with our token."""
        if self._line.read_refusal:
            raise NotAdmitted(
                f"the service at {self.name} has another token than this address; one that is started anew has a new "
                "token (unless it has a state_dir, or bind=…?token=… names one): use the address that it prints now"
            )

    def renew(self, first: m.Message, deadline: float) -> m.Message:
        """Connect anew, say ``first``, until ``deadline``; the answer. Raises ServiceUnreachable, ServiceLost."""
        other, answer = connect_once(self.address, first, deadline, session=self._session)
        self.close(0)
        self._zmq, self._line, self._link = other._zmq, other._line, other._link
        self.is_away = False
        return answer

    def map_shared_rows(self, shown: Slots | None = None) -> None:
        """Have batches come through shared memory from now on, where that can be; of samples with the slots ``shown``
        that lie in memory which the service shows, gather them here."""
        self._line.share_receive_slab()
        self._slots = shown
        if shown is not None:
            self._line.request_fd()

    def _receive_shared_rows(self) -> None:
        """Whether the service has shown its memory."""
        wish = self._line.fd_request
        if wish is None or not wish.is_open or self._slots is None or (given := wish.poll()) is None:
            return
        self.shared_rows = open_shared_rows(self._slots, *given)
        if self.shared_rows is None:
            wish.close()
        else:
            wish.accept()

    def stay_in_pass(self) -> None:
        """The message that ended a pass belonged to one that was left before."""
        self._link.stay_in_pass()

    def close(self, linger_ms: int = 200) -> None:
        """Close the connection."""
        self._line.close(0 if self._line.is_lost else linger_ms)
        self.shared_rows = None
        self.inbox.clear()
        self._zmq.term()


def connect_once(
    address: str,
    first: m.Message,
    deadline: float,
    gone: Callable[[], bool] | None = None,
    session: ClientGuard | None = None,
) -> tuple[Connection, m.Message]:
    """Connect, say ``first``, and wait for the answer; try again until ``deadline`` while nobody is there.

    ``gone()``: nobody will be there any more. ``session``: whose connection it is.
    """
    began = time.monotonic()
    why = ""
    while True:
        try:
            connection = Connection(address, deadline, session)
        except HubUnavailable as reason:
            why = str(reason) or why
        else:
            try:
                connection.send(first)
                answer = connection.receive(deadline)
            except ServiceLost:
                connection.close(0)
                if not connection.is_away:
                    raise
                answer = None
            except BaseException:
                connection.close(0)
                raise
            else:
                if answer is not None:
                    return connection, answer
                connection.close(0)
        if time.monotonic() + _RETRY_SECONDS > deadline or (gone is not None and gone()):
            tried = f"(tried for {time.monotonic() - began:.0f} s)"
            if why:
                raise ServiceUnreachable(f"the service at {without_token(address)} let nobody in {tried}: {why}")
            raise ServiceUnreachable(
                f"no service answers at {without_token(address)} {tried}; start it with `pydp2 serve LIST --provider "
                "ADDRESS` and "
                "use the address that it prints"
            )
        if session is not None:
            session.check()
        time.sleep(_RETRY_SECONDS)


def parse_welcome(answer: m.Message) -> m.Welcome:
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


def detach(session: ClientGuard, connection: Connection, on_close: Callable[[], None] | None) -> None:
    """Leave the job, then do what follows from it."""
    if os.getpid() != session.pid:
        return  # a fork: the connection is the parent's, touching its sockets here would break it there
    if not session.stop(CLOSE_SECONDS):
        return  # the program ends while a thread is inside, which does not come out: the sockets are its own
    progress = session.progress
    try:
        with contextlib.suppress(ProtocolError):  # the service ended first
            connection.send(m.Detach(progress.run, progress.done))
    finally:
        connection.close()
        session.release()
        if on_close is not None:
            on_close()
