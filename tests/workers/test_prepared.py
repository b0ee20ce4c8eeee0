"""A provider that takes long to import is imported once for all services of a program, as far as nobody can tell."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pydp2
from pydp2.api import preparation
from pydp2.errors import Error, OptionError, ProviderError, ServiceLost

from ..runs import consume, is_dead, processes, wait_until

NAME = "pydp2-prepared"
SLOW = """
import os, signal, socket, sys, threading, time
FIRST
with open("imports", "a") as log:
    log.write(f"{os.getpid()}\\n")
time.sleep(0.6)
STATE = []

def on_init(settings, number=0, **kwargs):
    STATE.append(number)
    with open("hooks", "a") as log:
        log.write(f"{os.getpid()} {STATE}\\n")
    LAST

@provider(input_types=[integer_value(1000)], init_hook=on_init, pool_size=64)
def process(settings, filename):
    for i in range(50):
        yield STATE[-1] * 100 + i
"""
IMPORTER = "pydp2-importer"
WAITS = "while not os.path.exists('go'): time.sleep(0.005)"
"""Line of a module whose import ends once there is a file of that name."""


@pytest.fixture(autouse=True)
def _end_prepared_processes() -> Iterator[None]:
    """Each test begins and ends without one."""
    preparation.end_all()
    yield
    preparation.end_all()
    assert wait_until(lambda: not processes(NAME) and not processes(IMPORTER))


@pytest.fixture
def slow(provider_file: Callable[..., str]) -> Callable[..., str]:
    """``slow(first, last)`` writes a provider that takes 0.6 s to import; lines that its module and its hook run."""
    return lambda first="", last="", name="prov": provider_file(
        SLOW.replace("FIRST", first).replace("LAST", last or "pass"), name
    )


def samples(provider: str, folder: Path, number: int = 0, **options: Any) -> set[int]:
    """The hundreds of the samples of a pass of a service of its own."""
    with pydp2.load(
        ["a", "b"], provider, args={"number": number}, root=folder, batch_size=10, **{"workers": 2} | options
    ) as data:
        return {value // 100 for value in consume(data).samples}


def lines(folder: Path, name: str) -> list[str]:
    return (folder / name).read_text().splitlines()


def test_the_services_of_a_program_import_a_provider_once_and_each_runs_its_own_hook(
    slow: Callable[..., str], tmp_path: Path
) -> None:
    provider = slow()
    assert [samples(provider, tmp_path, number) for number in (1, 2, 3)] == [{1}, {2}, {3}]
    assert len(lines(tmp_path, "imports")) == 1
    hooks = [line.split(maxsplit=1) for line in lines(tmp_path, "hooks")]
    assert [state for _, state in hooks] == ["[1]", "[2]", "[3]"]  # no hook sees what another one left
    assert len({pid for pid, _ in hooks}) == 3


def test_the_providers_of_several_sources_are_imported_once_together(slow: Callable[..., str], tmp_path: Path) -> None:
    first, second = slow(), slow(name="second")
    for number in (1, 2):
        sources = {
            name: pydp2.Source(["a"], provider, {"number": number + more})
            for name, provider, more in (("wiki", first, 0), ("code", second, 2), ("more", first, 4))
        }
        with pydp2.load(sources, root=tmp_path, batch_size=10, workers=1) as data:  # the first provider sees both hooks
            assert {value // 100 for value in consume(data).samples} == {number + 4, number + 2}
    assert len(lines(tmp_path, "imports")) == 2  # one for each module


def test_services_that_run_at_the_same_time_have_processes_of_their_own(
    slow: Callable[..., str], tmp_path: Path
) -> None:
    provider = slow()
    options: dict[str, Any] = {"root": tmp_path, "batch_size": 10, "workers": 1}
    with pydp2.load(["a"], provider, args={"number": 1}, **options) as one:
        with pydp2.load(["a"], provider, args={"number": 2}, **options) as two:
            assert len(processes("pydp2-supervise")) == 2
            assert {value // 100 for value in consume(two).samples} == {2}
        assert wait_until(lambda: len(processes("pydp2-supervise")) == 1)
        assert {value // 100 for value in consume(one).samples} == {1}
        assert {value // 100 for value in consume(one).samples} == {1}
    assert len(lines(tmp_path, "imports")) == 1


def test_the_first_service_may_end_before_the_next_begins_and_frees_what_it_locked(
    slow: Callable[..., str], tmp_path: Path
) -> None:
    provider, state = slow(), str(tmp_path / "state")
    for number in (1, 2, 3):
        assert samples(provider, tmp_path, number, state_dir=state) == {number}
    assert len(lines(tmp_path, "imports")) == 1


def test_a_provider_that_is_imported_fast_leaves_no_process(provider_file: Callable[..., str], tmp_path: Path) -> None:
    fast = "import pydp2.host.engine.prepared as prepared; prepared._SLOW_IMPORT = 60.0"  # on a busy machine too
    code = SLOW.replace("FIRST", fast).replace("LAST", "pass").replace("sleep(0.6)", "sleep(0)")
    provider = provider_file(code)
    with pydp2.load(["a"], provider, root=tmp_path, batch_size=10, workers=1):
        assert processes(NAME) == []
    samples(provider, tmp_path)
    assert len(lines(tmp_path, "imports")) == 2


@pytest.mark.parametrize("changed", ["prov", "helper"])
def test_changed_code_is_imported_anew(slow: Callable[..., str], tmp_path: Path, changed: str) -> None:
    helper = tmp_path / "helper.py"
    helper.write_text("value = 1\n")
    provider = slow("import helper")
    samples(provider, tmp_path)
    samples(provider, tmp_path)
    assert len(lines(tmp_path, "imports")) == 1
    file = tmp_path / f"{changed}.py"
    file.write_text(file.read_text() + "# changed\n")
    samples(provider, tmp_path)
    assert len(lines(tmp_path, "imports")) == 2


def test_other_surroundings_are_another_import(
    slow: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = slow()
    samples(provider, tmp_path)
    monkeypatch.setenv("SOME_SETTING_OF_THE_PROVIDER", "1")
    samples(provider, tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "more"))
    samples(provider, tmp_path)
    monkeypatch.setattr("sys.argv", ["program", "--other"])
    samples(provider, tmp_path)
    assert len(lines(tmp_path, "imports")) == 4
    samples(provider, tmp_path)
    assert len(lines(tmp_path, "imports")) == 4


def test_a_global_that_the_program_changed_is_told_and_does_not_need_another_import(
    slow: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    slow(name="changing")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("changing")
    monkeypatch.delitem(sys.modules, "changing")
    monkeypatch.setitem(sys.modules, "changing", module)
    pydp2.prepare(module.process, root=tmp_path)
    samples(module.process, tmp_path)
    before = lines(tmp_path, "imports")
    module.STATE.append("changed")
    capfd.readouterr()
    assert samples(module.process, tmp_path, 2) == {2}
    assert "STATE" in capfd.readouterr().err
    assert lines(tmp_path, "imports") == before


def test_spawned_workers_import_for_themselves(slow: Callable[..., str], tmp_path: Path) -> None:
    provider = slow()
    samples(provider, tmp_path)
    samples(provider, tmp_path, start="spawn", workers=1)
    assert len({*lines(tmp_path, "imports")}) >= 2


@pytest.mark.parametrize(
    "first",
    [
        pytest.param("kept = open(__file__)", id="opens a file"),
        pytest.param("threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()", id="starts a thread"),
        pytest.param("import subprocess; child = subprocess.Popen(['sleep', '1000'])", id="starts a process"),
        pytest.param("signal.signal(signal.SIGUSR1, lambda *_: None)", id="handles a signal"),
        pytest.param("signal.setitimer(signal.ITIMER_REAL, 1000)", id="sets a timer"),
        pytest.param("was = os.kill; os.kill = lambda *given: was(*given)", id="replaces a function"),
        pytest.param("import mmap; shared = mmap.mmap(-1, 4096)", id="shares memory"),
        pytest.param("socket.setdefaulttimeout(0.2)", id="sets a timeout"),
        pytest.param("signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])", id="blocks a signal"),
        pytest.param("import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (200, r.getrlimit(7)[1]))", id="sets a limit"),
    ],
)
def test_a_copy_that_would_not_be_as_good_is_not_made(slow: Callable[..., str], tmp_path: Path, first: str) -> None:
    provider = slow(first)
    samples(provider, tmp_path, 1, workers=1)
    before = len(lines(tmp_path, "imports"))
    assert processes(NAME) == []
    assert samples(provider, tmp_path, 2, workers=1) == {2}
    assert len(lines(tmp_path, "imports")) > before


def test_a_module_may_put_streams_of_its_own_in_place(slow: Callable[..., str], tmp_path: Path) -> None:
    provider = slow("""
