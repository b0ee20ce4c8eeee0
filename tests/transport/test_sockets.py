"""What only real sockets have: addresses, memory that is theirs, processes that die."""

from __future__ import annotations

import contextlib
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from pydp2.errors import ServiceUnreachable
from pydp2.transport import Hub, HubUnavailable, Line, owned_arrays
from pydp2.transport.service_address import split_token, uses_ipv6
from pydp2.transport.sockets import new_context
from pydp2.transport.zap import present_token
from tests.transport.conftest import MAX_FRAME, Ends, Joined, gone, joined, let_in, waiting

LINUX = sys.platform == "linux"


@pytest.fixture
def zctx() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    one = new_context()
    yield one
    one.destroy(linger=0)  # a test that fails leaves its sockets open, and term() would wait for them


def test_an_address_that_cannot_be_bound_is_refused_with_the_way_out(
    zctx: zmq.Context[zmq.Socket[bytes]], tmp_path: Path
) -> None:
    first = Hub(zctx, "tcp://127.0.0.1:*", MAX_FRAME)
    for address in (first.address, f"ipc://{tmp_path}/missing/s", f"ipc://{'x' * 200}", "nonsense://x", "tcp://x", ""):
        with pytest.raises(ServiceUnreachable, match=r"^cannot bind .*; choose an address that is free"):
            Hub(zctx, address, MAX_FRAME)
    first.close()


def test_an_address_that_is_none_cannot_be_connected_to(zctx: zmq.Context[zmq.Socket[bytes]]) -> None:
    for address in ("nonsense://x", "tcp://", "tcp://127.0.0.1", "", "ipc://" + "x" * 200):
        for watch in (False, True):
            with pytest.raises(ServiceUnreachable, match="is not an address that can be connected to"):
                Line(zctx, address, watch=watch)


def test_a_watched_line_to_nobody_is_lost(zctx: zmq.Context[zmq.Socket[bytes]], tmp_path: Path) -> None:
    free = Hub(zctx, "tcp://127.0.0.1:*", MAX_FRAME)
    address = free.address
    free.close()
    line = Line(zctx, address, watch=True)
    line.send([b"anybody there?"])
    assert line.wait(30_000)
    assert line.is_lost
    line.close()
    with pytest.raises(HubUnavailable):
        Line(zctx, f"ipc://{tmp_path}/s", watch=True)


@pytest.mark.skipif(not LINUX, reason="other kernels have no such option")
def test_a_line_whose_other_end_acknowledges_nothing_is_lost_after_its_ack_timeout(
    zctx: zmq.Context[zmq.Socket[bytes]],
) -> None:
    """A hub that takes in no more stands for a path that is cut: either way nothing is acknowledged."""
    hub = Hub(zctx, "tcp://127.0.0.1:*", MAX_FRAME, max_waiting=1)
    lines = {
        seconds: let_in(hub, partial(Line, zctx, hub.address, watch=True, ack_timeout=seconds))
        for seconds in (0.0, 0.5)
    }
    for line in lines.values():
        for _ in range(1000):
            line.send([bytes(MAX_FRAME)])
    hub.accept(time.monotonic())
    deadline = time.monotonic() + 20
    while not lines[0.5].is_lost and time.monotonic() < deadline:
        lines[0.5].wait(100)
    assert lines[0.5].is_lost
    assert not lines[0.0].is_lost
    for line in lines.values():
        line.close()
    hub.close()


def test_the_address_of_a_hub_is_the_one_that_was_really_bound(zctx: zmq.Context[zmq.Socket[bytes]]) -> None:
    hub = Hub(zctx, "tcp://127.0.0.1:*", MAX_FRAME)
    assert int(split_token(hub.address)[0].rpartition(":")[2]) > 0
    hub.close()


