"""Define the states of the work of a worker in the pool, and the transitions between them.

The watch over its process (:mod:`pydp2.host.watch_state`) is independent of them: the watchdog may end any worker, and
the pool takes its work away once the process has ended.
"""

from __future__ import annotations

from enum import Enum


class WorkState(Enum):
    """Work of a worker in the pool."""

    STARTING = "starting"
    STANDBY = "standby"
    ACTIVE = "active"
    GONE = "gone"


class WorkEvent(Enum):
    """Event that changes the work of a worker."""

    READY = "ready"
    """Its provider is ready."""
    PROMOTE = "promote"
    """It is given files from now on."""
    EXIT = "exit"
    """Its process has ended."""


# The loop compares with these in every round, and Python 3.11 looks a member of an Enum up by a call.
STARTING, STANDBY, ACTIVE = WorkState.STARTING, WorkState.STANDBY, WorkState.ACTIVE

_W, _E = WorkState, WorkEvent

WORK_TRANSITIONS: dict[tuple[WorkState, WorkEvent], WorkState] = {
    (_W.STARTING, _E.READY): _W.STANDBY,
    (_W.STANDBY, _E.PROMOTE): _W.ACTIVE,
    **{(state, _E.EXIT): _W.GONE for state in (_W.STARTING, _W.STANDBY, _W.ACTIVE)},
}
"""Work and event to the work after it."""
