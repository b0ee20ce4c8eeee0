"""Handwritten digits: one image a line, ``label;p p p …`` with the 64 pixels (0 to 16) row by row."""

# ruff: noqa: F403, F405 - the star import is the interface that is shown here

from pydp2 import *


# The pool is smaller than the set: training starts before all files are read, and the order is still well mixed.
@provider(input_types={"pixel": dense_vector(64), "label": integer_value(10)}, pool_size=1024)
def process(settings, filename):
    with open(filename) as lines:
        for line in lines:
            label, pixels = line.split(";")
            yield {"pixel": [float(p) for p in pixels.split()], "label": int(label)}
