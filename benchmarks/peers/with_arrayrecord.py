"""Grain over ArrayRecord files: random access, a global shuffle of all samples, ``mp_prefetch``.

A record consists of the label and the row. A group has one record, which Grain's documentation recommends for random
access. The workers read without threads, which was two to seven times as fast here as with 1 to 16 threads.
"""

from __future__ import annotations

import struct
from importlib.metadata import version
from pathlib import Path
from typing import Any

import grain
import numpy as np
from absl import flags
from array_record.python.array_record_module import ArrayRecordWriter

from benchmarks import consumer
from benchmarks.job import BATCH, Job
from benchmarks.peers import native

_LABEL = struct.Struct("<q")


def versions() -> dict[str, str]:
    return {"grain": version("grain"), "array-record": version("array_record"), "numpy": np.__version__}


def _write(job: Job, folder: Path) -> None:
    writer = ArrayRecordWriter(str(folder / "data.arrayrecord"), "group_size:1,uncompressed")
    for value, label in native.stored(job):
        writer.write(_LABEL.pack(label) + bytes(value))
    writer.close()


def _sample(record: bytes) -> tuple[np.ndarray, int]:
    return np.frombuffer(record, np.float32, offset=_LABEL.size), _LABEL.unpack_from(record)[0]


def measure(job: Job) -> list[dict]:
    flags.FLAGS(["grain"])
    folder = native.converted(job, "arrayrecord", lambda folder: _write(job, folder))
    source = grain.sources.ArrayRecordDataSource(str(folder / "data.arrayrecord"))
    seeds = iter(range(1, job.passes + 1))

    def batches() -> Any:
        samples = grain.MapDataset.source(source).shuffle(seed=next(seeds)).map(_sample)
        joined = samples.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)).batch(
            BATCH, drop_remainder=False, batch_fn=job.kind.collate
        )
        return joined.mp_prefetch(grain.MultiprocessingOptions(num_workers=job.workers, per_worker_buffer_size=4))

    return consumer.passes(job, batches)
