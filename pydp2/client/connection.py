"""Exchange checked messages with a service, for trainers and for programs that ask for statistics."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from pydp2.client.look_ahead import LookAhead
from pydp2.client.received import fetch_rows
from pydp2.client.row_sources import RowSources
from pydp2.client.session import CLOSE_SECONDS, ClientGuard
from pydp2.client.wait_notice import LOGGER, notice_seconds, write_notice
from pydp2.data.columns.batch import Batch, StringArray
from pydp2.data.columns.columns import Columns
from pydp2.data.schema.input_types import Slots
from pydp2.data.schema.provider_schema import Schema
from pydp2.errors import (
    Error,
    ProtocolError,
    RemoteProtocolError,
    ServiceLost,
    ServiceUnreachable,
    StateMismatch,
    from_wire,
)
from pydp2.protocol import messages as m
from pydp2.protocol import progress_word
from pydp2.protocol.link_states import LinkRole, LinkState, client_link
from pydp2.protocol.plain_data import decode_plain
from pydp2.protocol.spans import SpanBuffer, Spans, decode_spans
from pydp2.protocol.stream_identity import differences
from pydp2.system.log_events import LogEvent
from pydp2.system.log_writer import log_event
from pydp2.system.stdlib import time
from pydp2.transport import AdmissionRefused, HubUnavailable, Line, owned_arrays
from pydp2.transport.keys import KeyPair
from pydp2.transport.line import ACK_TIMEOUT, Frame
from pydp2.transport.service_address import ipc_path, split_key, without_token
from pydp2.transport.sockets import new_context

_connection_numbers = itertools.count(1)  # of this process, for all its clients
_RETRY_SECONDS = 0.1  # seconds between attempts to connect
_SECOND_SECONDS = 0.25  # seconds that a thread waits at most for the batch behind the one in hand,
_LOOK_SECONDS = 0.002  # and between two looks whether the next call has begun
_POLL_SECONDS = 1.0  # seconds after which a wait checks again that the other side lives


@dataclass(frozen=True)
class Target:
    """Address of a service, and this peer's keys for it, if it has some. ``local_address``: where processes of its
    machine and user connect, to share memory with it; "" if it is not known."""

    address: str
    key_pair: KeyPair | None = field(default=None, repr=False)
    local_address: str = ""

    @property
    def name(self) -> str:
        """The address as it may be shown."""
        return without_token(self.address)

    @property
    def is_secured(self) -> bool:
        """True if the connection is encrypted, as to other hosts."""
        return bool(split_key(self.address)[1])


class NotAdmitted(ServiceUnreachable):
    """The service is there and does not admit this peer: to wait would not help."""


def _local_line(zmq: Any, target: Target, deadline: float) -> Line | None:
    """Return a line to the local address of ``target``; None if the service is on another machine, or another user's.
    Raises HubUnavailable if it is there and has no room."""
    if not target.local_address:
        return None
    try:
        return Line(zmq, target.local_address, watch=True, deadline=deadline, key_pair=target.key_pair)
    except HubUnavailable as reason:
        if str(reason):
            raise
    except (AdmissionRefused, ServiceUnreachable):
        pass
    return None


class Connection:
    """Connection to a service, whose messages are checked. It asks for admission until ``deadline``
    (``time.monotonic``). A thread that waits here is woken when ``session`` is to be closed. ``ack_timeout``: that of
    :class:`pydp2.transport.Line`.

    An exception that a signal handler raises anywhere in here loses no message, unless ``is_damaged`` tells of it. (If
    it comes just when the service has handed a descriptor over, that descriptor stays open.)

    ``name``: its address as it may be shown. Raises HubUnavailable, NotAdmitted, ServiceUnreachable.
    """

    def __init__(self, target: Target, deadline: float, session: ClientGuard | None, ack_timeout: float) -> None:
        self.target = target
        self.name = target.name
        self._session = session
        self._link = client_link(LinkRole.CLIENT)
        self.inbox: list[Any] = []
        """Items that came and were not taken yet: messages with their raw frames, as pairs, or what the caller has put
        in their place; behind them frames that are not decoded. A step replaces some of it at once, or nothing."""
        self.is_damaged = False
        """True if a call was cut off so that something received may be lost, or something to be sent unsent: all
        has to be asked for anew."""
        self.is_away = False
        """True if the service went away without a word, or said that it may come back."""
        self.row_sources = RowSources(key_pair=target.key_pair)
        """Sources of the rows of batches."""
        self.spans = SpanBuffer()
        """Spans for a trace, while the service records one."""
        self._zmq = new_context()
        try:
            self._line = _local_line(self._zmq, target, deadline) or Line(
                self._zmq,
                target.address,
                watch=True,
                deadline=deadline,
                key_pair=target.key_pair,
                ack_timeout=ack_timeout,
            )
        except BaseException as error:
            # An exception of a signal handler may leave the socket of a line open, and term() would wait for that.
            self._zmq.destroy(linger=0)
            if isinstance(error, AdmissionRefused):
                raise NotAdmitted(f"the service at {self.name} turned this process away: {error}") from None
            raise

    def send(self, message: m.Message, frames: Sequence[bytes] = ()) -> None:
        """Send one message, with raw frames."""
        self._link.check_sending(message)
        self._line.send([m.encode(message), *frames])

    def fetch(self, deadline: float | None = None) -> None:
        """Take in what came; with ``deadline`` (``time.monotonic``), wait until then for something if nothing came.

        Raises ServiceLost, but only while it waits: looking into what came does not ask whether more can come. Raises
        ClientUseError if it waits and the client is closed, RemoteProtocolError for what is no message.
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
            if self._session is not None and self._session.closing:
                self._session.check()

    def fetch_second(self, seconds: float, look_ahead: LookAhead) -> None:
        """Wait up to ``seconds`` for a second item of the inbox, in the thread of ``look_ahead`` and only as long as
        nobody wants the connection back. Raises what :meth:`fetch` does."""
        deadline = time.monotonic() + min(seconds, _SECOND_SECONDS)
        self.fetch()
        while len(self.inbox) == 1 and not look_ahead.is_wanted_back and time.monotonic() < deadline:
            self.fetch(time.monotonic() + _LOOK_SECONDS)

    def check_damage(self) -> bool:
        """Return ``is_damaged``, and set it if the last call was cut off so that something that came may be lost."""
        if self._line.is_interrupted:
            self.is_damaged = True
            self._line.drop_partial_message(self.inbox)
        return self.is_damaged

    @staticmethod
    def is_undecoded(item: Any) -> bool:
        """Return True if ``item`` of the inbox is a frame."""
        return isinstance(item, Frame)

    def _decode(self) -> bool:
        """Replace frames by their messages; return True if there was one that a wait ends with: all but Probe."""
        self.check_damage()
        self._line.receive_frames(self.inbox)
        at, came = len(self.inbox), False
        while at and self.is_undecoded(self.inbox[at - 1]):  # they lie behind all else
            at -= 1
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
        """Replace the frames from ``begin`` to ``end`` by the message that they are."""
        self._receive_shared_rows()
        frames, torn = self.inbox[begin:end], self.is_damaged
        if self._line.is_in_slab(frames):  # such a message can be read once only
            self.is_damaged = True
            del self.inbox[begin:end]
            end = begin
        message, body = m.decode(self._line.open_message(frames))
        if not isinstance(message, m.Closing):  # a closing message is received when its turn comes
            self._link.check_received(message)
        if isinstance(message, m.BatchHead) and message.elsewhere:
            self.is_damaged = True  # until what was asked for and what waits for it agree
            fetch_rows(message, body, self.row_sources)
        if isinstance(message, m.RecordSpans):
            self.spans.switch(message.on, time.perf_counter())
        kept: list[Any] = [] if isinstance(message, m.Probe | m.RecordSpans) else [(message, list(body))]
        self.inbox[begin:end] = kept
        self.is_damaged = torn
        return bool(kept) or isinstance(message, m.RecordSpans)

    def wait_for_rows(self, seconds: float) -> None:
        """Take in rows that were asked for; wait up to ``seconds`` for some, or for a message of the service."""
        torn, self.is_damaged = self.is_damaged, True
        wake = None if self._session is None else self._session.wake_fd
        self.row_sources.receive(seconds, [self._line.handle, *([] if wake is None else [wake])])
        self.is_damaged = torn

    def receive(self, deadline: float) -> tuple[m.Message, list[Any]] | None:
        """Return the next message and its raw frames, or None when ``deadline`` (``time.monotonic``) has passed. Raises
        what :meth:`fetch` does, and when the service says that it ends, ServiceLost or the error that it could not
        survive."""
        self.fetch(deadline)
        if not self.inbox or self.is_undecoded(self.inbox[0]):
            return None
        message, body = self.inbox.pop(0)
        if isinstance(message, m.Closing):
            raise self.service_closing(message)
        return message, body

    def service_closing(self, closing: m.Closing) -> Error:
        """Return the error that follows from the last message of the service."""
        if self._link.state is not LinkState.CLOSED:
            self._link.check_received(closing)
        if closing.error:
            return from_wire(closing.error)
        self.is_away = closing.will_restart
        return ServiceLost(f"the service at {self.name} ended: {closing.reason}")

    def _raise_if_refused(self) -> None:
        """Raise NotAdmitted if the service did not admit our token or key."""
        if not self._line.read_refusal:
            return
        if self.target.is_secured:
            raise NotAdmitted(
                f"the service at {self.name} does not know the key of this process, or has another key than its "
                "address says; use the connection file that it wrote when it was started last, or have the key allowed "
                "there: `pydp2 keys allow`"
            )
        raise NotAdmitted(
            f"the service at {self.name} has another token than this address; one that is started anew has a new "
            "token (unless it has a state_dir, or bind=…?token=… names one): use the address that it prints now"
        )

    def renew(self, first: m.Message, deadline: float) -> m.Message:
        """Connect anew, send ``first``, and return the answer; try until ``deadline``. Raises
        ServiceUnreachable, ServiceLost."""
        other, answer, _ = connect_once(self.target, first, deadline, session=self._session)
        self.close(0)
        self._zmq, self._line, self._link = other._zmq, other._line, other._link
        self.is_away = False
        self.spans.switch(False, 0.0)
        return answer

    def map_shared_rows(self, slots: Slots) -> None:
        """Have batches come through shared memory from now on, if possible; gather samples with ``slots`` here if they
        lie in memory which the service shows."""
        self._line.share_receive_slab()
        self.row_sources.slots = slots
        self._line.request_fd()

    def _receive_shared_rows(self) -> None:
        """Map the memory that the service shows, if its descriptor has come."""
        wish = self._line.fd_request
        if wish is None or not wish.is_open or self.row_sources.slots is None or (given := wish.poll()) is None:
            return
        if self.row_sources.map_memory(*given):
            wish.accept()
        else:
            wish.close()

    def show_used(self, run: int, used_batches: int) -> bool:
        """Show the service, without a message, that the first ``used_batches`` of ``run`` are used. Return False if it
        cannot see that."""
        return self._line.write_progress(progress_word.pack(run, used_batches))

    def drop_first(self) -> None:
        """Drop the first message of the inbox, which is of a run that was left."""
        message, _ = self.inbox[0]
        if isinstance(message, m.PassEnd | m.Failed):
            self._link.stay_in_pass()  # the pass that it ended was left before
        elif isinstance(message, m.BatchHead):
            self.row_sources.drop(message)
        del self.inbox[0]

    def close(self, linger_ms: int = 200) -> None:
        """Close the connection."""
        self._line.close(0 if self._line.is_lost else linger_ms)
        self.row_sources.close()
        self.inbox.clear()
        self._zmq.term()


