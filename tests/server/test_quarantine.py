"""The file that losses are written to: what is in it, what is never in it twice, and when it cannot be written."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pydp2.errors import BadSample, Error, FileCondemned, NotRepeatable, OptionError, ProviderError
from pydp2.server import quarantine as module
from pydp2.server.actions import TIMED_OUT, Loss
from pydp2.server.dispatch.losses import _kind
from pydp2.server.quarantine import Quarantine, read

LOSS = Loss(0, "a.txt", 3, "bits", "expected 2, got 3", "dropped")
Make = Callable[..., Quarantine]


@pytest.fixture
def logs() -> list[str]:
    return []


@pytest.fixture
def quarantine(tmp_path: Path, logs: list[str]) -> Iterator[Make]:
    """``quarantine(path)`` opens one; it is closed when the test ends."""
    made: list[Quarantine] = []

    def make(path: Path | None = None) -> Quarantine:
        made.append(Quarantine(str(path or tmp_path / "bad.jsonl"), lambda text, event, **about: logs.append(text)))
        return made[-1]

    yield make
    for each in made:
        each.close()


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


@pytest.mark.parametrize(
    "error",
    [
        FileCondemned("three died"), FileCondemned("slow", sample_timeout=2.0), NotRepeatable("other"),
        BadSample("wrong"), ProviderError("raised"),
    ],
    ids=_kind,
)  # fmt: skip
def test_every_kind_that_a_service_writes_is_read_back(error: Error, quarantine: Make, tmp_path: Path) -> None:
    kind = _kind(error)
    loss = Loss(0, "a.txt", 3, "", "why", kind, "", 2.0 if kind == TIMED_OUT else None)
    quarantine().write(loss)
    assert list(read(tmp_path / "bad.jsonl")) == [(1, loss)]


def test_each_loss_is_a_line_of_json_that_is_there_at_once(quarantine: Make, tmp_path: Path) -> None:
    made = quarantine()
    made.write(LOSS)
    assert lines(tmp_path / "bad.jsonl") == [
        {"pass": 0, "file": "a.txt", "y": 3, "slot": "bits", "reason": "expected 2, got 3", "kind": "dropped"}
    ]
    made.write(Loss(1, "a.txt", 3, "", "process raised", "raised", "KeyError"))
    made.write(Loss(2, "a.txt", 3, "", "too slow", "timed out", "", 2.5))
    assert lines(tmp_path / "bad.jsonl")[1:] == [
        {
            "pass": 1, "file": "a.txt", "y": 3, "slot": "", "reason": "process raised", "kind": "raised",
            "exception": "KeyError",
        },
        {
            "pass": 2, "file": "a.txt", "y": 3, "slot": "", "reason": "too slow", "kind": "timed out",
            "sample_timeout": 2.5,
        },
    ]  # fmt: skip


def test_without_a_path_nothing_is_written() -> None:
    made = Quarantine(None, lambda *_: None)
    made.write(LOSS)
    made.close()


_losses = st.builds(
    Loss, st.integers(0, 2), st.text(max_size=3) | st.sampled_from(["ä\n", "\udcff", '"', "\u2028", "a b"]),
    st.integers(0, 3), st.text(max_size=5), st.text(), st.sampled_from(["dropped", "raised"]),
)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(_losses, max_size=8), max_size=4))
def test_no_loss_is_ever_there_twice_also_with_services_one_after_another(
    tmp_path_factory: pytest.TempPathFactory, rounds: list[list[Loss]]
) -> None:
    path = tmp_path_factory.mktemp("q") / "bad.jsonl"
    expected: dict[tuple[int, str, int], str] = {}
    for each in rounds:
        made = Quarantine(str(path), lambda *_: None)
        for loss in each:
            made.write(loss)
            expected.setdefault((loss.pass_id, loss.file, loss.y), loss.reason)
        made.close()
    found = [json.loads(line) for line in path.read_bytes().split(b"\n") if line] if rounds else []
    assert [(line["pass"], line["file"], line["y"], line["reason"]) for line in found] == [
        (*key, reason) for key, reason in expected.items()
    ]


def test_damaged_lines_are_left_alone_and_a_torn_one_does_not_swallow_the_next(
    quarantine: Make, tmp_path: Path
) -> None:
    path = tmp_path / "bad.jsonl"
    before = b'\xff\xfe\n[]\n3\n{"pass": 0}\n{"pass": "x", "file": "a.txt", "y": 3}\n\n{"pass": 0, "file": "a.txt", "y'
    path.write_bytes(before)
    made = quarantine()
    assert path.read_bytes() == before
    made.write(LOSS)
    made.write(LOSS)
    text = path.read_bytes()
    assert text.startswith(before + b"\n")
    assert json.loads(text.splitlines()[-1])["y"] == 3
    assert text.count(b'"bits"') == 1


@pytest.mark.parametrize("what", ["no folder", "a folder", "a pipe"])
def test_what_cannot_be_written_is_an_error_at_once_that_says_what_to_do(
    what: str, quarantine: Make, tmp_path: Path
) -> None:
    path = tmp_path / "bad.jsonl"
    if what == "no folder":
        path = tmp_path / "nowhere" / "bad.jsonl"
    elif what == "a folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    with pytest.raises(OptionError, match=r"^quarantine=.* must be a file that can be written: .*; choose another"):
        quarantine(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_no_permission_is_an_error_at_once(quarantine: Make, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").touch(0o400)
    with pytest.raises(OptionError, match="Permission denied"):
        quarantine()


def test_a_service_that_starts_does_not_cut_off_what_others_write_meanwhile(
    quarantine: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it does with the file, the other writes right after it."""
    other = quarantine()
    losses = iter(Loss(0, "a.txt", y, "", "why", "dropped") for y in range(1000))
    written: list[Loss] = []

    def write(file: int, data: bytes) -> int:
        count = real(file, data)
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", real)
            written.append(next(losses))
            other.write(written[-1])
        return count

    real = os.write
    for _ in range(3):
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", write)
            quarantine().write(next(losses))
    found = [loss for _, loss in read(tmp_path / "bad.jsonl")]
    assert len(found) == 3 + len(written)
    assert {loss.y for loss in found if isinstance(loss, Loss)} == set(range(len(found)))


