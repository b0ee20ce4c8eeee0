"""Rows that are large for what a service may have: it serves them, without what has no room."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import pydp2
from pydp2.data.rowstore.region import ROW_OVERHEAD, RegionLayout
from pydp2.data.schema.input_types import Slots, dense_vector
from pydp2.errors import OptionError

WIDE = """
import numpy as np

@provider(input_types=[dense_vector({floats}), integer_value(100)], cache={cache})
def process(settings, filename):
    for y in range(3):
        yield np.full({floats}, 10 * int(filename) + y, "f"), 10 * int(filename) + y
"""
MB = 1 << 20
ROW = 4 * MB + 4  # bytes of a sample of 1 << 20 floats and an index


def rows(data: pydp2.Client) -> list[Any]:
    """The index of each sample of a pass, once its floats are found to agree with it."""
    found = []
    for batch in data:
        assert (batch[0] == batch[1][:, None]).all()
        found.append(batch[1].tolist())
    return found


LIMITS = {"1 MiB": MB, "a row": 4 * MB, "just below two": 2 * (ROW + ROW_OVERHEAD) - 2}


@pytest.mark.parametrize(
    ("limit", "cache"),
    [
        *(pytest.param(limit, 1, id=f"{name}-memory") for name, limit in LIMITS.items()),
        *(
            pytest.param(limit, 3, id=f"{name}-memory and disk", marks=() if name == "1 MiB" else pytest.mark.slow)
            for name, limit in LIMITS.items()
        ),
    ],
)
def test_a_row_that_the_cache_has_no_room_for_is_served_without_it(
    cache: int, limit: int, provider_file: Callable[[str], str], capfd: pytest.CaptureFixture[str]
) -> None:
    how: dict[str, Any] = {"batch_size": 2, "workers": 2, "seed": 3, "pool_bytes": 64 * MB}
    with pydp2.load(["1", "2"], provider_file(WIDE.format(floats=1 << 20, cache=0)), **how) as data:
        expected = [rows(data) for _ in range(2)]
    capfd.readouterr()
    with pydp2.load(
        ["1", "2"], provider_file(WIDE.format(floats=1 << 20, cache=cache)), memory_limit=limit, **how
    ) as data:
        assert [rows(data) for _ in range(2)] == expected
    said = [line for line in capfd.readouterr().err.splitlines() if "the cache in memory" in line]
    assert said == [
        "pydp2: cache: the cache in memory cannot keep a single sample: one needs at least "
        f"{ROW + ROW_OVERHEAD} bytes, and the cache may have {limit - limit // 2} of memory_limit={limit}; every "
        f"pass reads its files again; raise memory_limit to {2 * (ROW + ROW_OVERHEAD)} or more"
    ]


def test_with_the_limit_that_the_warning_names_a_sample_is_kept(
    provider_file: Callable[[str], str], capfd: pytest.CaptureFixture[str]
) -> None:
    provider = provider_file(WIDE.format(floats=1 << 20, cache=1).replace("range(3)", "range(1)"))
    with pydp2.load(["1"], provider, batch_size=2, workers=1, memory_limit=2 * (ROW + ROW_OVERHEAD)) as data:
        assert [rows(data) for _ in range(2)] == [[[10]], [[10]]]
        assert data.stats()["cache"]["files"] == 1
    assert "the cache in memory" not in capfd.readouterr().err


def test_rows_of_all_sizes_are_served_under_the_smallest_limit(provider_file: Callable[..., str]) -> None:
    for floats in (1, 255, 256, 1 << 17, (1 << 17) + 1, 1 << 19):
        for cache in (0, 1):
            provider = provider_file(WIDE.format(floats=floats, cache=cache))
            with pydp2.load(
                ["1", "2"], provider, batch_size=4, workers=2, memory_limit=MB, shuffle=False, pool_bytes=64 * MB
            ) as data:
                assert [rows(data) for _ in range(2)] == [[[10, 11, 12, 20], [21, 22]]] * 2, (floats, cache)


@pytest.mark.parametrize("limit", [1 << 45, (1 << 62) - 1, 1 << 62, 1 << 70])
@pytest.mark.parametrize("cache", [0, 1])
def test_a_limit_beyond_the_machine_is_refused_before_anything_starts(
    limit: int, cache: int, provider_file: Callable[[str], str]
) -> None:
    text = rf"memory_limit={limit} needs about \d+ bytes, and there are \d+ bytes"
    if limit >= 1 << 62:
        text = rf"memory_limit must be at most \d+ bytes, got {limit}"
    with pytest.raises(OptionError, match=text):
        pydp2.launch(["1"], provider_file(WIDE.format(floats=256, cache=cache)), memory_limit=limit)


def test_where_a_single_row_is_larger_than_its_memory_the_layout_has_none() -> None:
    layout = RegionLayout(Slots((dense_vector(1 << 20),)), 4 * MB)
    assert (layout.max_rows, layout.size) == (0, 0)
    assert layout.min_row_bytes == 4 * MB + ROW_OVERHEAD
