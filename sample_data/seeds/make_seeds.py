"""Make small files in the two formats that the examples of PyDataProvider2's documentation read.

They are made of the sets beside them: images of *digits*, enlarged, and sentences of *sequence*. Run by hand, after
either was made anew; it rewrites the files of ``mnist/`` and ``sentiment/``:

    python sample_data/seeds/make_seeds.py

A folder given as argument is written to instead. The same bytes come out of every run. The dictionary of *sentiment*
also stands in ``configs/sentiment.toml``: the table is printed, to be put there when it has changed.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

SETS = Path(__file__).resolve().parents[1]
DIGITS_EACH = 3
# The sentences that are labelled 0 and 1: those about providers and about the service of the sequence set.
GROUPS = {"0": "0", "2": "1"}
SENTENCES_EACH, LONGEST = 20, 15
WORDS = 60


def mnist_lines() -> list[str]:
    """The first few training images of each digit, as ``label;pixel pixel …``."""
    taken: Counter[str] = Counter()
    lines = []
    for line in read("digits"):
        label, pixels = line.split(";")
        taken[label] += 1
        if taken[label] <= DIGITS_EACH:
            lines.append(f"{label};{' '.join(enlarge([int(p) for p in pixels.split()]))}")
    return lines


def enlarge(pixels: list[int]) -> list[str]:
    """An 8 x 8 image of 0 to 16 as 28 x 28 of 0 to 1: each pixel a block of 3 x 3, two blank ones all around."""
    blank = ["0"] * 28
    rows = [blank] * 2
    for top in range(0, 64, 8):
        row = ["0"] * 2 + [f"{pixel / 16:.2g}" for pixel in pixels[top : top + 8] for _ in range(3)] + ["0"] * 2
        rows += [row] * 3
    rows += [blank] * 2
    return [pixel for row in rows for pixel in row]


def sentiment_pairs() -> list[tuple[str, str]]:
    """The first few short training sentences of two groups: their label and their words."""
    taken: Counter[str] = Counter()
    pairs = []
    for line in read("sequence"):
        group, sentence = line.split("\t")
        if group in GROUPS and len(sentence.split()) <= LONGEST:
            taken[group] += 1
            if taken[group] <= SENTENCES_EACH:
                pairs.append((GROUPS[group], sentence))
    return pairs


def read(name: str) -> Iterable[str]:
    """The lines of all training files of a set."""
    for entry in (SETS / name / "train.list").read_text(encoding="utf-8").splitlines():
        yield from (SETS / name / entry).read_text(encoding="utf-8").splitlines()


def write(file: Path, lines: Iterable[str]) -> None:
    """Write ``lines``, the same bytes on every platform."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")


def main(folder: Path) -> None:
    """Write both sets. Their second files are in the form that the documentation printed, the first ones tidy."""
    images = mnist_lines()
    half = len(images) // 2
    write(folder / "mnist/part-00.txt", images[:half])
    write(folder / "mnist/part-01.txt", (f"{line};" for line in images[half:]))
    write(folder / "mnist/train.list", ["part-00.txt", "part-01.txt"])

    pairs = sentiment_pairs()
    half = len(pairs) // 2
    write(folder / "sentiment/part-00.txt", ("\t".join(pair) for pair in pairs[:half]))
    write(folder / "sentiment/part-01.txt", ((" " * 7).join(pair) for pair in pairs[half:]))
    write(folder / "sentiment/train.list", ["part-00.txt", "part-01.txt"])
    counts = Counter(word for _, sentence in pairs for word in sentence.split())
    frequent = sorted(counts, key=lambda word: (-counts[word], word))[:WORDS]
    dictionary = {word: number for number, word in enumerate(frequent)}
    write(folder / "sentiment/args.json", json.dumps({"dictionary": dictionary}, indent=1).splitlines())
    print("[args.dictionary]", *(f"{json.dumps(word)} = {number}" for word, number in dictionary.items()), sep="\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent)