class Stream:
    def write(self, text):
        return len(text)

sys.stdout = sys.stderr = Stream()
""")
    assert [samples(provider, tmp_path, number) for number in (1, 2)] == [{1}, {2}]
    assert len(lines(tmp_path, "imports")) == 1


def test_workers_that_prepare_for_themselves_import_for_themselves(slow: Callable[..., str], tmp_path: Path) -> None:
    provider = slow(last="threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()")
    samples(provider, tmp_path, workers=1)
    before = len(lines(tmp_path, "imports"))
    samples(provider, tmp_path, workers=1)
    assert len(lines(tmp_path, "imports")) > before


def test_an_import_that_raises_says_so_each_time(slow: Callable[..., str], tmp_path: Path) -> None:
    provider = slow("time.sleep(0.6); 1 / 0")
    for _ in range(2):
        with pytest.raises(ProviderError, match="ZeroDivisionError"):
            samples(provider, tmp_path)
    assert processes(NAME) == []


def test_a_hook_that_raised_is_tried_again_without_the_import(slow: Callable[..., str], tmp_path: Path) -> None:
    provider = slow(last="1 / number")
    with pytest.raises(ProviderError, match="ZeroDivisionError"):
        samples(provider, tmp_path, 0)
    before = lines(tmp_path, "imports")
    assert samples(provider, tmp_path, 2) == {2}
    assert lines(tmp_path, "imports") == before


def test_warnings_and_the_search_path_are_those_of_the_import(
    slow: Callable[..., str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "late").mkdir()
    (tmp_path / "late" / "found_late.py").write_text("value = 7\n")
    provider = slow(
        "import warnings; warnings.warn('of the import'); sys.path.append(os.path.abspath('late'))",
        "import found_late",
    )
    for _ in range(2):
        samples(provider, tmp_path)
        assert "of the import" in capfd.readouterr().err
    assert len(lines(tmp_path, "imports")) == 1


def test_threads_that_load_at_once_each_have_their_service(slow: Callable[..., str], tmp_path: Path) -> None:
    provider, found = slow(), dict[int, set[int]]()
    samples(provider, tmp_path)

    def load(number: int) -> None:
        found[number] = samples(provider, tmp_path, number, workers=1)

    threads = [threading.Thread(target=load, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: {number} for number in range(1, 5)}
    assert len(lines(tmp_path, "imports")) == 1


def test_services_outlive_the_process_and_the_next_imports_for_itself(slow: Callable[..., str], tmp_path: Path) -> None:
    provider = slow()
    options: dict[str, Any] = {"root": tmp_path, "batch_size": 10, "workers": 1}
    samples(provider, tmp_path)
    with pydp2.load(["a"], provider, **options) as data:
        (prepared,) = processes(NAME)
        os.kill(prepared, signal.SIGKILL)
        assert wait_until(lambda: is_dead(prepared))
        assert len(consume(data).samples) == 50
        samples(provider, tmp_path)
        assert len(consume(data).samples) == 50
    assert len(lines(tmp_path, "imports")) == 2


def test_a_killed_supervisor_ends_its_own_service_alone(slow: Callable[..., str], tmp_path: Path) -> None:
    provider = slow()
    options: dict[str, Any] = {"root": tmp_path, "batch_size": 10, "workers": 1}
    samples(provider, tmp_path)
    with pydp2.load(["a"], provider, **options) as one:
        (first,) = processes("pydp2-supervise")
        with pydp2.load(["a"], provider, **options) as two:
            (second,) = {*processes("pydp2-supervise")} - {first}
            os.kill(second, signal.SIGKILL)
            assert wait_until(lambda: isinstance(consume(two).error, ServiceLost))
        assert len(consume(one).samples) == 50
        assert samples(provider, tmp_path, 3) == {3}
    assert len(lines(tmp_path, "imports")) == 1


def test_workers_that_are_killed_are_replaced_from_the_same_import(slow: Callable[..., str], tmp_path: Path) -> None:
    provider = slow()
    samples(provider, tmp_path)
    with pydp2.load([str(n) for n in range(200)], provider, root=tmp_path, batch_size=10, workers=2) as data:
        seen = 0
        for batch in data:
            seen += len(batch)
            if batch.index in (100, 300):
                for each in processes("pydp2-worker"):
                    os.kill(each, signal.SIGKILL)
        assert seen == 10_000
    assert len(lines(tmp_path, "imports")) == 1


# -- an import before the first service --------------------------------------------------------------------------------
def test_the_program_goes_on_while_a_provider_is_imported_and_its_loads_import_nothing(
    slow: Callable[..., str], tmp_path: Path
) -> None:
    provider = slow(WAITS)
    pydp2.prepare(provider, root=tmp_path)
    pydp2.prepare(provider, root=tmp_path)
    assert wait_until(lambda: (tmp_path / "imports").exists() is False and len(processes(IMPORTER)) == 1)
    (tmp_path / "go").touch()
    assert wait_until(lambda: len(processes(NAME)) == 1)
    (imported,) = lines(tmp_path, "imports")
    assert [samples(provider, tmp_path, number) for number in (1, 2)] == [{1}, {2}]
    assert lines(tmp_path, "imports") == [imported]


def test_a_load_in_the_middle_of_the_import_waits_and_says_for_what(
    slow: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYDP2_NOTICE_SECONDS", "0.05")
    (tmp_path / "heavy.py").write_text(f"import os, time\n{WAITS}\n")
    provider, shown = slow("import heavy"), ""
    pydp2.prepare(provider, root=tmp_path)
    found: list[set[int]] = []
    threads = [threading.Thread(target=lambda: found.append(samples(provider, tmp_path, 1))) for _ in range(2)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 20
    while "the service starts: importing heavy" not in shown and time.monotonic() < deadline:
        shown += capfd.readouterr().err
        time.sleep(0.01)
    (tmp_path / "go").touch()
    for thread in threads:
        thread.join()
    assert "the service starts: importing heavy" in shown
    assert found == [{1}, {1}]
    assert len(lines(tmp_path, "imports")) == 1


def test_a_service_without_forked_workers_does_not_wait_for_the_import(
    slow: Callable[..., str], tmp_path: Path
) -> None:
    provider = slow("if os.environ['PYDP2_WORKER'] == 'zygote': time.sleep(1000)")
    pydp2.prepare(provider, root=tmp_path)
    assert samples(provider, tmp_path, 1, start="spawn", workers=1) == {1}


@pytest.mark.parametrize(
    ("first", "error"),
    [
        pytest.param("time.sleep(0.6); 1 / 0", "ZeroDivisionError", id="raises"),
        pytest.param("sys.exit(3)", "SystemExit", id="exits"),
        pytest.param("os._exit(3)", "exit code 3|ended", id="ends the process"),
    ],
)
def test_an_import_that_fails_early_is_told_by_the_load(
    slow: Callable[..., str], tmp_path: Path, first: str, error: str, capfd: pytest.CaptureFixture[str]
) -> None:
    provider = slow(first)
    pydp2.prepare(provider, root=tmp_path)
    assert wait_until(lambda: not processes(IMPORTER))
    assert "Traceback" not in capfd.readouterr().err
    with pytest.raises(Error, match=error):
        samples(provider, tmp_path)
    assert processes(NAME) == []


@pytest.mark.parametrize(
    "first",
    [
        pytest.param("kept = open(__file__)", id="opens a file"),
        pytest.param("import subprocess; child = subprocess.Popen(['sleep', '1000'])", id="starts a process"),
        pytest.param("threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()", id="starts a thread"),
    ],
)
def test_an_early_import_that_is_not_as_good_is_not_used(slow: Callable[..., str], tmp_path: Path, first: str) -> None:
    provider = slow(first)
    pydp2.prepare(provider, root=tmp_path)
    assert samples(provider, tmp_path, 1, workers=1) == {1}
    assert len(lines(tmp_path, "imports")) >= 2
    assert processes(NAME) == []


def test_an_early_import_of_other_surroundings_is_not_used(
    slow: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = slow()
    pydp2.prepare(provider, root=tmp_path)
    monkeypatch.setattr("sys.argv", ["program", "--other"])
    assert samples(provider, tmp_path, 1) == {1}
    assert len(lines(tmp_path, "imports")) == 2


@pytest.mark.parametrize("killed", [IMPORTER, "pydp2-zygote"])
def test_an_early_import_that_is_killed_is_done_by_the_load(
    slow: Callable[..., str], tmp_path: Path, killed: str
) -> None:
    provider = slow("open('began', 'a').close(); " + WAITS.replace("while", "\nwhile"))
    pydp2.prepare(provider, root=tmp_path)
    assert wait_until((tmp_path / "began").exists)
    (importer,) = processes(IMPORTER)
    zygote = child_of(importer)
    os.kill(importer if killed == IMPORTER else zygote, signal.SIGKILL)
    assert wait_until(lambda: is_dead(zygote) and not processes(IMPORTER))
    (tmp_path / "go").touch()
    assert samples(provider, tmp_path, 1) == {1}
    assert len(lines(tmp_path, "imports")) == 1


def test_a_stopped_importer_is_ended_with_what_it_imports(slow: Callable[..., str], tmp_path: Path) -> None:
    provider = slow("open('began', 'a').close(); time.sleep(1000)")
    pydp2.prepare(provider, root=tmp_path)
    assert wait_until((tmp_path / "began").exists)
    (importer,) = processes(IMPORTER)
    zygote = child_of(importer)
    os.kill(importer, signal.SIGSTOP)
    preparation.end_all()
    assert wait_until(lambda: is_dead(zygote) and is_dead(importer))


def test_what_prepare_is_given_is_checked_at_once(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="root must be a folder"):
        pydp2.prepare("prov.process", root=tmp_path / "none")
    with pytest.raises(Error, match="provider"):
        pydp2.prepare(3)  # type: ignore[arg-type]


def child_of(process: int) -> int:
    return int(Path(f"/proc/{process}/task/{process}/children").read_text().split()[0])
