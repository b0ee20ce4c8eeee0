"""Copy rows in a thread of its own, which needs no lock of the interpreter: the thread that decides where rows go does
not wait for their bytes (docs/internals/bytes.md).

Without the compiled form, or where no thread can be started, rows are copied at once.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import numpy as np

from pydp2.data.columns.columns import Array, Ints
from pydp2.data.native import is_active

if TYPE_CHECKING:
    from pydp2.data.native import _array_kernels

_MIN_BYTES = 1 << 16  # of rows of one call: fewer are copied faster than handed over


class RowCopier:
    """Copier of rows to places with numbers below ``places``. Copies end in the order in which they began."""

    def __init__(self, places: int) -> None:
        self._number_of: Ints = np.zeros(places, np.int64)  # the last copy to each place, from 1 on
        self._thread: _array_kernels.CopyThread | None = None  # once there is something for it
        self._is_tried = not is_active()

    def put(self, rows: Array, into: Array, places: Ints) -> None:
        """Copy ``rows`` to ``into`` at ``places``, int64, now or soon. Nobody changes ``rows`` or ``places`` any more.
        Raises IndexError for a place outside ``into``."""
        thread = self._started() if rows.nbytes >= _MIN_BYTES and rows.flags.c_contiguous else None
        if thread is None:
            into[places] = rows
            return
        self._number_of[places] = thread.submit(_as_bytes(rows), places, into.strides[0], _as_bytes(into))

    def _started(self) -> _array_kernels.CopyThread | None:
        if not self._is_tried:
            from pydp2.data.native import _array_kernels

            self._is_tried = True
            with contextlib.suppress(MemoryError):
                self._thread = _array_kernels.CopyThread()
        return self._thread

    def wait_for(self, places: Ints) -> None:
        """Return once the rows at ``places`` are there."""
        thread = self._thread
        if thread is None:
            return
        done = thread.done
        if done < thread.submitted and len(places) and (last := int(self._number_of[places].max())) > done:
            thread.wait(last)
        thread.release()


def _as_bytes(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)
