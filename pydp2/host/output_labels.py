"""Label the output of workers: which file printed a line, and which lines of a stack do not concern the user."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydp2.host.engine.output import OutputLine
from pydp2.protocol.output_marks import parse_file_change_mark, parse_once_mark
from pydp2.protocol.worker_status import NO_FILE, WorkerStatus

_PACKAGE = Path(__file__).resolve().parents[1]
# Where a stack of faulthandler's goes on below the user's generator: the worker, and what it was forked from.
_OURS = tuple(
    f'  File "{_PACKAGE / part}/'.encode()
    for part in ("packers", "columns", "rowstore", "schema", "native", "worker", "engine", "host", "server")
)
_THREAD = b"Thread 0x"
_START = b'  File "<string>", line 1 in <module>'


class OutputLabels:
    """Labels of the lines of one worker, which has ``status_row``; see :class:`pydp2.host.engine.output.LabelSource`.
    None: it reads no files, but prepares for the workers that do."""

    def __init__(self, worker: int, status_row: WorkerStatus | None, files: Sequence[str]) -> None:
        self._worker = worker
        self._status_row = status_row
        self._files = files
        self._below = False  # in the part of a stack that is ours
        self._head = b""  # the first line of a stack, kept until it is known whether all of it is ours
        self._gone = False  # it was

    def current_file(self) -> int:
        """Return the file that runs."""
        return NO_FILE if self._status_row is None else self._status_row.file_of_worker(self._worker)

    def first_lines(self, lines: Sequence[bytes], here: int) -> int:
        """Return the file that printed what comes first."""
        turns = (turned for line in lines if (turned := parse_file_change_mark(line)) is not None)
        return next((before for _, before, _ in turns), here)

    def lines(self, lines: Sequence[bytes], here: int) -> tuple[list[OutputLine], int]:
        """Return ``lines`` with their labels. ``here``: the file that ran when they could be read, and the one after
        them."""
        out: list[OutputLine] = []
        texts: list[tuple[bytes, bytes]] = []
        for line in lines:
            turned = parse_file_change_mark(line)
            if turned is not None:
                text, before, here = turned
                if text:
                    texts.append((text, b""))
                out += self._marked(texts, before)
                texts = []
            elif (mark := parse_once_mark(line)) is not None:
                texts.append(mark)
            else:
                texts += [(shown_line, b"") for shown_line in self._is_shown(line)]
        return out + self._marked(texts, here), here

    def _marked(self, texts: list[tuple[bytes, bytes]], file: int) -> list[OutputLine]:
        if not texts:
            return []
        mark = f"worker {self._worker}" if file == NO_FILE else f"worker {self._worker} {self._files[file]}"
        return [OutputLine(mark, text, once) for text, once in texts]

    def _is_shown(self, line: bytes) -> list[bytes]:
        head, self._head = self._head, b""
        if not head and line.startswith(_THREAD):
            self._head = line
            return []
        if self._is_internal(line):
            self._gone = self._gone or bool(head)
            return []
        gone, self._gone = self._gone, False
        if gone and not line:
            return []  # what separates it from the next one
        return [head, line] if head else [line]

    def _is_internal(self, line: bytes) -> bool:
        self._below = line.startswith(_OURS) or (self._below and line == _START)
        return self._below
