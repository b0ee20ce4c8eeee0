"""SPDL with threads only, as recommended for work that releases the interpreter's lock: pictures.

One thread reads the files through the shuffle buffer, ``workers`` threads decode, one collates.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import numpy as np
from spdl.pipeline import PipelineBuilder

from benchmarks import consumer
from benchmarks.job import BATCH, Batch, Job
from benchmarks.peers import native


def versions() -> dict[str, str]:
    return {"spdl-core": version("spdl-core"), "numpy": np.__version__}


def _shuffled(job: Job, seed: int) -> Iterator[native.Sample]:
    draw = random.Random(seed)
    waiting: list[native.Sample] = []
    for sample in native.stored(job):
        if len(waiting) < job.kind.pool:
            waiting.append(sample)
            continue
        index = int(draw.random() * len(waiting))
        yield waiting[index]
        waiting[index] = sample
    draw.shuffle(waiting)
    yield from waiting


def _decode(sample: native.Sample) -> tuple[np.ndarray, int]:
    value, label = sample
    return native.decoded(value), label


def measure(job: Job) -> list[dict]:
    seeds = iter(range(1, job.passes + 1))

    def collate(samples: list[Any]) -> Batch:
        return native.collated(job, samples)

    def batches() -> Iterator[Batch]:
        pipeline = (
            PipelineBuilder()
            .add_source(_shuffled(job, next(seeds)))
            .pipe(_decode, concurrency=job.workers)
            .aggregate(BATCH)
            .pipe(collate)
            .add_sink(8)
            .build(num_threads=job.workers + 2)
        )
        with pipeline.auto_stop():
            yield from pipeline

    return consumer.passes(job, batches)
