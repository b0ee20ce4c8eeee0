"""SPDL: a subprocess for each worker, which shuffles and batches; one thread for each receives its batches.

Large rows go through its shared-memory ring, other rows through its queue, because these were the faster ways. The
subprocesses run before the first pass begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from importlib.metadata import version

import numpy as np
from spdl.pipeline import SharedMemoryRingBuffer, iterate_in_subprocess

from benchmarks import consumer
from benchmarks.job import Batch, Job
from benchmarks.prepared import kind_and_form
from benchmarks.streams import merged

_RING = {"rows": 64 << 20, "jpeg": 256 << 20, "rows_u8": 64 << 20, "rows_f32": 64 << 20, "picture": 256 << 20}


def versions() -> dict[str, str]:
    return {"spdl-core": version("spdl-core"), "numpy": np.__version__}


class _Files:
    def __init__(self, job: Job, number: int) -> None:
        self.batches, self.files, self.seed = job.batches(), job.files()[number :: job.workers], 0

    def __iter__(self) -> Iterator[Batch]:
        self.seed += 1
        return self.batches(self.files, self.seed)


def measure(job: Job) -> list[dict]:
    sources = []
    for number in range(job.workers):
        size = job.option("ring", _RING.get(kind_and_form(job.workload)[0]))
        ring = {"arena": SharedMemoryRingBuffer(size)} if size else {}
        make = partial(_Files, job, number)
        sources.append(iterate_in_subprocess(make, buffer_size=8, mp_context="fork", timeout=120, **ring))
    return consumer.passes(job, lambda: merged(sources))
