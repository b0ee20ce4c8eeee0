"""Samples that came in one yield, and how far a worker has come with them."""

from __future__ import annotations

from typing import Any

import numpy as np

from pydp2.inputs import Columns, Rows, Slots
from pydp2.inputs.columns import Ints, offsets
from pydp2.protocol.ranges import SAMPLE_COST

_WINDOW = 4096  # samples that are laid out at a time: what that takes does not grow with the block
FEW = 8
"""As many samples and fewer are packed one by one, which is faster."""
_NONE: Ints = np.zeros(1, np.int64)


class Block:
    """The samples of ``rows`` that were not packed yet; :attr:`left` of them."""

    __slots__ = ("_at", "_end", "_laid", "_lo", "_room", "_rows", "_single", "_singly", "_slots", "_spent")

    def __init__(self, rows: Rows, slots: Slots, single: bool) -> None:
        self._rows, self._slots, self._single = rows, slots, single
        self._at = self._lo = self._end = 0
        self._singly = 0  # the samples before it go one by one
        self._laid: Columns | None = None  # samples _lo to _end, where they differ in size
        self._room: Ints = _NONE  # bytes of the first none, one, two … samples that are laid out
        self._spent: Ints = _NONE  # and their costs

    @property
    def left(self) -> int:
        """How many samples are still here."""
        return len(self._rows) - self._at

    def next(self) -> Any:
        """The next sample by itself."""
        sample = self._rows.sample(self._at, self._single)
        self._at += 1
        return sample

    def take(self, rows: int, room: int, credit: int) -> Columns | None:
        """The next samples as columns (see :meth:`Rows.columns`), if they can be packed together.

        As many as there are, but at most ``rows``, no more once they have ``room`` bytes, and only what costs no more
        than ``credit``.
        """
        at = self._at
        rows = min(rows, len(self._rows) - at)
        if rows < FEW or at < self._singly:
            return None
        if size := self._slots.row_bytes:
            rows = min(rows, -(-room // size), credit // (size + SAMPLE_COST))
            laid = self._rows.columns(self._slots, at, at + rows) if rows >= FEW else None
            if laid is None:
                self._singly = at + max(rows, 1)
        else:
            laid = self._take_some(rows, room, credit)
        if laid is not None:
            self._at += laid.rows
        return laid

    def give_back(self, rows: int) -> None:
        """The last ``rows`` that were taken go one by one."""
        self._singly, self._at = self._at, self._at - rows

    def _take_some(self, rows: int, room: int, credit: int) -> Columns | None:
        """As :meth:`take`, of samples that differ in size."""
        if self._at >= self._end:
            self._lay()
        if self._laid is None:
            return None
        lo = self._at - self._lo
        rows = min(
            rows,
            self._laid.rows - lo,
            int(np.searchsorted(self._room, self._room[lo] + room)) - lo,
            int(np.searchsorted(self._spent, self._spent[lo] + credit, "right")) - 1 - lo,
        )
        return self._laid.slice(lo, lo + rows) if rows >= FEW else None

    def _lay(self) -> None:
        self._lo, self._end = self._at, min(self._at + _WINDOW, len(self._rows))
        self._laid = self._rows.columns(self._slots, self._lo, self._end)
        if self._laid is not None:
            sizes = self._laid.sample_bytes()
            self._room, self._spent = offsets(sizes), offsets(sizes + SAMPLE_COST)
