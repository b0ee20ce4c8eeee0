"""What process can do instead of yielding: raise, exit, die."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pydp2.errors import FileCondemned, ProviderError

from ..runs import one_pass

CODE = """
import ctypes, os, signal, sys, threading

class Odd(Exception):
    def __init__(self, one, two, lock):
        super().__init__(one, two)
        self.lock = lock

class Own(LookupError):
    pass

class Base(BaseException):
    pass

class Mute(Exception):
    def __str__(self):
        raise RuntimeError("not even a text")

@provider(input_types=[integer_value(20)])
def process(settings, filename):
    for i in range(20):
        if i == 11 and filename == "second":
            {what}
        yield i
"""
BEFORE = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15], [16, 17, 18, 19], [0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize(
    ("what", "kind", "last"),
    [
        ("open('nowhere.txt')", FileNotFoundError, "[Errno 2] No such file or directory: 'nowhere.txt'"),
        ("{}['key']", KeyError, "KeyError: 'key'"),
        ("raise Odd('one', 2, threading.Lock())", ProviderError, "Odd: ('one', 2)"),
        ("raise Own('mine')", LookupError, "Own: mine"),
        ("raise Base('below')", ProviderError, "Base: below"),
        ("raise KeyboardInterrupt", ProviderError, "KeyboardInterrupt"),
        ("sys.exit('enough')", ProviderError, "SystemExit: enough"),
        ("raise StopIteration", RuntimeError, "RuntimeError: generator raised StopIteration"),
        ("b'\\xff'.decode()", UnicodeDecodeError, "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff in "
         "position 0: invalid start byte"),
        ("raise Mute", ProviderError, "Mute"),
        ("raise ExceptionGroup('two', [ValueError(1), TypeError(2)])", ExceptionGroup, "+----------"),
        ("raise ValueError('x' * 100_000)", ValueError, "x"),
        ("raise ValueError('\\ud800')", ValueError, "\\ud800"),
    ],
    ids=["builtin", "key", "unpicklable", "derived", "base", "interrupt", "exit", "stop", "unicode", "mute", "group",
         "long", "surrogate"],
)  # fmt: skip
def test_what_process_raises_reaches_the_trainer_with_its_traceback(
    what: str,
    kind: type[BaseException],
    last: str,
    provider_file: Callable[[str], str],
    capfd: pytest.CaptureFixture[str],
) -> None:
    """In its place in the stream, after every full batch, as the builtin of its kind; and the terminal stays clean."""
    seen = one_pass(["first", "second"], provider_file(CODE.replace("{what}", what)))
    assert seen.batches == BEFORE
    assert isinstance(seen.error, ProviderError)
    assert isinstance(seen.error, kind)
    lines = seen.text.splitlines()
    assert lines[0].startswith("file second, sample 11: process raised ")
    assert last in lines[-1]
    if "Mute" not in what:
        assert 'prov.py", line ' in seen.text
    assert "pydp2/" not in seen.text
    assert len(seen.text) < 20_000
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("what", "how"),
    [
        ("os._exit(3)", "ended with exit code 3"),
        ("os._exit(0)", "ended with exit code 0"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "was killed by SIGKILL"),
        ("ctypes.string_at(0)", "was killed by SIGSEGV"),
        ("os.abort()", "was killed by SIGABRT"),
        ("os.kill(os.getpid(), signal.SIGTERM)", "was killed by SIGTERM"),
        ("os.kill(os.getpid(), signal.SIGRTMIN + 2)", "was killed by "),
    ],
    ids=["exit-3", "exit-0", "SIGKILL", "SIGSEGV", "abort", "SIGTERM", "real-time-signal"],
)
def test_a_file_that_kills_its_worker_is_condemned_after_three_deaths(
    what: str, how: str, provider_file: Callable[[str], str], capfd: pytest.CaptureFixture[str]
) -> None:
    """Every full batch before the deadly sample is delivered; the error says how they died and what to do."""
    seen = one_pass(["first", "second"], provider_file(CODE.replace("{what}", what)))
    assert seen.batches == BEFORE
    assert isinstance(seen.error, FileCondemned)
    assert seen.text.startswith("file second, sample 11: three workers died while process() produced it (the last one ")
    assert how in seen.text
    assert seen.text.endswith('or pass on_error="skip"')
    assert "\n" not in seen.text
    screen = capfd.readouterr().err
    lost = [line for line in screen.splitlines() if line.startswith("pydp2: worker lost: ")]
    assert len(lost) == 3
    assert all(how in line and line.endswith(" in file second, sample 11; its files go to another") for line in lost)


def test_what_kills_by_a_fault_shows_where(
    provider_file: Callable[[str], str], capfd: pytest.CaptureFixture[str]
) -> None:
    """The stack of the crash, with the user's frames and none of ours."""
    one_pass(["first", "second"], provider_file(CODE.replace("{what}", "ctypes.string_at(0)")))
    screen = capfd.readouterr().err
    assert "second] Fatal Python error: Segmentation fault" in screen
    assert 'prov.py", line ' in screen
    assert "in process" in screen
    assert "pydp2/" not in screen
