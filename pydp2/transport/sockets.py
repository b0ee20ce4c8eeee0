"""Wrap ZeroMQ sockets: a hub (one server, many peers) and a line (one peer's end).

libzmq hides what matters here, so three things are added. Its queues count messages, not bytes: they are left
unbounded, credit bounds them. A peer's death is silent: a hub finds out by sending (:class:`PeerGone`), a line
by a monitor. On one machine there are no heartbeats: the kernel tells of every death, and a program that is
stopped (Ctrl-Z, a debugger) is not dead. Connecting over TCP succeeds even if no hub listens: the caller sets a
deadline on the first answer.

No peer talks to a hub unasked. On a Unix socket a peer is told first where to connect (:mod:`.admission`); over TCP
libzmq takes no frame before the peer has shown the token of the address or a key (:mod:`.zap`), because it queues what
it takes without a limit: parts of a message that is never finished count for no high-water mark. See
:meth:`Hub.accept`. A hub with keys looks once a second whether they still count: libzmq asks only at the beginning
of a connection, so the hub hears a peer whose key was removed no more, and ends its connection (:mod:`.keys`).

Large bodies go through shared memory (:mod:`.slabs`) where that is possible. Such a message is an empty frame, the
reference, and the header. A peer offers a slab for what it receives by an empty frame and the token, and one for what
it sends, once it has something large, with a byte behind the token. In the same way it asks for the descriptor that a
hub has for all (:mod:`.fd_broadcast`). A peer lends nothing of a slab before the hub has mapped it: until then, and
where the hub cannot map it, the bytes go through the socket.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import zmq

from pydp2.errors import OptionError, RemoteProtocolError, ServiceUnreachable
from pydp2.transport import service_address
from pydp2.transport.accept_filter import AcceptFilter
from pydp2.transport.address_space import capped_size
from pydp2.transport.admission import CONNECTING_SECONDS, Admission, request_admission
from pydp2.transport.fd_broadcast import FdOffer, FdRequest
from pydp2.transport.fd_passing import FdReceiver, SentFd, send_new_slab
from pydp2.transport.keys import Access, KeyPair, PeerKeys, secure_client, set_heartbeats
from pydp2.transport.refusals import UNKNOWN_KEY, Refusals
from pydp2.transport.service_address import (
    ipc_path,
    new_token,
    split_key,
    split_token,
    with_key,
    with_token,
    without_token,
)
from pydp2.transport.slabs import TOKEN_BYTES, SlabReader, SlabWriter, are_large, put_in_slab
from pydp2.transport.zap import ZapHandler, present_token

Frame = zmq.Frame
"""Type of the frames that :meth:`Line.receive_frames` gives."""
Frames = Sequence[Any]
"""Objects that offer their bytes; behind the first also ones that are made late (:class:`.slabs.DeferredFrames`)."""
_EVENT = struct.Struct("=Hi")  # first frame that a monitor gives; the second is the endpoint
_DISCONNECT_EVENTS = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | zmq.EVENT_CONNECT_RETRIED
_HANDSHAKE_MS = 5_000
_CONNECT_MS = 2_000  # the kernel asks again after 1 s, then 2, 4, 8: who begins anew is not far behind a mended network
ACK_TIMEOUT = 2.0
"""``ack_timeout`` of a peer that sends little: with its heartbeats it notices within 3 s that the path is cut."""
_BACKLOG = 1024  # connections that the kernel keeps until libzmq accepts them: after a restart all peers come at once
# Bytes of a slab for what a worker sends. Only as many are ever used as are under way at a time.
_SEND_SLAB_BYTES = 256 << 20
_RECEIVE_SLAB_BYTES = 256 << 20  # the same for what a trainer receives
_SLABS_PER_SHARE = 8  # of a share of few addresses: each of so many slabs has one
_MAX_SLAB_PEERS = 1024  # peers that have offered a slab, for either direction
_PEER_FILLS = b"+"  # behind the token of a slab: the peer fills it
_REFUSAL_EVENTS = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
RESERVED_DESCRIPTORS = 12
"""Number of descriptors that strangers to a hub leave to others."""
LACKS_DESCRIPTORS = "descriptors"
"""Kind of the notes that say that a peer has to wait for a descriptor."""
VOID_FRAME = b"pydp2: cut off.."
"""Last frame of a void message, whose sender was cut off in the middle of it."""
# Not -1: with that, libzmq drops what had arrived and was not read yet when the other side goes.
_RECONNECT_NEVER_MS = 3_600_000


class PeerGone(Exception):
    """The peer that a message was meant for is no longer connected."""


def _read_event(monitor: zmq.Socket[bytes]) -> tuple[int, int]:
    """Return the next event of a monitor, with its value. (zmq.utils.monitor would do, and imports asyncio.)"""
    event, value = _EVENT.unpack(monitor.recv_multipart()[0])
    return event, value


def _set_options(socket: zmq.Socket[bytes], address: str) -> None:
    # Without it libzmq takes [::1] for no address, with it no IPv4.
    socket.setsockopt(zmq.IPV6, service_address.uses_ipv6(address))
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
    socket.setsockopt(zmq.BACKLOG, _BACKLOG)


class Hub:
    """Server's end: bound to an address, talks to peers by their routing id.

    A peer that sends a frame above ``max_frame`` bytes loses its connection. ``max_waiting``: messages of one peer that
    may wait here to be received; with more, that peer has to wait (0: any number). ``reserve``: descriptors that peers
    leave to others. ``access``: the keys that a TCP address needs; without them it gets a token, if it has none.
    ``local``: an ipc address where peers of this machine and user come in too, with the same keys, and share memory.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: str,
        max_frame: int,
        max_waiting: int = 0,
        reserve: int = RESERVED_DESCRIPTORS,
        access: Access | None = None,
        local: str = "",
    ) -> None:
        self.refusals = Refusals()
        self._peer_keys = None if access is None else PeerKeys(access, self.refusals)
        self.on_refusal: Callable[[str, str], None] = lambda text, kind: None
        """Function that is called with text and kind, when the log is to say that peers were not let in."""
        self.before_admitting = partial(self.pause_accepting, CONNECTING_SECONDS)
        """Function that is called before a local peer is let in, which must find a descriptor."""
        self._admission: Admission | None = None
        self._zap: ZapHandler | None = None
        self._accept_filter: AcceptFilter | None = None
        self._socket = context.socket(zmq.ROUTER)
        try:
            _set_options(self._socket, address)
            self._socket.setsockopt(zmq.MAXMSGSIZE, max_frame)
            self._socket.setsockopt(zmq.RCVHWM, max_waiting)
            self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
            self.address = self._bind(context, address, reserve, local)
        except (zmq.ZMQError, OSError, OptionError) as exc:
            self._socket.close()
            self._close_listeners()
            raise ServiceUnreachable(
                f"cannot bind {without_token(address)}: {_error_text(exc)}; choose an address that is free, as "
                "tcp://HOST:* always is"
            ) from None
        self._max_frame = max_frame
        self._fd_receiver = FdReceiver(local or self.address)
        self._slab_writers: dict[bytes, SlabWriter] = {}
        self._slab_readers: dict[bytes, SlabReader] = {}
        self.fd_offer = FdOffer()
        """Offer of a descriptor to peers that can be given one."""

    def _bind(self, context: zmq.Context[zmq.Socket[bytes]], address: str, reserve: int, local: str) -> str:
        """Bind, and return the address that was really bound."""
        if (path := ipc_path(address)) is not None:
            self._bind_path(path, reserve)
            return address
        endpoint, token = split_token(address)
        token = token or new_token()
        self._zap = ZapHandler(context)
        if self._peer_keys is None:
            self._zap.require_token(self._socket, token)
        else:
            self._zap.require_key(self._socket, self._peer_keys.pair, self._peer_keys.is_allowed)
            if (path := ipc_path(local)) is not None:
                self._bind_path(path, reserve)
            set_heartbeats(self._socket)
        monitor = self._socket.get_monitor_socket(zmq.EVENT_LISTENING)
        try:
            self._socket.bind(endpoint)
            self._accept_filter = AcceptFilter(_read_event(monitor)[1])
        finally:
            self._socket.disable_monitor()
            monitor.close(linger=0)
        bound = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        return with_token(bound, token) if self._peer_keys is None else with_key(bound, self._peer_keys.pair.public)

    def _bind_path(self, path: str, reserve: int) -> None:
        self._admission = Admission(path, reserve, lambda: self.before_admitting())
        self._socket.setsockopt(zmq.USE_FD, self._admission.listen_inner())
        self._socket.bind(f"ipc://{self._admission.inner_path}")
        self._socket.setsockopt(zmq.USE_FD, -1)

    @property
    def listeners(self) -> list[Any]:
        """Handles to be registered for peers that are not connected yet: when one is readable, call :meth:`accept`."""
        asked = [] if self._admission is None else [self._admission.fileno()]
        return asked + ([] if self._zap is None else [self._zap.handle])

    def accept(self, now: float) -> None:
        """Let peers in, and see that descriptors are left; never block. To be called several times a second, and when
        one of :attr:`listeners` is readable."""
        if self._admission is not None:
            self._admission.answer_requests()
            for user in self._admission.foreign:
                self._refuse(f"user {user}", "of another user", now, f"ipc://{self._admission.path}")
            self._admission.foreign.clear()
        if self._zap is not None:
            self._zap.answer_requests()
            why = "without the token" if self._peer_keys is None else UNKNOWN_KEY
            for address in self._zap.refused:
                self._refuse(address, why, now, without_token(self.address))
            if self._accept_filter is not None:
                self._accept_filter.note_refused(len(self._zap.refused))
            self._zap.refused.clear()
        if self._peer_keys is not None:
            self._peer_keys.refresh_if_due(now)
        if self._accept_filter is not None:
            self._accept_filter.adjust_if_due(now)
        for each in (self._admission, self._accept_filter):
            if each is not None and each.refusal:
                self.on_refusal(each.refusal, LACKS_DESCRIPTORS)
                each.refusal = ""

    def _refuse(self, address: str, reason: str, now: float, at: str) -> None:
        """Count a peer that was not let in ``at`` an address, and have the log say it if that is due."""
        if count := self.refusals.add(address, reason, now):
            text = f"a process {reason} tried to connect to {at}"
            self.on_refusal(f"{text} (from {address}, {count} so far)", "refused")

    def note_refusal(self, peer: bytes, reason: str, now: float) -> None:
        """Count ``peer``, which was heard and is sent away for ``reason``."""
        if self._peer_keys is not None:
            self.refusals.add(self._peer_keys.address_of(peer), reason, now)

    def note_connected(self, process: int) -> None:
        """Note that an admitted peer, in ``process``, has said its first word: its descriptor is open now."""
        if self._admission is not None:
            self._admission.note_connected(process)

    def pause_accepting(self, seconds: float) -> None:
        """Let no peer in by TCP for ``seconds`` if descriptors are few: another peer needs one."""
        if self._accept_filter is not None:
            self._accept_filter.close_for(seconds)

    @property
    def handle(self) -> zmq.Socket[bytes]:
        """Socket that :class:`Poller` registers."""
        return self._socket

    def send(self, peer: bytes, frames: Frames) -> None:
        """Queue a message; never block. Raises PeerGone if ``peer`` is gone: then call :meth:`forget_peer`."""
        try:
            self._socket.send_multipart(
                [peer, *_message_frames(self._slab_writers.get(peer), frames)], zmq.NOBLOCK, copy=False
            )
        except zmq.ZMQError as exc:
            if exc.errno in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise PeerGone from None
            raise

    def receive(self) -> tuple[bytes, list[memoryview]] | None:
        """Return the next message, for :meth:`open_message`, behind its sender; None if there is none."""
        while True:
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return None
            peer, message = frames[0].bytes, [f.buffer for f in frames[1:]]
            if message and message[-1] == VOID_FRAME:
                continue
            if self._peer_keys is not None and not self._peer_keys.admits(peer, frames[-1]):
                continue
            if len(message) != 2 or len(message[0]):
                return peer, message
            self._receive_offer(peer, bytes(message[1]))

    def role_of(self, peer: bytes) -> str:
        """Return the role of ``peer``, which has sent something: that of its key, ``trainer`` where there are none."""
        return "trainer" if self._peer_keys is None else self._peer_keys.role_of(peer)

    def key_of(self, peer: bytes) -> str:
        """Return the public key of ``peer``, which has sent something; "" where there are none."""
        return "" if self._peer_keys is None else self._peer_keys.key_of(peer)

    def take_dropped(self) -> list[bytes]:
        """Return the peers whose key was removed since the last call. Their connections end in a moment."""
        return [] if self._peer_keys is None else self._peer_keys.take_dropped()

    def end_peer(self, peer: bytes) -> None:
        """Hear ``peer`` no more. If it has a key, end its connection once the last message to it had time to leave."""
        if self._peer_keys is not None:
            self._peer_keys.end(peer)
        self.forget_peer(peer)

    def open_message(self, peer: bytes, frames: list[memoryview]) -> list[memoryview]:
        """Return the header and the frames of a message that ``peer`` sent, wherever they lie.

        Raises RemoteProtocolError if they are not where it says.
        """
        if len(frames) < 2 or len(frames[0]):
            return frames
        if len(frames) != 3:
            raise RemoteProtocolError(f"a message of {len(frames)} frames, the first one empty")
        if peer not in self._slab_readers:
            raise RemoteProtocolError("a reference into a slab that was never taken")
        body = self._slab_readers[peer].frames(frames[1])
        if self._max_frame >= 0 and any(len(frame) > self._max_frame for frame in body):
            raise RemoteProtocolError(f"a frame above {self._max_frame} bytes")
        return [frames[2], *body]

    def _receive_offer(self, peer: bytes, token: bytes) -> None:
        """Take what ``peer`` offers: a slab for what it receives or sends, or a socket to send it a descriptor. If that
        cannot be used, for lack of addresses say, things go on without it."""
        descriptor = self._fd_receiver.claim(token[:TOKEN_BYTES])
        if descriptor is None:
            return
        if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            self.fd_offer.answer(peer, descriptor)
            return
        filled = token[TOKEN_BYTES:] == _PEER_FILLS
        if len(self._slab_readers if filled else self._slab_writers) >= _MAX_SLAB_PEERS or (
            filled and peer in self._slab_readers
        ):
            os.close(descriptor)
            return
        with contextlib.suppress(OSError, RemoteProtocolError):
            if filled:
                self._slab_readers[peer] = SlabReader(descriptor)
            else:
                self._slab_writers[peer] = SlabWriter(descriptor)

    def progress_of(self, peer: bytes) -> int:
        """Return the number that ``peer`` wrote last with :meth:`Line.write_progress`, until it is forgotten. 0: none,
        or there is no shared memory."""
        writer = self._slab_writers.get(peer)
        return 0 if writer is None else writer.progress

    def forget_peer(self, peer: bytes) -> None:
        """Release the memory that is shared with ``peer``, which is gone. What came from there stays
        as long as it is used."""
        self._slab_writers.pop(peer, None)
        self._slab_readers.pop(peer, None)
        if self._peer_keys is not None:
            self._peer_keys.forget(peer)
        self._fd_receiver.close_abandoned()
        self.fd_offer.forget_peer(peer)

    def close(self, linger_ms: int = 0) -> None:
        """Close; queued messages have ``linger_ms`` to leave."""
        self._socket.close(linger=linger_ms)
        self._close_listeners()
        self._fd_receiver.close()
        self.fd_offer.close()
        self._slab_writers.clear()
        self._slab_readers.clear()

    def _close_listeners(self) -> None:
        for each in (self._admission, self._zap, self._accept_filter):
            if each is not None:
                each.close()
        self._admission = self._zap = self._accept_filter = None


