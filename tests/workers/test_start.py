"""Where the user's module is imported and its hook run: once for all workers or in each; who survives whom."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import pydp2
from pydp2.errors import ProviderError

from ..runs import NUMBERS, NUMBERS_OPTIONS, numbered, processes, wait_until

EACH = "pydp2: each worker imports the provider and runs its init_hook for itself: "
COUNTED = (
    """
import os, threading, subprocess, sys, random, numpy
with open("imports", "a") as log:
    log.write(f"{os.getpid()} {os.environ['PYDP2_WORKER']}\\n")

def hook(settings, **kwargs):
    with open("hooks", "a") as log:
        log.write(f"{os.getpid()} {os.environ['PYDP2_WORKER']}\\n")
    settings.words = dict.fromkeys(range(1000))
    WHAT
"""
    + NUMBERS
).replace("pool_size=200", "pool_size=200, init_hook=hook")
FILES = [str(n) for n in range(60)]


def counted(what: str = "pass") -> str:
    return COUNTED.replace("WHAT", what)


def told(folder: Path, name: str) -> list[list[str]]:
    """What ``hooks`` or ``imports`` say: process and PYDP2_WORKER of each."""
    return [line.split() for line in (folder / name).read_text().splitlines()]


def kill(pid: int) -> None:
    """It may be gone by now."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def active(data: pydp2.Client) -> list[int]:
    """Workers that have files, not the one in reserve."""
    return [each["pid"] for each in data.stats()["workers"] if each["active"]]


def undisturbed(provider: str, folder: Path) -> list[tuple[int, list[int]]]:
    with pydp2.load(FILES, provider, workers=2, root=folder, start="spawn", **NUMBERS_OPTIONS) as data:
        return [numbered(batch) for batch in data]


