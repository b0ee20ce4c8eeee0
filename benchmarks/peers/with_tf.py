"""tf.data: generators of packed blocks, interleaved over files, unbatched, shuffled, batched; one process.

``from_generator`` with single samples is five to ten times slower, so the generator packs blocks of samples with the
same numpy code as the workers of the other peers. The generators always share the lock of one interpreter. With the
option ``cache``, ``.cache()`` in memory comes before the shuffling, and the second pass reads from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks import consumer
from benchmarks.job import BATCH, SIDE, Batch, Job

_BLOCK = 256
_BLOCK_OF_PICTURES = 32


def versions() -> dict[str, str]:
    return {"tensorflow": tf.__version__, "numpy": np.__version__}


def _signature(workload: str) -> tuple[tf.TensorSpec, ...]:
    """Return the signature of a block, in the order of the arrays of a batch."""
    whole, floats = tf.TensorSpec((None,), tf.int64), tf.TensorSpec((None,), tf.float32)
    return {
        "mnist_text": (tf.TensorSpec((None, 784), tf.float32), whole),
        "rows": (tf.TensorSpec((None, 1024), tf.float32), whole),
        "jpeg": (tf.TensorSpec((None, SIDE, SIDE, 3), tf.uint8), whole),
        "words": (whole, whole, whole),
        "ctr": (whole, whole, whole, floats, whole, whole),
    }[workload]


def _ragged(values: Any, starts: Any) -> Any:
    return tf.RaggedTensor.from_row_splits(values, starts, validate=False)


_TO_RAGGED: dict[str, Callable[..., Any]] = {
    "words": lambda ids, starts, label: (_ragged(ids, starts), label),
    "ctr": lambda ids, starts, indices, values, pair_starts, label: (
        _ragged(ids, starts),
        _ragged(indices, pair_starts),
        _ragged(values, pair_starts),
        label,
    ),
}


def _words(batch: Any) -> Batch:
    ids, label = batch
    return {"ids": ids.values.numpy(), "starts": ids.row_splits.numpy(), "label": label.numpy()}


def _ctr(batch: Any) -> Batch:
    ids, indices, values, label = batch
    return {
        "ids": ids.values.numpy(),
        "starts": ids.row_splits.numpy(),
        "indices": indices.values.numpy(),
        "values": values.values.numpy(),
        "pair_starts": indices.row_splits.numpy(),
        "label": label.numpy(),
    }


def _dense(name: str) -> Callable[[Any], Batch]:
    return lambda batch: {name: batch[0].numpy(), "label": batch[1].numpy()}


_ARRAYS = {
    "mnist_text": _dense("pixel"),
    "rows": _dense("row"),
    "jpeg": _dense("picture"),
    "words": _words,
    "ctr": _ctr,
}


def measure(job: Job) -> list[dict]:
    kind, read = job.kind, job.reader()
    size = _BLOCK_OF_PICTURES if job.workload == "jpeg" else _BLOCK

    def blocks(filename: bytes) -> Iterator[tuple[np.ndarray, ...]]:
        samples = read(filename.decode())
        while block := list(islice(samples, size)):
            yield tuple(kind.collate(block).values())

    def of_file(filename: Any) -> Any:
        made = tf.data.Dataset.from_generator(blocks, output_signature=_signature(job.workload), args=(filename,))
        to_ragged = _TO_RAGGED.get(job.workload)
        return (made if to_ragged is None else made.map(to_ragged)).unbatch()

    data = tf.data.Dataset.from_tensor_slices(job.files()).interleave(
        of_file, cycle_length=job.workers, block_length=16, num_parallel_calls=job.workers, deterministic=False
    )
    if job.option("cache"):
        data = data.cache()
    data = data.shuffle(kind.pool, reshuffle_each_iteration=True)
    data = data.ragged_batch(BATCH) if job.workload in _TO_RAGGED else data.batch(BATCH)
    data = data.prefetch(8)
    return consumer.passes(job, lambda: data, _ARRAYS[job.workload])
