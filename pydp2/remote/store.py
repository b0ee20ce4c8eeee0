"""Define what pydp2 needs of a store of remote files, and how a store says that a request has failed.

A *version* is a text that changes whenever the content does: the ETag, and where a server has none, the size and the
time of the last modification. Two responses with one version are parts of one content.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple, Protocol


class ObjectInfo(NamedTuple):
    """Size in bytes and version of a remote file."""

    size: int
    version: str


class Response(NamedTuple):
    """Bytes of a remote file from ``start`` on, as they arrive. The iterator raises :class:`RequestFailed`."""

    info: ObjectInfo
    start: int
    chunks: Iterator[bytes]


class Failure(Enum):
    """Why a request has failed."""

    MISSING = "missing"
    """There is no such file."""
    DENIED = "denied"
    """The store does not give it with these credentials, or there are none."""
    REFUSED = "refused"
    """The request cannot be made, or the store does not understand it."""
    CHANGED = "changed"
    """The file has another version than the one that was requested."""
    EMPTY = "empty"
    """The range begins behind the end of the file."""
    BUSY = "busy"
    """The store cannot answer now: overload, an error of its own, a broken connection, no answer in time."""


class RequestFailed(Exception):
    """A request to a store has failed. ``reason``: short text for messages, without secrets."""

    def __init__(self, failure: Failure, reason: str) -> None:
        super().__init__(reason)
        self.failure, self.reason = failure, reason


class Store(Protocol):
    """Store of remote files. Several threads call it at the same time."""

    def head(self, url: str) -> ObjectInfo:
        """Return size and version. Raises RequestFailed."""
        ...

    def read(self, url: str, start: int, stop: int, version: str | None) -> Response:
        """Request the bytes from ``start`` to before ``stop``, of ``version`` if it is given. A store without ranges
        sends the whole file. Raises RequestFailed."""
        ...

    def files(self, folder: str) -> Iterator[list[str]]:
        """Yield the URLs of all files below the URL ``folder``, which ends in ``/``, a page at a time. Raises
        RequestFailed."""
        ...

    def children(self, folder: str) -> list[str]:
        """Return the URLs of the files in the folder ``folder``, and of the folders in it, which end in ``/``, as
        ``folder`` does. Raises RequestFailed."""
        ...

    def renew(self) -> None:
        """Forget credentials, so that the next request reads them again."""
        ...
