"""Label lines in the output of workers with their file, and drop lines of stacks that do not concern the user."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydp2.host.engine.output import OutputLine
from pydp2.protocol.output_marks import parse_file_change_mark, parse_once_mark
from pydp2.protocol.worker_status import NO_FILE, WorkerStatus
from pydp2.system.log_events import LogFields

_PACKAGE = Path(__file__).resolve().parents[1]
# Frames in stacks of faulthandler below the user's generator: the worker, and the process that forked it.
_OUR_FOLDERS = ("data", "host", "server")
_OURS = tuple(f'  File "{_PACKAGE / folder}/'.encode() for folder in _OUR_FOLDERS)
_THREAD = b"Thread 0x"
_START = b'  File "<string>", line 1 in <module>'


class OutputLabels:
    """Labels of the lines of one worker with ``status_row``; see :class:`pydp2.host.engine.output.LabelSource`.
    ``status_row`` is None for a process that reads no files, but prepares the user's code for workers."""

    def __init__(self, worker: int, status_row: WorkerStatus | None, files: Sequence[str]) -> None:
        self._worker = worker
        self._status_row = status_row
        self._files = files
        self._below = False  # True in the internal part of a stack
        self._head = b""  # the first line of a stack, kept until it is known whether the whole stack is internal
        self._was_internal = False  # True if the whole stack was internal

    def current_file(self) -> int:
        """Return the file that runs."""
        return NO_FILE if self._status_row is None else self._status_row.file_of_worker(self._worker)

    def first_lines(self, lines: Sequence[bytes], file: int) -> int:
        """Return the file that printed the first of ``lines``; ``file``: the file that ran when they were read."""
        turns = (turned for line in lines if (turned := parse_file_change_mark(line)) is not None)
        return next((before for _, before, _ in turns), file)

    def lines(self, lines: Sequence[bytes], file: int) -> tuple[list[OutputLine], int]:
        """Return ``lines`` with their labels, and the file that prints after them. ``file``: the file that ran when
        they were read."""
        out: list[OutputLine] = []
        texts: list[tuple[bytes, bytes]] = []
        for line in lines:
            turned = parse_file_change_mark(line)
            if turned is not None:
                text, before, file = turned
                if text:
                    texts.append((text, b""))
                out += self._marked(texts, before)
                texts = []
            elif (mark := parse_once_mark(line)) is not None:
                texts.append(mark)
            else:
                texts += [(shown_line, b"") for shown_line in self._is_shown(line)]
        return out + self._marked(texts, file), file

    def _marked(self, texts: list[tuple[bytes, bytes]], file: int) -> list[OutputLine]:
        if not texts:
            return []
        name = "" if file == NO_FILE else self._files[file]
        mark = f"worker {self._worker} {name}" if name else f"worker {self._worker}"
        fields: LogFields = {"worker": self._worker} | ({"file": name} if name else {})
        return [OutputLine(mark, text, once, fields) for text, once in texts]

    def _is_shown(self, line: bytes) -> list[bytes]:
        head, self._head = self._head, b""
        if not head and line.startswith(_THREAD):
            self._head = line
            return []
        if self._is_internal(line):
            self._was_internal = self._was_internal or bool(head)
            return []
        was_internal, self._was_internal = self._was_internal, False
        if was_internal and not line:
            return []  # the blank line before the next stack
        return [head, line] if head else [line]

    def _is_internal(self, line: bytes) -> bool:
        self._below = line.startswith(_OURS) or (self._below and line == _START)
        return self._below
