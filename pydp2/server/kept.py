"""What a service writes down of a job, so that it can go on after its process was killed (docs/order.md, "State").

Plain values, checked when they are read. The same point, facts and position that trainers have in their states; and
who had which place.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pydp2.config import WORLD_LIMIT, JobOptions, job_options
from pydp2.errors import Error, StateMismatch
from pydp2.order.saved import Saved
from pydp2.protocol.fits import whole
from pydp2.server.member import Edge, Stands


@dataclass(frozen=True, slots=True)
class Place:
    """A trainer's place: which one, who has it, where that stands in the pass, whether it knows the generation; all of
    its batches before ``below`` are used."""

    rank: int
    session: str
    stands: Stands
    joined: bool
    below: int = 0


@dataclass(frozen=True, slots=True)
class Running:
    """A pass that is under way, from a batch on that all batches before were used of."""

    batch: int
    beyond: list[int] = field(default_factory=list)
    point: Saved | None = None
    facts: list[list[Any]] = field(default_factory=list)
    buckets: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def at(cls, edge: Edge, facts: list[list[Any]], buckets: dict[str, Any]) -> Running:
        """From ``edge`` on."""
        point = edge.point
        if point is not None and point.ended and edge.gone:
            point = replace(point, index=edge.after, offset=edge.gone)
        return cls(edge.after, edge.beyond, point, facts, buckets)


@dataclass(frozen=True, slots=True)
class Kept:
    """A job. ``pass_id``: the pass under way, or the last one; -1: none yet. ``loaded``: the state that its generation
    began with, and ``began`` the ranks that began from it."""

    name: str
    world: int
    options: JobOptions
    fits: dict[str, Any]
    places: list[Place]
    pass_id: int
    loaded: str
    began: list[int]
    running: Running | None

    def to_plain(self) -> dict[str, Any]:
        """For a file."""
        run = self.running
        return {
            "name": self.name,
            "world": self.world,
            "options": asdict(self.options),
            "fits": self.fits,
            "places": [[one.rank, one.session, one.stands.value, one.joined, one.below] for one in self.places],
            "pass": self.pass_id,
            "loaded": self.loaded,
            "began": self.began,
            "running": None
            if run is None
            else {
                "batch": run.batch, "beyond": run.beyond, "facts": run.facts, "buckets": run.buckets,
                "point": None if run.point is None else {**run.point.to_wire(), "pool": run.point.pool},
            },
        }  # fmt: skip

    @classmethod
    def from_plain(cls, plain: Any, files: int) -> Kept:
        """Inverse of :meth:`to_plain`, for a list of ``files`` files. Raises StateMismatch for what cannot be one."""
        try:
            run = plain["running"]
            return cls(
                str(plain["name"]), whole(plain["world"], 1, WORLD_LIMIT + 1),
                job_options(**plain["options"]), dict(plain["fits"]),
                [Place(whole(r), str(s), Stands(at), bool(j), whole(b)) for r, s, at, j, b in plain["places"]],
                whole(plain["pass"], -1), str(plain["loaded"]), [whole(rank) for rank in plain["began"]],
                None if run is None else _running(run, files),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError, AttributeError, Error) as error:
            raise StateMismatch(
                f"what was written down of a job cannot be read ({type(error).__name__}: {error})"
            ) from None


def _running(plain: Any, files: int) -> Running:
    point = plain["point"]
    if point is not None:
        point = Saved.from_wire(point, bytes(point["pool"]), files)
    facts = [[whole(file, 0, files), whole(y), str(why)] for file, y, why in plain["facts"]]
    return Running(
        whole(plain["batch"]), [whole(n) for n in plain["beyond"]], point, facts, dict(plain["buckets"])
    )  # fmt: skip
