"""What a worker's import of the user's module sees of the program: arguments, flags, settings, changed globals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import pydp2
from pydp2.errors import ProviderError
from pydp2.providers.program_state import ProgramState

from ..warm_starts import run_program

STARTS = ("auto", "spawn")
BOTH = pytest.mark.parametrize("start", STARTS)
SCRIPT = """
import sys
{head}
import pydp2
from pydp2 import *

@pydp2.provider(input_types=[integer_value(1000)])
def process(settings, filename):
    yield from range(N)

if __name__ == "__main__":
    options = dict(batch_size=100, workers=1, start={start!r})
    if {checks}:
        print("check", pydp2.check(["x"], process).samples, len(list(process.samples("x"))))
    with pydp2.load(["x"], process, **options) as data:
        print("service", sum(len(batch) for batch in data))
"""
HEADS = {
    "an option": "import argparse; p = argparse.ArgumentParser(); p.add_argument('--n', type=int, default=10); "
    "N = p.parse_args().n",
    "a required option": "import argparse; p = argparse.ArgumentParser(); "
    "p.add_argument('--n', type=int, required=True); N = p.parse_args().n",
    "sys.argv": "N = int(sys.argv[2])",
    "a variable of the environment": "import os; N = int(os.environ['N_OF_TEST'])",
}


def _run(words: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return run_program(words, folder, 60)


def _without_reason(screen: str) -> str:
    """What was written to stderr, but for the line about ``start="spawn"``."""
    return "".join(line for line in screen.splitlines(keepends=True) if "imports the provider and runs its" not in line)


@BOTH
@pytest.mark.parametrize("head", HEADS)
def test_a_script_has_the_arguments_of_the_program_in_workers_too(
    head: str, start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("N_OF_TEST", "7")
    (tmp_path / "train.py").write_text(SCRIPT.format(head=HEADS[head], start=start, checks=True))
    done = _run(["train.py", "--n", "7"], tmp_path)
    assert (done.returncode, done.stdout) == (0, "check 7 7\nservice 7\n"), done.stderr
    assert _without_reason(done.stderr) == ""


@BOTH
def test_so_has_a_module_run_by_its_name_and_one_that_a_command_imports(start: str, tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").touch()
    (tmp_path / "pack" / "train.py").write_text(SCRIPT.format(head=HEADS["sys.argv"], start=start, checks=True))
    by_name = subprocess.run(
        [sys.executable, "-m", "pack.train", "--n", "7"], cwd=tmp_path, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    code = (
        "import pydp2, pack.train\n"
        f"with pydp2.load(['x'], pack.train.process, batch_size=100, workers=1, start={start!r}) as data:\n"
        "    print('service', sum(len(batch) for batch in data))"
    )
    command = _run(["-c", code, "--n", "8"], tmp_path)
    assert (by_name.returncode, by_name.stdout) == (0, "check 7 7\nservice 7\n"), by_name.stderr
    assert (command.returncode, command.stdout) == (0, "service 8\n"), command.stderr


CELL = """
import sys
import pydp2
from pydp2 import integer_value, provider

@provider(input_types=[integer_value(1000)])
def process(settings, filename):
    yield from range(int(sys.argv[1]))
"""


@BOTH
def test_so_has_a_provider_of_a_notebook(start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    code = (
        f"import linecache\ncell = {CELL!r}\n"
        "linecache.cache['<cell>'] = (len(cell), None, cell.splitlines(keepends=True), '<cell>')\n"
        "exec(compile(cell, '<cell>', 'exec'))\n"
        f"with pydp2.load(['x'], process, batch_size=100, workers=1, start={start!r}) as data:\n"
        "    print('service', sum(len(batch) for batch in data))"
    )
    done = _run(["-c", code, "9"], tmp_path)
    assert (done.returncode, done.stdout) == (0, "service 9\n"), done.stderr
    assert _without_reason(done.stderr) == ""


SEES = """
import json, locale, os, sys, time, warnings
import pydp2
from pydp2 import *

def seen():
    category = [each for each in warnings.filters if each[2] is FutureWarning]
    umask = os.umask(0)
    os.umask(umask)
    return {
        "argv": sys.argv, "flags": [sys.flags.optimize, sys.flags.bytes_warning, sys.flags.utf8_mode, __debug__],
        "warnings": [sys.warnoptions, [each[0] for each in category]], "decimal": locale.setlocale(locale.LC_NUMERIC),
        "recursion": sys.getrecursionlimit(), "digits": sys.get_int_max_str_digits(),
        "environment": os.environ.get("SET_BY_PROGRAM"), "zone": time.tzname, "umask": umask, "cwd": os.getcwd(),
        "path": "/added/by/program" in sys.path, "executable": sys.executable,
    }

@pydp2.provider(input_types=[pydp2.text()], should_shuffle=False)
def process(settings, filename):
    yield json.dumps(seen())

