"""Trainers that come back to a service that was started again, until it is known where their pass goes on.

Each knows what it has had; nobody knows all. With ranks the pass goes on where the last of them is. Shared
(``dynamic``), it goes on where all of them are, without the batches that any of them has had.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from pydp2.order.snapshot import SnapshotPoint
from pydp2.protocol import messages as m
from pydp2.protocol.early_ends import EarlyEnds, by_file, to_list
from pydp2.server.sessions.trainer import Trainer
from pydp2.server.snapshots.job_snapshot import PassSnapshot


@dataclass(frozen=True, slots=True)
class RejoinRequest:
    """How a trainer asked to go on."""

    trainer: Trainer
    begin: m.BeginPass
    saved: SnapshotPoint | None
    early_ends: EarlyEnds


class Rejoin:
    """Waits for the trainers with the numbers ``expected`` until the time ``until``.

    ``kept``: the pass that was under way, as it was written down, and its number.
    """

    def __init__(
        self,
        expected: Collection[int],
        until: float,
        *,
        dynamic: bool,
        pass_id: int = -1,
        kept: PassSnapshot | None = None,
    ) -> None:
        self._expected = expected
        self._settled: set[int] = set()  # of them, who came or left
        self.until = until
        self.pass_id = pass_id
        self.snapshot = kept
        self.requests: dict[int, RejoinRequest] = {}
        self._dynamic = dynamic

    def add(self, asked: RejoinRequest) -> None:
        """A trainer came back."""
        self.requests[asked.trainer.rank] = asked
        self._settle(asked.trainer)

    def remove(self, trainer: Trainer) -> None:
        """``trainer`` left: nobody waits for it."""
        self._settle(trainer)
        self.requests.pop(trainer.rank, None)

    def _settle(self, trainer: Trainer) -> None:
        if trainer.rank in self._expected:
            self._settled.add(trainer.rank)

    def is_complete(self, now: float) -> bool:
        """All are there, or it has taken too long."""
        return bool(self.requests) and (len(self._settled) == len(self._expected) or now > self.until)

    def snapshot_so_far(self) -> PassSnapshot | None:
        """What is to be written down: the pass as it was, without what those who came have had."""
        if self.snapshot is None or not self.requests:
            return self.snapshot
        at = self.resume_request()
        if at.begin.pass_id != self.pass_id:
            return self.snapshot
        return PassSnapshot(
            at.begin.first_batch, at.begin.acknowledged_ahead, at.saved, to_list(at.early_ends), self.snapshot.buckets
        )

    def resume_request(self) -> RejoinRequest:
        """Where the pass goes on: like somebody who asked for all that is missing to somebody."""
        # who has had something of a pass shows that it had begun, and those before it were over; to ask is not enough
        began = [
            one.begin.pass_id for one in self.requests.values() if one.begin.first_batch or one.begin.acknowledged_ahead
        ]
        if self.snapshot is not None:
            began.append(self.pass_id)
        last = max(began) if began else min(one.begin.pass_id for one in self.requests.values())
        kept = self.snapshot if self.pass_id == last else None
        there = [one for one in self.requests.values() if one.begin.pass_id == last]
        first = (max if self._dynamic else min)(there or self.requests.values(), key=lambda one: one.begin.first_batch)
        begin = first.begin
        if kept is not None and (not there or kept.batch > begin.first_batch):
            begin = replace(begin, pass_id=last, first_batch=kept.batch, acknowledged_ahead=[], buckets=kept.buckets)
        beyond: set[int] = set()
        if self._dynamic:
            known = [one.begin.acknowledged_ahead for one in there] + ([] if kept is None else [kept.beyond])
            beyond = {index for each in known for index in each if index >= begin.first_batch}
        points = [one.saved for one in there] + ([] if kept is None else [kept.point])
        point = max(
            (one for one in points if one is not None and one.batch_index <= begin.first_batch),
            key=_index,
            default=None,
        )
        early_ends = {} if kept is None else by_file(kept.early_ends)
        for one in there:
            early_ends |= one.early_ends
        return replace(
            first, begin=replace(begin, acknowledged_ahead=sorted(beyond)), saved=point, early_ends=early_ends
        )


def _index(point: SnapshotPoint) -> int:
    return point.batch_index
