"""Common parts of the ready-made providers: slots of labels and of bytes, and checks of arguments.

The module of each format has a ``process``, so the module's name is the address of the provider: ``--provider
pydp2.formats.idx``. The hook of a provider takes only the arguments that it names. Any other argument is an error when
the service starts. See docs/formats.md.

A provider yields a BadSample in place of a record that it cannot read, if the format says where the next one begins.
With ``on_error="skip"`` a service drops only that record. A provider raises if it can read nothing behind the error.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from pydp2.data.packers.many_samples import ManySamples
from pydp2.data.schema.input_types import InputType, dense_vector, dense_vector_sequence, integer_value
from pydp2.errors import BadSample, FormatError, OptionError, OptionTypeError, bad_value, count_text

T = TypeVar("T")
BYTES = dense_vector_sequence(1, dtype=np.uint8)
"""The slot of a record: a sequence of bytes."""

IDS = 2**63 - 1
"""Range of an id: the largest range of a slot of integers."""

_LARGEST = 1 << 53  # a float64 holds all whole numbers up to it
_SHOWN = 5
BLOCK = 4 << 20
"""Approximate number of bytes that providers yield at a time, if they yield many samples at once."""


def as_steps(record: bytes) -> NDArray[np.uint8]:
    """Return a record as a value of :data:`BYTES`."""
    return np.frombuffer(record, np.uint8).reshape(-1, 1)


class LabelSlot:
    """Slot of the labels of a ready-made provider, and the way from a number in a file to its value.

    Args:
        classes: None: a label is ``width`` numbers of ``dtype``. A number n: it is one integer from 0 to n - 1. A list
            of whole numbers: it is the position of the number in that list.
        width: how many labels a sample has.
        dtype: dtype of labels without ``classes``.

    Attributes:
        type: type of the slot.

    Raises:
        OptionError, OptionTypeError: ``classes`` is something else, or does not fit ``width``.
    """

    def __init__(self, classes: int | Sequence[int] | None, width: int = 1, dtype: DTypeLike = np.float32) -> None:
        whole("label_width", width)
        if classes is not None and width != 1:
            raise OptionError("classes is for one label, label_width for several: give one of them")
        self._listed = None if classes is None or isinstance(classes, int) else _listed(classes)
        self._count = classes if classes is None or isinstance(classes, int) else len(classes)
        self._width = width
        self.type: InputType = dense_vector(width, dtype=dtype) if self._count is None else integer_value(self._count)

    def values(self, labels: NDArray[Any]) -> tuple[NDArray[Any], dict[int, BadSample]]:
        """Return the values of the slot for ``labels`` (samples,), and the errors of labels that are no class.

        The key of an error is the number of its sample; the value of that sample is 0.
        """
        if self._count is None:
            return labels.reshape(len(labels), -1), {}
        if self._listed is None:
            with np.errstate(invalid="ignore"):
                found = labels.astype(np.int64)
            fits = (found == labels) & (found >= 0) & (found < self._count)
        else:
            order = np.argsort(self._listed)
            at = np.searchsorted(self._listed, labels, sorter=order)
            found = order[np.minimum(at, len(order) - 1)]
            fits = self._listed[found] == labels
        bad = np.flatnonzero(~fits).tolist()
        return np.where(fits, found, 0), {i: self._no_class(float(labels[i]), self._count) for i in bad}

    def value(self, labels: NDArray[Any], hint: str = "") -> Any:
        """Return the value of the slot for the ``labels`` of one sample. ``hint``: what may help if their number is
        wrong.

        Raises:
            BadSample: they are another number of labels, or no class.
        """
        if len(labels) != self._width:
            hint = hint or f"label_width={len(labels)} takes them all"
            raise bad_value("label", count_text(self._width, "label"), f"{len(labels)}; {hint}")
        if self._count is None:
            return labels
        values, errors = self.values(labels)
        if errors:
            raise errors[0]
        return values[0]

    def _no_class(self, label: float, count: int) -> BadSample:
        text = str(int(label)) if label.is_integer() else repr(label)
        if self._listed is not None:
            known = ", ".join(map(str, self._listed[:_SHOWN].tolist())) + ", …" * (len(self._listed) > _SHOWN)
            return bad_value("label", f"one of the classes {known}", f"{text}; classes must list every label")
        if label == -1:
            hint = "classes=[-1, 1] is for labels of -1 and 1"
        elif label == count and count > _SHOWN:
            hint = f"classes=list(range(1, {count + 1})) is for labels from 1 to {count}"
        elif label == count:
            hint = f"classes={list(range(1, count + 1))} is for labels from 1 to {count}"
        elif not label.is_integer():
            hint = "leave classes out, so that labels are numbers"
        else:
            hint = "classes must be above the largest label, or list every label"
        return bad_value("label", f"a class from 0 to {count - 1}", f"{text}; {hint}")


def _listed(classes: Any) -> NDArray[np.int64]:
    """Return ``classes``, the numbers of all classes in their order, as an array."""
    if not isinstance(classes, list | tuple) or not all(type(number) is int for number in classes):
        raise OptionTypeError(
            f"classes must be the number of classes, or a list of their labels such as [-1, 1], got {classes!r:.80}"
        )
    if not classes or len(set(classes)) < len(classes) or max(map(abs, classes)) > _LARGEST:
        raise OptionError(f"classes must list each label once, got {classes!r:.80}")
    return np.array(classes, np.int64)


def bad_record(error: FormatError) -> BadSample:
    """Return ``error``, of a record that cannot be read, for a provider to yield in its place."""
    return BadSample(str(error).removeprefix(f"{error.file}, "), slot="all slots")


def in_pieces(
    count: int, errors: Mapping[int, BadSample], piece: Callable[[int, int], ManySamples]
) -> Iterator[ManySamples | BadSample]:
    """Yield samples 0 to ``count`` - 1 in their order: the error of each bad one, and ``piece(first, last)``, samples
    ``first`` to ``last - 1``, of those between them."""
    first = 0
    for bad in sorted(errors):
        if first < bad:
            yield piece(first, bad)
        yield errors[bad]
        first = bad + 1
    if first < count:
        yield piece(first, count)


def chosen_types(
    what: str, given: Any, declared: Callable[[str, str], T], inferred: Callable[[Sequence[str] | None], list[T]]
) -> list[T]:
    """Return the types of the fields that an argument chooses: a dict of types by name, which ``declared`` reads, or a
    list of names or None, whose types are ``inferred`` from the files. ``what``: "field"; the argument is ``fields``.

    Raises:
        OptionTypeError: the argument is something else. OptionError: it names no field.
    """
    if isinstance(given, Mapping):
        chosen = [declared(name, kind) for name, kind in given.items()]
    else:
        if given is not None and (isinstance(given, str) or not all(isinstance(name, str) for name in given)):
            raise OptionTypeError(f"{what}s must be a list of names, or a dict of types by name, got {given!r:.80}")
        chosen = inferred(given)
    if not chosen:
        raise OptionError(f"{what}s must name at least one {what}")
    return chosen


def show_inferred(logger: logging.Logger, option: str, types: Mapping[str, str]) -> None:
    """Log the types that were inferred from the first file, in the form in which ``option`` takes them."""
    logger.info("inferred %s=%s", option, json.dumps(types, ensure_ascii=False))


def whole(name: str, value: Any, meaning: str = "") -> int:
    """Return ``value`` as a whole number. Raises OptionTypeError, which says its ``meaning``: it is anything else."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise OptionTypeError(f"{name} must be a whole number{meaning and ', '}{meaning}, got {value!r:.80}")
    return int(value)


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
