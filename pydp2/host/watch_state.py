"""Define the states of the watch over a worker's process, and the transitions between them."""

from __future__ import annotations

from enum import Enum


class WatchState(Enum):
    """Watch over the process of a worker."""

    RUNNING = "running"
    DUMPING = "dumping"
    KILLED = "killed"
    OVER_MEMORY = "over memory"
    BROKE_PROTOCOL = "broke protocol"


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
RUNNING, DUMPING = WatchState.RUNNING, WatchState.DUMPING

WATCH_TRANSITIONS: dict[tuple[WatchState, WatchEvent], WatchState] = {
    (WatchState.RUNNING, WatchEvent.SAMPLE_TIMEOUT): WatchState.DUMPING,
    (WatchState.RUNNING, WatchEvent.FOUND_STOPPED): WatchState.KILLED,
    (WatchState.RUNNING, WatchEvent.EXCEED_MEMORY): WatchState.OVER_MEMORY,
    (WatchState.DUMPING, WatchEvent.STACK_DUMPED): WatchState.KILLED,
    # Messages of a worker may still be read while its process is being ended.
    (WatchState.RUNNING, WatchEvent.BREAK_PROTOCOL): WatchState.BROKE_PROTOCOL,
    (WatchState.BROKE_PROTOCOL, WatchEvent.BREAK_PROTOCOL): WatchState.BROKE_PROTOCOL,
    (WatchState.DUMPING, WatchEvent.BREAK_PROTOCOL): WatchState.KILLED,
    (WatchState.KILLED, WatchEvent.BREAK_PROTOCOL): WatchState.KILLED,
    (WatchState.OVER_MEMORY, WatchEvent.BREAK_PROTOCOL): WatchState.OVER_MEMORY,
}
"""State of the watch and event to the state after it."""
