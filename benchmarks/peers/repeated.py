"""The limit of a training: a few batches that are in memory already, again and again, without a loader."""

from __future__ import annotations

from importlib.metadata import version
from itertools import cycle, islice

import numpy as np

from benchmarks import consumer
from benchmarks.job import Job

_BATCHES = 4


def versions() -> dict[str, str]:
    return {"torch": version("torch"), "numpy": np.__version__}


def measure(job: Job) -> list[dict]:
    few = [*islice(job.batches()(job.files(), 1), _BATCHES)]
    return consumer.passes(job, lambda: cycle(few))
