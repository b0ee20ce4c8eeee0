"""Grain: an IterDataset over files that can be sliced among processes, window shuffle, batches, mp_prefetch.

A generator is not a random-access source, so there is a special dataset with ``set_slice`` and a state. The other
documented way, one dataset for each file under InterleaveIterDataset, was half as fast: it has a thread and a queue for
each file.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import grain
import numpy as np
from absl import flags

from benchmarks import consumer
from benchmarks.job import BATCH, Job


def versions() -> dict[str, str]:
    return {"grain": version("grain"), "numpy": np.__version__}


class _Reading(grain.DatasetIterator):
    def __init__(self, job: Job, files: list[str]) -> None:
        super().__init__()
        self._read, self._files = job.reader(), files
        self._begin()

    def _begin(self) -> None:
        self._taken = 0
        self._samples: Iterator[Any] = (sample for file in self._files for sample in self._read(file))

    def __next__(self) -> Any:
        sample = next(self._samples)
        self._taken += 1
        return sample

    def get_state(self) -> dict[str, int]:
        return {"taken": self._taken}

    def set_state(self, state: dict[str, int]) -> None:
        self._begin()
        for _ in range(state["taken"]):
            next(self)


class _Files(grain.IterDataset):
    def __init__(self, job: Job) -> None:
        super().__init__()
        self._job, self._files = job, job.files()

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        self._files = self._files[sl]

    def __iter__(self) -> _Reading:
        return _Reading(self._job, self._files)


def measure(job: Job) -> list[dict]:
    flags.FLAGS(["grain"])
    seeds = iter(range(1, job.passes + 1))

    def batches() -> Any:
        source = _Files(job)
        mixed = grain.experimental.WindowShuffleIterDataset(source, window_size=job.kind.pool, seed=next(seeds))
        joined = mixed.batch(BATCH, drop_remainder=False, batch_fn=job.kind.collate)
        return joined.mp_prefetch(grain.MultiprocessingOptions(num_workers=job.workers, per_worker_buffer_size=4))

    return consumer.passes(job, batches)
