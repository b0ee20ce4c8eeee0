"""Define LoD tensors: an array, and the levels of detail (LoD) that say how its rows form sequences.

This module checks LoDs, joins tensors, and converts them to and from :class:`pydp2.Ragged`. A level is a list of
offsets from 0. The lowest level counts rows; each level above it counts sequences of the level below. ``[[0, 2, 3], [0,
2, 2, 5]]`` describes two sequences. The first has two sub-sequences: rows 0 and 1, and an empty one. The second has one
sub-sequence: rows 2 to 4. (``Ragged`` counts rows at both levels.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pydp2.data.columns.array_likes import NotReadable, read_array, tensor_hint
from pydp2.data.columns.batch import Batch, Csr, Ragged
from pydp2.data.columns.masks import UNMASK_HINT, has_mask, masked_text
from pydp2.errors import BadSample, OptionError, OptionTypeError, count_text

Level = NDArray[np.int64]
Lod = tuple[Level, ...]

INT32_RANGE = 1 << 31


class LoDTensor:
    """An array ``data`` whose rows form sequences as ``lod`` says. Without levels (``lod=()``) it is only an array.

    ``data``: an array, anything that ``numpy.asarray`` accepts, or a tensor that :func:`~pydp2.fluid.double_buffer`
    copied to a device. ``lod``: levels of offsets, the outermost level first; kept as a tuple of int64 arrays.
    ``numpy.asarray(tensor)`` is the data. Raises OptionError and OptionTypeError for a LoD that :func:`check_lod`
    refuses, and OptionTypeError for data with a mask. See docs/fluid.md.
    """

    __slots__ = ("data", "lod")

    def __init__(self, data: Any, lod: Sequence[Sequence[int] | Level] = ()) -> None:
        if isinstance(data, LoDTensor):
            data = data.data
        if has_mask(data):
            raise OptionTypeError(f"a LoD tensor holds an array{UNMASK_HINT}, got {masked_text(data)}")
        self.data: Any = data if hasattr(data, "shape") and hasattr(data, "dtype") else np.asarray(data)
        none = isinstance(lod, tuple) and not lod
        self.lod: Lod = () if none else check_lod(lod, self.data.shape[0] if self.data.shape else 0)

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(self.data.shape[0])

    def __repr__(self) -> str:
        levels = "".join(f", {count_text(len(level) - 1, 'sequence')}" for level in self.lod[:1])
        deeper = f" in {len(self.lod)} levels" if len(self.lod) > 1 else ""
        return f"<LoDTensor {self.data.dtype} {tuple(self.data.shape)}{levels}{deeper}>"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.data, dtype, copy=copy)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the data, rows first."""
        return tuple(self.data.shape)

    @property
    def dtype(self) -> Any:
        """Dtype of the data."""
        return self.data.dtype

    def with_data(self, data: Any) -> LoDTensor:
        """Return a tensor of ``data`` with the same levels. Raises OptionError if the number of rows differs and there
        are levels."""
        return LoDTensor(data, self.lod)

    def lengths(self) -> list[NDArray[np.int64]]:
        """Return the lengths of the sequences of each level, int64: the differences of its offsets."""
        return [np.diff(level) for level in self.lod]

    def absolute(self) -> Lod:
        """Return the levels with all offsets counted in rows, as in :class:`pydp2.Ragged`."""
        levels: list[Level] = []
        for level in reversed(self.lod):
            levels.append(levels[-1][level] if levels else level)
        return tuple(reversed(levels))


Instance = tuple[LoDTensor, ...]
"""The result of one read: one tensor for each slot. It can be one sample or a batch; the stack of readers decides."""


def instance_of(values: Any, whose: str) -> Instance:
    """Return ``values`` as an instance: a list or tuple of tensors and arrays, a :class:`pydp2.Batch`, or a single
    tensor.

    Raises OptionTypeError for values that cannot become numeric arrays. Its text names ``whose``, the source of the
    values.
    """
    if isinstance(values, LoDTensor | np.ndarray):
        values = (values,)
    if isinstance(values, Batch):
        values = tuple(values)
    if not isinstance(values, list | tuple):
        raise OptionTypeError(
            f"{whose} must give a list or tuple of tensors or arrays, one for each slot, got {type(values).__name__}"
        )
    return tuple(_tensor(value, slot, whose) for slot, value in enumerate(values))


def _tensor(value: Any, slot: int, whose: str) -> LoDTensor:
    if isinstance(value, LoDTensor):
        return value
    if isinstance(value, Ragged):
        return from_ragged(value)
    try:
        array = read_array(value)
        if array.dtype.kind not in "biufc":
            raise NotReadable(tensor_hint(value, "numpy"), f"{value!r:.80} ({type(value).__name__})")
    except NotReadable as error:
        raise OptionTypeError(f"{whose} must give numbers for slot {slot}{error.hint}, got {error.got}") from None
    return LoDTensor(array)