if __name__ == "__main__":
    sys.argv.append("odd \\udcff argument")
    sys.path.append("/added/by/program")
    sys.setrecursionlimit(4321)
    sys.set_int_max_str_digits(5000)
    locale.setlocale(locale.LC_NUMERIC, "C.UTF-8")
    os.environ["SET_BY_PROGRAM"] = "yes"
    os.environ["TZ"] = "XYZ+3"
    time.tzset()
    os.umask(0o027)
    os.chdir("sub")
    with pydp2.load(["x"], process, batch_size=1, workers=1, start=START) as data:
        (worker,) = (json.loads(text) for batch in data for text in batch[0])
    mine = json.loads(json.dumps(seen()))
    print(json.dumps({name: [mine[name], worker[name]] for name in mine if mine[name] != worker[name]}), mine["flags"])
"""


@BOTH
def test_workers_have_the_settings_and_flags_of_the_program(start: str, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "train.py").write_text(SEES.replace("START", repr(start)))
    words = [sys.executable, "-O", "-bb", "-X", "utf8", "-W", "error::FutureWarning", "train.py", "--n", "7"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "{} [1, 2, 1, false]\n".replace("false", "False")), done.stderr


def test_an_environment_that_the_program_ignores_is_ignored_by_workers(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "train.py").write_text(SEES.replace("START", "'auto'"))
    done = subprocess.run(
        [sys.executable, "-E", "-s", "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60,
        check=False, env=os.environ | {"PYTHONOPTIMIZE": "1", "PYTHONWARNINGS": "error"},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "{} [0, 0, 0, True]\n"), done.stderr


# -- globals that the program changes ----------------------------------------------------------------------------------
CHANGES = """
import pydp2
from pydp2 import *

N = 3
MODE = "train"
TABLE = {1: {"b", "a"}}
SAME = [1, 2.5, ("x",), float("nan"), {"b", "a", "c"}]
COUNT = 0
VOCABULARY = None
NOT_USED = 1

def hook(settings, **kwargs):
    global VOCABULARY, MADE
    VOCABULARY = MADE = ["a"]

class Helper:
    def size(self):
        return N + len(TABLE)

def count():
    global COUNT
    COUNT += 1

@pydp2.provider(input_types=[integer_value(1000)], init_hook=hook)
def process(settings, filename):
    count()
    assert MADE and VOCABULARY and SAME and len(SAME) == 5
    for _ in range(Helper().size()):
        yield len(MODE)

if __name__ == "__main__":
    CHANGE
    with pydp2.load(["x"], GIVEN, batch_size=100, workers=2, start=START) as data:
        print(sum(len(batch) for batch in data))
"""
WARNS = "process uses "


@BOTH
@pytest.mark.parametrize("given", ["process", "'train.py:process'", "'train.process'"])
def test_globals_that_the_program_changed_are_named_once(given: str, start: str, tmp_path: Path) -> None:
    change = "N, MODE = 7, 'secret'; TABLE[2] = 5; COUNT = 9; VOCABULARY = 'x'; NOT_USED = 2"
    code = CHANGES.replace("CHANGE", change).replace("GIVEN", given).replace("START", repr(start))
    (tmp_path / "train.py").write_text(code)
    done = _run(["train.py"], tmp_path)
    assert (done.returncode, done.stdout) == (0, "4\n"), done.stderr
    assert done.stderr.count(WARNS) == 1
    text = (
        "process uses MODE, which has another value in the workers; N, which is 7 in the program and 3 in the workers; "
        "TABLE, which has another value in the workers: workers import the module, and have nothing that the program "
        'changes later (below `if __name__ == "__main__":`, or from another module); assign it at the top level of the '
        "module, or pass it with args=… to the init_hook"
    )
    assert text in done.stderr
    assert "secret" not in done.stderr


def test_a_global_that_only_the_program_has_is_named_before_the_error(tmp_path: Path) -> None:
    change = "global_model = object()"
    code = CHANGES.replace("CHANGE", change).replace("GIVEN", "process").replace("START", "'auto'")
    (tmp_path / "train.py").write_text(code.replace("yield len(MODE)", "yield len(str(global_model))"))
    done = _run(["train.py"], tmp_path)
    assert done.returncode == 1
    warned = done.stderr.index("process uses global_model, which the workers do not have: workers import the module")
    assert warned < done.stderr.index("NameError: name 'global_model' is not defined")


@BOTH
def test_globals_that_are_the_same_are_not_named(start: str, tmp_path: Path) -> None:
    code = CHANGES.replace("CHANGE", "pass").replace("GIVEN", "process").replace("START", repr(start))
    (tmp_path / "train.py").write_text(code)
    done = _run(["train.py"], tmp_path)
    assert (done.returncode, done.stdout, _without_reason(done.stderr)) == (0, "4\n", "")


def test_a_module_that_another_module_changed_is_named(tmp_path: Path) -> None:
    (tmp_path / "prov.py").write_text(CHANGES.replace("CHANGE", "pass"))
    (tmp_path / "train.py").write_text(
        "import pydp2, prov\nprov.N = 5\n"
        "with pydp2.load(['x'], 'prov.process', batch_size=100, workers=1) as data:\n    list(data)\n"
    )
    done = _run(["train.py"], tmp_path)
    assert done.returncode == 0
    assert "process uses N, which is 5 in the program and 3 in the workers: " in done.stderr


# -- imports that fail -------------------------------------------------------------------------------------------------
@BOTH
@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("import argparse; argparse.ArgumentParser().parse_args()", "raised SystemExit while it was imported"),
        ("sys.exit(3)", "raised SystemExit while it was imported"),
        ("N = int(sys.argv[5])", "raised IndexError while it was imported"),
    ],
)
def test_an_import_that_fails_by_the_arguments_names_them_and_the_remedy(
    line: str, text: str, start: str, provider_file: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--epochs", "3"])
    provider = provider_file(f"import sys\n{line}\n" + SCRIPT.format(head="N = 1", start=start, checks=False))
    with pytest.raises(ProviderError, match=text) as caught:
        pydp2.launch(["x"], provider, workers=1, start=start)
    assert "workers import the module of the provider, with the arguments of the program, sys.argv = " in str(
        caught.value
    )
    assert "['train.py', '--epochs', '3']: put what only the program does, such as parse_args(), below `if" in str(
        caught.value
    )


def test_an_import_that_fails_otherwise_does_not(provider_file: Callable[[str], str]) -> None:
    with pytest.raises(KeyError) as caught:
        pydp2.launch(["x"], provider_file("{}['no']\n"), workers=1)
    assert "sys.argv" not in str(caught.value)


# -- what the module itself sets ---------------------------------------------------------------------------------------
SETS = """
import logging, warnings
from pydp2 import *
WHAT

