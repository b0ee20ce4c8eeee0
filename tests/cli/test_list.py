"""``pydp2 list``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from click.testing import Result


def test_the_entries_of_a_list_are_printed_with_the_files_of_its_patterns(
    cli: Callable[..., Result], folder: Path
) -> None:
    (folder / "all.list").write_text("*.txt\nsqlite://key\ns3://bucket/a\n")
    done = cli("list", "all.list")
    assert (done.exit_code, done.stdout) == (0, "a.txt\nb.txt\nsqlite://key\ns3://bucket/a\n")
    assert cli("list", "*.txt", "--count").stdout == "2\n"
    assert cli("list", "[ab].txt", "--root", folder).stdout == "a.txt\nb.txt\n"


def test_a_list_that_is_not_there_is_an_error(cli: Callable[..., Result]) -> None:
    done = cli("list", "none.list")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "the file list none.list is missing" in done.stderr
