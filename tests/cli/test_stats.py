"""``pydp2 stats``: a look at a service that changes nothing there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

import pydp2
from tests.runs import NUMBERS
from tests.runs import NUMBERS_OPTIONS as OPTIONS


def test_it_shows_how_a_service_is_doing(
    provider_file: Callable[[str], str], cli: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "run.json"
    with pydp2.launch(
        ["1", "2"], provider_file(NUMBERS), workers=1, bind="tcp://127.0.0.1:*", connection=file
    ) as service:
        shown = cli("stats", str(file))
        assert shown.exit_code == 0
        assert shown.stdout.startswith("no trainer is attached · 1 worker · memory ")
        assert shown.stdout.splitlines()[1].split() == ["worker", "pid", "files", "samples/s", "busy", "idle", "memory"]
        assert len(shown.stdout.splitlines()) == 3
        with service.connect(**OPTIONS) as data:
            next(iter(data))
            monkeypatch.setenv("PYDP2_CONNECTION", str(file))
            found = json.loads(cli("stats", "--json").stdout)
            assert list(found["jobs"]) == ["default"]
            assert cli("stats").stdout.startswith("pass 0 · ")


def test_where_no_service_is_the_exit_code_is_3(cli: Callable[..., Result], tmp_path: Path) -> None:
    said = cli("stats", f"ipc://{tmp_path}/nobody")
    assert said.exit_code == 3
    assert said.stderr.startswith("Error: ")
    assert said.stderr.count("\n") == 1
