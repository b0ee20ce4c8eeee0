"""Describe a service: what the program that starts it tells the server process, and the answer."""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgpack

from pydp2.errors import RemoteProtocolError
from pydp2.options.file_list import FileList
from pydp2.options.timing import DEFAULT_TIMING, Timing
from pydp2.protocol.plain_records import from_dict

if TYPE_CHECKING:  # a server and its workers need no options, which take time to import
    from pydp2.options.service_options import ServiceOptions

_LENGTH = struct.Struct("<Q")
_LIMIT = 1 << 32
_MAX_SECONDS = 1e9
_ENCODED = ("args", "program")  # too long for a header


@dataclass(frozen=True, kw_only=True)
class WorkerTerms:
    """Terms under which workers run, on whichever host. ``args`` are encoded plain data, and ``program`` is the encoded
    state of the program that serves them, b"" for none."""

    provider: str
    args: bytes = field(repr=False)
    program: bytes = field(default=b"", repr=False)
    is_train: bool
    input_order: tuple[str, ...]
    start: str
    worker_memory: int | None
    sample_timeout: float | None
    warn_changed: bool
    skip_errors: bool
    timing: Timing = DEFAULT_TIMING

    def to_wire(self) -> dict[str, Any]:
        """Return the terms as plain data, without what is encoded."""
        plain = {each.name: getattr(self, each.name) for each in fields(WorkerTerms) if each.name not in _ENCODED}
        return plain | {"input_order": list(self.input_order), "timing": asdict(self.timing)}

    @classmethod
    def from_wire(cls, plain: Any, args: bytes, program: bytes) -> WorkerTerms:
        """Inverse of :meth:`to_wire`. Raises RemoteProtocolError."""
        terms = from_dict(cls, plain, "Spec", args=args, program=program)
        if not all(0 < each < _MAX_SECONDS for each in asdict(terms.timing).values()):
            raise RemoteProtocolError(f"Spec.timing: expected numbers of seconds above 0, got {terms.timing}")
        return terms


@dataclass(frozen=True, kw_only=True)
class ServiceSpec(WorkerTerms):
    """Description of a service in which everything is resolved: nothing in it is looked up again."""

    root: str
    path: tuple[str, ...] = field(repr=False)
    workers: int
    memory_limit: int
    error_budget: float | None
    quarantine: str | None
    client_address: str = field(repr=False)  # it may hold a token
    worker_address: str
    run_dir: str
    server_key: tuple[str, str] | None = field(default=None, repr=False)
    """The public and the secret key; None: the service has no keys."""
    allowed: dict[str, str] = field(default_factory=dict, repr=False)
    """Roles of the public keys of this run."""
    key_folder: str | None = None
    advertise: str | None = None
    connection: str | None = None
    """The connection file, which the server removes at its end."""
    state_dir: str | None = None
    cache_dir: str = ""
    cache_size: int | None = None
    remember_counts: bool = True
    metrics: str | None = None
    host_address: str | None = None
    """Address for workers on other hosts; None: all workers are on this one."""
    local_address: str = ""
    """Address of a service with keys for trainers of this machine and user."""
    supervisor: int = -1
    """Descriptor of a supervisor that has imported the provider; -1: the server forks one."""
    prepared: int = -1
    """Descriptor that leads to the program, for a copy of the zygote (pydp2/host/engine/prepared.py); -1: there is
    to be none."""

    @classmethod
    def from_options(cls, options: ServiceOptions, **resolved: Any) -> ServiceSpec:
        """Return the description of a service with ``options``. ``resolved``: the other fields, and those of options
        that leave something open."""
        same = {each.name: getattr(options, each.name) for each in fields(cls) if hasattr(options, each.name)}
        converted = {
            "input_order": options.input_order or (),
            "quarantine": None if options.quarantine is None else str(Path(options.quarantine).absolute()),
            "skip_errors": options.on_error == "skip",
            "warn_changed": options.on_changed == "warn",
        }
        return cls(**same | converted | resolved)


def status_rows(workers: int) -> int:
    """Return the status rows for ``workers`` workers and the one in reserve: twice as many, so that the row of one that
    is gone can still be read while what it printed is shown. No workers need none."""
    return 2 * (workers + 1) if workers else 0


def send_blocks(channel: socket.socket, *blocks: bytes | memoryview) -> None:
    """Send blocks, each after its length."""
    for block in blocks:
        channel.sendall(_LENGTH.pack(len(block)))
        channel.sendall(block)


def receive_block(channel: socket.socket) -> bytes:
    """Return the next block. Raises EOFError when the other side is gone."""
    size = _LENGTH.unpack(_exactly(channel, _LENGTH.size))[0]
    if size > _LIMIT:
        raise RemoteProtocolError(f"a block of {size} bytes")
    return _exactly(channel, size)


def _exactly(channel: socket.socket, size: int) -> bytes:
    data = bytearray(size)
    view, got = memoryview(data), 0
    while got < size:
        count = channel.recv_into(view[got:])
        if not count:
            raise EOFError
        got += count
    return bytes(data)


def packed(plain: Mapping[str, Any]) -> bytes:
    """Return plain values as bytes for :func:`unpacked`. Paths in it need not be UTF-8."""
    return cast(bytes, msgpack.packb(plain, unicode_errors="surrogatepass"))


def unpacked(data: bytes) -> dict[str, Any]:
    """Inverse of :func:`packed`."""
    return cast(dict[str, Any], msgpack.unpackb(data, unicode_errors="surrogatepass"))


def send_spec(channel: socket.socket, spec: ServiceSpec, files: FileList) -> None:
    """Program to server: what to serve."""
    blob, offsets = files.to_buffers()
    send_blocks(channel, packed(asdict(spec) | {"source": files.source}), blob, offsets)


def receive_spec(channel: socket.socket) -> tuple[ServiceSpec, FileList]:
    """Inverse of :func:`send_spec`."""
    plain = unpacked(receive_block(channel))
    source = plain.pop("source")
    blob, offsets = receive_block(channel), receive_block(channel)
    return from_dict(ServiceSpec, plain, "ServiceSpec"), FileList.from_buffers(blob, offsets, source)


def send_plain(channel: socket.socket, value: dict[str, Any]) -> None:
    """Send one plain value as a block."""
    send_blocks(channel, cast(bytes, msgpack.packb(value)))


def receive_plain(channel: socket.socket) -> dict[str, Any]:
    """Inverse of :func:`send_plain`."""
    return cast(dict[str, Any], msgpack.unpackb(receive_block(channel)))
