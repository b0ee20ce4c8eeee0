"""CACHE_PASS_IN_MEM: the first pass is kept, later passes are served from memory, and nothing is ever missing."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import pydp2

CONTENTS = [list(range(1000 * i, 1000 * i + size)) for i, size in enumerate([40, 7, 0, 90, 25, 60])]
LISTED = [x for lines in CONTENTS for x in lines]
CACHE = "cache=CacheType.CACHE_PASS_IN_MEM"

CODE = """
def note(settings, word):
    with open("log", "a") as log:
        log.write(word + "\\n")

def weigh(sample):
    note(None, f"weigh {sample[0]}")
    return sample[0] % 4

@provider(input_types=[integer_value(40_000)], {arguments})
def process(settings, filename):
    note(settings, f"open {settings.pass_id} {filename}")
    with open(filename) as lines:
        for line in lines:
            yield int(line)
    note(settings, f"end {settings.pass_id} {filename}")
"""


class Watched:
    """A client over CONTENTS and the log of what its provider did."""

    def __init__(self, data: pydp2.Client, folder: Path) -> None:
        self.data = data
        self.log = folder / "log"

    def said(self) -> Counter[str]:
        """What was noted since the last call, by its first words."""
        if not self.log.exists():
            return Counter()
        lines = self.log.read_text().splitlines()
        self.log.unlink()
        return Counter(" ".join(line.split()[:-1]) for line in lines)


@pytest.fixture
def cached(provider_file: Any, text_files: Any, tmp_path: Path) -> Any:
    """``cached(arguments, **options)``: a client of a service with a cache over CONTENTS, and the provider's log."""
    opened = []

    def start(arguments: str = "", **options: Any) -> Watched:
        address = provider_file(CODE.replace("{arguments}", f"{CACHE}, {arguments}"))
        given = {"batch_size": 20, "workers": 2, "root": tmp_path} | options
        data = pydp2.load(text_files(CONTENTS), address, **given)
        opened.append(data)
        return Watched(data, tmp_path)

    yield start
    for data in opened:
        data.close()


def test_pd_44_process_is_not_called_from_the_second_pass_on(cached: Any, flat: Any) -> None:
    """Every pass has the same samples; with shuffling each has an order of its own."""
    watched = cached()
    passes = [flat(list(watched.data))]
    assert watched.said() == {"open 0": len(CONTENTS), "end 0": len(CONTENTS)}
    passes += [flat(list(watched.data)) for _ in range(3)]
    assert watched.said() == {}
    assert [sorted(p) for p in passes] == [LISTED] * 4
    assert len({tuple(p) for p in passes}) == 4


def test_pd_44_the_first_pass_is_that_of_a_service_without_cache(
    cached: Any, numbers: Any, provider_file: Any, text_files: Any, exact: Any
) -> None:
    watched = cached("pool_size=40", seed=4)
    first = exact(list(watched.data))
    with pydp2.load(
        text_files(CONTENTS), provider_file(numbers("pool_size=40"), "plain"), batch_size=20, workers=1, seed=4
    ) as plain:
        assert exact(list(plain)) == first


def test_pd_44_a_cached_pass_draws_from_all_samples_whatever_the_pool_sizes_say(cached: Any) -> None:
    watched = cached("pool_size=30, min_pool_size=22")
    first, second = list(watched.data), list(watched.data)
    assert [b.pool_weight for b in first][:3] == [22, 30, 30]
    assert [b.pool_weight for b in second] == [len(LISTED) - 20 * n for n in range(len(second))]


def test_pd_44_without_shuffling_every_pass_has_the_order_of_the_first(cached: Any, flat: Any) -> None:
    watched = cached("should_shuffle=False, pool_size=5")
    assert [flat(list(watched.data)) for _ in range(3)] == [LISTED] * 3
    assert watched.said() == {"open 0": len(CONTENTS), "end 0": len(CONTENTS)}


def test_pd_44_calc_batch_size_runs_once_for_each_sample(cached: Any, flat: Any) -> None:
    """The weight is kept with the sample: cached passes cut by it without asking again."""
    watched = cached("calc_batch_size=weigh, can_over_batch_size=False")
    for _ in range(3):
        batches = list(watched.data)
        assert sorted(flat(batches)) == LISTED
        assert all(b.size == sum(x % 4 for x in b[0].tolist()) <= 20 for b in batches)
    said = watched.said()
    assert said["weigh"] == len(LISTED)
    assert said["open 1"] == said["open 2"] == 0


def test_pd_45_ten_passes_with_min_pool_size_have_the_same_total(cached: Any, flat: Any) -> None:
    watched = cached("min_pool_size=15")
    assert [sorted(flat(list(watched.data))) for _ in range(10)] == [LISTED] * 10
    assert watched.said()["open 0"] == len(CONTENTS)