def test_the_hook_runs_once_in_all_however_many_workers_are_killed(
    provider_file: Callable[[str], str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    provider = provider_file(counted())
    expected = undisturbed(provider, tmp_path)
    for name in ("hooks", "imports"):
        (tmp_path / name).unlink()
    capfd.readouterr()
    seen, killed = [], set[int]()
    with pydp2.load(FILES, provider, workers=4, root=tmp_path, **NUMBERS_OPTIONS) as data:
        for batch in data:
            seen.append(numbered(batch))
            if batch.index % 40 == 20:
                living: list[int] = []  # none at first: batches may come faster than workers
                assert wait_until(lambda living=living: bool(living.extend({*active(data)} - killed) or living))
                killed.add(living[0])
                kill(living[0])
        assert wait_until(lambda: len(processes("pydp2-worker")) == 5)
        assert wait_until(lambda: len(processes("pydp2-zygote")) == 1)
        (zygote,) = processes("pydp2-zygote")
        assert wait_until(lambda: data.stats()["workers_lost"] == len(killed))
    assert seen == expected
    assert len(killed) >= 2
    assert told(tmp_path, "hooks") == told(tmp_path, "imports") == [[str(zygote), "zygote"]]
    assert EACH not in capfd.readouterr().err


def test_with_spawn_each_worker_runs_it_and_that_is_said_once(
    provider_file: Callable[[str], str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pydp2.load(
        FILES, provider_file(counted()), workers=2, root=tmp_path, start="spawn", **NUMBERS_OPTIONS
    ) as data:
        assert wait_until(lambda: len(told(tmp_path, "hooks")) == 3)
        workers = processes("pydp2-worker")
        assert processes("pydp2-zygote") == []
        for _ in data:
            pass
    assert sorted(int(pid) for pid, _ in told(tmp_path, "hooks")) == workers
    assert sorted(number for _, number in told(tmp_path, "hooks")) == ["0", "1", "2"]
    assert capfd.readouterr().err.count(f'{EACH}start="spawn"\n') == 1


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("threading.Thread(target=threading.Event().wait, name='loader', daemon=True).start()",
         "they leave a process with 2 threads (loader), and a fork would copy one of them only"),
        ("settings.child = subprocess.Popen(['sleep', '1000'])", "they start a process, and workers cannot share one"),
    ],
    ids=["thread", "child"],
)  # fmt: skip
def test_what_a_fork_cannot_copy_has_each_worker_run_the_hook(
    what: str, reason: str, provider_file: Callable[[str], str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    provider = provider_file(counted(what))
    seen = []
    with pydp2.load(FILES, provider, workers=2, root=tmp_path, **NUMBERS_OPTIONS) as data:
        assert wait_until(lambda: len(told(tmp_path, "hooks")) == 3)
        # What a hook starts has the name of the process that starts it for a moment.
        assert wait_until(lambda: (len(processes("pydp2-worker")), processes("pydp2-zygote")) == (3, []))
        for batch in data:
            seen.append(numbered(batch))
            if batch.index == 20:
                kill(processes("pydp2-worker")[0])
        assert wait_until(lambda: len(told(tmp_path, "hooks")) == 4)
    assert len({pid for pid, _ in told(tmp_path, "hooks")}) == 4
    assert sum(number == "zygote" for _, number in told(tmp_path, "hooks")) == 1  # it became the first worker
    assert capfd.readouterr().err.count(f"{EACH}{reason}\n") == 1
    assert seen == undisturbed(provider, tmp_path)


def test_a_thread_that_the_hook_has_joined_does_not_matter(
    provider_file: Callable[[str], str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code = counted(
        "threads = [threading.Thread(target=str) for _ in range(20)]; "
        "[thread.start() for thread in threads]; [thread.join() for thread in threads]; subprocess.run(['true'])"
    )
    with pydp2.load(FILES, provider_file(code), workers=2, root=tmp_path, **NUMBERS_OPTIONS) as data:
        for _ in data:
            pass
    assert len(told(tmp_path, "hooks")) == 1
    assert EACH not in capfd.readouterr().err


def test_a_zygote_that_is_killed_harms_no_worker_and_is_made_anew(
    provider_file: Callable[[str], str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    provider = provider_file(counted())
    expected = undisturbed(provider, tmp_path)
    (tmp_path / "hooks").unlink()
    seen = []
    with pydp2.load(FILES, provider, workers=2, root=tmp_path, **NUMBERS_OPTIONS) as data:
        assert wait_until(lambda: len(processes("pydp2-worker")) == 3)
        assert wait_until(lambda: len(processes("pydp2-zygote")) == 1)  # and none that is about to be a worker
        (first,) = processes("pydp2-zygote")
        workers = processes("pydp2-worker")
        for batch in data:
            seen.append(numbered(batch))
            if batch.index == 20:
                kill(first)
                assert wait_until(lambda: processes("pydp2-zygote") not in ([], [first]))
                assert processes("pydp2-worker") == workers
            if batch.index == 40:
                for worker in workers:
                    kill(worker)
        assert wait_until(lambda: len(set(processes("pydp2-worker")) - set(workers)) == 3)
        assert wait_until(lambda: not set(processes("pydp2-worker")) & set(workers))
    assert seen == expected
    assert len(told(tmp_path, "hooks")) == 2
    assert (
        f"pydp2: zygote: process {first}, which workers are forked from, was killed by signal 9; another is made\n"
        in capfd.readouterr().err
    )


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_a_zygote_that_a_signal_has_stopped_is_replaced_with_whoever_waits_for_it(
    provider_file: Callable[[str], str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    provider = provider_file(counted())
    expected = undisturbed(provider, tmp_path)
    seen = []
    with pydp2.load(FILES, provider, workers=2, root=tmp_path, sample_timeout=0.4, **NUMBERS_OPTIONS) as data:
        assert wait_until(lambda: len(processes("pydp2-worker")) == 3)
        assert wait_until(lambda: len(processes("pydp2-zygote")) == 1)
        (first,) = processes("pydp2-zygote")
        for batch in data:
            seen.append(numbered(batch))
            if batch.index == 20:
                os.kill(first, signal.SIGSTOP)
                workers = processes("pydp2-worker")
                for worker in workers:
                    kill(worker)
        assert wait_until(lambda: len(set(processes("pydp2-worker")) - set(workers)) == 3)
        assert wait_until(lambda: first not in processes("pydp2-zygote"))
    assert seen == expected
    text = "the process that workers are forked from is killed because a signal had stopped it for longer than 0.4 s\n"
    assert text in capfd.readouterr().err


def test_zygote_and_workers_killed_at_once_lose_nothing(provider_file: Callable[[str], str], tmp_path: Path) -> None:
    provider = provider_file(counted())
    expected = undisturbed(provider, tmp_path)
    seen, killed = [], set[int]()
    with pydp2.load(FILES, provider, workers=2, root=tmp_path, **NUMBERS_OPTIONS) as data:
        for batch in data:
            seen.append(numbered(batch))
            if batch.index % 60 == 30:
                living = [*processes("pydp2-zygote"), *processes("pydp2-worker")]
                killed.update(living)
                for pid in living:
                    kill(pid)
                # who dies again and again before it is ready ends the service, and rightly
                assert wait_until(lambda: len(set(processes("pydp2-worker")) - killed) == 3)
    assert seen == expected


@pytest.mark.parametrize("start", ["auto", "spawn"])
@pytest.mark.parametrize(
    ("what", "kind", "text"),
    [
        ("raise KeyError('no word')", KeyError, "init_hook of .*process raised KeyError"),
        ("sys.exit(3)", ProviderError, "init_hook of .*process raised SystemExit"),
        ("os._exit(3)", ProviderError, "a worker ended with exit code 3 while it imported the provider or ran its"),
        ("os._exit(0)", ProviderError, "a worker ended with exit code 0 while it imported the provider or ran its"),
        ("os.kill(os.getpid(), 9)", ProviderError, "a worker was killed by SIGKILL while it imported the provider"),
        ("os.kill(0, 9)", ProviderError, "a worker was killed by SIGKILL while it imported the provider"),
        ("os.abort()", ProviderError, "a worker was killed by SIGABRT while it imported the provider"),
        ("settings.input_types = 3", TypeError, "init_hook of .*process left invalid settings"),
    ],
)
def test_what_goes_wrong_in_the_hook_is_told_alike(
    what: str, kind: type[Exception], text: str, start: str, provider_file: Callable[[str], str], tmp_path: Path
) -> None:
    with pytest.raises(kind, match=text):
        pydp2.launch(FILES, provider_file(counted(what)), workers=2, root=tmp_path, start=start)


def test_a_hook_that_ends_its_process_later_ends_the_service_with_a_word(
    provider_file: Callable[[str], str], tmp_path: Path
) -> None:
    """The zygote is killed, and whatever is made in its place dies in the hook."""
    code = counted("len(open('hooks').readlines()) > 1 and os._exit(9)")
    with pydp2.load(FILES, provider_file(code), workers=2, root=tmp_path, **NUMBERS_OPTIONS) as data:
        stream = iter(data)
        next(stream)
        kill(processes("pydp2-zygote")[0])
        assert wait_until(lambda: len(told(tmp_path, "hooks")) >= 2)

        def lose_all() -> bool:
            for worker in processes("pydp2-worker"):
                kill(worker)
            return processes("pydp2-server") == []

        assert wait_until(lose_all, 20)
        with pytest.raises(ProviderError, match="ended with exit code 9 while it imported the provider or ran its"):
            list(stream)


def test_workers_do_not_all_draw_the_same(provider_file: Callable[[str], str], tmp_path: Path) -> None:
    code = """
    import os, random, numpy
    @provider(input_types=[integer_value(1 << 30)], should_shuffle=False)
    def process(settings, filename):
        yield random.getrandbits(29)
        yield int(numpy.random.randint(1 << 29))
        yield os.getpid()
    """
    with pydp2.load(FILES, provider_file(code), workers=3, batch_size=3, on_changed="warn") as data:
        drawn = [tuple(batch[0].tolist()) for batch in data]
    assert len({python for python, _, _ in drawn}) == len({numpy for _, numpy, _ in drawn}) == len(FILES)


def test_what_the_hook_prints_and_changes_is_as_in_a_worker(
    provider_file: Callable[[str], str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A line without an end comes out once; a closed stdout and another directory are mended before the first file."""
    code = """
    import os, sys
    def hook(settings, **kwargs):
        print("begun", end="")
        os.chdir("/")
        sys.stdout.flush()
        os.close(1)

    @provider(input_types=[integer_value(10)], init_hook=hook)
    def process(settings, filename):
        print("reading", filename)
        yield int(open("number").read())
    """
    (tmp_path / "number").write_text("7")
    with pydp2.load(["a", "b", "c"], provider_file(code), workers=2, batch_size=1, root=tmp_path) as data:
        assert [batch[0].tolist() for batch in data] == [[7]] * 3
    screen = capfd.readouterr().err
    assert screen.count("begun") == 1
    assert "[worker 0] begun\n" in screen
    assert sorted(line for line in screen.splitlines() if "reading" in line)
    for name in "abc":
        assert f"{name}] reading {name}\n" in screen
