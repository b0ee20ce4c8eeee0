"""Define the messages between the loop of a server and its cache on disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Protocol, cast

import msgpack

from pydp2.data.columns.checksum import EndChecksum
from pydp2.data.schema.input_types import Slots
from pydp2.server.cache.file_format import DroppedSample, StoredPiece
from pydp2.server.cache.memory import CacheableRun
from pydp2.system.log_events import LogEvent


class WeightedRun(CacheableRun, Protocol):
    """Samples with their weights (None: all 1)."""

    weights: Any


@dataclass(frozen=True)
class CacheSource:
    """Origin of the entries of a service: ``key`` of the provider with its arguments; its address; the list, whose
    entries are files below ``root`` or other names; the slots. ``fetch_address``: that of the fetch process, which
    knows the versions of remote files, "" if there is none."""

    key: str
    provider: str
    files: Sequence[str]
    root: str
    slots: Slots
    weighted: bool
    fetch_address: str = ""


@dataclass(frozen=True)
class DiskHit:
    """The samples of ``file``, with the stamp ``stamp``, are on the disk and were verified. ``end``: end checksum of
    the file."""

    file: int
    stamp: tuple[int, ...]
    pieces: list[StoredPiece]
    dropped: tuple[DroppedSample, ...]
    end: EndChecksum = (0, 0)


@dataclass(frozen=True)
class DiskMiss:
    """``file`` is not in the cache. ``stamp``: its present stamp; if it is None, the file must not be cached."""

    file: int
    stamp: tuple[int, ...] | None


@dataclass(frozen=True)
class OfferSettled:
    """The offered samples of ``file`` are on the disk, or will not be."""

    file: int


@dataclass(frozen=True)
class CacheNotice:
    """Notice for the user."""

    text: str
    event: LogEvent


DiskAnswer = DiskHit | DiskMiss | OfferSettled | CacheNotice


def cache_key(*parts: Any) -> str:
    """Return the key that belongs to the plain values ``parts``."""
    return blake2b(cast(bytes, msgpack.packb(parts)), digest_size=12, person=b"pydp2 cache").hexdigest()
