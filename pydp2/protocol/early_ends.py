"""Send early-end records as raw frames behind all others, because there may be more of them than a header holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from msgpack import packb, unpackb

from pydp2.errors import RemoteProtocolError, sendable
from pydp2.protocol.messages import HEADER_LIMIT, INT_LIMIT, Buffer

EarlyEnds = Mapping[int, tuple[int, str]]
"""Sample index and reason of each file that ends early."""
_MAX_REASON = 300  # characters of a reason
_MAX_PER_FRAME = 1000  # records in one frame
_RECORD_OVERHEAD = 40  # bytes that a record takes at most beside its reason


def to_list(early_ends: EarlyEnds) -> list[list[Any]]:
    """Return ``early_ends`` as ``[file, sample index, reason]``."""
    return [[file, y, reason] for file, (y, reason) in early_ends.items()]


def by_file(early_ends: Iterable[Sequence[Any]]) -> dict[int, tuple[int, str]]:
    """Return the early ends from the result of :func:`to_list`."""
    return {file: (y, reason) for file, y, reason in early_ends}


def to_frames(early_ends: Iterable[Sequence[Any]]) -> list[bytes]:
    """Return early-end records ``[file, sample index, reason]`` as frames of at most 64 KiB. Long reasons are cut."""
    groups: list[list[list[Any]]] = []
    room = 0
    for file, y, reason in early_ends:
        text = sendable(str(reason)[:_MAX_REASON])
        size = _RECORD_OVERHEAD + len(text.encode())
        if size > room or len(groups[-1]) >= _MAX_PER_FRAME:
            groups.append([])
            room = HEADER_LIMIT - _RECORD_OVERHEAD
        groups[-1].append([file, y, text])
        room -= size
    return [cast(bytes, packb(group)) for group in groups]


def from_frames(frames: Iterable[Buffer]) -> list[list[Any]]:
    """Return the records of frames that :func:`to_frames` made. Raises RemoteProtocolError for invalid records."""
    early_ends: list[list[Any]] = []
    for frame in frames:
        if memoryview(frame).nbytes > HEADER_LIMIT:
            raise RemoteProtocolError(f"a frame of early-end records of {memoryview(frame).nbytes} bytes")
        try:
            group = unpackb(frame, max_array_len=_MAX_PER_FRAME, max_map_len=0, max_ext_len=0, max_bin_len=0)
        except Exception as error:  # msgpack raises many kinds; all mean the same here
            raise RemoteProtocolError(f"early-end records that are not msgpack: {type(error).__name__}") from None
        if not isinstance(group, list):
            raise RemoteProtocolError("early-end records must be lists of [file, sample index, reason]")
        for early_end in group:
            if not isinstance(early_end, list) or [type(value) for value in early_end] != [int, int, str]:
                raise RemoteProtocolError("early-end records must be lists of [file, sample index, reason]")
            if not 0 <= min(early_end[:2]) <= max(early_end[:2]) < INT_LIMIT:
                raise RemoteProtocolError("early-end records must have numbers from 0 to below 2**62")
        early_ends += group
    return early_ends


def split_frames(message_name: str, body: Sequence[Buffer], frame_count: int) -> tuple[list[Any], list[list[Any]]]:
    """Split the last ``frame_count`` frames off those of a message; return the other frames, and the early-end records
    in the last ones. ``message_name``: name of the message, for errors."""
    if frame_count > len(body):
        raise RemoteProtocolError(f"{message_name}: {frame_count} frames of early-end records, but {len(body)} in all")
    edge = len(body) - frame_count
    return list(body[:edge]), from_frames(body[edge:])
