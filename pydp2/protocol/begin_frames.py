"""Make and read the raw frames of BeginPass: the pool of a point, cut into frames, and early-end records behind it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pydp2.errors import LocalProtocolError, RemoteProtocolError
from pydp2.protocol.early_ends import split_frames, to_frames
from pydp2.protocol.messages import HEADER_LIMIT, BeginPass, Buffer

_MAX_FRAMES = 1024  # of 64 KiB at most: a pool of more samples than memory could hold


def begin_frames(pool: bytes, early_ends: Iterable[Sequence[Any]]) -> tuple[list[bytes], int]:
    """Return the frames, and how many of them hold early-end records, ``[file, sample index, reason]``. Raises
    LocalProtocolError if there are too many."""
    records = to_frames(early_ends)
    frames = [pool[i : i + HEADER_LIMIT] for i in range(0, len(pool), HEADER_LIMIT)] + records
    if len(frames) > _MAX_FRAMES:
        raise LocalProtocolError(f"BeginPass would have {len(frames)} frames, at most {_MAX_FRAMES} are allowed")
    return frames, len(records)


def split_begin_frames(begin: BeginPass, body: Sequence[Buffer]) -> tuple[bytes, list[list[Any]]]:
    """Return the pool and the early-end records in the frames of ``begin``. Raises RemoteProtocolError."""
    if len(body) > _MAX_FRAMES:
        raise RemoteProtocolError(f"BeginPass: {len(body)} frames, at most {_MAX_FRAMES} are allowed")
    frames, records = split_frames("BeginPass", body, begin.early_end_frames)
    if bool(frames) != bool(begin.snapshot):
        raise RemoteProtocolError("BeginPass: a point and its pool come together")
    return b"".join(frames), records
