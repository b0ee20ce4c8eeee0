"""Sentences as sequences of word numbers: one a line, ``label<TAB>word word …``.

How many words there are is known only once the dictionary was read, so the types are set in the hook. The dictionary's
path comes from ``args``: a relative one counts from the working directory of the run, like the entries of the list.
"""

from pydp2 import integer_value, integer_value_sequence, provider


def on_init(settings, dictionary, **kwargs):
    with open(dictionary, encoding="utf-8") as words:
        settings.ids = {word.rstrip("\n"): number for number, word in enumerate(words)}
    settings.input_types = {"words": integer_value_sequence(len(settings.ids)), "label": integer_value(5)}


@provider(init_hook=on_init, pool_size=512)
def process(settings, filename):
    with open(filename, encoding="utf-8") as lines:
        for line in lines:
            label, sentence = line.split("\t")
            known = [settings.ids[word] for word in sentence.split() if word in settings.ids]
            yield {"words": known, "label": int(label)}