def connect_once(
    target: Target,
    first: m.Message,
    deadline: float,
    gone: Callable[[], bool] | None = None,
    session: ClientGuard | None = None,
) -> tuple[Connection, m.Message, list[Any]]:
    """Connect, send ``first``, and wait for the answer; try again until ``deadline`` while no service is there. Return
    the connection, the answer and its raw frames.

    ``gone()``: True if there will be no service any more. ``session``: the client that the connection is for.
    """
    began = time.monotonic()
    why = ""
    while True:
        try:
            connection = Connection(target, deadline, session, 0.0 if _is_relaxed(first) else ACK_TIMEOUT)
        except HubUnavailable as reason:
            why = str(reason) or why
        else:
            try:
                connection.send(_numbered(first))
                answer = _receive_answer(connection, deadline, is_trainer=session is not None)
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
                    return connection, *answer
                connection.close(0)
        if time.monotonic() + _RETRY_SECONDS > deadline or (gone is not None and gone()):
            raise _unreachable(target, time.monotonic() - began, why)
        if session is not None:
            session.check()
        time.sleep(_RETRY_SECONDS)


def _receive_answer(connection: Connection, deadline: float, *, is_trainer: bool) -> tuple[m.Message, list[Any]] | None:
    """Return what answers the first message of ``connection``, None after ``deadline``; if a trainer waits long for it,
    write a line that says what for."""
    early = time.monotonic() + notice_seconds()
    if is_trainer and early < deadline:
        if (answer := connection.receive(early)) is not None:
            return answer
        write_notice(f"waiting for the service at {connection.name}: it answers once the provider is ready in a worker")
    return connection.receive(deadline)


