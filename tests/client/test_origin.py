"""``batch.origin``: from which sample of which list entry each row of a batch is, however the batch was made."""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import pydp2
from pydp2.errors import OptionError

FILES = [f"file {n}" for n in range(5)]
COUNT = 60  # samples of a file

CODE = """
@provider(input_types={{"entry": integer_value(10), "sample": integer_value(1000), "x": {slot}}}{options})
def process(settings, filename):
    entry = int(filename.split()[1])
    for i in range(60):
        {before}yield {{"entry": entry, "sample": i, "x": {value}}}
"""
BLOCKS = """
import numpy
from pydp2 import rows

@provider(input_types={"entry": integer_value(10), "sample": integer_value(1000), "x": dense_vector(3)})
def process(settings, filename):
    for at in range(0, 60, 20):
        index = numpy.arange(at, at + 20)
        yield rows(entry=numpy.full(20, int(filename.split()[1])), sample=index, x=numpy.ones((20, 3), "f4"))
"""


def code(options: str = "", slot: str = "dense_vector(3)", value: str = "[1, 2, 3]", before: str = "") -> str:
    return CODE.format(options=options, slot=slot, value=value, before=before)


def check(batch: pydp2.Batch) -> list[tuple[int, int]]:
    """The origins of a batch, which its slots say too; without padding."""
    origin = batch.origin
    assert {origin.entry.dtype, origin.sample.dtype} == {np.dtype(np.int64)}
    assert origin.source is None
    assert origin.entry.tolist() == batch["entry"].tolist()  # type: ignore[union-attr]
    assert origin.sample.tolist() == batch["sample"].tolist()  # type: ignore[union-attr]
    rows = len(batch) - batch.padding
    return list(zip(origin.entry[:rows].tolist(), origin.sample[:rows].tolist(), strict=True))


EVERYTHING = [(n, i) for n in range(len(FILES)) for i in range(COUNT)]


@pytest.mark.parametrize(
    ("provider", "options"),
    [
        (code(", pool_size=64"), {}),
        (code(), {"shuffle": False}),
        (code(), {"order": "relaxed"}),
        (code(), {"last_batch": "pad"}),
        (code(", cache=CacheType.CACHE_PASS_IN_MEM"), {}),
        (code(", cache=CacheType.CACHE_PASS_IN_MEM"), {"shuffle": False}),
        (code(", calc_batch_size=lambda sample: 1 + sample[1] % 3"), {}),
        (code(", calc_batch_size=lambda sample: 1 + sample[1] % 3"), {"last_batch": "pad", "seed": 3}),
        (code(slot="dense_vector_sequence(1)", value="[[0]] * (1 + i % 7)"), {"bucket_by": "x", "bucket_bounds": [4]}),
        (code(slot="dense_vector(30000)", value="[0] * 30000"), {"memory_limit": "64MiB"}),
        (BLOCKS, {}),
    ],
    ids=["pool", "order", "relaxed", "pad", "cache", "cache 0", "weights", "weights pad", "buckets", "large", "blocks"],
)
def test_each_row_says_which_sample_it_is(
    provider_file: Callable[[str], str], provider: str, options: dict[str, Any]
) -> None:
    with pydp2.load(FILES, provider_file(provider), batch_size=32, workers=2, origin=True, **options) as data:
        for _ in range(2):
            assert sorted(row for batch in data for row in check(batch)) == EVERYTHING
        assert [data.files[n] for n in range(len(FILES))] == FILES


def test_dropped_samples_count(provider_file: Callable[[str], str]) -> None:
    provider = code(", check=True, check_fail_continue=True", value="[1.0, 2.0, 3.0][: 2 + (i % 4 > 0)]")
    with pydp2.load(FILES, provider_file(provider), batch_size=7, workers=1, origin=True) as data:
        found = sorted(row for batch in data for row in check(batch))
    assert found == [(n, i) for n, i in EVERYTHING if i % 4]


def test_the_order_and_the_states_are_those_without_origins(provider_file: Callable[[str], str]) -> None:
    options: dict[str, Any] = {"provider": provider_file(code(", pool_size=64")), "batch_size": 8, "workers": 2}
    with pydp2.load(FILES, **options) as plain:
        uninterrupted = [(batch["entry"].tolist(), batch["sample"].tolist()) for batch in plain]  # type: ignore[union-attr]
    with pydp2.load(FILES, **options, origin=True) as data:
        found = []
        for batch in data:
            check(batch)
            found.append((batch["entry"].tolist(), batch["sample"].tolist()))  # type: ignore[union-attr]
            if batch.index == 20:
                state = data.state_dict()
    assert found == uninterrupted
    with pydp2.load(FILES, **options) as plain:
        plain.load_state_dict(state)
        assert [batch["sample"].tolist() for batch in plain] == [sample for _, sample in uninterrupted[21:]]  # type: ignore[union-attr]
    with pydp2.load(FILES, **options, origin=True) as data:
        data.load_state_dict(state)
        assert [row for batch in data for row in check(batch)] == [
            row for entry, sample in uninterrupted[21:] for row in zip(entry, sample, strict=True)
        ]


@pytest.mark.parametrize("options", [{"last_batch": "pad"}, {"last_batch": "drop"}, {"share": "dynamic"}])
def test_ranks_have_the_origins_of_their_own_rows(provider_file: Callable[[str], str], options: dict[str, Any]) -> None:
    ranks = 1 if options.get("share") == "dynamic" else 3
    with pydp2.launch(FILES, provider_file(code(", pool_size=64")), workers=2) as service:

        def read(rank: int) -> list[tuple[int, int]]:
            place = {} if ranks == 1 else {"rank": rank, "world_size": ranks}
            with service.connect(batch_size=7, origin=True, **place, **options) as client:
                return [row for batch in client for row in check(batch)]

        with ThreadPoolExecutor(3) as pool:
            found = sorted(row for rows in pool.map(read, range(3)) for row in rows)
    assert len(found) == len(set(found))
    assert found == EVERYTHING or options.get("last_batch") == "drop"
    assert len(found) >= len(EVERYTHING) - 3 * 7


def test_a_batch_without_origins_says_how_to_get_them(provider_file: Callable[[str], str]) -> None:
    with pydp2.load(FILES, provider_file(code()), batch_size=32, workers=1) as data:
        batch = next(iter(data))
        with pytest.raises(OptionError, match=r"batch\.origin needs origin=True, and this stream was opened without"):
            batch.origin  # noqa: B018  # it raises


def test_a_copy_of_a_batch_keeps_its_origins(provider_file: Callable[[str], str]) -> None:
    with pydp2.load(FILES, provider_file(code()), batch_size=32, workers=1, origin=True) as data:
        batch = next(iter(data))
    assert check(copy.deepcopy(batch)) == check(batch)
    assert repr(batch.origin) == "<Origin of 32 rows>"


def test_all_ranks_of_a_job_ask_for_origins_or_none(provider_file: Callable[[str], str]) -> None:
    with (
        pydp2.launch(FILES, provider_file(code()), workers=1) as service,
        service.connect(batch_size=8, origin=True, rank=0, world_size=2),
        pytest.raises(OptionError, match="origin is True there, False here"),
    ):
        service.connect(batch_size=8, rank=1, world_size=2)
