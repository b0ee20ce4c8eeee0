"""``pydp2 convert`` and ``pydp2 parts``."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
from click.testing import Result
from pydp2_cli import main

from pydp2.formats import dmlc_recordio, idx
from pydp2.formats.convert import FORMATS


def test_a_file_is_converted_by_the_names_of_both(cli: Callable[..., Result], tmp_path: Path) -> None:
    idx.write(tmp_path / "a.idx", np.arange(12, dtype=np.uint8).reshape(2, 2, 3))
    done = cli("convert", "a.idx", "a.csv")
    assert (done.exit_code, done.stdout) == (0, "")
    assert re.fullmatch(r"2 samples, 28 bytes became 26 bytes in \d+\.\d s\n", done.stderr)
    assert (tmp_path / "a.csv").read_text() == "0,1,2,3,4,5\n6,7,8,9,10,11\n"
    assert cli("convert", "a.csv", "b", "--to", "idx", "--dtype", "uint8", "--shape", "2,3").exit_code == 0
    assert (tmp_path / "b").read_bytes() == (tmp_path / "a.idx").read_bytes()


def test_an_error_is_one_line_and_the_exit_code_1(cli: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "a.rec").write_bytes(b"no record at all")
    done = cli("convert", "a.rec", "a.dat")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == "Error: a.rec, byte 0: expected the magic 0a23d7ce (0xced7230a) of a record, got 6e6f2072\n"
    assert [f.name for f in tmp_path.iterdir()] == ["a.rec"]
    assert cli("convert", "a.rec", "a.dat", "--shape", "2x3").exit_code == 2
    assert cli("convert", "absent.rec", "a.dat").exit_code == 2


def test_parts_of_a_file_are_lines_of_a_list_that_is_served(cli: Callable[..., Result], tmp_path: Path) -> None:
    dmlc_recordio.write(tmp_path / "a.rec", [bytes([n]) for n in range(40)])
    done = cli("parts", "a.rec", "b", "--parts", 3)
    assert done.stdout.splitlines() == [f"{name}?part={i}/3" for name in ("a.rec", "b") for i in range(3)]
    (tmp_path / "train.list").write_text(cli("parts", "a.rec", "--parts", 4).stdout)
    seen = cli("check", "train.list", "--provider", "pydp2.formats.dmlc_recordio", "--args", "header=false")
    assert "40 good samples in 4 files" in seen.stdout
    (tmp_path / "train.list").write_text("a.rec?part=4/4\n")
    seen = cli("check", "train.list", "--provider", "pydp2.formats.dmlc_recordio", "--args", "header=false")
    assert seen.exit_code == 1
    assert "parts count from 0" in seen.stdout


def test_the_command_knows_all_formats() -> None:
    choices = {p.name: p.type for p in main.commands["convert"].params}
    for name in ("source_format", "target_format"):
        kind = choices[name]
        assert isinstance(kind, click.Choice)
        assert tuple(kind.choices) == FORMATS
