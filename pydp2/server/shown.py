"""How a worker's output is shown: which file printed a line, and which lines of a stack are no business of the user."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydp2.engine.output import Line
from pydp2.protocol.seat import NO_FILE, Seat
from pydp2.protocol.turns import read_once, read_turn

_PACKAGE = Path(__file__).resolve().parents[1]
# Where a stack of faulthandler's goes on below the user's generator: the worker, and what it was forked from.
_OURS = tuple(f'  File "{_PACKAGE / part}/'.encode() for part in ("inputs", "worker", "engine", "server"))
_THREAD = b"Thread 0x"
_START = b'  File "<string>", line 1 in <module>'


class Shown:
    """Marks the lines of one worker, who sits on ``seat``; see :class:`pydp2.engine.output.Marks`. None: it reads no
    files, but is made ready for those who do."""

    def __init__(self, worker: int, seat: Seat | None, files: Sequence[str]) -> None:
        self._worker = worker
        self._seat = seat
        self._files = files
        self._below = False  # in the part of a stack that is ours
        self._head = b""  # the first line of a stack, kept until it is known whether all of it is ours
        self._gone = False  # it was

    def here(self) -> int:
        """The file that runs."""
        return NO_FILE if self._seat is None else self._seat.file_of(self._worker)

    def first(self, lines: Sequence[bytes], here: int) -> int:
        """The file that printed what comes first."""
        turns = (turned for line in lines if (turned := read_turn(line)) is not None)
        return next((before for _, before, _ in turns), here)

    def lines(self, lines: Sequence[bytes], here: int) -> tuple[list[Line], int]:
        """``lines`` with their marks; ``here``: the file that ran when they could be read, and the one after them."""
        out: list[Line] = []
        texts: list[tuple[bytes, bytes]] = []
        for line in lines:
            turned = read_turn(line)
            if turned is not None:
                text, before, here = turned
                if text:
                    texts.append((text, b""))
                out += self._marked(texts, before)
                texts = []
            elif (said := read_once(line)) is not None:
                texts.append(said)
            else:
                texts += [(kept, b"") for kept in self._kept(line)]
        return out + self._marked(texts, here), here

    def _marked(self, texts: list[tuple[bytes, bytes]], file: int) -> list[Line]:
        if not texts:
            return []
        mark = f"worker {self._worker}" if file == NO_FILE else f"worker {self._worker} {self._files[file]}"
        return [Line(mark, text, once) for text, once in texts]

    def _kept(self, line: bytes) -> list[bytes]:
        head, self._head = self._head, b""
        if not head and line.startswith(_THREAD):
            self._head = line
            return []
        if self._ours(line):
            self._gone = self._gone or bool(head)
            return []
        gone, self._gone = self._gone, False
        if gone and not line:
            return []  # what separates it from the next one
        return [head, line] if head else [line]

    def _ours(self, line: bytes) -> bool:
        self._below = line.startswith(_OURS) or (self._below and line == _START)
        return self._below