def check_lod(lod: Sequence[Sequence[int] | Level], rows: int) -> Lod:
    """Return ``lod`` as int64 arrays, after checking that it fits ``rows``.

    A level has at least two offsets, starts with 0 and never falls. A level ends with the number of sequences of the
    next one; the lowest level ends with ``rows``. A LoD without levels is valid. Raises OptionError that names the
    broken rule and the level, OptionTypeError for a LoD or level that is not a list, or not of whole numbers.
    """
    if not isinstance(lod, Sequence | np.ndarray) or (isinstance(lod, np.ndarray) and not lod.ndim):
        raise OptionTypeError(f"a LoD is a list of levels, each a list of offsets, got {lod!r:.80}")
    levels = tuple(_level(level, k) for k, level in enumerate(lod))
    for k, level in enumerate(levels):
        if len(level) < 2:
            raise OptionError(f"a level of a LoD needs at least 2 offsets, level {k} has {len(level)}")
        if level[0] != 0:
            raise OptionError(f"a level of a LoD starts with 0, level {k} with {level[0]}")
        if (level[1:] < level[:-1]).any():
            at = int(np.flatnonzero(level[1:] < level[:-1])[0])
            raise OptionError(f"offsets of a LoD never fall, level {k} goes from {level[at]} to {level[at + 1]}")
    for k, (level, below) in enumerate(pairwise(levels)):
        if level[-1] != len(below) - 1:
            raise OptionError(
                f"level {k} of a LoD ends with {level[-1]}, but level {k + 1} has {len(below) - 1} sequences"
            )
    if levels and levels[-1][-1] != rows:
        raise OptionError(
            f"the lowest level of a LoD ends with {levels[-1][-1]}, but the data has {count_text(rows, 'row')}"
        )
    return levels


def _level(level: Sequence[int] | Level, k: int) -> Level:
    array = np.asarray(level)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise OptionTypeError(f"a level of a LoD is a list of whole numbers, level {k} is {level!r:.80}")
    return array.astype(np.int64)


def concat(tensors: Sequence[LoDTensor], fail: Callable[[str, str, str], BadSample]) -> LoDTensor:
    """Return the rows of all tensors (at least one), one after the other, with their LoDs appended level by level.

    All tensors need the same dtype, the same dimensions after the first, the same number of levels, and rows. Otherwise
    raises the error that ``fail(what, expected, got)`` returns.
    """
    first = tensors[0]
    for tensor in tensors:
        if not tensor.shape:
            raise fail("rows", "at least one row, as in [number]", "a single number")
        if not len(tensor):
            raise fail("rows", "at least one row", f"shape {tensor.shape}")
        if tensor.dtype != first.dtype:
            raise fail("dtype", str(first.dtype), str(tensor.dtype))
        if tensor.shape[1:] != first.shape[1:]:
            raise fail("dimensions behind the first", str(first.shape[1:]), str(tensor.shape[1:]))
        if len(tensor.lod) != len(first.lod):
            raise fail("levels of LoD", str(len(first.lod)), str(len(tensor.lod)))
    lod = [_appended([tensor.lod[k] for tensor in tensors]) for k in range(len(first.lod))]
    return LoDTensor(np.concatenate([np.asarray(tensor) for tensor in tensors]), lod)


def _appended(levels: Sequence[Level]) -> Level:
    return np.concatenate([[0], *(np.diff(level) for level in levels)]).cumsum()


def to_ragged(tensor: LoDTensor) -> Ragged:
    """Return the sequences of ``tensor`` as a ``Ragged``. One level of LoD becomes a sequence, two become a nested
    sequence.

    Offsets count time steps at both levels; they are int32, or int64 from 2**31 rows on. The data are not copied.
    Raises OptionError for no level or more than two. See docs/fluid.md.
    """
    if len(tensor.lod) not in (1, 2):
        raise OptionError(f"a Ragged has one or two levels of sequences, this LoD has {len(tensor.lod)}")
    wide = len(tensor) >= INT32_RANGE
    positions = [level if wide else level.astype(np.int32) for level in tensor.absolute()]
    return Ragged(np.asarray(tensor), *positions)


def from_ragged(ragged: Ragged) -> LoDTensor:
    """Return ``ragged`` as a tensor with one or two levels of LoD. The values are not copied.

    Raises OptionTypeError for sparse values and strings, because a tensor cannot hold them. Raises OptionError if a
    level has no sequence, if positions do not match, or if an empty sub-sequence lies between two sequences: positions
    counted in time steps do not show to which of the two it belongs. See docs/fluid.md.
    """
    if not isinstance(ragged.values, np.ndarray):
        what = "sparse (Csr)" if isinstance(ragged.values, Csr) else f"strings ({type(ragged.values).__name__})"
        raise OptionTypeError(f"a LoD tensor holds dense or integer steps, these are {what}")
    starts = ragged.sequence_start_positions.astype(np.int64)
    subs = ragged.sub_sequence_start_positions
    if len(starts) < 2 or (subs is not None and len(subs) < 2):
        raise OptionError("a level of a LoD has at least one sequence, this Ragged has none")
    if subs is None:
        return LoDTensor(ragged.values, [starts])
    below = subs.astype(np.int64)
    first, behind = np.searchsorted(below, starts, "left"), np.searchsorted(below, starts, "right")
    if (first == behind).any():
        raise OptionError("each of sequence_start_positions must be one of sub_sequence_start_positions")
    if (behind - first)[1:-1].max(initial=1) > 1:
        at = int(starts[1:-1][np.flatnonzero((behind - first)[1:-1] > 1)[0]])
        raise OptionError(
            f"an empty sub-sequence lies between two sequences, at time step {at}, and a Ragged does not say whose "
            "it is"
        )
    first[0], first[-1] = 0, len(below) - 1
    return LoDTensor(ragged.values, [first, below])
