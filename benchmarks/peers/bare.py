"""The limit: the generators alone, looped in as many processes as there are workers, which do nothing else."""

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
    """Passes from when all processes are ready until the last one is through; their forking does not count."""
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
