"""Ray Data: a task for each file that yields blocks of columns, ``iter_batches`` with a local shuffle buffer.

``map_batches`` with blocks of 1024 samples is a little faster than ``flat_map`` of rows. Blocks are Arrow tables, so
ragged columns come back as arrays of arrays, which are concatenated here; that is part of the cost of a batch.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import ray

from benchmarks import consumer
from benchmarks.job import BATCH, Batch, Job

_BLOCK = 1024
_BLOCK_OF_PICTURES = 64
_STORE = 2 << 30  # bytes of Ray's shared-memory store


def versions() -> dict[str, str]:
    return {"ray": ray.__version__, "numpy": np.__version__}


def _column(name: str, values: list[Any]) -> Any:
    if name in ("pixel", "ids", "indices", "values"):
        dtype = np.float32 if name in ("pixel", "values") else np.int64
        arrays = [np.array(value, dtype) for value in values]
        return np.stack(arrays) if name == "pixel" else arrays
    return np.stack(values)


def _columns(workload: str, block: list[Any]) -> dict[str, Any]:
    names = {"mnist_text": ("pixel",), "words": ("ids",), "rows": ("row",), "jpeg": ("picture",)}
    if workload == "ctr":
        block = [(ids, [i for i, _ in pairs], [v for _, v in pairs], label) for ids, pairs, label in block]
    slots = names.get(workload, ("ids", "indices", "values"))
    return {
        name: _column(name, list(values))
        for name, values in zip((*slots, "label"), zip(*block, strict=True), strict=True)
    }


def _joined(column: Any) -> tuple[np.ndarray, np.ndarray]:
    starts = np.zeros(len(column) + 1, np.int64)
    np.cumsum([len(values) for values in column], out=starts[1:])
    return np.concatenate(list(column)), starts


def _words(batch: Any) -> Batch:
    ids, starts = _joined(batch["ids"])
    return {"ids": ids, "starts": starts, "label": batch["label"]}


def _ctr(batch: Any) -> Batch:
    ids, starts = _joined(batch["ids"])
    indices, pair_starts = _joined(batch["indices"])
    values = np.concatenate(list(batch["values"]))
    return {
        "ids": ids,
        "starts": starts,
        "indices": indices,
        "values": values,
        "pair_starts": pair_starts,
        "label": batch["label"],
    }


_ARRAYS: dict[str, Callable[[Any], Batch]] = {"words": _words, "ctr": _ctr}


class _Blocks:
    """Function of a task, which yields blocks of one file."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def __call__(self, batch: Any) -> Iterator[dict[str, Any]]:
        read = _reader(self._job)
        size = _BLOCK_OF_PICTURES if self._job.workload == "jpeg" else _BLOCK
        for filename in batch["item"]:
            samples = read(str(filename))
            while block := list(islice(samples, size)):
                yield _columns(self._job.workload, block)


_readers: dict[Job, Any] = {}


def _reader(job: Job) -> Any:
    """Return the reader, made once in a process of Ray, which runs many tasks."""
    if job not in _readers:
        _readers[job] = job.reader()
    return _readers[job]


def measure(job: Job) -> list[dict]:
    ray.init(
        num_cpus=job.workers,
        logging_level=logging.ERROR,
        log_to_driver=False,
        include_dashboard=False,
        object_store_memory=_STORE,
        _temp_dir=os.environ.get("TMPDIR"),
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    try:
        files = job.files()
        items = ray.data.from_items(files, override_num_blocks=len(files))
        blocks = _Blocks(job)

        def tasks(batch: Any) -> Iterator[dict[str, Any]]:
            yield from blocks(batch)

        data = items.map_batches(tasks, batch_size=1)
        options = {"batch_size": BATCH, "batch_format": "numpy", "prefetch_batches": 4}
        batches = lambda: data.iter_batches(**options, local_shuffle_buffer_size=job.kind.pool)  # noqa: E731
        return consumer.passes(job, batches, _ARRAYS.get(job.workload))
    finally:
        ray.shutdown()
