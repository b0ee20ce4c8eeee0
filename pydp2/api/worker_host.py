"""Run workers on this machine for a service on another host: what ``pydp2 worker`` does (docs/hosts.md)."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, Unpack

from pydp2.api import machine
from pydp2.api.access import Address, find_service
from pydp2.api.interpreter import start_interpreter
from pydp2.api.rundir import RunDir
from pydp2.api.service import require_allowed_process, search_path
from pydp2.client import Target
from pydp2.errors import (
    HostRefused,
    OptionError,
    OptionTypeError,
    RemoteProtocolError,
    ServiceLost,
    ServiceUnreachable,
    from_wire,
)
from pydp2.host.agent.service_link import ServiceLink
from pydp2.host.agent.setup import AgentSetup, send_setup
from pydp2.host.fetching import fetch_address
from pydp2.host.list_entries import map_entries
from pydp2.options.file_list import FileList
from pydp2.options.service_spec import WorkerTerms, receive_plain
from pydp2.options.tables import check_options
from pydp2.options.values import folder_path, integer_from, number_of_bytes, or_none, seconds, value_text
from pydp2.protocol import messages as m
from pydp2.protocol.plain_data import decode_plain
from pydp2.providers.program_state import ProgramState
from pydp2.system.release import RELEASE
from pydp2.transport.compression import CODEC, FrameCompressor

_ANSWER_SECONDS = 10.0  # for the service to send its spec
_REST_SECONDS = 0.5  # between two attempts to reach the service
_END_SECONDS = 10.0  # for the agent to end once it is asked to
_MAX_DATA_CONNECTIONS = 4
_CORES_PER_CONNECTION = 4
"""Number of cores of a host for each data connection, which has a thread that encrypts."""
_LEFT = "it has left"


class _Spec(NamedTuple):
    """Spec of the service as it was received: all that workers are made from, and its digest."""

    terms: Mapping[str, Any]
    digest: str
    sources: bytes
    program: bytes
    files: FileList


class HostOptions(TypedDict, total=False):
    """Options for the bytes that go from and to the host; see :class:`WorkerHost`."""

    compress: str | None
    row_server: str | None
    remote_cache: str | os.PathLike[str] | None
    remote_cache_size: int | str | None


_ARGUMENTS = ("address", "key", "workers", "root", "name", "maps", "patience", *HostOptions.__annotations__)


class WorkerHost:
    """Workers of this machine for the service that ``address`` and ``key`` name, as :func:`pydp2.connect` takes them.

    Args:
        address: path or content of a connection file, or the address for hosts that the service prints; default: the
            file that the environment variable ``PYDP2_CONNECTION`` names.
        key: folder with the keys of this host, for an address.
        workers: number of workers; default: one for each core.
        root: working directory of the workers, where the provider is looked up first; default: the present one.
        name: name of this host at the service; default: its host name.
        maps: folders in the entries of the list, and where these are mounted on this host: ``{"/data": "/mnt/data"}``.
        patience: seconds without a service after which :meth:`run` ends.
        options: ``compress="zstd"`` compresses the samples that workers send, for a slow network; the service and this
            host need ``pip install 'zstandard>=0.23'``. Default: no compression.
            ``row_server``: an address of this host, ``"tcp://10.0.0.7:*"``: rows stay here, and trainers fetch them
            at this address. Default: rows go through the service. See docs/hosts.md.
            ``remote_cache, remote_cache_size``: the folder of the copies of remote files on this host, and their limit
            in bytes; defaults as those of a service. See docs/remote.md.

    Raises:
        OptionError: an argument is not valid.
    """

    def __init__(
        self,
        address: Address | None = None,
        *,
        key: str | os.PathLike[str] | None = None,
        workers: int | None = None,
        root: str | os.PathLike[str] | None = None,
        name: str | None = None,
        maps: Mapping[str, str] | None = None,
        patience: float = 300.0,
        **options: Unpack[HostOptions],
    ) -> None:
        require_allowed_process()
        check_options(options, _ARGUMENTS)
        compress = options.get("compress")
        check_codec(compress)
        if compress is not None:
            FrameCompressor()  # raises now if the library is not installed
        self._address, self._key = address, key
        self._worker_slots = machine.cores() if workers is None else integer_from(1)("workers", workers)
        self._root = Path.cwd() if root is None else Path(folder_path("root", root)).resolve()
        self._name = socket.gethostname() if name is None else name
        if not isinstance(self._name, str) or self._name != self._name.encode(errors="replace").decode():
            raise OptionTypeError(f"name must be a text that UTF-8 can hold, got {value_text(name)}")
        self._maps, self._patience = _checked_maps(maps), seconds("patience", patience)
        self._compress = compress or ""
        self._row_server = _row_server(options.get("row_server"))
        self._remote_cache = or_none(folder_path)("remote_cache", options.get("remote_cache"))
        self._remote_cache_size = or_none(number_of_bytes)("remote_cache_size", options.get("remote_cache_size"))
        machine.check_open_files(self._worker_slots)
        find_service(address, key)  # raises now if address or key are wrong
        self._agent: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._leaving = self._closed = False

    def run(self) -> str:
        """Run workers until the service ends or :meth:`leave` is called; return the reason as text.

        Raises:
            HostRefused: code, files or release of this host are not those of the service.
            ServiceUnreachable: no service answers, or it does not admit the key of this host.
            ServiceLost: the service went away, and did not come back within ``patience`` seconds.
        """
        while not self._leaving:
            target = find_service(self._address, self._key)
            spec = self._fetch(target)
            if spec is None:
                break
            answer = self._run_agent(target, spec)
            if "error" in answer:
                raise from_wire(answer["error"])
            if answer.get("end") == "again":
                continue
            if answer.get("end") in ("closed", "left"):
                return str(answer.get("text", ""))
            raise ServiceLost("the agent of this host failed; look at what it wrote")
        return _LEFT

    def leave(self) -> None:
        """Let the workers finish the files that they are reading, then end :meth:`run`; a second call ends them at
        once. A signal handler may call it."""
        self._leaving = True
        if self._agent is not None:
            with contextlib.suppress(OSError):
                self._agent.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """End :meth:`run` at once, in another thread. The service gives the files that workers are reading to
        others."""
        self._leaving = self._closed = True
        if (channel := self._channel) is not None:
            with contextlib.suppress(OSError):
                channel.shutdown(socket.SHUT_WR)

    def _fetch(self, target: Target) -> _Spec | None:
        """Return the spec of the service as soon as it answers; None if :meth:`leave` was called before."""
        give_up = time.monotonic() + self._patience
        while not self._leaving:
            try:
                return self._ask(target)
            except ServiceUnreachable:
                if time.monotonic() > give_up:
                    raise
            time.sleep(_REST_SECONDS)
        return None

    def _ask(self, target: Target) -> _Spec | None:
        assert target.key_pair is not None
        link = ServiceLink(target.address, target.key_pair)
        try:
            link.send(m.AskSpec(m.WIRE_VERSION, RELEASE))
            deadline = time.monotonic() + _ANSWER_SECONDS
            while (received := link.receive()) is None:
                if self._leaving:
                    return None
                if link.is_lost and link.was_refused:
                    raise HostRefused(
                        f"the service at {target.name} does not admit the key of this host; it needs a key with the "
                        "role worker: use the connection file that the service wrote, or have the key allowed"
                    )
                if link.is_lost or time.monotonic() > deadline:
                    raise ServiceUnreachable(
                        f"no service for workers answers at {target.name}; start one with `pydp2 serve LIST --provider "
                        "ADDRESS --connection run.json`"
                    )
                link.wait(100)
        finally:
            link.close()
        message, body = received
        if isinstance(message, m.Refused):
            raise from_wire(message.error)
        if not isinstance(message, m.Spec) or len(body) != 5:
            raise RemoteProtocolError(f"expected Spec, got {type(message).__name__}")
        sources, program, blob, offsets, source = (bytes(frame) for frame in body)
        files = FileList.from_buffers(blob, offsets, source.decode(errors="replace") or None)
        # an error here reaches the user; in the agent it would not
        terms = WorkerTerms.from_wire(message.terms, sources, program, files=len(files))
        if program:
            ProgramState.from_bytes(program)
        if not all(isinstance(decode_plain(source.args), dict) for source in terms.sources):
            raise RemoteProtocolError("Spec: the arguments of a provider must be a dict")
        return _Spec(message.terms, message.digest, sources, program, files)

    def _run_agent(self, target: Target, spec: _Spec) -> dict[str, Any]:
        """Run the process of the agent; return its last message, which says how it ended."""
        assert target.key_pair is not None
        rundir = RunDir()
        connections = min(_MAX_DATA_CONNECTIONS, self._worker_slots, max(1, machine.cores() // _CORES_PER_CONNECTION))
        files = map_entries(spec.files, self._maps)
        try:
            setup = AgentSetup(
                address=target.address,
                public_key=target.key_pair.public,
                secret_key=target.key_pair.secret,
                name=self._name,
                worker_slots=self._worker_slots,
                root=str(self._root),
                path=tuple(search_path()),
                worker_address=rundir.address("workers"),
                digest=spec.digest,
                patience=self._patience,
                data_connections=connections,
                compress=self._compress,
                row_server=self._row_server,
                fetch_address=fetch_address(files, str(rundir.path)),
                remote_cache=self._remote_cache,
                remote_cache_size=self._remote_cache_size,
            )
            process, channel = start_interpreter("pydp2.host.agent.main", "main", passed=[rundir.lock])
            self._agent, self._channel = process, channel
            if self._closed:  # close() or leave() was called just before the agent was there
                self.close()
            elif self._leaving:
                process.send_signal(signal.SIGTERM)
            try:
                send_setup(channel, setup, spec.terms, spec.sources, spec.program, files)
                return receive_plain(channel)
            except (EOFError, ConnectionError):
                status = process.wait(_END_SECONDS)
                if self._closed or (self._leaving and status == -signal.SIGTERM):  # it had no handler for that yet
                    return {"end": "left", "text": _LEFT}
                raise ServiceLost(
                    f"the agent of this host ended (exit status {status}); look at what it wrote"
                ) from None
            finally:
                self._agent = self._channel = None
                channel.close()  # an agent that still runs ends now
                _wait(process)
        finally:
            with contextlib.suppress(OSError):
                os.close(rundir.lock)
            rundir.remove()


def check_codec(compress: str | None) -> None:
    """Raise OptionError unless ``compress`` is the name of a codec or None."""
    if compress not in (None, CODEC):
        raise OptionError(f"compress must be {CODEC!r} or None, got {compress!r:.40}")


def _checked_maps(maps: Mapping[str, str] | None) -> dict[str, str]:
    """Return ``maps``, {} for None. Raises OptionTypeError or OptionError if they are not folders."""
    if maps is None:
        return {}
    if not isinstance(maps, Mapping):
        raise OptionTypeError(f'maps must be a dict of folders, as {{"/data": "/mnt/data"}}, got {value_text(maps)}')
    return {folder_path("maps", old): folder_path("maps", new) for old, new in maps.items()}


def _row_server(address: str | None) -> str:
    """Return the address to which the row server binds, "" for no row server. Raises OptionError."""
    if address is None:
        return ""
    host, _, port = address.removeprefix("tcp://").rpartition(":") if isinstance(address, str) else ("", "", "")
    is_port = port == "*" or (port.isdecimal() and int(port) < 1 << 16)
    if not (host and address.startswith("tcp://") and "?" not in address and is_port):
        raise OptionError(
            f"row_server needs an address of this host that trainers reach, as in tcp://10.0.0.7:*, got "
            f"{address!r:.100}; give a host and a port, * for a free one"
        )
    return address


def _wait(process: subprocess.Popen[bytes]) -> None:
    """Wait until the agent has ended; kill it if that takes too long."""
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(_END_SECONDS)


__all__ = ["WorkerHost"]
