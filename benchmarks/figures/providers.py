"""Define providers for the data of the figures, as a user would write them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pydp2 import dense_vector, integer_value, integer_value_sequence, provider, rows


def read_words(dictionary, filename):
    with open(filename) as lines:
        for line in lines:
            label, text = line.rstrip("\n").split("\t")
            yield [dictionary[word] for word in text.split()], int(label)


def read_digits(filename):
    with open(filename) as lines:
        for line in lines:
            label, pixels = line.split(";")[:2]
            yield [float(p) for p in pixels.split()], int(label)


def read_dictionary(path):
    with open(path) as lines:
        return {word: int(i) for word, i in (line.rstrip("\n").split("\t") for line in lines)}


def load_dictionary(settings, dictionary, **kwargs):
    settings.dictionary = read_dictionary(dictionary)
    settings.input_types = [integer_value_sequence(len(settings.dictionary)), integer_value(2)]


@provider(init_hook=load_dictionary, pool_size=4096)
def words(settings, filename):
    yield from read_words(settings.dictionary, filename)


@provider(input_types=[dense_vector(64), integer_value(10)], pool_size=4096)
def digits(settings, filename):
    yield from read_digits(filename)


@provider(input_types=[integer_value(1 << 31)], pool_size=4096)
def tiny(settings, filename):
    yield int(Path(filename).read_text())


@provider(input_types=[integer_value(1 << 31)], pool_size=4096)
def entries(settings, filename):
    yield int(filename.rpartition("-")[2])


_BLOCK = np.arange(256 * 20, dtype=np.float32).reshape(256, 20), np.arange(256) % 10


@provider(input_types=[dense_vector(20), integer_value(10)], pool_size=4096)
def small_rows(settings, filename):
    for _ in range(1000):
        yield rows(*_BLOCK)
