"""paddle.io.DataLoader over an IterableDataset: the successor of PyDataProvider2.

Files by worker, shuffle buffer and batches in the workers, arrays through its shared memory, 8 batches ahead for each
worker. Its workers are forked for each pass: with ``persistent_workers`` this dataset hung (3.3.1).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import paddle
from paddle.io import DataLoader, IterableDataset, get_worker_info

from benchmarks import consumer
from benchmarks.job import Batch, Job, shuffled_batches


def versions() -> dict[str, str]:
    return {"paddlepaddle": paddle.__version__, "numpy": np.__version__}


class _Files(IterableDataset):
    def __init__(self, job: Job) -> None:
        super().__init__()
        self.read, self.files, self.kind, self.seed = job.reader(), job.files(), job.kind, 0

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        own = self.files[worker.id :: worker.num_workers]
        self.seed += 1
        return shuffled_batches((sample for file in own for sample in self.read(file)), self.kind, self.seed)


def _as_it_is(batch: Any) -> Any:
    return batch


def _arrays(batch: Any) -> Batch:
    batch = batch[0] if isinstance(batch, list) else batch
    return {name: array.numpy() if hasattr(array, "numpy") else array for name, array in batch.items()}


def measure(job: Job) -> list[dict]:
    paddle.set_device("cpu")
    loader = DataLoader(
        _Files(job),
        batch_size=None,
        num_workers=job.workers,
        use_shared_memory=True,
        persistent_workers=False,
        prefetch_factor=job.option("prefetch", 8),
        collate_fn=_as_it_is,
        return_list=True,
        places=paddle.CPUPlace(),
    )
    return consumer.passes(job, lambda: loader, _arrays)
