"""Check many samples at once: ranges, overflow, duplicates; and cast their values afterwards.

:func:`check_values` turns what a writer gathered into the arrays of a slot, and says which rows are bad. Types and
lengths were judged before, in :mod:`.normalise`, which also has the words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pydp2.data.columns.columns import Array, Ints, offsets
from pydp2.data.packers import normalise
from pydp2.data.schema.input_types import STRING_TYPES, DataType, InputType, Slots, is_float
from pydp2.errors import BadSample

_NO_POSITIONS: Ints = np.empty(0, np.int64)
_FLOAT32 = np.dtype(np.float32)


def check_values(
    slots: Slots, slot: int, counts: list[NDArray[np.int32]], segments: list[NDArray[Any]], already_checked: bool
) -> tuple[list[Array], dict[int, BadSample]]:
    """Return the arrays of the slot in schema order, and the first thing found wrong by row.

    ``already_checked``: nothing is wrong, and the runs are the arrays.
    """
    if already_checked:
        fields = slots.fields[slot][len(counts) :]
        return [*counts, *(run.reshape(-1, *field.shape) for run, field in zip(segments, fields, strict=True))], {}
    judged = _ValueChecker(slots, slot, counts)
    return [*counts, *judged.element_arrays(segments)], judged.bad


class _ValueChecker:
    def __init__(self, slots: Slots, slot: int, counts: Sequence[NDArray[np.int32]]) -> None:
        self.slots, self.slot = slots, slot
        self.declared: InputType = slots.types[slot]
        self.counts = counts
        self.bad: dict[int, BadSample] = {}

    def element_arrays(self, segments: list[NDArray[Any]]) -> list[Array]:
        declared = self.declared
        if declared.type == DataType.Dense:
            flat = self.numbers(segments, declared.element_dtype, ())
            return [flat.view(declared.stored_dtype).reshape(-1, *declared.element_shape)]
        if declared.type in STRING_TYPES:  # judged when they were taken
            return [_concatenated(segments, declared.element_dtype)]
        if declared.type == DataType.SparseValue:
            indices = self.ids([run["i"] for run in segments], (0,))
            values = self.numbers([run["v"] for run in segments], _FLOAT32, (1,))
            self.blame_duplicates(indices, (0,))
            return [indices, values]
        indices = self.ids(segments, ())
        if declared.type == DataType.SparseNonValue:
            self.blame_duplicates(indices, ())
        return [indices]

    def ids(self, segments: list[NDArray[Any]], inner_path: normalise.ValuePath) -> Array:
        """Return all runs as ids of the slot's dtype, and note the rows with an id outside of [0, dim)."""
        dim, dtype = self.declared.dim, self.declared.element_dtype
        done, base = [], 0
        for run in segments:
            if run.dtype.kind == "b":
                run = run.view(np.uint8)
            if not _within(run, dim):
                where = np.flatnonzero((run < 0) | (run >= dim))
                self.blame_rows(base, where, run, normalise.expected_id(dim), inner_path)
            done.append(_contiguous(run.astype(dtype, copy=False)))
            base += len(run)
        return _concatenated(done, dtype)

    def numbers(self, segments: list[NDArray[Any]], dtype: np.dtype[Any], inner_path: normalise.ValuePath) -> Array:
        """Return all runs as numbers of ``dtype``, and note the rows with a number that does not fit."""
        done, base = [], 0
        for run in segments:
            if run.dtype.names == ("v",):
                run = run["v"]
            fitting, where = cast(run, dtype)
            if len(where):
                self.blame_rows(base, where, run, normalise.expected_value(self.declared), inner_path)
            done.append(fitting)
            base += len(run)
        return _concatenated(done, dtype)

    def blame_duplicates(self, indices: Array, inner_path: normalise.ValuePath) -> None:
        where = duplicate_positions(indices, self.counts[-1])
        if len(where):
            self.blame_rows(0, where, indices, "each index once in a row", inner_path)

    def blame_rows(self, base: int, where: Ints, run: Array, expected: str, inner_path: normalise.ValuePath) -> None:
        """Blame the row of each position in ``where``, which are positions in ``run``, for the first one in it."""
        path, rows = self.paths_of(where + base)
        rows, firsts = np.unique(rows, return_index=True)
        label = self.slots.label(self.slot)
        for row, first in zip(rows.tolist(), firsts.tolist(), strict=True):
            if row not in self.bad:
                place = (*(int(level[first]) for level in path), *inner_path)
                self.bad[row] = normalise.bad_sample(label, expected, run[where[first]].item(), place)

    def paths_of(self, positions: Ints) -> tuple[list[Ints], Ints]:
        """Return where the values at the flat ``positions`` stood in what was yielded, level by
        level, and their rows."""
        path: list[Ints] = []
        if self.declared.type == DataType.Dense and not self.declared.is_scalar:
            path.append(positions % self.declared.dim)
            positions = positions // self.declared.dim
        for counts in reversed(self.counts):
            starts = offsets(counts)
            group = np.searchsorted(starts, positions, "right") - 1
            path.insert(0, positions - starts[group])
            positions = group
        return path, positions


