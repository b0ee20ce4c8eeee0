"""Encode ``args`` as bytes: plain data between processes, without pickle.

This module handles one value at a time: :func:`encode_plain` and :func:`decode_plain` are inverses over None, bool,
int, float, str, bytes, list, dict (any plain hashable key), tuple, set, frozenset, NumPy arrays of numbers, text, bytes
or dates, and NumPy scalars. They keep the value *and* its type. Everything else is refused, and the error has its path
in the value, because a change of type at the other end would silently change the user's data. Decoding never runs any
code that the bytes name.

A value has the same encoding in every process and run, because encodings are compared: states and caches belong to the
arguments of a provider. The items of a set are in the order of their bytes. Every NaN has the same bits. The order of a
dict is part of its value, since a hook can see it. True, 1 and 1.0 are three values, and so are 0.0 and -0.0.

The format is msgpack; a type that msgpack lacks is an extension whose body is again msgpack:

    1  tuple        [items]
    2  set          [items]
    3  frozenset    [items]
    4  integer beyond 64 bits: two's complement, little-endian bytes
    5  array        [dtype such as "<f4", shape, bytes in C order; padding bytes are 0]
    6  scalar       the same, of an array without dimensions

This module knows nothing of messages or sockets. See docs/internals/wire.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from msgpack import ExtType, packb, unpackb

from pydp2.errors import Error, OptionError, OptionTypeError, RemoteProtocolError

MAX_BYTES = 64 << 20
"""Largest number of bytes of a value. For a larger one, let the hook read a file whose path is in ``args``."""
MAX_ITEMS = 1 << 24
"""Largest number of items in one list, tuple, set or dict: a decoded item takes up to 60 times its encoded bytes."""
MAX_DEPTH = 64
"""Depth to which a value may be nested."""

_TUPLE, _SET, _FROZENSET, _BIGINT, _ARRAY, _SCALAR = 1, 2, 3, 4, 5, 6
_SCALAR_TYPES = frozenset({type(None), bool, bytes})
_X87_DIGITS = 63  # digits of a long double with 10 bytes, whose padding bytes are undefined
_X87_BYTES = 10
_NESTED_CODES: dict[type, int] = {tuple: _TUPLE, set: _SET, frozenset: _FROZENSET}
_NESTED_TYPES: dict[int, Callable[[list[Any]], Any]] = {_TUPLE: tuple, _SET: set, _FROZENSET: frozenset}


def encode_plain(value: object, name: str = "args") -> bytes:
    """Return ``value`` as bytes; ``name`` is the start of the path in an error.

    Raises:
        OptionTypeError: something in ``value`` is not plain data; the text has its path and a remedy.
        OptionError: ``value`` is too large, or nested too deep (such as a value that contains itself).
    """
    data = pack_unchecked(_to_msgpack(value, name, 0))
    if len(data) > MAX_BYTES:
        raise OptionError(
            f"{name} may take {MAX_BYTES >> 20} MiB when sent to the workers, got {len(data) / (1 << 20):.0f} MiB; "
            "put the data into a file, pass its path, and read it in the init_hook"
        )
    return data


def decode_plain(data: bytes | memoryview) -> Any:
    """Return the value that :func:`encode_plain` wrote; arrays are fresh and writable.

    Raises:
        RemoteProtocolError: ``data`` has another form than that of :func:`encode_plain`, or exceeds its limits.
    """
    view = memoryview(data)
    if view.nbytes > MAX_BYTES:
        raise RemoteProtocolError(f"plain data may take {MAX_BYTES} bytes, got {view.nbytes}")
    return _unpack(view, 0)


def pack_unchecked(plain: Any) -> bytes:
    """Return ``plain``, made of msgpack's own types, as bytes for :func:`decode_plain`; nothing in it is checked."""
    packed = packb(plain, use_bin_type=True)
    assert isinstance(packed, bytes)
    return packed


def _to_msgpack(value: Any, path: str, depth: int) -> Any:
    """Return ``value`` in msgpack's own types and extensions."""
    kind = type(value)
    if kind in _SCALAR_TYPES:
        return value
    if kind is float:
        return value if value == value else float("nan")  # a new object, so that two NaN stay two keys of a dict
    if kind is str:
        return _checked_text(value, path)
    if kind is int:
        return value if -(1 << 63) <= value < 1 << 64 else _encode_bigint(value)
    if kind is np.ndarray or isinstance(value, np.generic):
        return _encode_array(value, path)
    if kind is not dict and kind is not list and kind not in _NESTED_CODES:
        raise OptionTypeError(f"{path}: {_kind_name(value)} cannot travel to the workers; {_remedy(value)}")
    if depth >= MAX_DEPTH:
        raise OptionError(f"{path}: nested deeper than {MAX_DEPTH} levels; does the value hold itself?")
    if len(value) > MAX_ITEMS:
        raise OptionError(
            f"{path}: {len(value)} items, at most {MAX_ITEMS} can travel; put them into an array or a file"
        )
    if kind is dict:
        return {
            _to_msgpack(key, f"{path} (the key {key!r:.60})", depth + 1): _to_msgpack(
                item, f"{path}[{key!r:.60}]", depth + 1
            )
            for key, item in value.items()
        }
    if kind is list or kind is tuple:
        items = [_to_msgpack(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(value)]
    else:
        items = [_to_msgpack(item, f"{path} (an element of the {kind.__name__})", depth + 1) for item in value]
        items.sort(key=pack_unchecked)  # a set has another order in each process
    return items if kind is list else ExtType(_NESTED_CODES[kind], pack_unchecked(items))


def _checked_text(value: str, path: str) -> str:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise OptionError(f"{path}: {value!r:.60} cannot be written as UTF-8 ({error.reason})") from None
    return value


def _encode_bigint(value: int) -> ExtType:
    return ExtType(_BIGINT, value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))


