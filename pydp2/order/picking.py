"""Picking: the one loop of the order that runs for each sample, compiled where there was a compiler."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from pydp2.inputs.drawing import compiled
from pydp2.order.words import below

Rows = npt.NDArray[np.int64]


def pick_in_python(rows: array[int], words: npt.NDArray[np.uint64]) -> Rows:
    """One of ``rows`` for each of ``words``, int64 (n,), as docs/order.md, "Pick", says; they leave ``rows``.

    What is picked goes behind what stays, whose last takes its place. ``rows`` holds at least as many.
    """
    size, count = len(rows), len(words)
    bounds = np.arange(size, size - count, -1).astype(np.uint64)
    last = size - 1
    for j in below(words, bounds).tolist():
        rows[last], rows[j] = rows[j], rows[last]
        last -= 1
    picked = np.array(rows[size - count :], np.int64)[::-1].copy()
    del rows[size - count :]
    return picked


pick: Callable[[array[int], npt.NDArray[np.uint64]], Rows] = pick_in_python

if compiled():
    from pydp2.order import _words

    def _pick(rows: array[int], words: npt.NDArray[np.uint64]) -> Rows:
        picked = np.empty(len(words), np.int64)
        _words.pick(rows, words, picked)
        del rows[len(rows) - len(words) :]
        return picked

    pick = _pick
