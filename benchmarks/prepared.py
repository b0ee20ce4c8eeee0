"""Make samples that cost nothing during the run: seeded arrays, made once in the memory of each process, and parts.

They show the throughput of the loader itself. The kind says which slots a sample has. The form says how the generator
yields: ``blocks``: many samples at a time, as arrays; ``single``: one sample at a time, as a user without arrays would
yield it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

KINDS = ("dense", "ragged", "sparse", "rows_u8", "rows_f32", "picture")
FORMS = ("blocks", "single")
SIDE = 256  # width and height of a picture in pixels
LABELS = 10
BLOCK = {"picture": 32}  # samples in one ``rows()``
_BLOCK = 256
_SAMPLES = {"picture": 128}  # number of different samples, which are yielded again and again
_STARTS = {"ids": "starts", "indices": "pair_starts", "values": "pair_starts"}  # array with the offsets of each array
Arrays = dict[str, np.ndarray]


def named(kind: str, form: str) -> str:
    """Return the name of the workload."""
    return f"{kind}_{form}"


def kind_and_form(workload: str) -> tuple[str, str | None]:
    """Return kind and form of a prepared workload; for another workload, its name and None."""
    kind, _, form = workload.rpartition("_")
    return (kind, form) if form in FORMS and kind in KINDS else (workload, None)


def block(kind: str) -> int:
    """Return the number of samples that pydp2's generator yields at a time."""
    return BLOCK.get(kind, _BLOCK)


def count(kind: str) -> int:
    """Return the number of different samples."""
    return _SAMPLES.get(kind, _BLOCK)


def _starts(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _distinct(random: np.random.Generator, rows: int, many: int, most: int) -> np.ndarray:
    """Return ``many`` ascending numbers below ``most`` for each row: one from each of ``many`` equal parts."""
    width = most // many
    return (random.integers(0, width, (rows, many)) + np.arange(many) * width).astype(np.int32).reshape(-1)


def _dense(random: np.random.Generator, rows: int) -> Arrays:
    return {"row": random.random((rows, 20), dtype=np.float32)}


def _ragged(random: np.random.Generator, rows: int) -> Arrays:
    starts = _starts(random.integers(20, 99, rows))
    return {"ids": random.integers(0, 30_000, starts[-1], dtype=np.int32), "starts": starts}


def _sparse(random: np.random.Generator, rows: int) -> Arrays:
    return {
        "ids": _distinct(random, rows, 40, 1_000_000),
        "starts": _starts(np.full(rows, 40)),
        "indices": _distinct(random, rows, 10, 10_000),
        "values": random.random(rows * 10, dtype=np.float32),
        "pair_starts": _starts(np.full(rows, 10)),
    }


def _rows_u8(random: np.random.Generator, rows: int) -> Arrays:
    return {"row": random.integers(0, 256, (rows, 3072), dtype=np.uint8)}


def _rows_f32(random: np.random.Generator, rows: int) -> Arrays:
    return {"row": random.random((rows, 1024), dtype=np.float32)}


def _picture(random: np.random.Generator, rows: int) -> Arrays:
    return {"picture": random.integers(0, 256, (rows, SIDE, SIDE, 3), dtype=np.uint8)}


_MAKERS: dict[str, Callable[[np.random.Generator, int], Arrays]] = {
    "dense": _dense,
    "ragged": _ragged,
    "sparse": _sparse,
    "rows_u8": _rows_u8,
    "rows_f32": _rows_f32,
    "picture": _picture,
}


def arrays(kind: str) -> Arrays:
    """Return all samples of a kind, in the form of a batch."""
    random = np.random.default_rng(KINDS.index(kind))
    rows = count(kind)
    return _MAKERS[kind](random, rows) | {"label": random.integers(0, LABELS, rows, dtype=np.int32)}


def parts(whole: Arrays, size: int) -> list[Arrays]:
    """Return batches of ``size`` samples as views of ``whole``."""
    return [
        _part(whole, first, min(first + size, len(whole["label"]))) for first in range(0, len(whole["label"]), size)
    ]


def _part(whole: Arrays, first: int, end: int) -> Arrays:
    part = {}
    for name, array in whole.items():
        if name in _STARTS.values():
            part[name] = array[first : end + 1] - array[first]
        elif name in _STARTS:
            starts = whole[_STARTS[name]]
            part[name] = array[starts[first] : starts[end]]
        else:
            part[name] = array[first:end]
    return part


def samples(kind: str, whole: Arrays) -> list[tuple[Any, ...]]:
    """Return the samples one by one: lists of numbers, but arrays for rows and pictures."""
    label = whole["label"].tolist()
    if kind == "dense":
        return list(zip(whole["row"].tolist(), label, strict=True))
    if kind in ("ragged", "sparse"):
        one_by_one = [_part(whole, row, row + 1) for row in range(len(label))]
        ids = [part["ids"].tolist() for part in one_by_one]
        if kind == "ragged":
            return list(zip(ids, label, strict=True))
        pairs = [list(zip(part["indices"].tolist(), part["values"].tolist(), strict=True)) for part in one_by_one]
        return list(zip(ids, pairs, label, strict=True))
    return list(zip(whole["picture" if kind == "picture" else "row"], label, strict=True))
