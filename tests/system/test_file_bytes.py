"""Files at paths where anything may lie are read, or named, and never waited for without end."""

from __future__ import annotations

import os
import threading
import tracemalloc
from pathlib import Path

import pytest

from pydp2.errors import ListError, OptionError
from pydp2.options.file_list import FileList
from pydp2.options.toml_file import load_config
from pydp2.system.file_bytes import read_named, read_own


def test_a_file_is_read_whole_up_to_the_limit(tmp_path: Path) -> None:
    file = tmp_path / "file"
    for size in (0, 1, 3 << 20):
        file.write_bytes(bytes(size))
        for read in (read_own, read_named):
            assert read(file, size) == bytes(size)
            if size:
                with pytest.raises(OSError, match=f"more than {size - 1} bytes"):
                    read(file, size - 1)


def test_nothing_but_a_regular_file_is_taken_for_one_of_ours(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    for name in ("pipe", "link", "."):
        with pytest.raises(OSError, match=r"not a regular file|symbolic links"):
            read_own(tmp_path / name, 100)


def test_a_file_that_is_too_large_is_not_read_up_to_the_limit(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        file.truncate(1 << 40)
    tracemalloc.start()
    try:
        with pytest.raises(OSError, match=f"more than {1 << 30} bytes"):
            read_own(tmp_path / "file", 1 << 30)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_pipe_that_a_user_names_is_read_to_its_end(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(b"a\nb\n",))
    writer.start()
    assert [*FileList.read(tmp_path / "pipe")] == ["a", "b"]
    writer.join()


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/urandom"])
def test_a_device_without_end_is_refused(device: str, tmp_path: Path) -> None:
    link = tmp_path / "given.toml"
    link.symlink_to(device)
    assert read_named(os.devnull, 100) == b""
    with pytest.raises(OSError, match="it is a device, which may have no end"):
        read_named(link, 100)
    with pytest.raises(ListError, match="cannot be read: it is a device, which may have no end"):
        FileList.read(link)
    with pytest.raises(OptionError, match="it is a device, which may have no end"):
        load_config(link)
