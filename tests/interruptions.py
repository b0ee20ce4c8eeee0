"""Raise an exception at every instruction of a stream's code, as a signal handler could."""

from __future__ import annotations

import functools
import linecache
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from pydp2.client import client, connection
from pydp2.client.pass_iterator import Pass
from pydp2.client.progress import LoopState, Progress
from pydp2.client.session import ClientGuard
from pydp2.client.stream import Stream
from pydp2.data.columns.batch import Batch
from pydp2.order import stream_state
from pydp2.transport import line

LEAVING = ("if 0 in self.current_call and self.current_call[0] is token:", "del self.current_call[0]")


class Interruption(BaseException):
    """What the handler raises: as KeyboardInterrupt, no error that code expects."""


FOLDERS = (str(Path(client.__file__).parent), line.__file__, stream_state.__file__)
ENTRIES = (client.Client._deliver.__code__, client.Client.__iter__.__code__)
GUARDED = ClientGuard.guarded.__code__  # stores the progress, and returns to an entry


def within(frame: FrameType | None, code: CodeType) -> bool:
    """Whether a call of ``code`` is under way."""
    while frame is not None:
        if frame.f_code is code:
            return True
        frame = frame.f_back
    return False


def progress_of(frame: FrameType) -> Progress:
    """The progress of the stream whose entry, or :meth:`ClientGuard.guarded`, is under way."""
    owner = frame.f_locals["self"]
    progress: Progress = (owner if isinstance(owner, ClientGuard) else owner._session).progress
    return progress


# What is raised in a destructor goes nowhere, which is Python's affair. What is raised where a descriptor has just come
# loses no more than that, once in a connection: it stays open until the process ends.
SPARED = (Pass.__del__.__code__, connection.Connection._receive_shared_rows.__code__)


class Injector:
    """Raises at an instruction of the code below ``folders`` that it has not raised at before, each time that it is
    entered."""

    def __init__(self, folders: tuple[str, ...] = FOLDERS) -> None:
        self._folders = folders
        self.points: dict[CodeType, set[int]] = {}
        self._progress: dict[int, Any] = {}  # of the stream, when it was entered, by the id of the frame
        self._stepped: dict[int, Callable[..., Any]] = {}  # by the id of the code, whose hash takes long

    def __len__(self) -> int:
        """How many instructions it has raised at."""
        return sum(map(len, self.points.values()))

    @property
    def names(self) -> set[str]:
        """Of the functions in which it has raised."""
        return {code.co_qualname for code, points in self.points.items() if points}

    def __enter__(self) -> None:
        self._progress.clear()
        sys.settrace(self._called)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _called(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(self._folders) or any(within(frame, each) for each in SPARED):
            return None
        if frame.f_code in (*ENTRIES, GUARDED):
            self._progress[id(frame)] = progress_of(frame)
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        key = id(frame.f_code)
        stepped = self._stepped.get(key)
        return stepped or self._stepped.setdefault(key, self._stepping(frame.f_code))

    def _stepping(self, code: CodeType) -> Callable[..., Any]:
        """What is called at each instruction of ``code``."""
        points = self.points.setdefault(code, set())

        def stepped(frame: FrameType, event: str, argument: Any) -> Any:
            if event != "opcode" or frame.f_lasti in points or self._quiet(frame):
                return stepped
            points.add(frame.f_lasti)
            raise Interruption

        return stepped

    def _quiet(self, frame: FrameType) -> bool:
        """Whether no handler's exception comes here. CPython looks for signals after calls, where a function begins,
        and going back in a loop. What stores the batch that is delivered, and what leaves the session, does none of
        that before it ends."""
        if frame.f_code in (*ENTRIES, GUARDED):
            now = progress_of(frame)
            if now is not self._progress[id(frame)] and now.state is not LoopState.ENTERED and not now.is_in_call:
                return True
        return frame.f_lineno is None or linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip() in LEAVING


def insistently(injector: Injector, what: Callable[[], Any], check: Callable[[], None]) -> Any:
    """What ``what()`` returns when it is not interrupted any more; ``check()`` after each time that it was."""
    while True:
        try:
            with injector:
                return what()
        except Interruption:
            check()


def interrupted_pass(injector: Injector, stream: Stream, check: Callable[[], None]) -> Iterator[Batch]:
    """The batches of a pass, each call interrupted at all instructions that are new to ``injector``; now and then a new
    loop takes the pass over."""
    one = insistently(injector, lambda: iter(stream), check)
    while True:
        try:
            with injector:
                batch = next(one, None)
        except Interruption:
            check()
            if len(injector) % 3 == 0:
                one = insistently(injector, lambda: iter(stream), check)
            continue
        if batch is None:
            return
        yield batch


def with_its_own_exception_state(test: Callable[..., None]) -> Callable[..., None]:
    """Run ``test`` as a generator, which has a current exception of its own.

    An exception between the instructions that enter and leave an ``except`` block, where the interpreter itself raises
    none, would stay the thread's current exception, and would be the context of all later ones.
    """

    @functools.wraps(test)
    def wrapped(**arguments: Any) -> None:
        def body() -> Iterator[None]:
            yield test(**arguments)

        next(body())
        assert sys.exc_info() == (None, None, None)

    return wrapped
