"""SPDL: a subprocess for each worker, which shuffles and batches; one thread for each receives its batches.

Large rows go through its shared-memory ring, other rows through its queue, because these were the faster ways. The
subprocesses run before the first pass begins.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np
from spdl.pipeline import SharedMemoryRingBuffer, iterate_in_subprocess

from benchmarks import consumer
from benchmarks.job import Batch, Job
from benchmarks.prepared import kind_and_form

_RING = {"rows": 64 << 20, "jpeg": 256 << 20, "rows_u8": 64 << 20, "rows_f32": 64 << 20, "picture": 256 << 20}
_END = object()


def versions() -> dict[str, str]:
    return {"spdl-core": version("spdl-core"), "numpy": np.__version__}


class _Files:
    def __init__(self, job: Job, number: int) -> None:
        self.batches, self.files, self.seed = job.batches(), job.files()[number :: job.workers], 0

    def __iter__(self) -> Iterator[Batch]:
        self.seed += 1
        return self.batches(self.files, self.seed)


def _merged(sources: list[Iterable[Any]]) -> Iterator[Any]:
    """Yield the items of all sources, in order of arrival."""
    ready: queue.Queue[Any] = queue.Queue(8)

    def pump(source: Iterable[Any]) -> None:
        try:
            for batch in source:
                ready.put(batch)
            ready.put(_END)
        except BaseException as error:
            ready.put(error)

    for source in sources:
        threading.Thread(target=pump, args=(source,), daemon=True).start()
    running = len(sources)
    while running:
        batch = ready.get()
        if batch is _END:
            running -= 1
        elif isinstance(batch, BaseException):
            raise batch
        else:
            yield batch


def measure(job: Job) -> list[dict]:
    sources = []
    for number in range(job.workers):
        size = job.option("ring", _RING.get(kind_and_form(job.workload)[0]))
        ring = {"arena": SharedMemoryRingBuffer(size)} if size else {}
        make = partial(_Files, job, number)
        sources.append(iterate_in_subprocess(make, buffer_size=8, mp_context="fork", timeout=120, **ring))
    return consumer.passes(job, lambda: _merged(sources))
