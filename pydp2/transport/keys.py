"""Encrypt connections over TCP and know who is at the other end, with the keys of CURVE (docs/security.md).

Each end has a pair of keys. A peer knows the public key of the service beforehand, and the service knows those of its
peers. What goes over such a connection is encrypted and authenticated, frame by frame, by libzmq.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Protocol

import zmq
from zmq.utils import z85

from pydp2.errors import OptionError

KEY_DIGITS = 64
"""Number of hexadecimal digits of a key."""
_MIN_LIBZMQ = (4, 3, 3)  # older ones have known holes in their handshake
_REFRESH_SECONDS = 2.0  # between two looks at which keys are allowed
_HEARTBEAT_MS = 2_000
_HEARTBEAT_TIMEOUT_MS = 10_000  # after which a path that carries nothing counts as cut


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


class PeerKeys:
    """Keys of the peers of a hub that has the keys ``access``. libzmq asks for each peer once, when it connects; a key
    may be removed later."""

    def __init__(self, access: Access) -> None:
        self.pair = access.pair
        self._access = access
        self._refreshed_at = 0.0
        self._key_of: dict[bytes, str] = {}
        self._dropped: set[bytes] = set()  # peers whose key was removed while they were connected
        self._dropped_now: list[bytes] = []  # of them, those that :meth:`take_dropped` has not given yet

    def is_allowed(self, key: str) -> bool:
        """Return True if a peer with the public ``key`` may come in. It may have been allowed a moment ago."""
        if self._access.role_of(key) is None:
            self._refresh(time.monotonic())
        return self._access.role_of(key) is not None

    def admits(self, peer: bytes, frame: zmq.Frame) -> bool:
        """Return True if ``peer``, which sent ``frame``, may still be heard."""
        if peer in self._dropped:
            return False
        if peer not in self._key_of:
            self._key_of[peer] = str(frame.get("User-Id"))  # what libzmq was answered when it asked for this peer
        return True

    def role_of(self, peer: bytes) -> str:
        """Return the role of ``peer``, which was heard; ``""`` once its key was removed."""
        return self._access.role_of(self._key_of.get(peer, "")) or ""

    def refresh_if_due(self, now: float) -> None:
        """Look again which keys are allowed, every other second."""
        if now - self._refreshed_at > _REFRESH_SECONDS:
            self._refresh(now)

    def _refresh(self, now: float) -> None:
        self._refreshed_at = now
        self._access.refresh()
        gone = [peer for peer, key in self._key_of.items() if self._access.role_of(key) is None]
        self._dropped_now += [peer for peer in gone if peer not in self._dropped]
        self._dropped.update(gone)

    def take_dropped(self) -> list[bytes]:
        """Return the peers whose key was removed since the last call."""
        dropped, self._dropped_now = self._dropped_now, []
        return dropped

    def forget(self, peer: bytes) -> None:
        """Forget ``peer``, which is gone. One whose key was removed stays unheard."""
        self._key_of.pop(peer, None)


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