def _within(ids: Array, dim: int) -> bool:
    """Return True if all ``ids``, at least one, are in [0, dim)."""
    dtype = ids.dtype
    if dtype.kind == "i" and dim <= 1 << (8 * dtype.itemsize - 1):  # one look: as unsigned, a negative one is too large
        return int(ids.view(dtype.str.replace("i", "u")).max()) < dim
    return int(ids.min()) >= 0 and int(ids.max()) < dim


def _contiguous(values: Array) -> Array:
    """Return ``values`` themselves, or a copy if they are a field of wider records."""
    return values if values.flags.c_contiguous and values.flags.aligned else values.copy()


def _concatenated(parts: list[Array], dtype: np.dtype[Any]) -> Array:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, dtype)


def cast(values: NDArray[Any], dtype: np.dtype[Any]) -> tuple[Array, Ints]:
    """Return ``values`` (flat, of any real dtype) as ``dtype``, and the positions of those that it cannot hold.

    NaN and infinity fit a float dtype; a finite value that becomes infinite does not. An integer dtype holds whole
    numbers within its limits, and bool 0 and 1.
    """
    if values.dtype == dtype:
        return _contiguous(values), _NO_POSITIONS
    if is_float(dtype):
        with np.errstate(over="ignore"):
            result = values.astype(dtype)
        if np.isfinite(result).all():
            return result, _NO_POSITIONS
        return result, np.flatnonzero(~np.isfinite(result) & np.isfinite(values))
    fits = _fits_integer(values, dtype)
    if fits.all():
        return values.astype(dtype), _NO_POSITIONS
    return np.where(fits, values, values.dtype.type(0)).astype(dtype), np.flatnonzero(~fits)


def _fits_integer(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[np.bool_]:
    least, most = normalise.integer_limits(dtype)
    if values.dtype.kind == "b":
        return np.ones(len(values), np.bool_)
    if values.dtype.kind in "iu":
        return np.asarray((values >= least) & (values <= most), dtype=np.bool_)
    if values.dtype.itemsize < 8:  # so that the limits themselves do not overflow
        values = values.astype(np.float64)
    # The upper limit plus one is a power of two, hence exact where the limit itself may not be.
    return np.asarray(
        (values >= float(least)) & (values < float(most + 1)) & (np.floor(values) == values), dtype=np.bool_
    )


def duplicate_positions(indices: Array, counts: NDArray[np.int32]) -> Ints:
    """Return the positions of indices that stood before in the same group; ``counts`` says how long the groups are."""
    if len(indices) < 2:
        return _NO_POSITIONS
    rising = indices[1:] > indices[:-1]
    starts = offsets(counts)
    starts = starts[(starts > 0) & (starts < len(indices))]
    rising[starts - 1] = True
    if rising.all():  # the usual case: every row in rising order
        return _NO_POSITIONS
    owner = np.repeat(np.arange(len(counts)), counts)
    least = int(indices.min())
    width = int(indices.max()) - least + 1
    if len(counts) * width < 2**62:  # a plain sort of one key is several times as fast as finding where they are
        keys = np.sort(owner * width + (indices - least))
        if (keys[1:] != keys[:-1]).all():
            return _NO_POSITIONS
    order = np.lexsort((indices, owner))
    again = (indices[order[1:]] == indices[order[:-1]]) & (owner[order[1:]] == owner[order[:-1]])
    return np.sort(order[1:][again])