def test_ipv6_is_for_its_addresses_and_for_names_that_have_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {("both", socket.AF_INET), ("both", socket.AF_INET6), ("only6", socket.AF_INET6)}

    def looked_up(host: str, port: None, family: int) -> list[str]:
        if (host, family) not in there:
            raise socket.gaierror(socket.EAI_AGAIN if host == "nobody_answers" else socket.EAI_NONAME, "")
        return ["found"]

    for address in ("tcp://127.0.0.1:7700", "tcp://localhost:7700?key=00", "tcp://*:7700", "ipc://[::1]:7"):
        assert not uses_ipv6(address)
    assert uses_ipv6("tcp://[::1]:7700?key=00")
    monkeypatch.setattr(socket, "getaddrinfo", looked_up)
    names = ("both", "only6", "nobody_answers", "unknown")
    assert [name for name in names if uses_ipv6(f"tcp://{name}:7700?key=00")] == ["only6"]


def test_large_frames_pass_in_both_directions_without_a_copy(tmp_path_factory: pytest.TempPathFactory) -> None:
    for ends in joined("ipc", tmp_path_factory.mktemp("s"), max_frame=-1):
        line = ends.line()
        peer = ends.meet(line)
        big = np.arange(24 << 20, dtype=np.uint8)
        line.send([b"head", big])
        ((_, frames),) = ends.hear()
        assert frames[1] == big.tobytes()
        ends.hub.send(peer, [b"head", big])
        received = line.receive(20_000)
        (array,) = owned_arrays(received[1:])
        assert np.shares_memory(array, np.frombuffer(received[1], np.uint8)), "large frames are not copied"
        assert array.flags.writeable
        assert np.array_equal(array, big)


def test_a_small_array_keeps_nothing_but_itself_alive(socket_ends: Joined) -> None:
    """libzmq lays small frames side by side in one buffer; an array over it would keep all of it."""
    line = socket_ends.line()
    peer = socket_ends.meet(line)
    socket_ends.hub.send(peer, [b"x" * 100] * 10)
    received = line.receive(30_000)
    arrays = owned_arrays(received)
    frames = [np.frombuffer(frame, np.uint8) for frame in received]
    assert not any(np.shares_memory(array, frame) for array in arrays for frame in frames)
    assert all(array.flags.owndata for array in arrays)


def test_arrays_outlive_their_socket_and_context(tmp_path_factory: pytest.TempPathFactory) -> None:
    kept = []
    for ends in joined("ipc", tmp_path_factory.mktemp("s"), max_frame=-1):
        line = ends.line()
        peer = ends.meet(line)
        ends.hub.send(peer, [np.full(1 << 20, 7, np.uint8), b"small"])
        received = line.receive(30_000)
        kept += owned_arrays(received)
    assert kept[0].min() == kept[0].max() == 7
    assert kept[1].tobytes() == b"small"


@pytest.mark.skipif(not LINUX, reason="counts descriptors in /proc")
def test_two_hundred_connections_leave_no_descriptor(tmp_path: Path) -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = descriptors()
    for i in range(200):
        one = new_context()
        hub = Hub(one, f"ipc://{tmp_path}/s{i % 7}", MAX_FRAME)
        line = let_in(hub, partial(Line, one, hub.address, watch=i % 2 == 0))
        line.send([b"x"])
        if i % 3 == 0:
            assert line.wait(0) in (False, True)
        for end in (line, hub) if i % 5 else (hub, line):
            end.close()
        one.term()
    assert descriptors() == before


CHILD = """
import sys, time
from pydp2.transport import Line
from pydp2.transport.sockets import new_context
line = Line(new_context(), sys.argv[1], watch=True)
line.send([b"hello"])
line.receive(-1)
print("told", flush=True)
line.wait(30000)
print("lost" if line.is_lost else "not lost", flush=True)
"""


def test_a_peer_that_is_killed_is_gone(socket_ends: Joined) -> None:
    child = subprocess.Popen([sys.executable, "-c", CHILD, socket_ends.hub.address])
    ((peer, _),) = socket_ends.hear()
    child.send_signal(signal.SIGKILL)
    child.wait(30)
    assert gone(socket_ends, peer)


