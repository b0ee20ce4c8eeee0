"""Make arrays of received frames."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pydp2.transport.slabs import is_in_slab

# libzmq lays smaller frames side by side in a shared buffer: unaligned, and each pins all of it.
_MIN_OWN_FRAME = 1 << 16


def owned_arrays(frames: Sequence[memoryview]) -> list[npt.NDArray[np.uint8]]:
    """Return received raw frames as byte arrays that are aligned, writable and pin no memory but their own."""
    out = []
    for frame in frames:
        array = np.frombuffer(frame, np.uint8)
        if array.nbytes < _MIN_OWN_FRAME or array.ctypes.data % 8 or not array.flags.writeable:
            array = array.copy()
        out.append(array)
    return out


def array_views(frames: Sequence[memoryview]) -> list[npt.NDArray[np.uint8]]:
    """Return the frames as byte arrays for a short, read-only use: frames in shared memory stay there."""
    return [np.frombuffer(frame, np.uint8) if is_in_slab(frame) else owned_arrays([frame])[0] for frame in frames]
