"""torchdata's StatefulDataLoader, set up as ``with_torch`` sets up the DataLoader, with a state of each batch.

Its state is that of the worker's dataset, taken after each batch, which is the default ``snapshot_every_n_steps=1``.
The state of the dataset is the number of its batches so far; a resume reads them again.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader

from benchmarks import consumer
from benchmarks.job import Job


def versions() -> dict[str, str]:
    return {"torchdata": version("torchdata"), "torch": torch.__version__, "numpy": np.__version__}


class _Files(IterableDataset):
    def __init__(self, job: Job) -> None:
        self.batches, self.files, self.seed, self.given = job.batches(), job.files(), 0, 0

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        self.seed += 1
        self.given = 0
        for batch in self.batches(self.files[worker.id :: worker.num_workers], self.seed):
            self.given += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        return {"seed": self.seed, "given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        raise NotImplementedError("no run of a benchmark resumes")


def _as_it_is(batch: Any) -> Any:
    return batch


def measure(job: Job) -> list[dict]:
    torch.set_num_threads(1)
    loader = StatefulDataLoader(
        _Files(job),
        batch_size=None,
        num_workers=job.workers,
        persistent_workers=True,
        prefetch_factor=8,
        collate_fn=_as_it_is,
    )
    return consumer.passes(job, lambda: loader)
