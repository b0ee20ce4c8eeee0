"""A provider of files, remote or not, with a number in each line."""

from __future__ import annotations

PROVIDER = """
@provider(input_types={"n": integer_value(1 << 40)}, pool_size=100)
def process(settings, filename):
    with settings.open(filename, "r") as lines:
        for line in lines:
            yield {"n": int(line)}
"""
