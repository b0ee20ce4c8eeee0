"""New TCP connections are kept away while descriptors are few; those that are established go on."""

from __future__ import annotations

import os
import resource
import socket
import sys
from collections.abc import Callable, Iterator

import pytest

from pydp2.transport import accept_filter, descriptors
from pydp2.transport.accept_filter import AcceptFilter

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="filters of sockets, /proc")


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as one:
        yield one


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """``left(n)``: as if so many descriptors were left."""

    def so_many(count: int) -> None:
        monkeypatch.setattr(accept_filter, "descriptor_limit", lambda: 1000)
        monkeypatch.setattr(accept_filter, "open_descriptors", lambda: 1000 - count)

    return so_many


def comes_in(listener: socket.socket, seconds: float) -> bool:
    """Whether somebody who connects is there to be accepted."""
    with socket.socket() as one:
        one.settimeout(seconds)
        try:
            one.connect(listener.getsockname())
        except TimeoutError:
            return False
        listener.settimeout(seconds)
        listener.accept()[0].close()
        return True


def test_it_shuts_with_few_left_and_opens_with_more(listener: socket.socket, left: Callable[[int], None]) -> None:
    door = AcceptFilter(listener.fileno())
    with socket.create_connection(listener.getsockname()) as before:
        there, _ = listener.accept()
        left(17)
        door.adjust()
        assert comes_in(listener, 2)
        left(16)
        door.adjust()
        assert "has 1000 (RLIMIT_NOFILE) and 984 of them are open" in door.refusal
        assert not comes_in(listener, 0.3)
        before.sendall(b"still here")
        assert there.recv(100) == b"still here"
        there.close()
        left(32)
        door.adjust()
        assert not comes_in(listener, 0.3), "not open at once: it would be shut again soon"
        left(33)
        door.adjust()
        assert comes_in(listener, 5)
    door.close()


def test_who_waits_when_it_shuts_is_turned_away(listener: socket.socket, left: Callable[[int], None]) -> None:
    """libzmq would try to accept it again and again."""
    door = AcceptFilter(listener.fileno())
    with socket.create_connection(listener.getsockname()) as waits:
        waits.settimeout(5)
        left(0)
        door.adjust()
        with pytest.raises(BlockingIOError):
            listener.accept()
        assert waits.recv(1) == b""
    door.close()


def test_it_is_held_shut_for_a_worker_only_where_few_are_left(
    listener: socket.socket, left: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    door = AcceptFilter(listener.fileno())
    left(600)
    door.close_for(1.0)
    assert comes_in(listener, 2)
    left(20)  # fewer than would open it again if it had been shut for that
    now = 50.0
    monkeypatch.setattr(accept_filter.time, "monotonic", lambda: now)
    door.close_for(1.0)
    assert not comes_in(listener, 0.3)
    door.adjust()
    assert not comes_in(listener, 0.3)
    assert door.refusal == "", "nobody has to know"
    now = 51.1
    door.adjust()
    monkeypatch.undo()
    assert comes_in(listener, 5)
    door.close()


def test_it_pauses_when_many_are_refused_in_a_short_time(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    door, now = AcceptFilter(listener.fileno()), 50.0
    monkeypatch.setattr(accept_filter.time, "monotonic", lambda: now)
    for _ in range(3):
        door.note_refused(60)
        assert comes_in(listener, 2)
        door.adjust()
    door.note_refused(60)
    door.note_refused(5)
    assert not comes_in(listener, 0.3)
    door.adjust()
    assert not comes_in(listener, 0.3)
    now = 50.2
    door.note_refused(0)
    door.adjust()
    monkeypatch.undo()
    assert comes_in(listener, 5)
    door.close()


def test_descriptors_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    before = descriptors.open_descriptors()
    more = [os.dup(0) for _ in range(7)]
    assert descriptors.open_descriptors() == before + 7
    for each in more:
        os.close(each)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert descriptors.descriptor_limit() == min(soft, descriptors.MAX_DESCRIPTORS)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(200, soft), hard))
        descriptors.raise_descriptor_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(hard, max(200, descriptors.MAX_DESCRIPTORS))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
