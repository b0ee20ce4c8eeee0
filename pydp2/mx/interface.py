"""Define the interface of a data provider: batches of named arrays with fixed shapes (docs/mxnet.md, "The interface").

This module has the interface, and the methods that every provider derives from it (``get``, ``load_data``,
``load_label``). The other modules of this package make the batches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from pydp2.errors import OptionError, OptionTypeError, count_text
from pydp2.options.values import value_text

Array = NDArray[Any]
Description = list[tuple[str, tuple[int, ...]]]
"""Names and shapes, the batch axis first."""
SlicedArray = tuple[slice, Array]
"""A slice of the samples of a batch, from 0 and without its end, and the array that receives them."""
Targets = Sequence[Array | Sequence[SlicedArray]]
"""For each array of a batch: one destination for all rows, or a list of slices, each with a destination."""
B = TypeVar("B")


@dataclass(eq=False)
class DataBatch:
    """One batch of a provider that is made of arrays.

    ``data`` and ``label``: arrays in the order of ``provide_data`` and ``provide_label``, always of the full batch
    size. ``count``: how many of their rows, from the first on, are samples; the others are padding. It is 0 where ranks
    share a pass, and this one has no sample in the last step.
    """

    data: list[Array]
    label: list[Array]
    count: int

    def __post_init__(self) -> None:
        rows = {len(array) for array in (*self.data, *self.label)}
        if len(rows) != 1:
            raise OptionError(f"a batch needs at least one array, and as many rows in each, got {sorted(rows)}")
        size = rows.pop()
        if not 0 <= self.count <= size:
            raise OptionError(
                f"the count of a batch of {count_text(size, 'row')} must be from 0 to {size}, got {self.count}"
            )

    @property
    def pad(self) -> int:
        """Number of padding rows at the end of the batch."""
        return len((self.data or self.label)[0]) - self.count


class AbstractDataProvider(ABC, Generic[B]):
    """The interface of a data provider. A subclass defines the seven abstract members; this class derives the others
    from them.

    ``for batch in provider`` is one epoch. ``B`` is the type of a batch; only its provider knows what is in it. See
    docs/mxnet.md.
    """

    @property
    @abstractmethod
    def batch_size(self) -> int:
        """Rows of every array of a batch."""

    @property
    @abstractmethod
    def provide_data(self) -> Description:
        """Names and shapes of the data arrays, the batch axis first."""

    @property
    @abstractmethod
    def provide_label(self) -> Description:
        """Names and shapes of the label arrays, the batch axis first; empty where there are no labels."""

    @abstractmethod
    def eachbatch(self) -> Iterator[B]:
        """Begin an epoch, and return an iterator over its batches. Do here the work that each epoch needs."""

    @abstractmethod
    def count_samples(self, batch: B) -> int:
        """Return the number of rows of ``batch`` that are samples: from 1 to ``batch_size``; 0 in a batch that only
        keeps this rank in step with others."""

    @abstractmethod
    def get_data(self, batch: B) -> list[Array]:
        """Return the data of ``batch``, in the order of ``provide_data``."""

    @abstractmethod
    def get_label(self, batch: B) -> list[Array]:
        """Return the labels of ``batch``, in the order of ``provide_label``."""

    def __iter__(self) -> Iterator[B]:
        return self.eachbatch()

    def get(self, batch: B, name: str) -> Array:
        """Return the array ``name`` of ``batch``. Data come before labels.

        Raises:
            KeyError: neither ``provide_data`` nor ``provide_label`` has the name.
        """
        for described, arrays in ((self.provide_data, self.get_data), (self.provide_label, self.get_label)):
            for i, (known, _) in enumerate(described):
                if known == name:
                    return arrays(batch)[i]
        names = [known for known, _ in (*self.provide_data, *self.provide_label)]
        raise KeyError(f"no data and no label is named {name!r}; there are {names}")

    def load_data(self, batch: B, targets: Targets) -> None:
        """Copy the data of ``batch`` into ``targets``, one entry for each array of ``provide_data``.

        An entry is an array, which receives all rows, or a list of (slice, array); then each array receives the rows of
        its slice, so that a batch can go to several devices. The method checks all targets before it writes.

        A destination may have another dtype of the same kind of number (float32 to float64, or to float16). A
        destination of whole numbers accepts floats if all of them are whole numbers within its range, such as labels.

        Raises:
            OptionError: the number of entries differs from the number of arrays, or a destination has another shape
                than its rows, or is not writable (a ValueError); it names the array.
            OptionTypeError: an entry or a destination is not of these types, or its dtype cannot hold the values (a
                TypeError).
        """
        _load(self.provide_data, self.get_data(batch), targets)

    def load_label(self, batch: B, targets: Targets) -> None:
        """Copy the labels of ``batch`` into ``targets``, as :meth:`load_data` does with the data."""
        _load(self.provide_label, self.get_label(batch), targets)


class DataProvider(AbstractDataProvider[DataBatch]):
    """A provider whose batches are :class:`DataBatch`: a subclass defines the three properties and ``eachbatch``."""

    def count_samples(self, batch: DataBatch) -> int:
        """Return ``batch.count``."""
        return batch.count

    def get_data(self, batch: DataBatch) -> list[Array]:
        """Return ``batch.data``: the arrays themselves, not copies. They belong to the caller."""
        return batch.data

    def get_label(self, batch: DataBatch) -> list[Array]:
        """Return ``batch.label``: the arrays themselves, not copies. They belong to the caller."""
        return batch.label


def _load(described: Description, arrays: Sequence[Array], targets: Targets) -> None:
    if not isinstance(targets, list | tuple):
        raise OptionTypeError(f"targets must be a list with one entry for each array, got {type(targets).__name__}")
    if len(targets) != len(arrays):
        names, need = [name for name, _ in described], "needs" if len(arrays) == 1 else "need"
        many = count_text(len(arrays), "array")
        raise OptionError(f"{many} {names} {need} as many targets, got {len(targets)}")
    copies: list[tuple[Array, Array]] = []  # nothing is copied before all of them fit
    for (name, _), array, target in zip(described, arrays, targets, strict=True):
        parts: Any = [(slice(None), target)] if isinstance(target, np.ndarray) else target
        if not isinstance(parts, list | tuple):
            parts = [parts]  # the loop below raises the error
        for part in parts:
            if not isinstance(part, tuple) or len(part) != 2 or not isinstance(part[0], slice):
                raise OptionTypeError(
                    f"a target of {name!r} must be an array or a list of (slice, array), got {value_text(part)}"
                )
            copies.append(_copy(name, array, *part))
    for destination, piece in copies:
        np.copyto(destination, piece, casting="unsafe")


def _copy(name: str, array: Array, rows: slice, destination: Any) -> tuple[Array, Array]:
    """Return ``destination`` and the rows for it. Raises OptionError or OptionTypeError if they do not fit."""
    where = f"{name!r}[{_shown(rows)}]"
    if not isinstance(destination, np.ndarray):
        raise OptionTypeError(f"the destination of {where} must be a numpy array, got {type(destination).__name__}")
    try:
        piece = array[rows]
    except (TypeError, ValueError) as exc:
        raise OptionTypeError(f"a target of {name!r} has an invalid slice, {where}: {exc}") from exc
    if piece.shape != destination.shape:
        raise OptionError(
            f"{where} has the shape {piece.shape}, its destination {destination.shape}; "
            f"give a destination of the same shape (the batch has {count_text(len(array), 'row')})"
        )
    if not destination.flags.writeable:
        raise OptionError(f"the destination of {where} cannot be written; give one that owns its memory, as a copy()")
    if not _holds(destination.dtype, piece):
        raise OptionTypeError(
            f"{where} is {piece.dtype.name} with values that its destination, {destination.dtype.name}, cannot hold; "
            f"give a destination of {piece.dtype.name}"
        )
    return destination, piece


def _holds(kind: np.dtype[Any], piece: Array) -> bool:
    """Return True if an array of dtype ``kind`` can hold the numbers of ``piece``."""
    if kind.kind not in "iu" or np.can_cast(piece.dtype, kind, "safe"):
        # numpy would also write numbers as texts and as objects
        return np.can_cast(piece.dtype, kind, "same_kind") and (kind.kind in "biufc" or kind == piece.dtype)
    if piece.dtype.kind not in "iuf" or not piece.size:
        return piece.dtype.kind in "iuf"
    limits = np.iinfo(kind)
    # compare Python numbers, which are exact; comparisons with a NaN are False
    within = limits.min <= piece.min().item() and piece.max().item() <= limits.max
    return within and (piece.dtype.kind != "f" or bool((piece == np.trunc(piece)).all()))


def _shown(rows: slice) -> str:
    start, stop = ("" if edge is None else str(edge) for edge in (rows.start, rows.stop))
    return f"{start}:{stop}" + ("" if rows.step is None else f":{rows.step}")
