"""What the user's code may change around itself, and is put back: the working directory, stdout and stderr.

And whose output it is: see :mod:`pydp2.protocol.turns`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import termios

from pydp2.protocol.seat import FILE, NO_FILE, WORKER
from pydp2.protocol.turns import once, turn

_NOTHING = bytes(4)


class Surroundings:
    """Of one worker. ``row`` is that of its seat, ``output`` where its stdout and stderr lead before any of the user's
    code runs, ``home`` its working directory then."""

    def __init__(self, worker: int, row: memoryview, output: int, home: str) -> None:
        self._row = row
        row[FILE], row[WORKER] = NO_FILE, worker + 1
        self._output = output
        self._home = home

    def let_out(self) -> None:
        """What the user's code printed leaves this process."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # whatever the user's code put there
                stream.flush()

    def settle(self) -> None:
        """Put back what a generator left elsewhere; let out what it printed."""
        self.let_out()
        try:
            here = os.getcwd()  # noqa: PTH109  # asked at every turn to another file, a Path would cost ten times as much
        except OSError:
            here = ""
        if here != self._home:
            os.chdir(self._home)
            self.say(
                f"process() changed the working directory to {here or 'a folder that is gone'}; it is put back to "
                f"{self._home}, where the entries of the list are looked up (said once)",
                "chdir",
            )
        for number, name in ((1, "stdout"), (2, "stderr")):
            try:
                os.fstat(number)
            except OSError:
                os.dup2(self._output, number)
            stream = getattr(sys, name)
            if stream is None or getattr(stream, "closed", False):
                setattr(sys, name, open(number, "w", buffering=1, closefd=False))  # noqa: SIM115  # it is the process's stream

    def turn_to(self, file: int) -> None:
        """From here on it is ``file`` that prints."""
        before = self._row[FILE]
        if before == file:
            return
        self.settle()
        unread = fcntl.ioctl(self._output, termios.FIONREAD, _NOTHING) != _NOTHING
        if unread:  # who reads it may look at the row too late
            os.write(self._output, turn(before, file))
        self._row[FILE] = file

    def say(self, text: str, kind: str) -> None:
        """Show ``text`` to the user; of several workers that say something of this ``kind``, the first."""
        os.write(self._output, once(text, kind).encode(errors="backslashreplace"))
