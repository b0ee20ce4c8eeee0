"""What every test may use, and the watch over what a test leaves behind."""

from __future__ import annotations

import compileall
import contextlib
import gc
import logging
import os
import shutil
import signal
import sys
import tempfile
import textwrap
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pytest
from _pytest.assertion import rewrite

from pydp2.api import preparation
from pydp2.options.timing import Timing

from . import skips, warm_starts
from .runs import no_hang, program, wait_until
from .warm_starts import REAL_STARTS, WarmStarts

# Started in the background these are ignored, and programs of tests would inherit that.
for _signal, _usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
    if signal.getsignal(_signal) is signal.SIG_IGN:
        signal.signal(_signal, _usual)

__all__ = ["no_hang", "program"]  # fixtures

_MARK = "PYDP2_TEST_RUN"
_RUN = uuid.uuid4().hex
ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared" / "data"


def pytest_configure(config: pytest.Config) -> None:
    """Compile all code once: hundreds of programs of tests import the package, and each process of a run all tests,
    also where Python is told to keep no code."""
    told, sys.dont_write_bytecode = sys.dont_write_bytecode, False
    import hypothesis.stateful  # which pytest rewrites as it rewrites tests

    sys.dont_write_bytecode = told
    # How long an example takes is the machine's affair. Tests of properties try more where slow tests run too.
    examples = 25 if config.option.markexpr == "not slow" else 200
    hypothesis.settings.register_profile("tests", deadline=None, max_examples=examples)
    hypothesis.settings.load_profile("tests")
    if hasattr(config, "workerinput"):
        return
    if os.environ.get("CI"):
        config.pluginmanager.register(skips.SkipLedger(skips.SKIPS), "skips")
    for folder in ("pydp2", "cli"):
        compileall.compile_dir(ROOT / folder, quiet=2)
    if config.getoption("numprocesses", None):
        for file in (ROOT / "tests").rglob("*.py"):
            if file.name.startswith("test_") or file.name == "conftest.py":
                _keep_rewritten(file, config)
            else:
                compileall.compile_file(file, quiet=2)


def _keep_rewritten(file: Path, config: pytest.Config) -> None:
    """Write a file of tests, its assertions rewritten, to where pytest looks for it."""
    kept = rewrite.get_cache_dir(file) / (file.name[:-3] + rewrite.PYC_TAIL)
    if rewrite._read_pyc(file, kept) is None:
        stamp, code = rewrite._rewrite_test(file, config)
        kept.parent.mkdir(exist_ok=True)
        rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, stamp, kept)


_TOGETHER = ("faults", "benchmarks")  # folders whose tests load the whole machine: not two of them at a time
_MAY_HANG = {"client", "conformance", "deaths", "endings", "memory", "outside", "reader", "workers"}
_DEAR = {"_streams", "named"}  # fixtures of a session or a module that run services: made in one process only


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test as often as PYDP2_REPEAT says."""
    rounds = int(os.environ.get("PYDP2_REPEAT", "1"))
    if rounds > 1:
        metafunc.fixturenames.append("_round")
        metafunc.parametrize("_round", range(rounds), indirect=True)


@pytest.fixture
def _round(request: pytest.FixtureRequest) -> object:
    return request.param


@pytest.hookimpl(tryfirst=True)  # before xdist looks for the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say which tests stay in one process when they run in several (``-n 4 --dist loadgroup``)."""
    for item in items:
        folder = item.path.parent.name
        if folder in _TOGETHER:
            item.add_marker(pytest.mark.xdist_group(folder))
        for name in _DEAR.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.xdist_group(f"{folder} {name}"))


@pytest.fixture(scope="session", autouse=True)
def _own_temporary_folder() -> Iterator[None]:
    """Run directories of the tests' services go into a folder of their own, with a short path, that is removed."""
    folder = tempfile.mkdtemp(prefix="pt-", dir="/tmp")
    before, tempfile.tempdir = tempfile.tempdir, folder
    os.environ["TMPDIR"] = folder
    os.environ["XDG_CACHE_HOME"] = folder
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # its threads cost each program of a test 0.1 s of a core
    os.environ["PYDP2_NOTICE_SECONDS"] = "0"  # a loaded machine must not write lines that no test expects
    os.environ["PYDP2_LOG_TIMES"] = "0"  # tests look for lines, and two runs have the same
    trainer_log = logging.getLogger("pydp2.client")
    trainer_log.hasHandlers = lambda: False  # type: ignore[method-assign]  # those of pytest would get the lines
    os.environ[_MARK] = _RUN  # inherited by every process that a test starts, so leftovers can be told
    yield
    del trainer_log.hasHandlers
    tempfile.tempdir = before
    for name in ("PYDP2_NOTICE_SECONDS", "PYDP2_LOG_TIMES", "TMPDIR", "XDG_CACHE_HOME", _MARK):
        del os.environ[name]
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def _warm_starts(_own_temporary_folder: None) -> Iterator[WarmStarts]:
    """The process that is forked for the servers of tests."""
    starts = WarmStarts()
    yield starts
    starts.close()


