"""A user without a home folder, as in a container that runs under a number that nobody has."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

WAYS = ["not known"]
if os.getuid() == 0 and shutil.which("setpriv") is not None:
    WAYS.append("another number")
"""The system does not know the user: as programs are told, or because the user has another number. The folders of the
tests, and maybe the interpreter, are those of root, so such a program may read what root may."""
NOT_KNOWN = """
import pwd

def getpwuid(number):
    raise KeyError(f"getpwuid(): uid not found: {number}")

pwd.getpwuid = getpwuid
"""
NUMBER = "54321"
AS_ANOTHER = [
    "setpriv", f"--reuid={NUMBER}", f"--regid={NUMBER}", "--clear-groups", "--inh-caps=+dac_override,+dac_read_search",
    "--ambient-caps=+dac_override,+dac_read_search",
]  # fmt: skip
PROVIDER = """
from pydp2 import *

@provider(input_types=[integer_value(1000)]{more})
def process(settings, filename):
    yield from range(100)
"""
NEEDS = "has no home folder: HOME is not set"
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(params=WAYS)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """``run(code)`` or ``run("-m", "pydp2", …)``: run a program as such a user, in a folder with two providers."""
    (tmp_path / "plain.py").write_text(PROVIDER.format(more=""))
    (tmp_path / "kept.py").write_text(PROVIDER.format(more=", cache=CacheType.CACHE_PASS_ON_DISK"))
    (tmp_path / "site").mkdir()
    (tmp_path / "tmp").mkdir()
    known = {name: value for name, value in os.environ.items() if name not in ("HOME", "XDG_CACHE_HOME", "USER")}
    environment = known | {"TMPDIR": str(tmp_path / "tmp"), "PYTHONPATH": str(tmp_path / "site")}
    before = AS_ANOTHER
    if request.param == "not known":
        (tmp_path / "site" / "sitecustomize.py").write_text(NOT_KNOWN)
        before = []

    def start(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        command = [*before, sys.executable, *(arguments if len(arguments) > 1 else ["-c", textwrap.dedent(*arguments)])]
        return subprocess.run(
            command, env=environment | more, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )

    return start


LOAD = """
import pydp2
with pydp2.load(["a", "b"], "{module}.process", batch_size=10, workers=1{more}) as data:
    print(sum(len(batch) for batch in data))
"""


def test_a_pass_needs_no_home_folder(run: Run) -> None:
    done = run(LOAD.format(module="plain", more=""))
    assert (done.stdout, done.stderr, done.returncode) == ("200\n", "", 0)


@pytest.mark.parametrize("run", WAYS[:1], indirect=True)
def test_a_cache_on_disk_needs_a_folder_and_says_what_may_be_one(run: Run, tmp_path: Path) -> None:
    done = run(LOAD.format(module="kept", more=""))
    assert NEEDS in done.stderr
    assert "OptionError" in done.stderr
    assert "set HOME or XDG_CACHE_HOME to a folder that can be written, or give cache_dir" in done.stderr
    for done in (
        run(LOAD.format(module="kept", more=", cache_dir='cache'")),
        run(LOAD.format(module="kept", more=""), HOME=str(tmp_path / "home")),
        run(LOAD.format(module="kept", more=""), XDG_CACHE_HOME=str(tmp_path / "xdg")),
    ):
        assert (done.stdout, done.returncode) == ("200\n", 0), done.stderr


def test_counting_a_list_says_at_once_that_it_has_nowhere_to_keep_counts(run: Run) -> None:
    done = run('import pydp2; pydp2.count(["a"], "plain.process", progress=print)')
    assert NEEDS in done.stderr
    assert done.stdout == ""


def test_a_provider_of_a_notebook_needs_a_folder_for_its_module(run: Run) -> None:
    done = run("""
        from pydp2.providers.notebook import _write
        _write("process", "x = 1")
    """)
    assert NEEDS in done.stderr


@pytest.mark.parametrize("run", WAYS[:1], indirect=True)
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("check", "--provider", "plain.process", "list"), 0),
        (("peek", "--provider", "plain.process", "list"), 0),
        (("bench", "--provider", "plain.process", "--seconds", "1", "list"), 0),
        (("keys", "new", "folder"), 0),
        (("cache", "ls"), 1),
        (("cache", "ls", "--cache_dir", "tmp"), 0),
    ],
)
def test_commands_need_a_home_folder_only_for_the_default_cache(
    arguments: tuple[str, ...], expected: int, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "list").write_text("a\nb\n")
    done = run("-m", "pydp2", *arguments)
    assert "Traceback" not in done.stderr
    assert (done.returncode, NEEDS in done.stderr) == (expected, expected != 0), done.stderr
