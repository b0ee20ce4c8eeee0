"""Decide which peers may talk to a hub over TCP: libzmq asks before it takes a single frame of a peer (ZAP, RFC 27).

A handler belongs to a context and is asked by all sockets of it, each by the name of its domain. It is a socket in the
hub's own loop: it needs no thread, and nothing waits for it. A peer shows a token (PLAIN) or a key (CURVE).
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence

import zmq

from pydp2.transport.keys import KeyPair, secure_server

_MAX_ANSWERS = 256  # answers in one turn of the hub's loop
_VERSION = b"1.0"
_USER = b"pydp2"
AccessRule = Callable[[Sequence[bytes], str], bytes | None]
"""Function from the credentials of a peer and its IP address to its user id; None: the peer may not come in."""
_DOMAIN = b"clients"


class ZapHandler:
    """Handler that answers for the sockets of ``context``. ``refused``: IP addresses of peers that were not let in,
    since that was last cleared. Raises zmq.ZMQError if the context has a handler already."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.refused: list[str] = []
        self._rules: dict[tuple[bytes, bytes], AccessRule] = {}
        self._socket = context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        try:
            self._socket.bind("inproc://zeromq.zap.01")
        except BaseException:
            self._socket.close()
            raise

    @property
    def handle(self) -> zmq.Socket[bytes]:
        """Socket that is readable when libzmq asks."""
        return self._socket

    def require_token(self, socket: zmq.Socket[bytes], token: str) -> None:
        """Let only peers that know ``token`` talk to ``socket``. To be called before it is bound."""
        socket.setsockopt(zmq.PLAIN_SERVER, 1)
        socket.setsockopt(zmq.ZAP_DOMAIN, _DOMAIN)

        def rule(credentials: Sequence[bytes], _: str) -> bytes | None:
            known = len(credentials) == 2 and hmac.compare_digest(credentials[1], token.encode())
            return b"client" if known else None

        self._rules[_DOMAIN, b"PLAIN"] = rule

    def require_key(self, socket: zmq.Socket[bytes], pair: KeyPair, is_allowed: Callable[[str, str], bool]) -> None:
        """Let only peers whose public key ``is_allowed``, given their IP address, talk to ``socket``, encrypted for
        ``pair``. Their user id is that key. To be called before it is bound."""
        secure_server(socket, pair)
        socket.setsockopt(zmq.ZAP_DOMAIN, _DOMAIN)

        def rule(credentials: Sequence[bytes], address: str) -> bytes | None:
            key = credentials[0].hex() if len(credentials) == 1 else ""
            return key.encode() if is_allowed(key, address) else None

        self._rules[_DOMAIN, b"CURVE"] = rule

    def answer_requests(self) -> None:
        """Answer the requests, some at a time; never block."""
        for _ in range(_MAX_ANSWERS):
            try:
                asker, empty, version, request, domain, peer, _, mechanism, *credentials = self._socket.recv_multipart(
                    zmq.NOBLOCK
                )
            except zmq.Again:
                return
            rule = self._rules.get((domain, mechanism)) if version == _VERSION else None
            address = peer.decode("ascii", "replace")
            user = None if rule is None else rule(credentials, address)
            if user is None:
                self.refused.append(address)
            answer = [b"400", b"not known here", b""] if user is None else [b"200", b"", user]
            self._socket.send_multipart([asker, empty, _VERSION, request, *answer, b""], zmq.NOBLOCK)

    def close(self) -> None:
        """Close; no request is answered any more."""
        self._socket.close()


def present_token(socket: zmq.Socket[bytes], token: str) -> None:
    """Have ``socket`` show ``token`` to the hub that it connects to."""
    socket.setsockopt(zmq.PLAIN_USERNAME, _USER)
    socket.setsockopt(zmq.PLAIN_PASSWORD, token.encode())
