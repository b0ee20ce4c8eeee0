"""Processes of readers: fork them, because readers and mappers are closures; watch them, and end them with the pass.

A fork copies only the thread that forks, and a lock that another thread holds stays locked in the copy for ever. So a
process forks children only while it has a single thread (:func:`may_fork`).

Samples travel through connections of ``multiprocessing``, which pickles them. A connection is a socket pair that a
program makes for its own fork, so no other process can write to it. (pydp2 pickles nothing else.)

How processes end: if the parent is gone, or has left the pass, the child reads the end of its connection and ends. If
the child was killed, the parent reads that end as well, and raises. So no process waits for a message that never comes.
A SystemExit ends the code that a child runs, wherever it waits, so that generators are closed and end the commands that
they started.
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

from pydp2.errors import ReaderError, from_user, from_wire, to_wire
from pydp2.reader.messages import ITEM, RAISED, ReaderMessage
from pydp2.system.prefetch import PrefetchQueue, QueueClosed
from pydp2.system.single_pass import check_process

_GRACE = 0.5  # seconds that a child has to end by itself once its samples are not needed: its reader may clean up
_GENTLE = 0.1  # seconds of these before it is interrupted: a child that gives its next entry meanwhile ends by that
_TERMINATED = 128 + signal.SIGTERM  # exit code of an interrupted child, as a shell writes it
_END = 2.0  # seconds after which the parent kills a child
_ENDING = 0.25  # seconds within which the kernel also drops a thread that Python has joined
# The parent's ends of all connections: a child closes those of the others, or they would stay open.
_parents_ends: weakref.WeakSet[Connection[Any, Any]] = weakref.WeakSet()

Work = Callable[[PrefetchQueue[Any], Callable[[ReaderMessage], None]], None]
"""Function ``work(inbox, send)`` that a child runs. It raises QueueClosed when the parent is gone. The inbox holds
messages: items, and for each item that cannot be built again in the child the exception that this raised."""


def may_fork() -> bool:
    """Return True if this process may have children and has one thread, so that a fork is a whole copy of it."""
    if multiprocessing.current_process().daemon:  # multiprocessing would refuse
        return False
    if threading.active_count() != 1 or threading.current_thread() is not threading.main_thread():
        return False
    tasks = Path("/proc/self/task")
    if not tasks.exists() or len(list(tasks.iterdir())) == 1:
        return True
    # numpy's matrix library ends its own threads before each fork, and starts them again when it needs them. So fork
    # once without doing anything: a thread that is left then does not belong to that library.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of a fork with threads
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


def forked_or_warned(what: str, warned: list[str]) -> bool:
    """Return :func:`may_fork`, and warn if it is False. Each reader has a list ``warned``, so it warns only once."""
    if may_fork():
        return True
    if warned:
        return False
    warned.append(what)
    why = (
        "this process has other threads already, and a fork would copy one of them only. Begin the pass before "
        "anything starts a thread (buffered() around it does, for one)"
    )
    if multiprocessing.current_process().daemon:
        why = (
            "this process is daemonic (a worker of a multiprocessing.Pool or of a torch DataLoader is), and such a "
            "process may have no children. Begin the pass in the main process"
        )
    warnings.warn(f"{what} uses threads instead of processes: {why}", RuntimeWarning, stacklevel=3)
    return False


class ForkedChild:
    """Forked process that runs ``work``. Errors call it ``name``. PrefetchThreads end it.

    Only the process that made it may use it: a fork has the same connection, and would take messages that the parent
    waits for.
    """

    def __init__(self, name: str, work: Work) -> None:
        self._name = name
        context: ForkContext = multiprocessing.get_context("fork")
        parent_end, child_end = context.Pipe(duplex=True)
        others = list(_parents_ends)
        _parents_ends.add(parent_end)
        self._process = context.Process(
            target=_main, args=(work, child_end, [parent_end, *others]), name=name, daemon=True
        )
        self._process.start()
        child_end.close()
        self._connection = parent_end
        self._left = False
        self._parent = os.getpid()
        self.pid = self._process.pid

    def send(self, item: object) -> None:
        """Put ``item`` into the inbox of the child.

        Raises what pickling raises, ReaderError: it was killed; and ClientUseError in a fork of the parent.
        """
        check_process(self._parent)
        data = ForkingPickler.dumps(item)  # outside the try: an OSError of pickling is an error of the entry
        try:
            self._connection.send_bytes(data)
        except OSError:
            raise self._killed() from None

    def receive(self) -> ReaderMessage:
        """Return the next message.

        Raises ReaderError: the child ended, or the message cannot be built again; and ClientUseError in a fork of the
        parent.
        """
        check_process(self._parent)
        try:
            data = self._connection.recv_bytes()
        except (EOFError, OSError):
            raise self._killed() from None
        kind, value = _built(data, f"what {self._name}, process {self.pid}, gave")
        if kind == RAISED:
            *sent, text = value
            value = _raised(*sent)
            value.add_note(f"raised in {self._name}, process {self.pid}:\n{text}")
        return kind, value

    def _killed(self) -> BaseException:
        if self._left:
            return QueueClosed()
        self._process.join(_END)
        code = self._process.exitcode
        how = "does not answer" if code is None else f"ended with exit code {code}"
        code = -signal.SIGTERM if code == _TERMINATED else code
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
            if code == -signal.SIGKILL:
                how += " (often the kernel, for memory)"
        return ReaderError(f"{self._name}, process {self.pid}, {how}: its samples are lost, and the pass with them")

    def stop(self) -> None:
        """Tell the child that its samples are not needed any more. Wake threads that wait for it with QueueClosed.

        In a fork of the parent do nothing, as in :meth:`close`.
        """
        if os.getpid() != self._parent:
            return
        self._left = True
        with contextlib.suppress(OSError):  # it is closed
            _shut_down(self._connection)

    def close(self) -> None:
        """End the child: ask it, wait, then kill it and all processes that it has started."""
        if os.getpid() != self._parent:
            return
        self.stop()
        self._connection.close()
        self._process.join(_END)
        if self._process.exitcode is None:
            _kill_started_by(self._process.pid)
            self._process.kill()
            self._process.join()
        self._process.close()


def _shut_down(connection: Connection[Any, Any]) -> None:
    """End both directions of ``connection``, also for a thread that waits to read from it."""
    with socket.socket(fileno=os.dup(connection.fileno())) as end:
        end.shutdown(socket.SHUT_RDWR)


def _built(data: bytes, what: str) -> Any:
    """Return the object that was pickled as ``data``. Raises ReaderError: it cannot be built in this process."""
    try:
        return ForkingPickler.loads(data)
    except Exception as error:  # the class of a user may raise anything here
        raise ReaderError(
            f"{what} cannot be built again in this process: {type(error).__name__}: {error}; give plain data and "
            "arrays, or what this process can import, too"
        ) from error


def _raised(data: bytes, instead: dict[str, str]) -> BaseException:
    """Return the exception that :func:`travelling` has made ready."""
    if data:
        with contextlib.suppress(ReaderError):
            error = _built(data, "")
            if isinstance(error, BaseException):
                return error
    return from_wire(instead)


def _kill_started_by(pid: int | None) -> None:
    """Kill all processes that process ``pid`` has started, and theirs. Without /proc, do nothing."""
    children: dict[int | None, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            parent = stat.read_bytes().rpartition(b")")[2].split()[1]
            children.setdefault(int(parent), []).append(int(stat.parent.name))
    waiting = [pid]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            waiting.append(child)
            with contextlib.suppress(OSError):
                os.kill(child, signal.SIGKILL)


# -- in the child ------------------------------------------------------------------------------------------------------
def _main(work: Work, connection: Connection[Any, Any], not_ours: list[Connection[Any, Any]]) -> None:
    for end in not_ours:
        end.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C, and this process ends with the parent
    ending = interrupted = False
    own = os.getpid()

    def interrupt(*_: object) -> None:
        nonlocal ending, interrupted
        if os.getpid() != own:  # the reader itself has forked this process
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)
        if ending:
            return  # it may be in the last lines of a reader
        ending = interrupted = True
        with contextlib.suppress(OSError):
            _shut_down(connection)  # the signal may come from any process: this one ends, and sends nothing more
        raise SystemExit

    signal.signal(signal.SIGTERM, interrupt)
    inbox = PrefetchQueue[Any]()
    listening = connection, inbox, threading.get_ident()
    threading.Thread(target=_listen, args=listening, name="pydp2 listen", daemon=True).start()

    def send(message: ReaderMessage) -> None:
        nonlocal ending
        data = ForkingPickler.dumps((RAISED, travelling(message[1])) if message[0] == RAISED else message)
        try:
            connection.send_bytes(data)
        except (BrokenPipeError, ConnectionResetError):
            ending = True
            raise QueueClosed from None

    with contextlib.suppress(QueueClosed):
        work(inbox, send)
    ending = True
    if interrupted:
        raise SystemExit(_TERMINATED)


def _listen(connection: Connection[Any, Any], inbox: PrefetchQueue[Any], main_thread: int) -> None:
    """Take in messages of the parent. When it has gone, wake the thread that waits, and end this process soon."""
    what = f"an entry for {multiprocessing.current_process().name}"
    try:
        while True:
            try:
                data = connection.recv_bytes()
            except (EOFError, OSError):
                break
            try:
                inbox.put((ITEM, _built(data, what)))
            except BaseException as error:  # other entries are not affected
                inbox.put((RAISED, error))
    finally:
        inbox.close()
        time.sleep(_GENTLE)
        signal.pthread_kill(main_thread, signal.SIGTERM)
        time.sleep(_GRACE - _GENTLE)
        _kill_started_by(os.getpid())
        os._exit(1)


def travelling(error: BaseException) -> tuple[bytes, dict[str, str], str]:
    """Return ``error`` in a form that can be sent, as three parts: its pickle (empty if it cannot be built again); a
    ProviderError of the nearest builtin class in its place, with the traceback in its text; and that traceback."""
    text = "".join(traceback.format_exception(error)).rstrip()
    data = b""
    try:
        pickled = bytes(ForkingPickler.dumps(error))
        if type(ForkingPickler.loads(pickled)) is type(error):
            data = pickled
    except Exception:  # the exception class of a user may raise anything here
        pass
    instead = from_user(f"{type(error).__name__} was raised, which cannot travel between processes", error)
    return data, to_wire(instead), text