@pytest.fixture(autouse=True)
def _servers_start_warm(
    request: pytest.FixtureRequest, _warm_starts: WarmStarts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers and programs are forked, in all tests but those that want fresh interpreters."""
    marked = request.node.get_closest_marker("real_starts")
    if marked is None and REAL_STARTS.isdisjoint((request.path.parent.name, request.path.name)):
        monkeypatch.setattr("pydp2.api.service.start_interpreter", _warm_starts.start)
        monkeypatch.setattr("pydp2.api.worker_host.start_interpreter", _warm_starts.start)
        monkeypatch.setattr("pydp2.diagnostics.local_provider.start_interpreter", _warm_starts.start)
        monkeypatch.setattr(warm_starts, "_warm", _warm_starts)


def _numbers(folder: str) -> set[int]:
    """Numbers that are names in a folder of /proc. Linux only; elsewhere empty."""
    with contextlib.suppress(FileNotFoundError):
        return {int(entry.name) for entry in os.scandir(folder) if entry.name.isdigit()}
    return set()


def _pids() -> set[int]:
    """All processes."""
    return _numbers("/proc")


def processes_of_tests(besides: Iterable[int] = ()) -> dict[int, str]:
    """Processes that tests started and that still run, with their names. Those in ``besides`` are not looked at."""
    found = {}
    for pid in _pids().difference(besides, [os.getpid()]):
        entry = Path("/proc", str(pid))
        try:
            if f"{_MARK}={_RUN}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z":
                    found[pid] = (entry / "comm").read_text().strip()
        except OSError:
            continue  # it ended while we looked
    return found


def open_files(pid: int | str = "self") -> dict[int, str]:
    """The descriptors of a process, and what each stands for; without those that go meanwhile, as that of the listing
    does."""
    folder, found = f"/proc/{pid}/fd", {}
    for number in _numbers(folder):
        with contextlib.suppress(OSError):
            found[number] = os.readlink(f"{folder}/{number}")  # noqa: PTH115 - a Path takes three times as long
    return found


@contextlib.contextmanager
def nothing_stays(*, descriptors: bool = True, threads: bool = True, besides: str = "") -> Iterator[None]:
    """Behind the block there is no new process, thread or descriptor. ``besides``: name of processes that may be there;
    ``descriptors``, ``threads``: False where a library has some of its own."""
    files = open_files()
    before = set(threading.enumerate())
    running = _pids()  # whether they are of tests is no matter: only of later ones it is asked
    yield
    left: list[str] = []

    def nothing() -> bool:
        new = processes_of_tests(besides=running)
        left[:] = [f"process {pid} {name}" for pid, name in new.items() if name != besides]
        if threads:
            left.extend(f"thread {t.name}" for t in threading.enumerate() if t not in before and t.is_alive())
        if descriptors:
            left.extend(f"descriptor {fd}, {what}" for fd, what in open_files().items() if fd not in files)
        return not left

    assert wait_until(nothing), left


@pytest.fixture(autouse=True)
def _nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """After a test there is no new descriptor, thread or process, unless its marker ``may_leave`` says so."""
    marker = request.node.get_closest_marker("may_leave")
    with nothing_stays(**marker.kwargs if marker else {}):
        yield
        if marker:
            gc.collect()
        preparation.end_all()  # they end with the program, or after a while


@pytest.fixture(autouse=True)
def _ends_in_time(request: pytest.FixtureRequest) -> None:
    """Tests of services and readers that may wait for ever have a deadline."""
    if request.path.parent.name in _MAY_HANG:
        request.getfixturevalue("no_hang")


@pytest.fixture
def provider_file(tmp_path: Path) -> Callable[..., str]:
    """``provider_file(code, name="p")`` writes a module that begins with ``from pydp2 import *``; the address of its
    ``process``."""

    def write(code: str, name: str = "prov") -> str:
        path = tmp_path / f"{name}.py"
        new = path.with_suffix(f".{threading.get_ident()}")
        new.write_text("from pydp2 import *\n" + textwrap.dedent(code))
        new.replace(path)  # as a whole: the service of another thread may be reading it
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
def timing(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """``timing(missing_rank=0.5)``: services that this process starts from here on have other times than usual."""
    return lambda **seconds: monkeypatch.setattr("pydp2.options.timing.DEFAULT_TIMING", Timing(**seconds))


@pytest.fixture
def shared_data() -> Path:
    """Real data files beside the checkout; the test is skipped where they are not."""
    if not SHARED.is_dir():
        pytest.skip("no ../shared/data beside the checkout")
    return SHARED


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Make sure that groups stay together, and have the garbage collector leave alone what stays until the end: the
    tests, and all modules that they import. It looks at the rest less often than usual: it took 4 % of the time of all
    tests."""
    for item in session.items:
        if named := vars(item).get("_nodeid"):  # where xdist 3.8 writes the group; pytest 9.2 looks elsewhere
            item._id = type(item._id).parse(named)
        grouped = session.config.getoption("loadgroup", False) and item.get_closest_marker("xdist_group")
        assert not grouped or "@" in item.nodeid, f"{item.nodeid} would not run in the process of its group"
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
