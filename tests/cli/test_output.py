"""What commands write to stderr beside their results."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

Run = Callable[..., Result]


@pytest.fixture
def events(cli: Run, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, list[dict[str, Any]]]]:
    """``events("count", …)`` returns the exit code of a command, and the lines of its log of JSON."""
    monkeypatch.setenv("PYDP2_LOG_FORMAT", "json")

    def run(*arguments: str) -> tuple[int, list[dict[str, Any]]]:
        done = cli(*arguments)
        return done.exit_code, [json.loads(line) for line in done.stderr.splitlines()]

    return run


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("serve", "no.list", "--provider", "x.y"), 1, "the file list no.list is missing"),
        (("serve", "--provdr", "x"), 2, "No such option '--provdr'"),
        (("serve", "no.list", "--provider", "x.y", "--hosts", "2"), 2, "--hosts is for --engine ray"),
    ],
)
def test_an_error_that_ends_a_command_is_an_event_of_a_json_log(
    events: Callable[..., tuple[int, list[dict[str, Any]]]], arguments: tuple[str, ...], code: int, message: str
) -> None:
    status, (event,) = events(*arguments)
    assert status == code
    assert (event["event"], event["level"]) == ("command_failed", "error")
    assert event["message"].startswith(message)


def test_a_warning_is_an_event_of_a_json_log(
    events: Callable[..., tuple[int, list[dict[str, Any]]]], folder: Path
) -> None:
    (folder / "train.list").write_text("")
    status, (event,) = events("count", "train.list", "--provider", "numbers_provider.process")
    assert status == 0
    assert (event["event"], event["level"]) == ("command_warning", "warning")
    assert event["message"] == "the file list train.list is empty: a pass over it has no samples"


@pytest.mark.parametrize("command", [("serve", "no.list", "--provider", "x.y"), ("worker", "--connect", "no.json")])
def test_a_form_of_the_log_that_is_none_is_wrong_usage(
    cli: Run, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYDP2_LOG_FORMAT", "xml")
    done = cli(*command)
    assert done.exit_code == 2
    assert "(env var: 'PYDP2_LOG_FORMAT'): 'xml' is not one of 'text', 'json'." in " ".join(done.stderr.split())
    assert cli(*command, "--log-format", "text").exit_code != 2


def test_text_of_an_error_comes_behind_its_mark(cli: Run) -> None:
    assert cli("serve", "no.list", "--provider", "x.y").stderr.startswith("Error: the file list no.list is missing")
