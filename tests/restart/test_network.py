"""A connection that is cut, and addresses of the loopback: trainers of a service with a state directory, or with keys,
come back."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

import pydp2
from pydp2.errors import JobTaken, ServiceLost, ServiceUnreachable
from pydp2.transport import keys
from pydp2.transport.key_files import ConnectionFile
from pydp2.transport.service_address import without_token
from tests.faults.relay import Relay, free_port
from tests.runs import NUMBERS, wait_until
from tests.runs import NUMBERS_OPTIONS as OPTIONS

FILES = [str(n) for n in range(8)]


@pytest.fixture
def address(provider_file: Callable[[str], str]) -> str:
    return provider_file(NUMBERS)


@pytest.fixture
def uninterrupted(address: str) -> list[list[int]]:
    """A pass over a connection that holds."""
    with pydp2.load(FILES, address, workers=1, **OPTIONS) as data:
        return [batch[0].tolist() for batch in data]


@pytest.fixture
def relay() -> Iterator[Callable[[str], Relay]]:
    with ExitStack() as stack:

        def to(where: str) -> Relay:
            one = Relay(where)
            stack.callback(one.end)
            return one

        yield to


def test_a_trainer_comes_back_after_a_cut_of_seconds(
    address: str, uninterrupted: list[list[int]], relay: Callable[[str], Relay], tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    port = free_port()
    with pydp2.launch(
        FILES, address, workers=1, bind=f"tcp://127.0.0.1:{port}", state_dir=tmp_path / "state"
    ) as service:
        between = relay(service.address)
        with pydp2.connect(between.address, **OPTIONS) as data:
            seen = []
            for batch in data:
                seen.append(batch[0].tolist())
                if batch.index == 5:
                    between.cut(down=True)
                    mend = threading.Timer(3.0, between.up)
                    mend.start()
            mend.join()
    assert seen == uninterrupted
    assert 2 <= between.connections <= 4
    assert "is back after" in capfd.readouterr().err


def test_without_a_state_directory_a_cut_is_told(
    address: str, relay: Callable[[str], Relay]
) -> None:  # fmt: skip
    port = free_port()
    with pydp2.launch(FILES, address, workers=1, bind=f"tcp://127.0.0.1:{port}") as service:
        between = relay(service.address)
        with pydp2.connect(between.address, **OPTIONS) as data:
            stream = iter(data)
            next(stream)
            between.cut()
            with pytest.raises(ServiceLost, match="ended without a message"):
                list(stream)


@pytest.mark.parametrize("world", [1, 2])
def test_with_keys_trainers_come_back_after_a_cut_without_a_state_directory(
    world: int, address: str, uninterrupted: list[list[int]], relay: Callable[[str], Relay], tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The service has gone on meanwhile, and keeps what they have not used."""
    file = tmp_path / "run.json"
    with pydp2.launch(FILES, address, workers=1, bind="tcp://127.0.0.1:*", connection=file) as service:
        between = relay(service.address)
        ConnectionFile(between.address, ConnectionFile.read(file).keys).write(tmp_path / "remote.json")
        seen: dict[int, list[int]] = {}
        cut = threading.Event()

        def train(rank: int) -> None:
            with pydp2.connect(tmp_path / "remote.json", rank=rank, world_size=world, **OPTIONS) as data:
                for batch in data:
                    assert batch.index not in seen
                    seen[batch.index] = batch[0].tolist()
                    if batch.index >= 5 and not cut.is_set():
                        cut.set()
                        between.cut(down=True)
                        threading.Timer(1.0, between.up).start()

        with ThreadPoolExecutor(world) as pool:
            list(pool.map(train, range(world)))
    assert [seen[index] for index in range(len(uninterrupted))] == uninterrupted
    assert between.connections > world
    said = capfd.readouterr().err
    assert "was lost; trying for 30 s to connect again" in said
    assert "is back after" in said


def test_a_path_that_carries_nothing_is_noticed_and_left(
    address: str, uninterrupted: list[list[int]], relay: Callable[[str], Relay], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """No reset tells of it: heartbeats do, at both ends."""
    monkeypatch.setattr(keys, "_HEARTBEAT_MS", 200)
    monkeypatch.setattr(keys, "_HEARTBEAT_TIMEOUT_MS", 1000)
    file = tmp_path / "run.json"
    with pydp2.launch(FILES, address, workers=1, bind="tcp://127.0.0.1:*", connection=file) as service:
        between = relay(service.address)
        ConnectionFile(between.address, ConnectionFile.read(file).keys).write(tmp_path / "remote.json")

        def let_go() -> None:
            wait_until(lambda: between.connections > 1, 8)  # after 10 s the service, which is not told to, notices it
            between.up()

        with pydp2.connect(tmp_path / "remote.json", **OPTIONS) as data:
            seen = []
            for batch in data:
                seen.append(batch[0].tolist())
                if batch.index == 5:
                    between.held = True
                    threading.Thread(target=let_go).start()
    assert seen == uninterrupted
    assert between.connections > 1


def test_a_service_with_keys_that_ends_says_so_and_nobody_waits(address: str, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    service = pydp2.launch(FILES, address, workers=1, bind="tcp://127.0.0.1:*", connection=file)
    with service, pydp2.connect(file, **OPTIONS) as data:
        stream = iter(data)
        next(stream)
        service.close()
        began = time.monotonic()
        with pytest.raises(ServiceLost, match="ended: "):
            list(stream)
        assert time.monotonic() - began < 15, "not for a lease"


def test_who_is_cut_off_and_whose_place_another_took_is_told(
    address: str, relay: Callable[[str], Relay], tmp_path: Path
) -> None:
    port = free_port()
    with pydp2.launch(
        FILES, address, workers=1, bind=f"tcp://127.0.0.1:{port}", state_dir=tmp_path / "state"
    ) as service:
        between = relay(service.address)
        with pydp2.connect(between.address, **OPTIONS) as first:
            stream = iter(first)
            next(stream)
            with pytest.raises(JobTaken, match="another trainer reads this job"):
                service.connect(**OPTIONS)
            between.cut(down=True)
            with service.connect(**OPTIONS) as second:
                next(iter(second))
                between.up()
                with pytest.raises(JobTaken, match="another trainer reads this job"):
                    list(stream)


def test_a_port_in_use_is_refused_and_free_again_when_its_service_was_killed(address: str, tmp_path: Path) -> None:
    where = f"tcp://127.0.0.1:{free_port()}"
    with pydp2.launch(FILES, address, workers=1, bind=where, state_dir=tmp_path / "state") as first:
        with pytest.raises(ServiceUnreachable, match=f"cannot bind {where}: {os.strerror(errno.EADDRINUSE)}"):
            pydp2.launch(FILES, address, workers=1, bind=where)
        with first.connect(**OPTIONS) as data:
            next(iter(data))  # a connection that is open when it dies
            first._process.kill()
            first._process.wait()
            with pydp2.launch(FILES, address, workers=1, bind=where, state_dir=tmp_path / "state") as again:
                assert again.address == first.address, "with its token"


def test_the_loopback_of_ipv6(address: str, uninterrupted: list[list[int]], tmp_path: Path) -> None:
    try:
        port = free_port("::1")
    except AssertionError:
        pytest.skip("this machine has no IPv6 loopback")
    where = f"tcp://[::1]:{port}"
    with (
        pydp2.launch(FILES, address, workers=1, bind=where, state_dir=tmp_path / "state") as service,
        pydp2.connect(service.address, **OPTIONS) as data,
    ):
        assert without_token(service.address) == where
        assert [batch[0].tolist() for batch in data] == uninterrupted
