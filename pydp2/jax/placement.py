"""Find out from a sharding which rows of a global batch this process holds, and so which rank it reads as
(docs/jax.md, "Several processes")."""

from __future__ import annotations

import os
from hashlib import blake2b
from pathlib import Path
from socket import gethostname
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from pydp2.api.rundir import run_directories
from pydp2.errors import OptionError, count_text
from pydp2.frameworks.shared_service import Ranks


class Place(NamedTuple):
    """Rows of this process: block ``rank`` of ``world_size``, which it divides among ``shards`` of its devices.

    ``replica``: number of this process among those that hold the same rows.
    """

    rank: int
    world_size: int
    replica: int = 0
    shards: int = 1


def place_of(sharding: Sharding | None) -> Place:
    """Return the place of this process in ``sharding``; without one, or where it has devices of this process alone,
    each process reads for itself.

    Raises OptionError if this process has no device of it, or if processes hold some of their rows in common, not all.
    """
    process, processes = jax.process_index(), jax.process_count()
    if sharding is None:
        return Place(process, processes)
    rows = _rows_by_process(sharding)
    if sharding.is_fully_addressable:
        return Place(process, processes, shards=len(rows[process]))
    if process not in rows:
        raise OptionError(
            f"the sharding needs devices of each process that reads, and has none of process {process}: give a mesh "
            "over jax.devices()"
        )
    blocks = sorted(set(rows.values()), key=min)
    if len({len(block) for block in blocks}) > 1 or len(frozenset().union(*blocks)) < sum(map(len, blocks)):
        raise OptionError(
            "along the first axis of a batch, any two processes must hold the same rows, or have none in common, and "
            f"as many; this sharding gives the processes {_text(rows)}; order the devices of the mesh by process, as "
            "jax.make_mesh does"
        )
    mine = rows[process]
    same = sorted(other for other, block in rows.items() if block == mine)
    return Place(blocks.index(mine), len(blocks), same.index(process), len(mine))


def _rows_by_process(sharding: Sharding) -> dict[int, frozenset[int]]:
    """Return the shards of the first axis that each process has, named by their first rows."""
    many = sharding.num_devices
    sides = len(sharding.spec) if isinstance(sharding, NamedSharding) else 1
    shape = (many,) * max(sides, 1)  # any mesh of so many devices divides it
    rows: dict[int, set[int]] = {}
    for device, index in sharding.devices_indices_map(shape).items():
        rows.setdefault(device.process_index, set()).add(index[0].indices(many)[0])
    return {process: frozenset(starts) for process, starts in rows.items()}


def _text(rows: dict[int, frozenset[int]]) -> str:
    return "; ".join(f"{process}: {sorted(starts)}" for process, starts in sorted(rows.items()))


def of_rank(sharding: Any, sides: int) -> Any:
    """Return ``sharding`` for an array of ``sides`` dimensions: what it says of further ones is left out."""
    if isinstance(sharding, NamedSharding) and len(sharding.spec) > sides:
        return NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[:sides]), memory_kind=sharding.memory_kind)
    return sharding


def check_divisible(batch_size: int, place: Place) -> None:
    """Raise OptionError unless the devices of this process get equally many rows of ``batch_size``."""
    if batch_size % place.shards:
        below = batch_size - batch_size % place.shards
        nearest = " or ".join(str(size) for size in (below, below + place.shards) if size)
        raise OptionError(
            f"batch_size, the rows of this process, must be a multiple of {place.shards}: its sharding divides them "
            f"among {count_text(place.shards, 'device')} of this process; got {batch_size}, so pass {nearest}"
        )


def ranks_of_run(place: Place) -> Ranks:
    """Return the place of this process for a service that the processes of one machine share. All processes call it
    together: each tells the others its machine, and the first one draws the name of the run."""
    machine = blake2b(f"{gethostname()}\0{_boot_id()}\0{run_directories()}".encode(), digest_size=8).digest()
    told = np.frombuffer(machine + os.urandom(8), np.uint32)
    every = np.asarray(multihost_utils.process_allgather(told))
    here = int((every[:, :2] == told[:2]).all(axis=1).sum())
    local = place.world_size if here == len(every) else min(here, place.world_size - 1)
    return Ranks(place.rank, place.world_size, local, run=every[0, 2:].tobytes().hex())


def _boot_id() -> str:
    """Return what tells this machine from others of its name; "" where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("utf-8")
    except OSError:
        return ""
