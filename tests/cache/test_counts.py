"""Counts of samples on disk: what is remembered of which file, and what is not believed."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pydp2.data.schema.input_types import Slots, integer_value
from pydp2.server.cache import counts as module
from pydp2.server.cache.counts import COUNT, CountsLoaded, CountStore, StampBefore, read_counts
from pydp2.server.cache.disk_messages import CacheNotice, CacheSource
from pydp2.server.cache.file_format import DamagedEntry
from pydp2.server.cache.folder import remove_leftovers

from ..runs import wait_until

OLD = time.time() - 1000


class Place:
    """A folder with files, and stores over them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cache = folder / "cache"
        self.stores: list[CountStore] = []

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)
        os.utime(self.folder / name, (OLD, OLD))

    def source(self, files: Sequence[str], key: str = "a1") -> CacheSource:
        return CacheSource(key, "prov.process", files, str(self.folder), Slots((integer_value(3),)), False)

    def open(self, files: Sequence[str], key: str = "a1") -> tuple[CountStore, dict[str, int], list[str]]:
        """A store, what it remembers of the files by name, and what it has to say."""
        store = CountStore(self.cache, self.source(files, key))
        self.stores.append(store)
        store.load()
        said: list[Any] = []
        assert wait_until(
            lambda: said.extend(store.take_answers()) or any(isinstance(a, CountsLoaded) and a.is_last for a in said)
        )
        found = {
            files[file]: samples
            for loaded in said
            if isinstance(loaded, CountsLoaded)
            for file, samples in zip(loaded.files.tolist(), loaded.counts["samples"].tolist(), strict=True)
        }
        return store, found, notices(said)

    def remember(self, files: Sequence[str], samples: dict[str, int], key: str = "a1") -> list[str]:
        """Remember so many samples of these, as a service does that has read them."""
        store, _, said = self.open(files, key)
        for name, n in samples.items():
            store.end(store.begin(files.index(name)), count_of(n))
        store.write()
        store.close()
        self.stores.remove(store)
        return said + notices(list(store._answers))


def count_of(samples: int) -> Any:
    return np.array((samples, 0, samples, True, False), COUNT)


def notices(answers: list[Any]) -> list[str]:
    return [each.text for each in answers if isinstance(each, CacheNotice)]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    time.sleep(0.03)  # the change time of what was written before is not a moment ago
    made = Place(tmp_path)
    yield made
    for store in made.stores:
        store.close()


def settle(place: Place, **files: str) -> None:
    for name, text in files.items():
        place.write(name, text)
    time.sleep(0.03)  # a file that changed a moment ago might change again, and look the same


def test_a_count_holds_for_the_file_that_was_counted_and_for_no_other(place: Place) -> None:
    settle(place, a="1", b="2", c="3")
    place.remember(["a", "b", "c"], {"a": 1, "b": 2, "c": 3})
    assert place.open(["a", "b", "c"])[1] == {"a": 1, "b": 2, "c": 3}
    settle(place, b="other")
    assert place.open(["c", "b"])[1] == {"c": 3}
    assert place.open(["a", "b"], key="b2")[1] == {}


def test_a_file_whose_time_of_change_lies_ahead_is_remembered_unless_it_changes(place: Place) -> None:
    settle(place, a="1", b="2")
    ahead = time.time() + 1000
    for name in "ab":
        os.utime(place.folder / name, (ahead, ahead))
    time.sleep(0.03)
    place.remember(["a", "b"], {"a": 1, "b": 2})
    settle(place, b="3")
    assert place.open(["a", "b"])[1] == {"a": 1}


def test_an_entry_that_names_no_file_is_known_by_its_text(place: Place) -> None:
    place.remember(["http://x/1", "http://x/2"], {"http://x/2": 7})
    assert place.open(["http://x/1", "http://x/2"])[1] == {"http://x/2": 7}


def test_equal_entries_are_kept_apart(place: Place) -> None:
    files = ["key", "key"]
    store, known, _ = place.open(files)
    assert known == {}
    store.end(store.begin(1), count_of(5))
    store.write()
    store.close()
    place.stores.clear()
    again, _, _ = place.open(files)
    (row,) = read_counts(again._path)[1]
    assert row["name"].decode() == again._names.name(1) != again._names.name(0)


@given(
    st.lists(st.sampled_from(["begin", "change", "end first", "end last"]), min_size=2, max_size=8),
    st.sampled_from(["fast", "slow"]),
)
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_that_changes_while_it_is_read_is_not_remembered_that_time(
    place: Place, steps: list[str], disk: str
) -> None:
    """What holds is the last count whose reading began and ended with the file as it is; also where several jobs read
    it, and where the thread comes to the disk when all is over."""
    key, version, expected = os.urandom(6).hex(), 0, {}
    settle(place, a="")
    store, _, _ = place.open(["a"], key)
    disk_goes_on = threading.Event()
    if disk == "slow":
        store._enqueue(disk_goes_on.wait)
    readings: list[tuple[StampBefore, int]] = []
    for count, step in enumerate(steps):
        if step == "change":
            version, expected = version + 1, {}
            settle(place, a="1" * version)
        elif step == "begin":
            readings.append((store.begin(0), version))
        elif readings:
            before, then = readings.pop(0 if step == "end first" else -1)
            store.end(before, count_of(count))
            expected = {"a": count} if then == version else expected
        if disk == "fast":
            assert wait_until(lambda: not store._steps and store._step_began is None)
    store.write()
    disk_goes_on.set()
    store.close()
    place.stores.remove(store)
    assert place.open(["a"], key)[1] == expected


