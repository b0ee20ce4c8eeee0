"""``pydp2 batch`` on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

import pydp2

CODE = """
from pydp2 import *

@provider(input_types={"x": dense_vector(1), "n": integer_value(100)}, pool_size=20)
def process(settings, filename):
    for n in range(40):
        yield [float("inf") if (filename, n) == ("b", 7) else n / 2], n
"""


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state before batch 3, in a folder with its list and provider."""
    monkeypatch.chdir(tmp_path)
    Path("halves.py").write_text(CODE)
    Path("train.list").write_text("a\nb\n")
    with pydp2.load("train.list", "halves.process", batch_size=4, seed=2, workers=1) as data:
        for batch in data:
            if batch.index == 2:
                Path("state.json").write_text(json.dumps(data.state_dict()))
    return tmp_path / "state.json"


def batches() -> list[list[tuple[str, int]]]:
    with pydp2.load("train.list", "halves.process", batch_size=4, seed=2, workers=1, origin=True) as data:
        return [
            [("ab"[n], i) for n, i in zip(batch.origin.entry.tolist(), batch.origin.sample.tolist(), strict=True)]
            for batch in data
        ]


def test_rows_are_shown_with_their_origins_and_those_with_nan_or_inf_are_named(
    state: Path, cli: Callable[..., Result]
) -> None:
    expected = batches()
    number = next(n for n, rows in enumerate(expected) if ("b", 7) in rows)
    command = ("batch", state, max(number, 3), "train.list", "--provider", "halves.process")
    result = cli(*command)
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.stdout.splitlines()]
    rows = expected[max(number, 3)]
    assert lines[0] == f"batch {max(number, 3)} of pass 0: 4 rows".split()
    assert lines[1] == ["row", "entry", "sample", "x", "n"]
    for i, (entry, sample) in enumerate(rows):
        assert lines[2 + i][:3] == [str(i), entry, str(sample)]
        assert lines[2 + i][-1] == str(sample)
    at = rows.index(("b", 7)) if ("b", 7) in rows else None
    assert result.stdout.splitlines()[6:] == ([] if at is None else [f"row {at} has nan or inf in x: sample 7 of b"])
    assert cli(*command, "--origins").stdout == "".join(f"{entry}\t{sample}\n" for entry, sample in rows)
    found = json.loads(cli(*command, "--json").stdout)
    assert {name: found[name] for name in ("pass", "batch", "size", "padding")} == {
        "pass": 0, "batch": max(number, 3), "size": 4, "padding": 0,
    }  # fmt: skip
    assert [(row["entry"], row["sample"], row["values"]["n"]) for row in found["rows"]] == [
        (entry, sample, str(sample)) for entry, sample in rows
    ]
    assert [row["not_finite"] for row in found["rows"]] == [["x"] if row == ("b", 7) else [] for row in rows]


def test_a_state_that_cannot_be_used_is_an_error_with_a_remedy(state: Path, cli: Callable[..., Result]) -> None:
    Path("weights.bin").write_bytes(b"\x80\x02}q")
    for arguments, text in (
        (("weights.bin", 3), "the state weights.bin must be a JSON file, and is not"),
        (("nowhere.json", 3), "the state nowhere.json cannot be read: No such file or directory"),
        ((state, 1), "the state is before batch 3 of pass 0, and batch 1 came earlier"),
    ):
        result = cli("batch", *arguments, "train.list", "--provider", "halves.process")
        assert result.exit_code == 1
        assert text in result.stderr
