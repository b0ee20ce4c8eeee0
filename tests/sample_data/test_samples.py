"""The files of the sample sets: lists, lines, labels, sides and the scripts that made them. Nothing is served."""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

Script = Callable[[str], ModuleType]
COUNTS = {
    "digits": (1438, 359),
    "mnist": (30, 0),
    "nested": (420, 105),
    "sentiment": (40, 0),
    "sequence": (1023, 250),
    "sparse": (420, 105),
}
CLASSES = {"digits": 10, "mnist": 10, "nested": 5, "sentiment": 2, "sequence": 5, "sparse": 5}
TWO_SIDED = [name for name, (_, test) in COUNTS.items() if test]
TEXTS = ["nested", "sequence", "sparse"]

every_set = pytest.mark.parametrize("name", COUNTS)
every_two_sided_set = pytest.mark.parametrize("name", TWO_SIDED)


def lines_of(samples: ModuleType, name: str, side: str = "train") -> list[str]:
    return [line for file in samples.files(name, side) for line in Path(file).read_text("utf-8").splitlines()]


def dictionary_of(samples: ModuleType, name: str) -> list[str]:
    words: list[str] = (samples.path(name) / "dictionary.txt").read_text("utf-8").splitlines()
    return words


def label_of(name: str, line: str) -> int:
    return int(re.split(r"[;\t ]", line, maxsplit=1)[0])


def tree(folder: Path) -> dict[str, bytes]:
    """What a script wrote: the bytes of each data file below ``folder``."""
    found = (file for file in folder.rglob("*") if file.suffix in (".txt", ".list", ".json"))
    return {str(file.relative_to(folder)): file.read_bytes() for file in found}


def test_the_package_names_exactly_these_sets(samples: ModuleType) -> None:
    assert samples.names() == tuple(sorted(COUNTS))


@every_set
def test_the_folder_of_a_set_has_a_provider_and_a_train_list(samples: ModuleType, name: str) -> None:
    folder = samples.path(name)
    assert folder.is_absolute()
    assert len(list(folder.glob("*_provider.py"))) == 1
    assert (folder / "train.list").is_file()
    assert (folder / "test.list").is_file() == (name in TWO_SIDED)


def test_the_folder_of_an_unknown_set_is_refused_with_the_nearest_name(samples: ModuleType) -> None:
    with pytest.raises(ValueError, match="have 'digts': did you mean 'digits'"):
        samples.path("digts")


def test_the_files_of_a_side_that_a_set_lacks_are_refused(samples: ModuleType) -> None:
    with pytest.raises(FileNotFoundError, match=r"test\.list"):
        samples.files("mnist", "test")


@every_set
def test_the_entries_of_a_list_exist_once_each_and_no_data_file_is_left_out(samples: ModuleType, name: str) -> None:
    entries = [entry for side in sides(name) for entry in samples.files(name, side)]
    assert all(Path(entry).is_absolute() for entry in entries)
    data = {str(file) for file in samples.path(name).glob("*-[0-9][0-9].txt")}
    assert sorted(entries) == sorted(data)


@every_set
def test_each_side_has_as_many_samples_as_are_documented(samples: ModuleType, name: str) -> None:
    have = tuple(len(lines_of(samples, name, side)) for side in sides(name))
    assert have == COUNTS[name][: len(have)]
    table = (Path(samples.__file__ or "").parent / "README.md").read_text("utf-8")
    shown = f"| {have[0]}, {have[1] if len(have) > 1 else 'none'} |"
    assert any(f"{name}/`" in row and shown in row for row in table.splitlines())


@every_set
def test_every_label_is_in_range_and_every_class_occurs_on_each_side(samples: ModuleType, name: str) -> None:
    for side in sides(name):
        assert {label_of(name, line) for line in lines_of(samples, name, side)} == set(range(CLASSES[name]))


@every_two_sided_set
def test_no_sample_is_on_both_sides_or_twice_on_one(samples: ModuleType, name: str) -> None:
    both = lines_of(samples, name, "train") + lines_of(samples, name, "test")
    assert len(set(both)) == len(both)


@every_two_sided_set
def test_about_a_fifth_is_held_out_and_the_classes_are_mixed_over_the_files(samples: ModuleType, name: str) -> None:
    train, test = COUNTS[name]
    assert 0.18 < test / (train + test) < 0.23
    for file in samples.files(name):
        labels = Counter(label_of(name, line) for line in Path(file).read_text("utf-8").splitlines())
        assert len(labels) == CLASSES[name]


@pytest.mark.parametrize("side", ["train", "test"])
def test_every_line_of_digits_is_a_label_and_64_whole_pixels_up_to_16(samples: ModuleType, side: str) -> None:
    for line in lines_of(samples, "digits", side):
        _, pixels = line.split(";")
        numbers = [int(pixel) for pixel in pixels.split(" ")]
        assert len(numbers) == 64
        assert 0 <= min(numbers) <= max(numbers) <= 16


