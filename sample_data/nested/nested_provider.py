"""Paragraphs as sequences of sentences: one a line, ``label<TAB>word word … | word word … | …``.

The dictionary lies beside this file and is read when it is imported, so that the types can stand in the decorator.
"""

from pathlib import Path

from pydp2 import integer_value, integer_value_sub_sequence, provider

WORDS = Path(__file__).with_name("dictionary.txt").read_text(encoding="utf-8").splitlines()
IDS = {word: number for number, word in enumerate(WORDS)}


# Paragraphs differ much in length. Weighed by its words, a batch holds about as many words as any other.
def words(sample):
    paragraph, _ = sample
    return sum(len(sentence) for sentence in paragraph)


@provider(
    input_types={"paragraph": integer_value_sub_sequence(len(WORDS)), "label": integer_value(5)},
    pool_size=8192,
    calc_batch_size=words,
)
def process(settings, filename):
    with open(filename, encoding="utf-8") as lines:
        for line in lines:
            label, paragraph = line.split("\t")
            sentences = [[IDS[word] for word in sentence.split() if word in IDS] for sentence in paragraph.split("|")]
            yield {"paragraph": sentences, "label": int(label)}
