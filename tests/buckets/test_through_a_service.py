"""Batches of samples alike in length, through whole services, on real sentences."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from typing import Any

import numpy as np
import pydp2_samples
import pytest

import pydp2
from pydp2.client.saved_state import seal
from pydp2.errors import OptionError, StateMismatch

from ..provider_code import lines

SET: dict[str, Any] = {"root": pydp2_samples.path("sequence"), "args": {"dictionary": "dictionary.txt"}, "seed": 1}
Seen = tuple[int, int, int, int | None, int]


def load(**options: Any) -> pydp2.Client:
    chosen = {"batch_size": 32, "workers": 2} | options
    return pydp2.load("train.list", "sequence_provider.process", **SET, **chosen)


def lengths(batch: pydp2.Batch) -> Any:
    return np.diff(batch["words"].sequence_start_positions)  # type: ignore[union-attr]


def sign(batch: pydp2.Batch) -> Seen:
    values = batch["words"].values  # type: ignore[union-attr]
    return batch.pass_id, batch.index, len(batch), batch.bucket, zlib.crc32(np.ascontiguousarray(values).tobytes())


def waste(batches: list[Any]) -> float:
    return 1 - sum(int(each.sum()) for each in batches) / sum(len(each) * int(each.max()) for each in batches)


def sentences() -> list[int]:
    with load() as data:
        return sorted(int(length) for batch in data for length in lengths(batch))


@pytest.mark.parametrize("options", [{}, {"shuffle": False}, {"order": "relaxed"}, {"last_batch": "pad"}])
def test_a_batch_has_sentences_up_to_its_bound_and_none_of_a_shorter_bucket(options: dict[str, Any]) -> None:
    bounds = [8, 16, 32]
    with load(bucket_by="words", bucket_bounds=bounds, **options) as data:
        found = []
        for batch in data:
            above = [bound for bound in bounds if bound < (batch.bucket or 1000)]
            assert lengths(batch).min() > (above[-1] if above else -1)
            assert batch.bucket is None or lengths(batch).max() <= batch.bucket
            assert batch["words"].pad(length=batch.bucket)[0].shape[1] == (batch.bucket or lengths(batch).max())  # type: ignore[union-attr]
            found += lengths(batch)[: len(batch) - batch.padding].tolist()
            assert len(batch) == 32 or options.get("last_batch") != "pad"
    assert sorted(found) == sentences()


@pytest.mark.parametrize("last_batch", ["pad", "keep"])
def test_all_ranks_know_the_greatest_bound_of_a_step(last_batch: str) -> None:
    """The last batches of a pass come from different buckets in one step: all of them can be padded alike."""
    job: dict[str, Any] = {"batch_size": 32, "seed": 1, "last_batch": last_batch}
    buckets = {"bucket_by": "words", "bucket_bounds": [8, 16, 32]}

    def read(address: str, rank: int) -> list[tuple[int, int | None, int | None]]:
        with pydp2.connect(address, rank=rank, world_size=3, **job, **buckets) as data:
            return [(batch.index, batch.bucket, batch.group_bucket) for batch in data]

    files = {name: value for name, value in SET.items() if name != "seed"}
    with pydp2.launch("train.list", "sequence_provider.process", **files, workers=1) as service:
        with ThreadPoolExecutor() as pool:
            of_ranks = list(pool.map(lambda rank: read(service.address, rank), range(3)))
        with service.connect(**job, **buckets, job="alone") as data:
            assert all(batch.group_bucket == batch.bucket for batch in data)
    steps = [[one for one in step if one] for step in zip_longest(*of_ranks)]
    assert any(len({bucket for _, bucket, _ in step}) > 1 for step in steps), "else there is nothing to see"
    for step in steps:
        bounds = [bucket for _, bucket, _ in step]
        assert {group for _, _, group in step} == {None if None in bounds else max(filter(None, bounds))}


def test_buckets_leave_little_padding_and_the_service_says_how_much(capfd: pytest.CaptureFixture[str]) -> None:
    with load() as data:
        without = waste([lengths(batch) for batch in data])
        assert data.stats()["padding"] == {}
    assert "padding" not in capfd.readouterr().err
    with load(bucket_by="words") as data:
        batches = [lengths(batch) for batch in data]
        figures = data.stats()["padding"]
    assert without > 0.5
    assert waste(batches) < 0.2
    assert figures["share"] == pytest.approx(waste(batches))
    assert figures["slot"] == "words"
    said = f"pass 0: words padded to the longest of each batch is {waste(batches):.1%} padding"
    assert said in capfd.readouterr().err


def test_the_buckets_are_the_same_for_any_number_of_workers_and_in_every_pass() -> None:
    seen = []
    for workers in (1, 3):
        with load(bucket_by="words", workers=workers) as data:
            seen.append([[sign(batch) for batch in data] for _ in range(2)])
            assert data.state_dict()["buckets"] == {"bounds": sorted({b[3] for b in seen[0][0] if b[3] is not None})}
    assert seen[0] == seen[1]
    assert {batch[3] for batch in seen[0][0]} == {batch[3] for batch in seen[0][1]}
    assert seen[0][0] != seen[0][1]


@pytest.mark.parametrize(
    "options",
    [
        {"bucket_bounds": [8, 16, 32]}, {"shuffle": False}, {"last_batch": "pad", "num_buckets": 3},
        *(pytest.param(each, marks=pytest.mark.slow) for each in ({}, {"last_batch": "drop"})),
    ],
)  # fmt: skip
def test_what_follows_a_restore_is_what_would_have_followed_also_in_the_tail(options: dict[str, Any]) -> None:
    states, seen = [], []
    with load(bucket_by="words", **options) as data:
        for _ in range(2):
            states.append((len(seen), json.dumps(data.state_dict())))
            for batch in data:
                seen.append(sign(batch))
                states.append((len(seen), json.dumps(data.state_dict())))
        last = next(i for i, (k, _) in enumerate(states) if k and seen[k - 1][0] == 0 and seen[k][0] == 1)
        for k, state in (states[1], states[last - 3], states[last], states[last + 1], states[last + 9], states[7]):
            data.load_state_dict(json.loads(state))
            assert list(_rest(data, len(seen) - k)) == seen[k:], f"from batch {k}"
    k, state = states[last + 4]
    with load(bucket_by="words", workers=3, **options) as data:
        data.load_state_dict(json.loads(state))
        assert list(_rest(data, len(seen) - k)) == seen[k:]


def _rest(data: pydp2.Client, count: int) -> Iterator[Seen]:
    while count > 0:
        for batch in data:
            yield sign(batch)
            count -= 1


def test_a_bounded_pool_goes_on_from_its_snapshot_points(
    provider_file: Callable[..., str], text_files: Callable[..., list[str]]
) -> None:
    code = lines("pool_size=300", slot="integer_value_sequence(1000)", sample="[int(line)] * (int(line) * 7919 % 50)")
    files = text_files([[i % 1000 for i in range(f, f + 300)] for f in range(12)])
    job: dict[str, Any] = {"batch_size": 16, "bucket_by": 0, "num_buckets": 4}

    def crc(batch: pydp2.Batch) -> int:
        return zlib.crc32(np.ascontiguousarray(batch[0].values).tobytes())  # type: ignore[union-attr]

    address = provider_file(code)
    with pydp2.load(files, address, workers=2, **job) as data:
        seen, states = [], []
        for batch in data:
            seen.append(crc(batch))
            states.append(json.dumps(data.state_dict()))
    assert any(json.loads(state)["point"] and not json.loads(state)["point"]["ended"] for state in states)
    with pydp2.load(files, address, workers=1, **job) as data:
        for k in (50, 130, len(seen) - 30, len(seen) - 2):
            data.load_state_dict(json.loads(states[k]))
            assert [crc(batch) for batch in data] == seen[k + 1 :]


def test_a_state_of_other_buckets_is_refused_and_the_text_says_what_differs() -> None:
    with load(bucket_by="words") as data:
        next(iter(data))
        state = data.state_dict()
    for options, says in (
        ({}, "bucket_by was 'words', is None"),
        ({"bucket_by": "words", "bucket_bounds": [8]}, r"bucket_bounds was None, is \[8\]; num_buckets was 8, is None"),
        ({"bucket_by": "words", "num_buckets": 4}, "num_buckets was 8, is 4"),
    ):
        with load(**options) as data, pytest.raises(StateMismatch, match=says):
            data.load_state_dict(state)
    with load(bucket_by="words") as data:
        with pytest.raises(StateMismatch, match="damaged"):
            data.load_state_dict(state | {"buckets": {"bounds": "x"}})
        data.load_state_dict(seal(state | {"buckets": {"bounds": [9, 3], "group": 1}}))
        with pytest.raises(StateMismatch, match="the buckets in the state cannot be read"):  # the service sees it
            next(iter(data))


def test_with_weights_a_batch_has_a_budget_of_tokens_and_short_sequences_come_in_more_rows(
    provider_file: Callable[..., str], text_files: Callable[..., list[str]]
) -> None:
    code = """
