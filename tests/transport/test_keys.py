"""Connections with keys: who comes in, in which role, and who does not any more; over TCP, and on this machine."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest
import zmq

from pydp2.errors import OptionError, ServiceUnreachable
from pydp2.transport import Hub, Line, PeerGone, keys, sockets
from pydp2.transport.admission import request_admission
from pydp2.transport.keys import KeyPair, new_key_pair, public_key
from pydp2.transport.line import Frame
from pydp2.transport.service_address import split_key, with_key
from pydp2.transport.slabs import MIN_SLAB_BYTES
from tests.transport.conftest import let_in, waiting


class Allowed:
    """Keys that a test allows."""

    def __init__(self, **roles: KeyPair) -> None:
        self.pair = new_key_pair()
        self.roles = {pair.public: role for role, pair in roles.items()}
        self.looks = 0

    def role_of(self, key: str) -> str | None:
        return self.roles.get(key)

    def refresh(self) -> None:
        self.looks += 1


class Ends:
    """A hub with keys on the loopback, and with ``local`` at that path too, and lines to it."""

    def __init__(self, access: Allowed, local: Path | None = None) -> None:
        self.local = "" if local is None else with_key(f"ipc://{local}", access.pair.public)
        self._contexts = [sockets.new_context()]
        self._lines: list[Line] = []
        self.refusals: list[str] = []
        self.hub = Hub(self._contexts[0], "tcp://127.0.0.1:*", -1, access=access, local=self.local)
        self.hub.on_refusal = lambda text, kind: self.refusals.append(text)

    def line(self, pair: KeyPair | None, address: str = "") -> Line:
        self._contexts.append(sockets.new_context())
        where = address or self.hub.address
        line = let_in(self.hub, lambda: Line(self._contexts[-1], where, watch=True, key_pair=pair))
        self._lines.append(line)
        return line

    def heard(self, seconds: float = 30.0) -> tuple[bytes, list[bytes]] | None:
        """What the hub hears next within ``seconds``."""
        deadline = time.monotonic() + seconds
        while (received := self.hub.receive()) is None:
            if not waiting(self.hub, 0.05) and time.monotonic() > deadline:
                return None
        return received[0], [bytes(frame) for frame in received[1]]

    def close(self) -> None:
        for line in self._lines:
            line.close()
        self.hub.close()
        for context in self._contexts:
            context.term()


@pytest.fixture
def opened() -> Iterator[Callable[..., Ends]]:
    made: list[Ends] = []

    def make(access: Allowed, local: Path | None = None) -> Ends:
        made.append(Ends(access, local))
        return made[-1]

    yield make
    for ends in made:
        ends.close()


def test_a_pair_shows_its_public_key_alone() -> None:
    pair = new_key_pair()
    assert public_key(pair.secret) == pair.public != new_key_pair().public
    assert pair.secret not in repr(pair)
    assert pair.public in repr(pair)
    assert len(pair.public) == len(pair.secret) == keys.KEY_DIGITS


@pytest.mark.parametrize("is_local", [False, True])
def test_a_peer_whose_key_is_allowed_talks_to_the_hub_in_the_role_of_its_key(
    is_local: bool, opened: Callable[..., Ends], tmp_path: Path
) -> None:
    trainer, observer = new_key_pair(), new_key_pair()
    access = Allowed(trainer=trainer, observer=observer)
    ends = opened(access, tmp_path / "s" if is_local else None)
    assert split_key(ends.hub.address)[1] == access.pair.public
    assert access.pair.secret not in ends.hub.address
    for pair, role in ((trainer, "trainer"), (observer, "observer")):
        line = ends.line(pair, ends.local)
        line.send([b"head", b"body"])
        heard = ends.heard()
        assert heard is not None
        peer, frames = heard
        assert frames == [b"head", b"body"]
        assert ends.hub.role_of(peer) == role
        ends.hub.send(peer, [b"answer"])
        answer = line.receive(30_000)
        assert answer is not None
        assert [bytes(frame) for frame in answer] == [b"answer"]
    assert ends.refusals == []


@pytest.mark.parametrize("wrong", ["a key that nobody knows", "the key of another service", "a token", "nothing"])
def test_no_other_peer_says_a_word_to_the_hub(wrong: str, opened: Callable[..., Ends]) -> None:
    known = new_key_pair()
    ends = opened(Allowed(trainer=known))
    endpoint, _ = split_key(ends.hub.address)
    address, pair = {
        "a key that nobody knows": (ends.hub.address, new_key_pair()),
        "the key of another service": (with_key(endpoint, new_key_pair().public), known),
        "a token": (f"{endpoint}?token={'0' * 32}", None),
        "nothing": (ends.hub.address, None),
    }[wrong]
    if wrong == "nothing":
        with pytest.raises(ServiceUnreachable, match="needs a key of yours"):
            ends.line(pair, address)
        raw = zmq.Context()
        socket = raw.socket(zmq.DEALER)
        socket.connect(endpoint)
        socket.send(b"hello")
        assert ends.heard(1.0) is None
        raw.destroy(linger=0)
        return
    line = ends.line(pair, address)
    line.send([b"hello"])
    assert ends.heard(1.0) is None
    deadline = time.monotonic() + 30
    while not line.is_lost and time.monotonic() < deadline:
        waiting(ends.hub, 0.01)
    assert line.is_lost
    assert line.read_refusal or wrong != "a key that nobody knows", "the others do not understand each other at all"
    told = [text for text in ends.refusals if "without a key that is allowed tried to connect" in text]
    assert bool(told) == (wrong == "a key that nobody knows"), "libzmq asks once the encryption holds, not before"
    counted = [(each["address"], each["reason"]) for each in ends.hub.refusals.to_plain(time.monotonic())]
    assert counted == [("127.0.0.1", "without a key that is allowed")] * bool(told)


@pytest.mark.parametrize("role", [None, "observer"])
def test_a_peer_whose_key_was_removed_or_has_another_role_is_not_heard_any_more(
    role: str | None, opened: Callable[..., Ends], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "_REFRESH_SECONDS", 0.1)
    stays, goes = new_key_pair(), new_key_pair()
    access = Allowed(trainer=stays)
    access.roles[goes.public] = "trainer"
    ends = opened(access)
    lines = ends.line(stays), ends.line(goes)
    peers = [first_heard(ends, line) for line in lines]
    assert ends.hub.take_dropped() == []
    del access.roles[goes.public]
    if role is not None:
        access.roles[goes.public] = role
    looks = access.looks
    while access.looks < looks + 2:
        waiting(ends.hub, 0.01)
    assert ends.hub.role_of(peers[0]) == "trainer"
    assert ends.hub.role_of(peers[1]) == ""
    assert ends.hub.take_dropped() == [peers[1]]
    assert ends.hub.take_dropped() == []
    ends.hub.send(peers[1], [b"farewell"])
    ends.hub.forget_peer(peers[1])
    lines[1].send([b"second"])
    assert ends.heard(0.5) is None
    lines[0].send([b"second"])
    assert ends.heard() == (peers[0], [b"second"])
    farewell = lines[1].receive(30_000)
    assert farewell is not None
    assert [bytes(frame) for frame in farewell] == [b"farewell"]
    assert gone(ends, lines[1])
    assert not lines[0].is_lost
    with pytest.raises(PeerGone):
        ends.hub.send(peers[1], [b"more"])


def test_a_peer_of_which_libzmq_tells_neither_address_nor_descriptor_is_heard_as_long_as_its_key_is_allowed(
    opened: Callable[..., Ends], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As over a Unix socket where the C library is musl."""

    class Untold:
        def __init__(self, frame: zmq.Frame) -> None:
            self.frame = frame

        def get(self, name: int | str) -> int | str:
            if name != "User-Id":
                raise zmq.ZMQError(errno.EINVAL)
            return self.frame.get(name)

    real = keys._peer_of
    monkeypatch.setattr(keys, "_peer_of", lambda frame, access: real(cast(zmq.Frame, Untold(frame)), access))
    monkeypatch.setattr(keys, "_REFRESH_SECONDS", 1e9)  # the hub sees that a key was removed as its peer speaks
    stays, goes = new_key_pair(), new_key_pair()
    access = Allowed(trainer=stays)
    access.roles[goes.public] = "trainer"
    ends = opened(access, tmp_path / "s")
    lines = ends.line(stays, ends.local), ends.line(goes, ends.local)
    peers = [first_heard(ends, line) for line in lines]
    assert [ends.hub.role_of(peer) for peer in peers] == ["trainer", "trainer"]
    del access.roles[goes.public]
    lines[1].send([b"second"])
    assert ends.heard(0.5) is None
    assert ends.hub.take_dropped() == [peers[1]]
    ends.hub.forget_peer(peers[1])
    lines[0].send([b"second"])
    assert ends.heard() == (peers[0], [b"second"])


