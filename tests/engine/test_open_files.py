"""Which open files a fork would share, to the harm of who reads them."""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import os
import socket
import sqlite3
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pydp2.host.engine.open_files import kept_positions, open_descriptors, shared_files

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
Opening = Callable[[Path, ExitStack], object]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a b.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x", b"0" * 5000)
    return path


def _found(opening: Opening, file: Path) -> str:
    with ExitStack() as stack:
        before = open_descriptors()
        kept = opening(file, stack)
        found = shared_files(before)
        del kept
    return found


def _opened_by_c(file: Path, stack: ExitStack) -> object:
    c = ctypes.CDLL(None)
    c.fopen.restype = ctypes.c_void_p
    c.fopen.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
    c.fclose.argtypes = [ctypes.c_void_p]
    stack.callback(c.fclose, opened := c.fopen(os.fsencode(file), b"rb"))
    return opened


def _removed(file: Path, stack: ExitStack) -> object:
    opened = stack.enter_context(file.open("rb"))
    file.unlink()
    return opened


def _mapped_and_open(file: Path, stack: ExitStack) -> object:
    opened = stack.enter_context(file.open("rb"))
    return stack.enter_context(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))


def _folder(file: Path, stack: ExitStack) -> object:
    stack.callback(os.close, opened := os.open(file.parent, os.O_RDONLY))
    return opened


@pytest.mark.parametrize(
    ("opening", "name"),
    [
        (lambda file, stack: stack.enter_context(file.open()), "{file}"),
        (lambda file, stack: stack.enter_context(file.open("r+b")), "{file}"),
        (lambda file, stack: stack.enter_context(file.open("a+b")), "{file}"),
        (lambda file, stack: stack.enter_context(zipfile.ZipFile(file)), "{file}"),
        (lambda file, stack: stack.enter_context(closing(sqlite3.connect(file.with_name("db")))).execute(
            "create table t(x)"), "{file.parent}/db"),
        (_opened_by_c, "{file}"),
        (_removed, "{file} (deleted)"),
        (_mapped_and_open, "{file}"),
        (_folder, "{file.parent}"),
    ],
    ids=["text", "update", "append and read", "zip", "sqlite", "C", "removed", "mapped and open", "folder"],
)  # fmt: skip
def test_a_file_that_can_be_read_is_named(opening: Opening, name: str, file: Path) -> None:
    expected = f"they leave {name.format(file=file)} open, and forked workers would share one position in it"
    assert _found(opening, file) == expected


def test_the_first_of_several_files_is_named_and_the_others_are_counted(file: Path) -> None:
    def several(file: Path, stack: ExitStack) -> object:
        return [stack.enter_context(file.open()) for _ in range(3)]

    assert f"{file} open (and 2 more), and forked workers" in _found(several, file)


def _listening(file: Path, stack: ExitStack) -> object:
    return stack.enter_context(socket.create_server(("127.0.0.1", 0)))


@pytest.mark.parametrize("seconds", [None, 3.0])
def test_a_connection_is_named_by_its_other_end(seconds: float | None, file: Path) -> None:
    waits = socket.getdefaulttimeout()
    with socket.create_server(("127.0.0.1", 0)) as server, ExitStack() as stack:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        stack.callback(socket.setdefaulttimeout, waits)
        before = open_descriptors()
        client = stack.enter_context(socket.create_connection(server.getsockname()))
        socket.setdefaulttimeout(seconds)
        assert shared_files(before) == f"they leave a connection to {address} open, and forked workers would share it"
        assert os.get_blocking(client.fileno())
        assert socket.getdefaulttimeout() == seconds


def test_ends_of_pipes_and_pairs_of_sockets_are_found(file: Path) -> None:
    with ExitStack() as stack:
        before = open_descriptors()
        read, write = os.pipe()
        stack.callback(os.close, read)
        assert shared_files(before) == ""  # both ends are here, as those of a multiprocessing.SimpleQueue
        os.close(write)
        assert shared_files(before) == "they leave a pipe open, and forked workers would share it"
    with ExitStack() as stack:
        before = open_descriptors()
        pair = [stack.enter_context(end) for end in socket.socketpair()]
        del pair
        assert shared_files(before) == "they leave a connection open (and 1 more), and forked workers would share it"


def _memory_map(file: Path, stack: ExitStack) -> object:
    np.save(file, np.arange(1000))
    loaded = np.load(f"{file}.npy", mmap_mode="r")
    return loaded, np.memmap(file, np.uint8, "r"), np.memmap(file, np.uint8, "r", offset=100)


def _queue(file: Path, stack: ExitStack) -> object:
    context = multiprocessing.get_context("fork")
    return stack.enter_context(closing(context.SimpleQueue())), context.Lock()


def _shared_memory(file: Path, stack: ExitStack) -> object:
    opened = stack.enter_context(tempfile.TemporaryFile(dir="/dev/shm"))  # noqa: SIM115 - the stack closes it
    opened.write(b"0" * 4096)
    opened.flush()
    return opened, stack.enter_context(mmap.mmap(opened.fileno(), 0))


def _datagrams(file: Path, stack: ExitStack) -> object:
    sockets = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    return [stack.enter_context(each) for each in sockets]


def _closed(file: Path, stack: ExitStack) -> object:
    with zipfile.ZipFile(file) as archive:
        return archive.read("x")


@pytest.mark.parametrize(
    "opening",
    [
        _closed,
        _memory_map,
        _queue,
        _shared_memory,
        _datagrams,
        _listening,
        lambda file, stack: stack.enter_context(file.open("a")),
        lambda file, stack: stack.enter_context(file.open("wb")),
        lambda file, stack: stack.callback(os.close, os.open("/dev/urandom", os.O_RDONLY)),
        lambda file, stack: stack.callback(os.close, os.open(file.parent, os.O_PATH)),
    ],
    ids=["closed", "memory map", "queue", "mapped in /dev/shm", "datagrams", "listening", "append", "write",
         "device", "O_PATH"],
)  # fmt: skip
def test_what_forks_may_share_is_not_found(opening: Opening, file: Path) -> None:
    assert _found(opening, file) == ""


def test_what_was_open_before_is_not_found_and_another_file_at_its_number_is(file: Path) -> None:
    with file.open() as opened, open(os.devnull) as null:
        assert shared_files(open_descriptors()) == ""
        before = open_descriptors()
        os.dup2(opened.fileno(), null.fileno())
        assert str(file) in shared_files(before)


@pytest.fixture
def opened(file: Path) -> Iterator[Any]:
    with file.open("rb") as found:
        yield found


def test_a_child_moves_the_position_in_no_file(opened: Any) -> None:
    opened.seek(7)
    with kept_positions():
        if not (child := os.fork()):
            os.lseek(opened.fileno(), 1000, os.SEEK_SET)
            os._exit(0)
        os.waitpid(child, 0)
    assert os.lseek(opened.fileno(), 0, os.SEEK_CUR) == 7
