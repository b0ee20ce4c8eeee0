"""Whoever may come to the port of a service at which hosts connect: strangers, and hosts that have a key and lie.

``PYDP2_FUZZ=20000`` sends as many broken messages over TCP instead of some hundred; tests/simulated sends many more.
"""

from __future__ import annotations

import os
import pickle  # noqa: TID251 - to see that nobody loads one
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

import pydp2
from pydp2.errors import HostRefused
from pydp2.protocol import messages as m
from pydp2.system.release import RELEASE
from pydp2.transport import key_files as keys
from pydp2.transport.key_files import ConnectionFile
from pydp2.transport.keys import KeyPair
from tests.agent.test_hosts import FILES, OPTIONS, SLOW, Host, active, digest, hosts, local, serving, stream
from tests.agent.test_hosts import file as file
from tests.agent.test_hosts import joined as joined
from tests.agent.test_hosts import short_host_timeout as short_host_timeout
from tests.liar import Liar, lie
from tests.runs import NUMBERS, wait_until
from tests.simulated.hostile import Recorded, record
from tests.strangers import FLOODS, Crowd, Stalled, descriptors, descriptors_at_rest, resident

pytestmark = pytest.mark.usefixtures("short_host_timeout")
SENT = int(os.environ.get("PYDP2_FUZZ", "300"))


@pytest.fixture
def liars() -> Iterator[Callable[..., Liar]]:
    made: list[Liar] = []

    def make(address: str, pair: KeyPair, count: int = 2) -> Liar:
        made.append(Liar(address, pair, count))
        return made[-1]

    yield make
    for liar in made:
        liar.close()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return record(tmp_path_factory.mktemp("recorded"), range(3))


def refused(service: pydp2.Service, port: str) -> dict[str, int]:
    """How many peers were refused at a port, by reason."""
    return {each["reason"]: each["count"] for each in service.stats()["refused"] if each["port"] == port}


# -- before the handshake ----------------------------------------------------------------------------------------------
def test_floods_at_the_port_for_hosts_disturb_no_host(
    provider_file: Callable[[str], str], file: Path, joined: Callable[..., Host]
) -> None:
    provider = provider_file(NUMBERS)
    with serving(provider, file) as service, pydp2.load(FILES, provider, workers=1, **OPTIONS) as quiet:
        joined(workers=1)
        with pydp2.connect(file, **OPTIONS) as data:
            assert stream(data) == stream(quiet)
            before = resident(service.pid)
            crowd = Crowd(service.host_address, [*FLOODS])
            try:
                joined(workers=1, name="one that comes meanwhile")
                assert wait_until(lambda: active(service) == 2)
                assert stream(data, 3) == stream(quiet, 3)
                assert wait_until(lambda: crowd.sent > 16 << 20)
                most = resident(service.pid)
            finally:
                crowd.end()
        assert most - before < 24 << 20, f"{most - before} more while {crowd.sent} were sent"
        assert service.poll() is None


# -- behind it ---------------------------------------------------------------------------------------------------------
def test_a_host_that_lies_costs_the_service_nothing_and_others_go_on(
    provider_file: Callable[[str], str],
    file: Path,
    joined: Callable[..., Host],
    recorded: Recorded,
    capfd: pytest.CaptureFixture[str],
) -> None:
    provider = provider_file(NUMBERS)
    problems: list[BaseException] = []
    over = threading.Event()
    with serving(provider, file) as service, pydp2.load(FILES, provider, workers=1, **OPTIONS) as quiet:
        joined(workers=2, name="honest")
        assert wait_until(lambda: active(service) == 2)
        pair = ConnectionFile.read(file).keys["worker"]

        def throw() -> None:
            choose, left = random.Random(3), SENT
            try:
                while left > 0:
                    liar = Liar(service.host_address, pair)
                    left -= lie(liar, len(FILES), recorded.of_hosts, choose)
                    liar.close(linger_ms=300)
            except BaseException as error:
                problems.append(error)
            finally:
                over.set()

        with pydp2.connect(file, **OPTIONS) as data:
            assert stream(data, 2) == stream(quiet, 2)
            before = resident(service.pid)
            thrower = threading.Thread(target=throw)
            thrower.start()
            while not over.is_set():
                assert stream(data) == stream(quiet)
            thrower.join()
            assert problems == []
            assert stream(data) == stream(quiet)
        assert resident(service.pid) - before < 24 << 20
        assert service.poll() is None
        assert wait_until(lambda: [each["host"] for each in hosts(service)] == ["honest"])
        assert refused(service, "hosts")["broke the protocol"] > SENT / 20
    screen = capfd.readouterr().err
    assert "Traceback" not in screen
    assert len(screen.splitlines()) < 300, "of each kind of line only the first ones are written"


