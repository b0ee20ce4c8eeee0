"""Which form of packing runs, and what is said where it is the one in Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from pydp2.data import native


@pytest.fixture
def copied(tmp_path: Path) -> Callable[..., str]:
    """``copied(*files)``: what an interpreter says of packing that runs a copy of the package in which nothing was
    compiled, with these files beside it: empty ones."""

    def run(*files: str) -> str:
        package = Path(native.__file__).parents[2]
        shutil.copytree(package, tmp_path / "pydp2", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        for name in files:
            (tmp_path / name).touch()
        usual = {name: value for name, value in os.environ.items() if name != native.PURE_PYTHON_VARIABLE}
        done = subprocess.run(
            [sys.executable, "-c", "import pydp2; print(pydp2.__file__, pydp2.packing())"],
            env=usual | {"PYTHONPATH": "."},
            cwd=tmp_path, capture_output=True, text=True, check=True, timeout=30,
        )  # fmt: skip
        file, said = done.stdout.split(" ", 1)
        assert Path(tmp_path, file) == tmp_path / "pydp2" / "__init__.py"
        return said.strip()

    return run


def test_a_checkout_that_was_never_built_says_how_to_build_it(copied: Callable[..., str], tmp_path: Path) -> None:
    said = copied("pyproject.toml")
    assert said == (
        f"in Python, because this checkout was never built: pip install -e {tmp_path} does, where there is a C compiler"
    )


def test_an_installation_without_a_compiler_says_so(copied: Callable[..., str]) -> None:
    assert copied() == "in Python, because there was no C compiler at the installation"


def test_a_checkout_that_was_installed_without_a_compiler_says_so(copied: Callable[..., str], tmp_path: Path) -> None:
    info = tmp_path / "pydp2-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pydp2\nVersion: 0.1.0\n")
    (info / "direct_url.json").write_text(f'{{"url": "{tmp_path.as_uri()}", "dir_info": {{"editable": true}}}}')
    assert copied("pyproject.toml") == "in Python, because there was no C compiler at the installation"


def test_what_was_compiled_for_another_python_is_named_with_both(copied: Callable[..., str]) -> None:
    mine = sysconfig.get_config_var("EXT_SUFFIX")
    assert copied("pyproject.toml", "pydp2/data/native/_packing.cpython-399-sparc.so") == (
        f"in Python, because it was compiled for .cpython-399-sparc.so, and this Python needs {mine}: "
        "install pydp2 again for it"
    )


def test_what_was_compiled_and_cannot_be_loaded_says_why(copied: Callable[..., str]) -> None:
    name = f"pydp2/data/native/_packing{sysconfig.get_config_var('EXT_SUFFIX')}"
    said = copied("pyproject.toml", name)
    assert said.startswith("in Python, because what was compiled cannot be loaded: ")
    assert "file too short" in said or "_packing" in said


def test_the_form_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(native.PURE_PYTHON_VARIABLE, "1")
    assert not native.is_active()
    monkeypatch.setenv(native.PURE_PYTHON_VARIABLE, "0")
    assert native.is_active() == native.is_built()
