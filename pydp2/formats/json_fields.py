"""Fields of JSON objects that become slots: their types, declared or those of some first objects, and their arrays.

A type is written as a text, because arguments of a provider are plain data: the kind of a value, then how many of them
a field has. :func:`declared` reads it, and :func:`inferred` finds it.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import chain
from typing import Annotated, Any

import numpy as np

from pydp2.data.columns.batch import Ragged, StringArray
from pydp2.data.packers.slot_writers import StructPackers
from pydp2.data.schema.input_types import InputType, dense_vector, scalar, scalar_sequence, text, text_sequence
from pydp2.errors import OptionError, OptionTypeError

_KINDS: dict[str, Any] = {"text": str, "bool": bool} | {f"float{bits}": float for bits in (16, 32, 64)}
_KINDS |= {f"{sign}int{bits}": int for sign in ("", "u") for bits in (8, 16, 32, 64)}
_SHORT = {"int": "int64", "float": "float32"}
_TYPE = re.compile(rf"({'|'.join(_KINDS | _SHORT)})(s|\[\]|\[([1-9]\d{{0,8}})\])?")
_PACKERS = {code: StructPackers(code) for code in "qQd?"}
_OF_VALUES = {bool: "bool", int: "int64", float: "float32", str: "text"}


@dataclass(frozen=True)
class JsonField:
    """A field that is served.

    Attributes:
        name: its key; ``a.b`` is the key b of the object at key a. It is also the name of the slot.
        kind: "text", or the dtype of its numbers.
        length: None: one value; 0: a list of any length; n: a list of n numbers.
        null: the value for null and for a missing key, in a tuple; () if neither is allowed.
    """

    name: str
    kind: str
    length: int | None = None
    null: tuple[Any, ...] = ()

    @property
    def slot(self) -> InputType:
        """Type of its slot."""
        if self.kind == "text":
            return text() if self.length is None else text_sequence()
        if self.length is None:
            return scalar(self.kind)
        return dense_vector(self.length, dtype=self.kind) if self.length else scalar_sequence(self.kind)

    @property
    def type_text(self) -> str:
        """Text from which :func:`declared` makes its type."""
        return self.kind if self.length is None else f"{self.kind}[{self.length or ''}]"

    def value_type(self) -> Any:
        """Return the type as which msgspec decodes a value."""
        kind: Any = _KINDS[self.kind]
        if self.length is None:
            return kind
        if not self.length:
            return list[kind]
        return Annotated[list[kind], msgspec_library().Meta(min_length=self.length, max_length=self.length)]

    def column(self, values: list[Any]) -> Any:
        """Return ``values`` as ``rows`` takes them. Raises OverflowError: an integer is beyond 64 bits."""
        if self.null:
            values = [self.null[0] if value is None else value for value in values]
        if self.length is None:
            return _strings(values) if self.kind == "text" else self._numbers([values])
        counts = np.fromiter(map(len, values), np.int64, len(values))
        flat: Any = _strings(list(chain.from_iterable(values))) if self.kind == "text" else self._numbers(values)
        return flat.reshape(-1, self.length) if self.length else Ragged(flat, _edges(counts))

    def _numbers(self, lists: list[list[Any]]) -> Any:
        """Return the numbers of all lists as an array; pydp2 checks what does not fit a narrower dtype."""
        kind = _KINDS[self.kind]
        code = {int: "Q" if self.kind == "uint64" else "q", float: "d", bool: "?"}[kind]
        packers = _PACKERS[code]
        try:  # struct takes a third of the time of numpy.fromiter
            data = b"".join([packers[len(numbers)](*numbers) for numbers in lists])
        except struct.error as error:
            raise OverflowError(str(error)) from None
        return np.frombuffer(data, code)


def _strings(values: list[str]) -> StringArray:
    joined = "".join(values)
    data = joined.encode()
    encoded = values if len(data) == len(joined) else map(str.encode, values)  # in ASCII a character is a byte
    return StringArray(_edges(np.fromiter(map(len, encoded), np.int64, len(values))), np.frombuffer(data, np.uint8))


def _edges(counts: Any) -> Any:
    return np.concatenate(([0], np.cumsum(counts)))


def declared(name: Any, kind: Any) -> JsonField:
    """Return the field ``name`` of the type ``kind``: "text", "bool", "int", "float" or a dtype; with "s" or "[]"
    behind it a list, with "[N]" a list of N numbers.

    Raises:
        OptionError, OptionTypeError: it is something else.
    """
    if not isinstance(name, str) or not isinstance(kind, str):
        raise OptionTypeError(
            f"fields must be a list of names, or a dict of types by name, got {kind!r:.40} of {name!r:.40}"
        )
    found = _TYPE.fullmatch(kind)
    if found is None or (found[1] == "text" and found[3]):
        known = "text, bool, int, float or a dtype such as int32, each with an s or [] for a list"
        raise OptionError(f"the type of field {name!r} must be {known}, [N] for a list of N numbers; got {kind!r:.40}")
    return JsonField(name, _SHORT.get(found[1], found[1]), int(found[3] or 0) if found[2] else None)


def with_nulls(fields: Sequence[JsonField], nulls: Any) -> list[JsonField]:
    """Return ``fields`` with the values that stand for null.

    Raises:
        OptionError, OptionTypeError: ``nulls`` has another field, or a value that does not fit its field.
    """
    if not isinstance(nulls, Mapping):
        raise OptionTypeError(f"nulls must be a dict of values by field, got {nulls!r:.80}")
    names = [field.name for field in fields]
    for name in nulls:
        if name not in names:
            raise OptionError(f"nulls names {name!r:.40}, which is no field that is served: {', '.join(names):.200}")
    msgspec = msgspec_library()
    done = []
    for field in fields:
        if field.name in nulls:
            try:
                value = msgspec.convert(nulls[field.name], field.value_type())
            except msgspec.ValidationError as error:
                raise OptionTypeError(f"nulls: the value of {field.name!r} does not fit the field: {error}") from None
            field = replace(field, null=(value,))
        done.append(field)
    return done


def inferred(records: Iterable[Mapping[str, Any]], names: Sequence[str] | None, path: str) -> list[JsonField]:
    """Return the fields ``names``, or all, with the types that they have in ``records``, the first objects of ``path``.

    Raises:
        OptionError: no object has a field, or a field has no type.
    """
    kinds: dict[str, str] = {}
    for record in records:
        for name, kind in _leaves(record, ""):
            kinds[name] = _both(kinds.get(name, ""), kind)
    for name in [name for name, kind in kinds.items() if not kind]:
        if any(other.startswith(f"{name}.") for other in kinds):
            del kinds[name]  # null in place of an object
    for name in names or ():
        if name not in kinds:
            near = get_close_matches(name, kinds, 1)
            hint = f", did you mean {near[0]!r}?" if near else ""
            have = ", ".join(kinds)
            raise OptionError(f"{path}: no field {name!r:.80} in its first lines{hint}; they have {have:.200}")
    chosen = kinds if names is None else {name: kinds[name] for name in names}
    good = [name for name, kind in chosen.items() if _TYPE.fullmatch(kind)]
    for name, kind in chosen.items():
        if name not in good:
            what = {"": "null in all", "[]": "an empty list in all"}.get(kind, kind)
            raise OptionError(
                f"{path}: the first lines give no type for the field {name!r:.80}, which is {what}; leave it out, with "
                f"fields={good!r:.400}, or give its type, or write a provider with pydp2.formats.jsonl.read"
            )
    return [declared(name, kind) for name, kind in chosen.items()]


def _leaves(record: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    """Yield (name, type) of the values in an object, and in objects within it."""
    for key, value in record.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        elif "." in key:
            yield prefix + key, "a key with a dot, by which the key of an object within an object is named"
        else:
            yield prefix + key, _kind_of(value)


def _kind_of(value: Any) -> str:
    """Return the type of a value as ``fields`` would have it; "" for null; a text with blanks if there is none."""
    if value is None:
        return ""
    if not isinstance(value, list):
        return _OF_VALUES[type(value)]
    kind = ""
    for member in value:
        if isinstance(member, list | dict) or member is None:
            return f"a list with {'null' if member is None else 'lists' if isinstance(member, list) else 'objects'}"
        kind = _both(kind, _OF_VALUES[type(member)])
    return kind if " " in kind else f"{kind}[]"


def _both(one: str, other: str) -> str:
    """Return the type that holds values of both types; a text with blanks if there is none."""
    if " " in one or not other:
        return one
    if " " in other or not one:
        return other
    kinds = {one.removesuffix("[]"), other.removesuffix("[]")} - {""}
    if one.endswith("]") == other.endswith("]"):
        if len(kinds) <= 1:
            return max(one, other, key=len)
        if kinds == {"int64", "float32"}:
            return one if one.startswith("float") else other
    return f"{one} in some lines and {other} in others"


def msgspec_library() -> Any:
    """Return the module msgspec. Raises OptionError, with the remedy, if it is not installed."""
    try:
        import msgspec
    except ImportError:
        raise OptionError("jsonl needs msgspec, which is not installed: pip install 'msgspec>=0.18'") from None
    return msgspec
