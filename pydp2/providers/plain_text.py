"""Write plain values as expressions: the same text for equal values, in every process.

Plain values are numbers (also complex ones and those of numpy), text, bytes, None, collections of these, paths,
patterns of ``re``, input types and small numpy arrays.
"""

from __future__ import annotations

import math
import re
from enum import IntEnum
from pathlib import PurePath
from typing import Any

import numpy as np

from pydp2.data.schema.input_types import InputType, is_bfloat16

VALUE_BYTES = 1 << 16
"""Largest number of entries of a collection, and of bytes of an array, that are written."""
ALIAS = "_pydp2_"
"""Prefix of the names of modules in an expression, as in ``_pydp2_numpy.float32(1.0)``."""
_MAX_LEVELS = 16  # levels of nested collections


def plain_text(value: Any, level: int = 0) -> str:
    """Return an expression whose value is equal to ``value``, with module names that begin with :data:`ALIAS`. Raise
    ValueError, with the reason, if there is none."""
    kind = type(value)
    if level > _MAX_LEVELS:
        raise ValueError(f"more than {_MAX_LEVELS} collections in each other")
    if value is None or kind in (bool, int, str, bytes) or (kind is float and math.isfinite(value)):
        return repr(value)
    if kind is float:
        return f"_pydp2_builtins.float({str(value)!r})"
    if kind is complex:
        return f"_pydp2_builtins.complex({plain_text(value.real)}, {plain_text(value.imag)})"
    if isinstance(value, PurePath):
        return f"_pydp2_pathlib.{kind.__name__}({str(value)!r})"
    if kind is re.Pattern:
        return f"_pydp2_re.compile({value.pattern!r}, {value.flags})"
    if kind is InputType:
        return _input_type_text(value)
    plain_array = kind in (np.ndarray, np.memmap) or isinstance(value, np.generic)  # subclasses have more: a mask
    if plain_array and value.dtype.kind in "biufc" and value.nbytes <= VALUE_BYTES:
        return _numpy_text(value)
    return _collection_text(value, level + 1)


def _input_type_text(value: InputType) -> str:
    text = str(value.dim)
    for code in (value.seq_type, value.type):
        text += f", _pydp2_pydp2.{type(code).__name__}({code:d})" if isinstance(code, IntEnum) else f", {code}"
    if value.dtype is not None:
        named = "_pydp2_ml_dtypes.bfloat16" if is_bfloat16(value.dtype) else repr(value.dtype.str)
        text += f", dtype=_pydp2_numpy.dtype({named})"
    if value.shape is not None:
        text += f", shape={value.shape}"
    return f"_pydp2_pydp2.InputType({text})"


def _numpy_text(value: np.ndarray[Any, Any] | np.generic) -> str:
    plain = value.item() if isinstance(value, np.generic) else None
    if type(plain) in (bool, int, float, complex):  # long doubles have no plain number that is equal
        return f"_pydp2_numpy.{type(value).__name__}({plain_text(plain)})"
    if value.dtype.char in "gG":  # their padding bytes are undefined
        numbers = np.array(value, order="C").reshape(-1).view(value.real.dtype)
        digits = [str(number) for number in numbers]
        items = f"_pydp2_numpy.array({digits}, {numbers.dtype.str!r}).view({value.dtype.str!r})"
    else:
        items = f"_pydp2_numpy.frombuffer({value.tobytes()!r}, {value.dtype.str!r})"
    text = f"{items}.reshape({value.shape})"
    return f"{text}.copy()" if plain is None else f"{text}[()]"


def _collection_text(value: Any, level: int) -> str:
    kind = type(value)
    if kind in (dict, list, tuple, set, frozenset) and len(value) > VALUE_BYTES:
        raise ValueError(f"a {kind.__name__} of {len(value)} entries")
    if kind is dict:
        return f"{{{', '.join(f'{plain_text(k, level)}: {plain_text(v, level)}' for k, v in value.items())}}}"
    if kind in (list, tuple):
        inner = ", ".join(plain_text(item, level) for item in value)
        return f"[{inner}]" if kind is list else f"({inner},)" if inner else "()"
    if kind in (set, frozenset):  # sorted: the text must not depend on the seed of hashes
        inner = ", ".join(sorted(plain_text(item, level) for item in value))
        return f"_pydp2_builtins.{kind.__name__}([{inner}])"
    raise ValueError(f"a {kind.__name__}")
