"""Check a process before it forks, and set up the fork."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

from pydp2.host.engine.open_files import Held, shared_files
from pydp2.host.engine.process_control import die_with_parent, line_buffer_c_output, set_name
from pydp2.system.stdlib import os, signal, threading, time

_ENDING = 0.25  # seconds within which a thread that Python has joined has also ended for the kernel
_MAX_SHOWN = 5  # names of threads in a message
SPAWN: Final = 'start="spawn"'


def thread_count() -> int:
    """Return the number of threads of this process; if the kernel does not say, the number that Python knows of."""
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.exists() else threading.active_count()


def require_single_threaded() -> None:
    """Raise RuntimeError if this process has more than one thread. A fork has only the thread that forks, and locks
    that other threads held would stay locked for ever."""
    if (count := thread_count()) != 1:
        raise RuntimeError(f"workers are forked from a process with one thread, this one has {count}")


def fork_obstacle(before: Held) -> str:
    """Return the reason why no worker can be forked from this process, in which the user's code has run, or ''.
    ``before``: the descriptors that it had before that."""
    deadline = time.monotonic() + _ENDING
    while thread_count() != 1 and threading.active_count() == 1 and time.monotonic() < deadline:
        time.sleep(0.001)
    if (count := thread_count()) != 1:
        known = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
        names = ", ".join(known[:_MAX_SHOWN]) + (", …" if len(known) > _MAX_SHOWN else "")
        named = f" ({names})" if known else " (started by C code)"
        return f"they leave a process with {count} threads{named}, and a fork would copy one of them only"
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return "they start a process, and workers cannot share one"
    return shared_files(before)


def open_standard_streams() -> None:
    """Open descriptors 0, 1 and 2 if they are closed, so that no pipe gets a number that workers use for output."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # it gets the lowest free number


def leave_supervisor(supervisor: int, name: str, output: int) -> None:
    """Leave the supervisor's signals, process group and output, in a process just forked from it."""
    os.setpgid(0, 0)
    die_with_parent(supervisor)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # Ctrl-C is for the program that started the service: workers end with it, not by themselves.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    redirect_output(output)
    line_buffer_c_output()
    set_name(name)


def redirect_output(output: int) -> None:
    """Redirect stdout and stderr to ``output``."""
    os.dup2(output, 1)
    os.dup2(output, 2)


def run_child(life: Callable[[], None]) -> NoReturn:
    """Run ``life()`` in a forked process, and exit, so that it never continues in the code of its parent."""
    status = 1
    try:
        life()
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        flush_output()
        os._exit(status)


def flush_output() -> None:
    """Flush the output of Python code."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the user's code may have replaced the stream by any object
            stream.flush()


def watch_lifeline(lifeline: int) -> None:
    """End this process when the supervisor ends, on systems without a parent-death signal."""

    def wait() -> None:
        with contextlib.suppress(OSError):
            os.read(lifeline, 1)
        os._exit(1)

    threading.Thread(target=wait, name="pydp2-lifeline", daemon=True).start()
