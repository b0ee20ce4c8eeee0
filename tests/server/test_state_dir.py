"""The state directory: what was written is read, whatever the disk did meanwhile."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.errors import OptionError, StateMismatch
from pydp2.server.snapshots.state_dir import BEFORE, LAST, NEW, VERSION, DamagedSnapshot, StateDir, decode, encode
from pydp2.system.file_bytes import read_own
from tests.runs import wait_until

Jobs = list[dict[str, Any]]
PATIENCE = 60.0  # the disk of a loaded machine may take more seconds than a service waits for it
plain = st.recursive(
    st.none() | st.booleans() | st.integers(0, 1 << 62) | st.text(max_size=9) | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
jobs = st.lists(st.dictionaries(st.text(max_size=5), plain, max_size=4), max_size=3)


class Told:
    """What a directory told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, text: str, kind: str) -> None:
        self.lines.append(text)


@pytest.fixture
def opened() -> Iterator[Callable[[Path], tuple[StateDir, Told]]]:
    """Opens directories, which are closed in the end."""
    made: list[StateDir] = []

    def of(path: Path) -> tuple[StateDir, Told]:
        told = Told()
        made.append(StateDir(path, told, PATIENCE))
        return made[-1], told

    yield of
    for each in made:
        each.close()


Opened = Callable[[Path], tuple[StateDir, Told]]


@given(jobs, st.integers(0, (1 << 64) - 1))
def test_a_snapshot_is_read_as_it_was_written(some: Jobs, serial: int) -> None:
    assert decode(encode(serial, some)) == (serial, some)