def first_heard(ends: Ends, line: Line) -> bytes:
    """The peer that ``line`` is at the hub, which hears it for the first time."""
    line.send([b"first"])
    heard = ends.heard()
    assert heard is not None
    return heard[0]


def gone(ends: Ends, line: Line) -> bool:
    """True if the connection of ``line`` ends within seconds."""
    deadline = time.monotonic() + 30
    while not line.is_lost and time.monotonic() < deadline:
        waiting(ends.hub, 0.01)
    return line.is_lost


def test_the_connection_of_a_peer_ends_when_the_hub_wants_it(opened: Callable[[Allowed], Ends]) -> None:
    pair = new_key_pair()
    ends = opened(Allowed(trainer=pair))
    lines = ends.line(pair), ends.line(pair)
    peers = [first_heard(ends, line) for line in lines]
    ends.hub.end_peer(peers[1])
    lines[1].send([b"more"])
    assert ends.heard(0.3) is None, "it is not heard any more"
    assert gone(ends, lines[1])
    lines[0].send([b"second"])
    assert ends.heard() == (peers[0], [b"second"])
    assert ends.hub._peer_keys is not None
    assert ends.hub._peer_keys._peers.keys() == {peers[0]}
    assert not ends.hub._peer_keys._ending


def test_a_descriptor_that_became_another_connection_stays_open(opened: Callable[[Allowed], Ends]) -> None:
    pair = new_key_pair()
    ends = opened(Allowed(trainer=pair))
    lines = ends.line(pair), ends.line(pair)
    peers = [first_heard(ends, line) for line in lines]
    known = ends.hub._peer_keys
    assert known is not None
    known._peers[peers[1]] = known._peers[peers[1]]._replace(descriptor=known._peers[peers[0]].descriptor)
    ends.hub.end_peer(peers[1])
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline:
        waiting(ends.hub, 0.01)
    assert not lines[0].is_lost


