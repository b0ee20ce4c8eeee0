"""Define the messages about rows that stay on the hosts of their workers (docs/hosts.md, "Rows that stay on their
host"): those of the server to the agent of a host, of a client to the server, and between a client and a row server.

:class:`.worker.Chunk` names such rows, and :class:`.client.BatchHead` says where they are fetched.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydp2.protocol.messages.base import Message, message


@message
class RowReaders(Message):
    """Server: trainers with these public keys may fetch rows, and no others."""

    keys: list[Any]


@message
class ReleaseRows(Message):
    """Server: rows on the host are not needed any more. One frame, their handles, int64."""

    has_body: ClassVar[bool] = True


@message
class SendRows(Message):
    """Server: no more rows are to stay on the host."""


@message
class RowsUnreachable(Message):
    """Client: it cannot fetch rows at these addresses of row servers, and begins a new run after this."""

    addresses: list[Any]


@message
class FetchRows(Message):
    """Client: send the rows with the handles in the frame, int64. ``request_id`` comes back with them."""

    has_body: ClassVar[bool] = True
    request_id: int


@message
class FetchedRows(Message):
    """Row server: the columns of ``rows`` rows, in the order of their handles. ``gone``: it lacks some, none come."""

    has_body: ClassVar[bool] = True
    request_id: int
    rows: int
    gone: bool
