"""Common parts of the ready-made providers: slots of labels and of bytes, and checks of arguments.

The module of each format has a ``process``, so the module's name is the address of the provider: ``--provider
pydp2.formats.idx``. The hook of a provider takes only the arguments that it names. Any other argument is an error when
the service starts. See docs/formats.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from pydp2.errors import OptionTypeError
from pydp2.schema.input_types import InputType, dense_vector, dense_vector_sequence, integer_value

BYTES = dense_vector_sequence(1, dtype=np.uint8)
"""The slot of a record: a sequence of bytes."""

IDS = 2**63 - 1
"""Range of an id: the largest range of a slot of integers."""

BLOCK = 1 << 20
"""Approximate number of bytes that providers yield at a time, if they yield many samples at once."""


def as_steps(record: bytes) -> NDArray[np.uint8]:
    """Return a record as a value of :data:`BYTES`."""
    return np.frombuffer(record, np.uint8).reshape(-1, 1)


def label_slot(classes: int | None, width: int = 1, dtype: DTypeLike = np.float32) -> InputType:
    """Return the slot of a label: an integer below ``classes``, or ``width`` numbers of ``dtype`` if ``classes`` is
    None."""
    return dense_vector(width, dtype=dtype) if classes is None else integer_value(classes)


def labels(values: NDArray[Any], classes: int | None) -> Any:
    """Return ``values``, the labels of many samples, as a value of the slot of :func:`label_slot`.

    With ``classes`` they become int64. A number that is not whole stays a float, and the check of all values finds it.
    """
    if classes is None:
        return values.reshape(len(values), -1)
    with np.errstate(invalid="ignore"):
        whole = values.astype(np.int64)
    return whole if np.array_equal(whole, values) else [int(v) if v.is_integer() else v for v in map(float, values)]


def label(values: NDArray[Any], classes: int | None) -> Any:
    """Return ``values``, the labels of one sample, as a value of that slot; a value that does not fit is unchanged."""
    if classes is None or len(values) != 1:
        return values
    return labels(values, classes)[0]


def whole(name: str, value: Any) -> int:
    """Return ``value`` as a whole number. Raises OptionTypeError: it is anything else."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise OptionTypeError(f"{name} must be a whole number, got {value!r:.80}")
    return value


def text(name: str, value: Any) -> str:
    """Return ``value`` as text. Raises OptionTypeError: it is anything else."""
    if not isinstance(value, str):
        raise OptionTypeError(f"{name} must be a text, got {value!r:.80}")
    return value


def flag(name: str, value: Any) -> bool:
    """Return ``value`` as a flag. Raises OptionTypeError: it is not a bool."""
    if not isinstance(value, bool):
        raise OptionTypeError(f"{name} must be true or false, got {value!r:.80}")
    return value
