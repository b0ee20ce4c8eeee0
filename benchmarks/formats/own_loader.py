"""pydp2: a running service with the ready-made provider, a client, one pool for all workers, every value checked."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

import pydp2
from benchmarks.formats.consumer import BATCH, POOL_BYTES, measure, touch
from benchmarks.formats.worker import provider

_PATIENCE = 30.0


def _size(batch: Any) -> int:
    for value in batch.values():
        if isinstance(value, np.ndarray):
            touch(value)
        else:  # a Ragged, or the bytes of strings
            for name in ("values", "sequence_start_positions", "data", "offsets"):
                if (part := getattr(value, name, None)) is not None:
                    touch(part)
    return len(batch)


def pydp2_loader(workload: str, files: list[str], workers: int, samples: int) -> dict[str, Any]:
    """Return the figures of a client of a service whose workers are ready."""
    address, args = provider(workload)
    with (
        pydp2.launch(files, address, args=args, workers=workers) as service,
        service.connect(batch_size=BATCH, pool_bytes=POOL_BYTES, seed=1) as client,
    ):
        deadline = time.monotonic() + _PATIENCE
        while len(service.stats()["workers"]) < workers:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{workers} workers must be there after {_PATIENCE:.0f} s")
            time.sleep(0.01)
        return measure(samples, lambda: client, _size)
