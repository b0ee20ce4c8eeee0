"""Rows of a fixed size in one file, as FFCV stores them: the trainer's own threads gather the rows of a batch.

There is only the process of the trainer, and nothing is decoded. The file is mapped, a pass has a permutation of all
rows, and each thread fills a batch with :func:`numpy.take`, which releases the interpreter's lock while it copies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks import consumer
from benchmarks.job import BATCH, Batch, Job
from benchmarks.peers import native


def versions() -> dict[str, str]:
    return {"numpy": np.__version__}


def _write(job: Job, folder: Path) -> None:
    total = job.total().samples
    rows = np.lib.format.open_memmap(folder / "rows.npy", "w+", np.float32, (total, 1024))
    labels = np.empty(total, np.int64)
    for number, (row, label) in enumerate(native.stored(job)):
        rows[number], labels[number] = row, label
    rows.flush()
    np.save(folder / "labels.npy", labels)


def measure(job: Job) -> list[dict]:
    folder = native.converted(job, "memmap", lambda folder: _write(job, folder))
    rows, labels = np.load(folder / "rows.npy", mmap_mode="r"), np.load(folder / "labels.npy")
    random = np.random.default_rng(1)

    def gathered(chosen: np.ndarray) -> Batch:
        return {"row": np.take(rows, chosen, axis=0), "label": labels[chosen]}

    def batches() -> Iterator[Batch]:
        order = random.permutation(len(labels))
        ahead: deque = deque()
        with ThreadPoolExecutor(job.workers) as threads:
            for first in range(0, len(order), BATCH):
                ahead.append(threads.submit(gathered, order[first : first + BATCH]))
                if len(ahead) > 4 * job.workers:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()

    return consumer.passes(job, batches)
