"""Copy the instances of a double buffer to a device. Of this package, only this module uses torch, and it imports torch
only if a place needs it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pydp2.errors import OptionError, OptionTypeError
from pydp2.fluid.tensors import Instance, LoDTensor


@dataclass(frozen=True)
class Placement:
    """Way of instances to a place. ``copy``: run by the thread; ``hand_over``: run by the thread of the trainer, with
    each instance that it gets."""

    copy: Callable[[Instance], Instance]
    hand_over: Callable[[Instance], None]


def placement(place: Any) -> Placement:
    """Return the way to ``place``. Place and errors are those of :func:`double_buffer`."""
    if place is None or (isinstance(place, str) and place.lower() == "cpu"):
        return Placement(lambda instance: instance, _nothing)
    torch = _torch()
    if isinstance(place, str) and place.lower() == "auto":
        if not torch.cuda.is_available():
            return Placement(lambda instance: instance, _nothing)
        place = "cuda"
    device = _device(torch, place)

    def put(instance: Instance) -> Instance:
        # The copy uses the default stream and waits, so the data are there for every stream of the trainer.
        return tuple(
            LoDTensor(torch.from_numpy(_own(np.asarray(tensor))).to(device), tensor.lod) for tensor in instance
        )

    def note_use(instance: Instance) -> None:
        # The memory belongs to the default stream. A trainer on another one that lets an instance go may not have read
        # it yet: torch must know, or it gives the memory to the next copy.
        for tensor in instance:
            tensor.data.record_stream(torch.cuda.current_stream(tensor.data.device))

    return Placement(put, note_use if device.type == "cuda" else _nothing)


def _nothing(instance: Instance) -> None:
    pass


def _own(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return ``array`` as torch needs it: writable, contiguous, in the byte order of the machine."""
    return np.require(array, array.dtype.newbyteorder("="), ["C", "W"])


def _torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError as exc:
        raise ImportError(
            "placing instances on a device needs torch, which is not installed: pip install 'torch>=2.4', or leave "
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
