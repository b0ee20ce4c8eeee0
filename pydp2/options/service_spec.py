"""Define the description of a service that a program sends to the server process, and the blocks that carry it."""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgpack

from pydp2.errors import RemoteProtocolError
from pydp2.options.file_list import FileList
from pydp2.options.timing import DEFAULT_TIMING, Timing
from pydp2.protocol.plain_records import from_dict

if TYPE_CHECKING:  # a server and its workers do not need the options, whose import takes time
    from pydp2.options.service_options import ServiceOptions

_LENGTH = struct.Struct("<Q")
_LIMIT = 1 << 32
_MAX_SECONDS = 1e9
_ENCODED = ("sources", "program")  # sent as frames, because they are too long for a header
MAX_SOURCES = 1024
"""Number of sources that a service has at most."""


@dataclass(frozen=True, kw_only=True)
class SourceTerms:
    """Part of the list that one provider reads: the files from number ``first_file`` on, to the first file of the next
    source. ``name``: "" for the only source of a service that was not given by name. ``args``: arguments of the hook as
    encoded plain data."""

    name: str = ""
    first_file: int = 0
    provider: str
    args: bytes = field(repr=False)
    is_train: bool


@dataclass(frozen=True, kw_only=True)
class WorkerTerms:
    """Part of the description that the workers of every host need. ``sources``: at least one, in the order of their
    files; ``program``: encoded :class:`ProgramState`, b"" for none."""

    sources: tuple[SourceTerms, ...]
    program: bytes = field(default=b"", repr=False)
    input_order: tuple[str, ...]
    start: str
    worker_memory: int | None
    sample_timeout: float | None
    warn_changed: bool
    skip_errors: bool
    remote_timeout: float = 900.0
    timing: Timing = DEFAULT_TIMING

    @property
    def source_names(self) -> tuple[str, ...]:
        """Names of the sources in the order of their files; () if the sources have no names."""
        return tuple(source.name for source in self.sources if source.name)

    @property
    def source_starts(self) -> tuple[int, ...]:
        """Number of the first file of each source in ``source_names``."""
        return tuple(source.first_file for source in self.sources if source.name)

    @property
    def providers(self) -> tuple[str, ...]:
        """Addresses of the providers, each once."""
        return tuple(dict.fromkeys(source.provider for source in self.sources))

    def source_lists(self, files: FileList) -> list[FileList]:
        """Return the part of ``files`` that belongs to each source. The parts share the text of ``files``."""
        if len(self.sources) == 1:
            return [files]
        edges = [*(source.first_file for source in self.sources), len(files)]
        return [files.part(start, stop) for start, stop in pairwise(edges)]

    def to_wire(self) -> dict[str, Any]:
        """Return the terms as plain data, without ``sources`` and ``program``."""
        plain = {field.name: getattr(self, field.name) for field in fields(WorkerTerms) if field.name not in _ENCODED}
        return plain | {"input_order": list(self.input_order), "timing": asdict(self.timing)}

    @classmethod
    def from_wire(cls, plain: Any, sources: bytes, program: bytes, *, files: int) -> WorkerTerms:
        """Return the terms from the results of :meth:`to_wire` and :func:`packed_sources`, for a list of ``files``
        entries. Raises RemoteProtocolError."""
        terms = from_dict(cls, plain, "Spec", sources=_unpacked_sources(sources, files), program=program)
        if not all(0 < limit < _MAX_SECONDS for limit in asdict(terms.timing).values()):
            raise RemoteProtocolError(f"Spec.timing: expected numbers of seconds above 0, got {terms.timing}")
        return terms


