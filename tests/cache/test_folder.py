"""A directory that the cache shares with files of its user: only what pydp2 has named is listed, and removed."""

from __future__ import annotations

from pathlib import Path

import pytest

import pydp2
from pydp2.errors import OptionError
from pydp2.server.cache.folder import count_files, entry_files, prepare_folder, remove_leftovers

KEY, NAME = "0123456789abcdef01234567", "fedcba9876543210fedcba98"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("photos/me.jpg", "photos/counts", "photos/.new-thesis", f"{KEY}0/{NAME}", f"{NAME}/notes.txt"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    return tmp_path


def test_files_of_the_user_are_no_entries(folder: Path) -> None:
    place = prepare_folder(folder, KEY)
    for name in (NAME, "counts", ".new-left"):
        (place / name).write_text("pydp2's")
    assert [each.path for each in entry_files(folder)] == [place / NAME]
    assert [each.path for each in count_files(folder)] == [place / "counts"]
    remove_leftovers(folder)
    assert not (place / ".new-left").exists()
    assert (folder / "photos/.new-thesis").exists()


def test_a_directory_of_the_user_stays_in_his_backup(folder: Path, tmp_path: Path) -> None:
    prepare_folder(folder, KEY)
    assert not (folder / "CACHEDIR.TAG").exists()
    prepare_folder(tmp_path / "own", KEY)
    assert (tmp_path / "own" / "CACHEDIR.TAG").exists()


def test_a_cache_that_is_cleared_leaves_files_of_the_user(folder: Path) -> None:
    before = sorted(folder.rglob("*"))
    found = pydp2.CacheFolder(folder)
    assert not [*found.entries(), *found.counts()]
    assert sorted(folder.rglob("*")) == before


def test_an_empty_name_is_not_the_working_directory() -> None:
    with pytest.raises(OptionError, match="must have a name, got ''"):
        pydp2.CacheFolder("")
