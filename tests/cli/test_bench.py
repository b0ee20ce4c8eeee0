"""``pydp2 bench`` on the command line: table, sentence, JSON, and its end by a signal."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import Result

BENCH = ("bench", "train.list", "--provider", "numbers_provider.process", "--workers", 2, "--seconds", 1)


def test_the_table_has_a_line_for_each_stage_and_one_sentence_follows(folder: Path, cli: Callable[..., Result]) -> None:
    result = cli(*BENCH, "--step-ms", 20)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["stage", "samples/s", "of", "the", "time"]
    assert [line.split("  ")[0] for line in lines[1:6]] == [
        "process() alone", "with checks and packing", "with transport", "with order and pool", "with a step of 20 ms",
    ]  # fmt: skip
    assert "batches of 128; first batch: after " in lines[6]
    assert len(lines) in (8, 9)  # one more where others had the cores
    assert lines[-1].endswith(".")
    assert "measuring with order and pool" in result.stderr


def test_json_is_all_that_goes_to_stdout(folder: Path, cli: Callable[..., Result]) -> None:
    code = (folder / "numbers_provider.py").read_text()
    (folder / "numbers_provider.py").write_text(f"print('imported')\n{code}")
    result = cli(*BENCH, "--json", "--batch_size", 2)
    assert result.exit_code == 0, result.output
    seen: dict[str, Any] = json.loads(result.stdout)
    assert (seen["workers"], seen["batch_size"]) == (2, 2)
    assert seen["sentence"]
    assert len(seen["stages"]) == 4
    assert seen["first_batch_seconds"] > 0


def test_ctrl_c_ends_it_at_once(folder: Path, running: Callable[..., Any]) -> None:
    code = (folder / "numbers_provider.py").read_text()
    (folder / "numbers_provider.py").write_text(code.replace("    with", "    import time; time.sleep(1000)\n    with"))
    program = running(*BENCH[:-1], 600)
    program.until("stderr", "measuring process() alone")
    program.process.send_signal(signal.SIGINT)
    status, _, err = program.ended()
    assert status == 130
    assert "ended by SIGINT" in err


def test_bad_data_are_an_error_with_their_place(folder: Path, cli: Callable[..., Result]) -> None:
    (folder / "a.txt").write_text("1\ntwo\n")
    result = cli(*BENCH)
    assert result.exit_code == 1
    assert "Error: file a.txt, sample 1: process raised ValueError" in result.stderr
