"""Parse addresses of services: ``ipc://PATH``, ``tcp://HOST:PORT?token=HEX`` or ``tcp://HOST:PORT?key=HEX``.

The token is a secret that admits its holder. The key is the public one of the service: it is no secret, and a peer
needs keys of its own. A service with keys has an address for its own machine and user too, ``ipc://PATH?key=HEX``.
Nothing here opens a socket. Messages and logs show an address without its token or key.
"""

from __future__ import annotations

import re
import socket

from pydp2.errors import OptionError

INNER_SUFFIX = ".in"
"""Suffix of libzmq's own socket, which stands beside the public one of a service; other suffixes are as long."""
MAX_PATH_BYTES = 107 - len(INNER_SUFFIX)
"""Number of bytes of a path: an address of a Unix socket holds 108, the last one a NUL."""
_TOKEN = re.compile(r"[0-9a-fA-F]{32,128}")
_KEY = re.compile(r"[0-9a-fA-F]{64}")
_PATH_AND_KEY = re.compile(r"(ipc://.*)\?key=([0-9a-f]{64})", re.DOTALL)  # anything else is a path that looks odd


def ipc_path(address: str) -> str | None:
    """Return the path of an ``ipc://`` address, None for any other."""
    path = split_key(address)[0].removeprefix("ipc://") if address.startswith("ipc://") else address
    return None if path == address else path


def uses_ipv6(address: str) -> bool:
    """Return True if the host of an address is an IPv6 address, or a name that has no other. Names are looked up."""
    host = address.partition("?")[0].removeprefix("tcp://").rpartition(":")[0]
    if not address.startswith("tcp://") or host in ("", "*", "localhost") or host[0] == "[":
        return host.startswith("[")
    return not _is_known(host, socket.AF_INET) and _is_known(host, socket.AF_INET6)


def _is_known(host: str, family: socket.AddressFamily) -> bool:
    """Return True if ``host`` has an address of ``family``."""
    try:
        return bool(socket.getaddrinfo(host, None, family))
    except (socket.gaierror, UnicodeError):  # nobody knows it now, or it is no name
        return False


def split_token(address: str, *, of_service: bool = False) -> tuple[str, str]:
    """Return where to connect or bind, and the token of a ``tcp://`` address, '' if it names none.

    ``of_service``: a service has the token already, so a new one would be of no use. Raises OptionError for an invalid
    token or key, and for anything else behind a ``?``.
    """
    if not address.startswith("tcp://"):
        return address, ""
    endpoint, question, query = address.partition("?")
    if not question or split_key(address)[1]:
        return endpoint, ""
    name, _, token = query.partition("=")
    if name != "token" or not _TOKEN.fullmatch(token):
        remedy = '`python -c "import secrets; print(secrets.token_hex(16))"` makes a token'
        if of_service:
            remedy = "use the whole address that the service prints"
        raise OptionError(
            f"behind {endpoint} there must be ?token= and 32 to 128 hexadecimal digits, got {len(query)} other "
            f"characters; {remedy}"
        )
    return endpoint, token.lower()


def split_key(address: str) -> tuple[str, str]:
    """Return where to connect, and the public key of the service in an address, '' if it names none.

    Raises OptionError for an invalid key.
    """
    if local := _PATH_AND_KEY.fullmatch(address):
        return local[1], local[2]
    endpoint, mark, key = address.partition("?key=")
    if not mark or not address.startswith("tcp://"):
        return address, ""
    if not _KEY.fullmatch(key):
        raise OptionError(
            f"behind {endpoint}?key= there must be the 64 hexadecimal digits of the service's public key, got "
            f"{len(key)} characters; use the whole address that the service prints"
        )
    return endpoint, key.lower()


def with_key(endpoint: str, key: str) -> str:
    """Return the address of ``endpoint`` with the public ``key`` of its service, as :func:`split_key` takes it
    apart."""
    return f"{endpoint}?key={key}"


def with_token(endpoint: str, token: str) -> str:
    """Return the address of ``endpoint`` with ``token``, as :func:`split_token` takes it apart."""
    return f"{endpoint}?token={token}" if token else endpoint


def without_token(address: str) -> str:
    """Return ``address`` without its token or key, for messages and logs."""
    return address.partition("?")[0] if address.startswith("tcp://") else split_key(address)[0]


def new_token() -> str:
    """Return a token that cannot be guessed: 128 random bits as hexadecimal digits."""
    import secrets

    return secrets.token_hex(16)
