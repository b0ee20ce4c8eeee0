"""Define the progress of a client as one value: every change of it is one assignment, so no exception can leave half a
change."""

from __future__ import annotations

import weakref
from collections import deque
from enum import Enum
from typing import Any, NamedTuple

from pydp2.data.columns.batch import Batch
from pydp2.errors import ClientUseError
from pydp2.order.stream_state import StreamState


class LoopState(Enum):
    """State in which ``iter(client)`` finds the client, which decides what it does (docs/resume.md,
    "What a loop begins with")."""

    BETWEEN = "between passes"
    """``iter(client)`` begins the pass of the position: it was not requested yet, or a state was loaded."""
    RUNNING = "running"
    """An iterator has the pass. ``iter(client)`` is refused while that iterator is held; a dropped
    one has left the pass."""
    ENTERED = "entered"
    """A call of iter() is under way, or an exception has ended one of iter() or next(): the pass goes on at the
    position."""
    LEFT = "left"
    """The iterator was closed or dropped before the end: the next pass begins."""
    FAILED = "failed"
    """The data of the pass gave an error: the next pass begins."""


class LoopHandle:
    """Record of an iterator, which the client keeps in place of the iterator itself. ``is_over``: the iterator gives no
    more batches."""

    __slots__ = ("calls", "is_over", "iterator")

    def __init__(self) -> None:
        self.calls = deque([0], maxlen=1)
        """Number of the iterator's last call."""
        self.iterator: weakref.ref[Any] | None = None
        self.is_over = False

    @property
    def is_held(self) -> bool:
        """True if the iterator is still referenced and may give more."""
        return not self.is_over and self.iterator is not None and self.iterator() is not None


class PassStart:
    """Mark of the batches of one pass. ``batch``: the number of the batch at which the pass began, or a state resumed
    it."""

    __slots__ = ("batch",)

    def __init__(self, batch: int) -> None:
        self.batch = batch


class Progress(NamedTuple):
    """Progress of a client. ``done``: number of batches of run ``run``, as the service counts them; ``samples``: number
    of samples over all passes.

    ``loop``: the iterator that has the pass; ``calls``: the number of its last call that returned a batch. ``start``:
    marks the batches of this pass; each pass has a new one.
    """

    position: StreamState
    state: LoopState = LoopState.BETWEEN
    run: int = 0
    done: int = 0
    samples: int = 0
    loop: LoopHandle | None = None
    calls: int = 0
    start: PassStart | None = None

    @property
    def coming_pass(self) -> int:
        """Pass that the next iteration begins or continues."""
        goes_on = self.is_in_call or self.state in (LoopState.BETWEEN, LoopState.ENTERED)
        return self.position.pass_id + (not goes_on)

    @property
    def is_in_call(self) -> bool:
        """True if a call of the iterator is under way, or an exception has cut it off."""
        return self.state is LoopState.RUNNING and self.loop is not None and self.loop.calls[0] != self.calls

    @property
    def is_whole_pass(self) -> bool:
        """True if the present pass began at its first batch, and not behind it from a state."""
        return self.start is not None and not self.start.batch


DeliveryMark = tuple[PassStart | None, Any]
"""Mark of a delivered batch: its pass, and the position behind it."""


def position_after(batch: Batch, now: Progress) -> StreamState:
    """Return the position behind ``batch``. Raises ClientUseError if it is not a batch of the present pass."""
    mark: DeliveryMark | None = getattr(batch, "_resume", None)
    if mark is None:
        raise ClientUseError(f"after must be a batch that this client delivered, not a copy of one; got {batch!r:.80}")
    return position_at(mark, now, f"batch {batch.index} of pass {batch.pass_id}")


def position_at(mark: DeliveryMark, now: Progress, batch: str = "this batch") -> StreamState:
    """Return the position behind the batch that has ``mark``. Raises ClientUseError, whose text calls it ``batch``, if
    it is not of the present pass."""
    start, position = mark
    if start is not now.start:
        raise ClientUseError(
            f"{batch} is not of the present pass of this client, which is at pass {now.position.pass_id}: take the "
            "state behind a batch before the next pass begins, another state is loaded, or from the client that "
            "delivered it"
        )
    known: StreamState = position
    return known
