"""Encrypt connections over TCP and know who is at the other end, with the keys of CURVE (docs/security.md).

Each end has a pair of keys. A peer knows the public key of the service beforehand, and the service knows those of its
peers. What goes over such a connection is encrypted and authenticated, frame by frame, by libzmq.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import zmq
from zmq.utils import z85

from pydp2.errors import OptionError
from pydp2.transport.descriptors import peer_credentials
from pydp2.transport.refusals import UNKNOWN_KEY, Refusals
from pydp2.transport.service_address import split_key, with_key

KEY_DIGITS = 64
"""Number of hexadecimal digits of a key."""
_MIN_LIBZMQ = (4, 3, 3)  # older ones have known holes in their handshake
_REFRESH_SECONDS = 1.0  # between two looks at which keys are allowed
_HEARTBEAT_MS = 1_000
_HEARTBEAT_TIMEOUT_MS = 10_000  # after which a path that carries nothing counts as cut
_LAST_WORDS_SECONDS = 0.5  # for the last message to a peer to leave, before its connection is ended


@dataclass(frozen=True, slots=True)
class KeyPair:
    """Pair of keys, each of 64 hexadecimal digits. Only its owner has the secret one, which no text of a pair shows."""

    public: str
    secret: str = field(repr=False)


class Access(Protocol):
    """Keys of a hub: its own, and those of the peers that may come in."""

    pair: KeyPair

    def role_of(self, key: str) -> str | None:
        """Return the role of the peer with the public ``key``; None: it may not come in."""
        ...

    def refresh(self) -> None:
        """Look again which keys are allowed."""
        ...


class _Peer(NamedTuple):
    """Peer that was heard. ``role``: what its key admitted it to when it was heard first; ``descriptor``: that of its
    connection, which is libzmq's; ``ends``: the addresses of both ends of it, None where they are not known.

    Over a Unix socket libzmq does not tell the address and the descriptor where the C library gives no name for it, as
    musl does not: they are "" and -1."""

    key: str
    role: str | None
    address: str
    descriptor: int
    ends: tuple[Any, Any] | None

    def is_connected(self, *, end: bool = False) -> bool:
        """Return True if its connection is there. ``end``: end it, so that libzmq finds it closed, as if the peer had
        done that; libzmq cannot end a single one by itself."""
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self.descriptor)) as connection:
            if self.ends is not None and _ends_of(connection) == self.ends:  # else the descriptor is another's now
                if end:
                    connection.shutdown(socket.SHUT_RDWR)
                return True
        return False


def _ends_of(connection: socket.socket) -> tuple[Any, Any]:
    """Return an identity of ``connection``: both addresses, or on this machine the process at the other end."""
    if connection.family == socket.AF_UNIX:
        return connection.getsockname(), peer_credentials(connection)
    return connection.getsockname(), connection.getpeername()


def _peer_of(frame: zmq.Frame, access: Access) -> _Peer:
    """Return the peer that sent ``frame``: what libzmq was answered when it asked for it, and its connection."""
    key, address, descriptor, ends = str(frame.get("User-Id")), "", -1, None
    with contextlib.suppress(zmq.ZMQError):
        address, descriptor = str(frame.get("Peer-Address")), int(frame.get(zmq.SRCFD))
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
        ends = _ends_of(connection)
    return _Peer(key, access.role_of(key), address, descriptor, ends)


class PeerKeys:
    """Keys of the peers of a hub that has the keys ``access``; ``refusals`` are of that hub. libzmq asks for each peer
    once, when it connects; a key may be removed later, or get another role, which counts as removed: what a peer was
    given in its old role it must not keep."""

    def __init__(self, access: Access, refusals: Refusals) -> None:
        self._refusals = refusals
        self.pair = access.pair
        self._access = access
        self._refreshed_at = 0.0
        self._peers: dict[bytes, _Peer] = {}
        self._forgotten: dict[bytes, _Peer] = {}  # peers that the hub has forgotten; some are still connected
        self._ending: dict[bytes, tuple[float, _Peer]] = {}  # peers that are not heard any more, and when they are cut
        self._dropped: list[bytes] = []

    def is_allowed(self, key: str, address: str) -> bool:
        """Return True if a peer at the IP ``address`` may come in with the public ``key``. To see whether it is a new
        key, files are read; that is not done for an address that is refused time and again."""
        now = time.monotonic()
        if self._access.role_of(key) is None and not self._refusals.is_frequent(address, UNKNOWN_KEY, now):
            self._refresh(now)
        return self._access.role_of(key) is not None

    def admits(self, peer: bytes, frame: zmq.Frame) -> bool:
        """Return True if ``peer``, which sent ``frame``, may still be heard."""
        if peer in self._ending:
            return False
        known = self._peers.get(peer)
        if known is None:
            self._forgotten.pop(peer, None)
            known = self._peers[peer] = _peer_of(frame, self._access)
        if not self._keeps_role(known):
            # It speaks before the next look at which keys are allowed.
            if known.descriptor < 0 or known.is_connected():
                self._dropped.append(peer)
                self.end(peer)
            else:  # what came before its connection was ended
                del self._peers[peer]
            return False
        return True

    def role_of(self, peer: bytes) -> str:
        """Return the role of ``peer``, which was heard; ``""`` once its key was removed."""
        known = self._peers.get(peer)
        return "" if known is None or not self._keeps_role(known) else known.role or ""

    def _keeps_role(self, known: _Peer) -> bool:
        """Return True if the key of a peer admits it to what it did when it was heard first."""
        return known.role is not None and self._access.role_of(known.key) == known.role

    def key_of(self, peer: bytes) -> str:
        """Return the public key of ``peer``, which was heard; ``""`` once it is forgotten."""
        known = self._peers.get(peer)
        return "" if known is None else known.key

    def address_of(self, peer: bytes) -> str:
        """Return the IP address of ``peer``, which was heard; ``""`` once it is forgotten."""
        known = self._peers.get(peer)
        return "" if known is None else known.address

    def refresh_if_due(self, now: float) -> None:
        """Look again which keys are allowed, once a second, and end the connections that are to end."""
        if now - self._refreshed_at > _REFRESH_SECONDS:
            self._refresh(now)
        for peer, (when, known) in [*self._ending.items()]:
            if now >= when:
                del self._ending[peer]
                known.is_connected(end=True)

    def _refresh(self, now: float) -> None:
        self._refreshed_at = now
        self._access.refresh()
        removed = [peer for peer, known in self._peers.items() if not self._keeps_role(known)]
        for peer in removed:
            if peer not in self._ending:
                self._dropped.append(peer)
                self.end(peer)
        for peer, known in [*self._forgotten.items()]:
            if not known.is_connected(end=not self._keeps_role(known)):
                del self._forgotten[peer]

    def take_dropped(self) -> list[bytes]:
        """Return the peers whose key was removed since the last call. Their connections end."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def end(self, peer: bytes) -> None:
        """Hear ``peer`` no more, and end its connection once the last message to it had time to leave."""
        if peer in self._peers and peer not in self._ending:
            self._ending[peer] = time.monotonic() + _LAST_WORDS_SECONDS, self._peers[peer]

    def forget(self, peer: bytes) -> None:
        """Forget ``peer``, which is gone or has nothing to do here now. One that speaks again is known again."""
        if (known := self._peers.pop(peer, None)) is not None and peer not in self._ending:
            self._forgotten[peer] = known


