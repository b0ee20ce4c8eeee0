"""A host or a service that has a key, and lies: the other end says what is wrong and lives, and the stream is exact.

``PYDP2_FUZZ=300000`` sends as many broken messages, in all tests together, instead of 8,000.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from .expected import compare_ranks
from .hostile import STATES, LyingHost, LyingService, Recorded, hear_nothing, lie_in, quiet_world, record
from .hosts import Host, Worker
from .world import World

SENT = int(os.environ.get("PYDP2_FUZZ", "8000"))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return record(tmp_path_factory.mktemp("recorded"), range(6))


def test_what_is_recorded_is_all_that_a_host_and_a_service_say(recorded: Recorded) -> None:
    assert recorded.of_hosts.keys() >= {"Join", "OpenData", "Prepared", "HostBeat", "FromWorker", "WorkerStarted"}
    assert recorded.of_service.keys() >= {"Spec", "StartWorker", "ToWorker", "HostReceived"}


def test_a_service_lives_whatever_its_hosts_say(
    recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them lie, also about samples that they were asked for."""
    monkeypatch.setattr(World, "add_host", lambda world: None)
    sent: Counter[str] = Counter()
    seed = 0
    while sum(sent.values()) < 5 * SENT // 8:
        seed += 1
        with quiet_world(seed, tmp_path, passes=1 << 30) as world:
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
        with quiet_world(seed, tmp_path) as world:
            lie_in(world, [], lambda world=world: world.server.pool.active or world.is_over)
            liars = [LyingHost(world, number, recorded) for number in range(901, 905)]
            lie_in(world, liars, lambda world=world: world.is_over)
            compare_ranks(world.case, world.job.passes)
            for liar in liars:
                sent += liar.sent
    assert sent.keys() == set(STATES)


def test_an_agent_whose_service_lies_joins_again_or_ends_with_a_reason(
    recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(World, "add_host", lambda world: None)
    monkeypatch.setattr(Worker, "_turn", hear_nothing)
    sent = seed = workers = 0
    ends: Counter[str] = Counter()
    while sent < SENT // 4:
        seed += 1
        with quiet_world(seed, tmp_path) as world:
            service = LyingService(world, recorded)

            def host_is_there(world: World = world, service: LyingService = service) -> bool:
                for number in range(901, 904):
                    if number not in world.hosts:
                        world.hosts[number] = Host(world, number)
                        ends["started"] += 1
                return service.sent > 400

            lie_in(world, [], host_is_there)
            sent += service.sent
            workers += service.started
            for host in world.ended:
                assert host.error is None or str(host.error), "it says why"
                ends[type(host.error).__name__ if host.end is None else host.end.kind] += 1
    assert ends.keys() >= {"started", "closed", "again"}
    assert ends["started"] < sent / 10, "most of what is broken costs a session, and no agent"
    assert workers > sent / 10
