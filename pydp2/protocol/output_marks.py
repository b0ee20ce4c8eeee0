"""Mark in a worker's output which file it belongs to, between the lines that the user's code prints.

What a generator prints, C code included, goes straight into the worker's pipe; the reader sees lines without an owner.
The file that runs stands on the worker's row (:mod:`pydp2.protocol.worker_status`), but may have changed by the time a
line is read. So a worker that turns to another file while something in its pipe is still unread says so there: the text
before the mark belongs to the file that it turned from. Without a mark the row is right.
"""

from __future__ import annotations

import re

_FILE_CHANGE = re.compile(rb"\x1e(-?\d+)>(-?\d+)\x1e$")
_ONCE = re.compile(rb"\x1eonce:(\w+)\x1e$")


def file_change_mark(before: int, after: int) -> bytes:
    """Return the mark that says that file ``before`` printed the text before it, and ``after`` the text that
    follows. (-1: no file.)"""
    return b"\x1e%d>%d\x1e\n" % (before, after)


def parse_file_change_mark(line: bytes) -> tuple[bytes, int, int] | None:
    """Return the text before the mark that ``line`` (without its newline) ends with, and both
    files; None without a mark."""
    found = _FILE_CHANGE.search(line)
    return None if found is None else (line[: found.start()], int(found[1]), int(found[2]))


def once_mark(text: str, kind: str) -> str:
    """Return ``text`` as a line that is shown for the first worker that writes one of this ``kind``."""
    return f"{text}\x1eonce:{kind}\x1e\n"


def parse_once_mark(line: bytes) -> tuple[bytes, bytes] | None:
    """Return the text and kind of a line that :func:`once_mark` made, without its newline; None for any other."""
    found = _ONCE.search(line)
    return None if found is None else (line[: found.start()], found[1])