@pytest.mark.parametrize("arguments", ["pool_size=25", "should_shuffle=False"])
def test_pd_46_an_abandoned_first_pass_leaves_later_ones_complete(cached: Any, flat: Any, arguments: str) -> None:
    """What the cache lacks is read: files that had ended are not read again, the others are."""
    watched = cached(arguments)
    for batch in watched.data:
        if batch.index == 1:
            break
    watched.said()
    second, third, fourth = (list(watched.data) for _ in range(3))
    for batches in (second, third, fourth):
        assert sorted(flat(batches)) == LISTED
        if "False" in arguments:
            assert flat(batches) == LISTED
        else:
            assert batches[0].pool_weight == len(LISTED)
    said = watched.said()
    assert said["open 2"] == said["open 3"] == 0  # the second pass completed the cache
    assert said["open 1"] == said["end 1"]


@pytest.mark.parametrize("arguments", ["pool_size=25", "should_shuffle=False"])
def test_pd_46_an_abandoned_cached_pass_is_followed_by_a_full_one(cached: Any, flat: Any, arguments: str) -> None:
    watched = cached(arguments)
    assert sorted(flat(list(watched.data))) == LISTED
    for left in range(4):
        for batch in watched.data:
            if batch.index == left:
                break
        assert sorted(flat(list(watched.data))) == LISTED
    assert watched.said() == {"open 0": len(CONTENTS), "end 0": len(CONTENTS)}


def test_pd_46_a_first_pass_of_which_nothing_was_taken(cached: Any, flat: Any) -> None:
    watched = cached("pool_size=25")
    iter(watched.data).close()
    assert [sorted(flat(list(watched.data))) for _ in range(2)] == [LISTED] * 2


def test_bad_samples_are_not_kept_and_yet_counted_in_every_pass(provider_file: Any, tmp_path: Path, capfd: Any) -> None:
    """So what a pass says does not depend on how much the cache could hold."""
    code = f"""
    @provider(input_types=[integer_value(10)], check=True, check_fail_continue=True, {CACHE})
    def process(settings, filename):
        yield from (1, 10, 2, -1, None, 3)
    """
    with pydp2.load(["a", "b"], provider_file(code), is_train=False, batch_size=4, workers=1) as data:
        for _ in range(3):
            assert [b[0].tolist() for b in data] == [[1, 2, 3, 1], [2, 3]]
    said = capfd.readouterr().err
    for pass_id in range(3):
        assert f"pass {pass_id}: 6 bad samples were dropped" in said


LARGE = f"""
import numpy as np

@provider(input_types=[integer_value(100), dense_vector(1000)], pool_size=50, {CACHE})
def process(settings, filename):
    with open("opened", "a") as log:
        log.write(f"{{settings.pass_id}} ")
    for i in range(10):
        yield int(filename), np.full(1000, 10 * int(filename) + i)
"""


def test_a_cache_that_cannot_hold_all_changes_no_order(
    provider_file: Any, tmp_path: Path, exact: Any, capfd: Any
) -> None:
    """What did not fit is read again in every pass, and the user is told; the batches are the same."""
    files = [str(i) for i in range(40)]
    opened, seen = [], []
    for limit in ("64MiB", "2MiB"):
        with pydp2.load(
            files, provider_file(LARGE), batch_size=30, workers=2, root=tmp_path, memory_limit=limit
        ) as data:
            seen.append([exact(list(data)) for _ in range(3)])
        opened.append(Counter((tmp_path / "opened").read_text().split()))
        (tmp_path / "opened").unlink()
    assert seen[0] == seen[1]
    assert opened[0] == {"0": 40}
    assert opened[1]["0"] == 40
    assert 0 < opened[1]["1"] == opened[1]["2"] < 40
    said = capfd.readouterr().err
    assert "the cache is full at 1048576 bytes: the files that did not fit are read again in every pass" in said


def test_entries_that_stand_twice_in_the_list_are_kept_twice(
    provider_file: Any, numbers: Any, text_files: Any, flat: Any
) -> None:
    one, two = text_files([[1, 2], [3]])
    with pydp2.load([one, two, one], provider_file(numbers(CACHE)), batch_size=2, workers=2) as data:
        assert [sorted(flat(list(data))) for _ in range(3)] == [[1, 1, 2, 2, 3]] * 3


def test_a_trainer_that_comes_later_is_served_from_the_cache(
    provider_file: Any, text_files: Any, tmp_path: Path, flat: Any
) -> None:
    address = provider_file(CODE.replace("{arguments}", CACHE))
    with pydp2.launch(text_files(CONTENTS), address, workers=2, root=tmp_path) as service:
        for batch_size in (20, 33):
            with service.connect(batch_size=batch_size) as data:
                assert [sorted(flat(list(data))) for _ in range(2)] == [LISTED] * 2
        opened = [line for line in (tmp_path / "log").read_text().splitlines() if line.startswith("open ")]
        assert len(opened) == len(CONTENTS)
        assert service.stats()["cache"]["files"] == len(CONTENTS)
