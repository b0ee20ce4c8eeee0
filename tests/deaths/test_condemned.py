"""Files that kill, hang or change: what becomes of them, and of those that were open beside them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

import pydp2
from pydp2.errors import FileCondemned, NotRepeatable, ProviderError, ServiceLost

from ..provider_code import dense, numbers
from ..runs import consume, one_pass, processes, wait_until

CODE = """
import ctypes, os, signal, sys, time

@provider(input_types=[integer_value(1 << 40)])
def process(settings, filename):
    first = 1000 * int(filename.split("-")[-1])
    for i in range(first, first + 50):
        if filename.startswith("deadly") and i == first + 11:
            {what}
        yield i
"""
GOOD = [f"good-{n}" for n in range(12)]
DEATHS = ["os._exit(3)", "ctypes.string_at(0)", "os.kill(os.getpid(), signal.SIGKILL)"]


def values(*names: str) -> list[int]:
    """What the files give, a deadly one up to its deadly sample."""
    return [
        1000 * int(name.split("-")[1]) + i for name in names for i in range(11 if name.startswith("deadly") else 50)
    ]


@pytest.mark.parametrize("what", DEATHS, ids=["exit", "fault", "kill"])
def test_skipping_keeps_the_samples_before_a_death_and_reports(
    what: str, provider_file: Callable[[str], str], capfd: pytest.CaptureFixture[str]
) -> None:
    seen = one_pass(["good-0", "deadly-1", "good-2"], provider_file(CODE.replace("{what}", what)), on_error="skip")
    assert seen.error is None
    assert seen.samples == values("good-0", "deadly-1", "good-2")
    said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("pydp2: skipped: ")]
    (line,) = said
    assert "the rest of a file is left out: file deadly-1, sample 11: three workers died" in line
    assert "on_error" not in line


def test_skipping_keeps_the_samples_before_an_exception_and_reports(
    provider_file: Callable[[str], str], capfd: pytest.CaptureFixture[str]
) -> None:
    seen = one_pass(
        ["good-0", "deadly-1", "good-2"], provider_file(CODE.replace("{what}", "open('nowhere')")), on_error="skip"
    )
    assert seen.error is None
    assert seen.samples == values("good-0", "deadly-1", "good-2")
    screen = capfd.readouterr().err
    assert screen.count("pydp2: skipped: the rest of a file is left out: file deadly-1, sample 11: process raised") == 1
    assert "No such file or directory: 'nowhere'" in screen


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("what", DEATHS, ids=["exit", "fault", "kill"])
def test_files_that_were_open_beside_a_deadly_one_are_never_blamed(
    what: str, workers: int, provider_file: Callable[[str], str]
) -> None:
    """With two deadly files among twelve that take turns, every sample of the others arrives, and once."""
    files = [*GOOD[:5], "deadly-20", *GOOD[5:9], "deadly-21", *GOOD[9:]]
    seen = one_pass(files, provider_file(CODE.replace("{what}", what)), on_error="skip", shuffle=True, workers=workers)
    assert seen.error is None
    assert sorted(seen.samples) == sorted(values(*files))


def test_a_file_is_not_condemned_for_deaths_at_different_samples(
    provider_file: Callable[[str], str], tmp_path: Path
) -> None:
    """Five deaths, each somewhere else: the pass is complete."""
    code = """
    import os

    @provider(input_types=[integer_value(100)])
    def process(settings, filename):
        for i in range(50):
            if i % 10 == 5 and not os.path.exists(f"died-{i}"):
                open(f"died-{i}", "w").close()
                os._exit(1)
            yield i
    """
    seen = one_pass(["f"], provider_file(code), root=tmp_path)
    assert (seen.samples, seen.error) == ([*range(50)], None)
    assert len(list(tmp_path.glob("died-*"))) == 5


def test_a_condemned_file_is_tried_again_in_the_next_pass(provider_file: Callable[[str], str], tmp_path: Path) -> None:
    """A pass that failed is over; the service is not."""
    code = CODE.replace("{what}", "os.path.exists('mended') or os._exit(1)")
    with pydp2.load(["deadly-1"], provider_file(code), batch_size=4, shuffle=False, workers=2, root=tmp_path) as data:
        first = consume(data)
        assert isinstance(first.error, FileCondemned)
        assert first.samples == [1000 + i for i in range(8)]
        (tmp_path / "mended").touch()
        assert consume(data).samples == [1000 + i for i in range(50)]


# The first run of the file dies once some of its samples have reached the trainer; the second one is another.
CHANGING = """
import os, random, time

