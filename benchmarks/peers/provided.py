"""Define the readers as providers of pydp2, each also with a cache. For prepared arrays they yield ``rows()``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import pydp2
from benchmarks import job, prepared
from pydp2 import (
    CacheType,
    Csr,
    Ragged,
    dense_vector,
    integer_value,
    integer_value_sequence,
    provider,
    sparse_binary_vector,
    sparse_float_vector,
)

PICTURE = (job.SIDE, job.SIDE, 3)
TYPES: dict[str, dict[str, Any]] = {
    "mnist_text": {"pixel": dense_vector(784), "label": integer_value(10)},
    "words": {"ids": integer_value_sequence(job.WORDS), "label": integer_value(2)},
    "ctr": {"ids": sparse_binary_vector(1_000_000), "pairs": sparse_float_vector(10_000), "label": integer_value(2)},
    "rows": {"row": dense_vector(1024), "label": integer_value(10)},
    "jpeg": {"picture": dense_vector(job.SIDE**2 * 3, dtype="uint8", shape=PICTURE), "label": integer_value(10)},
}

PREPARED_TYPES: dict[str, dict[str, Any]] = {
    "dense": {"row": dense_vector(20), "label": integer_value(prepared.LABELS)},
    "ragged": {"ids": integer_value_sequence(30_000), "label": integer_value(prepared.LABELS)},
    "sparse": TYPES["ctr"] | {"label": integer_value(prepared.LABELS)},
    "rows_u8": {"row": dense_vector(3072, dtype="uint8"), "label": integer_value(prepared.LABELS)},
    "rows_f32": TYPES["rows"],
    "picture": TYPES["jpeg"],
}


def hook(settings: Any, workload: str, folder: str, **kwargs: Any) -> None:
    job.prepare(settings, workload, folder)
    kind, form = prepared.kind_and_form(workload)
    if form == "blocks":
        settings.parts = [_as_slots(kind, part) for part in prepared.parts(settings.arrays, prepared.block(kind))]


def _as_slots(kind: str, part: job.Batch) -> dict[str, Any]:
    """Return the values for ``rows()``."""
    if kind == "ragged":
        return {"ids": Ragged(part["ids"], part["starts"]), "label": part["label"]}
    if kind == "sparse":
        ids, pairs = TYPES["ctr"]["ids"].dim, TYPES["ctr"]["pairs"].dim
        count = len(part["label"])
        return {
            "ids": Csr(part["starts"], part["ids"], None, (count, ids)),
            "pairs": Csr(part["pair_starts"], part["indices"], part["values"], (count, pairs)),
            "label": part["label"],
        }
    return part


def _blocks(settings: Any, filename: str) -> Iterator[Any]:
    for _ in range(settings.times):
        for part in settings.parts:
            yield pydp2.rows(**part)


@provider(input_types=TYPES["rows"], init_hook=hook, pool_size=job.WORKLOADS["rows"].pool)
def rows_in_blocks(settings: Any, filename: str) -> Iterator[Any]:
    """Yield the files of the workload ``rows`` as a user with arrays would yield them."""
    array = np.load(filename, mmap_mode="r")
    block = prepared.block("rows")
    for first in range(0, len(array), block):
        part = array[first : first + block]
        yield pydp2.rows(row=part, label=np.arange(first, first + len(part)) % 10)


def _provider(name: str, cache: int) -> Any:
    workload = (job.WORKLOADS | job.PREPARED)[name]
    types = TYPES[name] if name in TYPES else PREPARED_TYPES[prepared.kind_and_form(name)[0]]
    read = _blocks if workload.finished else workload.read
    return provider(input_types=types, init_hook=hook, pool_size=workload.pool, cache=cache)(read)


for _name in (*TYPES, *job.PREPARED):
    globals()[_name] = _provider(_name, CacheType.NO_CACHE)
    globals()[f"{_name}_cached"] = _provider(_name, CacheType.CACHE_PASS_IN_MEM)