def _is_relaxed(first: m.Message) -> bool:
    """Return True for a trainer that could not come back to its pass: it bears a cut until no heartbeat comes."""
    return isinstance(first, m.Attach) and first.options.get("order") == "relaxed"


def _numbered(first: m.Message) -> m.Message:
    """Return ``first``, with the number of this connection if it attaches a trainer."""
    return replace(first, connection_number=next(_connection_numbers)) if isinstance(first, m.Attach) else first


def _unreachable(target: Target, seconds: float, why: str) -> ServiceUnreachable:
    """Return the error after ``seconds`` of trying to connect to ``target``; ``why``: what the service said last."""
    tried = f"(tried for {seconds:.0f} s)"
    if why:
        return ServiceUnreachable(f"the service at {target.name} refused the connection {tried}: {why}")
    if target.is_secured:
        return ServiceUnreachable(
            f"no service with the key of this address answers at {target.name} {tried}; check that it runs, that "
            "this host can reach it, and, if it is fed by other hosts, that one has joined; use the connection file "
            "that it wrote when it was started last"
        )
    if (path := ipc_path(target.address)) is not None and not Path(path).exists():
        tried += (
            "; its socket is not there: the service has ended, or a program that cleans up old files has removed it"
        )
    return ServiceUnreachable(
        f"no service answers at {target.name} {tried}; start it with `pydp2 serve LIST --provider ADDRESS` and use the "
        "address that it prints"
    )


