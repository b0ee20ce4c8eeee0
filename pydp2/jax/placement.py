"""Find out from a sharding which rows of a global batch this process holds, and with which rank it reads (docs/jax.md,
"Several processes")."""

from __future__ import annotations

import os
import sys
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
from pydp2.frameworks.run_store import RunStore
from pydp2.frameworks.shared_service import Ranks
from pydp2.jax.run_store import store_of_run
from pydp2.options.tables import TrainerPlace


class ProcessPlacement(NamedTuple):
    """Rows of this process: block ``rank`` of ``world_size``, which it divides among ``shards`` of its devices.

    ``share_along``: ``(k, K)``: it is number k of the K processes that hold the same rows.
    """

    rank: int
    world_size: int
    share_along: tuple[int, int] = (0, 1)
    shards: int = 1

    def ranks(self, local_world_size: int, run: str = "", local_rank: int = 0, store: RunStore | None = None) -> Ranks:
        """Return the rank of this process, for which processes that hold the same rows are peers of one rank.

        The arguments are the fields of :class:`.shared_service.Ranks`.
        """
        place = TrainerPlace("", self.rank, self.world_size, self.share_along)
        data = place if self.share_along[1] > 1 else None
        return Ranks(place.number, place.numbers.total, local_world_size, run, local_rank, store, data)


def placement_of(sharding: Sharding | None) -> ProcessPlacement:
    """Return the placement of this process in ``sharding``. Without a sharding, or if it has only devices of this
    process, each process reads for itself.

    Raises OptionError if this process has no device of it, if two processes have some of their rows in common, but not
    all, or if more processes hold some rows than others.
    """
    process, processes = jax.process_index(), jax.process_count()
    if sharding is None:
        return ProcessPlacement(process, processes)
    rows = _rows_by_process(sharding)
    if sharding.is_fully_addressable:
        return ProcessPlacement(process, processes, shards=len(rows[process]))
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
    own_rows = rows[process]
    holders = {block: sorted(other for other, held in rows.items() if held == block) for block in blocks}
    if len({len(same) for same in holders.values()}) > 1:
        raise OptionError(
            "each row of a batch must be held by equally many processes, which get it as peers of one rank; this "
            f"sharding gives the processes {_text(rows)}; order the devices of the mesh by process, as jax.make_mesh "
            "does"
        )
    same = holders[own_rows]
    return ProcessPlacement(blocks.index(own_rows), len(blocks), (same.index(process), len(same)), len(own_rows))


def _rows_by_process(sharding: Sharding) -> dict[int, frozenset[int]]:
    """Return the shards of the first axis that each process has, as the numbers of their first rows."""
    many = sharding.num_devices
    sides = len(sharding.spec) if isinstance(sharding, NamedSharding) else 1
    shape = (many,) * max(sides, 1)  # every mesh of ``many`` devices divides it
    rows: dict[int, set[int]] = {}
    for device, index in sharding.devices_indices_map(shape).items():
        rows.setdefault(device.process_index, set()).add(index[0].indices(many)[0])
    return {process: frozenset(starts) for process, starts in rows.items()}


def _text(rows: dict[int, frozenset[int]]) -> str:
    return "; ".join(f"{process}: {sorted(starts)}" for process, starts in sorted(rows.items()))


def of_rank(sharding: Any, sides: int) -> Any:
    """Return ``sharding`` for an array of ``sides`` dimensions, without its further dimensions."""
    if isinstance(sharding, NamedSharding) and len(sharding.spec) > sides:
        return NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[:sides]), memory_kind=sharding.memory_kind)
    return sharding


def check_divisible(batch_size: int, placement: ProcessPlacement) -> None:
    """Raise OptionError unless the devices of this process get equally many rows of ``batch_size``."""
    if batch_size % placement.shards:
        below = batch_size - batch_size % placement.shards
        nearest = " or ".join(str(size) for size in (below, below + placement.shards) if size)
        raise OptionError(
            f"batch_size, the rows of this process, must be a multiple of {placement.shards}: its sharding divides "
            f"them among {count_text(placement.shards, 'device')} of this process; got {batch_size}, so pass {nearest}"
        )


def ranks_of_run(placement: ProcessPlacement) -> Ranks:
    """Return the rank of this process for a service that all processes share. All processes call it together: they
    exchange the identities of their machines, and the first process draws the name of the run."""
    machine = blake2b(f"{gethostname()}\0{_boot_id()}\0{run_directories()}".encode(), digest_size=8).digest()
    number, total = placement.ranks(0)[:2]
    identity = np.frombuffer(machine + number.to_bytes(4, sys.byteorder) + os.urandom(8), np.uint32)
    every = np.asarray(multihost_utils.process_allgather(identity))
    is_here = (every[:, :2] == identity[:2]).all(axis=1)
    on_machine = int(is_here.sum())
    local = total if on_machine == len(every) else min(on_machine, total - 1)
    before = int((every[is_here, 2] < number).sum())
    run = every[0, 3:].tobytes().hex()
    return placement.ranks(local, run, before, store_of_run())


def _boot_id() -> str:
    """Return an id that differs between machines with the same name; "" if the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("utf-8")
    except OSError:
        return ""
