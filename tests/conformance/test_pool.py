"""How full the pool is when batches are cut, and where passes begin and end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pydp2

CONTENTS = [list(range(1000 * i, 1000 * i + size)) for i, size in enumerate([40, 7, 0, 110, 25, 60, 33, 1])]
TOTAL = sum(map(len, CONTENTS))

WEIGHED = """
def weigh(sample):
    return sample[0] % 5

@provider(input_types=[integer_value(40_000)], calc_batch_size=weigh, {arguments})
def process(settings, filename):
    with open(filename) as lines:
        for line in lines:
            yield int(line)
"""


def _weight(contents: Any) -> int:
    return sum(x % 5 for lines in contents for x in lines)


def test_pd_33_by_default_the_first_batch_is_cut_when_every_generator_has_ended(
    provider_file: Any, numbers: Any, text_files: Any, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with pydp2.load(
        text_files(CONTENTS), provider_file(numbers()), args={"log": str(log)}, batch_size=10, workers=2
    ) as data:
        for batch in data:
            assert batch.pool_weight == TOTAL - 10 * batch.index
            if batch.index == 0:
                said = log.read_text().split("\n")
                assert sum(line.startswith("end ") for line in said) == len(CONTENTS)


def test_pd_33_or_when_pool_bytes_are_reached(
    provider_file: Any, numbers: Any, text_files: Any, flat: Any, capfd: Any
) -> None:
    """The limit in bytes beats the levels, with one warning, and loses nothing."""
    with pydp2.load(
        text_files(CONTENTS), provider_file(numbers()), batch_size=10, pool_bytes=4 * 50, workers=2
    ) as data:
        for _ in range(2):
            batches = list(data)
            assert sorted(flat(batches)) == sorted(x for lines in CONTENTS for x in lines)
            assert [b.pool_weight for b in batches][:3] == [50, 50, 50]
            assert max(b.pool_weight for b in batches) == 50
    said = capfd.readouterr().err
    assert said.count("pool_bytes=200 is reached before the pool has its full pool_size") == 1


@pytest.mark.parametrize(
    ("arguments", "levels"),
    [
        ("pool_size=50", [50] * 23),  # M = N: full before each batch
        ("pool_size=50, min_pool_size=20", [20, 30, 40, 50, 50]),
        ("pool_size=50, min_pool_size=80", [50, 50, 50]),
        ("min_pool_size=25", [25, 35, 45]),  # no upper bound: ten more each time, so no batch is delayed
        ("min_pool_size=0", [10, 20, 30]),
        ("min_pool_size=3, pool_size=12", [10, 12, 12]),
    ],
)
def test_pd_34_the_pool_weighs_what_its_level_says_at_each_cut(
    deliver: Any, numbers: Any, text_files: Any, flat: Any, arguments: str, levels: list[int]
) -> None:
    """As long as there is that much."""
    (batches,) = deliver(numbers(arguments), text_files(CONTENTS), shuffle=True, batch_size=10)
    assert sorted(flat(batches)) == sorted(x for lines in CONTENTS for x in lines)
    assert [b.pool_weight for b in batches][: len(levels)] == levels
    left = TOTAL
    for batch in batches:
        assert batch.pool_weight <= left
        left -= batch.size
    assert batches[-1].pool_weight == batches[-1].size


@pytest.mark.parametrize("can_over", [True, False])
@pytest.mark.parametrize(("upper", "lower"), [(60, 35), (60, -1), (-1, 45), (35, 60)])
def test_pd_35_the_waiting_weight_keeps_between_its_bounds(
    deliver: Any, text_files: Any, flat: Any, upper: int, lower: int, can_over: bool
) -> None:
    """At every cut at least min_pool_size or all that is left; never above pool_size - 1 + the heaviest sample."""
    arguments = f"pool_size={upper}, min_pool_size={lower}, can_over_batch_size={can_over}"
    (batches,) = deliver(
        WEIGHED.replace("{arguments}", arguments), text_files(CONTENTS), shuffle=True, batch_size=30, workers=1
    )
    assert sorted(flat(batches)) == sorted(x for lines in CONTENTS for x in lines)
    wanted = upper if lower == -1 else lower if upper == -1 else min(lower, upper)
    left = _weight(CONTENTS)
    for batch in batches:
        assert batch.pool_weight >= min(wanted, left)
        if upper != -1:
            assert batch.pool_weight <= upper - 1 + 4
        left -= batch.size
    assert left == 0


@pytest.mark.parametrize("shuffle", [True, False])
def test_pd_36_a_pool_smaller_than_the_batch_neither_hangs_nor_loses(
    deliver: Any, numbers: Any, text_files: Any, flat: Any, capfd: Any, shuffle: bool
) -> None:
    """It holds a batch then, and one line says so."""
    passes = deliver(numbers("pool_size=3"), text_files(CONTENTS), passes=2, batch_size=64, shuffle=shuffle)
    for batches in passes:
        assert sorted(flat(batches)) == sorted(x for lines in CONTENTS for x in lines)
        assert [len(b) for b in batches] == [64] * (TOTAL // 64) + [TOTAL % 64]
    said = capfd.readouterr().err
    assert said.count("pool_size=3 is smaller than batch_size=64; the pool holds 64 instead") == 1


def test_pd_42_the_last_smaller_batch_is_delivered(deliver: Any, numbers: Any, text_files: Any) -> None:
    first, second = deliver(numbers(), text_files([range(23)]), passes=2, batch_size=10)
    assert [(b.index, len(b), b.size, b.padding) for b in first] == [(0, 10, 10, 0), (1, 10, 10, 0), (2, 3, 3, 0)]
    assert [len(b) for b in second] == [10, 10, 3]


def test_the_last_batch_may_be_dropped_or_padded(provider_file: Any, numbers: Any, text_files: Any) -> None:
    with pydp2.launch(text_files([range(23)]), provider_file(numbers()), is_train=False, workers=1) as service:
        with service.connect(batch_size=10, last_batch="drop") as data:
            assert [len(b) for b in data] == [10, 10]
        with service.connect(batch_size=10, last_batch="pad") as data:
            *_, last = data
    assert (len(last), last.size, last.padding) == (10, 3, 7)
    assert last[0].tolist() == [20, 21, 22] * 3 + [20]


# -- passes -----------------------------------------------------------------------------------------------------------


def test_pd_43_the_end_of_a_pass_stays_until_the_next_is_begun(
    provider_file: Any, numbers: Any, text_files: Any
) -> None:
    with pydp2.load(text_files([range(5)]), provider_file(numbers()), batch_size=3, workers=1) as data:
        for n in range(3):
            one = iter(data)
            assert [(b.pass_id, b.index, len(b)) for b in one] == [(n, 0, 3), (n, 1, 2)]
            for _ in range(3):
                with pytest.raises(StopIteration):
                    next(one)
        assert len(data) == 2


def test_pd_43_a_pass_without_samples_ends_at_once(provider_file: Any, numbers: Any, text_files: Any) -> None:
    with pydp2.load(text_files([[], [], []]), provider_file(numbers()), batch_size=3, workers=2) as data:
        assert [list(data) for _ in range(3)] == [[], [], []]


@pytest.mark.parametrize("arguments", ["pool_size=12", "", "should_shuffle=False"])
def test_pd_47_leaving_a_pass_leaves_nothing_of_it_in_the_next(
    provider_file: Any, numbers: Any, text_files: Any, exact: Any, arguments: str
) -> None:
    """At once, after a batch, with a full pool, shortly before the end: the next pass is what it would have been."""
    files, address = text_files(CONTENTS), provider_file(numbers(arguments))
    with pydp2.launch(files, address, workers=2, memory_limit="1MiB") as service:
        with service.connect(batch_size=10) as data:
            whole = [exact(list(data)) for _ in range(8)]
        with service.connect(batch_size=10, prefetch=3) as data:
            for n in range(8):
                leave_at = [0, 1, None, 5, 26, None, 0, None][n]
                seen = []
                one = iter(data)
                if leave_at is not None:
                    seen = [next(one) for _ in range(leave_at)]
                    one.close()
                else:
                    seen = list(one)
                assert exact(seen) == whole[n][: len(seen)]
                assert leave_at is not None or len(seen) == len(whole[n])


def test_pd_47_a_loop_that_is_left_by_break_is_a_pass_that_was_left(
    provider_file: Any, numbers: Any, text_files: Any, flat: Any
) -> None:
    with pydp2.load(text_files(CONTENTS), provider_file(numbers("pool_size=12")), batch_size=10, workers=2) as data:
        for n in range(5):
            for batch in data:
                assert batch.pass_id == 2 * n
                break
            assert sorted(flat(list(data))) == sorted(x for lines in CONTENTS for x in lines)


def test_pd_57_the_double_buffer_changes_neither_order_nor_content(
    provider_file: Any, numbers: Any, text_files: Any, exact: Any
) -> None:
    """However many batches lie ready, they are the same ones, and none of the next pass is among them."""
    files, address = text_files(CONTENTS), provider_file(numbers("pool_size=40"))
    with pydp2.launch(files, address, workers=2) as service:
        seen = []
        for prefetch in (1, 2, 7, 1000):
            with service.connect(batch_size=10, prefetch=prefetch) as data:
                passes = [list(data) for _ in range(2)]
            assert [[b.pass_id for b in p] for p in passes] == [[n] * len(p) for n, p in enumerate(passes)]
            seen.append([exact(p) for p in passes])
    assert all(other == seen[0] for other in seen[1:])
