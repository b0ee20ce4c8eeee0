"""Tell the agent of a host what to join with: what the program that starts it sends to its process."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pydp2.options.file_list import FileList
from pydp2.options.service_spec import WorkerTerms, packed, receive_block, send_blocks, unpacked
from pydp2.protocol.plain_records import from_dict


@dataclass(frozen=True, kw_only=True)
class AgentSetup:
    """Settings with which an agent joins. ``address``: where hosts connect to the service; ``digest``: of the spec that
    the service sent, whose list is ``files`` with the entries as they are named here."""

    address: str
    public_key: str
    secret_key: str = field(repr=False)
    name: str
    worker_slots: int
    root: str
    path: tuple[str, ...] = field(repr=False)
    worker_address: str
    digest: str
    patience: float
    """Seconds without a service after which the agent ends."""
    data_connections: int = 1
    """Number of connections for what workers send."""
    compress: str = ""
    """Codec that compresses the frames of workers; "": none."""
    fetch_address: str = ""
    """Path of the socket of the fetch process; "": no entry is a remote file."""
    remote_cache: str | None = None
    """Folder of its copies; None: the default one."""
    remote_cache_size: int | None = None
    """Most bytes of its copies; None: half of the free space."""
    row_server: str = ""
    """Address where trainers fetch rows that stay here; "": all rows go to the service."""


def send_setup(
    channel: socket.socket, setup: AgentSetup, terms: Mapping[str, Any], sources: bytes, program: bytes, files: FileList
) -> None:
    """Send all that an agent needs. ``sources``: the terms of the sources, as the service sent them."""
    blob, offsets = files.to_buffers()
    plain = {"setup": asdict(setup), "terms": terms, "source": files.source}
    send_blocks(channel, packed(plain), sources, program, blob, offsets)


def receive_setup(channel: socket.socket) -> tuple[AgentSetup, WorkerTerms, FileList]:
    """Inverse of :func:`send_setup`."""
    plain = unpacked(receive_block(channel))
    sources, program, blob, offsets = (receive_block(channel) for _ in range(4))
    files = FileList.from_buffers(blob, offsets, plain["source"])
    setup = from_dict(AgentSetup, plain["setup"], "AgentSetup")
    return setup, WorkerTerms.from_wire(plain["terms"], sources, program, files=len(files)), files
