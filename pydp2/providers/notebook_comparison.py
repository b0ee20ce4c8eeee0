"""Compare what a module file of a notebook defines with what the notebook has. See docs/notebooks.md.

A statement that runs again need not give the same: a value that a default was made of may have changed, a method may
have been replaced, an implementation registered. So functions and classes are compared by what they consist of, down
to code and plain values.
"""

from __future__ import annotations
import __future__

import copyreg
import importlib.util
import linecache
import re
import sys
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from types import CellType, CodeType, FunctionType, MappingProxyType
from typing import Any

import numpy as np

from pydp2.providers.decorator import Provider

_MOST_OBJECTS = 1_000_000  # that are compared: of some objects each attribute is another such object, without end
_MODULE = "_pydp2_compared_"  # begins the name of the module
_PLAIN = (type(None), bool, int, float, complex, bytes, str, type(...))
_FUTURES = sum({getattr(__future__, name).compiler_flag for name in __future__.all_feature_names})
_CODE = (
    "co_consts", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_argcount", "co_posonlyargcount",
    "co_kwonlyargcount",
)  # fmt: skip
_FUNCTION = ("__code__", "__defaults__", "__kwdefaults__", "__closure__", "__doc__", "__name__", "__qualname__")
_LEFT_OUT = {  # where it was defined; annotations, which are text in some cells; what Python keeps
    "__module__", "__firstlineno__", "__static_attributes__", "__dict__", "__weakref__", "__annotations__",
    "__slotnames__", "__annotations_cache__", "__annotate__", "__annotate_func__", "_value2member_map_",
    "_inverted_",
}  # fmt: skip
_CACHES = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet)


_ID = re.compile(r"\d{9,}")
_HIDDEN = re.compile(
    r"\.(__code__|__closure__|__func__|fget|fset|fdel|__reduce__\b|_value_\b).*"
)  # that no user would know


