"""Programs that remove old files take the files of services that live: what follows, and what does not."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import pydp2
from pydp2.api import rundir
from pydp2.errors import ServiceLost, ServiceUnreachable

from ..provider_code import numbers
from ..runs import processes, wait_until

CODE = numbers(4000, "pool_size=64, should_shuffle=False")


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder with a short name."""
    folder = Path(tempfile.mkdtemp(prefix="c-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def address(provider_file: Callable[[str], str], timing: Callable[..., None]) -> str:
    timing(file_check=0.05)
    return provider_file(CODE)


def run_dir_of(service: pydp2.Service) -> Path:
    return Path(service.address.removeprefix("ipc://")).parent


SAID = "more), as programs do that clean up old files; who is connected stays, nobody else can connect: start it again"


def said(capfd: pytest.CaptureFixture[str]) -> str:
    """What is on the screen since the last call."""
    return capfd.readouterr().err


def numbers(data: pydp2.Client) -> list[int]:
    return [int(x) for batch in data for x in batch[0]]


def test_a_live_directory_without_its_lock_file_survives_other_starts(address: str) -> None:
    with pydp2.launch(["a"], address, workers=1) as service:
        (run_dir_of(service) / "lock").unlink()
        for _ in range(2):
            with pydp2.load(["a"], address, workers=1, batch_size=400) as other:
                assert len(numbers(other)) == 4000
        with service.connect(batch_size=400) as data:
            assert numbers(data) == [*range(4000)]
            assert data.stats()["removed_files"] == []


def test_a_path_stays_taken_without_its_lock_file(address: str, place: Path) -> None:
    bind = f"ipc://{place}/s"
    with pydp2.launch(["a"], address, workers=1, bind=bind) as service:
        (place / "s.lock").unlink()
        with pytest.raises(ServiceUnreachable, match="is taken by a service that is running"):
            pydp2.launch(["a"], address, workers=1, bind=bind)
        with service.connect(batch_size=400) as data:
            assert numbers(data) == [*range(4000)]


@pytest.mark.parametrize("what", ["lock", "directory"])
def test_a_state_directory_stays_taken_without_its_lock_file(what: str, address: str, place: Path) -> None:
    """Two services would write their snapshots over each other."""
    with (
        pydp2.launch(["a"], address, workers=1, state_dir=place / "state") as service,
        service.connect(batch_size=400) as data,
    ):
        (place / "state" / "lock").unlink()
        if what == "lock":
            (run_dir_of(service) / "lock").unlink()
        else:
            shutil.rmtree(run_dir_of(service))
        for _ in range(2):
            with pytest.raises(ServiceUnreachable, match="belongs to a service that is running"):
                pydp2.launch(["a"], address, workers=1, state_dir=place / "state")
        assert numbers(data) == [*range(4000)]
    with pydp2.load(["a"], address, workers=1, state_dir=place / "state", batch_size=400) as data:
        assert len(numbers(data)) == 4000


@pytest.mark.parametrize("what", ["directory", "sockets"])
def test_a_service_whose_directory_went_says_so_and_serves_those_who_are_there(
    what: str, address: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pydp2.launch(["a"], address, workers=2) as service, service.connect(batch_size=4) as data:
        stream = iter(data)
        first = next(stream)
        folder = run_dir_of(service)
        if what == "directory":
            shutil.rmtree(folder)
        else:
            for each in folder.iterdir():
                each.unlink()
        assert wait_until(lambda: SAID in said(capfd))
        assert [*first[0], *(int(x) for batch in stream for x in batch[0])] == [*range(4000)]
        assert numbers(data) == [*range(4000)], "the next pass, too"
        with pytest.raises(ServiceUnreachable, match="a program that cleans up old files has removed it"):
            service.connect(job="other", batch_size=4, timeout=0.3)


def test_who_can_still_connect_sees_in_the_statistics_which_files_went(address: str) -> None:
    with pydp2.launch(["a"], address, workers=1, bind="tcp://127.0.0.1:*") as service:
        assert service.stats()["removed_files"] == []
        (folder,) = rundir.run_directories().iterdir()
        (folder / "workers").unlink()
        assert wait_until(lambda: service.stats()["removed_files"] == [str(folder / "workers")])


def test_a_service_whose_directory_went_ends_with_its_last_worker(
    provider_file: Callable[[str], str], timing: Callable[..., None], capfd: pytest.CaptureFixture[str]
) -> None:
    timing(file_check=0.05)
    address = provider_file(CODE.replace("range(4000)", "iter(int, 1)"))
    with pydp2.launch(["a"], address, workers=1) as service, service.connect(batch_size=4) as data:
        stream = iter(data)
        next(stream)
        assert wait_until(lambda: len(service.stats()["workers"]) == 2), "the spare one is connected, too"
        shutil.rmtree(run_dir_of(service))
        assert wait_until(lambda: SAID in said(capfd))
        for left in (2, 1):
            assert len(processes("pydp2-worker")) == left
            os.kill(processes("pydp2-worker")[0], signal.SIGKILL)
            assert wait_until(lambda left=left: len(processes("pydp2-worker")) == left - 1)  # type: ignore[misc]  # bound
        with pytest.raises(
            ServiceLost, match=r"no worker can be replaced, because .* start it again, with its sockets"
        ):
            for _ in stream:
                pass


def test_a_path_that_another_service_has_taken_stays_when_the_first_one_ends(address: str, place: Path) -> None:
    """It was free: all that had stood there was removed."""
    bind = f"ipc://{place}/s"
    first = pydp2.launch(["a"], address, workers=1, bind=bind)
    for each in place.iterdir():
        each.unlink()
    with pydp2.launch(["a"], address, workers=1, bind=bind) as second:
        first.close()
        with second.connect(batch_size=400) as data:
            assert numbers(data) == [*range(4000)]
    assert list(place.iterdir()) == []


def test_nothing_is_left_of_services_whose_files_were_removed(address: str) -> None:
    with pydp2.launch(["a"], address, workers=1) as service:
        shutil.rmtree(run_dir_of(service))
    assert list(rundir.run_directories().iterdir()) == []
