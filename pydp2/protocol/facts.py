"""Facts on the wire: raw frames behind all others, because there may be more of them than a header holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import msgpack

from pydp2.errors import RemoteProtocolError, sendable
from pydp2.protocol.messages import HEADER_LIMIT, INT_LIMIT, Buffer

Facts = Mapping[int, tuple[int, str]]
"""Of each file that ends early (ordinal, reason)."""
_REASON = 300  # characters
_MOST = 1000  # in one frame
_OVERHEAD = 40  # bytes that a fact takes at most beside its reason


def listed(facts: Facts) -> list[list[Any]]:
    """``facts`` as ``[file, ordinal, reason]``."""
    return [[file, y, reason] for file, (y, reason) in facts.items()]


def by_file(facts: Iterable[Sequence[Any]]) -> dict[int, tuple[int, str]]:
    """Inverse of :func:`listed`."""
    return {file: (y, reason) for file, y, reason in facts}


def to_frames(facts: Iterable[Sequence[Any]]) -> list[bytes]:
    """``[file, ordinal, reason]`` of files that ended early, in frames of at most 64 KiB. Long reasons are cut."""
    groups: list[list[list[Any]]] = []
    room = 0
    for file, y, reason in facts:
        text = sendable(str(reason)[:_REASON])
        size = _OVERHEAD + len(text.encode())
        if size > room or len(groups[-1]) >= _MOST:
            groups.append([])
            room = HEADER_LIMIT - _OVERHEAD
        groups[-1].append([file, y, text])
        room -= size
    return [cast(bytes, msgpack.packb(group)) for group in groups]


def from_frames(frames: Iterable[Buffer]) -> list[list[Any]]:
    """Inverse of :func:`to_frames`. Raises RemoteProtocolError for what cannot be facts."""
    facts: list[list[Any]] = []
    for frame in frames:
        if memoryview(frame).nbytes > HEADER_LIMIT:
            raise RemoteProtocolError(f"a frame of facts of {memoryview(frame).nbytes} bytes")
        try:
            group = msgpack.unpackb(frame, max_array_len=_MOST, max_map_len=0, max_ext_len=0, max_bin_len=0)
        except Exception as error:  # msgpack raises many kinds; all mean the same here
            raise RemoteProtocolError(f"facts that are not msgpack: {type(error).__name__}") from None
        if not isinstance(group, list):
            raise RemoteProtocolError("facts must be lists of [file, ordinal, reason]")
        for fact in group:
            if not isinstance(fact, list) or [type(value) for value in fact] != [int, int, str]:
                raise RemoteProtocolError("facts must be lists of [file, ordinal, reason]")
            if not 0 <= min(fact[:2]) <= max(fact[:2]) < INT_LIMIT:
                raise RemoteProtocolError("facts must have numbers from 0 to below 2**62")
        facts += group
    return facts


def split(what: str, body: Sequence[Buffer], count: int) -> tuple[list[Any], list[list[Any]]]:
    """The frames of a message without the last ``count``, and the facts that these hold. ``what``: its name."""
    if count > len(body):
        raise RemoteProtocolError(f"{what}: {count} frames of facts, but {len(body)} in all")
    edge = len(body) - count
    return list(body[:edge]), from_frames(body[edge:])
