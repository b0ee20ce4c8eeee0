"""Find masked arrays: a column has no place for a mask, and numpy drops it silently where it joins several arrays."""

from __future__ import annotations

import numpy as np

UNMASK_HINT = " without a mask (write x.filled(0))"
_NUMBERS = {int, float, bool}


def masked_text(value: object) -> str:
    """Describe ``value``, in which :func:`has_mask` has found a mask, for a message."""
    if isinstance(value, np.ma.MaskedArray):
        return f"a masked numpy array of shape {value.shape} and dtype {value.dtype}"
    return f"a {type(value).__name__} with a masked numpy array in it"


def has_mask(value: object) -> bool:
    """Return True if ``value`` is a masked array, or a list or tuple with one at any depth."""
    if type(value) is np.ndarray:
        return False
    if not isinstance(value, list | tuple):
        return isinstance(value, np.ma.MaskedArray)
    kinds = set(map(type, value))
    if kinds <= _NUMBERS:  # the usual case, at the cost of one step in C
        return False
    if any(issubclass(kind, np.ma.MaskedArray) for kind in kinds):
        return True
    return any(issubclass(kind, list | tuple) for kind in kinds) and any(map(has_mask, value))
