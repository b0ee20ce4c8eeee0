"""Share what the ready-made providers have in common: the entries they take, the slots of labels and of bytes.

Each format's module has a ``process``, so its address is that of the module: ``--provider pydp2.formats.idx``. Its hook
takes only the arguments that it names; any other is an error when the service starts. See docs/formats.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pydp2.errors import OptionTypeError
from pydp2.schema.input_types import InputType, dense_vector, dense_vector_sequence, integer_value

BYTES = dense_vector_sequence(1, dtype=np.uint8)
"""The slot of a record: a sequence of bytes."""

IDS = 2**63 - 1
"""Range of an id: all that a slot of integers can hold."""

BLOCK = 1 << 20
"""About how many bytes are yielded at a time, where many samples are."""


def as_steps(record: bytes) -> NDArray[np.uint8]:
    """Return a record as a value of :data:`BYTES`."""
    return np.frombuffer(record, np.uint8).reshape(-1, 1)


def label_slot(classes: int | None, width: int = 1) -> InputType:
    """An integer below ``classes``, or ``width`` numbers where that is None."""
    return dense_vector(width) if classes is None else integer_value(classes)


def labels(values: NDArray[Any], classes: int | None) -> Any:
    """``values``, read as numbers, as a value of that slot for many samples: what is no whole number stays what it is,
    and is found to be bad where all values are looked at."""
    if classes is None:
        return values.reshape(len(values), -1)
    with np.errstate(invalid="ignore"):
        whole = values.astype(np.int64)
    return whole if np.array_equal(whole, values) else [int(v) if v.is_integer() else v for v in map(float, values)]


def label(values: NDArray[Any], classes: int | None) -> Any:
    """``values``, the labels of one sample, as a value of that slot; what does not fit stays as it is."""
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
