"""What the program says about itself, and how it is called."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import Result
from pydp2_cli import main

import pydp2
from pydp2.data import native
from pydp2.data.columns.checksum import checksums
from pydp2.options.tables import JOB_OPTIONS, SERVICE_OPTIONS

GOLDEN = Path(__file__).parent / "golden"
NAMES = [
    "",
    *sorted(main.commands),
    *(f"cache {name}" for name in ("ls", "verify", "clear")),
    *(f"keys {name}" for name in ("new", "allow", "drop", "list")),
]


@pytest.mark.parametrize("name", NAMES)
def test_the_help_is_that_of_the_golden_file(name: str, cli: Callable[..., Result]) -> None:
    """On a difference the file is written anew and the test fails: look at the difference, and keep it or not."""
    shown = cli(*name.split(), "--help")
    assert shown.exit_code == 0
    assert all(len(line) <= 80 for line in shown.stdout.splitlines())
    file = GOLDEN / f"{name.replace(' ', '-') or 'pydp2'}.txt"
    before = file.read_text("utf-8") if file.exists() else ""
    if shown.stdout != before:
        file.write_text(shown.stdout, "utf-8")
    assert shown.stdout == before


def test_golden_files_are_of_commands_that_exist() -> None:
    assert {file.stem for file in GOLDEN.iterdir()} == {name.replace(" ", "-") or "pydp2" for name in NAMES}


def test_the_version_is_that_of_the_package_and_says_which_form_of_packing_runs(
    cli: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(native.PURE_PYTHON_VARIABLE, raising=False)
    form = "compiled" if native.is_active() else "in Python, because "
    shown = cli("--version").stdout
    assert shown.startswith(f"pydp2 {pydp2.__version__} (packing: {form}")
    assert shown.endswith(f"; checksums: {checksums()})\n")
    monkeypatch.setenv(native.PURE_PYTHON_VARIABLE, "1")
    assert cli("--version").stdout.startswith(f"pydp2 {pydp2.__version__} (packing: in Python, because ")


def test_each_option_of_a_service_is_a_flag_of_serve_by_the_same_name() -> None:
    serve = main.commands["serve"]
    assert set(SERVICE_OPTIONS) <= {parameter.name for parameter in serve.params}
    assert not set(JOB_OPTIONS) & {parameter.name for parameter in serve.params}


def test_python_m_pydp2_is_the_same_program(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pydp2", "check"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert done.stderr.startswith("Usage: pydp2 check [OPTIONS] [LIST]")


def test_in_a_checkout_it_runs_without_being_installed() -> None:
    root = Path(pydp2.__file__).resolve().parents[1]
    if not (root / "cli").is_dir():
        pytest.skip("pydp2 is installed, this is no checkout")
    code = (
        "import sys, runpy; sys.meta_path[:] = [f for f in sys.meta_path if 'ditable' not in repr(f)]; "
        "sys.path.insert(0, ''); sys.argv = ['pydp2', 'check', '--config', 'configs/digits.toml']; "
        "runpy.run_module('pydp2', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "\nok: 1,438 good samples in 10 files" in done.stdout


def test_to_list_its_commands_nothing_heavy_is_imported() -> None:
    """Completion asks for them at every key."""
    code = (
        "import sys, pydp2_cli; pydp2_cli.main(['--help'], standalone_mode=False); "
        "sys.exit(bool({'numpy', 'zmq', 'rich', 'pydp2'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, timeout=60).returncode == 0


def test_every_command_has_a_click_object_of_its_own() -> None:
    for name, command in main.commands.items():
        assert isinstance(command, click.Command)
        assert command.callback is not None
        assert command.callback.__module__ == f"pydp2_cli.{name}"
