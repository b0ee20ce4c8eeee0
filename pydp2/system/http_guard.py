"""Decide which HTTP requests an endpoint answers that shows what a service does (docs/security.md, "HTTP").

Such an endpoint has no users and no passwords of its own, and a browser on the same machine reaches it. So a web page
that a person has open must not be able to read it: not by a request from its own script (``Origin``,
``Sec-Fetch-Site``), and not by a name that leads to this machine (DNS rebinding: ``Host``). Nothing changes what the
endpoint shows, so there are no methods but GET and HEAD. Pure, but for the names of this machine.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection, Sequence
from typing import NamedTuple

_METHODS = ("GET", "HEAD")
_SITES = ("same-origin", "none")
HEADER_BYTES = 16 << 10
"""Largest size of the path and the headers of a request."""
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Refusal(NamedTuple):
    """Answer to a request that is refused: status and text."""

    status: int
    text: str


TOO_LARGE = Refusal(431, f"a request may have {HEADER_BYTES} bytes of headers at most\n")


def machine_names(bound: str, more: Collection[str] = ()) -> frozenset[str]:
    """Return the names under which an endpoint that is bound to the host ``bound`` may be asked: that one, ``more``,
    those of this machine; on loopback no others than those of loopback."""
    names = {bound.strip("[]").lower(), *_LOOPBACK, *(name.lower() for name in more)}
    if not is_loopback(bound):
        names |= {socket.gethostname().lower(), socket.getfqdn().lower()}
    return frozenset(names)


def is_loopback(host: str) -> bool:
    """Return True if only this machine reaches ``host``."""
    name = host.strip("[]").lower()
    address = _address(name)
    return name == "localhost" if address is None else address.is_loopback


def refusal(
    method: str, path: str, headers: Sequence[tuple[str, str]], names: Collection[str], bound: str
) -> Refusal | None:
    """Return why a request is refused, None if it is not. ``path``: with the query; ``headers``: pairs of a name, in
    small letters, and a value; ``names``: see :func:`machine_names`."""
    if len(path) + sum(len(f"{name}: {value}\r\n") for name, value in headers) > HEADER_BYTES:
        return TOO_LARGE
    if method not in _METHODS:
        return Refusal(405, "only GET and HEAD are answered here, and nothing can be changed\n")
    given = dict(headers)
    if [name for name, _ in headers].count("host") > 1:  # which of them counts is not the same for everybody
        return Refusal(400, "this request has more than one Host\n")
    host = host_of(given.get("host", ""))
    # an address that is no name cannot be rebound
    is_known = host in names or (_address(host) is not None and not is_loopback(bound))
    if not is_known:
        return Refusal(421, "the Host of this request is none of this endpoint; use its address, or the host's name\n")
    site = given.get("sec-fetch-site", "none")
    origin = given.get("origin")
    if site not in _SITES or (origin is not None and host_of(origin.partition("://")[2]) != host):
        return Refusal(403, "requests of other web pages are not answered\n")
    return None


def host_of(text: str) -> str:
    """Return the host of ``HOST[:PORT]`` in small letters, without the brackets of IPv6; '' if it is none."""
    text = text.strip().lower()
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        return host if bracket and (not rest or rest.startswith(":")) else ""
    host, _, port = text.partition(":")
    return host if not port or port.isdigit() else ""


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
