"""Define the transitions between the states of a trainer in the pass of its job."""

from __future__ import annotations

from enum import Enum

from pydp2.server.snapshots.job_snapshot import PassState


class TrainerEvent(Enum):
    """Event that changes the state of a trainer in the pass of its job."""

    JOIN = "join"
    """The trainer begins the pass, or goes on in it."""
    FINISH = "finish"
    """The trainer has used all of its batches."""
    LEAVE = "leave"
    """The trainer does not want the rest, or the pass has failed."""
    RETURN = "return"
    """Another session has the place of the trainer."""
    RESTORE_END = "restore end"
    """The job is restored, and the trainer had used all of its batches before."""
    RESET = "reset"
    """Another pass begins, or the pass is over for all."""


_S, _E = PassState, TrainerEvent

TRAINER_TRANSITIONS: dict[tuple[PassState, TrainerEvent], PassState] = {
    (_S.BEFORE, _E.JOIN): _S.IN,
    (_S.BEFORE, _E.LEAVE): _S.LEFT,
    (_S.BEFORE, _E.RESTORE_END): _S.ENDED,
    (_S.IN, _E.JOIN): _S.IN,
    (_S.IN, _E.FINISH): _S.ENDED,
    (_S.IN, _E.LEAVE): _S.LEFT,
    (_S.IN, _E.RETURN): _S.BEFORE,
    (_S.LEFT, _E.LEAVE): _S.LEFT,
    **{(state, _E.RESET): _S.BEFORE for state in _S},
}
"""State and event to the next state."""
