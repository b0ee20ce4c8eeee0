"""Labelled sentences: one a line, the label, a tab or blanks, then words separated by blanks.

The dictionary (word to number) is an argument of the hook. Words that it does not know are passed over.
"""

# ruff: noqa: F403, F405 - the star import is the interface that is shown here

from pydp2 import *


def on_init(settings, dictionary, **kwargs):
    settings.dictionary = dictionary
    settings.input_types = {"data": integer_value_sequence(len(dictionary)), "label": integer_value(2)}


@provider(init_hook=on_init)
def process(settings, filename):
    with open(filename, encoding="utf-8") as lines:
        for line in lines:
            label, *words = line.split()
            # A tuple is taken in the order of the types: data, then label (or of input_order, where one is given).
            yield [settings.dictionary[word] for word in words if word in settings.dictionary], int(label)
