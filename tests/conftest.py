"""What every test may use, and the watch over what a test leaves behind."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import textwrap
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("pydp2", deadline=None)  # how long an example takes is the machine's affair
settings.load_profile("pydp2")

# Started in the background these are ignored, and programs of tests would inherit that.
for _signal, _usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
    if signal.getsignal(_signal) is signal.SIG_IGN:
        signal.signal(_signal, _usual)

_MARK = "PYDP2_TEST_RUN"
_RUN = uuid.uuid4().hex
SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session", autouse=True)
def _own_temporary_folder() -> Iterator[None]:
    """Run directories of the tests' services go into a folder of their own, with a short path, that is removed."""
    folder = tempfile.mkdtemp(prefix="pt-", dir="/tmp")
    before, tempfile.tempdir = tempfile.tempdir, folder
    os.environ["TMPDIR"] = folder
    os.environ["XDG_CACHE_HOME"] = folder
    os.environ[_MARK] = _RUN  # inherited by every process that a test starts, so leftovers can be told
    yield
    tempfile.tempdir = before
    del os.environ["TMPDIR"], os.environ["XDG_CACHE_HOME"], os.environ[_MARK]
    shutil.rmtree(folder)


def processes_of_tests() -> dict[int, str]:
    """Processes that tests started and that still run, with their names. Linux only; elsewhere empty."""
    found = {}
    proc = Path("/proc")
    for entry in proc.iterdir() if proc.exists() else ():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if f"{_MARK}={_RUN}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z":
                    found[int(entry.name)] = (entry / "comm").read_text().strip()
        except OSError:
            continue  # it ended while we looked
    return found


def wait_until(what: Callable[[], bool], seconds: float = 5.0) -> bool:
    """Whether ``what()`` became true within ``seconds``."""
    deadline = time.monotonic() + seconds
    while not what():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _descriptors() -> set[str]:
    """What this process has open. (Listing opens one more, which is gone again afterwards.)"""
    folder = Path("/proc/self/fd")
    return {entry.name for entry in folder.iterdir() if entry.exists()} if folder.exists() else set()


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    """After a test there is no new descriptor, thread or process."""
    descriptors = _descriptors()
    threads = set(threading.enumerate())
    running = set(processes_of_tests())
    yield

    def leftovers() -> list[str]:
        left = [f"thread {t.name}" for t in threading.enumerate() if t not in threads and t.is_alive()]
        left += [f"process {pid} {name}" for pid, name in processes_of_tests().items() if pid not in running]
        left += [f"descriptor {fd}" for fd in _descriptors() - descriptors]
        return left

    wait_until(lambda: not leftovers())
    assert leftovers() == []


@pytest.fixture
def provider_file(tmp_path: Path) -> Callable[..., str]:
    """``provider_file(code, name="p")`` writes a module that begins with ``from pydp2 import *``; the address of its
    ``process``."""

    def write(code: str, name: str = "prov") -> str:
        path = tmp_path / f"{name}.py"
        path.write_text("from pydp2 import *\n" + textwrap.dedent(code))
        return f"{path}:process"

    return write


@pytest.fixture
def text_files(tmp_path: Path) -> Callable[[Sequence[Sequence[object]]], list[str]]:
    """``text_files([[1, 2], [3]])`` writes one file per inner list, one item a line; their paths."""

    def write(contents: Sequence[Sequence[object]]) -> list[str]:
        paths = []
        for i, lines in enumerate(contents):
            path = tmp_path / f"part-{i:05d}.txt"
            path.write_text("".join(f"{line}\n" for line in lines))
            paths.append(str(path))
        return paths

    return write


@pytest.fixture
def shared_data() -> Path:
    """Real data files beside the checkout; the test is skipped where they are not."""
    if not SHARED.is_dir():
        pytest.skip("no ../shared/data beside the checkout")
    return SHARED
