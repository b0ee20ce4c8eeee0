"""Define what the worker pool tells the loop to do, and what it is told. Plain values, so tests compare lists of
them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from pydp2.errors import Error
from pydp2.protocol.messages import Message

THIS_HOST = 0
"""Number of the machine of the server, among the hosts that workers run on."""
DEFAULT_JOB = "default"
"""Name of the job of trainers that name none. A log that knows no other one does not show it."""
TIMED_OUT = "timed out"
"""The kind of a loss that exceeded ``sample_timeout``."""
ENDED_EARLY = "ended early"
"""The kind of a loss that only a loaded state knows of: why it was is a text there, and no more."""


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
    """Have no workers on ``host`` any more, because of ``error``."""

    host: int
    error: Error


@dataclass(frozen=True, slots=True)
class SendToHost:
    """Send ``message`` to the agent of ``host``."""

    host: int
    message: Message


@dataclass(frozen=True, slots=True)
class Log:
    """Tell the user. Of each ``kind`` but the empty one, the first few are shown in full, the rest by count."""

    text: str
    kind: str = ""


class JobLog(Protocol):
    """Function that logs a text about one job. ``names_job``: the text names the job already."""

    def __call__(self, text: str, kind: str, *, names_job: bool = False) -> None: ...


@dataclass(frozen=True, slots=True)
class Loss:
    """Loss to write down: sample ``y`` of ``file`` was "dropped", or the file ends there; ``kind`` and ``reason``
    say why. ``slot``: of a bad sample, else ''. ``exception``: the name of the builtin one that process() raised,
    else ''. ``sample_timeout``: seconds that the sample exceeded, else None."""

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
    """The service cannot go on."""

    error: Error


Action = Send | Spawn | TurnAway | SendToHost | Log | Loss | Fatal


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """A worker declared what its provider yields."""

    worker: int
    schema: dict[str, Any]


@dataclass(frozen=True, slots=True)
class WorkerBroken:
    """A worker could not get its provider ready."""

    worker: int
    error: Error


@dataclass(frozen=True, slots=True)
class WorkerGone:
    """A worker's process ended, ``how`` in words, while asking for ``running_sample``: (file, attempt, sample index).

    ``voluntary``: not by a SIGKILL from outside. ``over_memory``: it had more memory than it may, or (``host_lost``)
    went with its host, which may have had a reason of that kind. ``sample_timeout``: seconds that its sample exceeded;
    None: it did not. ``broke_protocol``: a message of it could not be accepted; the sample is the last one then that it
    asked for.
    """

    worker: int
    running_sample: tuple[int, int, int] | None
    how: str
    voluntary: bool = True
    over_memory: bool = False
    sample_timeout: float | None = None
    host_lost: bool = False
    broke_protocol: bool = False


Event = WorkerReady | WorkerBroken | WorkerGone
