"""Memory that one process fills and others look at: they see what it writes, and can neither write nor cut it short."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import stat
from pathlib import Path

import pytest

from pydp2.transport.shared_region import SharedRegion, map_region

SIZE = 3 * mmap.PAGESIZE


def readable(made: SharedRegion) -> int:
    assert made.read_only_descriptor is not None
    return made.read_only_descriptor


def test_who_looks_sees_what_is_written_and_cannot_write() -> None:
    made = SharedRegion(SIZE)
    seen = map_region(readable(made), SIZE)
    made.memory[100:104] = b"here"
    assert seen[100:104] == b"here"
    with pytest.raises(TypeError):
        seen[100:104] = b"gone"
    given = readable(made)
    for attempt in (
        lambda: mmap.mmap(given, SIZE),
        lambda: mmap.mmap(given, SIZE, prot=mmap.PROT_WRITE),
        lambda: os.write(given, b"gone"),
        lambda: os.ftruncate(given, 0),
    ):
        with pytest.raises(OSError, match=r"denied|permitted|Bad|Invalid"):
            attempt()
    made.close()
    made.close()
    assert made.read_only_descriptor is None
    assert seen[100:104] == b"here"
    del made
    assert seen[100:104] == b"here"


def test_nor_can_it_make_its_mapping_one_that_can_be_written_to() -> None:
    made = SharedRegion(SIZE)
    seen = map_region(readable(made), SIZE)
    made.close()
    (line,) = [
        line for line in Path("/proc/self/maps").read_text().splitlines() if "pydp2-cache" in line and " r--s " in line
    ]
    begin = int(line.partition("-")[0], 16)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(begin), ctypes.c_size_t(SIZE), mmap.PROT_READ | mmap.PROT_WRITE) == -1
    del seen


def test_another_user_cannot_open_it_anew_to_write() -> None:
    made = SharedRegion(SIZE)
    assert made.read_only_descriptor is not None
    assert stat.S_IMODE(os.fstat(made.read_only_descriptor).st_mode) == stat.S_IRUSR
    if os.geteuid():  # root may open anything
        with pytest.raises(PermissionError):
            os.open(f"/proc/self/fd/{made.read_only_descriptor}", os.O_RDWR)
    made.close()


def test_who_was_given_it_to_write_can_write() -> None:
    made = SharedRegion(SIZE)
    assert made.writable_descriptor is not None
    seen = map_region(made.writable_descriptor, SIZE, writable=True)
    seen[100:104] = b"here"
    os.pwrite(made.writable_descriptor, b"too", 104)
    assert made.memory[100:107] == b"heretoo"
    made.close_writable()
    assert made.writable_descriptor is None
    made.close()


def test_what_is_not_written_costs_nothing() -> None:
    made = SharedRegion(1 << 40)
    made.memory[1 << 39] = 1
    assert made.read_only_descriptor is not None
    assert os.fstat(made.read_only_descriptor).st_blocks * 512 <= 1 << 22
    made.close()


def test_without_memfd_it_is_memory_of_the_process_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("pydp2.system.stdlib.os.memfd_create")
    made = SharedRegion(1 << 40)
    made.memory[1 << 39] = 1
    assert made.memory[(1 << 39) + 1] == 0
    assert made.read_only_descriptor is None
    made.close()


def test_where_there_are_not_so_many_addresses_it_says_so() -> None:
    with pytest.raises(OSError, match="memory"):
        SharedRegion(1 << 60)


def test_what_is_not_such_a_thing_is_refused(tmp_path: Path) -> None:
    made = SharedRegion(SIZE)
    (tmp_path / "file").write_bytes(bytes(SIZE))
    unsealed = os.memfd_create("other", os.MFD_ALLOW_SEALING)
    os.ftruncate(unsealed, SIZE)
    with open(tmp_path / "file", "rb") as file:
        for descriptor, size in ((readable(made), SIZE - 1), (file.fileno(), SIZE), (unsealed, SIZE)):
            with pytest.raises(OSError, match=r"sealed|Invalid"):
                map_region(descriptor, size)
    os.close(unsealed)
    made.close()


def test_where_only_one_of_two_descriptors_can_be_had_nothing_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be of other memory than the one that is written to."""

    def cannot(descriptor: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("pydp2.system.stdlib.os.dup", cannot)
    made = SharedRegion(SIZE)
    assert made.read_only_descriptor is made.writable_descriptor is None
    made.memory[:4] = b"here"
