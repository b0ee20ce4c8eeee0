"""Blocks of remote files on disk, of several processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.remote.object_cache import BLOCK, CachedFile, ObjectCache, read_header
from pydp2.remote.store import ObjectInfo

URL = "s3://bucket/a.bin"


def block(number: int, size: int = BLOCK) -> bytes:
    return bytes([number % 251 + 1]) * size


@pytest.fixture
def cache(tmp_path: Path) -> ObjectCache:
    return ObjectCache(tmp_path / "cache", None)


def filled(cache: ObjectCache, url: str = URL, size: int = 2 * BLOCK + 5, version: str = "v1") -> CachedFile:
    file = cache.open(url, ObjectInfo(size, version))
    for number in range(file.blocks):
        file.put(number, block(number, file.size_of(number)))
    return file


@given(st.integers(0, 4 * BLOCK), st.sets(st.integers(0, 4)))
def test_a_block_is_there_once_it_was_put(
    tmp_path_factory: pytest.TempPathFactory, size: int, chosen: set[int]
) -> None:
    folder = tmp_path_factory.mktemp("cache")
    try:
        info = ObjectInfo(size, "v")
        for again in range(2):
            cache = ObjectCache(folder, None)
            file = cache.open(URL, info)
            there = {number for number in chosen if number < file.blocks}
            if not again:
                for number in there:
                    file.put(number, block(number, file.size_of(number)))
            assert {number for number in range(file.blocks) if file.has(number)} == there
            data = file.path.read_bytes()
            assert len(data) == size
            for number in there:
                assert data[number * BLOCK : (number + 1) * BLOCK] == block(number, file.size_of(number))
            cache.close(file)
    finally:
        shutil.rmtree(folder)


def test_a_block_that_the_disk_has_changed_is_not_given_away(cache: ObjectCache) -> None:
    cache.close(filled(cache))
    file = cache.open(URL, ObjectInfo(2 * BLOCK + 5, "v1"))
    with file.path.open("r+b") as data:
        data.seek(BLOCK + 7)
        data.write(b"\0")
    assert [file.has(number) for number in range(3)] == [True, False, True]
    file.put(1, block(1))
    assert file.has(1)
    cache.close(file)


def test_a_data_file_that_was_cut_off_has_only_what_is_left(cache: ObjectCache) -> None:
    file = filled(cache)
    cache.close(file)
    os.truncate(file.path, BLOCK + 1)
    file = cache.open(URL, ObjectInfo(2 * BLOCK + 5, "v1"))
    assert [file.has(number) for number in range(3)] == [True, False, False]
    cache.close(file)


def test_an_index_that_is_damaged_is_made_anew(cache: ObjectCache) -> None:
    file = filled(cache)
    cache.close(file)
    index = file.path.with_suffix(".index")
    index.write_bytes(b"x" * 100)
    assert read_header(index) is None
    file = cache.open(URL, ObjectInfo(2 * BLOCK + 5, "v1"))
    assert not any(map(file.has, range(3)))
    cache.close(file)


def test_versions_of_one_url_are_files_of_their_own(cache: ObjectCache) -> None:
    assert not cache.knows(URL)
    first, second = filled(cache), cache.open(URL, ObjectInfo(2 * BLOCK + 5, "v2"))
    assert cache.knows(URL)
    assert not second.has(0)
    assert first.has(0)
    cache.close(first)
    cache.close(second)


def test_what_was_not_used_for_longest_is_removed_first(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path, 5 << 20)
    paths = []
    for number in range(3):
        file = filled(cache, f"{URL}{number}", 2 * BLOCK)
        paths.append(file.path)
        cache.close(file)
        os.utime(file.path.with_suffix(".index"), (number, number))
    cache.add(2 * BLOCK)
    assert [path.exists() for path in paths] == [False, False, True]


def test_what_is_open_is_not_removed_and_its_unwanted_blocks_are(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path, 1 << 20)
    file = filled(cache, size=4 * BLOCK)
    excess = cache.add(BLOCK)
    assert excess >= 3 * BLOCK
    assert file.trim({2}) == 3 * BLOCK
    assert [file.has(number) for number in range(4)] == [False, False, True, False]
    assert file.path.stat().st_blocks * 512 < 2 * BLOCK
    cache.close(file)


HOLD = """
import sys
from pathlib import Path
from pydp2.remote.object_cache import BLOCK, ObjectCache
from pydp2.remote.store import ObjectInfo

file = ObjectCache(Path(sys.argv[1]), None).open("s3://bucket/a.bin", ObjectInfo(2 * BLOCK + 5, "v1"))
for number in range(3):
    file.put(number, b"x" * file.size_of(number))
assert file.try_lock(0, 0)
print("held", flush=True)
sys.stdin.read()
"""


def test_what_another_process_has_open_is_neither_removed_nor_trimmed_nor_fetched_twice(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        cache = ObjectCache(tmp_path, None)
        entry = next(cache.entries())
        assert not cache.remove(entry)
        file = cache.open(URL, ObjectInfo(2 * BLOCK + 5, "v1"))
        assert all(map(file.has, range(3))), "it reads what the other one has written"
        assert file.trim(set()) == 0
        assert not file.try_lock(0, 2)
        assert file.try_lock(1, 2)
        file.unlock(1, 2)
        other.kill()
        other.wait()
        assert file.try_lock(0, 2), "a killed process holds no lock"
        assert file.trim({0}) > 0
        cache.close(file)
        assert cache.remove(entry)
        assert not cache.knows(URL)
