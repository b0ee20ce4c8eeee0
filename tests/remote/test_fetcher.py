"""A fetcher over a store in memory: whatever fails, readers get the bytes of one version, and each block once."""

from __future__ import annotations

import random
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.remote.fetcher import CannotRead, Counters, Fetcher, FetchLimits, Session
from pydp2.remote.object_cache import BLOCK, ObjectCache
from pydp2.remote.store import Failure

from .fake_store import FakeStore
from .schedules import body, run_schedule

ROOT = Path(__file__).parents[2]
URL = "s3://bucket/a.bin"
LIMITS = FetchLimits(timeout=10.0, first_delay=0.0005, threads=4)


def wait() -> None:
    """What a reader does while it waits: nothing."""


class Case:
    """A fetcher over ``store``."""

    def __init__(self, folder: Path, store: FakeStore, limits: FetchLimits = LIMITS, size: int | None = None) -> None:
        self.store = store
        self.fetcher = Fetcher(ObjectCache(folder, size), lambda _: store, limits)

    def read(self, session: Session, offset: int, count: int) -> bytes:
        start, stop = session.need(offset, count, wait)
        assert start <= offset < stop
        with session.path.open("rb", buffering=0) as data:
            data.seek(offset)
            return data.read(min(stop, offset + count) - offset)

    def read_all(self, url: str = URL) -> bytes:
        session, data = self.fetcher.open(url), b""
        while len(data) < session.info.size:
            data += self.read(session, len(data), 1 << 19)
        session.close()
        return data


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    made = Case(tmp_path, FakeStore({URL: body(1, 40 * BLOCK + 3)}))
    yield made
    made.fetcher.close()


def test_a_reader_in_order_makes_few_requests_and_gets_each_byte_once(case: Case) -> None:
    assert case.read_all() == case.store.bodies[URL]
    assert case.fetcher.counters.bytes == 40 * BLOCK + 3
    assert case.fetcher.counters.requests <= 12


class Slow(int):
    """A number in whose addition another thread has its turn."""

    def __radd__(self, other: int) -> int:
        time.sleep(0.0)
        return other + int(self)


