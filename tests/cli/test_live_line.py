"""The line that is drawn anew, on a terminal that may be narrow and may change: nothing of it stays behind."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import termios
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydp2_cli.live_line import LiveLine

_PIECES = re.compile(r"\x1b\[(\d*)([A-Za-z])|(\r)|(\n)|([^\x1b\r\n]+)")


def resize(descriptor: int, columns: int) -> None:
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))


class Screen:
    """A terminal: lines that it wraps to its width, again when that changes, and a cursor that stays at its text."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.lines = [""]
        self._line = self._at = 0
        self._behind = False  # the cursor stands behind a character, at the end of its row if that is the last column

    @property
    def shown(self) -> list[str]:
        return [line.rstrip() for line in self.lines if line.strip()]

    def feed(self, text: str) -> None:
        assert "".join(piece.group() for piece in _PIECES.finditer(text)) == text
        for number, what, back, down, words in (piece.groups() for piece in _PIECES.finditer(text)):
            row = (self._at - self._behind) // self.columns
            self._behind = bool(words) or (self._behind and what == "m")
            if words:
                line = self.lines[self._line].ljust(self._at)
                self.lines[self._line] = line[: self._at] + words + line[self._at + len(words) :]
                self._at += len(words)
            elif back:
                self._at = row * self.columns
            elif down:
                self._line, self._at = self._line + 1, 0
                if self._line == len(self.lines):
                    self.lines.append("")
            elif what == "K" and number == "2":
                line, first = self.lines[self._line], row * self.columns
                blank = " " * len(line[first : first + self.columns])
                self.lines[self._line] = (line[:first] + blank + line[first + self.columns :]).rstrip()
            elif what == "A" and number == "1":
                if row:
                    self._at -= self.columns
                elif self._line:
                    self._line -= 1
                    self._at = max(len(self.lines[self._line]) - 1, 0) // self.columns * self.columns
            else:
                assert what == "m", f"unknown: {number}{what}"


class Terminal(io.StringIO):
    """What is written goes to the screen; how wide that is says a real terminal behind it."""

    def __init__(self, descriptor: int, columns: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self.screen = Screen(columns)
        self.columns = columns

    @property
    def columns(self) -> int:
        return self.screen.columns

    @columns.setter
    def columns(self, columns: int) -> None:
        resize(self._descriptor, columns)
        self.screen.columns = columns

    def fileno(self) -> int:
        return self._descriptor

    def write(self, text: str) -> int:
        self.screen.feed(text)
        return len(text)


@pytest.fixture(scope="module")
def descriptor() -> Iterator[int]:
    ours, theirs = pty.openpty()
    yield theirs
    os.close(ours)
    os.close(theirs)


PARTS = ["pass 0, batch 12", "1,234 samples/s", "9.6 batches/s", "pool 4,096 (2.1 MB)", "memory 150 MB"]


@pytest.mark.parametrize("columns", [200, 80, 40, 17, 8, 2, 1])
def test_a_line_takes_one_row_and_shows_whole_parts(columns: int, descriptor: int) -> None:
    terminal = Terminal(descriptor, columns)
    line = LiveLine(terminal)
    for _ in range(3):
        line.show(PARTS)
        assert len(terminal.screen.shown) <= 1
        assert all(len(each) < columns for each in terminal.screen.shown)
    if columns == 80:
        assert terminal.screen.shown == [" · ".join(PARTS[:4])]
    if columns == 8:
        assert terminal.screen.shown == ["pass 0…"]
    line.clear()
    assert terminal.screen.shown == []


def test_wide_characters_count_as_they_are_shown(descriptor: int) -> None:
    terminal = Terminal(descriptor, 12)
    LiveLine(terminal).show(["データデータデータ"])
    assert terminal.screen.shown == ["データデータ…"[:5] + "…"]


def test_what_is_written_meanwhile_stands_above(descriptor: int) -> None:
    terminal = Terminal(descriptor, 40)
    line = LiveLine(terminal, bold=True)
    line.show(PARTS)
    for n in range(3):
        with line.printing_above():
            terminal.write(f"a line {n}\n")
    assert terminal.screen.shown == ["a line 0", "a line 1", "a line 2", "pass 0, batch 12 · 1,234 samples/s"]
    line.clear()
    with line.printing_above():
        terminal.write("the end\n")
    assert terminal.screen.shown == ["a line 0", "a line 1", "a line 2", "the end"]


_steps = st.lists(st.one_of(st.integers(1, 120), st.just("show"), st.just("above")), max_size=30)


@given(st.integers(1, 120), _steps)
def test_however_it_is_resized_no_half_line_stays(descriptor: int, columns: int, steps: list[object]) -> None:
    terminal = Terminal(descriptor, columns)
    line = LiveLine(terminal)
    above = []
    for number, step in enumerate([*steps, "show"]):
        if isinstance(step, int):
            terminal.columns = step
        elif step == "show":
            line.show(PARTS)
        else:
            above.append(f"#{number}")
            with line.printing_above():
                terminal.write(f"{above[-1]}\n")
    shown = terminal.screen.shown
    assert shown[: len(above)] == above
    assert all(len(each) < terminal.columns for each in shown[len(above) :])
    line.clear()
    assert terminal.screen.shown == above
