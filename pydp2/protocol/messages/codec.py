"""Write the headers of messages, and check those that are read.

A header is ``[name, field, field, ...]`` in the order of the dataclass. When a header is read, every field's type is
checked, and that plain data inside is shallow and has texts as keys; nothing is executed, and nothing is decoded before
its length was checked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any, cast

from msgpack import packb, unpackb

from pydp2.errors import LocalProtocolError, RemoteProtocolError
from pydp2.protocol.figures import clip_figure
from pydp2.protocol.messages import client, host, rows, tracing, worker
from pydp2.protocol.messages.base import HEADER_LIMIT, INT_LIMIT, Buffer, Message

_MAX_ITEMS = 4096  # items in one list; msgpack makes room for as many as a list says it has, before it has seen one
_MAX_DEPTH = 12  # of lists and dicts; a deeper one would break code that shows or compares it by recursion

MESSAGES: dict[str, type[Message]] = {
    name: kind
    for module in (worker, host, rows, client, tracing)
    for name, kind in vars(module).items()
    if isinstance(kind, type) and issubclass(kind, Message) and kind is not Message
}
"""Messages by name, in the order in which they are defined."""
_TYPES: dict[str, tuple[type, int]] = {
    "int": (int, INT_LIMIT),
    "Word": (int, 1 << 64),
    "str": (str, 0),
    "bool": (bool, 0),
    "Plain": (dict, 0),
    "list[Any]": (list, 0),
}
_FIELDS: dict[type[Message], tuple[tuple[str, type, int], ...]] = {
    m: tuple((f.name, *_TYPES[str(f.type)]) for f in fields(cast(Any, m))) for m in MESSAGES.values()
}
_VALUES: dict[type[Message], Callable[[Message], Any]] = {
    m: attrgetter("__class__.__name__", *(name for name, _, _ in known)) for m, known in _FIELDS.items()
}


def encode(message: Message) -> bytes:
    """Return the header of ``message``. Raises LocalProtocolError if it would be larger than 64 KiB."""
    values = _VALUES[type(message)](message)
    header = cast(bytes, packb(values if _FIELDS[type(message)] else [values]))
    if len(header) > HEADER_LIMIT:
        name = type(message).__name__
        raise LocalProtocolError(f"the header of {name} needs {len(header)} bytes, it has at most {HEADER_LIMIT}")
    return header


def decode(frames: Sequence[Buffer]) -> tuple[Message, Sequence[Buffer]]:
    """Return the message and its raw frames. Raises RemoteProtocolError for anything that is not a message."""
    if not frames:
        raise RemoteProtocolError("a message without a header")
    if (size := memoryview(frames[0]).nbytes) > HEADER_LIMIT:
        raise RemoteProtocolError(f"a header of {size} bytes, at most {HEADER_LIMIT} are allowed")
    try:
        values = unpackb(  # a text is no longer than its header
            frames[0], max_array_len=_MAX_ITEMS, max_map_len=_MAX_ITEMS, max_ext_len=0, ext_hook=_refuse_extension
        )
    except Exception as exc:  # msgpack raises many kinds; all mean the same here
        raise RemoteProtocolError(f"a header that is not msgpack: {type(exc).__name__}: {exc}") from None
    if not isinstance(values, list) or not values or not isinstance(values[0], str):
        raise RemoteProtocolError("a header must be a list that begins with the message's name")
    kind = MESSAGES.get(values[0])
    if kind is None:
        raise RemoteProtocolError(f"unknown message {values[0][:40]!r}")
    fields = _FIELDS[kind]
    if len(values) - 1 != len(fields):
        raise RemoteProtocolError(f"{values[0]} has {len(values) - 1} fields, needs {len(fields)}")
    for at, ((name, want, limit), value) in enumerate(zip(fields, values[1:], strict=True), 1):
        if type(value) is not want:
            raise RemoteProtocolError(f"{values[0]}.{name}: expected {want.__name__}, got {type(value).__name__}")
        if type(value) is int and not 0 <= value < limit:
            values[at] = clip_figure(values[0], name, value)
        if type(value) is dict or type(value) is list:
            _check_plain(f"{values[0]}.{name}", value)
    body = frames[1:]
    if body and not kind.has_body:
        raise RemoteProtocolError(f"{values[0]} carries {len(body)} raw frames, none are allowed")
    return kind(*values[1:]), body


def _refuse_extension(code: int, data: bytes) -> Any:
    raise ValueError(f"extension {code}, none is allowed")


def _check_plain(what: str, value: Any) -> None:
    """Refuse nesting beyond the limit, and keys that are no texts."""
    level: list[Any] = [value]  # lists and dicts that are equally deep
    for _ in range(_MAX_DEPTH):
        deeper = []
        for items in level:
            if type(items) is dict:
                for key in items:
                    if type(key) is not str:
                        raise RemoteProtocolError(f"{what}: a key that is no text")
                items = items.values()
            for item in items:
                if type(item) is list or type(item) is dict:
                    deeper.append(item)
        if not deeper:
            return
        level = deeper
    raise RemoteProtocolError(f"{what}: nested more than {_MAX_DEPTH} deep")
