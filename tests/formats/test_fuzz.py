"""Damaged files and claims of lengths: refused, and within a bound of memory. ``python -m tests.formats.fuzz`` plays
many more."""

from __future__ import annotations

import gzip
import io
import struct
import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from pydp2.errors import FormatError
from pydp2.formats import comma, dmlc_recordio, idx, libsvm, lines, paddle_recordio

from .fuzz import LIMIT, Kind, Played, kinds, play, rounds

KINDS = kinds()
TRACED_HERE = [name for name, kind in KINDS.items() if not kind.has_threads]
TRACED_IN_A_PROGRAM = [name for name, kind in KINDS.items() if kind.has_threads]
SLOW = {"zarr": 40}
"""Number of files of kinds that take long."""
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.parametrize("name", TRACED_HERE)
def test_a_whole_file_is_read(name: str) -> None:
    kind = KINDS[name]
    assert all(play(kind, data).whole for data in kind.whole_files())


@pytest.mark.parametrize("name", TRACED_HERE)
def test_a_damaged_file_is_read_or_refused_within_its_memory(name: str) -> None:
    became = [(number, became) for number, _, became in rounds(name, KINDS[name], 1, 0, SLOW.get(name, 200))]
    assert [each for each in became if not isinstance(each[1], Played)] == []
    assert any(not each.whole for _, each in became if isinstance(each, Played))


def _large(name: str) -> bytes:
    """A file whose content is several MB."""
    file = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, 3 << 20, np.uint8)
    records = [noise.tobytes(), bytes(3 << 20)]
    if name.startswith("idx"):
        idx.write(file, noise.view(np.int32).reshape(-1, 16))
        return gzip.compress(file.getvalue(), 1) if "gzip" in name else file.getvalue()
    if name == "csv":
        return b"1,2,3,4,5,6,7,8\n" * 50_000
    if name == "one line of csv":
        return b"1," * 500_000 + b"2\n"
    if name == "one line of libsvm":
        return b"1" + b"".join(b" %d:1" % (100_000 - i) for i in range(100_000)) + b"\n"
    if name == "dmlc":
        dmlc_recordio.write(file, [*records, dmlc_recordio.MAGIC * (1 << 14)])
        return file.getvalue()
    layout, _, packing = name.partition(" ")
    paddle_recordio.write(file, records, layout=layout, packing=packing)  # type: ignore[arg-type]
    return file.getvalue()


READ: dict[str, Callable[[bytes], Iterator[int]]] = {
    "csv": lambda data: (rows.nbytes for rows in comma.read(io.BytesIO(data))),
    "libsvm": lambda data: (row.indices.nbytes + row.values.nbytes for row in libsvm.read(io.BytesIO(data))),
    "idx": lambda data: iter([idx.read(io.BytesIO(data)).nbytes]),
    "dmlc": lambda data: map(len, dmlc_recordio.read(io.BytesIO(data))),
    "paddle": lambda data: map(len, paddle_recordio.read(io.BytesIO(data))),
}


@pytest.mark.parametrize("name", ["idx", "idx gzip", "csv", "one line of csv", "one line of libsvm", "dmlc", "go none",
                                  "go snappy", "go gzip", "fluid none", "fluid snappy"])  # fmt: skip
def test_a_large_file_takes_at_most_four_times_what_comes_out_of_it(name: str) -> None:
    read = next((read for word, read in READ.items() if word in name), READ["paddle"])
    assert play(Kind([], read), _large(name)).whole


def _limited(data: bytes) -> Iterator[int]:
    return map(len, paddle_recordio.read(io.BytesIO(data), limit=LIMIT))


def _chunk(payload: bytes, packing: int) -> bytes:
    return struct.pack("<5I", paddle_recordio.MAGIC, zlib.crc32(payload), packing, len(payload), 1) + payload


@cache
def _zeros() -> bytes:
    return gzip.compress(bytes(64 << 20), 9)


CLAIMS = b"\0\0\x0e\2" + struct.pack(">II", 1 << 20, 1 << 20)
MANY = b"\xff\x06\0\0sNaPpY" + (b"\0\x0e\0\0crc!" + b"\x80\x80\x04" + b"\0" * 7) * 200
BOMBS: dict[str, tuple[Callable[[], bytes], Callable[[bytes], Iterator[int]]]] = {
    "idx": (lambda: CLAIMS, READ["idx"]),
    "idx gzip": (lambda: gzip.compress(CLAIMS), READ["idx"]),
    "idx gzip below the cap": (
        lambda: gzip.compress(b"\0\0\x08\1" + struct.pack(">I", 1 << 29) + bytes(99)), READ["idx"],
    ),
    "csv gzip": (_zeros, READ["csv"]),
    "libsvm gzip": (_zeros, READ["libsvm"]),
    "dmlc": (lambda: dmlc_recordio.MAGIC + b"\xff\xff\xff\x1f", READ["dmlc"]),
    "go": (lambda: struct.pack("<5I", 0x01020304, 1, 0, 0xFFFFFFFF, 0xFFFFFFFF), READ["paddle"]),
    "go record": (lambda: _chunk(b"\xff\xff\xff\xff", 0), READ["paddle"]),
    "go gzip": (lambda: _chunk(_zeros(), 2), _limited),
    "go snappy": (lambda: _chunk(MANY, 1), _limited),
}  # fmt: skip
"""Small files that claim to be huge, or become so, and what reads them."""


@pytest.mark.parametrize("name", BOMBS)
def test_what_only_claims_to_be_large_is_refused_before_memory_is_taken(name: str) -> None:
    make, read = BOMBS[name]
    data = make()
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    with pytest.raises(FormatError):
        sum(read(data))
    most = tracemalloc.get_traced_memory()[1] - before
    assert most < 4 * (lines.MOST if name in ("csv gzip", "libsvm gzip") else LIMIT) + (1 << 20)


def _run_program(name: str, count: int) -> tuple[int, int, int]:
    """Play ``count`` damaged files in a program, and return how many it says it played, read and refused."""
    command = [sys.executable, "-m", "tests.formats.fuzz", "--count", str(count), "--only", name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    row = done.stdout.splitlines()[1]
    assert row.startswith(name)
    played, read, refused = map(int, row[len(name) :].split()[:3])
    return played, read, refused


@pytest.mark.parametrize("name", TRACED_IN_A_PROGRAM)
def test_a_file_that_threads_read_is_read_or_refused_within_its_memory(name: str) -> None:
    played, read, refused = _run_program(name, 200)
    assert played == read + refused == 200
    assert refused


def test_the_program_plays_files_and_ends_with_0() -> None:
    assert _run_program("dmlc", 20)[0] == 20
