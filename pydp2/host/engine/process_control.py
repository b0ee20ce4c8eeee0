"""Control a process through C: its name in ``ps`` and ``top``, the parent-death signal, orphans, output. (Linux.)"""

from __future__ import annotations

import contextlib
import ctypes
import signal
import sys

from pydp2.system.stdlib import os

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_IOLBF = 1


def _prctl(option: int, argument: object) -> bool:
    """Call prctl() and return True if it succeeded."""
    if sys.platform != "linux":
        return False
    done: int = ctypes.CDLL(None, use_errno=True).prctl(option, argument, 0, 0, 0)
    return done == 0


def set_name(name: str) -> None:
    """Show this process as ``name`` (15 characters at most) in ``ps -o comm`` and ``top``."""
    _prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()[:15]))


def die_with_parent(parent: int) -> None:
    """Make the kernel send SIGKILL to this process when the *thread* that forked it ends. Call it only if the parent
    has a single thread.

    ``parent`` is the process that forked this one: if it has ended already, the signal will not come, so this process
    ends here.
    """
    _prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> bool:
    """Make this process the parent of all orphans among its descendants. Return True if the kernel can do that."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1))


def flush_c_output() -> None:
    """Flush the output of C code."""
    if sys.platform == "linux":
        ctypes.CDLL(None).fflush(None)


def line_buffer_c_output() -> None:
    """Line-buffer the output of C code, also if stdout is not a terminal."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        with contextlib.suppress(ValueError):  # this C library has no such symbol
            libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, _IOLBF, ctypes.c_size_t(0))
