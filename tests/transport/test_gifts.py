"""A descriptor from a hub to its peers: found without a wait, relied on once it is used; nothing stays open."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from pydp2.transport.gifts import Gifts, Wish
from pydp2.transport.handover import hand_over

from .conftest import Ends


class Asking(Ends):
    """A hub and a line that has asked it; ``peer``: who the line is at the hub."""

    def __init__(self, address: str, gift: tuple[int, bytes] | None) -> None:
        super().__init__(address)
        self.hub.gifts.gift = gift
        self.peer = self.hear(b"hello")
        self.line.ask()
        self.hear(b"asked")

    def hear(self, message: bytes) -> bytes:
        """All that the line has sent so far is heard."""
        self.line.send([message])
        peer, frames = self.received()
        assert [bytes(frame) for frame in frames] == [message]
        return peer

    @property
    def wish(self) -> Wish:
        assert self.line.wish is not None
        return self.line.wish


@pytest.fixture
def shown() -> Iterator[int]:
    """A descriptor of something."""
    descriptor = os.memfd_create("something")
    os.write(descriptor, b"here")
    yield descriptor
    os.close(descriptor)


def test_what_is_given_is_found_and_relied_on_once_it_is_used(shown: int, tmp_path: Path) -> None:
    ends = Asking(f"ipc://{tmp_path}/s", (shown, b"note"))
    assert not ends.hub.gifts.used(ends.peer)
    found = ends.wish.look()
    assert found is not None
    descriptor, note = found
    assert (os.pread(descriptor, 9, 0), note) == (b"here", b"note")
    os.close(descriptor)
    assert not ends.hub.gifts.used(ends.peer)
    ends.wish.use()
    assert ends.hub.gifts.used(ends.peer)
    assert ends.hub.gifts.used(ends.peer)
    assert ends.wish.look() is None
    assert not ends.hub.gifts.used(b"another")
    ends.hub.drop(ends.peer)
    assert not ends.hub.gifts.used(ends.peer)
    ends.close()


@pytest.mark.parametrize("how", ["has nothing", "has no use", "is gone"])
def test_where_nothing_comes_of_it_both_know(shown: int, tmp_path: Path, how: str) -> None:
    ends = Asking(f"ipc://{tmp_path}/s", None if how == "has nothing" else (shown, b"note"))
    if how == "has no use":
        ends.wish.close()
    elif how == "is gone":
        ends.hub.close()
        found = ends.wish.look()  # it was under way
        assert found is not None
        os.close(found[0])
        ends.wish.use()
    assert ends.wish.look() is None
    assert not ends.wish.open
    assert not ends.hub.gifts.used(ends.peer)
    ends.close()


def test_where_no_descriptor_can_be_handed_over_nothing_is_asked(shown: int, tmp_path: Path) -> None:
    ends = Asking("tcp://127.0.0.1:*", (shown, b"note"))
    assert not ends.wish.open
    ends.close()
    ends = Asking(f"ipc://{tmp_path}/s", (shown, b"note"))
    (tmp_path / "s.fd").unlink()
    assert Wish(ends.hub.address).token is None
    ends.close()


def test_who_asks_again_is_given_it_again(shown: int, tmp_path: Path) -> None:
    ends = Asking(f"ipc://{tmp_path}/s", (shown, b"note"))
    first = ends.wish
    ends.line.ask()
    ends.hear(b"again")
    for wish, used in ((first, False), (ends.wish, True)):
        found = wish.look()
        assert found is not None
        os.close(found[0])
        wish.use()
        assert ends.hub.gifts.used(ends.peer) is used
    ends.close()


def test_what_was_given_and_not_looked_at_is_closed_with_both_ends(shown: int, tmp_path: Path) -> None:
    """The next test would see it: a descriptor in a socket that nobody has is gone."""
    Asking(f"ipc://{tmp_path}/s", (shown, b"note")).close()


def test_a_socket_that_cannot_carry_it_changes_nothing(shown: int, tmp_path: Path) -> None:
    gifts = Gifts()
    gifts.gift = shown, b"note"
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as other:
        gifts.asked(b"peer", os.dup(other.fileno()))
    mine, theirs = socket.socketpair()
    mine.close()
    gifts.asked(b"one whose other end is closed", theirs.detach())
    assert not gifts.used(b"peer")
    assert not gifts.used(b"one whose other end is closed")
    assert hand_over(f"ipc://{tmp_path}/nobody", shown) is None


def test_a_flood_of_askers_is_bounded(shown: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pydp2.transport.gifts._PEERS", 3)
    gifts = Gifts()
    gifts.gift = shown, b"note"
    kept = []
    for i in range(9):
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        gifts.asked(b"%d" % i, theirs.detach())
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
