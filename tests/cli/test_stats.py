"""``pydp2 stats``: a look at a service that changes nothing there."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from pydp2_cli.stats import _received_text

import pydp2
from pydp2.errors import ServiceUnreachable
from pydp2.transport.key_files import ConnectionFile
from pydp2.transport.keys import new_key_pair
from tests.runs import NUMBERS, wait_until
from tests.runs import NUMBERS_OPTIONS as OPTIONS


def start_cli(*words: str) -> subprocess.Popen[str]:
    """The command runs beside the test, as a program of its own."""
    command = [sys.executable, "-m", "pydp2", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_it_shows_how_a_service_is_doing(
    provider_file: Callable[[str], str], cli: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "run.json"
    with pydp2.launch(
        ["1", "2"], provider_file(NUMBERS), workers=1, bind="tcp://127.0.0.1:*", connection=file
    ) as service:
        shown = cli("stats", str(file))
        assert shown.exit_code == 0
        head, line, *table = shown.stdout.splitlines()
        assert head == "No trainer is attached."
        assert line.startswith("no trainer is attached · 1 worker · memory ")
        assert table[0].split() == ["worker", "pid", "files", "samples/s", "busy", "idle", "memory"]
        assert len(table) == 2
        with service.connect(**OPTIONS) as data:
            loop = iter(data)
            next(loop)
            monkeypatch.setenv("PYDP2_CONNECTION", str(file))
            found = json.loads(cli("stats", "--json").stdout)
            assert list(found["jobs"]) == ["default"]
            head, line, *_ = cli("stats").stdout.splitlines()
            assert head.startswith("The trainer "), "it says who waits"
            assert line.startswith("pass 0 · ")
            first = cli("stats", "--seconds", "0.1").stdout.splitlines()[0]
            assert first.partition(", for ")[0] == head.partition(", for ")[0], "from the first look on"


def test_watching_ends_with_the_service(
    provider_file: Callable[[str], str], running: Callable[..., Any], tmp_path: Path
) -> None:
    """Its connection file is gone with it."""
    file = tmp_path / "run.json"
    options: dict[str, Any] = {"workers": 1, "bind": "tcp://127.0.0.1:*", "connection": file}
    with pydp2.launch(["1"], provider_file(NUMBERS), **options):
        watching = running("stats", file, "--watch")
        watching.until("stdout", "no trainer is attached")
    status, _, err = watching.ended()
    assert status == 3
    assert err.startswith("Error: the service has ended") or "no service" in err
    assert "Traceback" not in err


def test_it_shows_who_was_not_let_in(
    provider_file: Callable[[str], str], cli: Callable[..., Result], tmp_path: Path
) -> None:
    file, other = tmp_path / "run.json", tmp_path / "other.json"
    options: dict[str, Any] = {"workers": 1, "bind": "tcp://127.0.0.1:*"}
    with pydp2.launch(["1"], provider_file(NUMBERS), **options, connection=file) as service:
        known = ConnectionFile.read(file)
        ConnectionFile(known.address, {"observer": new_key_pair()}, known.host_address).write(other)
        assert "refused" not in cli("stats", str(file)).stdout
        with pytest.raises(ServiceUnreachable, match="does not know the key"):
            pydp2.stats(other)
        (row,) = service.stats()["refused"]
        assert row["count"] >= 1
        assert row | {"count": 1, "seconds_ago": 0.0} == {
            "port": "trainers", "address": "127.0.0.1", "reason": "without a key that is allowed", "count": 1,
            "seconds_ago": 0.0,
        }  # fmt: skip
        shown = cli("stats", str(file)).stdout.splitlines()
        assert shown[-2].split() == ["refused", "from", "why", "times", "last"]
        assert shown[-1].strip().startswith("port for trainers  127.0.0.1  without a key that is allowed  ")


def test_it_shows_the_hosts_of_a_service(
    provider_file: Callable[[str], str], cli: Callable[..., Result], tmp_path: Path
) -> None:
    file = tmp_path / "run.json"
    options: dict[str, Any] = {"workers": 0, "bind": "tcp://127.0.0.1:*", "connection": file}
    with pydp2.launch(["1", "2"], provider_file(NUMBERS), **options) as service:
        assert cli("stats", str(file)).stdout.splitlines()[1].startswith("no trainer is attached · 0 workers · memory ")
        worker = start_cli("worker", "--connect", str(file), "--workers", "1", "--name", "node7")
        try:
            assert wait_until(lambda: any(each["active"] for each in service.stats()["workers"]))
            shown = cli("stats", str(file)).stdout.splitlines()
            assert "1 worker on 1 host" in shown[1]
            assert shown[2].split()[-1] == "host"
            assert shown[3].split()[-1] == "node7"
            assert shown[4].split()[:3] == ["host", "state", "workers"]
            assert shown[5].split()[:3] == ["node7", "prepared", "1"]
        finally:
            worker.terminate()
            _, said = worker.communicate(timeout=30)
    assert worker.returncode == 0
    assert "pydp2: this host ends: it has left" in said


def test_what_a_host_compressed_is_shown_in_both_sizes() -> None:
    assert _received_text({"received_bytes": 28_500_000, "inflated_bytes": 64_000_000}) == "28 MB (64 MB inflated)"
    assert _received_text({"received_bytes": 28_500_000, "inflated_bytes": 28_500_000}) == "28 MB"


@pytest.mark.parametrize("seconds", ["nan", "inf", "1e999"])
def test_a_time_that_never_ends_is_wrong_usage(seconds: str, cli: Callable[..., Result]) -> None:
    refused = cli("stats", "ipc:///nowhere", "--seconds", seconds)
    assert refused.exit_code == 2
    assert "'--seconds': need a number of seconds from 0.1, have " in refused.stderr


def test_where_no_service_is_the_exit_code_is_3(cli: Callable[..., Result], tmp_path: Path) -> None:
    said = cli("stats", f"ipc://{tmp_path}/nobody")
    assert said.exit_code == 3
    assert said.stderr.startswith("Error: ")
    assert said.stderr.count("\n") == 1


def test_on_a_terminal_watching_fills_the_screen_and_leaves_one_line(
    provider_file: Callable[[str], str], tmp_path: Path
) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    with (
        pydp2.launch(["1", "2"], provider_file(NUMBERS), workers=1) as service,
        service.connect(job="train", **OPTIONS) as data,
    ):
        loop = iter(data)
        next(loop)
        words = [sys.executable, "-m", "pydp2", "stats", service.address, "--watch"]
        with subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL) as watching:
            os.close(theirs)
            seen = ""

            def read_until(text: str) -> None:
                nonlocal seen
                deadline = time.monotonic() + 60.0
                while text not in seen:
                    assert select.select([ours], [], [], max(0.0, deadline - time.monotonic()))[0], seen
                    seen += os.read(ours, 1 << 16).decode()

            try:
                read_until("The trainer ")
                assert "\x1b[?1049h" in seen, "what was on the terminal is kept beside"
                read_until("batches ahead")
                watching.send_signal(signal.SIGINT)
                read_until("\x1b[?1049l")
                seen = seen.partition("\x1b[?1049l")[2]
                read_until(".\r\n")
            finally:
                watching.kill()
    os.close(ours)
