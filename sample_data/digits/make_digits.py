"""Make the digits set from the copy of the data that scikit-learn carries.

Run by hand, in an environment of its own (pydp2 does not need scikit-learn); it rewrites the files beside it:

    python -m venv /tmp/make_digits && /tmp/make_digits/bin/pip install scikit-learn
    /tmp/make_digits/bin/python sample_data/digits/make_digits.py

A folder given as argument is written to instead. The same bytes come out of every run.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

SEED = "digits 1"
HELD_OUT = 0.2
TRAIN_FILES, TEST_FILES = 10, 2


def split(count: int, held_out: float = HELD_OUT, seed: str = SEED) -> tuple[list[int], list[int]]:
    """``range(count)`` in a drawn order, cut into the numbers to train on and the ``held_out`` share to test on.

    The order is by hash and not by a random generator, whose stream may change between versions.
    """
    drawn = sorted(range(count), key=lambda i: blake2b(f"{seed} {i}".encode()).digest())
    test = round(count * held_out)
    return drawn[test:], drawn[:test]


def write_side(folder: Path, side: str, prefix: str, lines: Sequence[str], files: int) -> None:
    """Deal ``lines`` over ``files`` files of almost equal length, and write the list that names them."""
    bounds = [len(lines) * i // files for i in range(files + 1)]
    entries = [f"{prefix}-{i:02}.txt" for i in range(files)]
    for entry, start, stop in zip(entries, bounds, bounds[1:], strict=False):
        (folder / entry).write_text("".join(f"{line}\n" for line in lines[start:stop]), encoding="utf-8", newline="\n")
    (folder / f"{side}.list").write_text("".join(f"{entry}\n" for entry in entries), encoding="utf-8", newline="\n")


def main(folder: Path) -> None:
    """Write the files and lists of the set into ``folder``."""
    from sklearn.datasets import load_digits  # only whoever makes the data anew needs it

    digits = load_digits()
    lines = [
        f"{int(label)};{' '.join(str(int(p)) for p in pixels)}"
        for label, pixels in zip(digits.target, digits.data, strict=True)
    ]
    train, test = split(len(lines))
    write_side(folder, "train", "part", [lines[i] for i in train], TRAIN_FILES)
    write_side(folder, "test", "test", [lines[i] for i in test], TEST_FILES)
    print(f"{len(train)} digits to train on and {len(test)} to test on, in {folder}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent)
