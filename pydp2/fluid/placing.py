"""Put the instances of a double buffer where they belong. The only module that knows torch, which need not be
installed."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from pydp2.errors import OptionError, OptionTypeError
from pydp2.fluid.tensors import Instance, LoDTensor


def placer(place: Any) -> Callable[[Instance], Instance]:
    """A function that puts an instance at ``place``, as :func:`double_buffer` says. Raises as it does."""
    if place is None or (isinstance(place, str) and place.lower() == "cpu"):
        return lambda instance: instance
    torch = _torch()
    if isinstance(place, str) and place.lower() == "auto":
        if not torch.cuda.is_available():
            return lambda instance: instance
        place = "cuda"
    device = _device(torch, place)

    def put(instance: Instance) -> Instance:
        # On the default stream, and waited for: then the data are there whatever stream the trainer uses.
        return tuple(
            LoDTensor(torch.from_numpy(_own(np.asarray(tensor))).to(device), tensor.lod) for tensor in instance
        )

    return put


def _own(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """``array`` as torch takes it over: writable, in one piece, in the byte order of the machine."""
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
        torch.empty(0, device=device)  # now, and not in the thread
    except (RuntimeError, AssertionError) as exc:  # torch built without CUDA says so by an assertion
        raise OptionError(f"place {place!r} cannot be used: {str(exc).splitlines()[0]}") from None
    return device
