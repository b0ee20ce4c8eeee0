"""The files by which a service is found: touched, missed, and removed only while they are its own."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from pydp2.host.own_files import OwnFiles

SOCKETS = ("run/workers", "run/workers.in", "s", "s.in", "s.fd")
OLD = 1_000_000.0


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A run directory ``run`` with a lock and two sockets, three more sockets at the path ``s``, and a lock there."""
    (tmp_path / "run").mkdir()
    (tmp_path / "state").mkdir()
    for name in ("run/lock", "s.lock", "state/token"):
        (tmp_path / name).touch()
    opened = []
    for name in SOCKETS:
        opened.append(socket.socket(socket.AF_UNIX))
        opened[-1].bind(str(tmp_path / name))
    yield tmp_path
    for each in opened:
        each.close()


def files_in(folder: Path) -> OwnFiles:
    return OwnFiles(5.0, str(folder / "run"), f"ipc://{folder}/s", str(folder / "state"))


def entries(folder: Path) -> list[Path]:
    return [folder / name for name in ("run", "run/lock", "s.lock", "state", "state/token", *SOCKETS)]


def test_every_file_is_touched_once_an_hour(folder: Path) -> None:
    own = files_in(folder)
    for now, is_touched in ((0.0, True), (1800.0, False), (3700.0, True)):
        for path in entries(folder):
            os.utime(path, (OLD, OLD))
        assert own.look(now) is None
        assert {path.stat().st_mtime > OLD and path.stat().st_atime > OLD for path in entries(folder)} == {is_touched}


def test_a_socket_that_is_gone_or_another_is_missed_and_told_once(folder: Path) -> None:
    own = files_in(folder)
    (folder / "run/lock").unlink()
    (folder / "s.lock").unlink()
    assert own.look(1.0) is None, "the locks are on what a process has open"
    (folder / "s").unlink()
    (folder / "s.in").unlink()
    (folder / "s").touch()
    said = own.look(2.0)
    assert said == f"files of it were removed ({folder}/s and 1 more), as programs do that clean up old files"
    assert own.missing == [f"{folder}/s", f"{folder}/s.in"]
    assert own.look(3.0) is None
    assert own.is_at_place(f"ipc://{folder}/run/workers")
    (folder / "run/workers.in").unlink()
    own.look(4.0)
    assert not own.is_at_place(f"ipc://{folder}/run/workers")


def test_it_is_time_for_a_look_after_so_many_seconds(folder: Path) -> None:
    own = files_in(folder)
    assert own.is_look_due(0.0)
    own.look(0.0)
    assert not own.is_look_due(4.0)
    assert own.is_look_due(6.0)


def test_what_another_service_or_a_user_put_in_its_place_is_not_removed(folder: Path) -> None:
    (folder / "s.fd").unlink()
    (folder / "s.fd").write_text("of a user")
    own = files_in(folder)
    (folder / "run").rename(folder / "before")
    (folder / "run").mkdir()
    (folder / "s").unlink()
    (folder / "s").touch()
    own.remove()
    assert (folder / "run").is_dir()
    assert (folder / "s").is_file()
    assert (folder / "s.fd").read_text() == "of a user"
    assert not (folder / "s.in").exists()
    assert not (folder / "s.lock").exists()


def test_all_is_removed_that_is_its_own(folder: Path) -> None:
    files_in(folder).remove()
    assert sorted(path.name for path in folder.iterdir()) == ["state"]


def test_a_process_without_files_misses_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    own = OwnFiles(5.0, "")
    (tmp_path / "a").touch()
    assert own.look(0.0) is None
    own.remove()
    assert (tmp_path / "a").exists()
