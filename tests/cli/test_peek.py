"""``pydp2 peek`` on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

PEEK = ("peek", "train.list", "--provider", "numbers_provider.process")
CONFIGS = Path(__file__).resolve().parents[2] / "configs"


def test_the_first_samples_and_a_first_batch_are_shown(folder: Path, cli: Callable[..., Result]) -> None:
    result = cli(*PEEK, "--samples", 2, "--batch_size", 4)
    assert result.exit_code == 0
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["sample", "0", "of", "a.txt"],
        ["n", "integer_value(1000)", "1"],
        ["sample", "1", "of", "a.txt"],
        ["n", "integer_value(1000)", "2"],
        ["first", "batch:", "4", "rows"],
        ["n", "int32", "(4,)", "1", "2", "3", "4"],
    ]


def test_the_batch_has_the_size_of_the_configuration_unless_told_otherwise(cli: Callable[..., Result]) -> None:
    assert "first batch: 32 rows" in cli("peek", "--config", CONFIGS / "digits.toml").stdout
    assert "first batch: 5 rows" in cli("peek", "--config", CONFIGS / "digits.toml", "--batch_size", 5).stdout


def test_json_has_samples_in_full_and_the_forms_of_the_batch(cli: Callable[..., Result]) -> None:
    seen = json.loads(cli("peek", "--config", CONFIGS / "sparse.toml", "--samples", 1, "--json").stdout)
    assert seen["slots"]["weights"] == "sparse_float_vector(1133)"
    (sample,) = seen["samples"]
    assert (sample["file"], sample["sample"], sample["weight"]) == ("part-00.txt", 0, 1)
    assert len(sample["values"]["weights"]) == len(sample["values"]["present"]) > 3
    assert seen["batch"]["slots"]["present"].startswith("Csr 32 x 1133, binary")
    assert seen["shuffled_in_training"] is True
    assert seen["error"] is None


@pytest.mark.parametrize("name", ["digits", "mnist", "nested", "sentiment", "sequence", "sparse"])
def test_every_kind_of_slot_can_be_shown(name: str, cli: Callable[..., Result]) -> None:
    for flags in ([], ["--json"]):
        result = cli("peek", "--config", CONFIGS / f"{name}.toml", *flags)
        assert result.exit_code == 0, result.output
        assert result.stderr == ""


def test_arrays_in_a_sample_are_shown_and_listed(folder: Path, cli: Callable[..., Result]) -> None:
    (folder / "arrays.py").write_text(
        "import numpy as np\nfrom pydp2 import *\n"
        "@provider(input_types=[dense_vector(4, dtype='uint8', shape=(2, 2))])\n"
        "def process(settings, filename):\n    yield np.arange(4, dtype=np.uint8).reshape(2, 2)\n"
    )
    peek = ("peek", "train.list", "--provider", "arrays.process")
    assert "uint8 (2, 2): 0 1 2 3" in cli(*peek).stdout
    assert json.loads(cli(*peek, "--json").stdout)["samples"][0]["values"] == {"slot 0": [[0, 1], [2, 3]]}


def test_numbers_that_json_lacks_are_texts(folder: Path, cli: Callable[..., Result]) -> None:
    (folder / "odd.py").write_text(
        "import numpy as np\nimport pydp2\nfrom pydp2 import *\n"
        "@provider(input_types=[dense_vector(2), dense_vector(2), pydp2.scalar()])\n"
        "def process(settings, filename):\n"
        "    yield [float('nan'), 1.0], np.array([-np.inf, 2], np.float32), np.longdouble(0.5)\n"
        "    yield (np.longdouble(1), np.float32('inf')), np.array([1, 2], np.longdouble), np.longdouble('nan')\n"
    )
    (folder / "train.list").write_text("a.txt\n")
    result = cli("peek", "train.list", "--provider", "odd.process", "--json")
    assert result.exit_code == 0, result.stderr
    samples = json.loads(result.stdout, parse_constant=pytest.fail)["samples"]
    assert [[*each["values"].values()] for each in samples] == [
        [["nan", 1.0], ["-inf", 2.0], 0.5],
        [[1.0, "inf"], [1.0, 2.0], "nan"],
    ]


def test_lists_and_pairs_are_shown_by_their_beginning(folder: Path, cli: Callable[..., Result]) -> None:
    (folder / "pairs.py").write_text(
        "from pydp2 import *\n@provider(input_types=[sparse_float_vector(20)])\n"
        "def process(settings, filename):\n    yield [(i, i / 3) for i in range(9)]\n    yield [(7, 1.0)]\n"
    )
    out = cli("peek", "train.list", "--provider", "pairs.process", "--samples", 2).stdout
    assert "9: [(0, 0.0), (1, 0.333333), (2, 0.666667), (3, 1.0), " in out
    assert ", …]\n" in out.replace(" \n", "\n")
    assert "[(7, 1.0)]" in out


def test_what_was_seen_before_a_bad_sample_is_shown_and_then_the_error(
    folder: Path, cli: Callable[..., Result]
) -> None:
    (folder / "a.txt").write_text("1\n2000\n")
    result = cli(*PEEK)
    assert result.exit_code == 1
    assert result.stdout.splitlines()[0] == "sample 0 of a.txt"
    assert result.stderr.startswith("Error: file a.txt, sample 1, slot n: expected")


def test_nothing_is_read_that_is_not_needed(folder: Path, cli: Callable[..., Result]) -> None:
    (folder / "a.txt").write_text("1\n2\nthree\n")
    (folder / "train.list").write_text("a.txt\nmissing.txt\n")
    assert cli(*PEEK, "--samples", 2, "--batch_size", 2).exit_code == 0
    assert cli(*PEEK, "--samples", 3, "--batch_size", 2).exit_code == 1


def test_files_without_samples_are_said_to_be_there(folder: Path, cli: Callable[..., Result]) -> None:
    (folder / "a.txt").write_text("")
    assert "process yielded nothing for 1 of 2 files" in cli(*PEEK).stdout
    (folder / "b.txt").write_text("")
    result = cli(*PEEK)
    assert result.exit_code == 0
    assert result.stdout == "no samples: process yielded nothing for 2 of 2 files\n"
    seen = json.loads(cli(*PEEK, "--json").stdout)
    assert (seen["files"], seen["empty_files"]) == (2, 2)


def test_an_empty_list_is_said_to_be_empty(folder: Path, cli: Callable[..., Result]) -> None:
    (folder / "train.list").write_text("")
    result = cli(*PEEK)
    assert result.exit_code == 0
    assert result.stdout == "no samples: the list is empty\n"
    assert result.stderr.startswith("Warning: ")


def test_the_quality_of_the_shuffle_is_shown_with_a_picture(cli: Callable[..., Result]) -> None:
    result = cli("peek", "--config", CONFIGS / "digits.toml", "--shuffle-quality", "--workers", 1)
    assert result.exit_code == 0
    first, counts, *_ = lines = result.stdout.splitlines()
    assert first.startswith("shuffle quality 0.9")
    assert counts == "1,438 samples in 45 batches, each compared with a full shuffle:"
    assert {len(line) for line in lines[5:17]} == {64}
    assert "a larger pool_size mixes more" not in result.stdout
    plain = cli("peek", "--config", CONFIGS / "digits.toml", "--shuffle-quality", "--no_shuffle", "--json")
    figures = json.loads(plain.stdout)
    assert figures["quality"] < 0.01
    assert len(figures["picture"]) == 12


def test_options_of_a_pass_need_the_quality_of_the_shuffle(folder: Path, cli: Callable[..., Result]) -> None:
    result = cli(*PEEK, "--seed", 3)
    assert result.exit_code == 2
    assert "--seed is for --shuffle-quality" in result.stderr