def parse_welcome(answer: m.Message) -> m.Welcome:
    """Return ``answer`` to Attach if it is a Welcome. Raises the error of a refusal, or RemoteProtocolError."""
    if isinstance(answer, m.Refused):
        raise from_wire(answer.error)
    if not isinstance(answer, m.Welcome):
        raise RemoteProtocolError(f"expected Welcome, got {type(answer).__name__}")
    return answer


def ask_stats(target: Target, timeout: float = 5.0) -> dict[str, Any]:
    """Ask the service ``target`` once for its statistics."""
    connection, answer, body = connect_once(target, m.AskStats(), time.monotonic() + timeout)
    connection.close()
    if not isinstance(answer, m.Stats) or len(body) != 1:
        raise RemoteProtocolError(f"expected Stats, got {type(answer).__name__}")
    figures = decode_plain(body[0])
    if not isinstance(figures, dict):
        raise RemoteProtocolError("Stats: expected a dict")
    return figures


def ask_trace(target: Target, seconds: float, timeout: float = 10.0) -> tuple[dict[str, Any], list[Spans]]:
    """Ask the service ``target`` for a trace of ``seconds``, wait for it, and return what it says of its sources, and
    the spans of each. Raises OptionError while another trace is being recorded."""
    message = m.AskTrace(round(seconds * 1000))
    connection, answer, body = connect_once(target, message, time.monotonic() + seconds + timeout)
    connection.close()
    if isinstance(answer, m.Refused):
        raise from_wire(answer.error)
    about = decode_plain(body[0]) if isinstance(answer, m.Trace) and body else None
    if not isinstance(about, dict) or len(about.get("sources", ())) != len(body) - 1:
        raise RemoteProtocolError(f"expected Trace, got {type(answer).__name__}")
    return about, [decode_spans("Trace", [frame]) for frame in body[1:]]


def ask_samples(target: Target, job: str, count: int, timeout: float = 5.0) -> Batch | None:
    """Ask the service ``target`` once for the first ``count`` rows of a batch that a trainer of ``job`` has now. Return
    them as a batch; None if there are none that could be shown. Raises OptionError if there is no such job, or the key
    of this process may not see samples."""
    connection, answer, body = connect_once(target, m.AskSamples(job, count), time.monotonic() + timeout)
    connection.close()
    if isinstance(answer, m.Refused):
        raise from_wire(answer.error)
    if not isinstance(answer, m.Samples):
        raise RemoteProtocolError(f"expected Samples, got {type(answer).__name__}")
    if not answer.rows:
        return None
    slots = Schema.from_wire(answer.schema).slots
    columns = Columns.from_frames(slots, answer.rows, owned_arrays(body))
    return Batch(columns, pass_id=answer.pass_id, index=answer.batch_index, size=answer.rows)


