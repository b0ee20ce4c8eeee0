"""Run directories: private, with a short path, and gone once nobody lives in them."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pydp2.api import rundir
from pydp2.api.rundir import RunDir, is_open, move_above_standard_streams, remove_stale, run_directories, take_path
from pydp2.errors import ServiceUnreachable


@pytest.fixture
def temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary folder that no other test's service uses."""
    folder = Path(tempfile.mkdtemp(prefix="r-", dir="/tmp"))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    subprocess.run(["rm", "-rf", str(folder)], check=True)


def locked(path: Path) -> bool:
    """Whether somebody lives in the run directory ``path``."""
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def test_a_run_directory_belongs_to_its_user_alone(temporary: Path) -> None:
    one = RunDir()
    assert one.path.parent == temporary / f"pydp2-{os.getuid()}"
    for path in (one.path, one.path.parent):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE((one.path / "lock").stat().st_mode) == 0o600
    assert not os.get_inheritable(one.lock)
    assert one.address("clients") == f"ipc://{one.path}/clients"
    one.release()
    one.remove()
    assert not one.path.exists()
    one.remove()
    one.release()


def test_paths_stay_short_where_the_temporary_folder_has_a_long_one(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ipc path holds 107 bytes."""
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / ("x" * 80)))
    one = RunDir()
    assert len(one.address("workers").removeprefix("ipc://")) < 107
    assert str(one.path).startswith("/tmp/pydp2-")
    one.release()
    one.remove()


def test_a_directory_that_others_can_enter_is_refused(temporary: Path) -> None:
    run_directories().chmod(0o755)
    with pytest.raises(ServiceUnreachable, match=r"must be a directory of this user alone \(mode 0700\); remove it"):
        RunDir()


def test_a_file_or_a_link_in_its_place_is_refused(temporary: Path) -> None:
    place = temporary / f"pydp2-{os.getuid()}"
    place.write_text("")
    with pytest.raises(ServiceUnreachable, match="must be a directory"):
        run_directories()
    place.unlink()
    (temporary / "elsewhere").mkdir(mode=0o700)
    place.symlink_to(temporary / "elsewhere")
    with pytest.raises(ServiceUnreachable, match="must be a directory"):
        run_directories()


def test_the_next_start_removes_what_is_left_and_nothing_that_lives(temporary: Path) -> None:
    left, lives = RunDir(), RunDir()
    (left.path / "clients").write_text("")
    os.close(left.lock)
    other = RunDir()
    assert not left.path.exists()
    assert lives.path.exists()
    assert locked(lives.path)
    for one in (lives, other):
        one.release()
        one.remove()
    assert list(run_directories().iterdir()) == []


CHILD = """
import sys, tempfile, time
tempfile.tempdir = sys.argv[1]
from pydp2.api.rundir import RunDir
one = RunDir()
print(one.path, flush=True)
time.sleep(100)
"""


def test_a_lock_is_free_when_its_process_is_killed(temporary: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(temporary)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    path = Path(child.stdout.readline().strip())
    remove_stale()
    assert locked(path)
    child.send_signal(signal.SIGKILL)
    child.wait(10)
    child.stdout.close()
    remove_stale()
    assert not path.exists()


def test_a_directory_is_seen_only_once_it_is_locked(temporary: Path) -> None:
    """Starts and sweeps at the same time, as when many programs begin at once."""
    go, problems = threading.Barrier(8), list[BaseException]()

    def start_many() -> None:
        try:
            go.wait(10)
            for _ in range(60):
                one = RunDir()
                assert (one.path / "lock").exists(), "somebody swept it away"
                assert locked(one.path)
                one.release()
                one.remove()
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=start_many) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


def test_a_start_that_was_broken_off_is_removed_when_it_is_old(temporary: Path) -> None:
    young, old, empty = run_directories() / ".young", run_directories() / ".old", run_directories() / "empty"
    for path in (young, old, empty):
        path.mkdir()
    os.utime(old, (time.time() - 3600,) * 2)
    (run_directories() / "a-file").write_text("of somebody else")
    remove_stale()
    assert sorted(path.name for path in run_directories().iterdir()) == [".young", "a-file"]


# -- paths of the user's choice ----------------------------------------------------------------------------------------
def test_a_path_is_taken_once_and_free_again_afterwards(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    lock = take_path(path)
    with pytest.raises(
        ServiceUnreachable, match=r"^ipc://.*/s is taken by a service that is running; stop it, or bind"
    ):
        take_path(path)
    os.close(lock)
    os.close(take_path(path))


def test_a_stale_socket_is_removed_and_a_living_one_s_lock_protects_it(tmp_path: Path) -> None:
    path = tmp_path / "s"
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))
    stale.close()
    lock = take_path(str(path))
    assert not path.exists()
    lives = socket.socket(socket.AF_UNIX)
    lives.bind(str(path))
    with pytest.raises(ServiceUnreachable, match="is taken"):
        take_path(str(path))
    assert path.exists()
    lives.close()
    os.close(lock)


def test_a_file_of_the_user_s_is_never_removed(tmp_path: Path) -> None:
    file = tmp_path / "precious.csv"
    file.write_text("data")
    folder = tmp_path / "folder"
    folder.mkdir()
    link = tmp_path / "link"
    link.symlink_to(file)
    for path in (file, folder, link):
        with pytest.raises(ServiceUnreachable, match="it is there and no socket; choose another path"):
            take_path(str(path))
    assert file.read_text() == "data"
    assert link.is_symlink()


def test_a_path_in_a_folder_that_is_none_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "missing" / "s", tmp_path / "file" / "s"):
        with pytest.raises(ServiceUnreachable, match="choose a path in a folder that can be written"):
            take_path(str(path))


def test_no_lock_takes_the_place_of_a_standard_stream(tmp_path: Path) -> None:
    code = """
import os, sys
from pydp2.api.rundir import is_open, take_path
kept = os.dup(2)
for number in (0, 1, 2):
    os.close(number)
assert not is_open(2)
lock = take_path(sys.argv[1])
assert lock > 2
assert not os.get_inheritable(lock)
assert not is_open(0)
os.write(kept, b"fine")
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "s")], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"fine")
    assert is_open(2)
    assert move_above_standard_streams(7) == 7
    assert rundir.is_open(-1) is False
