"""Define marks in a worker's output, between the lines that the user's code prints, which say to which file the text
belongs.

The output of a generator, also of its C code, goes straight into the worker's pipe, and the reader sees only lines. The
status row of the worker has the file that runs (:mod:`pydp2.protocol.worker_status`), but it may have changed by the
time a line is read. So a worker that switches to another file while its pipe has unread text writes a mark: the text
before the mark belongs to the file before. Without a mark, the status row is right.
"""

from __future__ import annotations

import re

_FILE_CHANGE = re.compile(rb"\x1e(-?\d+)>(-?\d+)\x1e$")
_ONCE = re.compile(rb"\x1eonce:(\w+)\x1e$")


def file_change_mark(before: int, after: int) -> bytes:
    """Return the mark between the text that file ``before`` printed and that of file ``after`` (-1: no file)."""
    return b"\x1e%d>%d\x1e\n" % (before, after)


def parse_file_change_mark(line: bytes) -> tuple[bytes, int, int] | None:
    """Return the text before the mark at the end of ``line`` (without its newline), and both files; None without a
    mark."""
    found = _FILE_CHANGE.search(line)
    return None if found is None else (line[: found.start()], int(found[1]), int(found[2]))


def once_mark(text: str, kind: str) -> str:
    """Return ``text`` as a line of which only the first one of this ``kind``, of all workers, is shown."""
    return f"{text}\x1eonce:{kind}\x1e\n"


def parse_once_mark(line: bytes) -> tuple[bytes, bytes] | None:
    """Return the text and kind of a line that :func:`once_mark` made, without its newline; None for any other."""
    found = _ONCE.search(line)
    return None if found is None else (line[: found.start()], found[1])
