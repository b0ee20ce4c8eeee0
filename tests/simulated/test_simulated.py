"""Hosts and trainers that come, go, die and are cut off, a server that is started again: under any schedule the stream
is the oracle's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pydp2.protocol.messages import DataOpened, Message
from pydp2.server.hosts.host_gateway import HostGateway
from pydp2.server.hosts.host_sessions import HostSession
from pydp2.transport.compression import FrameInflater

from ..seeds import each_seed
from .schedules import play
from .world import KINDS


@each_seed(300)
def test_any_schedule_gives_the_order_of_the_oracle(seed: int, tmp_path: Path) -> None:
    play(seed, tmp_path)


def test_one_seed_is_one_schedule(tmp_path: Path) -> None:
    first, again = (play(11, tmp_path) for _ in range(2))
    assert first.network.clock.now == again.network.clock.now
    assert first.log == again.log
    assert first.done == again.done
    assert first.job.states == again.job.states


def test_schedules_have_frames_that_are_compressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("zstandard")
    sizes: list[int] = []
    inflate = FrameInflater._inflated

    def seen(self: FrameInflater, frame: memoryview, size: int) -> memoryview:
        sizes.append(size)
        return inflate(self, frame, size)

    monkeypatch.setattr(FrameInflater, "_inflated", seen)
    for seed in range(10):
        play(seed, tmp_path)
    assert len(sizes) > 10


def test_a_host_whose_connection_for_data_is_not_answered_joins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped: list[HostSession] = []
    send = HostGateway._send_control

    def lossy(self: HostGateway, session: HostSession, message: Message, frames: Sequence[Any] = ()) -> None:
        if isinstance(message, DataOpened) and len(dropped) < 12:
            dropped.append(session)
        else:
            send(self, session, message, frames)

    monkeypatch.setattr(HostGateway, "_send_control", lossy)
    assert not play(8, tmp_path).done, "nothing else goes wrong"
    assert len(dropped) == 12


@pytest.mark.slow
def test_schedules_have_faults_of_every_kind(tmp_path: Path) -> None:
    done = {kind for seed in range(100) for kind in play(seed, tmp_path).done}
    assert done >= set(KINDS)
