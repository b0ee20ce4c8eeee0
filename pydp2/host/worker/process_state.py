"""Restore what the user's code may change around itself: the working directory, stdout and stderr.

Also mark whose output it is: see :mod:`pydp2.protocol.output_marks`.
"""

from __future__ import annotations

import contextlib
import sys
import termios

from pydp2.protocol.output_marks import file_change_mark, once_mark
from pydp2.protocol.worker_status import FILE, NO_FILE, WORKER
from pydp2.system.stdlib import fcntl, os

_NOTHING = bytes(4)


class ProcessState:
    """State of one worker process. ``row``: its status row; ``output_descriptor``: the file that its stdout and stderr
    lead to before any of the user's code runs; ``working_directory``: its working directory then."""

    def __init__(self, worker: int, row: memoryview, output_descriptor: int, working_directory: str) -> None:
        self._row = row
        row[FILE], row[WORKER] = NO_FILE, worker + 1
        self._output_descriptor = output_descriptor
        self._working_directory = working_directory

    def flush_output(self) -> None:
        """Write out what the user's code printed."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # anything that the user's code put there
                stream.flush()

    def restore(self) -> None:
        """Restore what a generator changed, and write out what it printed."""
        self.flush_output()
        try:
            here = os.getcwd()  # asked at every turn to another file, a Path would cost ten times as much
        except OSError:
            here = ""
        if here != self._working_directory:
            self._put_back(here)
        for number, name in ((1, "stdout"), (2, "stderr")):
            try:
                os.fstat(number)
            except OSError:
                os.dup2(self._output_descriptor, number)
            stream = getattr(sys, name)
            if stream is None or getattr(stream, "closed", False):
                setattr(sys, name, open(number, "w", buffering=1, closefd=False))  # noqa: SIM115  # it is the process's stream

    def _put_back(self, here: str) -> None:
        """Go from the folder ``here`` ('': one that is gone) back to the working directory."""
        try:
            os.chdir(self._working_directory)
        except OSError as error:  # files with whole paths can still be read
            self.print_once(
                f"the working directory {self._working_directory}, where the entries of the list are looked up, cannot "
                f"be used any more: {error.strerror}; start the service again with a root that stays (said once)",
                "no_working_directory",
            )
            return
        self.print_once(
            f"process() changed the working directory to {here or 'a folder that is gone'}; it is put back to "
            f"{self._working_directory}, where the entries of the list are looked up (said once)",
            "chdir",
        )

    def switch_file(self, file: int) -> None:
        """Mark the output that follows as that of ``file``."""
        before = self._row[FILE]
        if before == file:
            return
        self.restore()
        unread = fcntl.ioctl(self._output_descriptor, termios.FIONREAD, _NOTHING) != _NOTHING
        if unread:  # the reader may look at the row too late
            os.write(self._output_descriptor, file_change_mark(before, file))
        self._row[FILE] = file

    def print_once(self, text: str, kind: str) -> None:
        """Show ``text`` to the user; if several workers say something of this ``kind``, only the first is shown."""
        os.write(self._output_descriptor, once_mark(text, kind).encode(errors="backslashreplace"))