def differences(names: Iterable[str], namespace: Mapping[str, Any], file: Path) -> list[str]:
    """Import ``file`` and return which of ``names`` it does not define as ``namespace`` does, each with the attribute
    that differs. What the file raises is passed on."""
    module_name = f"{_MODULE}{file.stem}"
    spec = importlib.util.spec_from_file_location(module_name, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[module_name] = importlib.util.module_from_spec(spec)  # dataclasses look there
    text = file.read_text("utf-8", "surrogateescape")
    linecache.cache[str(file)] = (len(text), None, [text], str(file))  # like a cell
    try:
        spec.loader.exec_module(module)
        comparison = _Comparison(module_name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some types warn of being taken apart
            found = [comparison.difference(name, namespace[name], vars(module)[name]) for name in names]
    finally:
        sys.modules.pop(module_name, None)
        linecache.cache.pop(str(file), None)
    return [_HIDDEN.sub("", where) for where in found if where]


class _Comparison:
    """Compares objects of ``__main__`` with objects of the module ``name``."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._seen: dict[tuple[int, int], tuple[Any, Any]] = {}  # keeps them: an id may not be used again

    def difference(self, name: str, live: Any, made: Any) -> str:
        """Return what differs first, as ``name`` with attributes behind it, or ''."""
        left = [(name, live, made)]
        while left:
            where, live, made = left.pop()
            if live is made or (id(live), id(made)) in self._seen:
                continue
            if len(self._seen) > _MOST_OBJECTS or not self._is_alike(live, made):
                return where
            if type(live) in _PLAIN:
                continue
            self._seen[id(live), id(made)] = (live, made)
            parts, others = dict(_parts(live)), dict(_parts(made))
            if list(parts) != list(others):
                odd = [label for label in [*parts, *others] if label not in parts or label not in others]
                return where + "".join(odd[:1])
            left += [(where + label, part, others[label]) for label, part in reversed(parts.items())]
        return ""

    def _is_alike(self, live: Any, made: Any) -> bool:
        """Return True if two objects are equal, or may be as far as their parts are."""
        if isinstance(live, type) and isinstance(made, type):
            return (live.__module__, live.__qualname__) == (self._as_live(str(made.__module__)), made.__qualname__)
        if type(live) is not type(made):
            return self._is_alike(type(live), type(made))
        if type(live) is str:
            # A text with the name of the module may be that of a class, with its id.
            return live == made or (self._name in made and _ID.sub("", live) == _ID.sub("", self._as_live(made)))
        return type(live) not in _PLAIN or repr(live) == repr(made)  # also of NaN and of -0.0

    def _as_live(self, text: str) -> str:
        return text.replace(self._name, "__main__")


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what an object consists of, each with an attribute or index. What cannot be looked into has only its class:
    two such objects count as equal."""
    kind = type(value)
    yield ".__class__", kind
    if isinstance(value, type):
        yield from _attributes(dict(sorted(vars(value).items())))
        yield ".__bases__", value.__bases__
    elif kind is FunctionType:
        yield from _named(value, _FUNCTION)
        yield from _attributes(vars(value))
    elif kind is CodeType:
        yield from _named(value, _CODE)
        yield from ((".co_flags", value.co_flags & ~_FUTURES), (".co_code", _source(value)))
    elif kind in (tuple, list):
        yield from ((f"[{index}]", part) for index, part in enumerate(value))
    elif kind in (set, frozenset):
        yield from ((f"[{index}]", part) for index, part in enumerate(sorted(value, key=_order)))
    elif kind in (dict, MappingProxyType):
        yield from _entries(value)
    elif kind not in _CACHES:
        yield from _state(value)


def _state(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts of an object of any other type."""
    kind = type(value)
    if kind is CellType:
        yield from _contents(value)
    elif kind is property:
        yield from _named(value, ("fget", "fset", "fdel"))
    elif kind in (staticmethod, classmethod):
        yield ".__func__", value.__func__
    elif hasattr(kind, "__dlpack__") and (array := _array(value)) is not None:
        yield from ((".dtype", array.dtype), (".shape", array.shape), (".tobytes()", array.tobytes()))
    elif isinstance(value, Enum):
        yield from _attributes(vars(value))  # a copy is made of the value alone, or of the name (Python 3.11.2)
    elif kind is Provider:
        yield from _named(value, ("options", "function"))
    elif not kind.__module__.startswith(("__main__", _MODULE)) and "__wrapped__" in getattr(value, "__dict__", ()):
        yield ".__wrapped__", value.__wrapped__  # such objects count calls, and keep what they have compiled
    elif isinstance(reduced := _reduced(value), tuple):
        for index, part in enumerate(reduced):
            if index == 2 and type(part) is dict and all(type(key) is str for key in part):
                yield from _attributes(part)
            else:
                yield f".__reduce__()[{index}]", list(part) if isinstance(part, Iterator) else part
    else:  # it is known by its name
        yield from _attributes(getattr(value, "__dict__", {}))


def _source(code: CodeType) -> bytes:
    """Return the text of what runs in a function of a cell. Its code depends on the rest of its file: the attributes of
    what is imported there are looked up by other instructions. Elsewhere there is only the code."""
    entry = linecache.cache.get(code.co_filename, ())
    # a file on disk, none, or the text of `python -c`, whose name is that of all code that a program makes
    if len(entry) != 4 or entry[1] is not None or code.co_filename == "<string>":
        return code.co_code
    spans = [
        ((line, column or 0), (end_line, sys.maxsize if end is None else end))
        for line, end_line, column, end in code.co_positions()
        if line and end_line and (column is None or (line, column) != (end_line, end))
    ]
    if not spans:
        return b""
    (first, begin), (last, end) = min(spans)[0], max(span[1] for span in spans)
    lines = "".join(entry[2]).encode("utf-8", "surrogatepass").split(b"\n")[first - 1 : last]  # columns count bytes
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][begin:]
    return b"\n".join(lines)


def _attributes(names: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield from ((f".{name}", value) for name, value in names.items() if name not in _LEFT_OUT)


def _named(value: Any, names: Iterable[str]) -> Iterator[tuple[str, Any]]:
    yield from ((f".{name}", getattr(value, name)) for name in names)


def _entries(value: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    for index, (key, entry) in enumerate(value.items()):
        if type(key) in _PLAIN:
            yield f"[{key!r}]", entry
        else:
            yield f".keys()[{index}]", key
            yield f".values()[{index}]", entry


def _order(value: Any) -> str:
    """Return a key that sorts the entries of equal sets alike."""
    if type(value) is tuple:
        return f"({','.join(map(_order, value))})"
    if type(value) is frozenset:
        return f"{{{','.join(sorted(map(_order, value)))}}}"
    return repr(value) if type(value) in _PLAIN else str(getattr(value, "__qualname__", type(value)))


def _contents(cell: CellType) -> Iterator[tuple[str, Any]]:
    try:
        yield ".cell_contents", cell.cell_contents
    except ValueError:  # it is empty
        return


def _array(value: Any) -> np.ndarray[Any, Any] | None:
    """Return the array of a tensor; None if it has none, or one of objects."""
    try:
        array = np.asarray(value)
    except Exception:  # it is elsewhere, or has gradients
        return None
    return None if array.dtype == object else array


def _reduced(value: Any) -> Any:
    """Return what copy.copy() would make another such object of; None if it could not."""
    try:
        known = copyreg.dispatch_table.get(type(value))
        return known(value) if known else value.__reduce_ex__(4)
    except Exception:
        return None