def test_a_service_that_tries_the_file_out_is_waited_for_but_not_for_ever(
    quarantine: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bad.jsonl"
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with monkeypatch.context() as patch:
            patch.setattr(time, "sleep", lambda seconds: fcntl.flock(lock, fcntl.LOCK_UN))
            quarantine().write(LOSS)
        assert len(lines(path)) == 1
    finally:
        os.close(lock)
    lock = os.open(other := tmp_path / "other.jsonl", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        monkeypatch.setattr(module, "_LOCK_SECONDS", 0.05)
        with pytest.raises(OptionError, match="must be a file that can be written: another process keeps it locked"):
            quarantine(other)
    finally:
        os.close(lock)


def test_a_file_system_without_locks_is_written_without_a_trial(
    quarantine: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(file: int, kind: int) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", flock)
    made = quarantine()
    made.write(LOSS)
    assert [loss for _, loss in read(tmp_path / "bad.jsonl")] == [LOSS]


@contextmanager
def room(size: int) -> Iterator[None]:
    """Files may have so many bytes, as on a disk that is nearly full. What pytest itself writes must not be within."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_is_full_at_the_start_is_an_error(quarantine: Make, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_bytes(b"x" * 10)
    with room(10), pytest.raises(OptionError, match="must be a file that can be written: File too large"):
        quarantine()


def test_a_disk_that_fills_up_later_is_told_once_and_what_has_room_again_is_written(
    quarantine: Make, tmp_path: Path, logs: list[str]
) -> None:
    path = tmp_path / "bad.jsonl"
    made = quarantine()
    made.write(LOSS)
    with room(path.stat().st_size + 10):
        for y in range(10, 14):
            made.write(Loss(0, "a.txt", y, "", "", "dropped"))
    assert len(logs) == 1
    assert logs[0].startswith(f"the quarantine {path} cannot be written any more: ")
    made.write(Loss(0, "a.txt", 12, "", "", "dropped"))
    text = path.read_bytes().splitlines()
    assert [json.loads(line)["y"] for line in (text[0], text[-1])] == [3, 12]
    assert len(text) == 3  # one is torn
    assert len(logs) == 1