def test_every_line_of_mnist_is_a_label_and_784_pixels_up_to_1_in_both_forms(samples: ModuleType) -> None:
    lines = lines_of(samples, "mnist")
    assert Counter(line.count(";") for line in lines) == {1: 15, 2: 15}
    for line in lines:
        numbers = [float(pixel) for pixel in line.split(";")[1].split(" ")]
        assert len(numbers) == 28 * 28
        assert min(numbers) == 0.0
        assert max(numbers) == 1.0


def test_every_line_of_sentiment_has_words_after_a_tab_or_after_blanks(samples: ModuleType) -> None:
    lines = lines_of(samples, "sentiment")
    assert sum("\t" in line for line in lines) == 20
    assert all(re.fullmatch(r"[01](\t| {7})\S+( \S+)+", line) for line in lines)


@pytest.mark.parametrize("side", ["train", "test"])
def test_every_line_of_sequence_is_a_label_and_three_words_or_more(samples: ModuleType, side: str) -> None:
    assert all(re.fullmatch(r"\d\t\S+( \S+){2,}", line) for line in lines_of(samples, "sequence", side))


@pytest.mark.parametrize("side", ["train", "test"])
def test_every_line_of_nested_is_a_label_and_sentences_that_are_not_empty(samples: ModuleType, side: str) -> None:
    lines = lines_of(samples, "nested", side)
    sentences = [line.split("\t")[1].split(" | ") for line in lines]
    assert all(sentence.strip("| ") == sentence != "" for paragraph in sentences for sentence in paragraph)
    assert {1, 2, 3} <= {len(paragraph) for paragraph in sentences}


@pytest.mark.parametrize("side", ["train", "test"])
def test_every_line_of_sparse_is_a_label_and_ascending_ids_with_counts(samples: ModuleType, side: str) -> None:
    words = len(dictionary_of(samples, "sparse"))
    for line in lines_of(samples, "sparse", side):
        bag = [entry.split(":") for entry in line.split("\t")[1].split(" ")]
        ids = [int(number) for number, _ in bag]
        assert ids == sorted(set(ids))
        assert 0 <= ids[0] <= ids[-1] < words
        assert all(int(count) > 0 for _, count in bag)


@pytest.mark.parametrize("name", TEXTS)
def test_a_dictionary_has_each_word_once_and_knows_most_of_the_held_out_text(samples: ModuleType, name: str) -> None:
    dictionary = dictionary_of(samples, name)
    assert len(set(dictionary)) == len(dictionary)
    assert dictionary == dictionary_of(samples, "sequence")
    words = [word for line in lines_of(samples, "sequence", "test") for word in line.split("\t")[1].split()]
    assert sum(word in set(dictionary) for word in words) / len(words) > 0.8


def test_everything_together_is_small(samples: ModuleType) -> None:
    folder = Path(samples.__file__ or "").parent
    files = [file for file in folder.rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    assert sum(file.stat().st_size for file in files) < 1_000_000


def test_every_folder_of_data_credits_its_source(samples: ModuleType) -> None:
    assert "CC BY 4.0" in (samples.path("digits") / "README.md").read_text("utf-8")
    assert "`../paragraphs.txt`" in (samples.path("sequence") / "README.md").read_text("utf-8")
    for name in COUNTS:
        folder = samples.path(name)
        assert (folder / "README.md").is_file() or (folder.parent / "README.md").is_file()


def test_the_split_of_the_digits_depends_on_the_seed_alone(script: Script) -> None:
    split = script("digits/make_digits.py").split
    train, test = split(1797)
    assert (train, test) == split(1797)
    assert sorted(train + test) == list(range(1797))
    assert len(test) == 359
    assert split(1797, seed="another")[1] != test


@pytest.mark.skipif(importlib.util.find_spec("sklearn") is None, reason="scikit-learn carries the source of the digits")
def test_the_digits_come_out_of_their_script_as_they_are(samples: ModuleType, script: Script, tmp_path: Path) -> None:
    script("digits/make_digits.py").main(tmp_path)
    assert tree(tmp_path) == tree(samples.path("digits"))


def test_the_seed_sets_come_out_of_their_script_as_they_are(
    samples: ModuleType, script: Script, tmp_path: Path
) -> None:
    script("seeds/make_seeds.py").main(tmp_path)
    assert tree(tmp_path) == tree(samples.path("mnist").parent)


def test_the_sets_of_text_come_out_of_their_script_as_they_are(
    samples: ModuleType, script: Script, tmp_path: Path
) -> None:
    script("make_text.py").main(tmp_path)
    folder = samples.path("sequence").parent
    assert tree(tmp_path) == {name: text for name, text in tree(folder).items() if name.split("/")[0] in TEXTS}


def test_each_paragraph_of_the_source_stands_there_once(samples: ModuleType) -> None:
    lines = (samples.path("sequence").parent / "paragraphs.txt").read_text("utf-8").splitlines()
    assert len(set(lines)) == len(lines) == sum(COUNTS["nested"])
    assert all(re.fullmatch(r"[0-4]\t[^\t]+[.]", line) for line in lines)


def sides(name: str) -> tuple[str, ...]:
    return ("train", "test") if name in TWO_SIDED else ("train",)
