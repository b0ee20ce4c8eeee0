"""Name what all messages have in common: their base, and the types of their fields."""

from __future__ import annotations

from typing import Any, ClassVar, TypeAlias

WIRE_VERSION = 13
HEADER_LIMIT = 64 * 1024
INT_LIMIT = 1 << 62  # all numbers on the wire are below it, so that sums and shared memory of 64 bits hold them

Buffer: TypeAlias = Any  # bytes, memoryview, zmq frame buffer or ndarray: all that offers its bytes
Plain: TypeAlias = dict[str, Any]
Word: TypeAlias = int  # unsigned, of 64 bits


class Message:
    """Base of all messages."""

    __slots__ = ()
    has_body: ClassVar[bool] = False
