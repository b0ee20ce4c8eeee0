"""Read plain records: dataclasses that travel as dicts by field name. Values are checked against the types of the
fields."""

from __future__ import annotations

from dataclasses import is_dataclass
from functools import cache
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from pydp2.errors import RemoteProtocolError

T = TypeVar("T")


def from_dict(record: type[T], plain: Any, what: str, **given: Any) -> T:
    """Return the ``record`` that travelled as ``plain``; the fields in ``given`` did not travel. ``what``: its name in
    errors. A field may be a bool, number, text, dict, tuple of one of these, plain record, or a union of these.

    Raises:
        RemoteProtocolError: a name or a type is not that of a field; the text names the field.
    """
    hints = field_types(record)  # type: ignore[arg-type]  # a class can be hashed
    need = hints.keys() - given.keys()
    if not isinstance(plain, dict) or plain.keys() != need:
        have = list(plain) if isinstance(plain, dict) else plain
        raise RemoteProtocolError(f"{what} must have exactly {sorted(need)}, got {have!r:.200}")
    return record(**{name: _read(hints[name], value, f"{what}.{name}") for name, value in plain.items()}, **given)


@cache  # a hint is a text that is compiled: 50 fields of a service take as long as a fork
def field_types(record: type[Any]) -> dict[str, Any]:
    """Return the types of the fields of ``record``, by name."""
    return get_type_hints(record, record.__init__.__globals__)  # looks names up in its module


def _read(hint: Any, value: Any, name: str) -> Any:
    """Return the value of the field ``name`` that travelled as ``value``."""
    for kind in get_args(hint) if isinstance(hint, UnionType) else (hint,):
        wanted = get_origin(kind) or kind
        if is_dataclass(wanted):
            return from_dict(kind, value, name)
        if wanted is tuple and type(value) is list:
            return tuple(_read(get_args(kind)[0], item, f"{name}[{at}]") for at, item in enumerate(value))
        if type(value) is wanted or (wanted is float and type(value) is int):
            return value
    need = getattr(hint, "__name__", hint)
    raise RemoteProtocolError(f"{name} must be {need}, got {value!r:.80} ({type(value).__name__})")