def _encode_array(value: np.ndarray[Any, Any] | np.generic, path: str) -> ExtType:
    dtype = value.dtype
    if dtype.hasobject:
        raise OptionTypeError(f"{path}: an array of Python objects cannot travel to the workers; use a list")
    if _dtype(dtype.str) != dtype:
        raise OptionTypeError(f"{path}: an array of {dtype} cannot travel to the workers; use one array for each field")
    body = pack_unchecked([dtype.str, list(value.shape), _array_bytes(value)])
    return ExtType(_ARRAY if isinstance(value, np.ndarray) else _SCALAR, body)


def _array_bytes(value: np.ndarray[Any, Any] | np.generic) -> bytes:
    """Return the bytes of the items of ``value`` in C order, the same for equal items."""
    if value.dtype.kind not in "fc":
        return value.tobytes()
    numbers = np.array(value, order="C").reshape(-1).view(value.real.dtype)
    numbers[np.isnan(numbers)] = np.nan
    if numbers.dtype.char == "g" and np.finfo(np.longdouble).nmant == _X87_DIGITS:
        filling = slice(_X87_BYTES, None) if numbers.dtype.isnative else slice(-_X87_BYTES)
        numbers.view(np.uint8).reshape(numbers.size, numbers.itemsize)[:, filling] = 0
    return numbers.tobytes()


def _dtype(text: object) -> np.dtype[Any] | None:
    """Return the dtype with the name ``text``; None if it has fields or objects, or items of 0 bytes."""
    try:
        dtype = np.dtype(text) if isinstance(text, str) else None
    except Exception:  # anything that NumPy's parser raises for a foreign text
        return None
    plain = dtype is not None and dtype.str == text and not dtype.hasobject and dtype.itemsize > 0
    return dtype if plain else None


def _kind_name(value: object) -> str:
    if callable(value) and hasattr(value, "__qualname__"):
        return f"a {'class' if isinstance(value, type) else 'function'} ({value.__qualname__})"
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def _remedy(value: object) -> str:
    for kind, remedy in (
        (np.ndarray, "numpy.asarray(...) makes a plain array of it"),
        (dict, "dict(...) makes a plain dict of it"),
        (tuple, "tuple(...) makes a plain tuple of it"),
        ((str, int, float, list, set, frozenset), "convert it to the plain builtin type"),
        ((bytearray, memoryview), "bytes(...) makes plain bytes of it"),
    ):
        if isinstance(value, kind):
            return remedy
    if hasattr(value, "__fspath__"):
        return "str(...) makes text of it"
    return "args are plain data: build it in the init_hook from numbers, text and collections"


def _unpack(data: bytes | memoryview, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise RemoteProtocolError(f"plain data may be nested {MAX_DEPTH} levels deep")

    def extension(code: int, body: bytes) -> Any:
        if code in _NESTED_TYPES:
            items = _unpack(body, depth + 1)
            if not isinstance(items, list):
                raise RemoteProtocolError(f"extension {code} must hold a list")
            return _NESTED_TYPES[code](items)
        if code == _BIGINT:
            return int.from_bytes(body, "little", signed=True)
        if code in (_ARRAY, _SCALAR):
            return _decode_array(body, depth, scalar=code == _SCALAR)
        raise RemoteProtocolError(f"plain data has no extension {code}")

    try:
        return unpackb(
            data,
            raw=False,
            strict_map_key=False,
            ext_hook=extension,
            max_array_len=MAX_ITEMS,
            max_map_len=MAX_ITEMS,
            max_str_len=MAX_BYTES,
            max_bin_len=MAX_BYTES,
            max_ext_len=MAX_BYTES,
        )
    except Error:
        raise
    except Exception as error:  # msgpack raises a dozen kinds, and so do unhashable keys and items
        raise RemoteProtocolError(f"malformed plain data: {type(error).__name__}: {error}") from None


def _decode_array(body: bytes, depth: int, *, scalar: bool) -> Any:
    parts = _unpack(body, depth + 1)
    if not (isinstance(parts, list) and len(parts) == 3):
        raise RemoteProtocolError("an array needs dtype, shape and bytes")
    dtype, shape, data = _dtype(parts[0]), parts[1], parts[2]
    if dtype is None:
        raise RemoteProtocolError(f"an array cannot have the dtype {parts[0]!r:.80}")
    dims_fit = isinstance(shape, list) and len(shape) <= 32 and all(type(n) is int and n >= 0 for n in shape)
    if not dims_fit or not isinstance(data, bytes) or (scalar and shape):
        raise RemoteProtocolError(f"an array cannot have the shape {shape!r:.80}")
    if math.prod(shape) * dtype.itemsize != len(data):
        raise RemoteProtocolError(f"an array of {dtype} and shape {shape!r:.80} cannot have {len(data)} bytes")
    array: np.ndarray[Any, Any] = np.ndarray(tuple(shape), dtype, data).copy()
    return array[()] if scalar else array
