"""``pydp2 page``: a service that runs, shown in a browser."""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

import pydp2
from pydp2.page.history import require_place
from tests.runs import NUMBERS

pytest.importorskip("uvicorn")


def test_it_prints_the_url_of_a_page_and_keeps_what_it_saw(
    provider_file: Callable[[str], str], running: Callable[..., Any], tmp_path: Path
) -> None:
    history = tmp_path / "history.json"
    with pydp2.launch(["1"], provider_file(NUMBERS), workers=1) as service:
        page = running("page", service.address, "--history", history)
        url = page.until("stdout", "\n").removeprefix("page: ").strip()
        with urllib.request.urlopen(url, timeout=10) as answer:
            assert answer.status == 200
        page.process.terminate()
        assert page.ended()[0] == 0
        assert history.exists()


@pytest.mark.parametrize("wrong", ["here", "127.0.0.1:99999", "127.0.0.1:"])
def test_an_address_that_is_none_is_wrong_usage(cli: Callable[..., Result], wrong: str) -> None:
    result = cli("page", "ipc:///nowhere", "--listen", wrong)
    assert result.exit_code == 2
    assert "'--listen': listen must be HOST:PORT with a port below 65536" in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("/no/folder/h.json", "there is no folder /no/folder; make it first"),
        ("/proc/h.json", "/proc/h.json cannot be written: "),
        ("/dev/full", "/dev/full cannot be written: it is no regular file; name another file"),
        ("pipe", "pipe cannot be written: it is no regular file; name another file"),
        ("train.list", "train.list cannot be written: it is another file than a history, or a damaged one; name "),
    ],
)
def test_a_history_that_cannot_be_kept_is_wrong_usage(
    cli: Callable[..., Result], file: str, words: str, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "train.list").write_text("a.txt\n")
    (tmp_path / "new.json").touch()  # it has nothing to lose
    require_place(tmp_path / "new.json")
    result = cli("page", "ipc:///nowhere", "--history", file)
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.split())
    assert {path.name for path in tmp_path.iterdir()} == {"pipe", "train.list", "new.json"}
    assert (tmp_path / "train.list").read_text() == "a.txt\n"