@provider(input_types=[integer_value(1 << 40)])
def process(settings, filename):
    again = os.path.exists("died")
    for i in range(400):
        if i == 100:
            time.sleep(0.05)  # what stands before it is sent then
        if i == 300 and not again:
            while not os.path.exists("seen"):
                time.sleep(0.01)
            open("died", "w").close()
            os._exit(1)
        {change}
        yield {value}
"""


def run_changing(change: str, value: str, address: Callable[[str], str], folder: Path) -> tuple[list[int], object]:
    code = CHANGING.replace("{change}", change).replace("{value}", value)
    with pydp2.load(["changing"], address(code), batch_size=4, shuffle=False, workers=1, root=folder) as data:
        seen = consume(data, lambda batch: batch.index >= 15 and (folder / "seen").touch())
    return seen.samples, seen.error


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ("pass", "random.SystemRandom().getrandbits(39)"),
        ("pass", "i + 1 if again and i == 0 else i"),
        ("if again and i == 50: return", "i"),
        ("if again and i == 50: continue", "i"),
        ("if again and i == 50: yield 7", "i"),
        ("if again and i == 50: raise ValueError('only now')", "i"),
    ],
    ids=["random", "one-value", "fewer", "one-less", "one-more", "raises"],
)
def test_a_generator_that_does_not_repeat_itself_after_a_death_is_named(
    change: str, value: str, provider_file: Callable[[str], str], tmp_path: Path
) -> None:
    """What was delivered is all of the first run; nothing of the second is mixed in."""
    samples, error = run_changing(change, value, provider_file, tmp_path)
    assert isinstance(error, NotRepeatable)
    assert str(error).startswith("file changing: process() did not repeat itself: run again")
    assert "settings.rng is seeded per file" in str(error)
    assert samples
    if "random" not in value:
        assert samples == [*range(len(samples))]
    assert len(samples) <= 300


@pytest.mark.parametrize(
    "value",
    ["int(settings.rng.integers(1 << 39))", "random.getrandbits(39)", "__import__('numpy').random.randint(1 << 39)"],
    ids=["settings.rng", "random", "numpy"],
)
def test_random_numbers_repeat_themselves(value: str, provider_file: Callable[[str], str], tmp_path: Path) -> None:
    samples, error = run_changing("pass", value, provider_file, tmp_path)
    assert error is None
    assert len(samples) == 400
    (tmp_path / "died").unlink()
    again, _ = run_changing("pass", value, provider_file, tmp_path)
    assert again == samples


@pytest.mark.parametrize(
    "what", ["time.sleep(1000)", "sum(range(10**12))", "__import__('re').match('(a+)+$', 'a' * 60 + 'b')"],
    ids=["sleep", "C-loop", "regex"],
)  # fmt: skip
def test_a_sample_that_takes_too_long_is_killed_and_its_stack_shown(
    what: str, provider_file: Callable[[str], str], capfd: pytest.CaptureFixture[str]
) -> None:
    """Also where it holds the interpreter's lock, so that no Python code of ours could run in that process."""
    seen = one_pass(
        ["good-0", "deadly-1", "good-2"], provider_file(CODE.replace("{what}", what)), sample_timeout=0.2, batch_size=10
    )
    assert isinstance(seen.error, FileCondemned)
    assert seen.samples == values("good-0", "deadly-1")[:60]
    assert "file deadly-1, sample 11: three workers died" in seen.text
    assert "was killed because one sample took longer than sample_timeout=0.2 s" in seen.text
    screen = capfd.readouterr().err
    assert screen.count("pydp2: timeout: file deadly-1, sample 11 takes longer than 0.2 s; the stack:\n") == 3
    # Each has a moment for its stack, if it gets a core in it. More are ended where the machine delays another sample.
    assert 1 <= screen.count("deadly-1] Current thread") <= screen.count("pydp2: timeout: file deadly-1, ")
    assert screen.count('prov.py", line ') >= 1
    assert "in process" in screen
    assert "pydp2/" not in screen


