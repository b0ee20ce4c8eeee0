"""Take arrays of other libraries as numpy arrays: tensors of torch on the CPU, and whatever else exports its numbers.

An object exports numbers by one of numpy's protocols (``__array__``, ``__array_interface__``, ``__array_struct__``), by
DLPack, or as a buffer. No library is imported for that. Bytes are no numbers here: a bytes object, a bytearray, a
memoryview or a mapped file belongs to a slot of bytes. What cannot be read, as a tensor on a device, is no array;
:func:`tensor_hint` says what to write for it.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pydp2.data.columns.masks import UNMASK_HINT, has_mask, masked_text

_PROTOCOLS = ("__array__", "__array_interface__", "__array_struct__")
_NO_ARRAYS = (list, tuple, str, bytes, bytearray, memoryview, mmap.mmap, np.generic, type)
_PLAIN = frozenset({list, tuple, dict, set, frozenset, str, bytes, int, float, bool, complex, type(None)})
_NUMBERS = "fiub"
_NARROW_FLOATS = ("bfloat16", "float8", "float4")  # that numpy lacks


def as_array(value: object) -> NDArray[Any] | None:
    """Return ``value`` as an array, without a copy where that is possible; None if it is no array, or cannot be read.

    Arrays of numpy are returned as they are. Scalars of numpy are no arrays.
    """
    if isinstance(value, np.ndarray):
        return value
    if type(value) in _PLAIN or isinstance(value, _NO_ARRAYS):
        return None
    try:
        return _exported(value)
    except MemoryError:
        raise
    except Exception:  # a tensor that has gradients, or lies on a device
        return None


class NotReadable(Exception):
    """Raised by :func:`read_array`. ``hint``: what to write for the value, in brackets, or ''; ``got``: what it is."""

    def __init__(self, hint: str, got: str) -> None:
        super().__init__(f"not readable as an array{hint}: {got}")
        self.hint, self.got = hint, got


def read_array(value: object) -> NDArray[Any]:
    """Return ``value``, also numbers and nested lists of them, as an array, without a copy where that is possible.

    Raises NotReadable: it has a mask, it is or holds a tensor that numpy cannot read, its parts differ in length.
    """
    array = as_array(value)
    if has_mask(value if array is None else array):
        raise NotReadable(UNMASK_HINT, masked_text(value if array is None else array))
    if array is not None:
        return array
    try:
        return np.asarray(value)
    except MemoryError:
        raise
    except Exception:
        hints = (tensor_hint(part, "numpy") or tensor_hint(part, "tolist") for part in _parts(value))
        raise NotReadable(next(filter(None, hints), ""), f"{value!r:.80} ({type(value).__name__})") from None


def _parts(value: object) -> Iterator[object]:
    """Yield the items of nested lists and tuples."""
    if isinstance(value, list | tuple):
        for part in value:
            yield from _parts(part)
    else:
        yield value


def tensor_hint(value: object, *methods: str) -> str:
    """Return the hint for a tensor that cannot be read as an array: how it can, or which of ``methods``, those that its
    class has, give what can be packed."""
    if isinstance(value, np.ndarray | np.generic) or as_array(value) is not None:
        return ""
    if _has_method(value, "detach") and _has_method(value, "cpu"):
        readable = _readable_tensor(value)
        return f" (write {readable})" if readable else ""
    calls = [f"x.{name}()" for name in methods if _has_method(value, name)]
    return f" (write {' or '.join(calls)})" if calls else ""


def _readable_tensor(tensor: Any) -> str:
    """Return the expression that numpy can read, for a tensor of torch or Paddle that it cannot; '' if no single one
    can."""

    def says(name: str) -> str:
        return str(getattr(tensor, name, ""))

    if says("is_nested") == "True" or says("dtype").startswith("torch.complex"):
        return ""
    calls = ["detach()", "cpu()"] if says("requires_grad") == "True" or says("device") not in ("", "cpu") else []
    if "sparse" in says("layout"):
        calls.append("to_dense()")
    if says("is_quantized") == "True":
        calls.append("dequantize()")
    if _has_method(tensor, "is_neg") and tensor.is_neg():
        calls.append("resolve_neg()")
    if not calls or any(name in says("dtype") for name in _NARROW_FLOATS):
        calls.append("float()" if _has_method(tensor, "float") else "astype('float32')")
    return f"x.{'.'.join(calls)}"


def _has_method(value: object, name: str) -> bool:
    return callable(getattr(type(value), name, None))


def _exported(value: Any) -> NDArray[Any] | None:
    if _has_any(value, _PROTOCOLS):
        array = np.asanyarray(value)  # a mask stays, and is refused
        if array.dtype.kind in "iu" and "float" in str(getattr(value, "dtype", "")):
            return None  # Paddle gives the bits of a bfloat16 as an int
        return array if array.ndim or array.dtype.kind != "O" else None
    if _has_any(value, ("__dlpack__",)):
        return np.from_dlpack(value)
    array = np.asarray(memoryview(value))
    return array if array.dtype.kind in _NUMBERS else None


def _has_any(value: object, names: tuple[str, ...]) -> bool:
    own = getattr(value, "__dict__", ())
    return any(hasattr(type(value), name) or name in own for name in names)
