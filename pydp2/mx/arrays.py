"""Make batches of arrays in memory: ArrayDataProvider, and NDArrayIter with three rules for the last batch.

See docs/mxnet.md, "Arrays".
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pydp2.data.columns.array_likes import NotReadable, as_array, read_array, tensor_hint
from pydp2.errors import OptionError, OptionTypeError
from pydp2.mx.epochs import EpochProvider
from pydp2.mx.interface import Array, DataBatch, Description
from pydp2.mx.options import flag, number
from pydp2.options.values import Choice, integer_from
from pydp2.order.random_bits import permutation

Named = tuple[str, ArrayLike]
Source = ArrayLike | Named | Sequence[Named] | Mapping[str, ArrayLike]
"""An array, a (name, array), a list or tuple of these, or a dict."""
_DATA_NAME, _LABEL_NAME = "data", "softmax_label"
_NUMBERS = "biufV"  # V: dtypes that other libraries add, such as bfloat16
_LARGEST = float(np.finfo(np.float32).max)
_Rows = NDArray[np.int64]


class _Arrays(EpochProvider):
    """A provider of named arrays with equal numbers of samples. It makes an order for each epoch, and copies rows into
    batches."""

    def __init__(self, data: Source, label: Source | None, names: tuple[str, str], shuffle: bool, seed: int) -> None:
        super().__init__()
        self._data = _named("data", data, names[0])
        self._label = [] if label is None else _named("label", label, names[1])
        if not self._data:
            raise OptionError("data must hold at least one array, got none")
        first, array = self._data[0]
        self.count = len(array)
        """Samples of an epoch."""
        for name, other in (*self._data[1:], *self._label):
            if len(other) != self.count:
                raise OptionError(
                    f"all arrays need as many samples, but {first!r} has {self.count} and {name!r} has {len(other)}"
                )
        known = [name for name, _ in (*self._data, *self._label)]
        if len(set(known)) < len(known):
            raise OptionError(f"arrays need different names, got {known}")
        self._shuffle = flag("shuffle", shuffle)
        self._seed = integer_from(0, None)("seed", seed)
        self._epoch = 0
        self._size = 0

    @property
    def batch_size(self) -> int:
        """Rows of every array of a batch."""
        return self._size

    @property
    def provide_data(self) -> Description:
        """Names and shapes of the data arrays, the batch axis first."""
        return [(name, (self._size, *array.shape[1:])) for name, array in self._data]

    @property
    def provide_label(self) -> Description:
        """Names and shapes of the label arrays, the batch axis first."""
        return [(name, (self._size, *array.shape[1:])) for name, array in self._label]

    def _order(self) -> _Rows:
        """Return the row numbers in the order of the next epoch, and count the epoch."""
        epoch, self._epoch = self._epoch, self._epoch + 1
        return permutation(self._seed, epoch, "mx arrays", self.count) if self._shuffle else np.arange(self.count)

    def _batch(self, rows: _Rows, count: int, padding: tuple[float, float] = (0, 0)) -> DataBatch:
        """Return a batch of copies of ``rows``. If they are too few, fill it with ``padding``, (data, label)."""
        data, label = (
            [filled(array[rows], self._size, value) for _, array in arrays]
            for arrays, value in zip((self._data, self._label), padding, strict=True)
        )
        return DataBatch(data, label, count)


class ArrayDataProvider(_Arrays):
    """Arrays, cut into batches of consecutive samples.

    A number fills the missing rows of the last batch; ``count_samples`` returns how many of its rows are samples.
    Arrays (samples, …) are copied to float32 and become batches (batch, …). Every batch has its own arrays.

    Args:
        data: an array, which is named ``data``; or (name, array), a list or tuple of these, or a dict.
        label: the same, an array is named ``softmax_label``. None: no labels.
        batch_size: samples of a batch, up to the number of all; 0: all of them in one batch.
        shuffle: whether every epoch has an order of its own, the same for all arrays.
        data_padding, label_padding: the number that fills the missing rows of the last batch.
        seed: decides, with the number of the epoch, about its order.

    Raises:
        OptionError: there is no array, numbers of samples differ, or the batch size or a padding is invalid (a
            ValueError).
        OptionTypeError: data or label of another kind (a TypeError).
    """

    def __init__(
        self,
        data: Source,
        label: Source | None = None,
        *,
        batch_size: int = 0,
        shuffle: bool = False,
        data_padding: float = 0,
        label_padding: float = 0,
        seed: int = 0,
    ) -> None:
        super().__init__(data, label, (_DATA_NAME, _LABEL_NAME), shuffle, seed)
        size = integer_from(0)("batch_size", batch_size) or self.count
        if not 0 < size <= self.count:
            raise OptionError(f"batch_size must be from 1 to {self.count} (all samples), or 0 for that, got {size}")
        self._size = size
        self._padding = (_padding("data_padding", data_padding), _padding("label_padding", label_padding))

    def _batches(self) -> Generator[DataBatch, None, None]:
        order = self._order()
        for start in range(0, self.count, self._size):
            rows = order[start : start + self._size]
            yield self._batch(rows, len(rows), self._padding)


class NDArrayIter(_Arrays):
    """Arrays, cut into batches. ``last_batch_handle`` selects what happens to a last batch that is not full.

    Args:
        data, label: as for :class:`ArrayDataProvider`.
        batch_size: samples of a batch.
        shuffle: whether every epoch has an order of its own, the same for all arrays.
        last_batch_handle: ``"pad"`` fills it with samples from the beginning of the epoch, repeated if they are too
            few; ``"discard"`` leaves it out; ``"roll_over"`` puts its samples before those of the next epoch.
        data_name, label_name: the names of arrays that are given without a name.
        seed: decides, with the number of the epoch, about its order.

    Raises:
        OptionError: as for :class:`ArrayDataProvider`; or fewer samples than a batch has, unless they are padded.
        OptionTypeError: data or label of another kind (a TypeError).
    """

    def __init__(
        self,
        data: Source,
        label: Source | None = None,
        batch_size: int = 1,
        shuffle: bool = False,
        last_batch_handle: str = "pad",
        data_name: str = _DATA_NAME,
        label_name: str = _LABEL_NAME,
        *,
        seed: int = 0,
    ) -> None:
        super().__init__(data, label, (data_name, label_name), shuffle, seed)
        self._size = integer_from(1)("batch_size", batch_size)
        self._last = Choice(("pad", "discard", "roll_over"))("last_batch_handle", last_batch_handle)
        if self.count < (self._size if self._last != "pad" else 1):
            raise OptionError(
                f"last_batch_handle={self._last!r} needs at least a batch of {self._size} samples, got {self.count}; "
                f'use "pad", or a smaller batch_size'
            )
        self._rest: _Rows = np.arange(0)

    def _batches(self) -> Generator[DataBatch, None, None]:
        order = np.concatenate((self._rest, self._order()))
        self._rest = order[:0]  # if the epoch is left early, nothing rolls over
        whole_ones = len(order) // self._size * self._size
        for start in range(0, whole_ones, self._size):
            yield self._batch(order[start : start + self._size], self._size)
        rest = order[whole_ones:]
        if self._last == "roll_over":
            self._rest = rest
        elif self._last == "pad" and len(rest):
            yield self._batch(np.concatenate((rest, np.resize(order, self._size - len(rest)))), len(rest))


def _named(what: str, source: Source, name: str) -> list[tuple[str, Array]]:
    """Return the arrays of ``source`` with their names, as float32 copies."""
    if isinstance(source, Mapping):
        pairs: Sequence[Any] = list(source.items())
    elif _is_pair(source):
        pairs = [source]
    elif isinstance(source, list | tuple):
        pairs = source
    elif isinstance(source, np.generic) or as_array(source) is not None:
        pairs = [(name, source)]
    else:
        pairs = [None]
    if not all(_is_pair(pair) for pair in pairs):
        raise OptionTypeError(
            f"{what} must be an array, (name, array), a list or tuple of these, or a dict of arrays; got "
            f"{type(source).__name__}"
            + (tensor_hint(source, "numpy") or " (a list of numbers: numpy.array(...) makes it an array)")
        )
    return [(key, _copied(key, array)) for key, array in pairs]


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str)


def _padding(name: str, value: float) -> float:
    """Return a number that fills rows of float32."""
    checked = number(name, value)
    if math.isfinite(checked) and abs(checked) > _LARGEST:
        raise OptionError(f"{name} must be a number of float32, got {checked!r}; the largest is {_LARGEST:.2g}")
    return checked


def _copied(name: str, array: Any) -> Array:
    try:
        given = read_array(array)
    except NotReadable as error:
        raise OptionTypeError(f"{name!r} must be an array{error.hint}, got {error.got}") from None
    try:
        with np.errstate(over="raise"):
            copied = given.astype(np.float32) if given.dtype.kind in _NUMBERS else None
    except FloatingPointError as exc:
        raise OptionError(f"{name!r} must hold numbers of float32, got some beyond {_LARGEST:.2g}") from exc
    if copied is None:
        raise OptionTypeError(f"{name!r} must be an array of real numbers, got {given.dtype}")
    if copied.ndim == 0:
        raise OptionError(f"{name!r} must have an axis of samples, got the single number {copied}")
    return copied


def filled(rows: Array, size: int, value: float) -> Array:
    """Return ``rows``. If they are fewer than ``size``, rows of ``value`` follow them."""
    if len(rows) == size:
        return rows
    filled = np.full((size, *rows.shape[1:]), value, rows.dtype)
    filled[: len(rows)] = rows
    return filled
