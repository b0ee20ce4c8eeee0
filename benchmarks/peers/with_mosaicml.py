"""MosaicML Streaming over MDS shards on the local disk: its shuffle, its state, torch's workers.

``shuffle_block_size`` has its default. A picture is stored as JPEG bytes, and decoded as in the reader of the workload.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from streaming import MDSWriter, StreamingDataLoader, StreamingDataset
from streaming.base.util import clean_stale_shared_memory

from benchmarks import consumer
from benchmarks.job import BATCH, Job
from benchmarks.peers import native

_COLUMNS = {"rows": "ndarray:float32:1024", "jpeg": "bytes"}


def versions() -> dict[str, str]:
    return {"mosaicml-streaming": version("mosaicml-streaming"), "torch": torch.__version__, "numpy": np.__version__}


def _write(job: Job, folder: Path) -> None:
    columns = {"value": _COLUMNS[job.workload], "label": "int"}
    with MDSWriter(out=str(folder), columns=columns) as out:
        for value, label in native.stored(job):
            out.write({"value": value, "label": label})


def measure(job: Job) -> list[dict]:
    torch.set_num_threads(1)
    folder = native.converted(job, "mds", lambda folder: _write(job, folder))
    clean_stale_shared_memory()
    dataset = StreamingDataset(local=str(folder), shuffle=True, batch_size=BATCH, num_canonical_nodes=1)

    def collate(samples: list[dict[str, Any]]) -> dict[str, np.ndarray]:
        return native.collated(job, [(native.decoded(sample["value"]), sample["label"]) for sample in samples])

    loader = StreamingDataLoader(
        dataset,
        batch_size=BATCH,
        num_workers=job.workers,
        persistent_workers=True,
        prefetch_factor=8,
        collate_fn=collate,
    )
    return consumer.passes(job, lambda: loader)