@provider(input_types=[integer_value(10)], should_shuffle=False)
def process(settings, filename):
    logging.getLogger("own").info("an info")
    warnings.warn("a future", FutureWarning)
    yield 1
"""


@BOTH
@pytest.mark.parametrize(
    ("what", "shown", "hidden"),
    [
        ("pass", ["INFO own: an info", "FutureWarning: a future"], []),
        ("logging.basicConfig(level='INFO', format='mine %(message)s')", ["mine an info"], ["INFO own"]),
        ("logging.basicConfig(level='WARNING')", ["FutureWarning"], ["an info"]),
        ("warnings.simplefilter('ignore')", ["INFO own"], ["a future"]),
        ("warnings.simplefilter('always', UserWarning)", ["INFO own", "a future"], []),
        ("logging.captureWarnings(True)", ["WARNING py.warnings: "], []),
    ],
)
def test_what_a_module_sets_for_logs_and_warnings_holds_in_process(
    what: str, shown: list[str], hidden: list[str], start: str, provider_file: Callable[[str], str],
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    with pydp2.load(["x"], provider_file(SETS.replace("WHAT", what)), batch_size=1, workers=1, start=start) as data:
        assert sum(len(batch) for batch in data) == 1
    screen = capfd.readouterr().err
    assert [text for text in shown if text not in screen] == []
    assert [text for text in hidden if text in screen] == []


# -- the state itself --------------------------------------------------------------------------------------------------
def test_the_state_arrives_as_it_was_sent() -> None:
    state = ProgramState(
        argv=("a b", "\udcff", "", "é"), warn_options=("error",), locale="C", recursion_limit=1000, digits_limit=0,
        described_globals={"p.process": {"N": "7"}},
    )  # fmt: skip
    assert ProgramState.from_bytes(state.to_bytes()) == state


@pytest.mark.parametrize(
    "change",
    [
        {"argv": 3}, {"argv": [3]}, {"warn_options": [None]}, {"locale": 1}, {"recursion_limit": 0},
        {"recursion_limit": 1 << 40}, {"recursion_limit": "9"}, {"digits_limit": -1}, {"described_globals": [1]},
        {"described_globals": {"N": 7}}, {"described_globals": {"N": {"N": 7}}}, {"described_globals": {"N": "7"}},
        {"more": 1},
    ],
)  # fmt: skip
def test_a_state_that_no_program_has_is_refused(change: dict[str, Any]) -> None:
    state = json.loads(ProgramState.of_this_program({"none:none": "none:none"}).to_bytes())
    for data in (json.dumps(state | change).encode(), b"[]", b"{", b"[" * 100_000, b"\xff"):
        with pytest.raises(pydp2.errors.RemoteProtocolError, match="the state of a program cannot be read"):
            ProgramState.from_bytes(data)
