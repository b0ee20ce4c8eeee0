"""Read plain data from a pickle without :mod:`pickle`: a record cannot run code or build an object of a class.

A pickle is a program for a small stack machine. The disassembler of the standard library (:mod:`pickletools`) gives its
steps. This module does the steps that build numbers, texts, bytes and collections. For steps that name a class or a
function, :mod:`.pickled_arrays` knows the few names that numpy writes for arrays and scalars; any other name is an
error, which shows the name. The size of the result stays in proportion to the size of the pickle.
"""

from __future__ import annotations

import codecs
import io
import pickletools
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from pydp2.errors import FormatError
from pydp2.formats.first_bytes import COUNT, looks_like
from pydp2.reader import pickled_arrays as arrays

_MARK = object()

_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, Callable[[], Any]] = {"EMPTY_LIST": list, "EMPTY_TUPLE": tuple, "EMPTY_DICT": dict, "EMPTY_SET": set}
_VALUES = {
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT",
    "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8",
    "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8",
}  # fmt: skip
_OLD_TEXTS = {"STRING", "BINSTRING", "SHORT_BINSTRING"}
_TABLE = {step.code.encode("latin-1"): step for step in pickletools.opcodes}
_COPIED = (bytes, bytearray, str, list, tuple, set)
# one way to match each text: of an octal escape only the first digit, because the others match as any sign does
_QUOTED = re.compile(rb"""['"](?:[^\\]|\\(?:[\\'"abfnrtv0-7]|x[0-9a-fA-F]{2}))*['"]""", re.DOTALL)
_REFUSED = {"INST", "PERSID", "BINPERSID", "EXT1", "EXT2", "EXT4"}
_COLLECTIONS = (list, tuple, dict, set, frozenset)
_NOTHING_TO_DO = {"PROTO", "FRAME", "READONLY_BUFFER"}


def plain(data: bytes) -> Any:
    """Return the value of the pickle ``data``, of any protocol, if it is plain.

    Plain values are None, bools, ints, floats, texts, bytes, lists, tuples, dicts, sets, and numpy arrays and scalars
    of numbers, bools or texts. A str of Python 2 becomes text if it is UTF-8, and bytes otherwise. A complex number is
    plain only in an array or as a numpy scalar. Bytes after the end of the pickle are ignored.

    Raises FormatError: ``data`` is no pickle, is damaged, or holds something else, which the text names.
    """
    machine = _Machine(len(data))
    at = 0
    try:
        for position, name, argument in _steps(data):
            at = position
            if name == "STOP":
                return machine.result()
            machine.do(name, argument)
    except FormatError as error:
        if error.offset is None:
            raise FormatError(str(error), offset=at) from None
        raise
    except (ValueError, TypeError, IndexError, KeyError, OverflowError, RecursionError) as error:
        known = "" if at or data.startswith(b"\x80") else looks_like(data[:COUNT])
        what = f"the record is not a pickle, or it is damaged: {error} (at byte {at})"
        raise FormatError(f"{what}; it looks like {known}" if known else what, offset=at) from None
    raise AssertionError("the steps of a pickle end with an error or a STOP")


def _steps(data: bytes) -> Iterator[tuple[int, str, Any]]:
    """Yield offset, name and argument of each step.

    It is :func:`pickletools.genops`, but it also reads the texts of Python 2 outside ASCII.
    """
    file = io.BytesIO(data)
    while True:
        at, code = file.tell(), file.read(1)
        step = _TABLE.get(code)
        if step is None:
            raise ValueError(f"{code!r} is no step" if code else "it ends without its last step")
        argument: Any = None
        if code == b"S":
            argument = _unquoted(_line(file))
        elif code == b"c":
            argument = _line(file).decode("ascii"), _line(file).decode("ascii")
        elif step.arg is not None and step.name not in _REFUSED:
            argument = step.arg.reader(file)
        yield at, step.name, argument


def _line(file: io.BytesIO) -> bytes:
    line = file.readline()
    if not line.endswith(b"\n"):
        raise ValueError("it ends within a line")
    return line[:-1]


def _unquoted(text: bytes) -> str:
    """Return the text of a Python 2 str from its repr, each byte as a character."""
    if not _QUOTED.fullmatch(text) or text[:1] != text[-1:]:
        raise ValueError("a text that Python 2 did not write so")
    return codecs.escape_decode(text[1:-1])[0].decode("latin-1")


