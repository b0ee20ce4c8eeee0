"""Measure the time of each ``next()`` in a trainer whose steps take longer than the loader needs for a batch.

The module needs only numpy, because the interpreters of peers import it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

SKIPPED = 20  # batches at the beginning of a pass that do not count, because loaders fill their buffers
LATE = 0.001  # seconds of a next() from which the loader counts as not ready
STEPS = {"mnist_text": 20.0, "words": 3.0, "ctr": 4.0, "rows": 3.0, "jpeg": 150.0}  # milliseconds
TIMES = {"jpeg": 4}  # number of times that a pass reads the list, so that there are enough batches
WORKLOADS = ("words", "rows", "jpeg")
_NUMBERS = 1 << 16
_END = object()


class TooFewBatches(ValueError):
    """A pass ended before anything was measured."""


def compute(seconds: float, numbers: np.ndarray) -> None:
    """Keep a core busy for ``seconds``; numpy releases the interpreter's lock meanwhile, as training libraries do."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        np.add(numbers, 1.0, out=numbers)


class Felt:
    """Times of ``next()`` in one pass.

    Args:
        step: milliseconds of a step of the trainer.
        convert: function from a batch to arrays; its time counts as a part of ``next()``.
    """

    def __init__(self, step: float, convert: Callable[[Any], Any] | None = None) -> None:
        self._step, self._convert = step / 1000, convert
        self.times: list[float] = []

    def stepping(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches, with a step after each."""
        numbers = np.zeros(_NUMBERS, np.float32)
        stream = iter(batches)
        while True:
            began = time.perf_counter()
            batch = next(stream, _END)
            if batch is _END:
                return
            if self._convert is not None:
                batch = self._convert(batch)
            self.times.append(time.perf_counter() - began)
            yield batch
            compute(self._step, numbers)

    def figures(self) -> dict[str, float]:
        """Return the times of ``next()`` in milliseconds, and the share of steps at which the loader was not ready.

        Raises:
            TooFewBatches: a pass was so short that it was skipped.
        """
        times = np.array(self.times[SKIPPED:])
        if not times.size:
            raise TooFewBatches(
                f"the first {SKIPPED} batches of a pass are left out, and it had {len(self.times)}: take more data, "
                "as with --scale 1"
            )
        half, nearly_all, most = (float(value) * 1000 for value in np.quantile(times, (0.5, 0.99, 1.0)))
        late = float(np.mean(times > LATE))
        return {"steps": times.size, "p50": half, "p99": nearly_all, "max": most, "late": late}


def exposed(waits: list[float], works: list[float]) -> dict[str, float]:
    """Return the figures of steps that waited and worked so many seconds: ``exposed`` is the waits' share of the
    time; the others are milliseconds."""
    total = sum(waits) + sum(works)
    half, nearly_all = (float(value) * 1000 for value in np.quantile(waits, (0.5, 0.99)))
    return {
        "steps": len(waits),
        "exposed": sum(waits) / total,
        "step": 1000 * total / len(waits),
        "work": 1000 * sum(works) / len(works),
        "p50": half,
        "p99": nearly_all,
        "max": 1000 * max(waits),
    }
