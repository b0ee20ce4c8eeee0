"""``pydp2 convert`` and ``pydp2 parts``."""

from __future__ import annotations

import gzip
import os
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
    wrong = "expected the magic 0a23d7ce (0xced7230a) of a record, got text that begins with 'no record at all'"
    assert done.stderr == f"Error: a.rec, byte 0: {wrong}\n"
    assert [f.name for f in tmp_path.iterdir()] == ["a.rec"]
    assert cli("convert", "a.rec", "a.dat", "--shape", "2x3").exit_code == 2
    assert cli("convert", "absent.rec", "a.dat").exit_code == 2


def test_parts_of_a_file_are_lines_of_a_list_that_is_served(cli: Callable[..., Result], tmp_path: Path) -> None:
    dmlc_recordio.write(tmp_path / "a.rec", [bytes([n]) for n in range(40)])
    (tmp_path / "b").write_text("1,2\n")
    done = cli("parts", "a.rec", "b", "--parts", 3)
    assert done.stdout.splitlines() == [f"{name}?part={i}/3" for name in ("a.rec", "b") for i in range(3)]
    (tmp_path / "train.list").write_text(cli("parts", "a.rec", "--parts", 4).stdout)
    seen = cli("check", "train.list", "--provider", "pydp2.formats.dmlc_recordio", "--args", "header=false")
    assert "40 good samples in 4 files" in seen.stdout
    (tmp_path / "train.list").write_text("a.rec?part=4/4\n")
    seen = cli("check", "train.list", "--provider", "pydp2.formats.dmlc_recordio", "--args", "header=false")
    assert seen.exit_code == 1
    assert "parts count from 0" in seen.stdout


def test_errors_of_files_are_one_line_each(cli: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1,2\n")
    (tmp_path / "a.lst").write_text("0\t1\tabsent.jpg\n")
    os.mkfifo(tmp_path / "pipe")
    held = os.open(tmp_path / "pipe", os.O_RDWR)  # so that nobody waits for its other end
    try:
        for arguments, words in (
            (("a.csv", "nowhere/a.idx"), "nowhere: there is no folder to write to"),
            (("a.lst", "a.rec"), "absent.jpg: No such file or directory; the list names it for id 0, and folder says"),
            (("a.csv", "b.idx.gz"), "idx is not written as gzip here: leave .gz off the name b.idx.gz"),
            (("pipe", "b.idx", "--from", "csv"), "pipe is not seekable, such as a pipe: write it to a file first"),
            (("a.csv", "b.idx", "--layout", "fluid"), "layout does nothing where csv becomes idx: leave it out"),
        ):
            done = cli("convert", *arguments)
            assert (done.exit_code, done.stdout) == (1, ""), done.output
            assert done.stderr.startswith(f"Error: {words}"), done.stderr
            assert done.stderr.count("\n") == 1
    finally:
        os.close(held)
    assert sorted(f.name for f in tmp_path.iterdir()) == ["a.csv", "a.lst", "pipe"]


def test_a_folder_of_pictures_has_parts(cli: Callable[..., Result], tmp_path: Path) -> None:
    done = cli("parts", str(tmp_path), "--parts", "2")
    assert done.output.splitlines() == [f"{tmp_path}?part=0/2", f"{tmp_path}?part=1/2"]


def test_a_file_that_has_no_parts_is_not_named_in_parts(cli: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"1,2\n"))
    idx.write(tmp_path / "a.idx.gz", np.arange(3, dtype=np.uint8))
    assert cli("parts", "absent", "--parts", 3).exit_code == 2
    done = cli("parts", "a.idx.gz", "a.csv.gz", "--parts", 2)
    assert (done.exit_code, done.stdout) == (1, "")
    assert (
        done.stderr
        == "Error: a.csv.gz is compressed with gzip, and of such files only idx can be read in parts: decompress it\n"
    )
    (tmp_path / "a.zst").write_bytes(b"\x28\xb5\x2f\xfd\x20\0")
    done = cli("parts", "a.zst", "--parts", 2)
    assert done.stderr == "Error: a.zst is compressed with zstd, and no such file can be read in parts: decompress it\n"
    assert cli("parts", "a.csv.gz", "--parts", 1).stdout == "a.csv.gz\n"
    assert cli("parts", "a.idx.gz", "--parts", 2).stdout == "a.idx.gz?part=0/2\na.idx.gz?part=1/2\n"
    done = cli("parts", "a.idx.gz", "--parts", 10**9)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "at most 999999999 parts" in done.stderr


def test_the_command_knows_all_formats() -> None:
    choices = {p.name: p.type for p in main.commands["convert"].params}
    for name in ("source_format", "target_format"):
        kind = choices[name]
        assert isinstance(kind, click.Choice)
        assert tuple(kind.choices) == FORMATS
