"""Make the data of the workloads: seeded, once in a folder, with the totals of a whole pass."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks import prepared
from benchmarks.job import HEADER, PREPARED, SIDE, WORDS

FILES = 16
SAMPLES = {"mnist_text": 30_000, "words": 400_000, "ctr": 250_000, "rows": 65_536, "jpeg": 4_096}
SAMPLES |= {  # samples that are prepared in memory: a pass takes about one or two seconds
    "dense_blocks": 2_000_000,
    "ragged_blocks": 1_500_000,
    "sparse_blocks": 1_000_000,
    "dense_single": 500_000,
    "ragged_single": 400_000,
    "sparse_single": 300_000,
    "rows_u8_blocks": 600_000,
    "rows_f32_blocks": 500_000,
    "picture_blocks": 10_240,
    "rows_u8_single": 600_000,
    "rows_f32_single": 500_000,
    "picture_single": 10_240,
}
TIMES = {"rows": 8}  # number of times that the list names each file, so that a pass is long enough to be timed
_VERSION = 1  # version of the data that the functions below write
_LETTERS = "etaoinshrdlucmfwypvbgkjq"
Entry = tuple[str, int, int, int]  # file, samples, sum of labels, elements


def make(workload: str, folder: Path, scale: float = 1.0) -> Path:
    """Return the folder with the data of a workload, below ``folder``; make them unless they exist already.

    Args:
        scale: number of samples, as a multiple of :data:`SAMPLES`.

    Raises:
        ModuleNotFoundError: ``jpeg`` needs Pillow.
    """
    samples = max(FILES, int(SAMPLES[workload] * scale) // FILES * FILES)
    done = folder / f"{workload}-{samples}-v{_VERSION}"
    if not (done / "meta.json").exists():
        shutil.rmtree(done, ignore_errors=True)  # incomplete data of a run that was interrupted
        done.mkdir(parents=True)
        entries = list(_MAKERS[workload](done, samples // FILES))
        text = json.dumps({"files": entries, "times": TIMES.get(workload, 1)})
        (done / "meta.tmp").write_text(text)
        (done / "meta.tmp").rename(done / "meta.json")
    return done


def _names(end: str) -> list[str]:
    return [f"part-{number:02d}.{end}" for number in range(FILES)]


def _mnist_text(folder: Path, lines: int) -> Iterator[Entry]:
    """``label;p0 p1 … p783``, a fifth of the pixels not 0."""
    random = np.random.default_rng(11)
    written = np.array([f"{value / 255:.6g}" for value in range(256)])
    for name in _names("txt"):
        labels = random.integers(0, 10, lines)
        pixels = random.integers(1, 256, (lines, 784)) * (random.random((lines, 784)) < 0.2)
        with (folder / name).open("w") as file:
            for label, row in zip(labels.tolist(), pixels, strict=True):
                file.write(f"{label};{' '.join(written[row])}\n")
        yield name, lines, int(labels.sum()), lines * 784


def _word(number: int) -> str:
    letters = ""
    number += 1
    while number:
        number, letter = divmod(number - 1, len(_LETTERS))
        letters = _LETTERS[letter] + letters
    return letters


def _words(folder: Path, lines: int) -> Iterator[Entry]:
    """``label<TAB>word word …``: 20 to 98 words, frequent ones short, about as often as in a language."""
    random = np.random.default_rng(12)
    dictionary = np.array([_word(number) for number in range(WORDS)])
    (folder / "dictionary.txt").write_text("".join(f"{word}\t{i}\n" for i, word in enumerate(dictionary)))
    frequency = 1 / np.arange(1, WORDS + 1) ** 1.05
    steps = np.cumsum(frequency / frequency.sum())
    for name in _names("txt"):
        labels, lengths = random.integers(0, 2, lines), random.integers(20, 99, lines)
        chosen = dictionary[np.minimum(np.searchsorted(steps, random.random(lengths.sum())), WORDS - 1)]
        with (folder / name).open("w") as file:
            for label, text in zip(labels.tolist(), np.split(chosen, np.cumsum(lengths)[:-1]), strict=True):
                file.write(f"{label}\t{' '.join(text)}\n")
        yield name, lines, int(labels.sum()), int(lengths.sum())


def _ctr(folder: Path, lines: int) -> Iterator[Entry]:
    """``label<TAB>id id …<TAB>index:value …``: about 40 of a million ids, about 10 of 10,000 indices."""
    random = np.random.default_rng(13)
    for name in _names("txt"):
        labels = random.integers(0, 2, lines)
        elements = 0
        with (folder / name).open("w") as file:
            for label in labels.tolist():
                ids = np.unique((random.random(random.integers(30, 51)) ** 3 * 1_000_000).astype(np.int64)).tolist()
                indices = np.unique(random.integers(0, 10_000, random.integers(6, 15))).tolist()
                values = np.round(random.random(len(indices)), 4).tolist()
                pairs = (f"{index}:{value}" for index, value in zip(indices, values, strict=True))
                file.write(f"{label}\t{' '.join(map(str, ids))}\t{' '.join(pairs)}\n")
                elements += len(ids) + len(indices)
        yield name, lines, int(labels.sum()), elements


def _rows(folder: Path, lines: int) -> Iterator[Entry]:
    """Arrays (lines, 1024) of float32; the reader gives row i the label i mod 10."""
    random = np.random.default_rng(14)
    for name in _names("npy"):
        np.save(folder / name, random.random((lines, 1024), dtype=np.float32))
        yield name, lines, sum(i % 10 for i in range(lines)), lines * 1024


def _jpeg(folder: Path, lines: int) -> Iterator[Entry]:
    """Smooth random pictures, one after another, each behind its label and its size."""
    from PIL import Image

    random = np.random.default_rng(15)
    for name in _names("jpegs"):
        labels = random.integers(0, 10, lines).tolist()
        with (folder / name).open("wb") as file:
            for label in labels:
                coarse = Image.fromarray(random.integers(0, 256, (12, 12, 3), dtype=np.uint8))
                encoded = io.BytesIO()
                coarse.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(encoded, "JPEG", quality=90)
                file.write(HEADER.pack(label, encoded.tell()))
                file.write(encoded.getvalue())
        yield name, lines, sum(labels), lines * SIDE * SIDE * 3


def _nothing(workload: str, folder: Path, lines: int) -> Iterator[Entry]:
    """Yield names without files, each of which stands for several repetitions of all prepared samples."""
    kind, _ = prepared.kind_and_form(workload)
    whole = prepared.arrays(kind)
    times = max(1, lines // prepared.count(kind))
    elements = sum(whole[name].size for name in PREPARED[workload].counted)
    for name in _names("memory"):
        yield name, times * prepared.count(kind), times * int(whole["label"].sum()), times * elements


_MAKERS: dict[str, Callable[[Path, int], Iterator[Entry]]] = {
    "mnist_text": _mnist_text,
    "words": _words,
    "ctr": _ctr,
    "rows": _rows,
    "jpeg": _jpeg,
} | {name: partial(_nothing, name) for name in PREPARED}
