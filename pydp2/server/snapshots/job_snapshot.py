"""Describe a job as a service writes it down, so that the job goes on after the process was killed (docs/order.md,
"State").

Plain values, checked when they are read: the same state of the stream that trainers save, and which trainer had which
rank.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from pydp2.errors import Error, StateMismatch, from_wire, to_wire
from pydp2.options.job_options import JobOptions
from pydp2.options.tables import WORLD_LIMIT, job_options
from pydp2.order.stream_state import StreamState
from pydp2.protocol.stream_identity import check_int


class PassState(Enum):
    """State of a trainer in the pass of its job."""

    BEFORE = "before"  # it has not begun it
    IN = "in"
    ENDED = "ended"  # it has used all of its batches
    LEFT = "left"  # it does not want its rest


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
class JobSnapshot:
    """Job as it is written down. ``pass_id``: the pass under way, or the last one; -1: none yet. ``loaded``: the
    state that its generation began with; ``begun_from_state``: the ranks that began from it; ``running``: the state of
    the pass under way; ``previous_pass``: the pass that all had ended before, -1: none; ``errors``: of passes that
    failed; ``buckets``: bounds of buckets of all passes, once they are known."""

    name: str
    world: int
    options: JobOptions
    stream_identity: dict[str, Any]
    ranks: list[RankSnapshot]
    pass_id: int
    loaded: str
    begun_from_state: list[int]
    running: StreamState | None
    errors: dict[int, Error] = field(default_factory=dict)
    previous_pass: int = -1
    buckets: dict[str, Any] = field(default_factory=dict)

    @property
    def is_cut_off(self) -> bool:
        """True if trainers that share the job were in a pass that cannot be taken up: it has no state in its middle."""
        begun = self.pass_id >= 0 and any(one.state is not PassState.BEFORE for one in self.ranks)
        return begun and self.running is None and self.options.order == "relaxed"

    def to_plain(self) -> dict[str, Any]:
        """Return the snapshot as plain values for a file."""
        return {
            "name": self.name,
            "world": self.world,
            "options": asdict(self.options),
            "stream_identity": self.stream_identity,
            "ranks": [
                [one.rank, one.session, one.state.value, one.joined, one.first_unused, one.unanswered]
                for one in self.ranks
            ],
            "pass": self.pass_id,
            "loaded": self.loaded,
            "begun_from_state": self.begun_from_state,
            "previous_pass": self.previous_pass,
            "buckets": self.buckets,
            "errors": [[pass_id, to_wire(error)] for pass_id, error in self.errors.items()],
            "running": None if self.running is None else self.running.to_dict(),
        }

    @classmethod
    def from_plain(cls, plain: Any, files: int) -> JobSnapshot:
        """Inverse of :meth:`to_plain`, for a list of ``files`` files. Raises StateMismatch for what cannot be one."""
        try:
            running = plain["running"]
            return cls(
                str(plain["name"]),
                check_int(plain["world"], 1, WORLD_LIMIT + 1),
                job_options(**plain["options"]),
                dict(plain["stream_identity"]),
                [
                    RankSnapshot(
                        check_int(rank), str(session), PassState(state), bool(joined), check_int(below), *map(str, more)
                    )
                    for rank, session, state, joined, below, *more in plain["ranks"]
                ],
                check_int(plain["pass"], -1),
                str(plain["loaded"]),
                [check_int(rank) for rank in plain["begun_from_state"]],
                None if running is None else StreamState.from_dict(running, files=files),
                {check_int(pass_id): from_wire(error) for pass_id, error in plain.get("errors", [])},
                check_int(plain.get("previous_pass", -1), -1),
                dict(plain.get("buckets", {})),
            )
        except (KeyError, TypeError, ValueError, AttributeError, Error) as error:
            raise StateMismatch(
                f"what was written down of a job cannot be read ({type(error).__name__}: {error})"
            ) from None
