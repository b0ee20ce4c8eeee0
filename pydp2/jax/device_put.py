"""Put the arrays of a batch on devices, with as few calls of jax as possible for each array (docs/jax.md, "What it
costs")."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.sharding import Sharding

from pydp2.data.columns.columns import Array
from pydp2.jax.placement import ProcessPlacement, of_rank

try:  # the function that device_put() and others call in the end; it has no public name
    from jax._src.lib import xla_client

    _batched_device_put = xla_client.batched_device_put
except (ImportError, AttributeError):
    _batched_device_put = None

_MOST_SHAPES = 256  # shapes that are remembered; a stream has few, because each is compiled
Put = Callable[[Array], Any]
_Target: TypeAlias = tuple[Any, Sharding, list[jax.Device], Callable[[Array], list[Array]] | None, bool]
"""Arguments of jax's function for arrays of one shape and dtype: the abstract value, the sharding, its devices, a
function that cuts an array into pieces for them (None: the array is the one piece), and whether the result is
committed."""


def make_put(placement: ProcessPlacement, sharding: Sharding | None) -> Put:
    """Return a function that makes a jax array of a numpy array; it is fast for shapes that recur.

    On the CPU, a jax array shares the memory of a numpy array that begins at a multiple of 64 bytes.

    Args:
        placement: rows and devices of this process.
        sharding: sharding of the arrays; None: the default device, to which they are not committed. If other processes
            have devices of the sharding, the numpy array has the rows of this process.
    """
    known: dict[Any, _Target] = {}

    def put(array: Array) -> Any:
        config = jax.config  # contexts of the caller may change it
        where = (config.jax_default_device if sharding is None else None, config.jax_enable_x64)
        target = known.get((array.shape, array.dtype, where))
        if target is not None:  # inline, because a call of a function would take a tenth of the total time
            aval, its_sharding, devices, parts, committed = target
            pieces = [array] if parts is None else parts(array)
            return _batched_device_put(aval, its_sharding, pieces, devices, committed)
        made = _put_publicly(array, placement, sharding)
        target = _target_of(made, array)
        if target is not None:
            if len(known) == _MOST_SHAPES:
                known.clear()
            known[array.shape, array.dtype, where] = target
        return made

    return put


def _put_publicly(array: Array, placement: ProcessPlacement, sharding: Sharding | None) -> Any:
    """Return ``array`` as a jax array, by public functions, which check sharding, shape and dtype each time."""
    if sharding is None:
        return jax.device_put(array)
    sharding = of_rank(sharding, array.ndim)
    if sharding.is_fully_addressable:  # device_put() does the same, and takes twice as long
        return jax.make_array_from_callback(array.shape, sharding, array.__getitem__)
    shape = (len(array) * placement.world_size, *array.shape[1:])
    return jax.make_array_from_process_local_data(sharding, array, shape)


def _target_of(made: Any, array: Array) -> _Target | None:
    """Return the arguments that jax has found for ``array`` when it made ``made`` of it. None: this release of jax has
    no function that takes them, or ``made`` has rows of other processes."""
    aval, sharding, committed, dtype = made.aval, made.sharding, made.committed, made.dtype
    if _batched_device_put is None or not sharding.is_fully_addressable:
        return None
    indices = sharding.addressable_devices_indices_map(array.shape)

    def parts(array: Array) -> list[Array]:
        array = array.astype(dtype, copy=False)  # jax converts 64 bits to 32
        return [array[index] for index in indices.values()]

    is_whole = len(indices) == 1 and dtype == array.dtype
    target: _Target = (aval, sharding, list(indices), None if is_whole else parts, committed)
    try:
        again = _batched_device_put(aval, sharding, parts(array), list(indices), committed)
        is_same = (again.aval, again.sharding, again.committed) == (aval, sharding, committed)
        return target if is_same and np.array_equal(again, made, equal_nan=True) else None
    except (TypeError, ValueError, AttributeError, RuntimeError):
        return None
