"""What hosts send in compressed form: what may come, and what becomes of a host that sends something else."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from benchmarks.replay import simulated_spec
from pydp2.errors import HostRefused, from_wire
from pydp2.options.file_list import FileList
from pydp2.protocol import messages as m
from pydp2.server.hosts.host_gateway import HostGateway, HostGone, HostLeaves, HostReady, RemoteMessage
from pydp2.system.release import RELEASE
from pydp2.transport.compression import MAX_INFLATED_BYTES, FrameCompressor

from ..simulated.network import Hub, Network, copied

LIMIT = 80 << 20
HEADER = b"what a worker says"


class Peer:
    """One connection of a host."""

    def __init__(self, hub: Hub) -> None:
        self.heard: list[m.Message] = []
        self._hub = hub
        self._peer = hub.join(self)

    def deliver(self, frames: list[memoryview]) -> None:
        self.heard.append(m.decode(frames)[0])

    def cut(self) -> None:
        self._hub.peers.pop(self._peer, None)

    @property
    def has_ended(self) -> bool:
        """True once the service hears it no more."""
        return self._peer in self._hub.ended

    def say(self, message: m.Message, *frames: Any) -> None:
        self._hub.put(self._peer, copied([m.encode(message), *frames]))


class Side:
    """A service, and hosts that talk to it by hand."""

    def __init__(self, folder: Path) -> None:
        self.hub = Hub(Network(Random(0)), "worker")
        self.log: list[str] = []
        spec = replace(simulated_spec(0, folder), memory_limit=LIMIT)
        hub: Any = self.hub
        self.gateway = HostGateway(spec, FileList.of(["a"]), hub)
        self.gateway.begin(lambda text, event, **about: self.log.append(text))

    def host(self, codec: str = "", row_server: str = "") -> tuple[Peer, Peer]:
        """Both connections of a host that has asked to join."""
        control, data = Peer(self.hub), Peer(self.hub)
        session = os.urandom(8).hex()
        control.say(m.Join(m.WIRE_VERSION, RELEASE, "node7", 1, session, "", {}, codec, row_server))
        data.say(m.OpenData(session))
        control.say(m.Prepared([0]))
        return control, data

    def receive(self, most: int = 100) -> tuple[list[Any], bool]:
        return self.gateway.receive(0.0, most)


@pytest.fixture
def side(tmp_path: Path) -> Side:
    return Side(tmp_path)


def joined(side: Side) -> tuple[Peer, Peer]:
    pytest.importorskip("zstandard")
    control, data = side.host("zstd")
    (event,), _ = side.receive()
    assert isinstance(event, HostReady)
    return control, data


def test_what_was_compressed_comes_out_as_the_worker_sent_it(side: Side) -> None:
    _, data = joined(side)
    frames = [bytes(100_000), os.urandom(5000), b"", bytes(range(256)) * 64]
    packed, sizes = FrameCompressor().compress(frames)
    assert sizes == [100_000, 0, 0, 16384]
    data.say(m.FromWorker(3, sizes), HEADER, *packed)
    data.say(m.FromWorker(3, []), HEADER, *frames)
    events, _ = side.receive()
    assert events == [RemoteMessage(1, 3, [HEADER, *frames])] * 2
    (shown,) = side.gateway.stats(0.0)
    assert shown["inflated_bytes"] - shown["received_bytes"] == sum(map(len, frames)) - sum(map(len, packed))


def test_a_host_is_not_ready_before_it_has_a_connection_for_data(side: Side) -> None:
    control = Peer(side.hub)
    control.say(m.Join(m.WIRE_VERSION, RELEASE, "node7", 1, "s", "", {}))
    control.say(m.Prepared([0]))
    events, _ = side.receive()
    assert [type(each) for each in events] == [HostGone]
    assert side.log == ["a host broke the protocol: Prepared: there is no connection for data"]


ZEROS = bytes(1 << 20)


@pytest.mark.parametrize(
    ("sizes", "why"),
    [
        ([1 << 40], f"a frame of {1 << 40} bytes, at most {LIMIT} are allowed"),
        ([MAX_INFLATED_BYTES + 1], f"at most {MAX_INFLATED_BYTES} are allowed"),
        ([1024], f"a frame of 1024 bytes that zstd takes for one of {1 << 20}"),
        ([], None),
        ([0], None),
        ([1 << 20, 0], "FromWorker: expected a list of 1"),
        ([-1], "FromWorker: expected integers"),
        (["1048576"], "FromWorker: expected integers"),
        ([[1 << 20]], "FromWorker: expected integers"),
    ],
)
def test_a_host_that_says_wrong_sizes_loses_its_session(side: Side, sizes: list[Any], why: str | None) -> None:
    control, data = joined(side)
    (packed,), _ = FrameCompressor().compress([ZEROS])
    data.say(m.FromWorker(3, sizes), HEADER, packed)
    events, _ = side.receive()
    if why is None:
        assert events == [RemoteMessage(1, 3, [HEADER, packed])], "it goes as it is: the worker answers for it"
        return
    assert events == [HostGone(1, {}, "broke the protocol")]
    assert why in side.log[-1]
    last = control.heard[-1]
    assert isinstance(last, m.Closing)
    assert last.will_restart
    assert last.reason.startswith("it broke the protocol: ")
    assert why in last.reason
    assert control.has_ended
    assert not list(side.gateway.sessions)


def test_a_frame_that_is_not_zstd_ends_the_session(side: Side) -> None:
    control, data = joined(side)
    data.say(m.FromWorker(3, [1 << 20]), HEADER, os.urandom(100))
    assert side.receive()[0] == [HostGone(1, {}, "broke the protocol")]
    assert isinstance(control.heard[-1], m.Closing)


def test_a_host_that_breaks_the_protocol_again_and_again_is_refused(side: Side) -> None:
    """It would join anew for ever, and break it again."""
    for number in range(1, 6):
        control, data = joined(side)
        data.say(m.FromWorker(3, [1024]), HEADER, FrameCompressor().compress([ZEROS])[0][0])
        assert side.receive()[0] == [HostGone(number, {}, "broke the protocol")]
        assert isinstance(control.heard[-1], m.Closing if number < 5 else m.Refused)
    with pytest.raises(HostRefused, match=r"broke the protocol 5 times, the last time so: .*start it again"):
        raise from_wire(control.heard[-1].error)


def test_a_host_that_did_not_say_that_it_compresses_must_not(side: Side) -> None:
    joined(side)
    _, data = side.host("")
    side.receive()
    (packed,), sizes = FrameCompressor().compress([ZEROS])
    data.say(m.FromWorker(3, sizes), HEADER, packed)
    assert side.receive()[0] == [HostGone(2, {}, "broke the protocol")]
    assert "compressed frames of a host that did not say so" in side.log[-1]


def test_messages_that_inflate_to_much_are_taken_a_few_at_a_time(side: Side) -> None:
    _, data = joined(side)
    packed, sizes = FrameCompressor().compress([bytes(MAX_INFLATED_BYTES // 2)])
    for _ in range(5):
        data.say(m.FromWorker(3, sizes), HEADER, *packed)
    counts = []
    more = True
    while more:
        events, more = side.receive()
        counts.append(len(events))
    assert counts == [2, 2, 1]


def test_a_service_without_the_library_says_so_to_a_host_that_compresses(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    control, data = side.host("zstd")
    assert side.receive()[0] == []
    (refused,) = control.heard
    assert isinstance(refused, m.Refused)
    with pytest.raises(HostRefused, match=r"what node7 compresses, .*where this one runs; pip install 'zstandard>="):
        raise from_wire(refused.error)
    assert "zstandard" in side.log[-1]
    assert not list(side.gateway.sessions)
    side.host("")
    assert side.receive()[0] == [HostReady(1, 1)], "others may join"
    assert data.heard == []


def test_a_codec_that_nobody_knows_is_refused_by_name(side: Side) -> None:
    control, _ = side.host("lz77")
    side.receive()
    (refused,) = control.heard
    assert isinstance(refused, m.Refused)
    with pytest.raises(HostRefused, match="a host may compress with zstd, node7 does with 'lz77'"):
        raise from_wire(refused.error)


KEY = "ab" * 32


@pytest.mark.parametrize(
    "address",
    [
        f"ipc:///tmp/a?key={KEY}", "tcp://node7:7800", "tcp://node7:7800?key=", f"tcp://node7:7800?key={KEY}0",
        f"tcp://node7\n:7800?key={KEY}", f"tcp://{'n' * 400}:7800?key={KEY}",
    ],
)  # fmt: skip
def test_a_host_whose_row_server_has_no_address_for_trainers_does_not_join(side: Side, address: str) -> None:
    control, _ = side.host(row_server=address)
    events = side.receive()[0]
    assert isinstance(control.heard[0], m.Refused | m.Closing), "and it is told why"
    assert events in ([], [HostGone(1, {}, "broke the protocol")])
    assert control.has_ended
    assert len(side.gateway.row_servers) == len(side.gateway.sessions) == 0


def test_the_rows_of_a_host_are_lost_with_it_if_it_has_some(side: Side) -> None:
    _, data = side.host(row_server=f"tcp://node7:7800?key={KEY}")
    assert side.receive()[0] == [HostReady(1, 1)]
    servers = side.gateway.row_servers
    assert servers.host_at(f"tcp://node7:7800?key={KEY}") == 1
    servers.accept(1, np.array([5, 6]), np.array([8, 8]))
    data.say(m.FromWorker(3, []))  # no message in it
    assert side.receive()[0] == [HostGone(1, {}, "broke the protocol")]
    assert servers.loss_count == 1
    assert 1 not in servers


def test_no_more_rows_stay_on_a_host_that_leaves(side: Side) -> None:
    control, _ = side.host(row_server=f"tcp://node7:7800?key={KEY}")
    side.receive()
    control.say(m.Drain())
    assert side.receive()[0] == [HostLeaves(1)]
    assert side.gateway.row_servers.off == {1}
    assert m.SendRows() in control.heard


def test_a_host_that_goes_as_it_joins_is_gone_behind_the_word_that_it_is_ready(side: Side) -> None:
    """Its last message is read when the answer to it cannot be sent any more."""
    control, data = Peer(side.hub), Peer(side.hub)
    control.say(m.Join(m.WIRE_VERSION, RELEASE, "node7", 4, "s", "", {}, "", f"tcp://node7:7800?key={KEY}"))
    data.say(m.OpenData("s"))
    side.receive()
    control.say(m.Prepared([0]))
    control.cut()
    events, _ = side.receive()
    assert [type(event) for event in events] == [HostReady, HostGone]
    assert len(side.gateway.sessions) == 0
