"""Give the server its end of all connections: a hub, bound to an address, that talks to many peers.

No peer talks to a hub unasked. On a Unix socket a peer is told first where to connect (:mod:`.admission`); over TCP
libzmq takes no frame before the peer has shown the token of the address or a key (:mod:`.zap`), because it queues what
it takes without a limit: parts of a message that is never finished count for no high-water mark. See
:meth:`Hub.accept`. A hub with keys looks once a second whether they still count: libzmq asks only at the beginning
of a connection, so the hub hears a peer whose key was removed no more, and ends its connection (:mod:`.keys`).

Large bodies go through shared memory (:mod:`.slabs`) where that is possible. Such a message is an empty frame, the
reference, and the header. A peer offers a slab for what it receives by an empty frame and the token, and one for what
it sends, once it has something large, with a byte behind the token. In the same way it asks for the descriptor that a
hub has for all (:mod:`.fd_broadcast`).
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from functools import partial
from typing import Any

import zmq

from pydp2.errors import OptionError, RemoteProtocolError, ServiceUnreachable
from pydp2.transport.accept_filter import AcceptFilter
from pydp2.transport.admission import CONNECTING_SECONDS, Admission
from pydp2.transport.fd_broadcast import FdOffer
from pydp2.transport.fd_passing import FdReceiver
from pydp2.transport.keys import Access, PeerKeys, set_heartbeats
from pydp2.transport.refusals import UNKNOWN_KEY, Refusals
from pydp2.transport.service_address import ipc_path, new_token, split_token, with_key, with_token, without_token
from pydp2.transport.slabs import TOKEN_BYTES, SlabReader, SlabWriter, message_frames
from pydp2.transport.sockets import PEER_FILLS, VOID_FRAME, Frames, PeerGone, error_text, read_event, set_options
from pydp2.transport.zap import ZapHandler

RESERVED_DESCRIPTORS = 12
"""Number of descriptors that strangers to a hub leave to others."""
LACKS_DESCRIPTORS = "descriptors"
"""Kind of the notes that say that a peer has to wait for a descriptor."""
_MAX_SLAB_PEERS = 1024  # peers that have offered a slab, for either direction


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
            set_options(self._socket, address)
            self._socket.setsockopt(zmq.MAXMSGSIZE, max_frame)
            self._socket.setsockopt(zmq.RCVHWM, max_waiting)
            self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
            self.address = self._bind(context, address, reserve, local)
        except (zmq.ZMQError, OSError, OptionError) as exc:
            self._socket.close()
            self._close_listeners()
            raise ServiceUnreachable(
                f"cannot bind {without_token(address)}: {error_text(exc)}; choose an address that is free, as "
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
            self._accept_filter = AcceptFilter(read_event(monitor)[1])
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
                [peer, *message_frames(self._slab_writers.get(peer), frames)], zmq.NOBLOCK, copy=False
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
        filled = token[TOKEN_BYTES:] == PEER_FILLS
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
