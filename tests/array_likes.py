"""Objects that export their numbers as the arrays of other libraries do, each by one protocol."""

from __future__ import annotations

from typing import Any

import numpy as np


class ByArray:
    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.values


class ByInterface:
    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values)

    @property
    def __array_interface__(self) -> Any:
        return self.values.__array_interface__


class ByOwnInterface:
    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values)
        self.__array_interface__ = self.values.__array_interface__


class ByStruct:
    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values)

    @property
    def __array_struct__(self) -> Any:
        return self.values.__array_struct__


class ByDlpack:
    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values)

    def __dlpack__(self, **options: Any) -> Any:
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.values.__dlpack_device__()


class Unreadable(ByArray):
    """As a tensor of torch with gradients, or on a device."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        raise RuntimeError("it cannot be read")

    def tolist(self) -> Any:
        return self.values.tolist()

    def numpy(self) -> Any:
        return self.values


def by_buffer(values: Any) -> Any:
    """An array of ctypes, which has a buffer and nothing else."""
    values = np.asarray(values)
    kind: Any = np.ctypeslib.as_ctypes_type(values.dtype)
    for side in reversed(values.shape):
        kind = kind * side
    return kind.from_buffer_copy(values.tobytes())


KINDS = [ByArray, ByInterface, ByOwnInterface, ByStruct, ByDlpack, by_buffer]
