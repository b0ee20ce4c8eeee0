"""A hub and its lines, over each of the ways in which frames travel: every way keeps the same contract."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest

from pydp2.transport import Hub, Line, PeerGone, Poller, in_process, slabs, sockets

MAX_FRAME = 1 << 16
Made = TypeVar("Made")


def let_in(hub: Any, make: Callable[[], Made]) -> Made:
    """What ``make`` makes, while ``hub`` lets in who comes: a line waits for that."""
    with ThreadPoolExecutor(1) as one:
        made = one.submit(make)
        while not made.done():
            waiting(hub, 0.005)
    return made.result()


def waiting(hub: Any, seconds: float) -> bool:
    """Whether there is something for ``hub`` within ``seconds``; meanwhile it lets in who comes."""
    poll = Poller()
    for handle in (hub.handle, *hub.listeners):
        poll.add(handle)
    deadline = time.monotonic() + seconds
    while True:
        left = deadline - time.monotonic()
        ready = poll.wait(max(0, int(left * 1000)))
        hub.accept(time.monotonic())
        if hub.handle in ready or left <= 0:
            return hub.handle in ready


class Ends:
    """A hub at ``address``, and a line to it."""

    def __init__(self, address: str, max_frame: int = -1, lends: bool = False) -> None:
        self.contexts = sockets.new_context(), sockets.new_context()
        self.hub = Hub(self.contexts[0], address, max_frame)
        self.line = let_in(self.hub, lambda: Line(self.contexts[1], self.hub.address, share_send_slab=lends))

    def received(self) -> tuple[bytes, list[memoryview]]:
        """What the hub hears next, and from whom."""
        while (received := self.hub.receive()) is None:
            assert waiting(self.hub, 30)
        return received

    def close(self) -> None:
        self.line.close()
        self.hub.close()
        for context in self.contexts:
            context.term()


class Joined:
    """A hub, and lines to it on demand; all are closed at the end."""

    def __init__(self, hub: Callable[[], Any], line: Callable[[Any, bool], Any]) -> None:
        self._stack = contextlib.ExitStack()
        self._line = line
        self.hub = hub()
        self._stack.callback(self.hub.close)

    def line(self, watch: bool = False) -> Any:
        line = let_in(self.hub, lambda: self._line(self.hub, watch))
        self._stack.callback(line.close)
        return line

    def hear(self, count: int = 1, seconds: float = 30.0) -> list[tuple[bytes, list[bytes]]]:
        """The next ``count`` messages at the hub."""
        heard: list[tuple[bytes, list[bytes]]] = []
        while len(heard) < count:
            received = self.hub.receive()
            if received is None:
                assert waiting(self.hub, seconds), f"only {len(heard)} of {count} messages came"
            else:
                heard.append((received[0], [bytes(frame) for frame in self.hub.open_message(*received)]))
        return heard

    def meet(self, line: Any) -> bytes:
        """The hub's name for ``line``."""
        line.send([b"hello"])
        ((peer, frames),) = self.hear()
        assert frames == [b"hello"]
        return peer

    def close(self) -> None:
        self._stack.close()


def joined(way: str, folder: Path, max_frame: int = MAX_FRAME) -> Iterator[Joined]:
    if way == "memory":
        ends = Joined(
            lambda: in_process.InProcessHub(max_frame), lambda hub, watch: in_process.InProcessLine(hub, watch)
        )
        yield ends
        ends.close()
        return
    theirs, ours = sockets.new_context(), sockets.new_context()  # as in two processes
    address = "tcp://127.0.0.1:*" if way == "tcp" else f"ipc://{folder}/s"

    def line(hub: Any, watch: bool) -> Line:
        one = Line(ours, hub.address, watch=watch, share_send_slab=way == "shared")
        if way == "shared":
            one.share_receive_slab()
        return one

    ends = Joined(lambda: Hub(theirs, address, max_frame), line)
    with pytest.MonkeyPatch.context() as patch:
        if way == "shared":
            patch.setattr(slabs, "MIN_SLAB_BYTES", 1)
        yield ends
        ends.close()
    ours.term()
    theirs.term()


def gone(ends: Joined | Ends, peer: bytes, seconds: float = 30.0) -> bool:
    """Whether sending to ``peer`` fails within ``seconds``."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            ends.hub.send(peer, [b"are you there"])
        except PeerGone:
            ends.hub.forget_peer(peer)
            return True
        time.sleep(0.005)
    return False


def start_zeromq_thread() -> None:
    """pyzmq starts a thread when it first sends without a copy, and keeps it: no test has left it behind."""
    one = sockets.new_context()
    hub = Hub(one, "tcp://127.0.0.1:*", -1)
    line = Line(one, hub.address)
    line.send([bytes(1 << 20)])
    assert waiting(hub, 30)
    line.close()
    hub.close()
    one.term()


@pytest.fixture(scope="session", autouse=True)
def _zeromq_has_its_thread() -> None:
    start_zeromq_thread()


@pytest.fixture(params=["memory", "ipc", "shared", "tcp"])
def ends(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Joined]:
    yield from joined(request.param, tmp_path_factory.mktemp("s"))


@pytest.fixture(params=["ipc", "shared", "tcp"])
def socket_ends(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Joined]:
    yield from joined(request.param, tmp_path_factory.mktemp("s"))
