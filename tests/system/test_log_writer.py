"""Logging to what fails or stands still: nothing is raised, nobody waits, what was left out is told."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pydp2
from pydp2.system.log_events import LogEvent
from pydp2.system.log_writer import (
    MAX_WAITING_BYTES,
    LogWriter,
    log_stream,
    unfailing_stderr,
    with_times,
    write_event,
    write_output,
    write_secret,
)

from ..runs import NUMBERS, wait_until

LINE = b"a line of the log\n"
Open = Callable[..., LogWriter]


@pytest.fixture
def ends() -> Iterator[tuple[int, int]]:
    """The read and the write end of a pipe."""
    made = os.pipe()
    yield made
    for end in made:
        with contextlib.suppress(OSError):
            os.close(end)


@pytest.fixture
def writer() -> Iterator[Open]:
    """``writer(descriptor, patience)``; its thread ends with the test, once somebody reads."""
    made: list[LogWriter] = []

    def one(descriptor: int, patience: float = 0.0) -> LogWriter:
        made.append(LogWriter(descriptor, patience))
        return made[-1]

    yield one
    for each in made:
        each.finish(5.0)


def everything(end: int, least: int = 0, until: Callable[[], bool] = lambda: True) -> bytes:
    """What is in a pipe, and what comes within a moment after it was read: ``least`` bytes, and all that comes before
    ``until()``."""
    os.set_blocking(end, False)
    text, deadline, latest, over = b"", time.monotonic() + 0.5, time.monotonic() + 30, False
    while not over:
        over = time.monotonic() > (deadline if len(text) >= least and until() else latest)  # it is read once more then
        with contextlib.suppress(BlockingIOError):
            if data := os.read(end, 1 << 20):
                text, deadline, over = text + data, time.monotonic() + 0.5, False
        time.sleep(0.001)
    return text


def test_what_is_written_arrives_in_order(writer: Open, ends: tuple[int, int]) -> None:
    one = writer(ends[1])
    for n in range(1000):
        one.write(b"%d\n" % n)
    one.finish(30.0)
    assert everything(ends[0]) == b"".join(b"%d\n" % n for n in range(1000))


def test_with_patience_a_write_is_done_when_it_returns(writer: Open, ends: tuple[int, int]) -> None:
    one = writer(ends[1], 5.0)
    for _ in range(100):
        one.write(LINE)
        assert os.read(ends[0], 100) == LINE


def test_a_pipe_that_nobody_reads_holds_nobody_up_and_takes_no_memory(writer: Open, ends: tuple[int, int]) -> None:
    one = writer(ends[1])
    began = time.monotonic()
    for _ in range(3 * MAX_WAITING_BYTES // len(LINE)):
        one.write(LINE)
    assert time.monotonic() - began < 20
    assert one._waiting_bytes <= MAX_WAITING_BYTES
    found = everything(ends[0], until=lambda: not one._waiting_bytes + one._dropped_bytes).splitlines(keepends=True)
    told = [int(line.split()[1]) for line in found if line != LINE]
    assert len(told) == 1  # a second one follows only where half of the limit was written, and the pipe is smaller
    assert (len(found) - 1) * len(LINE) + told[0] == 3 * MAX_WAITING_BYTES // len(LINE) * len(LINE)
    one.write(LINE)
    assert everything(ends[0], len(LINE)) == LINE  # it goes on


def test_patience_is_lost_once_not_at_every_line(writer: Open, ends: tuple[int, int]) -> None:
    one = writer(ends[1], 0.3)
    began = time.monotonic()
    for _ in range(200):
        one.write(b"x" * 1000)
    assert 0.3 <= time.monotonic() - began < 20
    assert len(everything(ends[0], 200_000)) == 200_000
    assert wait_until(lambda: not one._waiting_bytes)
    one._write_timeout = 30.0  # the thread may take longer to come to a line than a test can wait to lose patience
    one.write(LINE)
    assert os.read(ends[0], 100) == LINE  # and it waits again where the reader has caught up


def test_a_reader_that_is_gone_is_no_error(writer: Open, ends: tuple[int, int]) -> None:
    one = writer(ends[1], 1.0)
    os.close(ends[0])
    for _ in range(1000):
        assert one.write(LINE) == len(LINE)
    assert one.finish(30.0)
    assert one.write(LINE) == len(LINE)


def test_a_closed_descriptor_is_no_error(writer: Open, ends: tuple[int, int]) -> None:
    one = writer(fcntl.fcntl(ends[1], fcntl.F_DUPFD, 900), 1.0)
    os.close(one.fileno())
    one.write(LINE)
    assert one.finish(30.0)


def test_a_full_disk_is_no_error_and_what_it_did_not_take_is_told_later(writer: Open, tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    path = tmp_path / "log"
    with path.open("ab", buffering=0) as file:
        one = writer(file.fileno(), 5.0)
        one.write(LINE)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (len(LINE), before[1]))
            one.write(LINE)
            one.write(LINE)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, handler)
        one.write(LINE)
        assert one.finish(30.0)
    left_out = f"… {2 * len(LINE)} bytes that could not be written are left out here …\n".encode()
    assert path.read_bytes() == LINE + left_out + LINE


def test_a_device_that_is_full_keeps_no_thread_busy(writer: Open) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    one = writer(full, 1.0)
    one.write(LINE)
    used = time.process_time()
    time.sleep(0.2)
    assert time.process_time() - used < 0.1
    assert one.finish(30.0)
    os.close(full)


def test_a_pipe_that_was_made_non_blocking_gets_all(writer: Open, ends: tuple[int, int]) -> None:
    os.set_blocking(ends[1], False)
    one = writer(ends[1])
    text = b"".join(b"%06d\n" % n for n in range(50_000))
    for at in range(0, len(text), 7000):
        one.write(text[at : at + 7000])
    assert everything(ends[0], len(text)) == text


def test_a_fork_writes_for_itself(writer: Open, ends: tuple[int, int]) -> None:
    one = writer(ends[1], 5.0)
    one.write(LINE)
    child = os.fork()
    if child == 0:
        one.write(b"the child\n")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert everything(ends[0], len(LINE) + 10) == LINE + b"the child\n"


def test_after_the_end_there_is_no_thread_and_what_fits_is_written(ends: tuple[int, int]) -> None:
    one = LogWriter(ends[1])
    one.write(LINE)
    assert one.finish(30.0)
    assert [thread.name for thread in threading.enumerate() if thread.name == "pydp2-log"] == []
    one.write(LINE)
    assert everything(ends[0], 2 * len(LINE)) == 2 * LINE
    os.set_blocking(ends[1], False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(ends[1], b"x" * 4096)
    os.set_blocking(ends[1], True)
    one.write(LINE)  # there is no room, and it returns


def test_an_end_waits_no_longer_than_it_may(ends: tuple[int, int]) -> None:
    one = LogWriter(ends[1])
    one.write(b"x" * 500_000)
    began = time.monotonic()
    assert not one.finish(0.2)
    assert time.monotonic() - began < 20
    os.close(ends[0])
    assert one._thread is not None
    assert wait_until(lambda: not one._thread.is_alive())


def test_a_stream_is_text(ends: tuple[int, int]) -> None:
    text, writer = log_stream(ends[1], 5.0, "ascii")
    text.write("größer\n")
    assert os.read(ends[0], 100) == b"gr\\xf6\\xdfer\n"
    assert (text.fileno(), text.isatty(), text.writable(), text.name) == (ends[1], False, True, ends[1])
    writer.finish()


def test_a_stream_of_somebody_else_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = io.StringIO()
    monkeypatch.setattr(sys, "stderr", theirs)
    with unfailing_stderr():
        assert sys.stderr is theirs
        write_event("hello", LogEvent.PROGRESS)
    assert theirs.getvalue() == "pydp2: hello\n"


class _Fails(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(errno.EPIPE, "Broken pipe")


@pytest.mark.parametrize("broken", [None, _Fails(), "closed"])
def test_what_cannot_be_said_is_not_said(broken: io.StringIO | str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if broken == "closed":
        broken = io.StringIO()
        broken.close()
    monkeypatch.setattr(sys, "stderr", broken)
    write_event("hello", LogEvent.PROGRESS)


class OnlyWrite:
    """What a program puts in the place of stderr, to copy it into a log of its own."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def write(self, text: str) -> None:
        self.texts.append(text)


