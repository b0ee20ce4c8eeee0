"""Find the keys that a service and its trainers use: what ``connection``, ``keys`` and ``key`` name."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from pydp2.api.rundir import RunDir
from pydp2.client import Target
from pydp2.errors import OptionError
from pydp2.options.service_options import ServiceOptions
from pydp2.options.values import folder_path
from pydp2.transport.key_files import CONNECTION_VARIABLE, ROLES, ConnectionFile, own_pair
from pydp2.transport.keys import KeyPair, new_key_pair
from pydp2.transport.service_address import split_key, split_token, with_key, without_token

_LAST_PORT = 65_535
_KEY_DIGITS_OF_PATH = 16
_SAVED_KEYS = "connection.json"  # in a state directory: the keys of a service that can be started again


@dataclass(frozen=True)
class ServiceKeys:
    """Keys of a service that is about to start: its own ``pair``, one pair for each role that is valid for this run,
    and the folder with the permanent keys."""

    pair: KeyPair
    of_run: Mapping[str, KeyPair] = field(repr=False)
    folder: str | None

    def connection(self, address: str, host_address: str, local_address: str) -> ConnectionFile:
        """Return the content of the connection file of the service at these addresses."""
        return ConnectionFile(address, self.of_run, host_address, local_address)

    def spec_fields(self, rundir: RunDir) -> dict[str, Any]:
        """Return the fields of a :class:`~pydp2.options.service_spec.ServiceSpec` that follow from the keys.

        The path of ``local_address`` has the key of the service in it, so it leads to no other service, also where the
        connection file was copied to another machine.
        """
        return {
            "server_key": (self.pair.public, self.pair.secret),
            "allowed": {pair.public: role for role, pair in self.of_run.items()},
            "key_folder": self.folder,
            "local_address": with_key(rundir.address(self.pair.public[:_KEY_DIGITS_OF_PATH]), self.pair.public),
        }


def is_loopback(address: str) -> bool:
    """Return True if only this machine can reach a service that is bound to ``address``, which must be valid."""
    if not address.startswith("tcp://"):
        return True
    host = split_token(address)[0].removeprefix("tcp://").rpartition(":")[0].strip("[]")
    return ipaddress.ip_address(host).is_loopback


def worker_address(bind: str, chosen: str | None) -> str:
    """Return the address to bind for workers on other hosts: ``chosen``, or the port after that of ``bind``, of a
    service with keys. Raises OptionError."""
    if chosen is not None:
        if chosen.startswith("ipc://") or split_token(chosen)[1]:
            raise OptionError(f"worker_bind must be tcp://HOST:PORT, got {without_token(chosen)!r}")
        return chosen
    host, _, port = bind.rpartition(":")
    return f"{host}:{int(port) + 1}" if port.isdecimal() and 0 < int(port) < _LAST_PORT else f"{host}:*"


def service_keys(chosen: ServiceOptions, state_dir: Path | None) -> ServiceKeys | None:
    """Return the keys of a service with the options ``chosen``, None if it has none. Raises OptionError if the service
    needs keys and has none, or if it cannot use them."""
    bind = chosen.bind or ""
    if chosen.connection is None and chosen.keys is None:
        if not is_loopback(bind):
            raise OptionError(
                f"bind={without_token(bind)!r} can be reached from other hosts, so the service needs keys; add "
                "connection='run.json' (keys for this run, written to that file) or keys='FOLDER' (keys that last: "
                "`pydp2 keys new FOLDER`)"
            )
        for name, value in (("advertise", chosen.advertise), ("worker_bind", chosen.worker_bind)):
            if value is not None:
                raise OptionError(f"{name} is for a service with keys; add connection='run.json' or leave it out")
        if chosen.workers == 0:
            raise OptionError(
                "workers=0 leaves all workers to other hosts, which need keys to join; add connection='run.json', or "
                "have at least one worker"
            )
        return None
    if bind.startswith("ipc://"):
        raise OptionError(
            f"bind={bind!r} is a socket of this user alone, which needs no keys; leave connection and keys out, or "
            "bind to tcp://HOST:PORT"
        )
    if state_dir is not None and not bind:
        raise OptionError(
            "a service with keys takes any port without bind, and with state_dir trainers must find it again at the "
            "same one; add bind='tcp://HOST:PORT'"
        )
    if bind and split_token(bind)[1]:
        raise OptionError("bind has a token, and the service has keys; leave ?token=… out of bind")
    folder = None if chosen.keys is None else Path(chosen.keys).absolute()
    saved = None if state_dir is None else state_dir / _SAVED_KEYS
    if saved is not None and saved.exists():  # trainers that wait for the service have these
        return _saved_keys(saved, folder)
    keys = ServiceKeys(
        new_key_pair() if folder is None else own_pair(folder),
        {role: new_key_pair() for role in ROLES},
        None if folder is None else str(folder),
    )
    if saved is not None:
        secret = {"service": keys.pair, **keys.of_run}
        ConnectionFile(with_key("tcp://127.0.0.1:0", keys.pair.public), secret).write(saved)
    return keys


def _saved_keys(path: Path, folder: Path | None) -> ServiceKeys:
    pairs = dict(ConnectionFile.read(path).keys)
    if "service" not in pairs or not {*ROLES} <= {*pairs}:
        raise OptionError(
            f"{path} must hold the keys of a service; remove it, and give trainers the new connection file"
        )
    pair = pairs.pop("service")
    if folder is not None and own_pair(folder) != pair:
        raise OptionError(
            f"{path} has other keys than keys={str(folder)!r}; remove the former, or give the folder that the service "
            "had before"
        )
    return ServiceKeys(pair, pairs, None if folder is None else str(folder))


Address: TypeAlias = str | os.PathLike[str] | ConnectionFile
"""What names a service to a peer: its address, the path of its connection file, or the content of that."""


def find_service(address: Address | None, key: str | os.PathLike[str] | None) -> Target:
    """Return the address to which a host with workers connects, with its keys. The arguments are those of
    :func:`find_target`. Raises OptionError."""
    target = find_target(address, key, "worker", for_hosts=True)
    if not target.is_secured:
        raise OptionError(
            f"workers on other hosts need a service with keys, {target.name} has none; start it with "
            "connection='run.json', and use that file"
        )
    if not target.address.startswith("tcp://"):
        raise OptionError(
            f"hosts connect over TCP, got {target.name}; use the connection file of the service, or the address for "
            "hosts that it prints, tcp://HOST:PORT?key=…"
        )
    return target


def find_target(
    address: Address | None, key: str | os.PathLike[str] | None, *roles: str, for_hosts: bool = False
) -> Target:
    """Return the address to which a peer connects, with its keys. Raises OptionError.

    ``address`` is an address, or the path or the content of a connection file, by default the file that
    PYDP2_CONNECTION names. ``key`` is a folder with keys. From a connection file, take the keys of the first of
    ``roles`` that it has, and with ``for_hosts`` the address for hosts.
    """
    if address is None:
        named = os.environ.get(CONNECTION_VARIABLE)
        if not named:
            raise OptionError(
                "an address or a connection file is needed, none was given; pass what the service prints, or set "
                f"{CONNECTION_VARIABLE} to the path of the file that `pydp2 serve --connection` writes"
            )
        address = named
    where = os.fspath(address) if isinstance(address, os.PathLike) else address
    pair = None if key is None else own_pair(Path(folder_path("key", key)))
    if isinstance(where, ConnectionFile):
        return _file_target(where, where.address, pair, *roles, for_hosts=for_hosts)
    if isinstance(where, str) and where.startswith(("ipc://", "tcp://")):
        if pair is not None and not split_key(where)[1]:
            raise OptionError(f"key is for an address with ?key=…, which a service with keys prints, got {where!r:.80}")
        split_token(where, of_service=True)  # a wrong token is an error before the wait for an answer
        return Target(where, pair)
    if not isinstance(where, str) or not where or "://" in where:
        raise OptionError(
            'address must be the one that the service prints, "ipc://…" or "tcp://…", or the path of a connection '
            f"file, got {address!r:.80}"
        )
    if Path(where).is_socket():
        raise OptionError(
            f"an address must begin with ipc:// or tcp://, got {where!r:.80}, which is a socket; write ipc://{where}"
        )
    return _file_target(ConnectionFile.read(Path(where)), where, pair, *roles, for_hosts=for_hosts)


def _file_target(found: ConnectionFile, where: str, pair: KeyPair | None, *roles: str, for_hosts: bool) -> Target:
    if for_hosts and not found.host_address:
        raise OptionError(f"{where} must name where hosts connect; use the file that a service of this release writes")
    pair = pair or found.pair(where, *roles)
    return Target(found.host_address, pair) if for_hosts else Target(found.address, pair, found.local_address)
