"""The providers of the sample sets, run without a service: what they yield is what the files say."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

Script = Callable[[str], ModuleType]
Values = Callable[..., list[list[Any]]]
PROVIDERS = {
    "digits": "digits/digits_provider.py",
    "mnist": "seeds/mnist/mnist_provider.py",
    "nested": "nested/nested_provider.py",
    "sentiment": "seeds/sentiment/sentimental_provider.py",
    "sequence": "sequence/sequence_provider.py",
    "sparse": "sparse/sparse_provider.py",
}


def args_of(samples: ModuleType, name: str) -> dict[str, Any]:
    """What the config of the set gives to its hook."""
    folder = samples.path(name)
    if name == "sentiment":
        args: dict[str, Any] = json.loads((folder / "args.json").read_text("utf-8"))
        return args
    return {"dictionary": str(folder / "dictionary.txt")} if name == "sequence" else {}


@pytest.fixture
def values(samples: ModuleType, script: Script) -> Values:
    """The checked samples of all files of one side of a set, each the list of its values by slot."""

    def run(name: str, side: str = "train", **options: Any) -> list[list[Any]]:
        process = script(PROVIDERS[name]).process
        given = {"args": args_of(samples, name), "is_train": side == "train"} | options
        return [list(sample) for file in samples.files(name, side) for sample in process.samples(file, **given)]

    return run


def lines_of(samples: ModuleType, name: str, side: str = "train") -> list[str]:
    return [line for file in samples.files(name, side) for line in Path(file).read_text("utf-8").splitlines()]


@pytest.mark.parametrize("side", ["train", "test"])
def test_digits_are_64_pixels_and_a_label(samples: ModuleType, values: Values, side: str) -> None:
    found = values("digits", side)
    want = [line.split(";") for line in lines_of(samples, "digits", side)]
    assert [label for _, label in found] == [int(label) for label, _ in want]
    pixels = np.array([pixels for pixels, _ in found])
    np.testing.assert_array_equal(pixels, np.array([numbers.split() for _, numbers in want], float))


def test_mnist_reads_lines_with_and_without_a_closing_semicolon(samples: ModuleType, values: Values) -> None:
    found = values("mnist")
    assert [len(pixels) for pixels, _ in found] == [784] * 30
    assert [label for _, label in found] == [int(line[0]) for line in lines_of(samples, "mnist")]


def test_sentiment_reads_lines_with_a_tab_and_with_blanks(samples: ModuleType, values: Values) -> None:
    dictionary = args_of(samples, "sentiment")["dictionary"]
    found = values("sentiment")
    for (ids, label), line in zip(found, lines_of(samples, "sentiment"), strict=True):
        first, *words = line.split()
        assert label == int(first)
        assert ids == [dictionary[word] for word in words if word in dictionary]


def test_sentiment_declares_its_types_from_the_dictionary_that_it_is_given(samples: ModuleType, values: Values) -> None:
    found = values("sentiment", args={"dictionary": {"the": 0}})
    assert {number for ids, _ in found for number in ids} == {0}


@pytest.mark.parametrize("side", ["train", "test"])
def test_sequence_gives_the_numbers_of_the_known_words(samples: ModuleType, values: Values, side: str) -> None:
    dictionary = (samples.path("sequence") / "dictionary.txt").read_text("utf-8").splitlines()
    known = set(dictionary)
    for (ids, label), line in zip(values("sequence", side), lines_of(samples, "sequence", side), strict=True):
        first, sentence = line.split("\t")
        assert label == int(first)
        assert [dictionary[number] for number in ids] == [word for word in sentence.split() if word in known]


@pytest.mark.parametrize("side", ["train", "test"])
def test_nested_gives_a_list_of_numbers_for_each_sentence(samples: ModuleType, values: Values, side: str) -> None:
    dictionary = (samples.path("nested") / "dictionary.txt").read_text("utf-8").splitlines()
    known = set(dictionary)
    for (paragraph, label), line in zip(values("nested", side), lines_of(samples, "nested", side), strict=True):
        first, text = line.split("\t")
        assert label == int(first)
        want = [[word for word in sentence.split() if word in known] for sentence in text.split(" | ")]
        assert [[dictionary[number] for number in sentence] for sentence in paragraph] == want


@pytest.mark.parametrize("side", ["train", "test"])
def test_sparse_gives_the_words_and_weights_of_length_one(values: Values, side: str) -> None:
    for present, weights, _ in values("sparse", side):
        assert [word for word, _ in weights] == present
        assert sum(weight * weight for _, weight in weights) == pytest.approx(1.0)
