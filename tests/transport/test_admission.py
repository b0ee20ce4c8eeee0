"""Who may connect to the socket of a hub while descriptors are few."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pydp2.transport import admission
from pydp2.transport.admission import Admission, HubUnavailable, request_admission
from tests.runs import wait_until

ASKS = """
import socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one:
    one.settimeout(30)
    one.connect(sys.argv[1])
    one.recv(4096)
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at the peer in the kernel")


@pytest.fixture
def door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Admission]:
    """One that has 100 descriptors, of which 90 are open; 5 are kept for other things."""
    monkeypatch.setattr(admission, "descriptor_limit", lambda: 100)
    monkeypatch.setattr(admission, "open_descriptors", lambda: 90)
    monkeypatch.setattr(admission, "CONNECTING_SECONDS", 60.0)  # however slow the machine is
    made = Admission(str(tmp_path / "s"), 5)
    yield made
    made.close()


def answer(door: Admission) -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one:
        one.settimeout(30)
        one.connect(door.path)
        door.answer_requests()
        return one.recv(4096).decode()


def test_peers_that_are_on_their_way_count_until_they_are_connected(door: Admission) -> None:
    """Else workers that are replaced quickly would keep those that follow waiting, for a second."""
    assert [answer(door).split()[1] for _ in range(7)] == ["connect"] * 5 + ["later"] * 2
    assert "needs one more and keeps 5 for itself, it has 100" in door.refusal
    door.note_connected(os.getpid())
    assert [answer(door).split()[1] for _ in range(2)] == ["connect", "later"]
    for _ in range(9):  # also those that nobody counts any more
        door.note_connected(os.getpid())
    assert [answer(door).split()[1] for _ in range(6)] == ["connect"] * 5 + ["later"]


def test_who_connects_late_takes_no_place_of_another_that_is_on_its_way(door: Admission) -> None:
    """libzmq ends the process when it has no descriptor for a connection that it accepts."""
    assert [answer(door).split()[1] for _ in range(6)] == ["connect"] * 5 + ["later"]
    door.note_connected(1)  # it was admitted more than a second ago, and is not counted any more
    assert answer(door).split()[1] == "later"


def test_a_process_that_has_ended_is_not_on_its_way(door: Admission) -> None:
    asked = [subprocess.Popen([sys.executable, "-c", ASKS, door.path]) for _ in range(5)]
    assert wait_until(lambda: door.answer_requests() or len(door._on_their_way) == 5)
    assert answer(door).split()[1] == "later"
    for each in asked:
        assert each.wait(60) == 0
    assert [answer(door).split()[1] for _ in range(6)] == ["connect"] * 5 + ["later"]


def test_nobody_else_may_take_descriptors_before_they_are_counted_for_a_peer(door: Admission) -> None:
    counted: list[int] = []
    used = admission.open_descriptors
    door._before_admitting = lambda: counted.append(-1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(admission, "open_descriptors", lambda: counted.append(used()) or 90)
        assert answer(door).split()[1] == "connect"
    assert counted == [-1, 90]


def test_who_asks_in_vain_is_told_the_last_reason_though_the_last_question_has_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = iter([f"{admission._LATER} it has no descriptors", ""])
    monkeypatch.setattr(admission, "_ask", lambda path, deadline: next(answers))
    deadline = time.monotonic() + 1.5 * admission._RETRY_SECONDS
    with pytest.raises(HubUnavailable, match="it has no descriptors"):
        request_admission("some/path", deadline)
