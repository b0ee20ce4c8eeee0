"""Define the actions that the worker pool returns, and the events that it handles. They are plain values, so tests
compare lists of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from pydp2.errors import Error
from pydp2.protocol.messages import Message
from pydp2.system.log_events import LogEvent, LogFields

THIS_HOST = 0
"""Host number of the machine of the server."""
DEFAULT_JOB = "default"
"""Name of the job of trainers that name none. The log does not show it while there is no other job."""
TIMED_OUT = "timed out"
"""Kind of a loss whose sample exceeded ``sample_timeout``."""
ENDED_EARLY = "ended early"
"""Kind of a loss that comes from a loaded state, which has only a text as its reason."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send ``message`` to a worker, with raw ``frames``."""

    worker: int
    message: Message
    frames: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Spawn:
    """Start worker number ``worker`` on ``status_row`` of ``host``."""

    worker: int
    status_row: int
    host: int = THIS_HOST


@dataclass(frozen=True, slots=True)
class TurnAway:
    """Turn ``host`` away because of ``error``: it may run no workers any more."""

    host: int
    error: Error


@dataclass(frozen=True, slots=True)
class SendToHost:
    """Send ``message`` to the agent of ``host``."""

    host: int
    message: Message


@dataclass(frozen=True, slots=True)
class Log:
    """Write a line to the log. ``fields``: what it is about."""

    text: str
    event: LogEvent
    fields: LogFields = field(default_factory=dict)


class JobLog(Protocol):
    """Function that logs a text about one job. ``names_job``: the text names the job already."""

    def __call__(self, text: str, event: LogEvent, /, *, names_job: bool = False, **fields: str | int) -> None: ...


@dataclass(frozen=True, slots=True)
class Loss:
    """Record a loss: sample ``y`` of ``file`` was "dropped", or the file ended there; ``kind`` and ``reason`` say why.
    ``slot``: slot of a bad sample, or ''. ``exception``: name of the builtin exception that process() raised, or ''.
    ``sample_timeout``: the limit in seconds if the sample exceeded it, or None."""

    pass_id: int
    file: str
    y: int
    slot: str
    reason: str
    kind: str
    exception: str = ""
    sample_timeout: float | None = None


@dataclass(frozen=True, slots=True)
class Fatal:
    """End the service with an error."""

    error: Error


Action = Send | Spawn | TurnAway | SendToHost | Log | Loss | Fatal


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """A worker declared its provider."""

    worker: int
    schema: dict[str, Any]


@dataclass(frozen=True, slots=True)
class WorkerBroken:
    """A worker could not start its provider."""

    worker: int
    error: Error


@dataclass(frozen=True, slots=True)
class WorkerGone:
    """The process of a worker ended, ``how`` as text, while it was asking for ``running_sample``: file, attempt and
    sample index.

    ``voluntary``: it was not ended by a SIGKILL from outside. ``over_memory``: it had more memory than it may, or with
    ``host_lost`` its host may have had too little. ``sample_timeout``: the limit in seconds if its sample exceeded it,
    or None. ``broke_protocol``: a message of it was refused; ``running_sample`` is then the last sample that it asked
    for.
    """

    worker: int
    running_sample: tuple[int, int, int] | None
    how: str
    voluntary: bool = True
    over_memory: bool = False
    sample_timeout: float | None = None
    host_lost: bool = False
    broke_protocol: bool = False

    @property
    def is_unfit(self) -> bool:
        """True if it was ended for what it did itself: it had too much memory, or broke the protocol."""
        return self.broke_protocol or (self.over_memory and not self.host_lost)


Event = WorkerReady | WorkerBroken | WorkerGone