def test_a_peer_that_lives_sees_that_the_hub_is_closed(socket_ends: Joined) -> None:
    child = subprocess.Popen([sys.executable, "-c", CHILD, socket_ends.hub.address], stdout=subprocess.PIPE)
    assert child.stdout is not None
    ((peer, _),) = socket_ends.hear()
    socket_ends.hub.send(peer, [b"x"])
    assert child.stdout.readline() == b"told\n"
    socket_ends.hub.close()
    assert child.communicate(timeout=60)[0] == b"lost\n"


def test_what_is_no_zeromq_at_all_does_not_disturb_a_hub(tmp_path_factory: pytest.TempPathFactory) -> None:
    import socket as plain_socket

    for ends in joined("tcp", tmp_path_factory.mktemp("s")):
        host, _, port = split_token(ends.hub.address)[0].removeprefix("tcp://").rpartition(":")
        strangers = []
        for text in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100, b"\xff\0\0\0\0\0\0\0\1\x7f" + b"\xff" * 200, b""):
            stranger = plain_socket.create_connection((host, int(port)), 5)
            stranger.sendall(text)
            strangers.append(stranger)
        line = ends.line()
        ends.hub.send(ends.meet(line), [b"fine"])
        assert line.receive(30_000) is not None
        for stranger in strangers:
            stranger.close()


def test_a_peer_that_floods_a_hub_has_to_wait_and_nobody_else(zctx: zmq.Context[zmq.Socket[bytes]]) -> None:
    hub = Hub(zctx, "tcp://127.0.0.1:*", MAX_FRAME, max_waiting=10)
    flood = zctx.socket(zmq.DEALER)
    flood.setsockopt(zmq.LINGER, 0)
    flood.setsockopt(zmq.SNDHWM, 10)
    flood.setsockopt(zmq.SNDTIMEO, 500)
    endpoint, token = split_token(hub.address)
    present_token(flood, token)
    flood.connect(endpoint)
    flood.send(b"")
    assert waiting(hub, 30)
    sent = 0
    with contextlib.suppress(zmq.Again):
        while sent < 1000:
            flood.send(bytes(MAX_FRAME))
            sent += 1
    assert sent < 1000, "more than the kernel and both ends hold"
    line = Line(zctx, hub.address)
    line.send([b"me too"])
    deadline = time.monotonic() + 30
    heard = b""
    while heard != b"me too":
        assert time.monotonic() < deadline, "only the peer that floods is heard"
        received = hub.receive()
        if received is None:
            assert waiting(hub, 30)
            continue
        heard = bytes(received[1][0])
        with contextlib.suppress(zmq.Again):
            flood.send(bytes(MAX_FRAME), zmq.NOBLOCK)  # it goes on as soon as there is room
    for end in (line, hub, flood):
        end.close()


@pytest.mark.parametrize("use", ["send", "wait", "poll", "receive_frames"])
def test_a_message_is_found_after_another_use_of_the_socket_took_its_signal(use: str, tmp_path: Path) -> None:
    ends = Ends(f"ipc://{tmp_path / 's'}")
    try:
        line, frames = ends.line, list[Any]()
        line.send([b"here"])
        peer, _ = ends.received()
        line.receive_frames(frames)
        assert not frames
        descriptor = select.poll()
        descriptor.register(line.handle.getsockopt(zmq.FD), select.POLLIN)
        line.receive_frames(frames)  # nothing has come, as it knows from now on
        for number in range(3):
            ends.hub.send(peer, [b"news", b"%d" % number])
            assert descriptor.poll(30_000)
            time.sleep(0.01)  # libzmq looks for its signals in a call of send() at most once in a millisecond
            match use:
                case "send":
                    line.send([b"more"])
                case "wait":
                    assert line.wait(30_000)
                case "poll":
                    assert line.handle.poll(0)
            line.receive_frames(frames)
            assert [bytes(frame) for frame in frames] == [b"news", b"%d" % number]
            frames.clear()
            line.receive_frames(frames)
            assert not frames
    finally:
        ends.close()