@provider(input_types={"words": integer_value_sequence(1000)}, calc_batch_size=lambda s: len(s[0]), pool_size=4000,
          can_over_batch_size=False)
def process(settings, filename):
    with open(filename) as lines:
        for line in lines:
            yield {"words": [int(line)] * (1 + int(line) % 20)}
"""
    files = text_files([list(range(f, f + 300)) for f in range(4)])
    with pydp2.load(
        files, provider_file(code), batch_size=100, bucket_by="words", bucket_bounds=[5, 10], workers=2
    ) as data:
        batches = [(batch.bucket, batch.size, len(batch)) for batch in data]
    assert sum(rows for _, _, rows in batches) == 1200
    assert max(size for _, size, _ in batches) <= 100
    full = [batch for batch in batches if batch[1] > 80]
    assert len(full) >= len(batches) - 3
    assert min(rows for bucket, _, rows in full if bucket == 5) > max(
        rows for bucket, _, rows in full if bucket is None
    )


def test_a_slot_that_cannot_be_gone_by_is_refused_when_the_trainer_asks_for_it() -> None:
    with pytest.raises(OptionError, match=r"bucket_by='label' must be a slot of sequences.*such slots here: words"):
        load(bucket_by="label")


def test_a_cached_pass_has_the_buckets_of_a_pass_that_is_read_again(
    provider_file: Callable[..., str], text_files: Callable[..., list[str]]
) -> None:
    code = """
@provider(input_types=[integer_value_sequence(1000)], cache=CacheType.{})
def process(settings, filename):
    with open(filename) as lines:
        for line in lines:
            yield [int(line)] * (int(line) % 9)
"""
    files = text_files([list(range(f, f + 50)) for f in range(6)])
    seen = []
    for cache in ("NO_CACHE", "CACHE_PASS_IN_MEM"):
        with pydp2.load(files, provider_file(code.format(cache)), batch_size=8, bucket_by=0, workers=2) as data:
            seen.append([[(batch.bucket, batch[0].values.tolist()) for batch in data] for _ in range(2)])  # type: ignore[union-attr]
    assert seen[0] == seen[1]
