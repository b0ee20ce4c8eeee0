"""Hosts compare their files, and name them as they are called there."""

from __future__ import annotations

from pathlib import Path

import pytest

from pydp2.host.list_entries import map_entries, opened_entries, sampled_entries
from pydp2.options.file_list import FileList


def test_the_same_entries_are_looked_at_on_every_host() -> None:
    for count in (1, 5, 32, 1000, 100_000):
        files = FileList.of([f"part-{n}" for n in range(count)])
        chosen = sampled_entries(files)
        assert chosen == sampled_entries(FileList.of([f"other-{n}" for n in range(count)]))
        assert chosen == sorted(set(chosen))
        assert 1 <= len(chosen) <= 32
        assert all(0 <= index < count for index in chosen)
    assert len(sampled_entries(FileList.of([str(n) for n in range(100_000)]))) == 32


@pytest.mark.filterwarnings("ignore:the file list is empty")
def test_of_an_empty_list_there_is_nothing_to_look_at(tmp_path: Path) -> None:
    assert opened_entries(FileList.of([]), tmp_path) == []


def test_an_entry_is_a_file_as_a_worker_opens_it(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("")
    absolute = tmp_path / "also there"
    absolute.write_text("")
    files = FileList.of(["there", "gone", str(absolute), "there?part=1/3", "s3://bucket/key", "a\nb", "x" * 5000])
    found = dict(zip(sampled_entries(files), opened_entries(files, tmp_path), strict=True))
    assert found == {0: 1, 1: 0, 2: 1, 3: 1, 4: 0, 5: 0, 6: 0}


def test_the_beginning_of_an_entry_is_replaced_where_it_is_a_whole_folder() -> None:
    files = FileList.of(["/data/a", "/data/deep/b", "/database/c", "d", "/data"])
    mapped = map_entries(files, {"/data": "/mnt/data", "/data/deep/": "/fast"})
    assert list(mapped) == ["/mnt/data/a", "/fast/b", "/database/c", "d", "/data"]
    assert map_entries(files, {}) is files


def test_the_list_keeps_its_source() -> None:
    files = FileList(b"/data/a", FileList.of(["/data/a"]).offsets, "train.list")
    assert map_entries(files, {"/data": "/x"}).source == "train.list"