class _Machine:
    """Stack machine that runs the steps of a pickle: its stack with marks, and its memo."""

    def __init__(self, size: int) -> None:
        self._room = 4 * size + 1024  # elements and bytes that steps may still copy; a real pickle needs fewer
        self._names = False  # True after a step that names a class or function
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._memo_keys: dict[int, list[int]] = {}  # by id of an object: its keys in the memo, also former ones

    def result(self) -> Any:
        """Return the one value that is left."""
        (value,) = self._stack
        if value is _MARK or (self._names and _holds_a_name(value)):
            raise ValueError("its result is not a value")
        return value

    def do(self, name: str, argument: Any) -> None:
        """Do one step."""
        stack = self._stack
        if name in _VALUES:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name in _OLD_TEXTS:
            stack.append(_old_text(argument))
        elif name in ("MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT"):
            self._keep(len(self._memo) if name == "MEMOIZE" else int(argument), self._top())
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(self._memo[int(argument)])
        elif name in ("GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "NEWOBJ", "OBJ", "INST"):
            self._object(name, argument)
        elif name not in _NOTHING_TO_DO:
            self._collection(name)

    def _collection(self, name: str) -> None:
        stack = self._stack
        match name:
            case "MARK":
                stack.append(_MARK)
            case "POP":
                stack.pop()
            case "POP_MARK":
                self._marked()
            case "DUP":
                stack.append(self._top())
            case "APPEND":
                item = self._value()
                self._top(list).append(item)
            case "APPENDS":
                items = self._marked()
                self._top(list).extend(items)
            case "LIST":
                stack.append(self._marked())
            case "TUPLE":
                stack.append(tuple(self._marked()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                count = int(name[-1])
                values = [self._value() for _ in range(count)]
                stack.append(tuple(reversed(values)))
            case _:
                self._keyed_collection(name)

    def _keyed_collection(self, name: str) -> None:
        stack = self._stack
        match name:
            case "DICT":
                stack.append(_pairs(self._marked()))
            case "SETITEM":
                value, key = self._value(), self._value()
                self._top(dict)[arrays.key(key)] = value
            case "SETITEMS":
                items = self._marked()
                self._top(dict).update(_pairs(items))
            case "ADDITEMS":
                items = self._marked()
                self._top(set).update(map(arrays.key, items))
            case "FROZENSET":
                stack.append(frozenset(map(arrays.key, self._marked())))
            case _:
                raise FormatError(f"the pickle wants the step {name}, which plain data has no need of")

    def _object(self, name: str, argument: Any) -> None:
        stack, self._names = self._stack, True
        match name:
            case "GLOBAL":
                stack.append(arrays.named(*argument))
            case "STACK_GLOBAL":
                attribute, module = stack.pop(), stack.pop()
                stack.append(arrays.named(str(module), str(attribute)))
            case "REDUCE":
                given, function = self._counted(stack.pop()), stack.pop()
                stack.append(arrays.call(function, given))
            case "BUILD":
                state, old = self._counted(stack.pop()), self._top()
                built = arrays.build(old, state)
                stack[-1] = built
                keys = self._memo_keys.pop(id(old), [])
                self._room -= len(keys)  # one object at many keys could otherwise be built again and again
                for key in keys:
                    if self._memo[key] is old:
                        self._keep(key, built)
            case _:
                raise FormatError("the pickle builds an object of a class; only plain data and numpy arrays are read")

    def _keep(self, key: int, value: Any) -> None:
        self._memo[key] = value
        self._memo_keys.setdefault(id(value), []).append(key)

    def _counted(self, given: Any) -> tuple[Any, ...]:
        """Return the arguments of a step, while there is room: one array could otherwise be copied without end."""
        if type(given) is not tuple:
            raise TypeError("arguments that are not a tuple")
        self._room -= 1 + sum(len(argument) for argument in given if isinstance(argument, _COPIED))
        if self._room < 0:
            raise ValueError("what it builds is out of proportion to its size")
        return given

    def _top(self, kind: type | None = None) -> Any:
        value = self._stack[-1]
        if value is _MARK or (kind is not None and type(value) is not kind):
            raise TypeError(f"a step needs {'a value' if kind is None else f'a {kind.__name__}'} on the stack")
        return value

    def _value(self) -> Any:
        value = self._stack.pop()
        if value is _MARK:
            raise TypeError("a step needs a value and finds a mark")
        return value

    def _marked(self) -> list[Any]:
        """Remove all above the last mark, and the mark, and return the values."""
        values = []
        while (value := self._stack.pop()) is not _MARK:
            values.append(value)
        values.reverse()
        return values


def _pairs(items: list[Any]) -> dict[Any, Any]:
    if len(items) % 2:
        raise ValueError("a dict with a key that has no value")
    return dict(zip(map(arrays.key, items[::2]), items[1::2], strict=True))


def _holds_a_name(value: Any) -> bool:
    """Return True if a class or function that was named, or a dtype, is left somewhere in ``value``."""
    waiting, seen = [value], set()
    while waiting:
        item = waiting.pop()
        if isinstance(item, arrays.Named | np.dtype):
            return True
        if type(item) in _COLLECTIONS and id(item) not in seen:
            seen.add(id(item))
            waiting += item
            if type(item) is dict:
                waiting += item.values()
    return False


def _old_text(text: object) -> str | bytes:
    """Return a Python 2 str as text if it is UTF-8, else as bytes. The disassembler gives each byte as a character."""
    raw = str(text).encode("latin-1")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw
