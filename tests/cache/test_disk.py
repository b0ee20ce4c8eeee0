"""The cache on disk as a service uses it: what it keeps, how many bytes that takes, what goes first."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pydp2.data.columns.columns import Columns
from pydp2.data.schema.input_types import Slots, integer_value
from pydp2.order.sample_source import SampleRun
from pydp2.server.cache import disk as module
from pydp2.server.cache import folder as cache_folder
from pydp2.server.cache.disk import DiskCache
from pydp2.server.cache.disk_messages import CacheNotice, CacheSource, DiskHit, DiskMiss, OfferSettled
from pydp2.server.cache.file_format import CacheEntryReader

from ..runs import wait_until

SLOTS = Slots((integer_value(1 << 30),))
ROWS = 25_000  # of a file, 4 bytes each
LIMIT = 1_000_000
DAY = 86_400


class User:
    """A service that uses a cache: the files of its list are no files on this machine."""

    def __init__(self, folder: Path, key: str, limit: int | None) -> None:
        files = [f"http://x/{key}{number}" for number in range(20)]
        self.folder = folder / (key * 24)
        self.disk = DiskCache(folder, CacheSource(key * 24, "p.process", files, ".", SLOTS, False), limit)
        self.notices: list[str] = []

    def answer(self, *kinds: type) -> Any:
        """The next answer of one of these kinds."""
        found: list[Any] = []

        def has_come() -> bool:
            answers = self.disk.take_answers()
            self.notices += [each.text for each in answers if isinstance(each, CacheNotice)]
            found.extend(each for each in answers if isinstance(each, kinds))
            return bool(found)

        assert wait_until(has_come)
        return found[0]

    def entry(self, file: int) -> Path:
        return self.folder / self.disk._names.name(file)

    def looks_up(self, file: int) -> DiskHit | DiskMiss:
        self.disk.look_up(file)
        found: DiskHit | DiskMiss = self.answer(DiskHit, DiskMiss)
        return found

    def begins_to_write(self, file: int, rows: int = ROWS) -> tuple[int, ...]:
        found = self.looks_up(file)
        assert isinstance(found, DiskMiss)
        assert found.stamp is not None
        columns = Columns(SLOTS, rows, [[np.arange(rows, dtype=np.int32)]])
        assert self.disk.offer(
            file, found.stamp, SampleRun(columns, 0, rows, np.arange(rows), np.full(rows, 4), None), []
        )
        return found.stamp

    def reads(self, file: int) -> bool:
        """Have a pass read ``file``. Return True if it was there, otherwise it is written."""
        if isinstance(self.looks_up(file), DiskHit):
            return True
        self.disk.finish_file(file, self.begins_to_write(file))
        self.answer(OfferSettled)
        return False


Users = Callable[..., User]


@pytest.fixture
def user(tmp_path: Path) -> Iterator[Users]:
    """Makes services that share a cache, which are closed in the end."""
    made: list[User] = []

    def make(key: str = "a", limit: int | None = LIMIT) -> User:
        made.append(User(tmp_path, key, limit))
        return made[-1]

    yield make
    for each in made:
        each.disk.close()


def bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*/*"))


def count_at_will(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is busy may take long for a count of few entries."""
    monkeypatch.setattr(module, "_COUNT_PAUSE", 0)


def test_services_that_share_a_directory_keep_to_the_limit_together(
    tmp_path: Path, user: Users, monkeypatch: pytest.MonkeyPatch
) -> None:
    count_at_will(monkeypatch)
    users = [user(key) for key in "abcd"]
    for each in users:
        each.looks_up(19)  # each has begun before the others write
    for file in range(9):
        for each in users:
            if each.disk.accepts_offers:
                each.reads(file)
    assert 0.8 * LIMIT < bytes_in(tmp_path) <= LIMIT


def test_what_another_service_has_not_finished_yet_counts(
    tmp_path: Path, user: Users, monkeypatch: pytest.MonkeyPatch
) -> None:
    count_at_will(monkeypatch)
    monkeypatch.setattr(module, "BLOCK_BYTES", 1)
    one, other = user("a"), user("b")
    one.looks_up(19)
    other.begins_to_write(0, 200_000)
    assert wait_until(lambda: bytes_in(tmp_path) > 800_000)
    for file in range(5):
        if one.disk.accepts_offers:
            one.reads(file)
    assert 0.8 * LIMIT < bytes_in(tmp_path) <= LIMIT
    assert len(one.notices) == 1
    assert "is full at 1000000 bytes" in one.notices[0]


def test_a_full_cache_is_not_counted_for_every_entry_that_is_written(
    tmp_path: Path, user: Users, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = user("a")
    for file in range(9):
        before.reads(file)
    counts: list[Path] = []

    def used_bytes(folder: Path, progress: Callable[[], None]) -> int:
        counts.append(folder)
        return real(folder, progress)

    real = cache_folder.used_bytes
    monkeypatch.setattr(cache_folder, "used_bytes", used_bytes)
    monkeypatch.setattr(module, "_COUNT_PAUSE", 1e9)  # as where counting takes long
    after = user("b")
    for file in range(9):
        after.reads(file)
    assert after.disk.files_written == 9
    assert bytes_in(tmp_path) <= LIMIT
    assert len(counts) == 2  # at the start, and when the oldest had to be found


def test_an_entry_that_another_service_uses_meanwhile_is_not_the_oldest_any_more(tmp_path: Path, user: Users) -> None:
    before = user("a")
    for file in range(9):
        before.reads(file)
        # Set apart: the clock of a file system ticks, and on a busy machine two entries may be of one tick.
        last_used = time.time() - DAY + file
        os.utime(before.entry(file), (last_used, last_used))
    assert before.disk.files_written == 9, before.notices
    after = user("b")
    after.reads(0)  # removes the first, and knows which are the next
    third = user("a")
    assert third.reads(1), third.notices
    after.reads(1)
    assert [isinstance(third.looks_up(file), DiskHit) for file in range(4)] == [False, True, False, True]


@pytest.mark.parametrize("failing", [1, 2])
def test_a_disk_that_tells_only_on_closing_that_it_is_full_costs_the_entry_alone(
    tmp_path: Path, user: Users, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """As a network file system does. A descriptor that could not be closed is gone nevertheless."""
    one = user(limit=None)
    assert not one.reads(0)
    closed: list[int] = []

    def close(file: int) -> None:
        of_entry = tmp_path in Path(f"/proc/self/fd/{file}").readlink().parents
        real(file)
        closed.extend([file] if of_entry else [])
        if of_entry and len(closed) == failing:
            raise OSError(errno.EDQUOT, "Disk quota exceeded")

    real = os.close
    with monkeypatch.context() as patch:
        patch.setattr(os, "close", close)
        stamp = one.begins_to_write(1)
        one.disk.finish_file(1, stamp)
        one.answer(OfferSettled)
    assert len(closed) == 2  # a copy, and the file itself
    assert one.reads(0)
    assert list(tmp_path.glob("*/.new-*")) == []
    if failing == 1:
        assert not one.entry(1).exists()
        assert "Disk quota exceeded; the pass goes on" in one.notices[0]


def date(folder: Path, days: float) -> None:
    """Have all entries used so many days from now."""
    then = time.time() + days * DAY
    for each in cache_folder.entry_files(folder):
        os.utime(each.path, (then, then))


def test_entries_whose_time_lies_far_ahead_are_the_first_to_go(tmp_path: Path, user: Users) -> None:
    before = user("a")
    for file in range(9):
        before.reads(file)
    date(tmp_path, -1)
    ahead = before.entry(5)
    os.utime(ahead, (time.time() + 365 * DAY,) * 2)
    after = user("b")
    after.reads(0)
    assert after.disk.files_written == 1
    assert not ahead.exists()
    for file in range(1, 9):
        after.reads(file)
    assert after.disk.files_written == 9


def test_the_last_use_of_an_entry_is_noted_at_most_once_a_day(
    tmp_path: Path, user: Users, monkeypatch: pytest.MonkeyPatch
) -> None:
    def last_used() -> int:
        (entry,) = cache_folder.entry_files(tmp_path)
        return entry.last_used

    one = user()
    one.reads(0)
    first = last_used()
    assert all(one.reads(0) for _ in range(3))
    assert last_used() == first
    monkeypatch.setattr(module, "_DAY_NS", 0)
    assert wait_until(lambda: one.reads(0) and last_used() > first)
    date(tmp_path, 40)
    assert one.reads(0)
    assert last_used() < (time.time() + DAY) * 1e9


def test_services_that_use_the_same_entries_verify_each_once(user: Users, monkeypatch: pytest.MonkeyPatch) -> None:
    verified: list[CacheEntryReader] = []

    def verify(reader: CacheEntryReader, progress: Callable[[], None]) -> None:
        verified.append(reader)
        real(reader, progress)

    real = CacheEntryReader.verify
    monkeypatch.setattr(CacheEntryReader, "verify", verify)
    user("a").reads(0)
    users = [user("a"), user("a")]
    for _ in range(5):
        for each in users:
            assert each.reads(0)
    assert len(verified) <= 3  # the first one once more, because the other has noted its use