def test_a_timed_out_file_can_be_skipped(provider_file: Callable[[str], str]) -> None:
    seen = one_pass(
        ["good-0", "deadly-1", "good-2"], provider_file(CODE.replace("{what}", "time.sleep(1000)")),
        sample_timeout=0.2, on_error="skip",
    )  # fmt: skip
    assert (seen.samples, seen.error) == (values("good-0", "deadly-1", "good-2"), None)


def test_a_generator_that_waits_for_a_slow_trainer_is_not_too_slow(
    provider_file: Callable[[str], str], capfd: pytest.CaptureFixture[str]
) -> None:
    """Only the time inside process counts, not the time in which nobody asks it for more."""
    code = dense(200, 10_000, "pool_size=8")
    with pydp2.load(
        ["a", "b"], provider_file(code), workers=2, batch_size=8, sample_timeout=2.5, memory_limit="2MB"
    ) as data:
        rows = 0
        for batch in data:
            rows += len(batch)
            if batch.index in (2, 20):
                time.sleep(3)
    assert rows == 400
    assert capfd.readouterr().err == ""


def test_a_weight_that_kills_is_blamed_on_its_sample(provider_file: Callable[[str], str]) -> None:
    """calc_batch_size is the user's code too: workers do not die for ever."""
    code = numbers(50, "calc_batch_size=lambda sample: 1 if sample[0] != 11 else os._exit(1)")
    seen = one_pass(["f"], provider_file(code))
    assert isinstance(seen.error, FileCondemned)
    assert "file f, sample 11: three workers died" in seen.text
    assert seen.samples == [*range(8)]


def test_workers_that_die_while_they_start_end_the_service_with_a_word(
    provider_file: Callable[[str], str], tmp_path: Path
) -> None:
    """The first worker's hook went well, those of all others kill: nobody tries for ever."""
    code = """
    import os
    def hook(settings, **kwargs):
        try:
            os.close(os.open("first", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            os._exit(9)

    @provider(input_types=[integer_value(100)], init_hook=hook)
    def process(settings, filename):
        while True:
            yield 1
    """
    with pytest.raises(ProviderError, match=r"ended with exit code 9 while it imported the provider or ran its"):
        raise (
            one_pass(["a", "b"], provider_file(code), root=tmp_path, start="spawn").error
            or AssertionError("nothing was said")
        )


def test_workers_that_die_by_themselves_without_a_file_to_blame_end_the_service(
    provider_file: Callable[[str], str], tmp_path: Path
) -> None:
    """A thread of the user's that kills its process, say, again and again while process does not even run."""
    code = """
    import os, threading, time, _thread

    def end():
        # until the worker is ready, and then has another thread beside this one, and a batch has come
        while _thread._count() < 2 or not os.path.exists("begun"):
            time.sleep(0.01)
        time.sleep(0.3)
        os._exit(6)

    def hook(settings, **kwargs):
        threading.Thread(target=end).start()

    @provider(input_types=[integer_value(100)], init_hook=hook)
    def process(settings, filename):
        yield from range(100)
    """
    with pydp2.load(["a"], provider_file(code), batch_size=10, shuffle=False, workers=4, root=tmp_path) as data:
        stream = iter(data)
        next(stream)
        (tmp_path / "begun").touch()
        assert wait_until(lambda: processes("pydp2-server") == [], 60)
        with pytest.raises(ServiceLost, match="20 workers in a row ended outside of process"):
            list(stream)


def test_the_builtin_of_an_exception_is_caught_by_name_with_the_workers_traceback(
    provider_file: Callable[[str], str],
) -> None:
    with pydp2.load(["deadly-1"], provider_file(CODE.replace("{what}", "open('nowhere')")), batch_size=4) as data:
        try:
            list(data)
        except FileNotFoundError as error:
            caught = error
    assert isinstance(caught, ProviderError)
    assert "Traceback (most recent call last):" in str(caught)
    assert ", in process\n" in str(caught)
