"""Exchange messages with the hosts that run workers of a service: their messages become events, in the order of
arrival."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pydp2.data.rowstore.base import ClaimRows
from pydp2.data.rowstore.host_rows import HostRows, RowServers
from pydp2.errors import Error, HostRefused, OptionError, ProtocolError, RemoteProtocolError, shorten, to_wire
from pydp2.host.list_entries import opened_entries, sampled_entries
from pydp2.options.file_list import FileList
from pydp2.options.service_spec import ServiceSpec, packed_sources
from pydp2.protocol import messages as m
from pydp2.protocol.file_ranges import MAX_SIZE, check_ints
from pydp2.protocol.link_states import LinkState
from pydp2.server.hosts.host_sessions import MAX_BEATS, HostSession, HostSessions, shown
from pydp2.system.log_events import LogEvent, WriteLog
from pydp2.system.release import RELEASE
from pydp2.transport import Hub, PeerGone
from pydp2.transport.compression import CODEC, MAX_INFLATED_BYTES, FrameInflater
from pydp2.transport.service_address import split_key

_MAX_BREAKS = 5  # violations of the protocol after which a host may not join any more
_MAX_NAMES = 1024  # names of hosts for which violations are counted


@dataclass(frozen=True, slots=True)
class HostReady:
    """A host has joined and can run ``worker_slots`` workers."""

    host: int
    worker_slots: int


@dataclass(frozen=True, slots=True)
class HostLeaves:
    """A host drains: it takes no new files."""

    host: int


@dataclass(frozen=True, slots=True)
class HostGone:
    """The session of a host has ended, ``how`` as text. ``running``: the samples that its workers were asking for."""

    host: int
    running: dict[int, tuple[int, int, int]]
    how: str


@dataclass(frozen=True, slots=True)
class RemoteStarted:
    """A worker of ``host`` has started, as process ``pid``."""

    host: int
    worker: int
    pid: int


@dataclass(frozen=True, slots=True)
class RemoteMessage:
    """A worker of ``host`` has sent a message; the header is the first frame."""

    host: int
    worker: int
    frames: list[memoryview]


@dataclass(frozen=True, slots=True)
class RemoteExited:
    """The process of a worker of ``host`` has ended."""

    host: int
    exited: m.WorkerExited


_MAX_ASKED = 4096  # peers that are remembered as having received the spec
_REASON_LENGTH = 500
_ADDRESS_LENGTH = 400
_MAX_STATUS = 1 << 16  # every status of os.waitpid is below
HostEvent = HostReady | HostLeaves | HostGone | RemoteStarted | RemoteMessage | RemoteExited


class _SpecOffer:
    """Spec of a service for its hosts: the ``message``, and the ``frames`` behind it, which may be large."""

    def __init__(self, spec: ServiceSpec, files: FileList) -> None:
        terms, source = spec.to_wire(), b"" if files.source is None else files.source.encode()
        self.frames: list[Any] = [packed_sources(spec.sources), spec.program, *files.to_buffers(), source]
        self.message = m.Spec(terms, _digest(m.encode(m.Spec(terms, "")), self.frames))
        self._asked: dict[bytes, None] = {}  # peers that have got the spec already, the last few thousand

    def note_asked(self, peer: bytes) -> None:
        """Note that ``peer`` asks for the spec. Raises RemoteProtocolError if it has received the spec already, which
        may be large."""
        if peer in self._asked:
            raise RemoteProtocolError("AskSpec: the spec comes once over a connection")
        self._asked[peer] = None
        if len(self._asked) > _MAX_ASKED:
            del self._asked[next(iter(self._asked))]


def _no_log(text: str, event: LogEvent, /, **fields: str | int) -> None:
    """Write nothing: there is no log yet."""


class _HostInflater:
    """Inflater of what hosts compress, within ``memory_limit`` bytes. It needs zstandard once such a host joins.

    ``inflated``: bytes that came out since its owner set this to 0.
    """

    def __init__(self, memory_limit: int) -> None:
        self._memory_limit = memory_limit
        self._inflater: FrameInflater | None = None
        self.inflated = 0

    def check_codec(self, join: m.Join) -> None:
        """Raise HostRefused unless this service can inflate the frames that the host compresses."""
        if join.codec not in ("", CODEC):
            raise HostRefused(f"a host may compress with {CODEC}, {join.name:.100} does with {join.codec!r:.40}")
        if join.codec and self._inflater is None:
            try:
                self._inflater = FrameInflater(self._memory_limit)
            except OptionError as lacks:
                raise HostRefused(
                    f"a service needs zstandard to inflate what {join.name:.100} compresses, and it is not installed "
                    "where this one runs; pip install 'zstandard>=0.23' there, or start that host without --compress"
                ) from lacks

    def inflate(self, session: HostSession, body: Sequence[memoryview], raw_sizes: Sequence[Any]) -> list[memoryview]:
        """Return the message ``body`` with all compressed frames inflated. Raises RemoteProtocolError."""
        if self._inflater is None or not session.compresses:
            raise RemoteProtocolError("FromWorker: compressed frames of a host that did not say so as it joined")
        header, *packed = body
        frames = self._inflater.inflate(packed, check_ints("FromWorker", raw_sizes, len(packed)))
        more = sum(map(len, frames)) - sum(map(len, packed))
        session.inflated += more
        self.inflated += sum(raw_sizes)
        return [header, *frames]


class HostGateway:
    """Other hosts of a service, at ``hub``."""

    def __init__(self, spec: ServiceSpec, files: FileList, hub: Hub) -> None:
        self._timing = spec.timing
        self._files = files
        self.hub = hub
        """Hub to which hosts connect."""
        self._log: WriteLog = _no_log
        self.sessions = HostSessions(m.WIRE_VERSION, RELEASE)
        self.row_servers = RowServers()
        """Row servers of these hosts."""
        self._row_addresses: dict[int, str] = {}  # of hosts that join and have not prepared yet
        self._readers: frozenset[str] = frozenset()
        self._spec = _SpecOffer(spec, files)
        self._events: list[HostEvent] = []
        self._breaks: Counter[str] = Counter()  # violations of the protocol by name of the host
        self._inflater = _HostInflater(spec.memory_limit)
        if spec.workers:
            self.sessions.note_opened(None, opened_entries(files, Path(spec.root)), self._sampled)

    def _sampled(self, i: int) -> str:
        return self._files[sampled_entries(self._files)[i]]

    def begin(self, log: WriteLog) -> None:
        """Begin to serve hosts; ``log(text, event)`` writes a line for the user."""
        self._log = log

    # -- messages from hosts ---------------------------------------------------------------------------------------
    def receive(self, now: float, most: int) -> tuple[list[HostEvent], bool]:
        """Read at most ``most`` messages of hosts. Return their events, and True if there may be more messages. Frames
        that hosts have compressed are inflated; the call ends early before they take much memory."""
        more = True
        self._inflater.inflated = 0
        for _ in range(most):
            if self._inflater.inflated >= MAX_INFLATED_BYTES:
                break
            received = self.hub.receive()
            if received is None:
                more = False
                break
            peer, frames = received
            try:
                self._handle(peer, frames, now)
            except ProtocolError as error:
                self._log(f"a host broke the protocol: {error}", LogEvent.PROTOCOL_BROKEN)
                self.hub.note_refusal(peer, "broke the protocol", now)
                why = f"it broke the protocol: {shorten(str(error), _REASON_LENGTH)}"
                if (session := self.sessions.at(peer)) is not None:
                    self._end_breaker(session, error, why)
                else:
                    self._send(peer, m.Refused(to_wire(HostRefused(f"the service turned this host away: {why}"))))
                self.hub.end_peer(peer)
        events, self._events = self._events, []
        return events, more

    def _end_breaker(self, session: HostSession, error: ProtocolError, why: str) -> None:
        """End ``session``, whose message raised ``error``, and log ``why``. The host may join again, unless this
        happened too often."""
        if len(self._breaks) >= _MAX_NAMES:
            self._breaks.clear()
        self._breaks[session.name] += 1
        last: m.Message = m.Closing(why, {}, True)
        if self._breaks[session.name] >= _MAX_BREAKS:
            text = f"this host broke the protocol {_MAX_BREAKS} times, the last time so: {shorten(str(error), 200)}"
            last = m.Refused(to_wire(HostRefused(f"{text}; look for what is different here, and start it again")))
        self._end(session, "broke the protocol", last)

    def _handle(self, peer: bytes, frames: list[memoryview], now: float) -> None:
        if self.hub.role_of(peer) != "worker":
            return  # the key of the peer was removed, or is for another address
        session = self.sessions.at(peer)
        message, body = m.decode(frames)
        if session is None:
            self._greet(peer, message, now)
            if self.sessions.at(peer) is None:
                self.hub.forget_peer(peer)
            return
        session.heard_at = now
        if (data_link := session.data.get(peer)) is not None:
            data_link.check_received(message)
            size = sum(map(len, frames))
            session.received += size
            session.inflated += size
            if session.owes_report:
                self._report(session, now)
            self._take_data(session, message, body)
            return
        session.link.check_received(message)
        match message:
            case m.Prepared(opened):
                self._prepared(session, opened)
            case m.HostBeat():
                session.note_beat(now, message)
                if now - session.beat_at >= self._timing.host_beat / MAX_BEATS:
                    session.beat_at = now
                    self._report(session, now)
            case m.Drain():
                session.drain_until = now + self._timing.host_drain
                text = f"{session.name} leaves: its workers end the files that they read"
                self._log(text, LogEvent.HOST_LEAVING, host=session.name)
                self._events.append(HostLeaves(session.host))
                if session.host in self.row_servers:
                    self.row_servers.turn_off(session.host)
                    self._send_control(session, m.SendRows())

    def _greet(self, peer: bytes, message: m.Message, now: float) -> None:
        """Answer the first message of a peer."""
        try:
            match message:
                case m.AskSpec(version, release):
                    self._spec.note_asked(peer)
                    self.sessions.check_version(version, release)
                    self._send(peer, self._spec.message, self._spec.frames)
                case m.Join():
                    self.sessions.check_version(message.version, message.release)
                    self._inflater.check_codec(message)
                    session = self.sessions.join(peer, message.name, message.worker_slots, message.session, now)
                    session.compresses = bool(message.codec)
                    if address := _checked_row_server(message.row_server):
                        self._row_addresses[session.host] = address
                    session.link.check_received(message)
                    frames = self._spec.frames if message.digest != self._spec.message.digest else []
                    self._send_control(session, self._spec.message, frames)
                case m.OpenData(session_id):
                    found = self.sessions.open_data(peer, session_id, now)
                    if found is not None:
                        found.data[peer].check_received(message)
                        self._send_control(found, m.DataOpened())
                case m.HostBeat():  # it belongs to a session that has ended
                    self._send(peer, m.Closing("its session is over", {}, True))
                    self.hub.end_peer(peer)
                case _:  # it belongs to a session that has ended, or cannot begin a session
                    self.hub.end_peer(peer)
        except HostRefused as error:
            self._log(shorten(str(error), 2000), LogEvent.HOST_REFUSED)
            self.hub.note_refusal(peer, "not a host for this service", now)
            self._send(peer, m.Refused(to_wire(error)))
            self.hub.end_peer(peer)

    def _prepared(self, session: HostSession, opened: Sequence[Any]) -> None:
        if not session.data:
            raise RemoteProtocolError("Prepared: there is no connection for data")
        if len(opened) != len(sampled_entries(self._files)):
            raise RemoteProtocolError(f"Prepared: {len(opened)} entries")
        try:
            self.sessions.note_opened(session, opened, self._sampled)
        except HostRefused as error:
            self.turn_away(session.host, error)
            return
        text = f"{session.name} joins with {session.worker_slots} workers"
        self._log(text, LogEvent.HOST_JOINED, host=session.name)
        self._events.append(HostReady(session.host, session.worker_slots))  # before a send, which may end the session
        if session.host in self._row_addresses:
            self.row_servers.add(session.host, self._row_addresses.pop(session.host))
            self._send_control(session, m.RowReaders(sorted(self._readers)))

    def _take_data(self, session: HostSession, message: m.Message, body: Sequence[memoryview]) -> None:
        match message:
            case m.WorkerStarted(worker, pid):
                self._events.append(RemoteStarted(session.host, worker, pid))
            case m.FromWorker(worker, raw_sizes):
                if not body:
                    raise RemoteProtocolError("FromWorker: no message in it")
                frames = [*body] if not raw_sizes else self._inflater.inflate(session, body, raw_sizes)
                self._events.append(RemoteMessage(session.host, worker, frames))
            case m.WorkerExited():
                if message.status >= _MAX_STATUS:
                    raise RemoteProtocolError(f"WorkerExited: status {message.status}")
                session.ends_at.pop(message.worker, None)
                if message.running:
                    check_ints("WorkerExited", message.running, 3)
                exited = replace(message, kill_reason=shown(message.kill_reason, _REASON_LENGTH))
                self._events.append(RemoteExited(session.host, exited))

    def check_source(self, host: int, fingerprint: str, modules: dict[str, Any]) -> None:
        """Compare the code of the provider on ``host`` (0: this machine) with the first code that was declared. Raises
        HostRefused, naming what differs."""
        session = self.sessions.get(host)
        self.sessions.check_source(None if session is None else session.name, fingerprint, modules)

    # -- messages to hosts -----------------------------------------------------------------------------------------
    def send(self, host: int, message: m.Message, frames: Sequence[Any] = ()) -> None:
        """Send ``message`` to the agent of ``host``, if that is still there."""
        session = self.sessions.get(host)
        if session is not None:
            self._send_control(session, message, frames)

    def kill(self, host: int, worker: int, now: float) -> None:
        """Tell ``host`` to end a worker at once. If it does not, the host counts as lost, because it would keep the
        files of the worker."""
        session = self.sessions.get(host)
        if session is not None and worker not in session.ends_at:
            session.ends_at[worker] = now + self._timing.host_timeout
            self._send_control(session, m.KillWorker(worker))

    # -- rows that stay there --------------------------------------------------------------------------------------
    def claim_of(self, host: int) -> ClaimRows | None:
        """Return the function that claims rows that stay on ``host``; None if no rows may stay there."""
        return partial(_claim, self.row_servers, host) if host in self.row_servers else None

    def send_updates(self, trainer_keys: Callable[[], frozenset[str]]) -> None:
        """Tell the row servers which rows they may drop, and that only trainers with the public keys
        ``trainer_keys()`` may fetch rows."""
        for host, handles in self.row_servers.take_released():
            self.send(host, m.ReleaseRows(), [handles])
        keys = trainer_keys() if len(self.row_servers) else frozenset()
        if keys != self._readers:
            self._readers = keys
            for session in self.sessions:
                if session.host in self.row_servers:
                    self._send_control(session, m.RowReaders(sorted(keys)))

    def turn_away(self, host: int, error: Error) -> None:
        """Turn ``host`` away because of ``error``: end its session."""
        session = self.sessions.get(host)
        if session is not None:
            text = f"{session.name} is turned away: {shorten(str(error), 2000)}"
            self._log(text, LogEvent.HOST_REFUSED, host=session.name)
            self._end(session, "was turned away", m.Refused(to_wire(error)))

    def release(self, host: int) -> None:
        """End the session of ``host``, which has asked to leave."""
        session = self.sessions.get(host)
        if session is not None:
            self._log(f"{session.name} has left", LogEvent.HOST_LEFT, host=session.name)
            self._end(session, "has left", m.Closing("it has left", {}))

    def _report(self, session: HostSession, now: float) -> None:
        """Tell a host how much was received from it, which also shows that the service is there."""
        session.reported, session.sent_at = session.received, now
        self._send_control(session, m.HostReceived(session.received, session.beat_ns))

    def _send_control(self, session: HostSession, message: m.Message, frames: Sequence[Any] = ()) -> None:
        session.link.check_sending(message)
        try:
            self.hub.send(session.control, [m.encode(message), *frames])
        except PeerGone:
            self._lose(session, "its connection ended")

    def _send(self, peer: bytes, message: m.Message, frames: Sequence[Any] = ()) -> None:
        try:
            self.hub.send(peer, [m.encode(message), *frames])
        except PeerGone:
            self.hub.forget_peer(peer)

    def _lose(self, session: HostSession, why: str) -> None:
        text = f"{session.name} is lost ({why}); the files of its workers go to others"
        self._log(text, LogEvent.HOST_LOST, host=session.name)
        self._end(session, f"was on host {session.name}, which was lost", m.Closing("it was lost", {}, True))

    def _end(self, session: HostSession, how: str, last: m.Message) -> None:
        """End a session, with ``last`` as the last message."""
        if self.sessions.end(session.host) is None:
            return
        self._send(session.control, last)
        for peer in session.peers:
            self.hub.end_peer(peer)
        self._row_addresses.pop(session.host, None)
        self.row_servers.remove(session.host)
        self._events.append(HostGone(session.host, session.running, how))

    def watch(self, now: float) -> list[HostEvent]:
        """End the sessions of hosts that are lost, and show the others that the service is there. Return the events."""
        dropped = set(self.hub.take_dropped())
        for session in self.sessions:
            if dropped & session.peers:
                self.hub.note_refusal(session.control, "its key was removed", now)
                self.turn_away(session.host, HostRefused("the key of this host was removed; ask for another one"))
            elif now - session.sent_at > self._timing.host_beat:
                self._report(session, now)
        for session in self.sessions.silent(now, self._timing.host_timeout):
            self._lose(session, f"nothing heard for {self._timing.host_timeout:g} s")
        for session in self.sessions:
            if any(now > when for when in session.ends_at.values()):
                self._lose(
                    session, f"a worker that it was told to end had not ended after {self._timing.host_timeout:g} s"
                )
        events, self._events = self._events, []
        return events

    def draining(self) -> list[HostSession]:
        """Return the sessions of the hosts that drain."""
        return [host for host in self.sessions if host.link.state is LinkState.DRAINING]

    def stats(self, now: float) -> list[dict[str, Any]]:
        """Return statistics of the hosts as plain data."""
        return [
            session.stats(now) | {"rows_kept": self.row_servers.row_count(session.host)} for session in self.sessions
        ]

    def close(self, reason: str, error: Error | None, *, will_restart: bool) -> None:
        """Tell all hosts that the service ends."""
        for session in self.sessions:
            self._end(session, "", m.Closing(reason, {} if error is None else to_wire(error), will_restart))


def _claim(servers: RowServers, host: int, rows: int, frames: Sequence[npt.NDArray[np.uint8]]) -> HostRows:
    """Return the rows that stayed on ``host``, as ``frames`` name them. Raises RemoteProtocolError."""
    if len(frames) != 2 or any(frame.nbytes != 8 * rows for frame in frames):
        raise RemoteProtocolError("Chunk: one handle and one size is needed for each row that stayed on its host")
    handles, sizes = (frame.view(np.int64).copy() for frame in frames)
    if int(sizes.min()) < 0 or int(sizes.max()) > MAX_SIZE:
        raise RemoteProtocolError(f"Chunk: the size of a row that is not from 0 to {MAX_SIZE}")
    return servers.accept(host, handles, sizes)


def _checked_row_server(address: str) -> str:
    """Return ``address`` if it is a valid address of a row server. Raises RemoteProtocolError."""
    usable = len(address) <= _ADDRESS_LENGTH and address.startswith("tcp://") and address.isprintable()
    try:
        if not address or (usable and split_key(address)[1]):
            return address
    except OptionError:  # the key in it is not valid
        pass
    raise RemoteProtocolError("Join: the address of a row server must be one of TCP, with its key")


def _digest(header: bytes, frames: Sequence[Any]) -> str:
    found = hashlib.blake2b(header, digest_size=16)
    for frame in frames:
        found.update(len(frame).to_bytes(8, "little"))
        found.update(frame)
    return found.hexdigest()