class Stub(OnlyWrite):
    """A stream of a mock, whose methods return what no stream returns."""

    def fileno(self) -> str:
        return "no number"

    def flush(self) -> None:
        raise RuntimeError("it is closed")


@pytest.mark.parametrize("kind", [OnlyWrite, Stub])
def test_a_stream_with_nothing_but_write_gets_the_line(kind: type[OnlyWrite], monkeypatch: pytest.MonkeyPatch) -> None:
    stream = kind()
    monkeypatch.setattr(sys, "stderr", stream)
    write_event("a line", LogEvent.PROGRESS)
    (text,) = stream.texts
    assert text.endswith("a line\n")


def test_where_no_thread_can_be_started_what_is_logged_goes_out_at_once(
    ends: tuple[int, int], writer: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    log = writer(ends[1])
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        log.write(LINE)
        log.write(LINE)
        assert everything(ends[0], 2 * len(LINE)) == 2 * LINE
    log.write(LINE)  # by a thread, now that there can be one
    assert everything(ends[0], len(LINE)) == LINE


# -- the time of a line ------------------------------------------------------------------------------------------------
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d "


def test_each_line_begins_with_the_time_where_the_stream_is_no_terminal(
    ends: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYDP2_LOG_TIMES")
    with open(ends[1], "w", closefd=False) as stream:
        assert re.fullmatch(f"{TIME}one\n\n{TIME}two\n", with_times("one\n\ntwo\n", stream))
    assert re.fullmatch(f"{TIME}one\n", with_times("one\n", io.StringIO())), "a notebook"


def test_a_terminal_and_the_journal_of_systemd_have_no_times(
    ends: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYDP2_LOG_TIMES")
    main, terminal = os.openpty()
    with open(main, "w"), open(terminal, "w") as stream:
        assert with_times("one\n", stream) == "one\n"
    known = os.fstat(ends[1])
    with open(ends[1], "w", closefd=False) as stream:
        monkeypatch.setenv("JOURNAL_STREAM", f"{known.st_dev}:{known.st_ino}")
        assert with_times("one\n", stream) == "one\n"
        monkeypatch.setenv("JOURNAL_STREAM", "1:2")  # of a process around this one
        assert with_times("one\n", stream) != "one\n"


@pytest.mark.parametrize(("told", "matches"), [("0", "one\n"), ("1", f"{TIME}one\n"), ("", f"{TIME}one\n")])
def test_a_variable_decides_otherwise(told: str, matches: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYDP2_LOG_TIMES", told)
    assert re.fullmatch(matches, with_times("one\n", io.StringIO()))


@pytest.mark.real_starts
def test_the_log_of_a_service_has_times_and_names_the_job(
    provider_file: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PYDP2_LOG_TIMES")
    address = provider_file("""
        @provider(input_types=[integer_value(10)], should_shuffle=False)
        def process(settings, filename):
            print("reading")
            yield 1
            raise ValueError("bad")
    """)
    with pydp2.launch(["a"], address, workers=1, on_error="skip") as service:
        for job in ("validation", "default"):
            with service.connect(job=job, batch_size=4) as data:
                assert len(list(data)) == 1
    screen = capfd.readouterr().err
    assert re.search(f"^{TIME}pydp2: skipped: job 'validation': the rest of a file is left out: file a", screen, re.M)
    assert re.search(f"^{TIME}pydp2: skipped: the rest of a file is left out: file a", screen, re.M)
    assert re.search(f"^{TIME}\\[worker [01] a\\] reading$", screen, re.M)
    assert [line for line in screen.splitlines() if line and not re.match(TIME, line)] == []


# -- events as JSON ----------------------------------------------------------------------------------------------------
@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[], list[dict[str, Any]]]:
    """The events that were written since the start of the test."""
    monkeypatch.setenv("PYDP2_LOG_FORMAT", "json")
    return lambda: [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_an_event_is_one_object_on_one_line(lines: Callable[[], list[dict[str, Any]]]) -> None:
    write_event("two\nlines, größer", LogEvent.WORKER_LOST, worker=3, file="b\n.txt", sample=41)
    (line,) = lines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d", line.pop("time"))
    assert line == {
        "level": "warning", "event": "worker_lost", "message": "two\nlines, größer",
        "worker": 3, "file": "b\n.txt", "sample": 41,
    }  # fmt: skip


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8", "UTF8"])
def test_an_event_is_json_of_utf8_whatever_encoding_stderr_has(
    encoding: str, ends: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYDP2_LOG_FORMAT", "json")
    name = "größe 😀 \udcff"  # with a byte that is no UTF-8
    stream, writer = log_stream(ends[1], 5.0, encoding)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stream)
        write_event("hello", LogEvent.WORKER_OUTPUT, file=name)
    assert writer.finish(30.0)
    line = os.read(ends[0], 1000).decode()
    assert json.loads(line)["file"] == name
    assert ("größe 😀" in line) == encoding.lower().startswith("utf"), "grep finds the name where it can be written"


def test_secrets_are_left_out_of_messages_and_fields(lines: Callable[[], list[dict[str, Any]]]) -> None:
    url = "https://user:hunter2@example.org/x?token=abcdefgh"
    write_event(f"no answer of {url}", LogEvent.STORE_SILENT, file=url)
    write_output("worker 0", ["hello", url], worker=0)
    write_secret(f"page: {url}", LogEvent.PAGE_READY)
    *hidden, shown = lines()
    assert len(hidden) == 3
    assert not [line for line in hidden if "hunter2" in str(line) or "abcdefgh" in str(line)]
    assert url in shown["message"]


def test_what_workers_print_is_an_event_for_each_line(lines: Callable[[], list[dict[str, Any]]]) -> None:
    write_output("worker 0 a.txt", ["one", "two"], worker=0, file="a.txt")
    assert [(line["event"], line["message"], line["file"]) for line in lines()] == [
        ("worker_output", "one", "a.txt"), ("worker_output", "two", "a.txt")
    ]  # fmt: skip


def test_output_that_is_left_out_is_told_in_the_form_of_the_log(
    writer: Open, ends: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYDP2_LOG_FORMAT", "json")
    one = writer(ends[1])
    one.write(b" " * (MAX_WAITING_BYTES + 1))
    one.write(b"{}\n")
    assert one.finish(30.0)
    told, then = map(json.loads, everything(ends[0]).splitlines())
    assert (told["event"], told["level"], told["bytes"]) == ("output_dropped", "warning", MAX_WAITING_BYTES + 1)
    assert then == {}


def test_events_have_unlike_names_and_meanings() -> None:
    assert len({event.meaning for event in LogEvent}) == len(LogEvent.__members__)


def test_a_service_warns_of_a_form_of_the_log_that_is_none(
    provider_file: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYDP2_LOG_FORMAT", "xml")
    with (
        pytest.warns(UserWarning, match="PYDP2_LOG_FORMAT") as warned,
        pydp2.launch(["1"], provider_file(NUMBERS), workers=1),
    ):
        pass
    assert [str(one.message) for one in warned] == [
        "PYDP2_LOG_FORMAT must be 'text' or 'json', got 'xml'; the log is text"
    ]
    assert warned[0].filename == __file__


PROGRAM = """
import sys
from pydp2.system.log_events import LogEvent
from pydp2.system.log_writer import log_event

log_event("pydp2.client", "it waits", LogEvent.TRAINER_WAITS, job="a")
import logging
log_event("pydp2.client", "nobody listens", LogEvent.TRAINER_WAITS)
logging.basicConfig(format="%(levelname)s %(name)s %(event)s %(about)s %(message)s", stream=sys.stdout, level="WARNING")
log_event("pydp2.client", "100 % of https://user:hunter2@example.org", LogEvent.TRAINER_WAITS, job="a")
log_event("pydp2.client", "it is back", LogEvent.CONNECTION_BACK)
"""


def test_a_program_with_handlers_gets_records_and_another_one_lines() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == "pydp2: it waits\npydp2: nobody listens\n"
    (line,) = done.stdout.splitlines()
    assert line.startswith("WARNING pydp2.client trainer_waits {'job': 'a'} 100 % of https://")
    assert "hunter2" not in line


@pytest.mark.real_starts
def test_a_service_writes_each_event_with_what_it_is_about(
    provider_file: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("PYDP2_LOG_FORMAT", "json")
    file = str(tmp_path / "killed-once")
    address = provider_file("""
        import os, signal

        @provider(input_types={"n": integer_value(10)}, should_shuffle=False)
        def process(settings, filename):
            print("reading")
            yield {"n": 1}
            if not os.path.exists(filename):
                open(filename, "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
            yield {"n": 10}
    """)
    with pydp2.launch([file], address, workers=1, on_error="skip") as service:
        with service.connect(job="validation", batch_size=4) as data:
            assert len(list(data)) == 1
        events = service.stats()["events"]
    said = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    found = {line["event"]: line for line in said}
    printed = found["worker_output"]
    assert (printed["level"], printed["message"], printed["file"]) == ("info", "reading", file)
    lost = found["worker_lost"]
    first = next(line for line in said if line["event"] == "worker_output")  # of the worker that was ready first
    assert (lost["worker"], lost["file"], lost["sample"], lost["job"]) == (first["worker"], file, 1, "validation")
    assert "host" not in lost
    ended = found["file_ended_early"]
    assert (ended["file"], ended["sample"], ended["job"]) == (file, 1, "validation")
    assert {"worker_lost", "file_ended_early"} <= {event["event"] for event in events}
    assert next(e["about"] for e in events if e["event"] == "worker_lost")["file"] == file
