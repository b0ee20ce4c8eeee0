"""Define the messages between a worker and the server, or the agent of its host."""

from __future__ import annotations

from dataclasses import field
from typing import Any, ClassVar

from pydp2.protocol.messages.base import Message, Plain, Word, message


@message
class Hello(Message):
    """Worker: it runs."""

    version: int
    worker: int
    pid: int


@message
class Declared(Message):
    """Worker: providers imported, hooks run; ``schema`` is what they declare.

    ``source_fingerprint``: that of the module that the provider is in, and one for each source, separated by commas, if
    there are several; ``warnings``: warnings on the way, as texts;
    ``modules``: a fingerprint of each module below the working directory that was imported, by the path of its file.
    """

    schema: Plain
    source_fingerprint: str
    warnings: list[Any]
    modules: Plain = field(default_factory=dict)


@message
class Broken(Message):
    """Worker: the provider cannot be had, its hook failed, or there is no memory to go on. The worker ends after it."""

    error: Plain


@message
class BeginDispatch(Message):
    """Server: dispatch number ``dispatch_id`` begins, of pass ``pass_id``; ``seed`` is for ``settings.rng``. There may
    be several at a time, one for each job that is in a pass. ``names_suffice``: rows may come as names of rows that lie
    elsewhere."""

    dispatch_id: int
    pass_id: int
    seed: Word
    names_suffice: bool = False


@message
class Assign(Message):
    """Server: run files for ``dispatch_id``. Items are :class:`FileAssignment` as lists, frames sample indices,
    int64."""

    has_body: ClassVar[bool] = True
    dispatch_id: int
    items: list[Any]


@message
class Grant(Message):
    """Server: new limits. Items are ``[attempt, limit, pause, bound]``; attempts are numbered through all
    dispatches."""

    items: list[Any]


@message
class Want(Message):
    """Server: a merge waits for the file of ``attempt``: send the samples of it that are there, and if it is running,
    as soon as it has come to sample index ``until_index``; of a file that is run by turns, as soon as there are as many
    samples of all files as it lacks to ``until_index``."""

    attempt: int
    until_index: int


@message
class GrantCells(Message):
    """Server: rows may be put in these cells. One frame, the number of each, int64."""

    has_body: ClassVar[bool] = True


@message
class EndDispatch(Message):
    """Server: the pass of ``dispatch_id`` is over or was left; drop its generators."""

    dispatch_id: int


@message
class Retire(Message):
    """Agent of a host that leaves, as the server of its workers: begin no more files, return those not begun."""


@message
class StealFile(Message):
    """Server: return this attempt if it is not begun, because another worker has no file. The answer is ReturnFiles."""

    attempt: int


@message
class ReturnFiles(Message):
    """Worker: it has not begun these attempts, and will not. It retires, or (StealFile) another one has no file."""

    attempts: list[Any]


@message
class Quit(Message):
    """Server: end."""


@message
class Chunk(Message):
    """Worker: ranges of files. ``parts`` are :class:`FileRange` as lists, of any dispatches; their rows lie in the
    frames, one after another. ``naming_frames``: so many frames, int64, name the rows in place of their columns: one
    with the cell of each; or two, with the handle of each where it lies elsewhere, and its bytes.

    ``blocked`` lists ``[file, attempt, y, need]``: the generator waits, with a sample held back that costs ``need`` (0:
    it reached its pause). ``busy_us``: time spent on samples so far, ``idle_us``: time without anything to do, in us.
    ``generator_us``: part of ``busy_us`` in which it asked generators for samples, ``store_us``: in which it waited for
    a store.
    """

    has_body: ClassVar[bool] = True
    rows: int
    parts: list[Any]
    blocked: list[Any]
    busy_us: int
    idle_us: int
    naming_frames: int = 0
    generator_us: int = 0
    store_us: int = 0
