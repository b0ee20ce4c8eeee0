"""Processes of a reader: forked, because readers and mappers are closures; watched, and ended with the pass.

A fork copies only the thread that forks, and a lock that another one holds stays locked in the copy for ever. So
children are forked only by a process that has no thread beside the one that asks (:func:`may_fork`).

Samples travel through multiprocessing's connections, which pickle them: between the two ends of a socket pair that one
program has made for its own fork, where nobody else can write. (Nowhere else in pydp2 is anything pickled.)

Who ends whom: a child whose parent is gone, or has left the pass, reads the end of its connection and goes; a parent
whose child was killed reads that end as well, and raises. Nobody waits for a message that nobody sends.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import ForkContext
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

from pydp2.errors import ReaderError, from_user
from pydp2.reader.channel import RAISED, Channel, Closed, Message

_GRACE = 0.5  # seconds that a child has to end by itself once nobody wants its samples: its reader may clean up
_END = 2.0  # seconds after which it is killed
_ENDING = 0.25  # seconds in which a thread that Python has joined is gone for the kernel too
_parents_ends: weakref.WeakSet[Connection[Any, Any]] = (
    weakref.WeakSet()
)  # of all children: none may keep another's open

Work = Callable[[Channel, Callable[[Message], None]], None]
"""``work(inbox, send)``: what a child does. It raises Closed when the parent is gone."""


def may_fork() -> bool:
    """Whether this process has one thread, so that a fork is a whole copy of it."""
    if threading.active_count() != 1 or threading.current_thread() is not threading.main_thread():
        return False
    tasks = Path("/proc/self/task")
    if not tasks.exists() or len(list(tasks.iterdir())) == 1:
        return True
    # What numpy multiplies matrices with ends its own threads before each fork, and starts them again when they are
    # needed. So a fork that does nothing tells: whatever thread is left is somebody else's.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of the very thing that is found out
        pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    deadline = time.monotonic() + _ENDING
    while len(list(tasks.iterdir())) != 1:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


def forked_or_warned(what: str, told: list[str]) -> bool:
    """:func:`may_fork`, with a warning where it may not; ``told`` is the reader's own, so that it warns once."""
    if may_fork():
        return True
    if told:
        return False
    told.append(what)
    warnings.warn(
        f"{what} uses threads in place of processes: this process has other threads already, and a fork would copy "
        "one of them only. Begin the pass before anything starts a thread (buffered() around it does, for one)",
        RuntimeWarning,
        stacklevel=3,
    )
    return False


class Child:
    """A forked process that does ``work``; ``name`` is what errors call it. A crew has to end it."""

    def __init__(self, name: str, work: Work) -> None:
        self._name = name
        context: ForkContext = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe(duplex=True)
        others = list(_parents_ends)
        _parents_ends.add(ours)
        self._process = context.Process(target=_main, args=(work, theirs, [ours, *others]), name=name, daemon=True)
        self._process.start()
        theirs.close()
        self._connection = ours
        self._left = False
        self.pid = self._process.pid

    def send(self, item: object) -> None:
        """Put ``item`` into its inbox. Raises what pickling raises, and ReaderError where it was killed."""
        try:
            self._connection.send(item)
        except OSError:
            raise self._killed() from None

    def receive(self) -> Message:
        """Its next message. Raises ReaderError where it ended without one."""
        try:
            kind, value = self._connection.recv()
        except (EOFError, OSError):
            raise self._killed() from None
        if kind == RAISED:
            error, text = value
            if isinstance(error, BaseException):
                error.add_note(f"raised in {self._name}, process {self.pid}:\n{text}")
            return RAISED, error
        return kind, value

    def _killed(self) -> BaseException:
        if self._left:
            return Closed()
        self._process.join(_END)
        code = self._process.exitcode
        how = "does not answer" if code is None else f"ended with exit code {code}"
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
            if code == -signal.SIGKILL:
                how += " (often the kernel, for memory)"
        return ReaderError(f"{self._name}, process {self.pid}, {how}: its samples are lost, and the pass with them")

    def hang_up(self) -> None:
        """Let it know that nothing is wanted any more. Whoever waits for it is woken and gets Closed."""
        self._left = True
        with contextlib.suppress(OSError):  # it is closed
            _shut_down(self._connection)

    def close(self) -> None:
        """End it: ask, wait, kill."""
        self.hang_up()
        self._connection.close()
        self._process.join(_END)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
        self._process.close()


def _shut_down(connection: Connection[Any, Any]) -> None:
    """Let both directions of ``connection`` end, also for who waits in a thread to read from it."""
    with socket.socket(fileno=os.dup(connection.fileno())) as end:
        end.shutdown(socket.SHUT_RDWR)


# -- in the child ------------------------------------------------------------------------------------------------------
def _main(work: Work, connection: Connection[Any, Any], not_ours: list[Connection[Any, Any]]) -> None:
    for end in not_ours:
        end.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, and this process ends with it
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    inbox = Channel()
    threading.Thread(target=_listen, args=(connection, inbox), name="pydp2 listen", daemon=True).start()

    def send(message: Message) -> None:
        try:
            connection.send((RAISED, travelling(message[1])) if message[0] == RAISED else message)
        except (BrokenPipeError, ConnectionResetError):
            raise Closed from None

    with contextlib.suppress(Closed):
        work(inbox, send)


def _listen(connection: Connection[Any, Any], inbox: Channel) -> None:
    """Take in what the parent sends; when it has gone, wake whoever waits for it, and end this process soon."""
    try:
        while True:
            try:
                inbox.put(connection.recv())
            except (EOFError, OSError):
                break
    finally:
        inbox.close()
        time.sleep(_GRACE)
        os._exit(1)


def travelling(error: BaseException) -> tuple[BaseException, str]:
    """``error`` as it can be sent, and its traceback as text. What cannot be pickled and built again goes as a
    ProviderError of the nearest builtin class, with its traceback in its text."""
    text = "".join(traceback.format_exception(error)).rstrip()
    try:
        copy = ForkingPickler.loads(bytes(ForkingPickler.dumps(error)))
        if type(copy) is type(error):
            return error, text
    except Exception:  # an exception of the user's own may do anything when it is pickled
        pass
    return from_user(f"{type(error).__name__} was raised, which cannot travel between processes", error), text