@dataclass(frozen=True, kw_only=True)
class ServiceSpec(WorkerTerms):
    """Complete description of a service, with all paths and defaults resolved."""

    root: str
    path: tuple[str, ...] = field(repr=False)
    workers: int
    memory_limit: int
    error_budget: float | None
    quarantine: str | None
    blocked: bytes = field(default=b"", repr=False)
    """Samples that are never delivered, as a :class:`.BlockList` encodes them."""
    client_address: str = field(repr=False)  # it may have a token
    worker_address: str
    run_dir: str
    server_key: tuple[str, str] | None = field(default=None, repr=False)
    """Public and secret key of the service; None: it has no keys."""
    allowed: dict[str, str] = field(default_factory=dict, repr=False)
    """Roles of the public keys of this run."""
    key_folder: str | None = None
    advertise: str | None = None
    connection: str | None = None
    """Connection file, which the server removes at its end."""
    state_dir: str | None = None
    cache_dir: str = ""
    cache_size: int | None = None
    remember_counts: bool = True
    fetch_address: str = ""
    """Path of the socket of the fetch process; "": no entry is a remote file, and there is none."""
    remote_cache: str = ""
    remote_cache_size: int | None = None
    metrics: str | None = None
    host_address: str | None = None
    """Address for workers on other hosts; None: all workers are on this host."""
    local_address: str = ""
    """Address of a service with keys for trainers of this machine and user."""
    supervisor: int = -1
    """Descriptor of a supervisor that has imported the provider; -1: the server forks one."""
    prepared: int = -1
    """Descriptor that leads to the program, for a copy of the zygote (pydp2/host/engine/prepared.py); -1: no copy is
    wanted."""
    program_pid: int = -1
    """Pid of the program that starts the service."""

    @classmethod
    def from_options(cls, options: ServiceOptions, **resolved: Any) -> ServiceSpec:
        """Return the description of a service with ``options``. ``resolved``: the other fields, and the values of
        options that leave one open."""
        same = {field.name: getattr(options, field.name) for field in fields(cls) if hasattr(options, field.name)}
        converted = {
            "input_order": options.input_order or (),
            "quarantine": None if options.quarantine is None else str(Path(options.quarantine).absolute()),
            "skip_errors": options.on_error == "skip",
            "warn_changed": options.on_changed == "warn",
        }
        return cls(**same | converted | resolved)


def status_rows(workers: int) -> int:
    """Return the number of status rows for ``workers`` workers and the spare one: twice as many, so that the row of an
    ended worker can still be read while its output is shown. It is 0 for 0 workers."""
    return 2 * (workers + 1) if workers else 0


def send_blocks(channel: socket.socket, *blocks: bytes | memoryview) -> None:
    """Send blocks, the length before each."""
    for block in blocks:
        channel.sendall(_LENGTH.pack(len(block)))
        channel.sendall(block)


def receive_block(channel: socket.socket) -> bytes:
    """Return the next block. Raises EOFError if the other end is closed."""
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
    """Return plain values as bytes for :func:`unpacked`. Paths in them need not be UTF-8."""
    return cast(bytes, msgpack.packb(plain, unicode_errors="surrogatepass"))


def unpacked(data: bytes) -> dict[str, Any]:
    """Return the values from the result of :func:`packed`."""
    return cast(dict[str, Any], msgpack.unpackb(data, unicode_errors="surrogatepass"))


def packed_sources(sources: Sequence[SourceTerms]) -> bytes:
    """Return the terms of sources as bytes for :meth:`WorkerTerms.from_wire`."""
    return packed({"sources": [asdict(source) for source in sources]})


def _unpacked_sources(data: bytes, files: int) -> tuple[SourceTerms, ...]:
    """Return the terms of sources from the result of :func:`packed_sources`. Raises RemoteProtocolError if they do not
    divide a list of ``files`` entries."""
    try:
        sources = from_dict(_Sources, unpacked(data), "Spec").sources
    except ValueError as error:  # of msgpack
        raise RemoteProtocolError(f"the sources of a service cannot be read: {error!r:.200}") from None
    starts = [source.first_file for source in sources]
    rises = all(start < after for start, after in pairwise([*starts, files]))
    if not 0 < len(sources) <= MAX_SOURCES or starts[0] != 0 or not (rises or len(sources) == 1):
        raise RemoteProtocolError(f"the sources of a service begin at the files {starts!r:.80} of {files}")
    return sources


@dataclass(frozen=True)
class _Sources:
    """Record of all sources, as they travel."""

    sources: tuple[SourceTerms, ...]


def send_spec(channel: socket.socket, spec: ServiceSpec, files: FileList) -> None:
    """Send the description of a service and its list to the server."""
    blob, offsets = files.to_buffers()
    send_blocks(channel, packed(asdict(spec) | {"source": files.source}), blob, offsets)


def receive_spec(channel: socket.socket) -> tuple[ServiceSpec, FileList]:
    """Receive the description and the list that :func:`send_spec` sent."""
    plain = unpacked(receive_block(channel))
    source = plain.pop("source")
    blob, offsets = receive_block(channel), receive_block(channel)
    return from_dict(ServiceSpec, plain, "ServiceSpec"), FileList.from_buffers(blob, offsets, source)


def send_plain(channel: socket.socket, value: dict[str, Any]) -> None:
    """Send one plain value as a block."""
    send_blocks(channel, cast(bytes, msgpack.packb(value)))


def receive_plain(channel: socket.socket) -> dict[str, Any]:
    """Receive the value that :func:`send_plain` sent. Raises EOFError if the other end is closed."""
    return cast(dict[str, Any], msgpack.unpackb(receive_block(channel)))
