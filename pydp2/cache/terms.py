"""What the loop of a server and its cache on disk tell each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Protocol, cast

import msgpack

from pydp2.cache.entry import Hole, Piece
from pydp2.cache.memory import Samples
from pydp2.inputs.spec import Slots


class WeightedSamples(Samples, Protocol):
    """Samples with their weights (None: all 1)."""

    weights: Any


@dataclass(frozen=True)
class Origin:
    """What the entries of a service are of: ``key`` of the provider and all that it is told; its address; the list,
    whose entries are files below ``root`` or names of something else; the slots."""

    key: str
    provider: str
    files: Sequence[str]
    root: str
    slots: Slots
    weighted: bool


@dataclass(frozen=True)
class Found:
    """All of ``file`` is on the disk, and was verified."""

    file: int
    pieces: list[Piece]
    holes: tuple[Hole, ...]


@dataclass(frozen=True)
class Missing:
    """``file`` is not there. ``stamp``: of the file now; what is read from here on may be kept unless it is None."""

    file: int
    stamp: tuple[int, ...] | None


@dataclass(frozen=True)
class Settled:
    """What was offered of ``file`` is on the disk, or will not be."""

    file: int


@dataclass(frozen=True)
class Said:
    """Something that the user is to know."""

    text: str
    kind: str


Answer = Found | Missing | Settled | Said


def key_of(*parts: Any) -> str:
    """A key of plain values."""
    return blake2b(cast(bytes, msgpack.packb(parts)), digest_size=12, person=b"pydp2 cache").hexdigest()
