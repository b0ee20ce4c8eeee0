"""Schedules of a store that fails: files of several sizes, readers at the same time, a cache that is too small, a disk
that returns other bytes, and a fetcher that ends in between. ``python -m tests.remote.schedules COUNT FIRST``.
"""

from __future__ import annotations

import random
import sys
import tempfile
import threading
from pathlib import Path

from pydp2.remote.fetcher import Fetcher, FetchLimits
from pydp2.remote.object_cache import BLOCK, ObjectCache

from .fake_store import FakeStore

_PATTERN = random.Random(0).randbytes(1 << 16)


def body(number: int, size: int) -> bytes:
    """The bytes of a file: those of no two places are alike in the same block."""
    repeated = _PATTERN * (size // len(_PATTERN) + 2)
    at = number * 977 % len(_PATTERN)
    data = bytearray(repeated[at : at + size])
    for begin in range(0, size, BLOCK):
        mark = f"<{number}:{begin}>".encode()
        data[begin : begin + len(mark)] = mark[: max(0, size - begin)]
    return bytes(data[:size])


def run_schedule(seed: int) -> None:
    """Run the schedule ``seed``. Raises AssertionError if a reader gets other bytes than those of its file."""
    rng = random.Random(seed)
    files = {
        f"s3://b/{number}": body(number, rng.choice([0, 5, BLOCK, rng.randrange(6 * BLOCK)])) for number in range(3)
    }
    limits = FetchLimits(
        timeout=30.0, first_delay=0.0001, threads=rng.randint(1, 4), ahead_bytes=rng.randint(1, 8) * BLOCK
    )
    size = rng.choice([None, 3 * BLOCK, 1])
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rng.randint(1, 2)):  # another fetch process takes its place
            store = FakeStore(files, seed=rng.randrange(2**32), faults=rng.choice([0.0, 0.2, 0.5]))
            fetcher = Fetcher(ObjectCache(Path(folder), size), lambda _, store=store: store, limits)  # type: ignore[misc]
            errors: list[BaseException] = []
            readers = [
                threading.Thread(target=_read, args=(fetcher, files, random.Random(rng.random()), errors))
                for _ in range(rng.randint(1, 3))
            ]
            for reader in readers:
                reader.start()
            for reader in readers:
                reader.join()
            fetcher.close()
            if errors:
                raise errors[0]
            _damage(Path(folder), rng)


def _read(fetcher: Fetcher, files: dict[str, bytes], rng: random.Random, errors: list[BaseException]) -> None:
    try:
        for url in rng.sample(sorted(files), len(files)):
            session = fetcher.open(url)
            assert session.info.size == len(files[url])
            at = 0
            with session.path.open("rb", buffering=0) as data:
                while at < session.info.size:
                    start, stop = session.need(at, rng.choice([1, BLOCK, 3 * BLOCK]), lambda: None)
                    assert start <= at < stop
                    data.seek(at)
                    assert data.read(stop - at) == files[url][at:stop], (url, at, stop)
                    at = rng.randrange(session.info.size) if rng.random() < 0.1 else stop
                    if rng.random() < 0.03:
                        break  # the reader dies
            session.close()
    except BaseException as error:
        errors.append(error)


def _damage(folder: Path, rng: random.Random) -> None:
    """Change a byte on the disk."""
    if (files := sorted(path for path in folder.rglob("*.data") if path.stat().st_size)) and rng.random() < 0.5:
        path = rng.choice(files)
        with path.open("r+b") as data:
            data.seek(rng.randrange(path.stat().st_size))
            data.write(b"\xff")


if __name__ == "__main__":
    count, first = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    for number in range(first, first + count):
        try:
            run_schedule(number)
        except BaseException:
            print(f"schedule {number} failed")  # noqa: T201
            raise
    print(f"{count} schedules from {first} on are bit-equal")  # noqa: T201
