"""PyTorch's DataLoader over an IterableDataset: files by worker, shuffle buffer and batches in the workers.

Persistent workers; numpy arrays through the workers' pipes, which was up to three times as fast as tensors in shared
memory with either sharing strategy; 8 batches ahead for each worker instead of 2. The options ``tensors``, ``sharing``
and ``prefetch`` select other ways.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from benchmarks import consumer
from benchmarks.job import Batch, Job


def versions() -> dict[str, str]:
    return {"torch": torch.__version__, "numpy": np.__version__}


class _Files(IterableDataset):
    def __init__(self, job: Job) -> None:
        self.batches, self.files, self.seed = job.batches(), job.files(), 0
        self.tensors = job.option("tensors", False)

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        own = self.files[worker.id :: worker.num_workers]
        self.seed += 1
        batches = self.batches(own, self.seed)
        return map(_tensors, batches) if self.tensors else batches


def _tensors(batch: Batch) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array) for name, array in batch.items()}


def _arrays(batch: dict[str, torch.Tensor]) -> Batch:
    return {name: tensor.numpy() for name, tensor in batch.items()}


def _as_it_is(batch: Any) -> Any:
    return batch


def measure(job: Job) -> list[dict]:
    torch.set_num_threads(1)
    if job.option("sharing"):
        torch.multiprocessing.set_sharing_strategy(job.option("sharing"))
    loader = DataLoader(
        _Files(job),
        batch_size=None,
        num_workers=job.workers,
        persistent_workers=True,
        prefetch_factor=job.option("prefetch", 8),
        collate_fn=_as_it_is,
    )
    return consumer.passes(job, lambda: loader, _arrays if job.option("tensors") else None)