class Line:
    """Peer's end of a connection to a hub. ``share_send_slab``: what it sends may go through shared memory.

    A hub at an ipc address is asked for admission, until ``deadline`` (``time.monotonic``;
    None: as long as it is there). ``key_pair``: the keys of this peer, for a hub that has some. ``ack_timeout``: a TCP
    connection is lost if what was sent is not acknowledged within it, in seconds (0: the kernel decides). It is for
    peers that send little: the other kernel acknowledges nothing while the hub has no room for more.

    Raises:
        HubUnavailable: no hub listens, or it has no room. (Over TCP this is not known.)
        ServiceUnreachable: it is no address, or not the whole of one.
        AdmissionRefused: the hub does not want this peer. Over TCP ``read_refusal`` tells.

    An exception of a signal handler may come out of pyzmq behind a frame that was sent or received. So the next
    call of :meth:`send` makes void what was cut off before it, and ``is_interrupted`` tells that
    :meth:`receive_frames` may have lost something.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: str,
        watch: bool = False,
        share_send_slab: bool = False,
        deadline: float | None = None,
        key_pair: KeyPair | None = None,
        ack_timeout: float = 0.0,
    ) -> None:
        self._address = address
        self._key_pair = key_pair
        self._may_share_slab = self._copy_frames = share_send_slab
        self._slab_writer: SlabWriter | None = None
        self._sent_slabs: list[SentFd] = []
        self._slab_reader: SlabReader | None = None
        self.fd_request: FdRequest | None = None
        """Request for the descriptor that the hub has for all, once it was asked for."""
        self._monitor: zmq.Socket[bytes] | None = None
        self._is_lost = False
        self._send_interrupted = False  # a message is being sent, or was cut off and maybe only half sent
        self.is_interrupted = False
        """True if a call of :meth:`receive_frames` was cut off: :meth:`drop_partial_message` comes before the next."""
        self._socket = context.socket(zmq.DEALER)
        try:
            _set_options(self._socket, address)
            self._socket.setsockopt(zmq.TCP_MAXRT, int(ack_timeout * 1000))
            self._socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_NEVER_MS)
            if watch:
                self._monitor = self._socket.get_monitor_socket(_DISCONNECT_EVENTS | _REFUSAL_EVENTS)
            self._connect(address, deadline)
        except BaseException as exc:
            self.close()
            if isinstance(exc, zmq.ZMQError | OSError | OptionError) and not isinstance(exc, ServiceUnreachable):
                raise ServiceUnreachable(
                    f"{without_token(address)} is not an address that can be connected to: {_error_text(exc)}"
                ) from None
            raise

    def _connect(self, address: str, deadline: float | None) -> None:
        endpoint, server_key = split_key(address)
        if server_key:
            if self._key_pair is None:
                raise ServiceUnreachable(
                    f"{endpoint} needs a key of yours: connect with the connection file that its service wrote, or "
                    "with key=… and a folder that `pydp2 keys new` made"
                )
            secure_client(self._socket, self._key_pair, server_key)
        if (path := ipc_path(address)) is not None:
            self._socket.connect(f"ipc://{request_admission(path, deadline) if path else path}")
            return
        if server_key:
            set_heartbeats(self._socket)
            self._socket.setsockopt(zmq.CONNECT_TIMEOUT, _CONNECT_MS)
            self._socket.connect(endpoint)
            return
        endpoint, token = split_token(address, of_service=True)
        if token:
            present_token(self._socket, token)
        self._socket.connect(endpoint)
        if not token:
            raise ServiceUnreachable(
                f"{endpoint} lacks the token of its service: use the whole address that the service prints, "
                f"{endpoint}?token=…"
            )

    def send(self, frames: Frames) -> None:
        """Queue a message; never block. It is dropped if no hub is connected any more: ``is_lost`` tells."""
        message = _message_frames(self._slab_writer, frames)
        if self._may_share_slab and are_large(message):
            self._may_share_slab = False
            with contextlib.suppress(OSError, RuntimeError, zmq.ZMQError):  # without a slab frames are copied
                prepare_zero_copy()
                self._copy_frames = False
            self._share_send_slab()
        self._send(message)

    def _send(self, frames: Sequence[Any]) -> None:
        try:
            with contextlib.suppress(zmq.Again):  # no hub is connected
                if self._send_interrupted:
                    self._socket.send(VOID_FRAME, zmq.NOBLOCK)
                self._send_interrupted = len(frames) > 1
                self._socket.send_multipart(frames, zmq.NOBLOCK, copy=self._copy_frames)
        except zmq.ZMQError as error:
            if error.errno == errno.ENOMEM:  # like anything else that takes memory
                raise MemoryError("none for a message") from None
            raise
        self._send_interrupted = False

    def _share_send_slab(self) -> None:
        """Offer a slab for what is sent from now on, if possible."""
        if (offered := send_new_slab(self._address, capped_size(_SEND_SLAB_BYTES, _SLABS_PER_SHARE))) is not None:
            descriptor, handed = offered
            self._sent_slabs.append(handed)
            with contextlib.suppress(OSError, zmq.Again):
                self._slab_writer = SlabWriter(descriptor)
                self._socket.send_multipart([b"", handed.token + _PEER_FILLS], zmq.NOBLOCK)

    def share_receive_slab(self) -> None:
        """Offer a slab for what is received, if possible. To be called once the hub has answered."""
        if (offered := send_new_slab(self._address, capped_size(_RECEIVE_SLAB_BYTES, _SLABS_PER_SHARE))) is not None:
            descriptor, handed = offered
            self._sent_slabs.append(handed)
            with contextlib.suppress(OSError, zmq.Again):
                self._slab_reader = SlabReader(descriptor)
                self._send([b"", handed.token])

    def write_progress(self, number: int) -> bool:
        """Write ``number``, below 2**64, where the hub can read it at any time, also when this process has died. Return
        False if the hub cannot read it: there is no shared memory, or not yet."""
        return self._slab_reader is not None and self._slab_reader.write_progress(number)

    def request_fd(self) -> None:
        """Ask for the descriptor that the hub has for all, if possible. To be called once the hub has answered."""
        self.fd_request = FdRequest(self._address)
        if self.fd_request.token is not None:
            self._send([b"", self.fd_request.token])

    def receive(self, timeout_ms: int = 0) -> list[memoryview] | None:
        """Return the next message within ``timeout_ms`` (-1: forever), or None. Raises RemoteProtocolError if its
        frames are not where it says."""
        if timeout_ms and not self._socket.poll(timeout_ms):
            return None
        try:
            return self.open_message(self._socket.recv_multipart(zmq.NOBLOCK, copy=False))
        except zmq.Again:
            return None

    def receive_frames(self, into: list[Any]) -> None:
        """Append to ``into`` the frames of all messages that are there, for :meth:`message_length`
        and :meth:`open_message`."""
        self.is_interrupted = True
        with contextlib.suppress(zmq.Again):  # no step of Python between two frames: none of them is lost there
            into.extend(iter(partial(self._socket.recv, zmq.NOBLOCK, False), None))
        self.is_interrupted = False

    def drop_partial_message(self, into: list[Any]) -> None:
        """Remove an incomplete message from the end of ``into``, and discard its rest, after
        :meth:`receive_frames` was cut off."""
        while self._socket.getsockopt(zmq.RCVMORE):  # of the last frame that came, also if that was lost
            self._socket.recv(zmq.NOBLOCK)
        while into and isinstance(into[-1], Frame) and into[-1].more:
            del into[-1]
        self.is_interrupted = False

    @staticmethod
    def message_length(frames: Sequence[Any], at: int) -> int:
        """Return how many of ``frames`` make the message that begins at ``at``; 0: not all of it is there."""
        return next((end + 1 - at for end in range(at, len(frames)) if not frames[end].more), 0)

    @staticmethod
    def is_in_slab(frames: Sequence[Any]) -> bool:
        """Return True if a message of ``frames`` has its body in shared memory: :meth:`open_message`
        can be called once then."""
        return len(frames) > 1 and not len(frames[0].buffer)

    def open_message(self, frames: Sequence[Any]) -> list[memoryview]:
        """Return the content of the ``frames`` of a message, wherever it lies. Raises RemoteProtocolError if it is not
        where the message says."""
        message = [frame.buffer for frame in frames]
        if not self.is_in_slab(frames):
            return message
        if len(message) != 3 or self._slab_reader is None:
            raise RemoteProtocolError(f"a message of {len(message)} frames, the first one empty")
        return [message[2], *self._slab_reader.frames(message[1])]

    @property
    def handle(self) -> zmq.Socket[bytes]:
        """Socket that :class:`Poller` registers."""
        return self._socket

    @property
    def is_lost(self) -> bool:
        """True if there is no connection any more, or no hub to connect to. Only of a watched line."""
        # The monitor's events, endings and why they came, need not be read here, which would take two steps.
        if self._monitor is not None and not self._is_lost and self._monitor.poll(0):
            self._is_lost = True
        return self._is_lost

    @property
    def read_refusal(self) -> bool:
        """True if the hub did not admit the token of this address. Of a watched line that is
        ``is_lost``; reads why, once."""
        found = False
        while self._monitor is not None and self._monitor.poll(0):
            event, _ = _read_event(self._monitor)  # each is read, also behind the one that tells
            found = found or bool(event & _REFUSAL_EVENTS)
        return found

    def wait(self, timeout_ms: int, wake_descriptor: int | None = None) -> bool:
        """Wait until there is a message, the connection is lost, or the descriptor ``wake_descriptor`` is readable.
        Return False if none of that happened in time."""
        poller = zmq.Poller()
        if wake_descriptor is not None:
            poller.register(wake_descriptor, zmq.POLLIN)
        poller.register(self._socket, zmq.POLLIN)
        if self._monitor is not None and not self._is_lost:
            poller.register(self._monitor, zmq.POLLIN)
        return bool(poller.poll(timeout_ms))

    def close(self, linger_ms: int = 0) -> None:
        """Close; queued messages have ``linger_ms`` to leave."""
        if self._monitor is not None:
            self._socket.disable_monitor()
            self._monitor.close(linger=0)
            self._monitor = None
        self._socket.close(linger=linger_ms)
        self._slab_writer = self._slab_reader = None
        for handed in self._sent_slabs:
            handed.connection.close()
        self._sent_slabs.clear()
        if self.fd_request is not None:
            self.fd_request.close()


def _error_text(error: BaseException) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def new_context(io_threads: int = 1) -> zmq.Context[zmq.Socket[bytes]]:
    """Return a ZeroMQ context of one's own, never shared and never inherited by a fork."""
    return zmq.Context(io_threads)


def prepare_zero_copy() -> None:
    """Have pyzmq open now what it needs to send without a copy. Otherwise it does so at the first such send, when there
    may be no descriptor left for it."""
    zmq.Frame(b"", copy=False, copy_threshold=0)


def _message_frames(filler: SlabWriter | None, frames: Frames) -> list[Any]:
    """Return the message ``frames`` as it is sent: its body in shared memory, if possible."""
    head, *body = frames
    reference, body = put_in_slab(filler, body)
    return [head, *body] if reference is None else [b"", reference, head]
