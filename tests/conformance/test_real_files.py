"""Files that other projects published, in their own formats, read by providers as their users would write them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np

from pydp2 import Csr, Ragged


def test_mnist_lines_that_end_with_a_semicolon(deliver: Any, shared_data: Path) -> None:
    code = """
    @provider(input_types={"pixel": dense_vector(28 * 28), "label": integer_value(10)})
    def process(settings, filename):
        with open(filename) as lines:
            for line in lines:
                label, pixels = line.split(";")[:2]
                yield {"pixel": [float(p) for p in pixels.split()], "label": int(label)}
    """
    path = shared_data / "paddle" / "mnist_train.txt"
    ((batch,),) = deliver(code, [path])
    assert batch["label"].tolist() == [5, 0, 4]
    pixels = batch["pixel"]
    assert pixels.shape == (3, 784)
    assert pixels.dtype == np.float32
    written = [float(p) for p in path.read_text().splitlines()[0].split(";")[1].split()]
    np.testing.assert_array_equal(pixels[0], np.array(written, np.float32))
    assert 0 < pixels.max() <= 1


def test_sentiment_lines_with_blanks_for_the_tab_and_one_that_is_none(
    deliver: Any, shared_data: Path, capfd: Any
) -> None:
    """The third line is no sample: its provider decides what becomes of it, and here it yields what cannot be."""
    code = """
    def on_init(settings, dictionary, **kwargs):
        settings.dictionary = dictionary
        settings.input_types = {"data": integer_value_sequence(len(dictionary)), "label": integer_value(2)}

    @provider(init_hook=on_init, check=True, check_fail_continue=True)
    def process(settings, filename):
        with open(filename) as lines:
            for line in lines:
                label, _, sentence = line.replace("       ", "\\t", 1).partition("\\t")
                words = [settings.dictionary[w] for w in sentence.split() if w in settings.dictionary]
                yield words, int(label) if label.isdigit() else None
    """
    path = shared_data / "paddle" / "sentimental_train.txt"
    words = sorted(set(path.read_text().split()) - {"0", "1", "..."})
    dictionary = {word: i for i, word in enumerate(words)}
    ((batch,),) = deliver(code, [path], args={"dictionary": dictionary})
    assert batch.names == ("data", "label")
    assert batch["label"].tolist() == [0, 1]
    data = batch["data"]
    assert isinstance(data, Ragged)
    sentences = [line.split()[1:] for line in path.read_text().splitlines()[:2]]
    assert data.sequence_start_positions.tolist() == [0, *itertools.accumulate(map(len, sentences))]
    assert [words[i] for i in data.values] == [word for sentence in sentences for word in sentence]
    assert "sample 2, slot label: expected an int in [0, 2), got None" in capfd.readouterr().err


def test_reviews_grouped_by_empty_lines_are_nested_sequences(deliver: Any, shared_data: Path) -> None:
    code = """
    def on_init(settings, dictionary, **kwargs):
        settings.dictionary = dictionary
        settings.input_types = [integer_value_sub_sequence(len(dictionary)), integer_value_sequence(5)]

    @provider(init_hook=on_init)
    def process(settings, filename):
        with open(filename, encoding="utf-8") as text:
            groups = text.read().strip().split("\\n\\n")
        for group in groups:
            labels, reviews = zip(*(line.split("\\t") for line in group.splitlines()))
            yield [[settings.dictionary[w] for w in r.split()] for r in reviews], [int(n) for n in labels]
    """
    flat_file, nested_file = (shared_data / "paddle" / f"tour_train_wdseg{end}" for end in ("", ".nest"))
    reviews = [line.split("\t")[1].split() for line in flat_file.read_text("utf-8").splitlines()]
    words = sorted({word for review in reviews for word in review})
    ((batch,),) = deliver(code, [nested_file], args={"dictionary": {w: i for i, w in enumerate(words)}})
    text, labels = batch
    assert [words[i] for i in text.values] == [word for review in reviews for word in review]
    subs = [0, *itertools.accumulate(map(len, reviews))]
    assert text.sub_sequence_start_positions.tolist() == subs
    groups = [group.splitlines() for group in nested_file.read_text("utf-8").strip().split("\n\n")]
    firsts = [0, *itertools.accumulate(map(len, groups))]
    assert text.sequence_start_positions.tolist() == [subs[i] for i in firsts]
    assert labels.sequence_start_positions.tolist() == firsts
    assert len(batch) == len(groups) > 1


def test_rows_of_integers_with_negatives_are_dense(deliver: Any, shared_data: Path) -> None:
    code = """
    import numpy as np

    @provider(input_types=[dense_vector(3, dtype="int8"), integer_value(3)])
    def process(settings, filename):
        for label, *features in np.loadtxt(filename, dtype=np.int64):
            yield features, label
    """
    path = shared_data / "paddle" / "sample_data.txt"
    ((batch,),) = deliver(code, [path])
    rows = np.loadtxt(path, dtype=np.int64)
    np.testing.assert_array_equal(batch[0], rows[:, 1:])
    np.testing.assert_array_equal(batch[1], rows[:, 0])
    assert batch[0].dtype == np.int8


def test_lines_of_mixed_slots(deliver: Any, shared_data: Path) -> None:
    """Fields by their slot number; values, or index:value pairs."""
    code = """
    @provider(input_types=[
        sparse_non_value_slot(10), dense_slot(2), sparse_value_slot(10), integer_value_sequence(256), index_slot(10),
    ])
    def process(settings, filename):
        with open(filename) as lines:
            for line in lines:
                label, *fields = line.strip().split(";")
                slots = [None] * 4
                for field in fields:
                    number, *values = field.split()
                    slots[int(number)] = values
                bits, dense, pairs, (word,) = slots
                yield (
                    [int(i) for i in bits], [float(v) for v in dense],
                    [(int(i), float(v)) for i, v in (pair.split(":") for pair in pairs)], list(word.encode()),
                    int(label.split()[0]),
                )
    """
    ((batch,),) = deliver(code, [shared_data / "paddle" / "test_pydata_provider_wrapper.data"])
    bits, dense, pairs, word, label = batch
    assert label.tolist() == [0, 2]
    assert isinstance(bits, Csr)
    assert (bits.indptr.tolist(), bits.indices.tolist()) == ([0, 3, 6], [1, 3, 5, 7, 3, 8])
    np.testing.assert_array_equal(dense, np.array([[3.42, 2.25], [2.25, 1.24]], np.float32))
    assert isinstance(pairs, Csr)
    assert (pairs.indptr.tolist(), pairs.indices.tolist()) == ([0, 2, 4], [4, 6, 1, 5])
    np.testing.assert_array_equal(pairs.values, np.array([4.2, 2.8, 2.3, 8.24], np.float32))
    assert bytes(word.values.tolist()) == b"aabb"


def test_libsvm_text_is_a_sparse_slot_and_a_label(deliver: Any, shared_data: Path) -> None:
    code = """
    @provider(input_types=[sparse_binary_vector(127), integer_value(2)], pool_size=400)
    def process(settings, filename):
        with open(filename) as lines:
            for line in lines:
                label, *pairs = line.split()
                yield [int(pair.split(":")[0]) for pair in pairs], int(label)
    """
    path = shared_data / "xgboost" / "agaricus.txt.test"
    lines = path.read_text().splitlines()
    ordered, _ = deliver(code, [path], passes=2, batch_size=256)
    assert [len(b) for b in ordered] == [256] * 6 + [75]
    rows = []
    for batch in ordered:
        bits, labels = batch
        assert bits.shape == (len(batch), 127)
        assert np.diff(bits.indptr).tolist() == [22] * len(batch)
        rows += [(int(y), *map(int, x)) for y, x in zip(labels, bits.indices.reshape(-1, 22), strict=True)]
    expected = [tuple(int(field.split(":")[0]) for field in line.split()) for line in lines]
    assert rows == expected
    (shuffled,) = deliver(code, [path], batch_size=256, shuffle=True)
    mixed = [(int(y), *map(int, x)) for b in shuffled for y, x in zip(b[1], b[0].indices.reshape(-1, 22), strict=True)]
    assert sorted(mixed) == sorted(expected)
    assert mixed != expected
