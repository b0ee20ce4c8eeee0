"""Put the arrays of a batch on devices, with as little work of jax for each as it needs (docs/jax.md, "What it
costs")."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.sharding import Sharding

from pydp2.data.columns.columns import Array
from pydp2.jax.placement import ProcessPlacement, of_rank

try:  # what device_put() and others call in the end; it has no public name
    from jax._src.lib import xla_client

    _batched_device_put = xla_client.batched_device_put
except (ImportError, AttributeError):
    _batched_device_put = None

_MOST_SHAPES = 256  # that are remembered; a stream has few, because each is compiled
Put = Callable[[Array], Any]
_Target: TypeAlias = tuple[Any, Sharding, list[jax.Device], Callable[[Array], list[Array]] | None, bool]
"""Arguments of jax's function for arrays of one shape and dtype: the abstract value, the sharding, its devices, a
function that cuts an array into pieces for them (None: the array is the one piece), and whether the result is
committed."""


def make_put(place: ProcessPlacement, sharding: Sharding | None) -> Put:
    """Return a function that makes jax arrays of numpy arrays, whose shapes recur.

    Where one begins at a multiple of 64 bytes and lies on the CPU, the jax array shares its memory.

    Args:
        place: of this process.
        sharding: what the arrays get; None: the default device, to which they are not committed. If other processes
            have devices of it, an array has the rows of this process.
    """
    known: dict[Any, _Target] = {}

    def put(array: Array) -> Any:
        config = jax.config  # contexts may change it
        where = (config.jax_default_device if sharding is None else None, config.jax_enable_x64)
        target = known.get((array.shape, array.dtype, where))
        if target is not None:  # in place, because a call takes a tenth as long as all of this
            aval, its_sharding, devices, parts, committed = target
            pieces = [array] if parts is None else parts(array)
            return _batched_device_put(aval, its_sharding, pieces, devices, committed)
        made = _put_publicly(array, place, sharding)
        target = _target_of(made, array)
        if target is not None:
            if len(known) == _MOST_SHAPES:
                known.clear()
            known[array.shape, array.dtype, where] = target
        return made

    return put


def _put_publicly(array: Array, place: ProcessPlacement, sharding: Sharding | None) -> Any:
    """Return ``array`` as a jax array, by public functions, which look at sharding, shape and dtype each time."""
    if sharding is None:
        return jax.device_put(array)
    sharding = of_rank(sharding, array.ndim)
    if sharding.is_fully_addressable:  # device_put() does the same, and takes twice as long
        return jax.make_array_from_callback(array.shape, sharding, array.__getitem__)
    shape = (len(array) * place.world_size, *array.shape[1:])
    return jax.make_array_from_process_local_data(sharding, array, shape)


def _target_of(made: Any, array: Array) -> _Target | None:
    """Return what jax has found out about ``array`` when it became ``made``. None: this release of jax has no function
    that takes it, or ``made`` has rows of other processes."""
    aval, sharding, committed, dtype = made.aval, made.sharding, made.committed, made.dtype
    if _batched_device_put is None or not sharding.is_fully_addressable:
        return None
    indices = sharding.addressable_devices_indices_map(array.shape)

    def parts(array: Array) -> list[Array]:
        array = array.astype(dtype, copy=False)  # jax makes 32 bits of 64
        return [array[index] for index in indices.values()]

    is_whole = len(indices) == 1 and dtype == array.dtype
    target: _Target = (aval, sharding, list(indices), None if is_whole else parts, committed)
    try:
        again = _batched_device_put(aval, sharding, parts(array), list(indices), committed)
        is_same = (again.aval, again.sharding, again.committed) == (aval, sharding, committed)
        return target if is_same and np.array_equal(again, made, equal_nan=True) else None
    except (TypeError, ValueError, AttributeError, RuntimeError):
        return None
