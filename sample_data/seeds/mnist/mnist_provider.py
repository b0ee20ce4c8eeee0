"""Images of 28 x 28 pixels: one a line, the label and the pixels (0 to 1) separated by ``;``, which may also end it."""

# ruff: noqa: F403, F405 - the star import is the interface that is shown here

from pydp2 import *


@provider(input_types={"pixel": dense_vector(28 * 28), "label": integer_value(10)})
def process(settings, filename):
    with open(filename) as lines:
        for line in lines:
            label, pixels = line.rstrip().rstrip(";").split(";")
            yield {"pixel": [float(pixel) for pixel in pixels.split()], "label": int(label)}
