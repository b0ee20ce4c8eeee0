"""State what a job needs of the way in which its trainers share the batches of a pass (docs/order.md, "Ranks").

There are two ways: each rank has its batches in turn (:class:`.ranked_delivery.RankedDelivery`), or a batch goes to
whichever trainer asks first (:class:`.shared_delivery.SharedDelivery`). With both, a batch is kept until the trainer
that it went to has used it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from pydp2.order.stream_state import StreamState
from pydp2.protocol import messages as m
from pydp2.server.sessions.pass_runner import BatchGroup, PassBroken, PassEnded
from pydp2.server.sessions.trainer import InFlightBatch, Trainer
from pydp2.server.snapshots.job_snapshot import PassState

Outcome = BatchGroup | PassEnded | PassBroken
"""What comes next in a pass."""


class Delivery(Protocol):
    """Batches of a pass that were cut and not used, and the trainers that they belong to."""

    unfinished_states: frozenset[PassState]
    """The states in which a trainer keeps the pass from ending."""

    def begin(self, start: StreamState) -> None:
        """Begin a pass, or go on with one, at ``start``."""
        ...

    def clear(self) -> None:
        """Drop all batches that wait: the pass is over."""
        ...

    def cut(self, most: int) -> Outcome | None:
        """Return what comes next in the pass, looking at about ``most`` batches. None: there is nothing now, or a
        trainer is so far behind that the others wait for it."""
        ...

    def queue(self, group: BatchGroup) -> None:
        """Keep the batches of ``group`` for their trainers."""
        ...

    def next_for(self, trainer: Trainer) -> InFlightBatch | None:
        """Return the batch that goes to ``trainer`` now and count it as sent. None: there is none, or ``trainer`` may
        not be sent one."""
        ...

    def claim(self, trainer: Trainer) -> None:
        """Give ``trainer``, which has just connected, the batches that were kept for its rank."""
        ...

    def release(self, trainer: Trainer) -> None:
        """Take back the batches that ``trainer`` has not used: it does not want them."""
        ...

    def can_join(self, trainer: Trainer, begin: m.BeginPass) -> bool:
        """Return True if all batches that ``trainer`` needs from ``begin`` on are still to be had."""
        ...

    def join(self, trainer: Trainer, begin: m.BeginPass, start: StreamState) -> None:
        """Go on with ``trainer`` where ``begin`` says, whose position is ``start``."""
        ...

    def acknowledge(self, batches: Iterable[int]) -> None:
        """Note that the batches with these numbers are used."""
        ...

    def position_of(self, trainer: Trainer) -> int:
        """Return the number of the batch that ``trainer`` goes on at when it connects."""
        ...

    def first_missing(self, trainer: Trainer) -> int:
        """Return the first batch that ``trainer`` may still have to be sent."""
        ...

    def state(self) -> StreamState:
        """Return where the pass can be taken up so that no trainer misses a batch that it has not used; what is known
        of its files and buckets is left out."""
        ...

    def state_after(self, batch: InFlightBatch) -> StreamState:
        """Return the state of a trainer once it has used ``batch``; what is known of files and buckets may be left
        out."""
        ...

    def is_drained(self) -> bool:
        """Return True if trainers that have used their batches may be told that the pass is over."""
        ...

    def batch_count(self, trainer: Trainer, end: PassEnded) -> int:
        """Return the number of batches that the end of the pass names to ``trainer``."""
        ...

    def late_trainers(self) -> tuple[list[Trainer], bool]:
        """Return the trainers that keep the others from going on, and whether ranks that are not there do, too."""
        ...