def advertised_address(address: str, host: str | None) -> str:
    """Return ``address`` as other hosts can use it: with ``host``, or the name of this host where it is bound to all
    interfaces."""
    endpoint, key = split_key(address)
    if not key:
        return address
    bound, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    if host is None:
        host = socket.gethostname() if bound in ("0.0.0.0", "[::]") else bound
    elif ":" in host and not host.startswith("["):
        host = f"[{host}]"
    return with_key(f"tcp://{host}:{port}", key)


def require_curve() -> None:
    """Raise OptionError where libzmq cannot encrypt, or not safely."""
    version = zmq.zmq_version_info()
    if not zmq.has("curve") or version < _MIN_LIBZMQ:
        needed = ".".join(map(str, _MIN_LIBZMQ))
        raise OptionError(
            f"keys need libzmq {needed} or later with CURVE, this is {zmq.zmq_version()}"
            f"{'' if zmq.has('curve') else ' without it'}; install pyzmq from its wheel: pip install --upgrade pyzmq"
        )


def new_key_pair() -> KeyPair:
    """Return a fresh pair of keys. Raises OptionError where there is no CURVE."""
    require_curve()
    public, secret = zmq.curve_keypair()
    return KeyPair(z85.decode(public).hex(), z85.decode(secret).hex())


def public_key(secret: str) -> str:
    """Return the public key that belongs to ``secret``."""
    require_curve()
    return z85.decode(zmq.curve_public(z85.encode(bytes.fromhex(secret)))).hex()


def secure_server(socket: zmq.Socket[bytes], pair: KeyPair) -> None:
    """Have ``socket`` accept only connections that are encrypted for ``pair``. To be called before it is bound."""
    require_curve()
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    socket.setsockopt(zmq.CURVE_SECRETKEY, bytes.fromhex(pair.secret))


def secure_client(socket: zmq.Socket[bytes], pair: KeyPair, server_key: str) -> None:
    """Have ``socket`` connect as ``pair`` to the service with the public key ``server_key``, and to no other."""
    require_curve()
    socket.setsockopt(zmq.CURVE_SERVERKEY, bytes.fromhex(server_key))
    socket.setsockopt(zmq.CURVE_PUBLICKEY, bytes.fromhex(pair.public))
    socket.setsockopt(zmq.CURVE_SECRETKEY, bytes.fromhex(pair.secret))


def set_heartbeats(socket: zmq.Socket[bytes]) -> None:
    """Have ``socket`` notice within seconds that the path to the other end is cut: the kernel tells nobody. This holds
    for what it binds or connects to afterwards."""
    socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, _HEARTBEAT_TIMEOUT_MS)
