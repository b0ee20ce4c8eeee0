"""Which batches a process gets that stands at a place of a DeviceMesh."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import pydp2.torch  # noqa: E402
from pydp2.errors import OptionError, OptionTypeError  # noqa: E402
from pydp2.options.tables import TrainerPlace  # noqa: E402
from pydp2.torch import mesh as mesh_module  # noqa: E402
from pydp2.torch.mesh import place_in_mesh  # noqa: E402
from tests.torch.conftest import DIGITS, TRAIN  # noqa: E402


@dataclass
class Mesh:
    """A mesh as one process sees it, which is at ``coordinate``."""

    shape: tuple[int, ...]
    mesh_dim_names: tuple[str, ...] | None
    coordinate: tuple[int, ...] | None

    def get_coordinate(self) -> tuple[int, ...] | None:
        return self.coordinate

    def size(self) -> int:
        return prod(self.shape)


@pytest.fixture
def world_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make a run of so many processes."""
    return lambda size: monkeypatch.setattr(mesh_module.dist, "get_world_size", lambda: size)


@pytest.mark.parametrize(
    ("shape", "names", "dp"),
    [
        ((4,), ("dp",), "dp"),
        ((2, 3), ("dp", "tp"), "dp"),
        ((3, 2), ("tp", "dp"), "dp"),
        ((2, 2, 3), ("pp", "dp", "tp"), "dp"),
        ((2, 2, 2, 2), ("pp", "dp_replicate", "dp_shard", "tp"), ("dp_replicate", "dp_shard")),
        ((2, 2, 2), ("dp_replicate", "cp", "dp_shard"), ["dp_shard", "dp_replicate"]),
    ],
)  # fmt: skip
def test_processes_that_differ_in_other_dimensions_are_peers_of_one_rank(
    world_of: Any, shape: tuple[int, ...], names: tuple[str, ...], dp: Any
) -> None:
    world_of(prod(shape))
    data = [at for at, name in enumerate(names) if name in dp]
    places: dict[TrainerPlace, tuple[int, ...]] = {}
    for coordinate in product(*map(range, shape)):
        place = place_in_mesh(Mesh(shape, names, coordinate), dp)
        assert place.world_size == prod(shape[at] for at in data)
        assert place not in places, "no two processes have one place"
        for other, there in places.items():
            same_data = [there[at] for at in data] == [coordinate[at] for at in data]
            assert (other.rank == place.rank) == same_data
        places[place] = coordinate
    world_size, peers = place.world_size, place.share_along[1]
    assert sorted(place.number for place in places) == [*range(world_size * peers)]


def test_a_mesh_with_the_data_dimension_alone_has_plain_ranks(world_of: Any) -> None:
    world_of(4)
    assert place_in_mesh(Mesh((4,), ("dp",), (3,))) == TrainerPlace("", 3, 4, (0, 1))


def test_several_data_dimensions_are_counted_row_by_row(world_of: Any) -> None:
    world_of(6)
    names = ("dp_replicate", "dp_shard")
    found = [place_in_mesh(Mesh((2, 3), names, at), names).rank for at in product(range(2), range(3))]
    assert found == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("mesh", "dp", "error", "text"),
    [
        (
            Mesh((2, 2), ("dp_shard", "tp"), (0, 0)), "dp", OptionError,
            "the mesh has no dimension 'dp', its dimensions are 'dp_shard', 'tp'; name those of data parallelism",
        ),
        (Mesh((2, 2), ("dp", "tp"), (0, 0)), ("dp", "cp"), OptionError, "has no dimension 'cp'"),
        (Mesh((2, 2), None, (0, 0)), "dp", OptionError, "has no names of its dimensions.*mesh_dim_names="),
        (Mesh((2,), ("dp",), (0,)), "dp", OptionError, "has 2 of the 4 processes.*the whole mesh, not mesh"),
        (Mesh((2,), ("dp",), None), "dp", OptionError, "has 2 of the 4 processes"),
        (Mesh((2, 2), ("dp", "tp"), (0, 0)), (), OptionTypeError, "dp must be the name of a dimension"),
        (Mesh((2, 2), ("dp", "tp"), (0, 0)), 0, OptionTypeError, "dp must be the name of a dimension.*got 0"),
        ((2, 2), "dp", OptionTypeError, r"mesh must be a torch.distributed DeviceMesh, got \(2, 2\)"),
    ],
)  # fmt: skip
def test_a_mesh_that_does_not_say_it_is_refused(
    world_of: Any, mesh: Any, dp: Any, error: type[Exception], text: str
) -> None:
    world_of(4)
    with pytest.raises(error, match=text):
        place_in_mesh(mesh, dp)


@pytest.mark.parametrize("make", [pydp2.torch.loader, pydp2.torch.dataset])
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"dp": "dp"}, "dp='dp' names dimensions of a mesh; pass mesh= with it"),
        ({"mesh": Mesh((1,), ("dp",), (0,)), "rank": 0}, "rank follows from mesh and dp; leave it out"),
        ({"mesh": Mesh((1,), ("dp",), (0,)), "share_along": (0, 2)}, "share_along follows from mesh and dp"),
        ({"share_along": (0, 2)}, "which peer of its rank a process is; pass rank and world_size with it"),
    ],
)
def test_what_contradicts_a_mesh_is_refused(make: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        make(*TRAIN, **DIGITS | options)
