"""Wait for the trainers that come back to a service that was started again, and find where their pass goes on.

Each trainer knows which batches it has had; none knows all. With ranks the pass goes on where the last of them is.
Shared (``dynamic``), it goes on where the first of them is, without the batches that any of them has had.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from pydp2.order.stream_state import StreamState
from pydp2.protocol import messages as m
from pydp2.server.sessions.trainer import Trainer


@dataclass(frozen=True, slots=True)
class RejoinRequest:
    """Trainer that came back, the message in which it asked to go on, and the position that this says."""

    trainer: Trainer
    begin: m.BeginPass
    start: StreamState


class Rejoin:
    """Trainers with the numbers ``expected`` that a service waits for until the time ``until``.

    ``snapshot``: the pass that was under way, as it was written down.
    """

    def __init__(
        self,
        expected: Collection[int],
        until: float,
        *,
        dynamic: bool,
        snapshot: StreamState | None = None,
    ) -> None:
        self._expected = expected
        self._settled: set[int] = set()  # of them, those that came or left
        self.until = until
        self.snapshot = snapshot
        self.requests: dict[int, RejoinRequest] = {}
        self._dynamic = dynamic

    def add(self, request: RejoinRequest) -> None:
        """Note that a trainer came back."""
        self.requests[request.trainer.rank] = request
        self._settle(request.trainer)

    def awaits(self, trainer: Trainer, pass_id: int) -> bool:
        """Return True if ``trainer`` was in pass ``pass_id``, which was under way."""
        return self.snapshot is not None and pass_id == self.snapshot.pass_id and trainer.rank in self._expected

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

    def snapshot_so_far(self) -> StreamState | None:
        """Return what is to be written down now: the pass as it was, less the batches of trainers that came back."""
        if self.snapshot is None or not self.requests:
            return self.snapshot
        start = self.resume_state()
        if start.pass_id != self.snapshot.pass_id:
            return self.snapshot
        return replace(start, buckets=self.snapshot.buckets)

    def resume_state(self) -> StreamState:
        """Return the state from which no trainer misses a batch that it has not had."""
        states = [request.start for request in self.requests.values()]
        return StreamState.merge(states, self.snapshot, dynamic=self._dynamic)
