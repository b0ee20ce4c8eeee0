"""What the user's module sees of the command's arguments: nothing, in this process and in workers alike."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pydp2

OPTIONAL = "import argparse; p = argparse.ArgumentParser(); p.add_argument('--n', type=int, default=2); p.parse_args()"
REQUIRED = (
    "import argparse; p = argparse.ArgumentParser(); p.add_argument('--n', type=int, required=True); p.parse_args()"
)


def _write(folder: Path, head: str) -> None:
    code = folder / "numbers_provider.py"
    code.write_text(f"{head}\n" + code.read_text())


@pytest.mark.parametrize("command", [("check",), ("peek",), ("count",), ("bench", "--seconds", "1")])
def test_a_module_that_parses_arguments_has_its_defaults(
    command: tuple[str, ...], folder: Path, cli: Callable[..., Any]
) -> None:
    _write(folder, OPTIONAL)
    before = list(sys.argv)
    done = cli(command[0], "train.list", "--provider", "numbers_provider.process", *command[1:])
    assert done.exit_code == 0, done.output
    assert sys.argv == before


def test_so_has_it_in_the_workers_of_a_service(folder: Path, running: Callable[..., Any]) -> None:
    _write(folder, OPTIONAL + "\nimport json, sys; open('argv', 'w').write(json.dumps(sys.argv))")
    service = running("serve", "train.list", "--provider", "numbers_provider.process", "--workers", "1")
    with pydp2.connect(service.address(), batch_size=10) as data:
        assert sum(len(batch) for batch in data) == 6
    assert len(json.loads((folder / "argv").read_text())) == 1


@pytest.mark.parametrize("command", ["check", "peek", "serve", "bench"])
def test_one_that_requires_an_argument_is_told_what_it_had_and_the_remedy(
    command: str, folder: Path, cli: Callable[..., Any]
) -> None:
    _write(folder, REQUIRED)
    done = cli(command, "train.list", "--provider", "numbers_provider.process")
    assert done.exit_code == 1, done.output
    assert "raised SystemExit while it was imported; workers import the module of the provider, with the" in done.output
    assert "put what only the program does, such as parse_args(), below `if __name__ ==" in done.output
