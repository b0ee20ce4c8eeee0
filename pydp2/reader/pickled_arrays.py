"""Know the few names that numpy writes into a pickle for arrays, dtypes and scalars, for :mod:`.unpickled`.

This module never calls an object by the name that a pickle gives. Each known name stands for a function of this module,
which checks every argument before it makes an array.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np

from pydp2.errors import FormatError

_LARGEST_KEY = 1000  # items of nested tuples: C code hashes them, and limits neither its depth nor its time
_DTYPE = re.compile(r"[<>|=]?(?:b1|i[1248]|u[1248]|f[248]|c8|c16|[SU][1-9]\d{0,8})")
_MOST_SIDES = 32


class Named(NamedTuple):
    """Known name. ``make`` is the function that stands for it; None for a class that only arguments mention."""

    name: str
    make: Callable[..., Any] | None


def key(value: Any) -> Any:
    """Return ``value`` if it may be hashed without harm, as an element of a set or a key of a dict."""
    waiting, seen = [value], 0
    while waiting:
        item = waiting.pop()
        if type(item) is tuple:
            seen += len(item) + 1
            if seen > _LARGEST_KEY:
                raise ValueError(f"a key of more than {_LARGEST_KEY} items")
            waiting += item
    return value


def _dtype(code: Any, align: Any = False, copy: Any = False) -> np.dtype[Any]:
    text = code.decode("latin-1") if isinstance(code, bytes) else code
    if not isinstance(text, str) or not _DTYPE.fullmatch(text):
        raise FormatError(f"the pickle holds an array of dtype {code!r:.80}; numbers, bools and texts are read")
    made: np.dtype[Any] = np.dtype(text, copy=True)  # a copy: the machine tells objects apart by their ids
    return made


def _new_array(kind: Any, shape: Any, code: Any) -> np.ndarray[Any, Any]:
    if not isinstance(kind, Named) or kind.name != "ndarray":
        raise FormatError("the pickle builds a subclass of a numpy array; plain arrays are read")
    return np.empty(0, np.int8)  # a later step sets its state: shape, dtype and values


def _scalar(dtype: Any, raw: Any) -> Any:
    return _filled((), dtype, raw, False)[()]


def _from_buffer(buffer: Any, dtype: Any, shape: Any, order: Any, *_: Any) -> np.ndarray[Any, Any]:
    if order not in ("C", "F"):
        raise ValueError("an array that is laid out in neither known order")
    return _filled(shape, dtype, buffer, order == "F")


def _encoded(text: Any, encoding: Any) -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise ValueError("bytes in an encoding that bytes are not written in")
    return text.encode("latin-1")


def _bytearray(given: Any = b"", encoding: Any = None) -> bytearray:
    return bytearray(_encoded(given, encoding) if isinstance(given, str) else _raw(given))


def _collection(kind: Callable[[Any], Any]) -> Callable[..., Any]:
    def make(items: Any = ()) -> Any:
        if not isinstance(items, list | tuple | set):
            raise TypeError(f"a {kind.__name__} of something that is not a list")
        return kind(map(key, items))

    return make


_MAKERS: dict[tuple[str, str], Named] = {
    ("numpy", "dtype"): Named("dtype", _dtype),
    ("numpy", "ndarray"): Named("ndarray", None),
    ("_codecs", "encode"): Named("encode", _encoded),
}
for _module in ("numpy.core.multiarray", "numpy._core.multiarray"):
    _MAKERS[_module, "_reconstruct"] = Named("_reconstruct", _new_array)
    _MAKERS[_module, "scalar"] = Named("scalar", _scalar)
for _module in ("numpy.core.numeric", "numpy._core.numeric"):
    _MAKERS[_module, "_frombuffer"] = Named("_frombuffer", _from_buffer)
for _module in ("builtins", "__builtin__"):
    _MAKERS[_module, "bytearray"] = Named("bytearray", _bytearray)
    _MAKERS[_module, "bytes"] = Named("bytes", lambda *given: bytes(_bytearray(*given)))
    _MAKERS[_module, "set"] = Named("set", _collection(set))
    _MAKERS[_module, "frozenset"] = Named("frozenset", _collection(frozenset))


def named(module: str, attribute: str) -> Named:
    """Return the :class:`Named` for ``module.attribute``. Raises FormatError, which shows the name: it is unknown."""
    try:
        return _MAKERS[module, attribute]
    except KeyError:
        raise FormatError(
            f"the pickle names {module:.80}.{attribute:.80}, and only plain data and numpy arrays are read. "
            "If you trust where the file comes from, give a function of your own: decode="
        ) from None


def call(function: Any, given: Any) -> Any:
    """Call the function of a known name with the arguments ``given``, and return the result."""
    if not isinstance(function, Named) or function.make is None or not isinstance(given, tuple):
        raise TypeError("a step calls something that is not a function")
    return function.make(*given)


def build(value: Any, state: Any) -> Any:
    """Return ``value``, a dtype or a new array, with the ``state`` that numpy wrote for it."""
    if isinstance(value, np.dtype):
        return _with_order(value, state)
    if isinstance(value, np.ndarray):
        version, shape, dtype, fortran, raw = state
        if version != 1 or not isinstance(dtype, np.dtype):
            raise ValueError("the state of an array as no known numpy writes it")
        return _filled(shape, dtype, raw, bool(fortran))
    raise FormatError("the pickle sets the state of an object; only plain data and numpy arrays are read")


def _with_order(dtype: np.dtype[Any], state: Any) -> np.dtype[Any]:
    if not isinstance(state, tuple) or len(state) < 5 or any(part is not None for part in state[2:5]):
        raise FormatError("the pickle holds an array with fields; arrays of numbers, bools and texts are read")
    order = state[1].decode("latin-1") if isinstance(state[1], bytes) else state[1]
    if order not in ("<", ">", "|", "="):
        raise ValueError("a dtype in no known byte order")
    return dtype.newbyteorder(cast(Any, order))


def _filled(shape: Any, dtype: Any, raw: Any, fortran: bool) -> np.ndarray[Any, Any]:
    """Return an array over its own memory."""
    if not isinstance(dtype, np.dtype) or not isinstance(shape, tuple) or len(shape) > _MOST_SIDES:
        raise TypeError("an array without dtype or shape")
    if any(type(side) is not int or side < 0 for side in shape):
        raise ValueError("an array with an invalid shape")
    content = _raw(raw)
    need = math.prod(shape) * dtype.itemsize
    if need != len(content):
        raise ValueError(f"an array of {need} bytes with {len(content)}")
    flat = np.frombuffer(content, dtype) if need else np.empty(math.prod(shape), dtype)
    return flat.reshape(shape, order="F" if fortran else "C").copy(order="K")


def _raw(value: Any) -> bytes | bytearray:
    if isinstance(value, str):  # a Python 2 str that was decoded because its bytes are valid UTF-8
        return value.encode()
    if not isinstance(value, bytes | bytearray):
        raise TypeError("no bytes where bytes should be")
    return value
