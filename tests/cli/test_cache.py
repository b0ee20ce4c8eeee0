"""``pydp2 cache``: what it lists, what it finds damaged, what it removes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

import pydp2
from pydp2.server.cache.file_format import CacheEntryWriter

CODE = """
@provider(input_types=[integer_value(100)], cache=CacheType.CACHE_PASS_ON_DISK)
def process(settings, name):
    yield from range(len(name))
"""


@pytest.fixture
def folder(tmp_path: Path, provider_file: Callable[[str], str]) -> Path:
    """A cache with the entries "a", "bbb" and "ccccc", the first of which was used longest ago, and their counts."""
    path = tmp_path / "cache"
    with pydp2.load(["a", "bbb", "ccccc"], provider_file(CODE), batch_size=9, workers=1, cache_dir=path) as data:
        list(data)
    for entry in pydp2.CacheFolder(path).entries():
        then = time.time() - 86400 * (10 - len(entry.file))
        os.utime(entry.path, (then, then))
    return path


def test_entries_are_listed_the_one_used_longest_ago_first(folder: Path, cli: Callable[..., Result]) -> None:
    shown = cli("cache", "ls", "--cache-dir", str(folder))
    assert shown.exit_code == 0
    rows = [line.split() for line in shown.stdout.splitlines()[1:]]
    counts = rows.pop()
    assert [row[1:3] for row in rows] == [["a", "1"], ["bbb", "3"], ["ccccc", "5"]]
    assert counts[1:6] == ["(counts", "of", "3", "files)", "9"]
    assert [row[-2:] for row in rows] == [["9d", "ago"], ["7d", "ago"], ["5d", "ago"]]
    assert all(row[0].endswith("prov.py:process") for row in rows)
    assert f"{folder}: 4 entries, " in shown.stderr


def test_whole_entries_are_verified(folder: Path, cli: Callable[..., Result]) -> None:
    shown = cli("cache", "verify", "--cache_dir", str(folder))
    assert (shown.exit_code, shown.stdout) == (0, "")
    assert shown.stderr == f"{folder}: 4 entries, 0 damaged\n"


def test_damaged_entries_are_named_and_the_exit_code_is_1(folder: Path, cli: Callable[..., Result]) -> None:
    first, second, _ = (entry.path for entry in pydp2.CacheFolder(folder).entries())
    data = bytearray(first.read_bytes())
    data[70] ^= 1  # in its samples
    first.write_bytes(data)
    second.write_bytes(second.read_bytes()[:-1])
    (counts,) = (entry.path for entry in pydp2.CacheFolder(folder).counts())
    counts.write_bytes(counts.read_bytes()[:-1])
    shown = cli("cache", "verify", "--cache_dir", str(folder))
    assert shown.exit_code == 1
    assert sorted(shown.stdout.splitlines()) == sorted(
        [
            f"{first}: the checksum of block 0 is wrong",
            f"{second}: it has {second.stat().st_size} bytes of {second.stat().st_size + 1}",
            f"{counts}: its checksum is wrong",
        ]
    )
    assert shown.stderr == f"{folder}: 4 entries, 3 damaged\n"
    assert "damaged" in cli("cache", "ls", "--cache_dir", str(folder)).stdout  # as far as its head tells


def test_what_was_not_used_for_long_is_removed_and_then_the_rest(folder: Path, cli: Callable[..., Result]) -> None:
    def left() -> list[str]:
        cache = pydp2.CacheFolder(folder)
        return [entry.file for entry in [*cache.entries(), *cache.counts()]]

    shown = cli("cache", "clear", "--cache_dir", str(folder), "--older-than", "8d")
    assert (shown.exit_code, left()) == (0, ["bbb", "ccccc", ""])
    assert f"{folder}: 1 entry removed, " in shown.stderr
    assert cli("cache", "clear", "--cache_dir", str(folder), "--older-than", "8w").exit_code == 0
    assert len(left()) == 3
    assert cli("cache", "clear", "--cache_dir", str(folder)).exit_code == 0
    assert left() == []


@pytest.mark.parametrize("options", [(), ("--older_than", "8w")])
def test_unfinished_files_of_killed_services_are_removed_and_those_of_running_ones_stay(
    folder: Path, cli: Callable[..., Result], options: tuple[str, ...]
) -> None:
    place = next(folder.glob("*/counts")).parent
    left, only = place / ".new-left", folder / ("0" * 24) / ".new-left"
    only.parent.mkdir()
    for path in (left, only):
        path.write_bytes(b"x" * 5000)
    writer = CacheEntryWriter(place)
    try:
        shown = cli("cache", "clear", "--cache_dir", str(folder), *options)
        assert shown.exit_code == 0
        assert " and 2 unfinished files removed, " in shown.stderr
        assert not left.exists()
        assert not only.parent.exists()
        assert writer._path.exists()
        assert "unfinished file" not in cli("cache", "clear", "--cache_dir", str(folder)).stderr
    finally:
        writer.discard()


@pytest.mark.parametrize("command", ["ls", "verify", "clear"])
def test_a_directory_that_was_named_must_be_there(
    command: str, tmp_path: Path, cli: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    for name, what in (("none", "there is none"), ("file", "it is a file")):
        shown = cli("cache", command, "--cache_dir", tmp_path / name)
        assert shown.exit_code == 1
        assert shown.stderr.startswith(
            f"Error: {tmp_path / name} must be the directory of a cache, and {what}; name the"
        )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    shown = cli("cache", command)
    assert shown.exit_code == 0
    assert shown.stderr.startswith(f"{tmp_path / 'xdg' / 'pydp2'}: 0 entries")


@pytest.mark.parametrize("age", ["", "d", "7", "7y", "-1d", "1.5h", "²d"])
def test_an_age_that_cannot_be_is_refused(age: str, tmp_path: Path, cli: Callable[..., Result]) -> None:
    shown = cli("cache", "clear", "--cache_dir", str(tmp_path), "--older_than", age)
    assert shown.exit_code == 2
    assert "must be an age like 30m, 12h, 7d or 2w" in shown.stderr


def test_the_default_is_where_services_put_it(
    tmp_path: Path, cli: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, provider_file: Callable[[str], str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cli("cache", "ls").stderr == f"{tmp_path}/xdg/pydp2: 0 entries, 0 bytes\n"
    with pydp2.load(["a"], provider_file(CODE), batch_size=9, workers=1) as data:
        list(data)
    assert f"{tmp_path}/xdg/pydp2: 2 entries, " in cli("cache", "ls").stderr
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert f"{tmp_path}/.cache/pydp2: 0 entries" in cli("cache", "ls").stderr
