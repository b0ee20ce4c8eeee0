"""Consume the batches of a loader: touch all data, count, and refuse a pass without each sample exactly once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks import processes

_PAGE = 4096  # bytes of a page; one element of each is read, so that bytes which never arrived cannot count
PASSES = 2
"""Passes of a run: loaders start their processes in the first, so the last one counts."""
BATCH = 128
POOL = {"tar_100k": 256, "tar_20k": 1024, "images": 1024, "tfrecord_images": 1024}
"""Samples of a shuffle buffer, where they are not :data:`USUAL_POOL`."""
USUAL_POOL = 4096

POOL_BYTES = 16 << 20
"""Bytes of pydp2's pool: more samples than the buffers of the peers have, of small ones many more."""


def pool(workload: str) -> int:
    """Return how many samples a shuffle buffer has."""
    return POOL.get(workload, USUAL_POOL)


def measure(samples: int, batches: Callable[[], Iterable[Any]], size: Callable[[Any], int]) -> dict[str, Any]:
    """Consume passes over ``batches()``, and return the figures of the last one.

    Args:
        samples: how many a pass must have.
        size: function that touches the data of a batch and returns how many samples it has.
    """
    for _ in range(PASSES):
        meter = processes.Meter()
        began = time.perf_counter()
        count = sum(size(batch) for batch in batches())
        seconds = time.perf_counter() - began
        cost = meter.stop()
        if count != samples:
            raise AssertionError(f"a pass must deliver {samples} samples, got {count}")
    return {"samples": samples, "seconds": seconds, "cpu": cost["cpu"], "others": cost["others"]}


def touch(array: Any) -> None:
    """Read an element of each page of an array."""
    if array.nbytes > _PAGE:
        array.reshape(-1)[:: max(1, _PAGE // array.itemsize)].sum()
    elif array.size:
        array.item(0)


def size_of(batch: dict[str, Any]) -> int:
    """Touch a batch as :func:`.libraries.collate` makes it, and return its number of samples."""
    for value in batch.values():
        if not isinstance(value, list):
            touch(value)
    return len(batch.get("label", batch["data"]))
