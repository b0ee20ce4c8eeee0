"""Find the place of this process in a job from a DeviceMesh: processes that differ along the data dimensions are other
ranks, those that differ along all others are peers of one rank (docs/torch.md, "A mesh")."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from pydp2.errors import OptionError, OptionTypeError
from pydp2.frameworks.shared_service import Ranks, chosen_ranks
from pydp2.options.tables import TrainerPlace
from pydp2.torch.ranks import find_ranks

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def ranks_of(options: Any) -> Ranks:
    """Return the rank that ``options`` say with ``rank``, ``world_size``, ``share_along``, ``mesh`` and ``dp``, which
    are removed, or that of this run. Raises OptionError."""
    mesh, dp = options.pop("mesh", None), options.pop("dp", None)
    chosen = {name: options.pop(name, None) for name in ("rank", "world_size", "share_along")}
    if mesh is None:
        if dp is not None:
            raise OptionError(f"dp={dp!r:.80} names dimensions of a mesh; pass mesh= with it")
        return chosen_ranks(chosen["rank"], chosen["world_size"], find_ranks, chosen["share_along"])
    if given := [name for name, value in chosen.items() if value is not None]:
        raise OptionError(f"{given[0]} follows from mesh and dp; leave it out")
    place = place_in_mesh(mesh, "dp" if dp is None else dp)
    return find_ranks()._replace(data=place)


def place_in_mesh(mesh: DeviceMesh, dp: str | Sequence[str] = "dp") -> TrainerPlace:
    """Return the place of this process in ``mesh``, whose dimensions ``dp`` are those of data parallelism.

    Along several dimensions, positions are counted row by row, as ``mesh._flatten`` does. Raises OptionError if the
    mesh has no names or not those of ``dp``, or does not have all processes of the run.
    """
    names = _names(mesh)
    data = [dp] if isinstance(dp, str) else [*dp] if isinstance(dp, Sequence) else []
    if not data or not all(isinstance(name, str) for name in data):
        raise OptionTypeError(f"dp must be the name of a dimension of the mesh, or a tuple of names, got {dp!r:.80}")
    if missing := [name for name in data if name not in names]:
        raise OptionError(
            f"the mesh has no dimension {missing[0]!r}, its dimensions are {', '.join(map(repr, names))}; name those "
            "of data parallelism, as dp='dp' or dp=('dp_replicate', 'dp_shard')"
        )
    coordinate, size = mesh.get_coordinate(), mesh.size()
    if coordinate is None or size != dist.get_world_size():
        raise OptionError(
            f"the mesh has {size} of the {dist.get_world_size()} processes of this run, and those outside of it would "
            "get no batches, or the same ones as others; pass the whole mesh, not mesh['dp']"
        )
    sides = dict(zip(names, zip(coordinate, mesh.shape, strict=True), strict=True))
    rank, world_size = _flat([side for name, side in sides.items() if name in data])
    return TrainerPlace("", rank, world_size, _flat([side for name, side in sides.items() if name not in data]))


def _names(mesh: Any) -> tuple[str, ...]:
    """Return the names of the dimensions of ``mesh``. Raises OptionError, OptionTypeError."""
    if not hasattr(mesh, "mesh_dim_names") or not hasattr(mesh, "get_coordinate"):
        raise OptionTypeError(f"mesh must be a torch.distributed DeviceMesh, got {mesh!r:.80}")
    if mesh.mesh_dim_names is None:
        raise OptionError(
            "the mesh has no names of its dimensions, so nothing says which are those of data parallelism; make it "
            "with mesh_dim_names=, as init_device_mesh('cuda', (2, 4), mesh_dim_names=('dp', 'tp'))"
        )
    return tuple(mesh.mesh_dim_names)


def _flat(sides: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Return the number of a position among all, counted row by row, and how many there are. ``sides``: of each
    dimension, the coordinate and the size."""
    number, count = 0, 1
    for coordinate, size in sides:
        number, count = number * size + coordinate, count * size
    return number, count
