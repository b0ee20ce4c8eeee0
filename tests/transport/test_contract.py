"""What every pair of ends keeps, over memory and over real sockets alike."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

from pydp2.transport import PeerGone, Poller, owned_arrays
from tests.transport.conftest import MAX_FRAME, Joined, gone, waiting


def told(line: Any, seconds: float = 30.0) -> list[bytes] | None:
    received = line.receive(int(seconds * 1000))
    return None if received is None else [bytes(frame) for frame in received]


def test_frames_arrive_as_they_were_sent_and_in_order(ends: Joined) -> None:
    line = ends.line()
    messages = [[b"a"], [b"b", b"", b"c"], [b""], [bytes(MAX_FRAME)], [b"x"] * 200]
    for message in messages:
        line.send(message)
    heard = ends.hear(len(messages))
    assert [frames for _, frames in heard] == messages
    assert len({peer for peer, _ in heard}) == 1
    for message in messages:
        ends.hub.send(heard[0][0], message)
    assert [told(line) for _ in messages] == messages


def test_whatever_offers_its_bytes_can_be_a_frame(ends: Joined) -> None:
    line = ends.line()
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    line.send([b"a", bytearray(b"b"), memoryview(b"c"), array])
    ((peer, frames),) = ends.hear()
    assert frames == [b"a", b"b", b"c", array.tobytes()]
    ends.hub.send(peer, (b"head", array))
    assert told(line) == [b"head", array.tobytes()]


def test_each_line_gets_what_is_meant_for_it(ends: Joined) -> None:
    lines = [ends.line() for _ in range(5)]
    peers = [ends.meet(line) for line in lines]
    assert len(set(peers)) == 5
    for i, peer in enumerate(reversed(peers)):
        ends.hub.send(peer, [str(i).encode()])
    assert [told(line) for line in reversed(lines)] == [[str(i).encode()] for i in range(5)]
    assert [told(line, 0.01) for line in lines] == [None] * 5


def test_nothing_to_receive_is_none_and_a_wait_has_its_limit(ends: Joined) -> None:
    line = ends.line(watch=True)
    peer = ends.meet(line)
    assert ends.hub.receive() is None
    assert line.receive() is None
    assert line.receive(20) is None
    assert not line.wait(20)
    ends.hub.send(peer, [b"now"])
    assert line.wait(30_000)
    assert told(line) == [b"now"]


def test_a_wait_ends_when_a_message_comes(ends: Joined) -> None:
    line = ends.line()
    peer = ends.meet(line)
    sender = threading.Timer(0.05, lambda: ends.hub.send(peer, [b"late"]))
    sender.start()
    assert told(line) == [b"late"]
    sender.join()


def test_both_handles_can_be_polled_beside_descriptors(ends: Joined) -> None:
    line = ends.line()
    peer = ends.meet(line)
    poll = Poller()
    poll.add(ends.hub.handle)
    poll.add(line.handle)
    assert poll.wait(0) == set()
    line.send([b"x"])
    assert poll.wait(30_000) == {ends.hub.handle}
    ends.hear()
    ends.hub.send(peer, [b"y"])
    assert poll.wait(30_000) == {line.handle}
    told(line)
    poll.remove(line.handle)
    ends.hub.send(peer, [b"z"])
    assert poll.wait(20) == set()


def test_sending_to_somebody_who_left_or_never_came_says_so(ends: Joined) -> None:
    with pytest.raises(PeerGone):
        ends.hub.send(b"nobody", [b"x"])
    line = ends.line()
    peer = ends.meet(line)
    line.close()
    assert gone(ends, peer)
    other = ends.line()
    ends.hub.send(ends.meet(other), [b"still here"])
    assert told(other) == [b"still here"]


def test_a_line_that_is_watched_sees_that_its_hub_went_away(ends: Joined) -> None:
    watched, careless = ends.line(watch=True), ends.line()
    ends.meet(watched)
    ends.meet(careless)
    assert not watched.is_lost
    ends.hub.close()
    assert watched.wait(30_000)
    assert watched.is_lost
    assert not careless.is_lost
    watched.send([b"into the void"])  # neither blocks nor raises
    careless.send([b"as well"])
    assert watched.receive() is None


def test_a_message_that_came_before_the_end_can_still_be_received(ends: Joined) -> None:
    line = ends.line(watch=True)
    peer = ends.meet(line)
    ends.hub.send(peer, [b"farewell"])
    assert line.wait(30_000)
    ends.hub.close(500)
    deadline = time.monotonic() + 30
    while not line.is_lost and time.monotonic() < deadline:
        time.sleep(0.005)
    assert line.is_lost
    assert told(line) == [b"farewell"]


def test_a_frame_above_the_limit_costs_its_sender_the_connection_and_nobody_else(ends: Joined) -> None:
    good, bad = ends.line(watch=True), ends.line(watch=True)
    ends.meet(good)
    peer = ends.meet(bad)
    bad.send([bytes(MAX_FRAME + 1)])
    assert bad.wait(30_000)
    assert bad.is_lost
    assert gone(ends, peer)
    ends.hub.send(ends.meet(good), [b"fine"])
    assert told(good) == [b"fine"]
    assert not good.is_lost


def test_received_frames_can_be_made_arrays_of_one_s_own(ends: Joined) -> None:
    line = ends.line()
    sent = [np.arange(n, dtype=np.uint8) for n in (1, 0, 7, 300)] + [np.zeros(MAX_FRAME, np.uint8)]
    for _ in range(2):
        line.send(sent)
    messages: list[list[memoryview]] = []
    while len(messages) < 2:
        received = ends.hub.receive()
        if received is not None:
            messages.append(ends.hub.open_message(*received))
        else:
            assert waiting(ends.hub, 30)
    first, second = (owned_arrays(frames) for frames in messages)
    for array, as_sent in zip(first, sent, strict=True):
        assert array.tolist() == as_sent.tolist()
        assert array.flags.writeable
        assert array.ctypes.data % 8 == 0
        array[:] = 255
    assert all(array.tolist() == as_sent.tolist() for array, as_sent in zip(second, sent, strict=True))


def test_closing_twice_is_fine(ends: Joined) -> None:
    line = ends.line(watch=True)
    line.close()
    line.close()
    ends.hub.close()
    ends.hub.close()