def ask_files(target: Target, timeout: float = 10.0) -> StringArray:
    """Ask the service ``target`` once for the entries of its file list."""
    connection, answer, body = connect_once(target, m.AskFiles(), time.monotonic() + timeout)
    connection.close()
    if not isinstance(answer, m.Files) or len(body) != 2 or not len(body[1]) or len(body[1]) % 8:
        raise RemoteProtocolError(f"expected Files, got {type(answer).__name__}")
    data, edges = np.frombuffer(bytes(body[0]), np.uint8), np.frombuffer(bytes(body[1]), np.int64)
    if edges[0] or edges[-1] != len(data) or (np.diff(edges) < 0).any():
        raise RemoteProtocolError("Files: entries that do not lie one after the other")
    return StringArray(edges, data)


def ask_weights(target: Target, job: str, weights: Mapping[str, str], timeout: float = 10.0) -> tuple[int, int]:
    """Have the service ``target`` change the weights of the mixture of ``job``. Return pass and step from which they
    hold. Raises OptionError if they do not suit the job."""
    message = m.SetWeights(job, dict(weights))
    connection, answer, _ = connect_once(target, message, time.monotonic() + timeout)
    connection.close()
    if isinstance(answer, m.Refused):
        raise from_wire(answer.error)
    if not isinstance(answer, m.WeightsSet):
        raise RemoteProtocolError(f"expected WeightsSet, got {type(answer).__name__}")
    return answer.pass_id, answer.step


def reconnect(
    connection: Connection, attach: m.Attach, identity: Mapping[str, Any], patience: float, slots: Slots
) -> None:
    """Wait ``patience`` seconds for the service of ``connection``, which went away, and attach there again: one with a
    ``state_dir`` goes on where it was when it is started again, and one on another host may only be cut off. ``slots``:
    those of its samples.

    Raises:
        ServiceLost: it did not come back. NotAdmitted: it does not let us in. JobTaken: another trainer has the place.
        StateMismatch: it came back with another stream; ``identity`` is what this one depended on.
    """
    began = time.monotonic()
    secured = connection.target.is_secured  # so it may be on another host
    begin = "" if attach.job == "default" else f"job {attach.job!r}: "
    text = (
        f"{begin}the connection to {connection.name} was lost; trying for {patience:g} s to connect again"
        if secured
        else f"{begin}the service at {connection.name} went away; waiting {patience:g} s for it to be started again"
    )
    log_event(LOGGER, text, LogEvent.CONNECTION_LOST, job=attach.job)
    try:
        answer = parse_welcome(connection.renew(attach, began + patience))
    except NotAdmitted:
        raise
    except ServiceUnreachable:
        if secured:
            raise ServiceLost(
                f"the service at {connection.name} could not be reached for {patience:g} s; check that it runs and the "
                "network between, or raise lease for more patience"
            ) from None
        raise ServiceLost(
            f"the service at {connection.name} went away and was not started again within {patience:g} s; start it "
            "with the same state_dir, or raise lease for more patience"
        ) from None
    if wrong := differences(identity, answer.service.get("stream_identity", {})):
        raise StateMismatch(
            f"the service at {connection.name} came back with another stream: {'; '.join(wrong)}; start it with "
            "the same arguments as before"
        )
    connection.map_shared_rows(slots)
    loss = answer.service.get("loss", "")
    text = f"{begin}the service at {connection.name} is back after {time.monotonic() - began:.1f} s"
    text += f", but could not go on from where it was: {loss!s:.2000}" if loss else ""
    log_event(LOGGER, text, LogEvent.CONNECTION_BACK, job=attach.job)


def detach(session: ClientGuard, connection: Connection, on_close: list[Callable[[], None]]) -> None:
    """Leave the job, then call what ``on_close`` has."""
    if not session.in_own_process:
        return  # in a fork the connection is the parent's: touching its sockets here would break it there
    if not session.stop(CLOSE_SECONDS):
        return  # the program ends while a thread is inside and does not come out: the sockets are that thread's
    progress = session.progress
    try:
        with contextlib.suppress(ProtocolError):  # the service ended first
            connection.send(m.Detach(progress.run, progress.done))
    finally:
        connection.close()
        session.release()
        for call in on_close:
            call()
