"""Give a peer its end of the connection to a hub: a line.

A line that is watched notices by a monitor that the connection ended. A peer lends nothing of a slab before the hub has
mapped it: until then, and where the hub cannot map it, the bytes go through the socket (:mod:`.slabs`).
"""

from __future__ import annotations

import contextlib
import errno
import select
from collections.abc import Sequence
from functools import partial
from typing import Any

import zmq

from pydp2.errors import OptionError, RemoteProtocolError, ServiceUnreachable
from pydp2.transport.address_space import capped_size
from pydp2.transport.admission import request_admission
from pydp2.transport.fd_broadcast import FdRequest
from pydp2.transport.fd_passing import SentFd, send_new_slab
from pydp2.transport.keys import KeyPair, secure_client, set_heartbeats
from pydp2.transport.service_address import ipc_path, split_key, split_token, without_token
from pydp2.transport.slabs import SlabReader, SlabWriter, are_large, message_frames
from pydp2.transport.sockets import (
    PEER_FILLS,
    REFUSAL_EVENTS,
    SLABS_PER_SHARE,
    VOID_FRAME,
    Frames,
    error_text,
    read_event,
    set_options,
)
from pydp2.transport.zap import present_token

Frame = zmq.Frame
"""Type of the frames that :meth:`Line.receive_frames` gives."""
ACK_TIMEOUT = 2.0
"""``ack_timeout`` of a peer that sends little: with its heartbeats it notices within 3 s that the path is cut."""
_DISCONNECT_EVENTS = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | zmq.EVENT_CONNECT_RETRIED
_CONNECT_MS = 2_000  # the kernel asks again after 1 s, then 2, 4, 8: who begins anew is not far behind a mended network
# Not -1: with that, libzmq drops what had arrived and was not read yet when the other side goes.
_RECONNECT_NEVER_MS = 3_600_000
# Bytes of a slab for what a worker sends. Only as many are ever used as are under way at a time.
_SEND_SLAB_BYTES = 256 << 20
_RECEIVE_SLAB_BYTES = 256 << 20  # the same for what a trainer receives


class Line:
    """Peer's end of a connection to a hub. ``share_send_slab``: what it sends may go through shared memory, and is
    copied in any case: the frames may change after the call.

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
        self._may_share_slab = share_send_slab
        self._copies_frames = share_send_slab  # their memory is used again after the call
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
        # After a call of receive_frames nothing comes before the descriptor of the socket is readable. Any other use of
        # the socket may take that signal away.
        self._is_drained = False
        self._socket = context.socket(zmq.DEALER)
        try:
            set_options(self._socket, address)
            self._socket.setsockopt(zmq.TCP_MAXRT, int(ack_timeout * 1000))
            self._socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_NEVER_MS)
            self._commands = select.poll()
            self._commands.register(self._socket, select.POLLIN)
            if watch:
                self._monitor = self._socket.get_monitor_socket(_DISCONNECT_EVENTS | REFUSAL_EVENTS)
            self._connect(address, deadline)
        except BaseException as exc:
            self.close()
            if isinstance(exc, zmq.ZMQError | OSError | OptionError) and not isinstance(exc, ServiceUnreachable):
                raise ServiceUnreachable(
                    f"{without_token(address)} is not an address that can be connected to: {error_text(exc)}"
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
        message = message_frames(self._slab_writer, frames)
        if self._may_share_slab and are_large(message):
            self._may_share_slab = False
            self._share_send_slab()
        self._send(message)

    def _send(self, frames: Sequence[Any]) -> None:
        self._is_drained = False
        try:
            with contextlib.suppress(zmq.Again):  # no hub is connected
                if self._send_interrupted:
                    self._socket.send(VOID_FRAME, zmq.NOBLOCK)
                self._send_interrupted = len(frames) > 1
                self._socket.send_multipart(frames, zmq.NOBLOCK, copy=self._copies_frames)
        except zmq.ZMQError as error:
            if error.errno == errno.ENOMEM:  # like anything else that takes memory
                raise MemoryError("none for a message") from None
            raise
        self._send_interrupted = False

    def _share_send_slab(self) -> None:
        """Offer a slab for what is sent from now on, if possible."""
        if (offered := send_new_slab(self._address, capped_size(_SEND_SLAB_BYTES, SLABS_PER_SHARE))) is not None:
            descriptor, handed = offered
            self._sent_slabs.append(handed)
            self._is_drained = False
            with contextlib.suppress(OSError, zmq.Again):
                self._slab_writer = SlabWriter(descriptor)
                self._socket.send_multipart([b"", handed.token + PEER_FILLS], zmq.NOBLOCK)

    def share_receive_slab(self) -> None:
        """Offer a slab for what is received, if possible. To be called once the hub has answered."""
        if (offered := send_new_slab(self._address, capped_size(_RECEIVE_SLAB_BYTES, SLABS_PER_SHARE))) is not None:
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
        self._is_drained = False
        if timeout_ms and not self._socket.poll(timeout_ms):
            return None
        try:
            return self.open_message(self._socket.recv_multipart(zmq.NOBLOCK, copy=False))
        except zmq.Again:
            return None

    def receive_frames(self, into: list[Any]) -> None:
        """Append to ``into`` the frames of all messages that are there, for :meth:`message_length`
        and :meth:`open_message`."""
        if self._is_drained and not self._commands.poll(0):
            return  # to look into the socket takes five times as long
        self.is_interrupted, self._is_drained = True, False
        with contextlib.suppress(zmq.Again):  # no step of Python between two frames: none of them is lost there
            into.extend(iter(partial(self._socket.recv, zmq.NOBLOCK, False), None))
        self._is_drained, self.is_interrupted = True, False

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
        for end in range(at, len(frames)):
            if not frames[end].more:
                return end + 1 - at
        return 0

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
        self._is_drained = False
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
            event, _ = read_event(self._monitor)  # each is read, also behind the one that tells
            found = found or bool(event & REFUSAL_EVENTS)
        return found

    def wait(self, timeout_ms: int, wake_descriptor: int | None = None) -> bool:
        """Wait until there is a message, the connection is lost, or the descriptor ``wake_descriptor`` is readable.
        Return False if none of that happened in time."""
        self._is_drained = False
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
