"""A host or a service that has a key, and lies: the other end says what is wrong and lives, and the stream is exact.

``PYDP2_FUZZ=300000`` sends as many broken messages instead of 20,000.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from .hostile import STATES, LyingHost, Recorded, lie_in, record
from .schedules import compare, hosted, scheduled
from .world import World

SENT = int(os.environ.get("PYDP2_FUZZ", "20000"))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return record(tmp_path_factory.mktemp("recorded"), range(6))


def test_what_is_recorded_is_all_that_a_host_and_a_service_say(recorded: Recorded) -> None:
    assert recorded.of_hosts.keys() >= {"Join", "OpenData", "Prepared", "HostBeat", "FromWorker", "WorkerStarted"}
    assert recorded.of_service.keys() >= {"Spec", "StartWorker", "ToWorker", "HostReceived"}


def test_a_service_lives_whatever_its_hosts_say(recorded: Recorded, tmp_path: Path) -> None:
    """All of them lie, also about samples that they were asked for."""
    sent: Counter[str] = Counter()
    seed = 0
    while sum(sent.values()) < SENT:
        seed += 1
        with scheduled(seed) as patch:
            patch.setattr(World, "add_host", lambda world: None)
            world = World(replace(hosted(seed), passes=1 << 30), tmp_path, patch)
            world.faults = 0
            liars = [LyingHost(world, number, recorded, is_harmless=False) for number in range(901, 905)]
            lie_in(world, liars, lambda liars=liars: sum(liar.sent.total() for liar in liars) > 1000)
            for liar in liars:
                sent += liar.sent
    assert sent.keys() == set(STATES)


def test_a_host_that_lies_in_any_state_changes_nothing(recorded: Recorded, tmp_path: Path) -> None:
    sent: Counter[str] = Counter()
    seed = 0
    while sum(sent.values()) < SENT // 8:
        seed += 1
        with scheduled(seed) as patch:
            world = World(hosted(seed), tmp_path, patch)
            world.faults = 0
            lie_in(world, [], lambda world=world: world.server._worker_pool.active or world.trainer.over)
            liars = [LyingHost(world, number, recorded) for number in range(901, 905)]
            lie_in(world, liars, lambda world=world: world.trainer.over)
            for seen in world.trainer.passes:
                compare(world.case, seen)
            for liar in liars:
                sent += liar.sent
    assert sent.keys() == set(STATES)
