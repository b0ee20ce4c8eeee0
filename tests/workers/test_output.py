"""What the user's code prints: line by line on stderr, marked with worker and file, bounded."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest

import pydp2

from ..runs import one_pass

LINE = re.compile(r"\[worker (\d+)(?: (\S+))?\] (.*)")


def lines(screen: str) -> list[tuple[str | None, str]]:
    """(file, text) of every line; each must be marked."""
    found = [LINE.fullmatch(line) for line in screen.splitlines()]
    assert all(found), screen
    return [(match[2], match[3]) for match in found if match]


@pytest.fixture(autouse=True, params=["buffered", "unbuffered"])
def _python_output(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever way the user's Python is set up."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    if request.param == "unbuffered":
        monkeypatch.setenv("PYTHONUNBUFFERED", "1")


def test_every_way_to_print_comes_line_by_line_with_worker_and_file(
    provider_file: Callable[[str], str], capfd: pytest.CaptureFixture[str]
) -> None:
    code = """
    import ctypes, logging, os, sys
    print("imported")

    def hook(settings, **kwargs):
        settings.logger.info("hooked")

    @provider(input_types=[integer_value(10)], init_hook=hook)
    def process(settings, filename):
        print("print", filename)
        sys.stderr.write("stderr\\n")
        settings.logger.info("info %d", 1)
        settings.logger.debug("never shown")
        logging.getLogger("mine").warning("warned")
        os.write(1, b"raw 1\\n")
        os.write(2, b"raw 2\\n")
        ctypes.CDLL(None).puts(b"from C")
        os.system("echo from a shell")
        print("two\\nlines")
        print("zürich 日本")
        yield 1
        print("no newline at the end", end="")
    """
    seen = one_pass(["a", "b"], provider_file(code), workers=1)
    assert seen.samples == [1, 1]
    said = lines(capfd.readouterr().err)
    of = {name: [text for file, text in said if file == name] for name in (None, "a", "b")}
    # of each process as far as it came: the reserve may still be starting when the pass is over
    assert set(of[None]) == {"imported", "INFO pydp2.provider: hooked"}
    assert all(of[None].count(line) <= 2 for line in of[None])
    for name in "ab":
        assert of[name] == [
            f"print {name}", "stderr", "INFO pydp2.provider: info 1", "WARNING mine: warned", "raw 1", "raw 2",
            "from C", "from a shell", "two", "lines", "zürich 日本", "no newline at the end",
        ]  # fmt: skip


def test_each_line_is_marked_with_its_own_file_however_short_files_are(
    provider_file: Callable[[str], str], capfd: pytest.CaptureFixture[str]
) -> None:
    """Of two workers that turn from file to file thousands of times, also when many are open at once."""
    code = """
    import os
    @provider(input_types=[integer_value(10)])
    def process(settings, filename):
        os.write(1, f"{filename} begins\\n".encode())
        for i in range(3):
            print(filename, i)
            yield i
        os.write(2, f"{filename} ends\\n".encode())
    """
    names = [f"f{n}" for n in range(400)]
    seen = one_pass(names, provider_file(code), shuffle=True)
    assert len(seen.samples) == 1200
    said = lines(capfd.readouterr().err)
    assert sorted(said) == sorted((name, f"{name} {what}") for name in names for what in ("begins", 0, 1, 2, "ends"))


def test_what_one_worker_prints_is_at_most_a_megabyte_a_second_and_the_rest_is_counted(
    provider_file: Callable[[str], str], capfd: pytest.CaptureFixture[str]
) -> None:
    """A flood holds up neither the worker nor the trainer, and what was not shown is told of in bytes."""
    code = """
    @provider(input_types=[integer_value(10)])
    def process(settings, filename):
        line = "x" * 99
        for _ in range(80_000):
            print(line)
        yield 1
    """
    began = time.monotonic()
    seen = one_pass(["a"], provider_file(code), workers=1)
    took = time.monotonic() - began
    assert seen.samples == [1]
    said = [text for _, text in lines(capfd.readouterr().err)]
    counts = [re.fullmatch(r"… (\d+) bytes of output left out \(more than 1000000 a second\) …", text) for text in said]
    dropped = sum(int(match[1]) for match in counts if match)
    shown = sum(len(text) + 1 for text, match in zip(said, counts, strict=True) if not match)
    assert dropped
    assert abs(dropped + shown - 8_000_000) < 100 * len(counts) / 99 + 1000
    assert shown < 1_000_000 * (1 + took)  # in a second in which the worker was held up, nothing is left out
    assert sum(map(bool, counts)) < 60


def test_printing_without_end_ends_with_the_pass(
    provider_file: Callable[[str], str], capfd: pytest.CaptureFixture[str]
) -> None:
    code = """
    import threading

    def chatter():
        while True:
            print("still here")

    def hook(settings, **kwargs):
        threading.Thread(target=chatter, daemon=True).start()

    @provider(input_types=[integer_value(10)], init_hook=hook)
    def process(settings, filename):
        yield from range(10)
    """
    with pydp2.load(["a", "b"], provider_file(code), batch_size=5, workers=2) as data:
        assert sum(len(batch) for batch in data) == 20
    assert "still here" in capfd.readouterr().err
