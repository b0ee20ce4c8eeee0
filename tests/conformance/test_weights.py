"""``calc_batch_size``: what it is given, what its result does to batches, and results that cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pydp2
from pydp2.errors import ProviderError, SampleTooLarge

CONTENTS = [list(range(100 * i, 100 * i + size)) for i, size in enumerate([40, 7, 0, 61, 25])]
ALL = sorted(x for lines in CONTENTS for x in lines)

WEIGHED = """
def weigh(sample):
    return {weight}

@provider(input_types=[integer_value(40_000)], calc_batch_size=weigh, {arguments})
def process(settings, filename):
    with open(filename) as lines:
        for line in lines:
            yield int(line)
"""


def weighed(weight: str, arguments: str = "") -> str:
    return WEIGHED.replace("{weight}", weight).replace("{arguments}", arguments)


def test_pd_37_a_single_slot_is_weighed_as_a_list_of_one(deliver: Any) -> None:
    code = """
    def weigh(sample):
        assert type(sample) is list and len(sample) == 1
        return len(sample[0])

    @provider(input_types=[integer_value_sequence(10)], calc_batch_size=weigh)
    def process(settings, filename):
        yield from ([1], [2, 2], [3, 3, 3], [], [4, 4])
    """
    (batches,) = deliver(code, batch_size=3)
    assert [(len(b), b.size) for b in batches] == [(2, 3), (1, 3), (2, 2)]


def test_pd_37_named_slots_are_weighed_by_position(deliver: Any) -> None:
    code = """
    def weigh(sample):
        a, b = sample
        return b

    @provider(input_types={"a": integer_value(10), "b": integer_value(10)}, calc_batch_size=weigh)
    def process(settings, filename):
        yield {"b": 3, "a": 9}
        yield 9, 4
    """
    (batches,) = deliver(code, batch_size=7)
    assert [b.size for b in batches] == [7]


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("pool", ["", "pool_size=30, min_pool_size=12"])
def test_pd_38_no_batch_is_heavier_than_asked_where_it_may_not_be(
    deliver: Any, text_files: Any, flat: Any, shuffle: bool, pool: str
) -> None:
    code = weighed("sample[0] % 7", f"can_over_batch_size=False, {pool}")
    for batches in deliver(code, text_files(CONTENTS), passes=2, batch_size=10, shuffle=shuffle, workers=1):
        assert sorted(flat(batches)) == ALL
        assert all(b.size == sum(x % 7 for x in b[0].tolist()) <= 10 for b in batches)
        assert any(b.size < 10 for b in batches[:-1])  # a sample was refused, and came later


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("pool", ["", "pool_size=30, min_pool_size=12"])
def test_pd_39_a_batch_exceeds_by_less_than_its_last_sample(
    deliver: Any, text_files: Any, flat: Any, shuffle: bool, pool: str
) -> None:
    code = weighed("sample[0] % 7", pool)
    for batches in deliver(code, text_files(CONTENTS), passes=2, batch_size=10, shuffle=shuffle, workers=1):
        assert sorted(flat(batches)) == ALL
        for batch in batches[:-1]:
            *before, last = (x % 7 for x in batch[0].tolist())
            assert sum(before) < 10 <= sum(before) + last == batch.size
        assert any(b.size > 10 for b in batches)


@pytest.mark.parametrize("shuffle", [True, False])
def test_pd_40_a_sample_heavier_than_the_batch_raises_where_it_may_not_exceed(
    deliver: Any, text_files: Any, shuffle: bool
) -> None:
    files = text_files([[1, 2, 3, 50, 4]])
    with pytest.raises(SampleTooLarge, match=r"part-00000.txt, sample 3: calc_batch_size gave 50, a batch holds 10"):
        deliver(weighed("sample[0]", "can_over_batch_size=False"), files, batch_size=10, shuffle=shuffle)
    assert issubclass(SampleTooLarge, ValueError)
    (batches,) = deliver(weighed("sample[0]"), files, batch_size=10, shuffle=shuffle)
    assert sum(b.size for b in batches) == 60


def test_pd_41_the_size_of_a_batch_is_its_weight_and_len_its_rows(deliver: Any, text_files: Any) -> None:
    (batches,) = deliver(weighed("sample[0]"), text_files([[5, 5, 3, 3, 4, 1]]), batch_size=10)
    assert [(len(b), b.size) for b in batches] == [(2, 10), (3, 10), (1, 1)]


def test_pd_41_samples_of_weight_zero_come_along_without_counting(deliver: Any, text_files: Any) -> None:
    """A rest of nothing but such samples is a last batch of size 0, not lost."""
    files = text_files([[0, 5, 0, 5, 0, 0, 7, 3, 0, 0]])
    (batches,) = deliver(weighed("sample[0]"), files, batch_size=10)
    assert [(b[0].tolist(), b.size) for b in batches] == [([0, 5, 0, 5], 10), ([0, 0, 7, 3], 10), ([0, 0], 0)]
    (batches,) = deliver(weighed("0"), files, batch_size=10, shuffle=True)
    assert [(sorted(b[0].tolist()), b.size) for b in batches] == [([0, 0, 0, 0, 0, 0, 3, 5, 5, 7], 0)]


def test_pd_42_a_last_lighter_batch_is_delivered(deliver: Any, text_files: Any) -> None:
    (batches,) = deliver(weighed("2"), text_files([range(13)]), batch_size=10, shuffle=True)
    assert [(len(b), b.size) for b in batches] == [(5, 10), (5, 10), (3, 6)]


def test_bad_samples_are_not_weighed(deliver: Any, text_files: Any, tmp_path: Path, flat: Any) -> None:
    """calc_batch_size sees accepted samples only, each once, also those between bad ones."""
    code = """
    def weigh(sample):
        with open("weighed", "a") as log:
            log.write(f"{sample[0]} ")
        return 2

    @provider(input_types=[integer_value(10)], calc_batch_size=weigh, check=True, check_fail_continue=True)
    def process(settings, filename):
        yield from (1, 10, "2", 3, None, 4, 4.0, -1, 5)
    """
    (batches,) = deliver(code, batch_size=4, root=tmp_path)
    assert [(b[0].tolist(), b.size) for b in batches] == [([1, 3], 4), ([4, 5], 4)]
    assert (tmp_path / "weighed").read_text().split() == ["1", "3", "4", "5"]


@pytest.mark.parametrize(
    ("weight", "kind", "words"),
    [
        ("-1 if sample[0] == 3 else 1", ValueError, "calc_batch_size must return a weight from 0 to"),
        ("1.5 if sample[0] == 3 else 1", TypeError, r"calc_batch_size must return a whole number, got 1.5 \(float\)"),
        ("None if sample[0] == 3 else 1", TypeError, "calc_batch_size must return a whole number, got None"),
        ("{0: 1, 1: 1, 2: 1}[sample[0]]", KeyError, "calc_batch_size raised KeyError"),
    ],
)
def test_a_weight_that_cannot_be_is_an_error_at_its_sample(
    provider_file: Any, text_files: Any, until_error: Any, weight: str, kind: type[Exception], words: str
) -> None:
    with pydp2.load(
        text_files([range(6)]), provider_file(weighed(weight)), is_train=False, batch_size=2, workers=1
    ) as data:
        batches, error = until_error(data)
    assert [b[0].tolist() for b in batches] == [[0, 1]]
    assert isinstance(error, ProviderError)
    assert isinstance(error, kind)
    with pytest.raises(ProviderError, match=rf"part-00000.txt, sample 3.*{words}"):
        raise error


def test_a_sample_that_cannot_be_weighed_is_not_delivered_where_errors_are_skipped(
    deliver: Any, text_files: Any, flat: Any
) -> None:
    code = weighed("{0: 1, 1: 1, 2: 1}[sample[0] % 100]")
    (batches,) = deliver(code, text_files([range(6), range(100, 103)]), on_error="skip")
    assert flat(batches) == [0, 1, 2, 100, 101, 102]


def test_numbers_of_numpy_and_bools_are_weights(deliver: Any, text_files: Any) -> None:
    code = "import numpy as np\n" + weighed("np.int32(3) if sample[0] else True")
    (batches,) = deliver(code, text_files([[0, 1, 1]]), batch_size=7)
    assert [b.size for b in batches] == [7]


def test_something_that_cannot_be_called_is_ignored_with_a_warning(deliver: Any, text_files: Any, capfd: Any) -> None:
    code = "weigh = 7\n" + WEIGHED.partition("\n\n")[2].replace("{arguments}", "")
    (batches,) = deliver(code, text_files([range(6)]), batch_size=4)
    assert [(len(b), b.size) for b in batches] == [(4, 4), (2, 2)]
    assert "calc_batch_size must be a function, got 7 (int): ignored" in capfd.readouterr().err
