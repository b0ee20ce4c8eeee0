"""Make the sets of text, *sequence*, *nested* and *sparse*, from ``paragraphs.txt``.

A line of that file is a paragraph as it was written, behind the number of its part and a tab. Run by hand, after the
file was changed; it rewrites the three sets:

    python sample_data/make_text.py

A folder given as argument is written to instead. The same bytes come out of every run.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from pathlib import Path

SOURCE = Path(__file__).with_name("paragraphs.txt")
SEED = "text 1"
HELD_OUT = 0.2
TRAIN_FILES, TEST_FILES = 6, 2

Paragraph = list[list[str]]  # sentences of words


def sentences(text: str) -> Paragraph:
    """The sentences of ``text`` as lists of lower-case words without punctuation."""
    parts = re.split(r'(?<=[.!?])\s+(?=["“*(]*[A-Z])', text)
    return [words for part in parts if (words := re.findall(r"\w+(?:'\w+)*", part.lower()))]


def collect(lines: Iterable[str]) -> list[tuple[int, Paragraph]]:
    """The labelled paragraphs in an order drawn by hash."""
    drawn = sorted(lines, key=lambda line: blake2b(f"{SEED} {line}".encode()).digest())
    return [(int(label), sentences(text)) for label, text in (line.split("\t") for line in drawn)]


def vocabulary(paragraphs: Iterable[tuple[int, Paragraph]]) -> list[str]:
    """The words that occur at least twice, the frequent ones first."""
    counts = Counter(word for _, paragraph in paragraphs for sentence in paragraph for word in sentence)
    return sorted((word for word in counts if counts[word] > 1), key=lambda word: (-counts[word], word))


def sequence_lines(paragraphs: Iterable[tuple[int, Paragraph]]) -> list[str]:
    """A sentence of three words or more on each line: ``label<TAB>word word …``."""
    return [
        f"{label}\t{' '.join(sentence)}"
        for label, paragraph in paragraphs
        for sentence in paragraph
        if len(sentence) > 2
    ]


def nested_lines(paragraphs: Iterable[tuple[int, Paragraph]]) -> list[str]:
    """A paragraph on each line, its sentences apart: ``label<TAB>word word … | word word … | …``."""
    return [f"{label}\t{' | '.join(map(' '.join, paragraph))}" for label, paragraph in paragraphs]


def sparse_lines(paragraphs: Iterable[tuple[int, Paragraph]], dictionary: Sequence[str]) -> list[str]:
    """The known words of a paragraph with their counts: ``label<TAB>id:count id:count …``, ids ascending."""
    ids = {word: number for number, word in enumerate(dictionary)}
    lines = []
    for label, paragraph in paragraphs:
        counts = Counter(ids[word] for sentence in paragraph for word in sentence if word in ids)
        lines.append(f"{label}\t{' '.join(f'{number}:{counts[number]}' for number in sorted(counts))}")
    return lines


def write_set(folder: Path, train: Iterable[str], test: Iterable[str], dictionary: Iterable[str]) -> None:
    """Write one set. A line that repeats an earlier one is left out, so that none is on both sides."""
    folder.mkdir(parents=True, exist_ok=True)
    held_out = list(dict.fromkeys(test))
    seen = set(held_out)
    write_side(folder, "train", "part", [line for line in dict.fromkeys(train) if line not in seen], TRAIN_FILES)
    write_side(folder, "test", "test", held_out, TEST_FILES)
    write(folder / "dictionary.txt", dictionary)


def write_side(folder: Path, side: str, prefix: str, lines: Sequence[str], files: int) -> None:
    """Deal ``lines`` over ``files`` files of almost equal length, and write the list that names them."""
    entries = [f"{prefix}-{i:02}.txt" for i in range(files)]
    for i, entry in enumerate(entries):
        write(folder / entry, lines[len(lines) * i // files : len(lines) * (i + 1) // files])
    write(folder / f"{side}.list", entries)


def write(file: Path, lines: Iterable[str]) -> None:
    """Write ``lines``, the same bytes on every platform."""
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")


def main(folder: Path) -> None:
    """Write the three sets into the folders ``sequence``, ``nested`` and ``sparse`` of ``folder``."""
    paragraphs = collect(SOURCE.read_text(encoding="utf-8").splitlines())
    held_out = round(len(paragraphs) * HELD_OUT)
    train, test = paragraphs[held_out:], paragraphs[:held_out]
    dictionary = vocabulary(train)
    write_set(folder / "sequence", sequence_lines(train), sequence_lines(test), dictionary)
    write_set(folder / "nested", nested_lines(train), nested_lines(test), dictionary)
    write_set(folder / "sparse", sparse_lines(train, dictionary), sparse_lines(test, dictionary), dictionary)
    print(f"{len(train)} paragraphs to train on, {len(test)} to test on, {len(dictionary)} words, in {folder}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent)
