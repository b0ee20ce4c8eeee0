"""LoD tensors: an array, and the levels of detail (LoD) that say how its rows form sequences.

It answers for what a LoD may be, for joining tensors, and for the way to and from :class:`pydp2.Ragged`. A level is a
list of offsets from 0. The lowest level counts rows, each level above it counts the sequences of the level below:
``[[0, 2, 3], [0, 2, 2, 5]]`` are two sequences, the first of two sub-sequences (rows 0 to 2 and none), the second of
one (rows 2 to 5). (``Ragged`` counts rows at both levels.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pydp2.columns.batch import Batch, Csr, Ragged
from pydp2.errors import BadSample, OptionError, OptionTypeError, count_text

Level = NDArray[np.int64]
Lod = tuple[Level, ...]

INT32_RANGE = 1 << 31


class LoDTensor:
    """``data`` whose rows form sequences as ``lod`` says; without levels (``lod=()``) just an array.

    ``data``: an array (anything that numpy takes for one), or what :func:`~pydp2.fluid.double_buffer` placed on a
    device. ``lod``: levels of offsets from the outermost in, kept as a tuple of int64 arrays. ``numpy.asarray(tensor)``
    is the data. Raises OptionError for a LoD that :func:`check_lod` refuses. See docs/fluid.md.
    """

    __slots__ = ("data", "lod")

    def __init__(self, data: Any, lod: Sequence[Sequence[int] | Level] = ()) -> None:
        if isinstance(data, LoDTensor):
            data = data.data
        self.data: Any = data if hasattr(data, "shape") and hasattr(data, "dtype") else np.asarray(data)
        self.lod: Lod = check_lod(lod, self.data.shape[0] if self.data.shape else 0) if len(lod) else ()

    def __len__(self) -> int:
        """Rows."""
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
        """Other data of as many rows, in the same sequences. Raises OptionError for another number of rows."""
        return LoDTensor(data, self.lod)

    def lengths(self) -> list[NDArray[np.int64]]:
        """Lengths of the sequences of each level: the LoD without its running sums."""
        return [np.diff(level) for level in self.lod]

    def absolute(self) -> Lod:
        """The levels with all offsets counted in rows, as in :class:`pydp2.Ragged`."""
        levels: list[Level] = []
        for level in reversed(self.lod):
            levels.append(levels[-1][level] if levels else level)
        return tuple(reversed(levels))


Instance = tuple[LoDTensor, ...]
"""What a reader gives at a time: one tensor for each slot. One sample or a batch, as the reader is built."""


def instance_of(values: Any, whose: str) -> Instance:
    """``values`` (a list or tuple of tensors and arrays, a :class:`pydp2.Batch`, or a single tensor) as an instance.

    Raises OptionTypeError, which names ``whose`` values they are, for anything that no numeric array can be made of.
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
        array = np.asarray(value)
    except ValueError:  # rows of different lengths
        array = np.empty(0, object)
    if array.dtype.kind not in "biufc":
        raise OptionTypeError(f"{whose} must give numbers for slot {slot}, got {value!r:.80} ({type(value).__name__})")
    return LoDTensor(array)


def check_lod(lod: Sequence[Sequence[int] | Level], rows: int) -> Lod:
    """``lod`` as int64 arrays, once it is known to fit ``rows``.

    A level has at least two offsets, starts with 0 and never falls; a level ends with the number of sequences of the
    next one, the lowest with ``rows``. No levels at all are a LoD too. Raises OptionError that says which rule is
    broken at which level.
    """
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
    """The rows of all tensors (at least one), one after the other, their LoDs appended level by level.

    All need the same dtype, the same dimensions behind the first, the same number of levels, and rows. Raises what
    ``fail(what, expected, got)`` makes.
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
    """The sequences of ``tensor`` as pydp2 has them: one level of LoD is a sequence, two are a nested sequence.

    Offsets are counted in time steps at both levels (int32, int64 from 2**31 on). The data are not copied. Raises
    OptionError for no level or more than two. See docs/fluid.md.
    """
    if len(tensor.lod) not in (1, 2):
        raise OptionError(f"a Ragged has one or two levels of sequences, this LoD has {len(tensor.lod)}")
    wide = len(tensor) >= INT32_RANGE
    positions = [level if wide else level.astype(np.int32) for level in tensor.absolute()]
    return Ragged(np.asarray(tensor), *positions)


def from_ragged(ragged: Ragged) -> LoDTensor:
    """The other way round: ``ragged`` as a tensor with one or two levels of LoD. The values are not copied.

    Raises OptionTypeError for sparse values, which no tensor holds, and OptionError where an empty sub-sequence lies
    between two sequences: positions counted in time steps do not say whose it is. See docs/fluid.md.
    """
    if isinstance(ragged.values, Csr):
        raise OptionTypeError("a LoD tensor holds dense or integer steps, these are sparse (Csr)")
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
