"""Define the states of a worker and the transitions between them: its work in the pool, the watch over its process.

The two are independent: the watchdog may end any worker, and the pool takes its work away once the process has ended.
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


class WatchState(Enum):
    """Watch over the process of a worker."""

    RUNNING = "running"
    DUMPING = "dumping"
    KILLED = "killed"
    OVER_MEMORY = "over memory"


class WatchEvent(Enum):
    """Event that leads to the end of a worker's process."""

    SAMPLE_TIMEOUT = "sample timeout"
    """A sample takes too long: the process writes its stack, and is killed after it."""
    STACK_DUMPED = "stack dumped"
    """The time for writing the stack is over."""
    FOUND_STOPPED = "found stopped"
    """A signal had stopped the process for too long."""
    EXCEED_MEMORY = "exceed memory"
    """The process has more memory than it may."""
    BREAK_PROTOCOL = "break protocol"
    """A message of the worker could not be accepted."""


# The loop compares with these in every round, and Python 3.11 looks a member of an Enum up by a call.
STARTING, STANDBY, ACTIVE = WorkState.STARTING, WorkState.STANDBY, WorkState.ACTIVE
RUNNING, DUMPING = WatchState.RUNNING, WatchState.DUMPING

_W, _E = WorkState, WorkEvent

WORK_TRANSITIONS: dict[tuple[WorkState, WorkEvent], WorkState] = {
    (_W.STARTING, _E.READY): _W.STANDBY,
    (_W.STANDBY, _E.PROMOTE): _W.ACTIVE,
    **{(state, _E.EXIT): _W.GONE for state in (_W.STARTING, _W.STANDBY, _W.ACTIVE)},
}
"""Work and event to the work after it."""

WATCH_TRANSITIONS: dict[tuple[WatchState, WatchEvent], WatchState] = {
    (WatchState.RUNNING, WatchEvent.SAMPLE_TIMEOUT): WatchState.DUMPING,
    (WatchState.RUNNING, WatchEvent.FOUND_STOPPED): WatchState.KILLED,
    (WatchState.RUNNING, WatchEvent.EXCEED_MEMORY): WatchState.OVER_MEMORY,
    (WatchState.DUMPING, WatchEvent.STACK_DUMPED): WatchState.KILLED,
    # Messages of a worker may still be read while its process is being ended.
    (WatchState.RUNNING, WatchEvent.BREAK_PROTOCOL): WatchState.KILLED,
    (WatchState.DUMPING, WatchEvent.BREAK_PROTOCOL): WatchState.KILLED,
    (WatchState.KILLED, WatchEvent.BREAK_PROTOCOL): WatchState.KILLED,
    (WatchState.OVER_MEMORY, WatchEvent.BREAK_PROTOCOL): WatchState.OVER_MEMORY,
}
"""State of the watch and event to the state after it."""