@given(st.lists(st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 1 << 40), max_size=8), max_size=4))
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_remembered_last_of_each_file_is_what_is_found(place: Place, writes: list[dict[str, int]]) -> None:
    files = [f"key-{name}" for name in "abcdefgh"]
    key = os.urandom(6).hex()
    expected: dict[str, int] = {}
    for each in writes:
        samples = {f"key-{name}": count for name, count in each.items()}
        place.remember(files, samples, key)
        expected |= samples
    assert place.open(files, key)[1] == expected


class Watched(list[str]):
    """A list of files that knows which were looked up in it."""

    def __init__(self, files: Sequence[str]) -> None:
        super().__init__(files)
        self.seen: set[int] = set()

    def __getitem__(self, file: Any) -> Any:
        self.seen.add(file)
        return super().__getitem__(file)


def test_nothing_is_asked_of_the_disk_about_files_that_nobody_counted_or_reads(place: Place) -> None:
    settle(place, a="1", b="2", c="3")
    files = Watched("abc")
    store, _, _ = place.open(files)
    assert files.seen == set()
    store.begin(1)
    assert wait_until(lambda: files.seen == {1})


def test_a_file_that_was_touched_is_remembered_with_the_same_count(place: Place) -> None:
    settle(place, a="1")
    place.remember(["a"], {"a": 1})
    for ahead in (1, 2):
        os.utime(place.folder / "a", (OLD + ahead, OLD + ahead))
        time.sleep(0.03)
        assert place.open(["a"])[1] == {}
        place.remember(["a"], {"a": 1})
        assert place.open(["a"])[1] == {"a": 1}


def test_a_count_that_is_remembered_already_is_not_written_again(place: Place) -> None:
    settle(place, a="1")
    place.remember(["a"], {"a": 1})
    path = next(place.cache.glob("*/counts"))
    written = path.stat().st_ino
    place.remember(["a"], {"a": 1})
    assert path.stat().st_ino == written
    place.remember(["a"], {"a": 2})
    assert path.stat().st_ino != written


def test_counts_that_a_service_uses_for_weeks_are_as_old_as_its_last_day(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.remember(["key"], {"key": 1})
    path = next(place.cache.glob("*/counts"))
    store, _, _ = place.open(["key"])
    os.utime(path, (OLD, OLD))
    store.write()
    assert wait_until(lambda: not store._steps and store._step_began is None)
    assert path.stat().st_mtime == pytest.approx(OLD)  # it is noted once a day
    monkeypatch.setattr(module, "_DAY_SECONDS", 0.0)
    store.write()
    assert wait_until(lambda: path.stat().st_mtime > OLD + 500)


@pytest.mark.parametrize("damage", ["cut", "bit", "other", "empty"])
def test_damaged_counts_are_said_and_replaced(place: Place, damage: str) -> None:
    settle(place, a="1")
    place.remember(["a"], {"a": 1})
    path = next(place.cache.glob("*/counts"))
    data = bytearray(path.read_bytes())
    data[-10] ^= 1
    path.write_bytes({"cut": data[:-1], "bit": data, "other": b"x" * 100, "empty": b""}[damage])
    with pytest.raises(DamagedEntry):
        read_counts(path)
    _, known, said = place.open(["a"])
    assert known == {}
    assert len(said) == 1
    assert f"{path}, which has counts of samples, cannot be used: " in said[0]
    place.remember(["a"], {"a": 2})
    assert place.open(["a"])[1:] == ({"a": 2}, [])


def test_a_folder_that_cannot_be_written_is_said_once(place: Place) -> None:
    place.cache.write_text("no folder")
    store, known, _ = place.open(["key"])
    assert known == {}
    for _ in range(2):
        store.end(store.begin(0), count_of(1))
        store.write()
    store.close()
    place.stores.clear()
    (said,) = notices(list(store._answers))
    assert said.startswith(f"the counts of samples cannot be remembered in {place.cache}: ")


def test_a_service_that_keeps_the_lock_is_not_waited_for_for_ever(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LOCK_SECONDS", 0.05)
    place.remember(["key"], {"key": 1})
    lock = os.open(next(place.cache.glob("*/")), os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        said = place.remember(["key"], {"key": 2})
        assert "cannot be remembered" in said[0]
    finally:
        os.close(lock)
    assert place.open(["key"])[1] == {"key": 1}


def test_a_service_that_starts_just_then_does_not_remove_the_counts_that_another_writes(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start_another(new: Path, target: Path) -> Path:
        remove_leftovers(place.cache)
        return rename(new, target)

    rename, key = Path.rename, "a1" * 12
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", start_another)
        assert place.remember(["key"], {"key": 7}, key) == []
    assert place.open(["key"], key)[1] == {"key": 7}
