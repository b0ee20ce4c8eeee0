"""Paragraphs as bags of words: one a line, ``label<TAB>id:count id:count …``.

Two sparse inputs come of one line: which words there are, and how often, scaled so that the squares add up to one.
"""

from math import sqrt
from pathlib import Path

from pydp2 import integer_value, provider, sparse_binary_vector, sparse_float_vector

WORDS = Path(__file__).with_name("dictionary.txt").read_text(encoding="utf-8").splitlines()


@provider(
    input_types={
        "present": sparse_binary_vector(len(WORDS)),
        "weights": sparse_float_vector(len(WORDS)),
        "label": integer_value(5),
    },
    pool_size=256,
)
def process(settings, filename):
    with open(filename) as lines:
        for line in lines:
            label, bag = line.split("\t")
            counts = [(int(word), int(count)) for word, count in (entry.split(":") for entry in bag.split())]
            length = sqrt(sum(count * count for _, count in counts)) or 1.0
            yield {
                "present": [word for word, _ in counts],
                "weights": [(word, count / length) for word, count in counts],
                "label": int(label),
            }
