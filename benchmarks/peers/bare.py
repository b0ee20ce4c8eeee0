"""The upper limit: the generators alone, in a loop in as many processes as there are workers."""

from __future__ import annotations

import platform
import time
from multiprocessing import get_context
from typing import Any

import numpy as np

from benchmarks import processes
from benchmarks.consumer import WrongPass
from benchmarks.job import Job

_PATIENCE = 600.0


def versions() -> dict[str, str]:
    return {"python": platform.python_version(), "numpy": np.__version__}


def _loop(read: Any, files: list[str], together: Any, counted: Any) -> None:
    samples = 0
    together.wait(_PATIENCE)
    for file in files:
        for _ in read(file):
            samples += 1
    counted.put(samples)


def measure(job: Job) -> list[dict]:
    """Return passes, each from the time when all processes are ready, without their forks, to the end of the last."""
    forked = get_context("fork")
    read, files = job.reader(), job.files()
    expected = job.total().samples
    results = []
    for _ in range(job.passes):
        together, counted = forked.Barrier(job.workers + 1), forked.SimpleQueue()
        parts = (files[number :: job.workers] for number in range(job.workers))
        children = [forked.Process(target=_loop, args=(read, part, together, counted)) for part in parts]
        meter = processes.Meter()
        for child in children:
            child.start()
        together.wait(_PATIENCE)
        began = time.perf_counter()
        samples = sum(counted.get() for _ in children)
        seconds = time.perf_counter() - began
        for child in children:
            child.join()
        if samples != expected:
            raise WrongPass(f"a pass must have {expected} samples, got {samples}")
        steady = samples / seconds
        result = {"began": began, "samples": samples, "seconds": seconds, "first": None, "steady": steady}
        results.append(result | meter.stop())
    return results
