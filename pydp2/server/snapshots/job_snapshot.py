"""Describe a job as a service writes it down, so that the job goes on after the process was killed (docs/order.md,
"State").

Plain values, checked when they are read: the same point, early-end records and position that trainers have in their
states, and which trainer had which rank.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any

from pydp2.data.columns.checksum_log import NO_CHECKSUMS, LoggedChecksums, decode_checksums
from pydp2.errors import Error, StateMismatch, from_wire, to_wire
from pydp2.options.tables import WORLD_LIMIT, JobOptions, job_options
from pydp2.order.snapshot import SnapshotPoint
from pydp2.protocol import messages as m
from pydp2.protocol.early_ends import EarlyEnds, by_file, to_list
from pydp2.protocol.stream_identity import check_int


class PassState(Enum):
    """State of a trainer in the pass of its job."""

    BEFORE = "before"  # it has not begun it
    IN = "in"
    ENDED = "ended"  # it has used all of its batches
    LEFT = "left"  # it does not want its rest


@dataclass(slots=True)  # not frozen: one is made for each batch
class ResumePoint:
    """Position in a pass: all batches before ``batch_index`` are used, and those in ``acknowledged_ahead``. The pass
    can be taken up from ``point`` (None: its start), or where that is in the tail, after ``tail_consumed`` samples
    of it. ``checksums``: of files that were read since the point."""

    batch_index: int = 0
    tail_consumed: int = 0
    point: SnapshotPoint | None = None
    acknowledged_ahead: list[int] = field(default_factory=list)
    checksums: LoggedChecksums = NO_CHECKSUMS

    def with_tail_in_point(self) -> ResumePoint:
        """Return the same position with ``tail_consumed`` as a part of ``point``."""
        point = self.point
        if point is not None and point.in_tail and self.tail_consumed:
            point = replace(point, batch_index=self.batch_index, tail_consumed=self.tail_consumed)
        return ResumePoint(self.batch_index, 0, point, self.acknowledged_ahead, self.checksums)


@dataclass(frozen=True, slots=True)
class RankSnapshot:
    """Rank of a job as it is written down: its number, the session of its trainer, where that stands in the pass,
    and whether it knows the generation. It has used all of its batches before ``first_unused``. ``unanswered``: the
    state that it has loaded, while it is not known to have had anything since."""

    rank: int
    session: str
    state: PassState
    joined: bool
    first_unused: int = 0
    unanswered: str = ""


@dataclass(frozen=True, slots=True)
class PassSnapshot:
    """Position at which a pass begins or goes on, the files of it that ended early, and what is known of its
    buckets."""

    at: ResumePoint = field(default_factory=ResumePoint)
    early_ends: EarlyEnds = field(default_factory=dict)
    buckets: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def asked_by(
        cls,
        begin: m.BeginPass,
        point: SnapshotPoint | None = None,
        early_ends: EarlyEnds | None = None,
        checksums: LoggedChecksums = NO_CHECKSUMS,
    ) -> PassSnapshot:
        """Return the position that ``begin`` asks for; the other arguments came with it."""
        at = ResumePoint(begin.first_batch, 0, point, begin.acknowledged_ahead, checksums)
        return cls(at, early_ends or {}, begin.buckets)


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """Job as it is written down. ``pass_id``: the pass under way, or the last one; -1: none yet. ``loaded``: the
    state that its generation began with; ``begun_state``: the ranks that began from it; ``pass_before``: the pass that
    all had ended before, -1: none; ``errors``: of passes that failed; ``buckets``: bounds of buckets of all
    passes, once they are known. ``is_stale``: it was read from a snapshot that was not the last, and nothing has told
    since where to go on."""

    name: str
    world: int
    options: JobOptions
    stream_identity: dict[str, Any]
    ranks: list[RankSnapshot]
    pass_id: int
    loaded: str
    begun_state: list[int]
    running: PassSnapshot | None
    errors: dict[int, Error] = field(default_factory=dict)
    pass_before: int = -1
    buckets: dict[str, Any] = field(default_factory=dict)
    is_stale: bool = False

    @property
    def is_cut_off(self) -> bool:
        """True if trainers that share the job were in a pass that cannot be taken up: it has no state in its middle."""
        begun = self.pass_id >= 0 and any(one.state is not PassState.BEFORE for one in self.ranks)
        return begun and self.running is None and self.options.order == "relaxed"

    def to_plain(self) -> dict[str, Any]:
        """Return the snapshot as plain values for a file."""
        run = self.running
        return {
            "name": self.name,
            "world": self.world,
            "options": asdict(self.options),
            "fits": self.stream_identity,
            "places": [
                [one.rank, one.session, one.state.value, one.joined, one.first_unused, one.unanswered]
                for one in self.ranks
            ],
            "pass": self.pass_id,
            "loaded": self.loaded,
            "began": self.begun_state,
            "before": self.pass_before,
            "buckets": self.buckets,
            "stale": self.is_stale,
            "errors": [[pass_id, to_wire(error)] for pass_id, error in self.errors.items()],
            "running": None
            if run is None
            else {
                "batch": run.at.batch_index, "beyond": run.at.acknowledged_ahead, "facts": to_list(run.early_ends),
                "buckets": run.buckets, "checksums": run.at.checksums.by_file().encode(),
                "point": None if run.at.point is None else {**run.at.point.to_wire(), "pool": run.at.point.pool},
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
                    RankSnapshot(
                        check_int(rank), str(session), PassState(state), bool(joined), check_int(below), *map(str, more)
                    )
                    for rank, session, state, joined, below, *more in plain["places"]
                ],
                check_int(plain["pass"], -1), str(plain["loaded"]), [check_int(rank) for rank in plain["began"]],
                None if run is None else _pass_from_plain(run, files),
                {check_int(pass_id): from_wire(error) for pass_id, error in plain.get("errors", [])},
                check_int(plain.get("before", -1), -1), dict(plain.get("buckets", {})),
                bool(plain.get("stale", False)),
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
    checksums = decode_checksums(bytes(plain["checksums"]), files).logged()
    at = ResumePoint(check_int(plain["batch"]), 0, point, [check_int(n) for n in plain["beyond"]], checksums)
    return PassSnapshot(at, by_file(early_ends), dict(plain["buckets"]))