def test_no_thread_loses_what_another_one_counts() -> None:
    counters = Counters()

    def count() -> None:
        for _ in range(500):
            counters.add(nbytes=Slow(3))

    threads = [threading.Thread(target=count) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counters.bytes == 9000


def test_readers_at_the_same_time_share_all_requests(case: Case) -> None:
    got: list[bytes] = []
    threads = [threading.Thread(target=lambda: got.append(case.read_all())) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [case.store.bodies[URL]] * 6
    assert case.fetcher.counters.bytes == 40 * BLOCK + 3


def test_a_second_pass_makes_no_request(case: Case) -> None:
    case.read_all()
    before = case.fetcher.counters.requests
    assert case.read_all() == case.store.bodies[URL]
    assert case.fetcher.counters.requests == before


def test_another_fetcher_asks_once_whether_the_copy_still_holds(case: Case, tmp_path: Path) -> None:
    case.read_all()
    again = Case(tmp_path, case.store)
    assert again.read_all() == case.store.bodies[URL]
    assert (again.fetcher.counters.requests, again.fetcher.counters.bytes) == (1, 0)
    again.fetcher.close()


def test_a_small_file_needs_one_request_and_an_empty_one_two(case: Case) -> None:
    case.store.bodies |= {"s3://bucket/small": b"hello", "s3://bucket/empty": b""}
    assert case.read_all("s3://bucket/small") == b"hello"
    assert case.fetcher.counters.requests == 1
    assert case.read_all("s3://bucket/empty") == b""
    assert case.fetcher.counters.requests == 3


def test_a_file_that_changes_is_an_error_that_names_both_versions(case: Case) -> None:
    session = case.fetcher.open(URL)
    case.read(session, 0, 10)
    case.store.bodies[URL] = other = body(2, 40 * BLOCK + 3)
    with pytest.raises(
        CannotRead, match=r"has changed while it is read: it was version .*, and is version .*again"
    ) as it:
        case.read(session, 39 * BLOCK, 10)
    assert it.value.failure is Failure.CHANGED
    assert f"{hash(other)}" in str(it.value)
    session.close()


def test_what_does_not_exist_is_missing_at_once(case: Case) -> None:
    with pytest.raises(CannotRead, match="s3://bucket/none does not exist") as it:
        case.fetcher.open("s3://bucket/none")
    assert it.value.failure is Failure.MISSING
    assert case.fetcher.counters.requests == 1


def test_a_store_without_an_answer_is_given_up_at_the_deadline(tmp_path: Path) -> None:
    case = Case(tmp_path, FakeStore({URL: b"x"}, faults=1.0), FetchLimits(timeout=0.2, first_delay=0.001))
    with pytest.raises(CannotRead, match=r"s3 gives nothing for \d+ s of .* attempts .*the last failure was: 503"):
        case.fetcher.open(URL)
    assert case.fetcher.waits.oldest(time.monotonic() + 60) is None
    case.fetcher.close()


FULL_DISK = """
import sys, threading, time
from pathlib import Path
from tests.remote.fake_store import FakeStore
from tests.remote.schedules import body
from tests.remote.test_fetcher import BLOCK, Case, FetchLimits

disk = Path(sys.argv[1])
(disk / "others").write_bytes(bytes(9 * BLOCK))
urls = [f"s3://bucket/{i}" for i in range(6)]
store = FakeStore({url: body(i, 3 * BLOCK + i) for i, url in enumerate(urls)})
case = Case(disk / "cache", store, FetchLimits(timeout=60.0, first_delay=0.02, threads=4))
case.fetcher._cache._limit = 1 << 40  # as if it had been free when the limit was chosen
got = [case.read_all(url) for url in urls[:2]]
print("copies that nobody has open make room", flush=True)
open_files = [case.fetcher.open(url) for url in urls[2:5]]
reader = threading.Thread(target=lambda: [session.need_all(lambda: None) for session in open_files], daemon=True)
reader.start()
while (wait := case.fetcher.waits.oldest(time.monotonic() + 60)) is None or "is full" not in wait[1]:
    time.sleep(0.01)
print(wait[1], flush=True)
(disk / "others").unlink()
reader.join(30)
assert not reader.is_alive()
for url, session in zip(urls[2:], open_files):
    assert session.path.read_bytes() == store.bodies[url]
assert got == [store.bodies[url] for url in urls[:2]]
print("done")
"""


def test_a_full_disk_is_waited_for_and_copies_that_nobody_reads_make_room(tmp_path: Path) -> None:
    words = (
        f"mount -t tmpfs -o size=14m none {tmp_path} && exec {sys.executable} -c {shlex.quote(FULL_DISK)} {tmp_path}"
    )
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    if not shutil.which("unshare") or subprocess.run([*command, f"mount -t tmpfs none {tmp_path}"]).returncode:
        pytest.skip("no namespaces for users")
    done = subprocess.run([*command, words], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1:] == ["done"], done.stderr
    assert f"the disk of {tmp_path}/cache is full" in done.stdout


def test_a_file_larger_than_the_cache_is_read_in_little_room(tmp_path: Path) -> None:
    limits = FetchLimits(timeout=10.0, first_delay=0.001, threads=4, ahead_bytes=4 * BLOCK)
    case = Case(tmp_path, FakeStore({URL: body(3, 60 * BLOCK)}), limits, size=12 * BLOCK)
    session, at, most = case.fetcher.open(URL), 0, 0
    while at < session.info.size:
        part = case.read(session, at, BLOCK)
        assert part == case.store.bodies[URL][at : at + len(part)]
        at += len(part)
        most = max(most, session.path.stat().st_blocks * 512)
    assert most < 60 * BLOCK
    session.close()
    case.fetcher.close()


def test_a_whole_file_is_there_after_need_all(case: Case) -> None:
    session = case.fetcher.open(URL)
    session.need_all(wait)
    assert session.path.read_bytes() == case.store.bodies[URL]
    session.close()


@given(st.integers(0, 2**32))
def test_schedules_of_faults_are_bit_equal(seed: int) -> None:
    run_schedule(seed)


def test_reads_at_random_places_are_those_of_the_file(case: Case) -> None:
    session, rng = case.fetcher.open(URL), random.Random(5)
    for _ in range(200):
        at = rng.randrange(session.info.size)
        part = case.read(session, at, rng.randrange(1, 100_000))
        assert part == case.store.bodies[URL][at : at + len(part)]
    session.close()
