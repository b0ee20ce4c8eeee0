"""Start a service for ranks on several machines, and hand its address and its keys to them (docs/frameworks.md, "Ranks
on several machines").

Rank 0 makes fresh keys with each service. What it hands over is the content of a connection file, or the error with
which the service did not start, so that no rank waits in vain.
"""

from __future__ import annotations

import ipaddress
import json
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydp2.api.service import Service, launch
from pydp2.api.sources import Files, Source
from pydp2.errors import Error, OptionError, RemoteProtocolError, ServiceUnreachable, from_wire, to_wire
from pydp2.frameworks.run_store import RunStore, await_text
from pydp2.providers import Provider
from pydp2.transport.key_files import ConnectionFile


def start_service(
    files: Files | Source, provider: str | Provider | None, store: RunStore, key: str, **options: Any
) -> tuple[ConnectionFile, Service]:
    """Start a service that ranks on all machines of the run reach, and put what they need under ``key``.

    ``options``: those of :func:`pydp2.launch`, whose errors it raises; the other ranks get the same.
    """
    try:
        if str(options.get("bind", "")).startswith("ipc://"):
            raise OptionError(
                f"ranks on several machines need a service with a TCP address, got bind={options['bind']!r}; leave "
                "bind out, or give tcp://HOST:PORT"
            )
        with TemporaryDirectory(prefix="pydp2-connection-") as folder:  # of this user alone
            options = reachable_address(store.endpoint) | {"connection": f"{folder}/run.json"} | options
            service = launch(files, provider, **options)
            try:
                found = ConnectionFile.read(Path(os.fspath(options["connection"])))
                store.put(key, json.dumps({"connection": found.text()}))
            except BaseException:
                service.close()
                raise
        return found, service
    except BaseException as error:
        with suppress(Error):
            store.put(key, json.dumps({"error": to_wire(_known(error))}))
        raise


def receive_service(store: RunStore, key: str, timeout: float) -> ConnectionFile:
    """Return what :func:`start_service` has put under ``key`` in rank 0. Raises its error, and ServiceUnreachable if
    nothing is there after ``timeout`` seconds."""
    lack = f"rank 0 has not started the service for all ranks within {timeout:g} s"
    text = await_text(store, key, time.monotonic() + timeout, lack)
    try:
        plain = json.loads(text)
        if "error" not in plain:
            return ConnectionFile.from_plain(json.loads(plain["connection"]))
        error = from_wire(plain["error"])
    except (ValueError, TypeError, KeyError, AttributeError):
        raise RemoteProtocolError("rank 0 must hand over a connection file, and the store has something else") from None
    error.add_note("Rank 0, which starts the service for all ranks, has raised this error.")
    raise error


def _known(error: BaseException) -> Error:
    if isinstance(error, Error):
        return error
    return ServiceUnreachable(f"rank 0 has not started the service for all ranks: {type(error).__name__}: {error}")


def reachable_address(endpoint: str) -> dict[str, str]:
    """Return ``bind``, and ``advertise`` where it needs one, for a service that all ranks reach who reach the store at
    ``endpoint`` (``HOST:PORT``).

    It is the address from which this machine reaches ``endpoint``, in the same network. If that is the loopback and
    ``endpoint`` has another name, only this machine knows the name as its own loopback, and the others use the name.
    """
    host = endpoint.rpartition(":")[0].strip("[]")
    own = _own_address(host, endpoint.rpartition(":")[2])
    if own is None:
        return {"bind": "tcp://0.0.0.0:*"}  # advertised with the name of this machine
    if own.is_loopback and host != "localhost" and not _is_address(host):
        return {"bind": "tcp://0.0.0.0:*", "advertise": host}
    return {"bind": f"tcp://[{own}]:*" if own.version == 6 else f"tcp://{own}:*"}


def _own_address(host: str, port: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address of this machine from which it reaches ``host``; None if it does not."""
    with suppress(OSError, ValueError):
        for family, kind, protocol, _, address in socket.getaddrinfo(host, int(port), type=socket.SOCK_DGRAM):
            with suppress(OSError), socket.socket(family, kind, protocol) as probe:
                probe.connect(address)  # of a datagram socket: nothing is sent
                own = ipaddress.ip_address(probe.getsockname()[0])
                if not own.is_link_local:  # its address is valid on one interface only
                    return own
    return None


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
