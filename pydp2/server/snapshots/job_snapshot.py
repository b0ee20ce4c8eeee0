"""Define the snapshot of a job, from which the job continues after the server was killed (docs/order.md, "State").

It consists of plain values, checked when they are read: the same state of the stream that trainers save, and the
trainer of each rank.
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
from pydp2.protocol.trainer_numbers import TrainerNumbers


class PassState(Enum):
    """State of a trainer in the pass of its job."""

    BEFORE = "before"  # it has not begun the pass
    IN = "in"
    ENDED = "ended"  # it has used all of its batches
    LEFT = "left"  # it left the pass before its end


@dataclass(frozen=True, slots=True)
class RankSnapshot:
    """Snapshot of a trainer of a job with ranks: its number, its session, its state in the pass, and whether it has
    joined the generation. It has used all of its batches before ``first_unused``. ``unanswered``: the state
    that it has loaded, as long as it is not known to have received anything since."""

    number: int
    session: str
    state: PassState
    joined: bool
    first_unused: int = 0
    unanswered: str = ""


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """Snapshot of a job of trainers with ``numbers``. ``pass_id``: the pass under way, or the last one; -1: none yet.
    ``loaded``: the state with which its generation began; ``begun_from_state``: the trainers that began from it;
    ``running``: the state of the pass under way; ``previous_pass``: the pass before, which all ranks have ended, -1:
    none; ``errors``: errors of passes that failed; ``buckets``: bounds of the buckets of all passes, once they are
    known."""

    name: str
    numbers: TrainerNumbers
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
        """True if ranks were in the middle of a pass that cannot be resumed, because it has no state there."""
        begun = self.pass_id >= 0 and any(rank.state is not PassState.BEFORE for rank in self.ranks)
        return begun and self.running is None and self.options.order == "relaxed"

    def to_plain(self) -> dict[str, Any]:
        """Return the snapshot as plain values for a file."""
        return {
            "name": self.name,
            "world": self.numbers.world,
            "peers": self.numbers.peers,
            "options": asdict(self.options),
            "stream_identity": self.stream_identity,
            "ranks": [
                [rank.number, rank.session, rank.state.value, rank.joined, rank.first_unused, rank.unanswered]
                for rank in self.ranks
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
        """Return the snapshot that :meth:`to_plain` wrote, for a list of ``files`` files. Raises StateMismatch if it is
        not valid."""
        try:
            running = plain["running"]
            return cls(
                str(plain["name"]),
                TrainerNumbers(*(check_int(plain.get(name, 1), 1, WORLD_LIMIT + 1) for name in ("world", "peers"))),
                job_options(**plain["options"]),
                dict(plain["stream_identity"]),
                [
                    RankSnapshot(
                        check_int(number),
                        str(session),
                        PassState(state),
                        bool(joined),
                        check_int(below),
                        *map(str, more),
                    )
                    for number, session, state, joined, below, *more in plain["ranks"]
                ],
                check_int(plain["pass"], -1),
                str(plain["loaded"]),
                [check_int(number) for number in plain["begun_from_state"]],
                None if running is None else StreamState.from_dict(running, files=files),
                {check_int(pass_id): from_wire(error) for pass_id, error in plain.get("errors", [])},
                check_int(plain.get("previous_pass", -1), -1),
                dict(plain.get("buckets", {})),
            )
        except (KeyError, TypeError, ValueError, AttributeError, Error) as error:
            raise StateMismatch(
                f"what was written down of a job cannot be read ({type(error).__name__}: {error})"
            ) from None
