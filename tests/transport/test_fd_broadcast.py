"""A descriptor from a hub to its peers: found without a wait, relied on once it is used; nothing stays open."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from pydp2.transport.fd_broadcast import FdOffer, FdRequest
from pydp2.transport.fd_passing import send_fd

from .conftest import Ends


class Asking(Ends):
    """A hub and a line that has asked it; ``peer``: who the line is at the hub."""

    def __init__(self, address: str, gift: tuple[int, bytes] | None) -> None:
        super().__init__(address)
        self.hub.fd_offer.offered = gift
        self.peer = self.hear(b"hello")
        self.line.request_fd()
        self.hear(b"asked")

    def hear(self, message: bytes) -> bytes:
        """All that the line has sent so far is heard."""
        self.line.send([message])
        peer, frames = self.received()
        assert [bytes(frame) for frame in frames] == [message]
        return peer

    @property
    def wish(self) -> FdRequest:
        assert self.line.fd_request is not None
        return self.line.fd_request


@pytest.fixture
def shown() -> Iterator[int]:
    """A descriptor of something."""
    descriptor = os.memfd_create("something")
    os.write(descriptor, b"here")
    yield descriptor
    os.close(descriptor)


def test_what_is_given_is_found_and_relied_on_once_it_is_used(shown: int, tmp_path: Path) -> None:
    ends = Asking(f"ipc://{tmp_path}/s", (shown, b"note"))
    assert not ends.hub.fd_offer.is_used_by(ends.peer)
    found = ends.wish.poll()
    assert found is not None
    descriptor, note = found
    assert (os.pread(descriptor, 9, 0), note) == (b"here", b"note")
    assert ends.wish.poll() == found
    assert not ends.hub.fd_offer.is_used_by(ends.peer)
    ends.wish.accept()
    assert ends.hub.fd_offer.is_used_by(ends.peer)
    assert ends.hub.fd_offer.is_used_by(ends.peer)
    assert ends.wish.poll() is None
    assert not ends.hub.fd_offer.is_used_by(b"another")
    ends.hub.forget_peer(ends.peer)
    assert not ends.hub.fd_offer.is_used_by(ends.peer)
    ends.close()


@pytest.mark.parametrize("how", ["has nothing", "has no use", "is gone"])
def test_where_nothing_comes_of_it_both_know(shown: int, tmp_path: Path, how: str) -> None:
    ends = Asking(f"ipc://{tmp_path}/s", None if how == "has nothing" else (shown, b"note"))
    if how == "has no use":
        ends.wish.close()
    elif how == "is gone":
        ends.hub.close()
        found = ends.wish.poll()  # it was under way
        assert found is not None
        ends.wish.accept()
    assert ends.wish.poll() is None
    assert not ends.wish.is_open
    assert not ends.hub.fd_offer.is_used_by(ends.peer)
    ends.close()


def test_where_no_descriptor_can_be_handed_over_nothing_is_asked(shown: int, tmp_path: Path) -> None:
    ends = Asking("tcp://127.0.0.1:*", (shown, b"note"))
    assert not ends.wish.is_open
    ends.close()
    ends = Asking(f"ipc://{tmp_path}/s", (shown, b"note"))
    (tmp_path / "s.fd").unlink()
    assert FdRequest(ends.hub.address).token is None
    ends.close()


def test_who_asks_again_is_given_it_again(shown: int, tmp_path: Path) -> None:
    ends = Asking(f"ipc://{tmp_path}/s", (shown, b"note"))
    first = ends.wish
    ends.line.request_fd()
    ends.hear(b"again")
    for wish, used in ((first, False), (ends.wish, True)):
        found = wish.poll()
        assert found is not None
        wish.accept()
        assert ends.hub.fd_offer.is_used_by(ends.peer) is used
    ends.close()


def test_what_was_given_and_not_looked_at_is_closed_with_both_ends(shown: int, tmp_path: Path) -> None:
    """The next test would see it: a descriptor in a socket that nobody has is gone."""
    Asking(f"ipc://{tmp_path}/s", (shown, b"note")).close()


def test_a_socket_that_cannot_carry_it_changes_nothing(shown: int, tmp_path: Path) -> None:
    gifts = FdOffer()
    gifts.offered = shown, b"note"
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as other:
        gifts.answer(b"peer", os.dup(other.fileno()))
    mine, theirs = socket.socketpair()
    mine.close()
    gifts.answer(b"one whose other end is closed", theirs.detach())
    assert not gifts.is_used_by(b"peer")
    assert not gifts.is_used_by(b"one whose other end is closed")
    assert send_fd(f"ipc://{tmp_path}/nobody", shown) is None


def test_a_flood_of_askers_is_bounded(shown: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pydp2.transport.fd_broadcast._MAX_PEERS", 3)
    gifts = FdOffer()
    gifts.offered = shown, b"note"
    kept = []
    for i in range(9):
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        gifts.answer(b"%d" % i, theirs.detach())
        kept.append(mine)
    told = []
    for mine in kept:
        _, descriptors, _, _ = socket.recv_fds(mine, 64, 4)
        told.append(len(descriptors))
        for descriptor in descriptors:
            os.close(descriptor)
        mine.close()
    assert told == [1, 1, 1, 0, 0, 0, 0, 0, 0]
    gifts.close()