def test_an_address_that_is_refused_time_and_again_makes_the_hub_read_no_files(
    opened: Callable[[Allowed], Ends],
) -> None:
    access = Allowed(trainer=new_key_pair())
    ends = opened(access)
    for _ in range(20):
        ends.hub.refusals.add("127.0.0.1", "without a key that is allowed", time.monotonic())
    known = ends.hub._peer_keys
    assert known is not None
    looks = access.looks
    stranger = new_key_pair().public
    assert not known.is_allowed(stranger, "127.0.0.1")
    assert access.looks == looks
    assert not known.is_allowed(stranger, "127.0.0.2")
    assert access.looks == looks + 1


def test_peers_of_this_machine_share_memory_with_the_hub_beside_others_over_tcp(
    opened: Callable[..., Ends], tmp_path: Path
) -> None:
    trainer = new_key_pair()
    ends = opened(Allowed(trainer=trainer), tmp_path / "s")
    for address, shares in ((ends.local, True), (ends.hub.address, False)):
        line = ends.line(trainer, address)
        line.send([b"first"])
        heard = ends.heard()
        assert heard is not None
        line.share_receive_slab()
        line.send([b"second"])
        assert ends.heard() == (heard[0], [b"second"])
        ends.hub.send(heard[0], [b"large", bytes(MIN_SLAB_BYTES)])
        assert line.wait(30_000)
        frames: list[Frame] = []
        line.receive_frames(frames)
        assert line.is_in_slab(frames) == shares
        assert [len(frame) for frame in line.open_message(frames)] == [5, MIN_SLAB_BYTES]
        assert line.write_progress(7) == shares
        assert ends.hub.progress_of(heard[0]) == (7 if shares else 0)


@pytest.mark.parametrize("wrong", ["a key that nobody knows", "the key of another service", "nothing"])
def test_on_this_machine_too_no_peer_without_a_key_says_a_word(
    wrong: str, opened: Callable[..., Ends], tmp_path: Path
) -> None:
    known = new_key_pair()
    path = tmp_path / "s"
    ends = opened(Allowed(trainer=known), path)
    if wrong == "nothing":
        with pytest.raises(ServiceUnreachable, match="needs a key of yours"):
            ends.line(None, ends.local)
        inner = let_in(ends.hub, lambda: request_admission(str(path), None))
        raw = zmq.Context()
        socket = raw.socket(zmq.DEALER)
        socket.connect(f"ipc://{inner}")
        socket.send(b"hello")
        assert ends.heard(1.0) is None
        raw.destroy(linger=0)
        return
    of_service = ends.local if wrong == "a key that nobody knows" else with_key(f"ipc://{path}", new_key_pair().public)
    line = ends.line(known if wrong == "the key of another service" else new_key_pair(), of_service)
    line.send([b"hello"])
    assert ends.heard(1.0) is None
    assert line.wait(30_000)
    assert line.is_lost


def test_without_curve_it_is_said_what_is_lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq, "has", lambda name: False)
    with pytest.raises(OptionError, match=r"keys need libzmq 4\.3\.3 or later with CURVE, this is .* without it"):
        new_key_pair()
    monkeypatch.undo()
    monkeypatch.setattr(zmq, "zmq_version_info", lambda: (4, 3, 2))
    with pytest.raises(OptionError, match=r"keys need libzmq 4\.3\.3 or later"):
        new_key_pair()
