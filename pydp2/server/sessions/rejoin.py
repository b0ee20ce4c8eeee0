"""Wait for the trainers that come back to a service that was started again, and find where their pass goes on.

Each trainer knows which batches it has had; none knows all. With ranks the pass goes on where the last of them is.
Shared (``dynamic``), it goes on where the first of them is, without the batches that any of them has had.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from pydp2.data.columns.checksum_log import joined
from pydp2.protocol import messages as m
from pydp2.server.sessions.trainer import Trainer
from pydp2.server.snapshots.job_snapshot import PassSnapshot, ResumePoint


@dataclass(frozen=True, slots=True)
class RejoinRequest:
    """Trainer that came back, the message in which it asked to go on, and the position that this says."""

    trainer: Trainer
    begin: m.BeginPass
    start: PassSnapshot


class Rejoin:
    """Trainers with the numbers ``expected`` that a service waits for until the time ``until``.

    ``snapshot``: the pass ``pass_id`` that was under way, as it was written down.
    """

    def __init__(
        self,
        expected: Collection[int],
        until: float,
        *,
        dynamic: bool,
        pass_id: int = -1,
        snapshot: PassSnapshot | None = None,
    ) -> None:
        self._expected = expected
        self._settled: set[int] = set()  # of them, those that came or left
        self.until = until
        self.pass_id = pass_id
        self.snapshot = snapshot
        self.requests: dict[int, RejoinRequest] = {}
        self._dynamic = dynamic

    def add(self, request: RejoinRequest) -> None:
        """Note that a trainer came back."""
        self.requests[request.trainer.rank] = request
        self._settle(request.trainer)

    def awaits(self, trainer: Trainer, pass_id: int) -> bool:
        """Return True if ``trainer`` was in pass ``pass_id``, which was under way."""
        return pass_id == self.pass_id and trainer.rank in self._expected

    def remove(self, trainer: Trainer) -> None:
        """Note that ``trainer`` left: it is not waited for."""
        self._settle(trainer)
        self.requests.pop(trainer.rank, None)

    def _settle(self, trainer: Trainer) -> None:
        if trainer.rank in self._expected:
            self._settled.add(trainer.rank)

    def is_complete(self, now: float) -> bool:
        """Return True if all trainers are there, or the time is up."""
        return bool(self.requests) and (len(self._settled) == len(self._expected) or now > self.until)

    def snapshot_so_far(self) -> PassSnapshot | None:
        """Return what is to be written down now: the pass as it was, less the batches of trainers that came back."""
        if self.snapshot is None or not self.requests:
            return self.snapshot
        pass_id, start = self.resume_position()
        if pass_id != self.pass_id:
            return self.snapshot
        return PassSnapshot(start.at, start.early_ends, self.snapshot.buckets)

    def resume_position(self) -> tuple[int, PassSnapshot]:
        """Return the pass and the position in it from which no trainer misses a batch that it has not had."""
        # A trainer that has had something of a pass shows that it had begun, and those before it were over; to ask is
        # not enough.
        began = [
            one.begin.pass_id for one in self.requests.values() if one.begin.first_batch or one.begin.acknowledged_ahead
        ]
        if self.snapshot is not None:
            began.append(self.pass_id)
        last = max(began) if began else min(one.begin.pass_id for one in self.requests.values())
        written = self.snapshot if self.pass_id == last else None
        there = [one for one in self.requests.values() if one.begin.pass_id == last]
        first = (max if self._dynamic else min)(there or self.requests.values(), key=lambda one: one.begin.first_batch)
        batch = first.start.at.batch_index
        if written is not None and (not there or written.at.batch_index > batch):
            batch = written.at.batch_index
        starts = [one.start for one in there] + ([] if written is None else [written])
        ahead: set[int] = set()
        if self._dynamic:
            ahead = {index for start in starts for index in start.at.acknowledged_ahead if index >= batch}
        points = [start.at.point for start in starts]
        point = max(
            (one for one in points if one is not None and one.batch_index <= batch),
            key=lambda one: one.batch_index,
            default=None,
        )
        buckets = {key: value for start in starts for key, value in start.buckets.items()}  # one had no batch, maybe
        early_ends = {} if written is None else dict(written.early_ends)
        for one in there:
            early_ends |= one.start.early_ends
        checksums = joined(start.at.checksums for start in starts)
        return last, PassSnapshot(ResumePoint(batch, 0, point, sorted(ahead), checksums), early_ends, buckets)