@pytest.mark.parametrize("port", ["hosts", "trainers"])
def test_a_peer_that_breaks_the_protocol_loses_its_connection(
    port: str, provider_file: Callable[[str], str], file: Path, liars: Callable[..., Liar]
) -> None:
    with serving(provider_file(NUMBERS), file, workers=1) as service:
        known = ConnectionFile.read(file)
        where, role = (known.host_address, "worker") if port == "hosts" else (known.address, "trainer")
        before = descriptors_at_rest(service.pid, 1)
        many = [liars(where, known.keys[role], 1) for _ in range(20)]
        for liar in many:
            liar.say(0, b"no message")
        assert all(liar.is_cut() for liar in many)
        assert wait_until(lambda: descriptors(service.pid) <= before + 2), "and takes no descriptor"
        assert refused(service, port) == {"broke the protocol": 20}


def test_a_host_that_asks_for_more_than_it_reads_is_cut_off(
    provider_file: Callable[[str], str], file: Path, liars: Callable[..., Liar]
) -> None:
    with serving(provider_file(NUMBERS), file, workers=1, args={"large": b"x" * (1 << 20)}) as service:
        pair = ConnectionFile.read(file).keys["worker"]
        before = resident(service.pid)
        asking = liars(service.host_address, pair, 1)
        for _ in range(1000):
            asking.say(0, m.AskSpec(m.WIRE_VERSION, RELEASE))
        assert asking.is_cut()
        beating = liars(service.host_address, pair)
        beating.join(len(FILES))
        for _ in range(20_000):
            beating.say(0, m.HostBeat(1, [], {}, []))
        assert wait_until(lambda: refused(service, "hosts") == {"broke the protocol": 1})
        answers = 0
        while isinstance(said := beating.heard(seconds=0.5), m.Message):
            answers += isinstance(said, m.HostReceived)
        assert answers < 200, "beats that come at once are answered together"
        assert resident(service.pid) - before < 16 << 20


def test_a_host_that_does_not_end_a_worker_is_lost(
    provider_file: Callable[[str], str], file: Path, liars: Callable[..., Liar], capfd: pytest.CaptureFixture[str]
) -> None:
    with serving(provider_file(NUMBERS), file, workers=1) as service:
        liar = liars(service.host_address, ConnectionFile.read(file).keys["worker"])
        liar.join(len(FILES))
        while not isinstance(said := liar.heard(), m.StartWorker):
            assert said is not None
        liar.say(1, m.WorkerStarted(said.worker, 77))
        liar.say(1, m.FromWorker(said.worker, []), b"no message")
        while not isinstance(said := liar.heard(), m.KillWorker | None):
            pass
        assert said is not None
        began = time.monotonic()
        while not isinstance(said := liar.heard(seconds=0.1), m.Closing):
            liar.say(0, m.HostBeat(time.monotonic_ns(), [], {}, []))
            assert time.monotonic() - began < 30
        assert not hosts(service)
    assert "a worker that it was told to end had not ended after 2 s" in capfd.readouterr().err


