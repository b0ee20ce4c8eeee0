"""The readers as pydp2's providers; of each there is one with a cache."""

from __future__ import annotations

from typing import Any

from benchmarks import job
from pydp2 import (
    CacheType,
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


def hook(settings: Any, workload: str, folder: str, **kwargs: Any) -> None:
    job.prepare(settings, workload, folder)


def _provider(name: str, cache: int) -> Any:
    workload = job.WORKLOADS[name]
    return provider(input_types=TYPES[name], init_hook=hook, pool_size=workload.pool, cache=cache)(workload.read)


for _name in TYPES:
    globals()[_name] = _provider(_name, CacheType.NO_CACHE)
    globals()[f"{_name}_cached"] = _provider(_name, CacheType.CACHE_PASS_IN_MEM)
