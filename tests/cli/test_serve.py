"""``pydp2 serve`` as a process of its own: its address, its signs of life, its end."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydp2_cli import serve
from pydp2_cli.stats_line import StatsLine
from rich.console import Console

import pydp2
from pydp2.transport.service_address import without_token

from .test_live_line import resize

SERVE = ("serve", "train.list", "--provider", "numbers_provider.process", "--workers", "1")
Start = Callable[..., Any]


def test_lines_go_on_more_rarely_while_a_trainer_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[float] = []
    clock = {"now": 100.0}
    monkeypatch.setattr(serve, "time", SimpleNamespace(monotonic=lambda: clock["now"]))
    display = serve._LineDisplay(Console())
    monkeypatch.setattr(display, "log", lambda text, event: shown.append(clock["now"]))
    figures = StatsLine()

    def show_for(seconds: int, attached: bool, samples: int) -> list[float]:
        shown.clear()
        monkeypatch.setattr(StatsLine, "progress", (attached, 0, samples))
        monkeypatch.setattr(StatsLine, "parts", lambda self: [])
        for _ in range(2 * seconds):
            clock["now"] += 0.5
            display.show(figures)
        return [when - clock["now"] + seconds for when in shown]

    assert show_for(100, attached=True, samples=10) == [0.5, 30.5, 60.5, 90.5]
    assert show_for(20, attached=True, samples=20) == [0.5]
    assert show_for(100, attached=False, samples=20) == [0.5]


def test_with_a_json_log_each_line_of_stderr_is_an_event(folder: Path, running: Start) -> None:
    service = running(*SERVE, "--json", "--log-format", "json")
    addresses = json.loads(service.address())
    with pydp2.connect(addresses["address"], batch_size=4) as data:
        assert len([*data]) == 2
    os.kill(addresses["pid"], signal.SIGKILL)
    status, _, err = service.ended()
    assert status == 1
    events = [json.loads(line) for line in err.splitlines()]
    assert events[0]["event"] == "service_ready"
    assert {name: events[0][name] for name in ("address", "pid")} == {
        name: addresses[name] for name in ("address", "pid")
    }
    assert (events[-1]["event"], events[-1]["level"]) == ("command_failed", "error")
    assert events[-1]["message"] == "the server process was killed by SIGKILL"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_service_is_read_by_another_process_and_ends_in_order_by_a_signal(
    number: signal.Signals, code: int, folder: Path, running: Start
) -> None:
    service = running(*SERVE)
    address = service.address()
    with pydp2.connect(address, batch_size=4) as data:
        assert [batch["n"].tolist() for batch in data] == [[1, 2, 3, 4], [5, 6]]
    began = time.monotonic()
    service.process.send_signal(number)
    status, out, err = service.ended()
    assert time.monotonic() - began < 15
    assert status == code
    assert out == f"{address}\n"
    assert err.count(f"pydp2: ending the service ({number.name})\n") == 1
    assert "Traceback" not in err
    assert not Path(address.removeprefix("ipc://")).exists()


def test_stderr_has_the_lines_of_python_that_read_the_service(folder: Path, running: Start) -> None:
    service = running(*SERVE)
    service.address()
    text = service.until("stderr", "print(batch)\n")
    code = text[text.index("import pydp2") :].replace("range(10)", "range(2)") + "data.close()\n"
    code = code[: code.index("print(batch)\n") + len("print(batch)\n")] + "data.close()\n"
    assert len([line for line in code.splitlines()[:-1] if line]) == 5
    done = subprocess.run([service.process.args[0], "-c", code], capture_output=True, text=True, timeout=60, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "<Batch 0 of pass 1: 6 rows, size 6; n: int32 (6,)>" in done.stdout
    service.process.terminate()
    assert service.ended()[0] == 143


def test_json_is_one_object_with_the_address_and_the_server_process(folder: Path, running: Start) -> None:
    service = running(*SERVE, "--json")
    told = json.loads(service.address())
    assert set(told) == {"address", "host_address", "pid"}
    assert told["host_address"] == "", "without keys there are no workers on other hosts"
    os.kill(told["pid"], 0)
    service.process.terminate()
    assert service.ended()[0] == 143


def test_a_configuration_gives_options_to_the_service_and_to_the_lines_that_are_shown(
    folder: Path, running: Start
) -> None:
    (folder / "c.toml").write_text(
        'provider = "numbers_provider.process"\n[train]\nlist = "train.list"\n'
        f'[service]\nworkers = 1\nbind = "ipc://{folder}/there"\n[job]\nbatch_size = 5\nseed = 3\nprefetch = 2\n'
    )
    service = running("serve", "--config", "c.toml")
    assert service.address() == f"ipc://{folder}/there"
    assert f'pydp2.connect("ipc://{folder}/there", batch_size=5, seed=3)\n' in service.until("stderr", "print(batch)\n")
    service.process.terminate()
    assert service.ended()[0] == 143


def test_away_from_a_terminal_plain_lines_say_how_it_is_going(folder: Path, running: Start) -> None:
    service = running(*SERVE)
    service.address()
    text = service.until("stderr", "no trainer is attached")
    line = next(line for line in text.splitlines() if "no trainer" in line)
    assert re.fullmatch(r"pydp2: no trainer is attached, 1 workers?, memory \d.*", line)
    assert "\x1b" not in text
    service.process.terminate()
    assert service.ended()[0] == 143


def test_a_second_signal_ends_it_at_once(folder: Path, running: Start) -> None:
    """The first one waits for the server, which does not move here; the second does not."""

    def at_once() -> bool:
        service = running(*SERVE, "--json")
        server = json.loads(service.address())["pid"]
        service.until("stderr", "no trainer is attached")
        os.kill(server, signal.SIGSTOP)
        began = time.monotonic()
        service.process.send_signal(signal.SIGINT)
        service.until("stderr", "ending the service")
        assert service.process.poll() is None
        time.sleep(0.2)  # else it is the same one
        service.process.send_signal(signal.SIGINT)
        assert service.ended()[0] == 130
        return time.monotonic() - began < 4  # the server has as long to end

    assert any(at_once() for _ in range(3))  # what else runs on the machine comes and goes


def test_a_server_that_dies_by_itself_is_told(folder: Path, running: Start) -> None:
    service = running(*SERVE, "--json")
    os.kill(json.loads(service.address())["pid"], signal.SIGKILL)
    status, _, err = service.ended()
    assert status == 1
    assert err.endswith("Error: the server process was killed by SIGKILL\n")


def test_a_service_that_fails_later_says_why(folder: Path, running: Start) -> None:
    """Here its supervisor is killed: no worker can be replaced."""
    service = running(*SERVE, "--json")
    server = json.loads(service.address())["pid"]
    children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGKILL)
    status, _, err = service.ended()
    assert status == 1
    assert re.search(r"Error: the server process ended with exit status 1: \S", err)


@pytest.mark.parametrize("bind", ["ipc://{folder}/s", "tcp://127.0.0.1:{port}"])
def test_an_address_that_is_taken_cannot_be_bound(bind: str, folder: Path, running: Start) -> None:
    first = running(*SERVE, "--bind", bind.format(folder=folder, port=0))
    address = first.address()
    second = running(*SERVE, "--bind", address)
    status, out, err = second.ended()
    assert (status, out) == (3, "")
    assert without_token(address) in err
    assert "token" not in err
    assert err.startswith("Error: ")
    with pydp2.connect(address, batch_size=6) as data:  # the first one is as it was
        assert sum(map(len, data)) == 6
    first.process.terminate()
    assert first.ended()[0] == 143


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import nothing_there", "ModuleNotFoundError: No module named 'nothing_there'"),
        ("def hook(settings, **kw): raise KeyError('lost')", "KeyError: 'lost'"),
        ("hook = None; process = 3", "must be a decorated function"),
        ("", "NameError: name 'hook' is not defined"),
    ],
)
def test_a_provider_that_cannot_start_is_a_user_error_with_its_traceback(
    code: str, words: str, folder: Path, running: Start
) -> None:
    define = "" if "process =" in code else "@provider(init_hook=hook)\ndef process(settings, filename):\n    yield 1\n"
    (folder / "wrong.py").write_text(f"from pydp2 import *\n{code}\n{define}")
    status, out, err = running("serve", "train.list", "--provider", "wrong.process").ended()
    assert (status, out) == (1, "")
    assert words in err
    assert err.count("Error: ") == err.count(words) or "Traceback" in err
    assert "pydp2/cli" not in err


def test_a_list_that_is_missing_is_a_user_error(folder: Path, running: Start) -> None:
    status, out, err = running("serve", "none.list", "--provider", "numbers_provider.process").ended()
    assert (status, out) == (1, "")
    assert err == f"Error: the file list none.list is missing; relative names are looked up in {folder}\n"


def test_an_empty_list_is_served_with_a_warning(folder: Path, running: Start) -> None:
    (folder / "train.list").write_text("")
    service = running(*SERVE)
    with pydp2.connect(service.address(), batch_size=4) as data:
        assert list(data) == []
    service.process.terminate()
    status, _, err = service.ended()
    assert status == 143
    assert err.startswith("Warning: the file list train.list is empty: a pass over it has no samples\n")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_is_heeded_while_the_provider_is_still_being_imported(
    number: signal.Signals, code: int, folder: Path, running: Start
) -> None:
    (folder / "slow.py").write_text("import sys, time\nprint('here', file=sys.stderr)\ntime.sleep(100)\n")
    service = running("serve", "train.list", "--provider", "slow.process")
    service.until("stderr", "here\n")
    began = time.monotonic()
    service.process.send_signal(number)
    status, out, err = service.ended()
    assert time.monotonic() - began < 15
    assert (status, out) == (code, "")
    assert f"pydp2: ended by {number.name}\n" in err
    assert "Traceback" not in err


# -- on a terminal -----------------------------------------------------------------------------------------------------
class Terminal:
    """The other end of a terminal that a program has as stdin and stderr."""

    def __init__(self) -> None:
        self.ours, self.theirs = pty.openpty()
        self.text = ""

    def until(self, pattern: str, seconds: float = 60.0) -> str:
        """All that was written, once ``pattern`` is in it."""
        deadline = time.monotonic() + seconds
        while not re.search(pattern, self.text):
            ready = select.select([self.ours], [], [], max(0.0, deadline - time.monotonic()))[0]
            assert ready, f"never saw {pattern!r} in {self.text!r}"
            self.text += os.read(self.ours, 1 << 16).decode(errors="replace")
        return self.text


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal()
    yield made
    for descriptor in (made.ours, made.theirs):
        with contextlib.suppress(OSError):
            os.close(descriptor)


def test_on_a_terminal_a_line_is_drawn_anew_and_what_workers_print_stands_above_it(
    folder: Path, running: Start, terminal: Terminal
) -> None:
    (folder / "talking.py").write_text(
        "from pydp2 import *\n@provider(input_types=[integer_value(9)])\ndef process(settings, filename):\n"
        "    print('reading [red]', filename)\n    yield 1\n"
    )
    service = running(
        "serve", "train.list", "--provider", "talking.process", "--workers", 1, stderr=terminal.theirs,
        env=os.environ | {"TERM": "xterm-256color", "COLUMNS": "100"},
    )  # fmt: skip
    address = service.address()
    terminal.until("no trainer is attached")
    with pydp2.connect(address, batch_size=2) as data:
        assert sum(map(len, data)) == 2
        terminal.until(r"\[worker \d a.txt\] reading \[red\] a.txt\r\n")
        shown = terminal.until(r"pass 0.*samples/s.*batches/s.*pool.*memory")
    assert "\x1b[2K" in shown  # the line is erased before it is drawn again
    service.process.send_signal(signal.SIGINT)
    assert service.ended()[0] == 130
    assert terminal.until("ending the service").count("\x1b[?25l") == terminal.text.count("\x1b[?25h")


def test_without_colors_when_the_environment_says_so(folder: Path, running: Start, terminal: Terminal) -> None:
    service = running(
        *SERVE, stderr=terminal.theirs, env=os.environ | {"TERM": "xterm-256color", "COLUMNS": "100", "NO_COLOR": "1"}
    )
    service.address()
    terminal.until("no trainer is attached")
    assert re.findall(r"\x1b\[[0-9;]*(?:3[0-7]|9[0-7]|38;[0-9;]*)m", terminal.text) == []
    service.process.send_signal(signal.SIGINT)
    assert service.ended()[0] == 130


def test_a_dumb_terminal_gets_plain_lines(folder: Path, running: Start, terminal: Terminal) -> None:
    service = running(*SERVE, stderr=terminal.theirs, env=os.environ | {"TERM": "dumb"})
    service.address()
    assert "\x1b" not in terminal.until("pydp2: no trainer is attached")
    service.process.send_signal(signal.SIGINT)
    assert service.ended()[0] == 130


def test_each_line_that_is_drawn_fits_the_width_that_the_terminal_has_then(
    folder: Path, running: Start, terminal: Terminal
) -> None:
    resize(terminal.theirs, 60)
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    service = running(*SERVE, stderr=terminal.theirs, env=environment | {"TERM": "xterm-256color"})
    service.address()
    for columns in (60, 30, 100, 24):
        resize(terminal.theirs, columns)
        while select.select([terminal.ours], [], [], 0)[0]:  # lines of the width before
            os.read(terminal.ours, 1 << 16)
        terminal.text = ""
        terminal.until(r"no trainer(.|\n)*no trainer(.|\n)*no trainer")
        last = re.split(r"\x1b\[1m", terminal.text)[-2]
        assert len(re.sub(r"\x1b\[[0-9]*[a-zA-Z]|\r", "", last)) < columns
    service.process.send_signal(signal.SIGINT)
    assert service.ended()[0] == 130
