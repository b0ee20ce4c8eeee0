"""Share the common parts of the providers of files: names and shapes, batches prepared ahead, the start of the next
epoch.

See docs/mxnet.md, "Files". One module for each provider reads its files.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Generator, Sequence
from contextlib import closing
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from pydp2.errors import OptionError, OptionTypeError
from pydp2.file_parts import FilePart
from pydp2.mx.epochs import EpochProvider, prefetch
from pydp2.mx.interface import Array, DataBatch, Description
from pydp2.mx.rounds import EpochStart, next_epoch_start
from pydp2.options.values import integer_from

Shape = Sequence[int] | NDArray[np.integer[Any]]


class FileProvider(EpochProvider):
    """A provider of one array of data and, usually, one of labels, from files.

    Args:
        names: the names of data and label; with None for the label there are no labels.
        batch_size: samples of a batch.
        data_shape, label_shape: the shapes of one sample; a label of shape (1,) is a number.
        dtype: of both.
        prefetch_buffer: batches that are prepared ahead.

    Subclasses call :meth:`_look` when they are ready.
    """

    def __init__(
        self,
        names: tuple[str, str | None],
        batch_size: int,
        data_shape: Shape,
        label_shape: Shape,
        prefetch_buffer: int,
        dtype: DTypeLike = np.float32,
    ) -> None:
        super().__init__()
        if not isinstance(names[0], str) or not isinstance(names[1], str | None):
            raise OptionTypeError(f"data_name must be a text, and label_name a text or None; got {names}")
        if names[0] == names[1]:
            raise OptionError(f"data_name and label_name must be different names, got {names[0]!r} twice")
        self._names = names
        self._size: int = integer_from(1)("batch_size", batch_size)
        self._prefetch: int = integer_from(1)("prefetch_buffer", prefetch_buffer)
        self._data_shape = shape("data_shape", data_shape)
        self._label_shape = shape("label_shape", label_shape)
        self._dtype = np.dtype(dtype)
        self._start = EpochStart()

    @property
    def batch_size(self) -> int:
        """Rows of every array of a batch."""
        return self._size

    @property
    def provide_data(self) -> Description:
        """Name and shape of the data, the batch axis first."""
        return [(self._names[0], (self._size, *self._data_shape))]

    @property
    def provide_label(self) -> Description:
        """Name and shape of the label, the batch axis first; empty without labels."""
        return [] if self._names[1] is None else [(self._names[1], self._label_batch_shape)]

    @property
    def _labelled(self) -> bool:
        """True if batches have labels."""
        return self._names[1] is not None

    @property
    def _label_batch_shape(self) -> tuple[int, ...]:
        return (self._size,) if self._label_shape == (1,) else (self._size, *self._label_shape)

    @abstractmethod
    def _prepared(self, start: EpochStart) -> Generator[tuple[DataBatch, int], None, None]:
        """Yield the batches of the epoch that begins at ``start``, each with the number of its samples that come from
        the beginning of the next reading. Runs in a thread of the epoch."""

    def _look(self) -> None:
        """Make the first batch and drop it, so that errors in the files show at once. Raises OptionError if there is no
        batch.
        """
        with closing(self._prepared(EpochStart())) as batches:
            if next(batches, None) is None:
                raise OptionError(
                    f"{type(self).__name__} needs samples for at least one batch of {self._size}, but got none; are "
                    "these the right files, and the right batch_size?"
                )

    def _batches(self) -> Generator[DataBatch, None, None]:
        start = self._start
        self._start = next_epoch_start(start, 0)  # where the next epoch begins if this one is left
        missing = 0
        for prepared in prefetch(lambda: self._prepared(start), self._prefetch):
            batch, missing = prepared
            yield batch
        self._start = next_epoch_start(start, missing)

    def _batch(self, data: Array, labels: Array, missing: int, count: int) -> DataBatch:
        """Return a batch of arrays of full size. ``count`` rows were read; the last ``missing`` of these are
        padding."""
        label = [labels.reshape(self._label_batch_shape)] if self._labelled else []
        return DataBatch([data], label, count - missing)


def shape(name: str, value: Any) -> tuple[int, ...]:
    """Return the shape of a sample, whole numbers from 1. Raises OptionTypeError or OptionError for any other value."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise OptionTypeError(f"{name} must be a tuple of whole numbers, got {value!r}")
    sides = tuple(integer_from(1)(name, side) for side in value)
    if not sides or math.prod(sides) >= 1 << 40:
        raise OptionError(f"{name} must have at least one side, and a size that memory can hold, got {sides}")
    return sides


def share(num_parts: Any, part_index: Any) -> FilePart:
    """Return part ``part_index`` of ``num_parts``, from 0. Raises OptionTypeError or OptionError if there is no such
    part."""
    count = integer_from(1)("num_parts", num_parts)
    return FilePart(integer_from(0, count)("part_index", part_index), count)
