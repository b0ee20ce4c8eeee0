"""Define the messages between a host and the server."""

from __future__ import annotations

from typing import Any, ClassVar

from pydp2.protocol.messages.base import Message, Plain, message


@message
class AskSpec(Message):
    """Host: send what the service is made from. ``version`` and ``release`` are those of the wire and of pydp2."""

    version: int
    release: str


@message
class Spec(Message):
    """Server: what a host needs to run workers. ``digest`` is a checksum of it; to a host that has it already it comes
    without frames, else with five: terms of the sources, state of the program, entries of the list, where each ends,
    the path of the list."""

    has_body: ClassVar[bool] = True
    terms: Plain
    digest: str


@message
class Join(Message):
    """Host: it can run ``worker_slots`` workers; it asks for :class:`Spec`. ``session`` is fresh for each time that it
    joins. ``about`` has the versions of Python and numpy, and the byte order; ``digest`` is of the spec that it has.
    ``codec``: what it compresses frames of workers with ("": none). ``row_server``: where trainers fetch rows ("": it
    sends all)."""

    version: int
    release: str
    name: str
    worker_slots: int
    session: str
    digest: str
    about: Plain
    codec: str = ""
    row_server: str = ""


@message
class OpenData(Message):
    """Host: what workers send comes over this connection, for the ``session`` that joined over another one. There may
    be several; a worker stays on one."""

    session: str


@message
class DataOpened(Message):
    """Server: the connection for data that the host opened last is there; one more may be opened."""


@message
class Prepared(Message):
    """Host: workers can be started. ``opened`` says (1 or 0) which entries of a sample of the list are files here."""

    opened: list[Any]


@message
class StartWorker(Message):
    """Server: start worker number ``worker`` on this status row."""

    worker: int
    status_row: int


@message
class KillWorker(Message):
    """Server: end a worker at once."""

    worker: int


@message
class ToWorker(Message):
    """Server: pass on to ``worker`` the message in the frames, its header first."""

    has_body: ClassVar[bool] = True
    worker: int


@message
class FromWorker(Message):
    """Host: ``worker`` sent the message in the frames, its header first. ``raw_sizes``: sizes of the other frames
    before they were compressed, 0 for one that was not; empty where none is."""

    has_body: ClassVar[bool] = True
    worker: int
    raw_sizes: list[Any]


@message
class WorkerStarted(Message):
    """Host: worker number ``worker`` is process ``pid`` there."""

    worker: int
    pid: int


@message
class WorkerExited(Message):
    """Host: the process of a worker ended, with ``status`` as ``os.waitpid`` gives it; all that it sent came before.
    ``running`` is the sample that it was asking for, as ``[file, attempt, sample index]``, or empty. ``kill_reason``:
    why the host killed it, else empty; ``over_memory``: it had more memory than it may; ``timed_out``: a sample
    exceeded ``sample_timeout``."""

    worker: int
    status: int
    running: list[Any]
    kill_reason: str
    over_memory: bool
    timed_out: bool


@message
class HostBeat(Message):
    """Host, every second: it is there. ``sent_ns`` is its own clock; ``running``: the samples that its workers ask for,
    as ``[worker, file, attempt, sample index]``; ``figures`` are statistics; ``since``: for how long workers
    have been in the generator, or, without a sample, have had nothing to do, as ``[worker, microseconds]``."""

    sent_ns: int
    running: list[Any]
    figures: Plain
    since: list[Any]


@message
class HostReceived(Message):
    """Server: it has taken ``data_bytes`` bytes of the session's data so far. ``sent_ns`` is that of the last beat."""

    data_bytes: int
    sent_ns: int


@message
class Drain(Message):
    """Host: it has to leave. It wants no new files, and to be told when the running ones are over."""