def test_statistics_of_a_thousand_workers_reach_whoever_asks(
    provider_file: Callable[[str], str], file: Path, liars: Callable[..., Liar], timing: Callable[..., None]
) -> None:
    timing(host_timeout=60.0)  # the liar sends no beats meanwhile
    with serving(provider_file(NUMBERS), file, workers=1) as service, service.connect(**OPTIONS) as data:
        liar = liars(service.host_address, ConnectionFile.read(file).keys["worker"])
        liar.join(len(FILES), worker_slots=1000)
        for _ in range(1001):
            while not isinstance(said := liar.heard(), m.StartWorker):
                assert said is not None
            liar.say(1, m.WorkerStarted(said.worker, 77))
        liar.say(0, m.HostBeat(1, [], {"memory": "x" * 60_000, "deep": [[[[[[[[]]]]]]]]}, []))
        assert wait_until(lambda: len(service.stats()["workers"]) > 1000)
        assert len(data.stats()["workers"]) > 1000
        assert stream(data), "who asked goes on"


class Canary:
    """Something that shows if it is unpickled: the file ``path`` is there."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self._path,)


def test_no_pickle_is_loaded_wherever_it_stands(
    provider_file: Callable[[str], str], file: Path, tmp_path: Path, liars: Callable[..., Liar]
) -> None:
    canary = tmp_path / "canary"
    payloads = [pickle.dumps(Canary(canary), protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
    pickle.loads(payloads[0])
    assert canary.exists()
    canary.unlink()
    with serving(provider_file(NUMBERS), file, workers=1) as service:
        known = ConnectionFile.read(file)
        for where, role in ((known.host_address, "worker"), (known.address, "trainer")):
            for payload in payloads:
                messages = [[payload, payload]]
                for kind in ("Join", "FromWorker", "HostBeat", "Prepared", "Attach", "BeginPass"):
                    messages += [[msgpack.packb([kind, payload])], [msgpack.packb([kind, 1, [payload]]), payload]]
                liar = liars(where, known.keys[role], len(messages))
                for line, frames in enumerate(messages):
                    liar.say(line, *frames)
                assert all(liar.is_cut(line) for line in range(len(messages)))
                liar = liars(where, known.keys[role])
                if role == "worker":
                    liar.join(len(FILES))
                    if isinstance(said := liar.heard(), m.StartWorker):
                        liar.say(1, m.WorkerStarted(said.worker, 77))
                        liar.say(1, m.FromWorker(said.worker, []), payload, payload)
                liar.say(0, m.encode(m.AskStats()), payload)
                assert liar.is_cut()
        with service.connect(**OPTIONS) as data:
            assert stream(data)
        assert not canary.exists()


@pytest.mark.parametrize("by", [-1, 1])
def test_another_version_is_refused_and_both_are_named(
    by: int, provider_file: Callable[[str], str], file: Path, liars: Callable[..., Liar]
) -> None:
    theirs = m.WIRE_VERSION + by
    with serving(provider_file(NUMBERS), file, workers=1):
        known = ConnectionFile.read(file)
        for where, role, first in (
            (known.host_address, "worker", m.AskSpec(theirs, RELEASE)),
            (known.host_address, "worker", m.Join(theirs, RELEASE, "old", 1, "s", "", {})),
            (known.address, "trainer", m.Attach(theirs, "default", 0, 1, "s", {"batch_size": 1}, 1)),
        ):
            liar = liars(where, known.keys[role], 1)
            liar.say(0, first)
            answer = liar.heard()
            assert isinstance(answer, m.Refused), answer
            assert str(theirs) in answer.error["message"]
            assert str(m.WIRE_VERSION) in answer.error["message"]


# -- keys that are removed ---------------------------------------------------------------------------------------------
def test_a_host_whose_key_is_removed_loses_its_connection_and_others_read_its_files(
    provider_file: Callable[[str], str], tmp_path: Path, joined: Callable[..., Host], liars: Callable[..., Liar],
    timing: Callable[..., None],
) -> None:  # fmt: skip
    timing(host_beat=0.2, host_timeout=60.0)  # nobody is cut off for a silence
    provider, folder = provider_file(SLOW), tmp_path / "service"
    uninterrupted = local(provider)
    keys.new_folder(folder)
    for name in ("stays", "goes", "deaf"):
        keys.allow(folder, name, "worker", keys.new_folder(tmp_path / name).public)
    with pydp2.launch(FILES, provider, workers=0, bind="tcp://127.0.0.1:*", keys=folder) as service:
        where = service.host_address
        goes = joined(file=where, key=tmp_path / "goes", name="goes")
        deaf = liars(where, keys.own_pair(tmp_path / "deaf"))
        deaf.join(len(FILES), "deaf")
        idle = liars(where, keys.own_pair(tmp_path / "deaf"), 1)
        idle.say(0, m.AskSpec(m.WIRE_VERSION, RELEASE))
        assert isinstance(idle.heard(), m.Spec)
        joined(file=where, key=tmp_path / "stays", name="stays")
        assert wait_until(lambda: active(service) == 4)
        with service.connect(**OPTIONS) as data:
            batches = iter(data)
            seen = [digest(next(batches)) for _ in range(3)]
            deaf.say(0, m.HostBeat(1, [], {}, []))
            keys.drop(folder, "deaf")
            # the service ends it, and not the peer
            assert deaf.is_cut(0)
            assert deaf.is_cut(1)
            assert idle.is_cut(0)
            keys.drop(folder, "goes")
            assert wait_until(lambda: [each["host"] for each in hosts(service)] == ["stays"])
            goes.ended()
            assert isinstance(goes.error, HostRefused)
            assert "the key of this host was removed" in str(goes.error)
            seen += [digest(batch) for batch in batches]
            assert seen == uninterrupted
        assert refused(service, "hosts") == {"its key was removed": 2}


# -- crowds that stand still -------------------------------------------------------------------------------------------
def attaches(file: Path, rounds: int = 4, count: int = 100) -> tuple[float, float]:
    """Milliseconds that a trainer needs to attach: the median, and what 99 of 100 do not exceed; those of the best
    round, because the machine has other things to do."""
    found = []
    for _ in range(rounds):
        took = []
        for _ in range(count):
            began = time.monotonic()
            pydp2.connect(file, **OPTIONS).close()
            took.append(1e3 * (time.monotonic() - began))
        took.sort()
        found.append((took[count // 2], took[count * 99 // 100 - 1]))
    return min(median for median, _ in found), min(most for _, most in found)


@pytest.mark.slow
@pytest.mark.parametrize("port", ["hosts", "trainers"])
def test_a_thousand_that_never_finish_their_handshake_hold_up_no_trainer(
    port: str, provider_file: Callable[[str], str], file: Path
) -> None:
    with serving(provider_file(NUMBERS), file, workers=1) as service:
        where = service.host_address if port == "hosts" else service.address
        attaches(file, rounds=1)
        for _ in range(3):  # other things that the machine does may fall on one of the two alone
            quiet = attaches(file)
            crowd = Stalled(where, 1000)
            try:
                assert wait_until(lambda: descriptors(service.pid) > 950)
                crowded = attaches(file)
                assert wait_until(lambda: descriptors(service.pid) > 950), "they were there all the time"
            finally:
                crowd.end()
            text = ", ".join(f"{median:.1f} ms (p99 {most:.1f})" for median, most in (quiet, crowded))
            sys.stdout.write(f"attach without and with a thousand at the port for {port}: {text}\n")  # -s shows it
            if crowded[1] < 2 * quiet[1]:
                break
        assert crowded[1] < 2 * quiet[1], text
        with service.connect(**OPTIONS) as data:
            assert stream(data)
