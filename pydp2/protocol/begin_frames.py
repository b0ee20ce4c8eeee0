"""Make and read the raw frames of BeginPass: the pool of a point and checksums of files that were read since, cut into
frames, and early-end records behind them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from pydp2.errors import LocalProtocolError, RemoteProtocolError
from pydp2.protocol.early_ends import split_frames, to_frames
from pydp2.protocol.messages import HEADER_LIMIT, BeginPass, Buffer

_MAX_FRAMES = 1024  # of 64 KiB at most: a pool of more samples than memory could hold


class BeginBody(NamedTuple):
    """Content of the frames of BeginPass: the pool of its point, encoded checksums, and early-end records, ``[file,
    sample index, reason]``."""

    pool: bytes
    checksums: bytes
    early_ends: list[list[Any]]


def begin_frames(pool: bytes, checksums: bytes, early_ends: Iterable[Sequence[Any]]) -> tuple[list[bytes], int, int]:
    """Return the frames, and how many of them hold checksums and early-end records. Raises LocalProtocolError if there
    are too many."""
    records, parts = to_frames(early_ends), _cut(checksums)
    frames = _cut(pool) + parts + records
    if len(frames) > _MAX_FRAMES:
        raise LocalProtocolError(f"BeginPass would have {len(frames)} frames, at most {_MAX_FRAMES} are allowed")
    return frames, len(parts), len(records)


def _cut(data: bytes) -> list[bytes]:
    return [data[i : i + HEADER_LIMIT] for i in range(0, len(data), HEADER_LIMIT)]


def split_begin_frames(begin: BeginPass, body: Sequence[Buffer]) -> BeginBody:
    """Return what the frames of ``begin`` hold. Raises RemoteProtocolError."""
    if len(body) > _MAX_FRAMES:
        raise RemoteProtocolError(f"BeginPass: {len(body)} frames, at most {_MAX_FRAMES} are allowed")
    frames, records = split_frames("BeginPass", body, begin.early_end_frames)
    edge = len(frames) - begin.checksum_frames
    if edge < 0:
        raise RemoteProtocolError(f"BeginPass: {begin.checksum_frames} frames of checksums, but {len(frames)} in all")
    if bool(edge) != bool(begin.snapshot):
        raise RemoteProtocolError("BeginPass: a point and its pool come together")
    return BeginBody(b"".join(frames[:edge]), b"".join(frames[edge:]), records)
