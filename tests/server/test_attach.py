"""What a job needs of the memory that there is, before it begins."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pydp2.data.schema.input_types import Slots, dense_vector
from pydp2.data.schema.provider_schema import Schema
from pydp2.errors import OptionError
from pydp2.options.tables import job_options
from pydp2.server.available_memory import AvailableMemory
from pydp2.server.gateway.attach import check_memory

MB = 1 << 20
LARGE = Schema(
    slots=Slots((dense_vector(MB // 4),)), shuffle=False, pool_size=100, min_pool_size=-1, weighted=False,
    can_over_batch_size=True, cache=0, check=False, check_fail_continue=False,
)  # fmt: skip
SPEC: Any = SimpleNamespace(memory_limit=32 * MB, workers=2)


def needed(schema: Schema, batches: int, **options: Any) -> int:
    """The bytes beside pool and memory_limit that a job of 4 MiB a batch is said to need."""
    given = job_options(batch_size=4, pool_bytes=100 * MB, prefetch=batches, **options)
    with pytest.raises(OptionError) as refused:
        check_memory("default", given, {}, SPEC, AvailableMemory(MB, "of this machine"), schema)
    found = re.search(r"with (\d+) bytes for workers=2, batches under way and room in pools", str(refused.value))
    assert found is not None
    return int(found[1])


def test_each_batch_that_is_asked_for_ahead_needs_its_bytes() -> None:
    assert needed(LARGE, 5) - needed(LARGE, 2) == 3 * 4 * MB


def test_batches_of_samples_without_cells_need_their_bytes_twice() -> None:
    """The server keeps the samples of a batch beside the batch itself."""
    cached = replace(LARGE, cache=1)
    assert needed(cached, 5) - needed(cached, 2) == 2 * 3 * 4 * MB
    assert needed(cached, 1) - needed(LARGE, 1) == (4 + 1) * 4 * MB


def test_a_job_that_fits_is_not_refused() -> None:
    given = job_options(batch_size=4, pool_bytes=100 * MB, prefetch=2)
    have = 32 * MB + 100 * MB + needed(LARGE, 2)
    check_memory("default", given, {}, SPEC, AvailableMemory(have, "of this machine"), LARGE)
    with pytest.raises(OptionError, match="together exceed the"):
        check_memory("default", given, {}, SPEC, AvailableMemory(have - 1, "of this machine"), LARGE)
