"""What a service writes down of a job, so that it can go on after its process was killed (docs/order.md, "State").

Plain values, checked when they are read. The same point, early-end records and position that trainers have in their
states; and who had which place.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any

from pydp2.errors import Error, StateMismatch
from pydp2.options.tables import WORLD_LIMIT, JobOptions, job_options
from pydp2.order.snapshot import SnapshotPoint
from pydp2.protocol.stream_identity import check_int


class PassState(Enum):
    """Where a trainer stands in the pass of its job."""

    BEFORE = "before"  # it has not begun it
    IN = "in"
    ENDED = "ended"  # it has used all of its batches
    LEFT = "left"  # it does not want its rest


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """A place in the pass: before batch ``batch_index``, those in ``acknowledged_ahead`` used as well. It can be taken
    up from ``point`` (None: the start of the pass), or where that is in the tail, after ``resumable`` samples of it."""

    batch_index: int
    tail_consumed: int
    point: SnapshotPoint | None
    acknowledged_ahead: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RankSnapshot:
    """A trainer's place: which one, who has it, where that stands in the pass, whether it knows the generation; all of
    its batches before ``first_unused`` are used."""

    rank: int
    session: str
    state: PassState
    joined: bool
    first_unused: int = 0


@dataclass(frozen=True, slots=True)
class PassSnapshot:
    """A pass that is under way, from a batch on that all batches before were used of."""

    batch: int
    beyond: list[int] = field(default_factory=list)
    point: SnapshotPoint | None = None
    early_ends: list[list[Any]] = field(default_factory=list)
    buckets: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def at_point(cls, edge: ResumePoint, early_ends: list[list[Any]], buckets: dict[str, Any]) -> PassSnapshot:
        """From ``edge`` on."""
        point = edge.point
        if point is not None and point.in_tail and edge.tail_consumed:
            point = replace(point, batch_index=edge.batch_index, tail_consumed=edge.tail_consumed)
        return cls(edge.batch_index, edge.acknowledged_ahead, point, early_ends, buckets)


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """A job. ``pass_id``: the pass under way, or the last one; -1: none yet. ``loaded``: the state that its generation
    began with, and ``begun_state`` the ranks that began from it."""

    name: str
    world: int
    options: JobOptions
    stream_identity: dict[str, Any]
    ranks: list[RankSnapshot]
    pass_id: int
    loaded: str
    begun_state: list[int]
    running: PassSnapshot | None

    def to_plain(self) -> dict[str, Any]:
        """For a file."""
        run = self.running
        return {
            "name": self.name,
            "world": self.world,
            "options": asdict(self.options),
            "fits": self.stream_identity,
            "places": [[one.rank, one.session, one.state.value, one.joined, one.first_unused] for one in self.ranks],
            "pass": self.pass_id,
            "loaded": self.loaded,
            "began": self.begun_state,
            "running": None
            if run is None
            else {
                "batch": run.batch, "beyond": run.beyond, "facts": run.early_ends, "buckets": run.buckets,
                "point": None if run.point is None else {**run.point.to_wire(), "pool": run.point.pool},
            },
        }  # fmt: skip

    @classmethod
    def from_plain(cls, plain: Any, files: int) -> JobSnapshot:
        """Inverse of :meth:`to_plain`, for a list of ``files`` files. Raises StateMismatch for what cannot be one."""
        try:
            run = plain["running"]
            return cls(
                str(plain["name"]), check_int(plain["world"], 1, WORLD_LIMIT + 1),
                job_options(**plain["options"]), dict(plain["fits"]),
                [
                    RankSnapshot(check_int(rank), str(session), PassState(state), bool(joined), check_int(below))
                    for rank, session, state, joined, below in plain["places"]
                ],
                check_int(plain["pass"], -1), str(plain["loaded"]), [check_int(rank) for rank in plain["began"]],
                None if run is None else _pass_from_plain(run, files),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError, AttributeError, Error) as error:
            raise StateMismatch(
                f"what was written down of a job cannot be read ({type(error).__name__}: {error})"
            ) from None


def _pass_from_plain(plain: Any, files: int) -> PassSnapshot:
    point = plain["point"]
    if point is not None:
        point = SnapshotPoint.from_wire(point, bytes(point["pool"]), files)
    early_ends = [[check_int(file, 0, files), check_int(y), str(why)] for file, y, why in plain["facts"]]
    return PassSnapshot(
        check_int(plain["batch"]), [check_int(n) for n in plain["beyond"]], point, early_ends, dict(plain["buckets"])
    )  # fmt: skip
