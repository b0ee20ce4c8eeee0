"""What workers print: every line marked and whole, floods counted, and nobody waits for a terminal."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from pydp2.host.engine.output import MAX_BYTES_PER_SECOND, OutputLine, OutputPump


class Marked:
    """Lines of one worker, who never changes."""

    def __init__(self, mark: str = "w") -> None:
        self.mark = mark

    def current_file(self) -> int:
        return 0

    def first_lines(self, lines: Sequence[bytes], here: int) -> int:
        return 0

    def lines(self, lines: Sequence[bytes], here: int) -> tuple[list[OutputLine], int]:
        return [OutputLine(self.mark, line, b"o" if line.startswith(b"once") else b"") for line in lines], 0


class Shown:
    """What was written, by a pump of its own."""

    def __init__(self) -> None:
        self.text = ""
        self.pump = OutputPump(self._write)
        self._arrived = threading.Condition()

    def _write(self, mark: str, lines: Sequence[str], /, **fields: str | int) -> None:
        with self._arrived:
            self.text += "".join(f"[{mark}] {line}\n" for line in lines)
            self._arrived.notify_all()

    def wait_for(self, what: Callable[[str], bool], seconds: float = 10.0) -> None:
        with self._arrived:
            assert self._arrived.wait_for(lambda: what(self.text), seconds), f"only {self.text[-500:]!r}"

    def pipe(self, mark: str = "w") -> int:
        """The end of a new pipe that can be written to."""
        read, write = os.pipe()
        self.pump.add(read, Marked(mark))
        return write


@pytest.fixture
def shown() -> Iterator[Shown]:
    one = Shown()
    yield one
    one.pump.close(10)


def test_each_line_has_its_mark(shown: Shown) -> None:
    end = shown.pipe("worker 1")
    os.write(end, b"first\n\n  second  \r\n")
    os.close(end)
    shown.wait_for(lambda text: "second" in text)
    assert shown.text == "[worker 1] first\n[worker 1] \n[worker 1]   second\n"


def test_a_line_that_comes_in_pieces_is_shown_when_it_is_whole(shown: Shown) -> None:
    end = shown.pipe()
    for letter in b"abc":
        os.write(end, bytes([letter]))
        time.sleep(0.01)  # so that it is read by itself, or not: nothing depends on it
    assert shown.text == ""
    os.write(end, b"d\ne")
    shown.wait_for(lambda text: text != "")
    assert shown.text == "[w] abcd\n"
    os.close(end)
    shown.wait_for(lambda text: text == "[w] abcd\n[w] e\n")


def test_a_last_line_without_an_end_is_shown_when_the_pipe_ends(shown: Shown) -> None:
    end = shown.pipe()
    os.write(end, b"no newline")
    os.close(end)
    shown.wait_for(lambda text: text == "[w] no newline\n")


def test_what_is_no_utf_8_is_shown_as_well_as_it_can_be(shown: Shown) -> None:
    end = shown.pipe()
    os.write(end, b"a\xff\xfeb \xc3\xa9 \0\n")
    os.close(end)
    shown.wait_for(lambda text: text == "[w] a\ufffd\ufffdb é \0\n")


@pytest.mark.parametrize("letter", ["x", "é", "一", "😀"])
@pytest.mark.parametrize("ended", [True, False])
def test_a_long_line_is_shown_in_pieces_that_cut_no_character(shown: Shown, letter: str, ended: bool) -> None:
    end = shown.pipe()
    line = "a" + letter * 30_000
    writer = threading.Thread(target=lambda: os.write(end, (line + "\n" * ended).encode()) and os.close(end))
    writer.start()
    shown.wait_for(lambda text: text.count(letter) == 30_000)
    writer.join()
    pieces = re.findall(r"^\[w\] (.*)$", shown.text, re.M)
    assert "".join(pieces) == line
    assert all(len(piece.encode()) <= 8192 for piece in pieces)


def test_lines_of_several_workers_are_never_mixed(shown: Shown) -> None:
    ends = {letter: shown.pipe(letter) for letter in "abcd"}

    def write(letter: str) -> None:
        for i in range(200):
            half = f"{letter * 20} {i}"
            os.write(ends[letter], half.encode())
            os.write(ends[letter], b" end\n")
        os.close(ends[letter])

    writers = [threading.Thread(target=write, args=(letter,)) for letter in ends]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    shown.wait_for(lambda text: text.count("\n") == 800)
    for letter in ends:
        assert re.findall(rf"^\[{letter}\] {letter * 20} (\d+) end$", shown.text, re.M) == [str(i) for i in range(200)]


def test_what_is_to_be_said_once_is_said_once(shown: Shown) -> None:
    one, other = shown.pipe("a"), shown.pipe("b")
    os.write(one, b"once upon\nand\n")
    shown.wait_for(lambda text: "and" in text)
    os.write(other, b"once more\nthen\n")
    os.close(one)
    os.close(other)
    shown.wait_for(lambda text: "then" in text)
    assert shown.text == "[a] once upon\n[a] and\n[b] then\n"


def resident() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(sys.platform != "linux", reason="reads its memory from /proc")
def test_of_a_flood_a_second_s_worth_is_shown_and_the_rest_counted(shown: Shown) -> None:
    total = 30_000_000
    before, began = resident(), time.monotonic()
    end = shown.pipe()
    subprocess.run(f"yes 0123456789 | head -c {total}", shell=True, stdout=end, check=True, timeout=120)
    os.write(end, b"\nlast words, which are left out as well\n")
    took = time.monotonic() - began
    shown.wait_for(lambda text: "left out" in text)
    time.sleep(1.1)  # a second later there is room again
    os.write(end, b"the end\n")
    os.close(end)
    shown.wait_for(lambda text: text.endswith("[w] the end\n"))
    assert resident() - before < (20 << 20) + 4 * len(shown.text)  # the longer it takes, the more is shown
    dropped = sum(
        map(int, re.findall(r"… (\d+) bytes of output left out \(more than 1000000 a second\) …", shown.text))
    )
    lines = re.findall(r"^\[w\] ([0-9]*)$", shown.text, re.M)
    counted = dropped + sum(len(line) + 1 for line in lines)
    slack = 100 + 50 * shown.text.count("left out")  # lines that a flood broke in two
    assert abs(total - counted) < slack
    assert sum(map(len, lines)) <= MAX_BYTES_PER_SECOND * (took + 3)
    assert all(line in "0123456789" for line in lines)


def test_a_terminal_that_stands_still_holds_up_nobody_but_the_thread() -> None:
    go = threading.Event()
    pump = OutputPump(lambda *_, **__: go.wait(20) and None)
    ends = []
    for _ in range(5):
        read, write = os.pipe()
        pump.add(read, Marked())
        os.write(write, b"x\n")
        ends.append((read, write))
    began = time.monotonic()
    pump.close(0.1)
    assert time.monotonic() - began < 15
    go.set()
    pump._thread.join(10)
    for _, write in ends:
        os.close(write)
    for key in list(pump._selector.get_map().values()):  # what close() leaves to the end of the process
        os.close(key.fd)
    pump._selector.close()
    os.close(pump._wake_write)


def test_closing_shows_what_is_there_and_what_was_counted() -> None:
    one = Shown()
    end = one.pipe()
    os.write(end, b"begun")
    one.pump.close(10)
    assert one.text == "[w] begun\n"
    one.pump.close()
    with pytest.raises(BrokenPipeError):
        os.write(end, b"nobody reads any more")
    os.close(end)


def test_a_pipe_that_comes_while_the_thread_wakes_for_another_is_read(
    shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, ends = os.read, list[int]()

    def read_as_another_comes(descriptor: int, size: int) -> bytes:
        if descriptor == shown.pump._wake_read and not ends:
            ends.append(shown.pipe())
            os.write(ends[0], b"late\n")
        return read(descriptor, size)

    monkeypatch.setattr(os, "read", read_as_another_comes)
    first = shown.pipe()
    shown.wait_for(lambda text: "late" in text)
    for end in (first, *ends):
        os.close(end)


def test_two_hundred_pipes_leave_nothing_behind(shown: Shown) -> None:
    end = shown.pipe()
    os.write(end, b"ready\n")
    shown.wait_for(lambda text: "ready" in text)
    for i in range(200):
        other = shown.pipe()
        os.write(other, b"%d\n" % i)
        os.close(other)
    shown.wait_for(lambda text: text.count("\n") == 201)
    deadline = time.monotonic() + 10
    while len(shown.pump._selector.get_map()) > 2 and time.monotonic() < deadline:
        time.sleep(0.005)
    assert len(shown.pump._selector.get_map()) == 2
    os.close(end)