@given(st.data())
def test_a_snapshot_in_which_a_bit_is_another_is_refused(data: st.DataObject) -> None:
    good = bytearray(encode(7, [{"name": "a", "pool": b"x" * 50}]))
    bit = data.draw(st.integers(0, 8 * len(good) - 1))
    good[bit // 8] ^= 1 << bit % 8
    with pytest.raises(DamagedSnapshot):
        decode(bytes(good))


def test_a_new_directory_has_nothing(tmp_path: Path, opened: Opened) -> None:
    state, told = opened(tmp_path)
    assert state.read() == []
    assert told.lines == []


def test_the_latest_of_what_was_written_is_read(tmp_path: Path, opened: Opened) -> None:
    state, told = opened(tmp_path)
    state.read()
    for number in range(5):
        state.write([{"number": number}], wait=True)
    again, _ = opened(tmp_path)
    assert again.read() == [{"number": 4}]
    again.write([{"number": 5}], wait=True)
    assert opened(tmp_path)[0].read() == [{"number": 5}]
    assert told.lines == []


def test_what_is_due_is_written_before_the_directory_is_let_go(tmp_path: Path) -> None:
    state = StateDir(tmp_path, Told(), PATIENCE)
    state.write([{"number": 1}])
    state.close()
    assert StateDir(tmp_path, Told()).read() == [{"number": 1}]


def test_a_snapshot_cut_off_at_any_byte_gives_way_to_the_one_before(tmp_path: Path, opened: Opened) -> None:
    state, _ = opened(tmp_path)
    state.write([{"number": 1}], wait=True)
    state.write([{"number": 2, "pool": b"p" * 300}], wait=True)
    whole = (tmp_path / LAST).read_bytes()
    for size in range(len(whole)):
        (tmp_path / LAST).write_bytes(whole[:size])
        again, told = opened(tmp_path)
        assert again.read() == [{"number": 1}], size
        assert len(told.lines) == 1
        assert f"the snapshot {tmp_path / LAST} is damaged" in told.lines[0]
        assert told.lines[0].endswith("the one before it is used")


@pytest.mark.parametrize("after", ["new is half written", "new is whole", "last has moved"])
def test_a_service_that_was_killed_while_it_wrote_has_a_whole_snapshot(
    tmp_path: Path, opened: Opened, after: str
) -> None:
    state, _ = opened(tmp_path)
    state.write([{"number": 1}], wait=True)
    state.write([{"number": 2}], wait=True)
    new = encode(3, [{"number": 3}])
    (tmp_path / NEW).write_bytes(new[:-3] if after == "new is half written" else new)
    if after == "last has moved":
        (tmp_path / LAST).rename(tmp_path / BEFORE)
    again, told = opened(tmp_path)
    assert again.read() == [{"number": 2 if after == "new is half written" else 3}]
    assert told.lines == []
    again.write([{"number": 4}], wait=True)
    assert opened(tmp_path)[0].read() == [{"number": 4}]


def test_a_new_snapshot_that_was_used_is_not_lost_when_the_next_service_is_killed_too(
    tmp_path: Path, opened: Opened
) -> None:
    state, _ = opened(tmp_path)
    for number in (1, 2):
        state.write([{"number": number}], wait=True)
    (tmp_path / NEW).write_bytes(encode(3, [{"number": 3}]))  # killed before it was renamed
    assert opened(tmp_path)[0].read() == [{"number": 3}]
    (tmp_path / NEW).write_bytes(b"")  # killed as it began to write
    again, told = opened(tmp_path)
    assert again.read() == [{"number": 3}]
    assert again.intact
    assert told.lines == []


def test_a_new_snapshot_takes_the_place_of_a_damaged_one_and_spares_the_one_before(
    tmp_path: Path, opened: Opened
) -> None:
    state, _ = opened(tmp_path)
    for number in (1, 2):
        state.write([{"number": number}], wait=True)
    (tmp_path / LAST).write_bytes(b"nothing of ours")
    (tmp_path / NEW).write_bytes(encode(3, [{"number": 3}]))
    again, told = opened(tmp_path)
    assert again.read() == [{"number": 3}]
    assert again.intact
    assert [line.rpartition("; ")[2] for line in told.lines] == ["a later one is used"]
    assert [decode((tmp_path / name).read_bytes())[0] for name in (BEFORE, LAST)] == [1, 3]


@pytest.mark.parametrize("name", [BEFORE, LAST, NEW])
@pytest.mark.parametrize("error", [errno.EIO, errno.ESTALE, errno.EACCES])
def test_a_snapshot_that_cannot_be_read_now_is_not_taken_for_a_damaged_one(
    tmp_path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch, name: str, error: int
) -> None:
    def read(path: Path, limit: int) -> bytes:
        if path.name == name:
            raise OSError(error, os.strerror(error))
        return read_own(path, limit)

    state, _ = opened(tmp_path)
    for number in (1, 2):
        state.write([{"number": number}], wait=True)
    shutil.copy(tmp_path / LAST, tmp_path / NEW)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with monkeypatch.context() as patch:
        patch.setattr("pydp2.server.snapshots.state_dir.read_own", read)
        with pytest.raises(OptionError) as raised:
            opened(tmp_path)[0].read()
    assert str(raised.value) == (
        f"state_dir={str(tmp_path)!r} must have snapshots that can be read, {tmp_path / name} cannot: "
        f"{os.strerror(error)}; make it readable and start the service again, or choose another directory"
    )
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_two_damaged_snapshots_are_said_and_the_service_begins_anew(tmp_path: Path, opened: Opened) -> None:
    for name in (LAST, BEFORE):
        (tmp_path / name).write_bytes(b"nothing of ours")
    state, told = opened(tmp_path)
    assert state.read() == []
    assert len(told.lines) == 1
    assert told.lines[0].endswith("the service begins anew")


def test_a_snapshot_of_a_newer_release_is_refused_by_its_version(tmp_path: Path, opened: Opened) -> None:
    (tmp_path / LAST).write_bytes(encode(1, [], version=VERSION + 1))
    with pytest.raises(StateMismatch, match=f"it has version {VERSION + 1}, this pydp2 reads version {VERSION}"):
        opened(tmp_path)[0].read()


def test_a_disk_that_cannot_be_written_is_said_once_and_when_it_can_again(tmp_path: Path, opened: Opened) -> None:
    folder = tmp_path / "state"
    state, told = opened(folder)  # it is not there
    for number in range(4):
        state.write([{"number": number}], wait=True)
    assert len(told.lines) == 1
    assert "the state cannot be written to" in told.lines[0]
    assert "the pass goes on" in told.lines[0]
    folder.mkdir()
    state.write([{"number": 3}], wait=True)  # the same: but it is not on the disk yet
    assert told.lines[1:] == [f"the state can be written to {folder} again"]
    assert opened(folder)[0].read() == [{"number": 3}]


def test_a_disk_that_could_not_be_written_for_a_moment_is_said_as_well(
    tmp_path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, told = opened(tmp_path)
    may_fail = threading.Event()

    def fails(_: bytes) -> None:
        assert may_fail.wait(20)
        raise OSError(errno.ENOSPC, "no room")

    with monkeypatch.context() as patch:
        patch.setattr(state, "_replace", fails)
        state.write([{"number": 0}])  # soon: nobody waits for it
        assert told.lines == []
        may_fail.set()
        assert wait_until(lambda: state._failed is not None)
    state.write([{"number": 1}], wait=True)
    assert [line.partition(" to ")[0] for line in told.lines] == ["the state cannot be written"]
    state.write([{"number": 1}])
    assert told.lines[1:] == [f"the state can be written to {tmp_path} again"]


def test_what_could_not_be_followed_by_a_later_one_is_not_taken_for_the_last(
    tmp_path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, _ = opened(tmp_path)
    state.write([{"number": 1}], wait=True)

    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        state.write([{"number": 2}], wait=True)
        state.write([{"number": 3}], wait=True)
    again, told = opened(tmp_path)
    assert again.read() == [{"number": 1}]
    assert not again.intact
    assert told.lines == [f"{tmp_path / BEFORE} is used: a later snapshot could not be written"]
    state.write([{"number": 4}], wait=True)  # there is room again
    again, told = opened(tmp_path)
    assert again.read() == [{"number": 4}]
    assert again.intact
    assert told.lines == []


def test_a_slow_disk_does_not_keep_the_service_waiting(
    tmp_path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, fsync = threading.Event(), os.fsync

    def slow(file: int) -> None:
        assert goes_on.wait(30)
        fsync(file)

    monkeypatch.setattr(os, "fsync", slow)
    state, _ = opened(tmp_path)
    for number in range(50):
        state.write([{"number": number}])  # a wait here would be 30 s long, and fail
    goes_on.set()
    state.write([{"number": 50}], wait=True)
    assert opened(tmp_path)[0].read() == [{"number": 50}]


def put_fifo(path: Path) -> None:
    os.mkfifo(path)


def put_endless_link(path: Path) -> None:
    path.symlink_to("/dev/zero")


def put_link(path: Path) -> None:
    (path.parent / "other").write_bytes(encode(1, []))
    path.symlink_to("other")


@pytest.mark.parametrize("name", [BEFORE, LAST, NEW])
@pytest.mark.parametrize("put", [put_fifo, put_endless_link, put_link, Path.mkdir])
def test_what_is_no_regular_file_is_not_read_and_named(
    tmp_path: Path, opened: Opened, put: Callable[[Path], None], name: str
) -> None:
    put(tmp_path / name)
    with pytest.raises(OptionError, match=f"{tmp_path / name} cannot: it is (not a regular file|a symbolic link)"):
        opened(tmp_path)[0].read()


def test_a_snapshot_that_is_larger_than_any_is_not_read(
    tmp_path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pydp2.server.snapshots.state_dir._MAX_BYTES", 1 << 20)
    with open(tmp_path / LAST, "wb") as file:
        file.truncate(1 << 40)  # sparse: it takes no room
    with pytest.raises(OptionError, match="it has more than 1048576 bytes"):
        opened(tmp_path)[0].read()


def test_a_pipe_that_comes_to_the_place_of_the_next_snapshot_is_not_waited_for(tmp_path: Path, opened: Opened) -> None:
    state, told = opened(tmp_path)
    state.write([{"number": 1}], wait=True)
    os.mkfifo(tmp_path / NEW)
    state.write([{"number": 2}], wait=True)
    assert len(told.lines) == 1
    assert "the state cannot be written" in told.lines[0]


def test_the_target_of_a_link_in_the_place_of_the_next_snapshot_is_not_made(tmp_path: Path, opened: Opened) -> None:
    (tmp_path / NEW).symlink_to(tmp_path / "elsewhere")
    state, _ = opened(tmp_path)
    state.check()
    assert not (tmp_path / "elsewhere").exists()
    with pytest.raises(OptionError, match="it is a symbolic link"):
        state.read()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_a_directory_that_cannot_be_written_is_refused(tmp_path: Path, opened: Opened) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(OptionError, match="must be a directory that can be written"):
        opened(tmp_path)[0].check()
