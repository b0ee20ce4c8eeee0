"""``pydp2 trace``: a file for Perfetto, and a picture on the terminal."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from click.testing import Result
from pydp2_cli.trace import _lines

import pydp2
from tests.runs import NUMBERS, wait_until


def test_it_writes_a_file_and_draws_a_picture(
    cli: Callable[..., Result], provider_file: Callable[[str], str], tmp_path: Path
) -> None:
    with pydp2.launch(["1"], provider_file(NUMBERS), workers=1) as service:
        assert wait_until(lambda: len(service.stats()["workers"]) == 2)  # the one in reserve comes later
        written = cli("trace", service.address, "out.json", "--seconds", 0.1)
        drawn = cli("trace", service.address, "--seconds", 0.1)
        both = cli("trace", service.address, "both.json", "--seconds", 0.1, "--picture")
    assert written.exit_code == drawn.exit_code == both.exit_code == 0
    assert "trace: out.json (" in written.stderr
    assert not written.stdout
    events = json.loads((tmp_path / "out.json").read_text())["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X"}
    for result in (drawn, both):
        assert "\nworker " in result.stdout
        assert "\nspare worker " in result.stdout
        assert "): idle " in result.stdout
        assert "0.1 s from left to right; · idle" in result.stdout
    assert (tmp_path / "both.json").exists()


def test_wrong_usage_is_told_before_anything_is_recorded(cli: Callable[..., Result]) -> None:
    for arguments, words in (
        (("--seconds", 0), "'--seconds'"),
        (("--seconds", 1e-6), "'--seconds'"),
        (("--seconds", 301), "'--seconds'"),
        (("--seconds", "nan"), "'--seconds'"),
        (("no/out.json",), "there is no folder no; make it first"),
    ):
        result = cli("trace", "ipc:///nowhere", *arguments)
        assert result.exit_code == 2, arguments
        assert words in result.stderr
    assert cli("trace", "ipc:///nowhere", "--seconds", 0.1).exit_code == 3


def test_a_picture_shows_what_took_most_of_each_part() -> None:
    def span(name: str, begin: float, duration: float) -> dict[str, object]:
        return {"ph": "X", "pid": 1, "tid": 0, "name": name, "ts": begin * 1e6, "dur": duration * 1e6}

    traced = {
        "otherData": {"seconds": 4.0},
        "traceEvents": [
            {"ph": "M", "pid": 1, "tid": 0, "name": "process_name", "args": {"name": "w"}},
            span("generator", 0.0, 1.4),
            span("check and pack", 1.4, 0.6),
            span("send", 2.0, 0.2),
            span("idle", 3.5, 0.5),
        ],
    }
    assert _lines(traced, 4) == {"w": ["generator", "check and pack", "", "idle"]}
