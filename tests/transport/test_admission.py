"""Who may connect to the socket of a hub while descriptors are few."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pydp2.transport import admission
from pydp2.transport.admission import Admission

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at the peer in the kernel")


@pytest.fixture
def door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Admission]:
    """One that has 100 descriptors, of which 90 are open; 5 are kept for other things."""
    monkeypatch.setattr(admission, "descriptor_limit", lambda: 100)
    monkeypatch.setattr(admission, "open_descriptors", lambda: 90)
    made = Admission(str(tmp_path / "s"), 5)
    yield made
    made.close()


def answer(door: Admission) -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one:
        one.settimeout(5)
        one.connect(door.path)
        door.answer_requests()
        return one.recv(4096).decode()


def test_peers_that_are_on_their_way_count_until_they_are_connected(door: Admission) -> None:
    """Else workers that are replaced quickly would keep those that follow waiting, for a second."""
    assert [answer(door).split()[1] for _ in range(7)] == ["connect"] * 5 + ["later"] * 2
    assert "needs one more and keeps 5 for itself, it has 100" in door.refusal
    door.note_connected()
    assert [answer(door).split()[1] for _ in range(2)] == ["connect", "later"]
    for _ in range(9):  # also those that nobody counts any more
        door.note_connected()
    assert [answer(door).split()[1] for _ in range(6)] == ["connect"] * 5 + ["later"]
