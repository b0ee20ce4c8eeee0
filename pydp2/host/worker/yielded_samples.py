"""Hold samples that came in one yield, and how far a worker has come with them."""

from __future__ import annotations

from typing import Any

import numpy as np

from pydp2.data.columns.columns import Columns, Ints, offsets
from pydp2.data.packers.many_samples import ManySamples
from pydp2.data.schema.input_types import Slots
from pydp2.protocol.file_ranges import SAMPLE_COST

_LAYOUT_WINDOW = 4096  # samples that are laid out at a time: the memory for it does not grow with the block
MIN_TOGETHER = 8
"""Number of samples from which on they are packed together; fewer are packed one by one, which is faster."""
_NONE: Ints = np.zeros(1, np.int64)


class YieldedSamples:
    """Samples of ``rows`` that were not packed yet; :attr:`remaining` of them."""

    __slots__ = (
        "_byte_offsets",
        "_cost_offsets",
        "_is_single_slot",
        "_one_by_one_until",
        "_position",
        "_rows",
        "_slots",
        "_window",
        "_window_bytes",
        "_window_end",
        "_window_start",
    )

    def __init__(self, rows: ManySamples, slots: Slots, is_single_slot: bool) -> None:
        self._rows, self._slots, self._is_single_slot = rows, slots, is_single_slot
        self._position = self._window_start = self._window_end = 0
        self._one_by_one_until = 0  # the samples before it go one by one
        self._window: Columns | None = None  # samples _window_start to _window_end, if they differ in size
        self._window_bytes = 0  # bytes of all samples that are laid out
        self._byte_offsets: Ints | None = None  # and of the first none, one, two … of them, where a part was asked for
        self._cost_offsets: Ints = _NONE  # and their costs

    @property
    def remaining(self) -> int:
        """Number of samples that are still here."""
        return len(self._rows) - self._position

    def next_sample(self) -> Any:
        """Return the next sample by itself."""
        sample = self._rows.sample(self._position, self._is_single_slot)
        self._position += 1
        return sample

    def take_columns(self, rows: int, max_bytes: int, credit: int) -> Columns | None:
        """Return the next samples as columns (see :meth:`Rows.columns`), or None if they cannot be packed together.

        Take as many as there are, but at most ``rows``, no more once they have ``max_bytes`` bytes, and only as many as
        cost no more than ``credit``.
        """
        at = self._position
        rows = min(rows, len(self._rows) - at)
        if rows < MIN_TOGETHER or at < self._one_by_one_until:
            return None
        if size := self._slots.row_bytes:
            rows = min(rows, -(-max_bytes // size), credit // (size + SAMPLE_COST))
            laid = self._rows.columns(self._slots, at, at + rows) if rows >= MIN_TOGETHER else None
            if laid is None:
                self._one_by_one_until = at + max(rows, 1)
        else:
            laid = self._take_unequal(rows, max_bytes, credit)
        if laid is not None:
            self._position += laid.rows
        return laid

    def unpack_last(self, rows: int) -> None:
        """Put back the last ``rows`` that were taken; they go one by one."""
        self._one_by_one_until, self._position = self._position, self._position - rows

    def _take_unequal(self, rows: int, max_bytes: int, credit: int) -> Columns | None:
        """Do the work of :meth:`take_columns` for samples that differ in size."""
        if self._position >= self._window_end:
            self._lay_out_window()
        window = self._window
        if window is None:
            return None
        lo, nbytes = self._position - self._window_start, self._window_bytes
        if (
            not lo
            and MIN_TOGETHER <= window.rows <= rows
            and nbytes <= max_bytes
            and nbytes + window.rows * SAMPLE_COST <= credit
        ):
            return window
        if self._byte_offsets is None:
            sizes = window.sample_bytes()
            self._byte_offsets, self._cost_offsets = offsets(sizes), offsets(sizes + SAMPLE_COST)
        rows = min(
            rows,
            window.rows - lo,
            int(np.searchsorted(self._byte_offsets, self._byte_offsets[lo] + max_bytes)) - lo,
            int(np.searchsorted(self._cost_offsets, self._cost_offsets[lo] + credit, "right")) - 1 - lo,
        )
        return window.slice(lo, lo + rows) if rows >= MIN_TOGETHER else None

    def _lay_out_window(self) -> None:
        self._window_start, self._window_end = self._position, min(self._position + _LAYOUT_WINDOW, len(self._rows))
        self._window = self._rows.columns(self._slots, self._window_start, self._window_end)
        self._byte_offsets = None
        if self._window is not None:
            self._window_bytes = _packed_bytes(self._window)


def _packed_bytes(columns: Columns) -> int:
    """Return the bytes of ``columns`` in the dtypes of their slots: what :meth:`Columns.sample_bytes` sums to."""
    return sum(
        len(array) * field.entry_bytes
        for arrays, fields in zip(columns.arrays, columns.slots.fields, strict=True)
        for array, field in zip(arrays, fields, strict=True)
    )
