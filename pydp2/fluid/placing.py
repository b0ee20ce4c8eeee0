"""Copy the instances of a double buffer to a device. Of this package, only this module uses torch, and it imports torch
only if a place needs it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from pydp2.errors import OptionError, OptionTypeError
from pydp2.fluid.tensors import Instance, LoDTensor


def placer(place: Any) -> Callable[[Instance], Instance]:
    """Return the function that copies an instance to ``place``. Place and errors are those of :func:`double_buffer`."""
    if place is None or (isinstance(place, str) and place.lower() == "cpu"):
        return lambda instance: instance
    torch = _torch()
    if isinstance(place, str) and place.lower() == "auto":
        if not torch.cuda.is_available():
            return lambda instance: instance
        place = "cuda"
    device = _device(torch, place)

    def put(instance: Instance) -> Instance:
        # The copy uses the default stream and waits, so the data are there for every stream of the trainer.
        return tuple(
            LoDTensor(torch.from_numpy(_own(np.asarray(tensor))).to(device), tensor.lod) for tensor in instance
        )

    return put


def _own(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return ``array`` as torch needs it: writable, contiguous, in the byte order of the machine."""
    return np.require(array, array.dtype.newbyteorder("="), ["C", "W"])


def _torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError as exc:
        raise ImportError(
            "placing instances on a device needs torch, which is not installed: pip install 'pydp2[torch]', or leave "
            "place out"
        ) from exc


def _device(torch: Any, place: Any) -> Any:
    if not isinstance(place, str | torch.device):
        raise OptionTypeError(
            f"place must be None, 'cpu', 'auto', the name of a device or a torch.device, got {type(place).__name__}"
        )
    try:
        device = torch.device(place)
        torch.empty(0, device=device)  # so that a bad device is an error here, not in the thread
    except (RuntimeError, AssertionError) as exc:  # torch built without CUDA raises an AssertionError
        raise OptionError(f"place {place!r} cannot be used: {str(exc).splitlines()[0]}") from None
    return device
