"""Say what to write in the place of a value that does not fit: the remedies in the words of a :class:`BadSample`.

Each function returns a hint with a blank before it, as `` (write float(x))``, or '' if there is none. ``x`` stands for
the value. All of this runs only for values that are refused.
"""

from __future__ import annotations

import datetime
import decimal
import math
import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np

from pydp2.data.columns.array_likes import tensor_hint
from pydp2.data.schema.input_types import InputType, inner_sides

MISSING_HINT = "; leave the sample out, or give a default"
_REAL_KINDS = "fiub"
_MISSING_TYPES = frozenset({"NAType", "NaTType"})  # of pandas, which is not imported for them
_MOST_NESTED = 1 << 16  # items of a list that a hint may look at
_SECONDS = "np.timedelta64(1, 's')"


def is_missing(value: object) -> bool:
    """Return True for what stands for a value that is not there: None, NaN, NaT, NA and a masked number."""
    if value is None or value is np.ma.masked or type(value).__name__ in _MISSING_TYPES:
        return True
    if isinstance(value, np.datetime64 | np.timedelta64):
        return bool(np.isnat(value))
    if isinstance(value, decimal.Decimal):  # math.isnan() raises for a signalling one
        return value.is_nan()
    return isinstance(value, float | np.floating) and math.isnan(value)


def list_hint(value: object, kind: type[int] | type[float], instead: str = "") -> str:
    """Return the hint for one number where a list of one is needed; ``instead``: what else may be done."""
    kinds: tuple[type, ...] = (int, np.integer) if kind is int else (int, float, np.integer, np.floating)
    if not isinstance(value, kinds) or isinstance(value, np.timedelta64):  # numpy counts timedelta64 among the integers
        return ""
    number: Any = value.item() if isinstance(value, np.generic) else value  # a float16 cannot be compared with 2**53
    return f" (write [{kind(number)!r}]{instead})" if abs(number) < 1 << 53 else ""


def number_hint(value: object, kind: type[int] | type[float]) -> str:
    """Return the hint for what is no number, but of which one can be made: a text, a date, a Decimal, a tensor."""
    if is_missing(value):
        return ""
    if time := _time_text(value):
        is_float = kind is int and not isinstance(value, np.datetime64) and type(value) is not datetime.date
        return f" (write int({time}))" if is_float else f" (write {time})"
    if isinstance(value, str | bytes):
        return f" (write {kind.__name__}(x))" if _reads(value, kind) else ""
    if isinstance(value, decimal.Decimal | numbers.Rational):
        return f" (write {kind.__name__}(x))"
    hint = tensor_hint(value, "item") or tensor_hint(value, "numpy")
    return hint if hint and getattr(value, "ndim", None) == 0 else ""


def _reads(text: str | bytes, kind: type[int] | type[float]) -> bool:
    if len(text) > 100:
        return False
    try:
        kind(text)
    except ValueError:
        return False
    return True


def _time_text(value: object) -> str:
    """Return the expression that makes a number of a point in time or a duration; '' for anything else."""
    if isinstance(value, datetime.datetime):
        return "x.timestamp()"
    if isinstance(value, datetime.date):
        return "x.toordinal()"
    if isinstance(value, datetime.timedelta):
        return "x.total_seconds()"
    return _time_text_of(value.dtype, "x") if isinstance(value, np.datetime64 | np.timedelta64) else ""


def _time_text_of(dtype: np.dtype[Any], name: str) -> str:
    return f"{name} / {_SECONDS}" if dtype.kind == "m" else f"{name}.astype('datetime64[s]').astype('int64')"


def dtype_hint(array: np.ndarray[Any, Any], name: str) -> str:
    """Return the hint for ``array``, which ``name`` stands for, whose dtype is not real."""
    dtype = array.dtype
    if dtype.kind in "mM":
        return f" (write {_time_text_of(dtype, name)})"
    if dtype.kind not in "OSUT" or array.size > _MOST_NESTED:
        return ""
    if dtype.kind == "O" and any(is_missing(value) for value in array.flat):  # numpy makes NaN of None in silence
        return f" (values in it are missing: {MISSING_HINT.removeprefix('; ')})"
    try:
        array.astype(np.float64)
    except Exception:  # its items are no numbers, or raise
        return ""
    return f" (write {name}.astype('float64'))"


def element_hint(declared: InputType, value: object) -> str:
    """Return the hint for what is no dense element, but of which one can be made: nested lists, a memoryview, bytes."""
    array = _as_numbers(value)
    if array is None or array.size != declared.dim:
        return ""
    if isinstance(value, bytes | bytearray):
        return " (write np.frombuffer(x, np.uint8))"
    if declared.fits_shape(array.shape):
        return " (write np.asarray(x))"
    return shape_hint(declared, array, "np.asarray(x)")


def _as_numbers(value: object) -> np.ndarray[Any, Any] | None:
    """Return nested lists or a buffer as an array of numbers; None for anything else."""
    if isinstance(value, bytes | bytearray):
        return np.frombuffer(value, np.uint8)
    nested = isinstance(value, Sequence) and not isinstance(value, str) and len(value) <= _MOST_NESTED
    if not nested and not isinstance(value, memoryview):
        return None
    try:
        array = np.asarray(value)
    except Exception:  # its parts differ in length, or are no numbers
        return None
    return array if array.dtype.kind in _REAL_KINDS else None


def shape_hint(declared: InputType, array: np.ndarray[Any, Any], name: str) -> str:
    """Return the hint for ``array``, which ``name`` stands for, if it has another shape than was declared: the
    permutation of its axes that fits, else how its elements are taken in the order in which they lie."""
    if array.size != declared.dim:
        return ""
    axes = _fitting_axes(array.shape, declared.element_shape)
    if axes is not None:
        return f" (write {name}.transpose{axes})"
    return f" (write {name}.reshape{declared.element_shape} if its elements lie in that order)"


def _fitting_axes(shape: tuple[int, ...], target: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the axes by which ``transpose`` makes ``target`` of ``shape``, without leading sides of 1, or None. If
    several do: channels from last to first, or from first to last, as pictures have them, else equal sides in order."""
    ndim, inner = len(shape), inner_sides(target)
    target = (1,) * (ndim - len(inner)) + inner
    if sorted(shape) != sorted(target):
        return None
    *front, last = range(ndim)
    for axes in (*front[:-2], last, *front[-2:]), (*front[:-2], *front[-1:], last, *front[-2:-1]):
        if ndim > 2 and tuple(shape[axis] for axis in axes) == target:
            return axes
    free, found = [*range(ndim)], []
    for side in target:
        found.append(next(axis for axis in free if shape[axis] == side))
        free.remove(found[-1])
    return tuple(found)
