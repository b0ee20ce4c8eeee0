"""Name what all messages have in common: their base, and the types of their fields."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias, TypeVar, cast, dataclass_transform

WIRE_VERSION = 14
HEADER_LIMIT = 64 * 1024
INT_LIMIT = 1 << 62  # all numbers on the wire are below it, so that sums and shared memory of 64 bits hold them

Buffer: TypeAlias = Any  # bytes, memoryview, zmq frame buffer or ndarray: all that offers its bytes
Plain: TypeAlias = dict[str, Any]
Word: TypeAlias = int  # unsigned, of 64 bits


M = TypeVar("M", bound="Message")


class Message:
    """Base of all messages. Two messages are equal if they are of one kind and have equal fields."""

    __slots__ = ()
    has_body: ClassVar[bool] = False

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._values() == other._values()

    __hash__ = None  # type: ignore[assignment]  # fields may be dicts

    def __repr__(self) -> str:
        values = (f"{name}={value!r}" for name, value in zip(self._names(), self._values(), strict=True))
        return f"{type(self).__name__}({', '.join(values)})"

    def _names(self) -> tuple[str, ...]:
        return cast(tuple[str, ...], self.__slots__)  # those of a dataclass with slots are its fields

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self._names())


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def message(kind: type[M]) -> type[M]:
    """Make a dataclass of a kind of message. Type checkers treat it as frozen. When it runs, it is not, and all kinds
    share the methods of :class:`Message`: an object of a frozen dataclass takes more than twice as long to make, and
    six methods for each kind took a fifth of the time in which a service imports this package."""
    return dataclass(slots=True, eq=False, repr=False)(kind)
