"""The number of batches of a pass before it is over: what follows from counts, what does not, and who says so."""

from __future__ import annotations

import operator
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pydp2
from pydp2.client.length import PassLength
from pydp2.errors import RemoteProtocolError

from ..order.oracle import File, Options, Row, expect
from ..runs import in_ranks, wait_until

CODE = """
def weigh(sample):
    return sample[0][0] % {weights} + 1

def hook(settings, more=0, **kwargs):
    settings.more = more

@provider(input_types=[integer_value_sequence(1000)], init_hook=hook, {arguments})
def process(settings, filename):
    with open(filename) as lines:
        for line in lines:
            x = int(line)
            if {raises}:
                raise ValueError(line)
            yield [x if {good} else 5000]
    for x in range(settings.more):
        yield [x]
"""
CONTENTS = [range(40), range(7), range(0), range(90), range(25)]  # 162 samples: 11 batches of 16


class Place:
    """A folder with files and a cache, and services over them."""

    def __init__(self, folder: Path, write: Callable[..., str], files: list[str]) -> None:
        self.folder, self.files = folder, files
        self._write = write
        self.provide()
        time.sleep(0.03)  # a file that changed a moment ago might change again, and look the same

    def provide(
        self, arguments: str = "", *, weights: int = 1, good: str = "True", raises: str = "False", more: str = ""
    ) -> None:
        code = CODE.format(arguments=arguments, weights=weights, good=good, raises=raises)
        self.provider = self._write(code + more)

    def launch(self, **options: Any) -> pydp2.Service:
        return pydp2.launch(self.files, self.provider, **{"workers": 2, "cache_dir": self.folder / "cache"} | options)

    def passes(self, count: int = 1, **options: Any) -> list[int]:
        """Batches of each pass, of a service of its own."""
        with self.launch(**options) as service, service.connect(batch_size=16) as data:
            return [len(list(data)) for _ in range(count)]


@pytest.fixture
def place(tmp_path: Path, provider_file: Callable[..., str], text_files: Callable[..., list[str]]) -> Place:
    return Place(tmp_path, provider_file, text_files(CONTENTS))


def known_length(data: pydp2.Client) -> int | str:
    """``len(data)``, or why it is not known."""
    try:
        return len(data)
    except TypeError as error:
        return str(error)


def counted(sizes: list[int], *, plain: bool = True, known: int | None = None, weight: int | None = None) -> Any:
    """Counts of files with so many samples, as a service tells them; ``known``: of the first ones only."""
    some = sizes if known is None else sizes[:known]
    return {
        "files": len(sizes), "counted": len(some), "loading": False, "plain": plain, "samples": sum(some),
        "dropped": 0, "weight": sum(some) if weight is None else weight, "key": "a1",
    }  # fmt: skip


def mixture(strategy: str = "all_exhausted_without_replacement", method: str = "random", *weights: Any) -> Any:
    """The option ``mix`` of two sources; ``weights``: those of later steps."""
    points = [[step, {"a": "7/10", "b": weight}] for step, weight in enumerate(("3/10", *weights))]
    return {"points": points, "stopping_strategy": strategy, "batching_method": method}


def dealt(batches: int, world: int, last_batch: str) -> list[int]:
    """How many of so many batches each rank gets: dealt out one by one, and then what ``last_batch`` does."""
    hands = [len(range(rank, batches, world)) for rank in range(world)]
    if last_batch == "drop":
        return [min(hands)] * world
    return [max(hands)] * world if last_batch == "pad" else hands


def test_a_service_that_remembers_no_counts_neither_writes_nor_reads_any(place: Place) -> None:
    with place.launch(remember_counts=False) as service, service.connect(batch_size=16) as data:
        assert "remembers no counts" in str(known_length(data))
        assert len(list(data)) == 11 == len(data)
    assert not (place.folder / "cache").exists()
    place.passes()
    with place.launch(remember_counts=False) as service, service.connect(batch_size=16) as data:
        assert "remembers no counts" in str(known_length(data))


@given(
    sizes=st.lists(st.integers(0, 70), min_size=1, max_size=6),
    dropped=st.integers(0, 5),
    batch_size=st.integers(1, 40),
    pool_size=st.sampled_from([-1, 1, 30]),
    world=st.integers(1, 5),
    last_batch=st.sampled_from(["keep", "drop", "pad"]),
    shuffle=st.booleans(),
)
def test_the_length_from_counts_is_the_number_of_batches_of_the_pass(
    sizes: list[int], dropped: int, batch_size: int, pool_size: int, world: int, last_batch: Any, shuffle: bool
) -> None:
    """The oracle runs the pass; dropped samples are in its files, and in no count."""
    files = [File([None] * dropped + [Row()] * size) for size in sizes]
    options = Options(batch_size, pool_size=pool_size, last_batch=last_batch, shuffle=shuffle)
    batches = len(expect(files, options).batches)
    for rank, expected in enumerate(dealt(batches, world, last_batch)):
        length = PassLength({"batch_size": batch_size, "last_batch": last_batch}, rank, world)
        length.learn(counted(sizes))
        assert length.exact == length.estimate == expected


@pytest.mark.parametrize(
    ("options", "counts", "reason"),
    [
        ({}, {}, "after one full pass"),
        ({}, counted([3, 4], known=1), "1 of 2 files are counted"),
        ({}, counted([3, 4], plain=False), "not every sample weighs 1"),
        ({"bucket_by": "x"}, counted([3, 4]), "with bucket_by it is known after one full pass"),
        ({"share": "dynamic"}, counted([3, 4]), 'share="dynamic"'),
        ({}, counted([3, 4], known=0) | {"loading": True}, "looks for counts"),
        ({}, counted([3, 4], known=0) | {"key": ""}, "remembers no counts"),
        ({"mix": mixture()}, counted([3, 4], known=0) | {"key": ""}, "follows from counts of the files of all sources"),
    ],
)
def test_where_it_does_not_follow_the_reason_is_said(
    options: dict[str, Any], counts: dict[str, Any], reason: str
) -> None:
    length = PassLength({"batch_size": 2} | options, 0, 1)
    length.learn(counts)
    assert length.exact is None
    assert reason in length.reason()


@pytest.mark.parametrize("last_batch", ["keep", "drop", "pad"])
def test_a_list_without_files_has_no_batches(last_batch: str) -> None:
    length = PassLength({"batch_size": 2, "last_batch": last_batch}, 1, 2)
    assert length.exact is None
    length.learn(counted([]))
    assert (length.exact, length.estimate) == (0, 0)


def test_a_client_of_an_empty_list_knows_that_it_has_no_batches(place: Place) -> None:
    place.files = []
    with pytest.warns(UserWarning, match="the file list is empty"):
        service = place.launch()
    with service, service.connect(batch_size=16) as data:
        assert len(data) == 0 == operator.length_hint(data, 9)
        assert list(data) == []
        assert len(data) == 0


def test_an_estimate_goes_by_the_weight_of_the_files_that_are_counted() -> None:
    length = PassLength({"batch_size": 2}, 0, 1)
    assert length.estimate is None
    length.learn(counted([3, 5, 1, 1], known=2, plain=False, weight=16))
    assert length.estimate == 16
    length.note_pass(9, is_repeated=False)
    assert length.estimate == 9


@pytest.mark.parametrize("wrong", [{"files": -1}, {"counted": "1"}, {"samples": 1 << 63}, {"key": None, "files": None}])
def test_counts_that_are_none_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError, match="counts of samples"):
        PassLength({"batch_size": 2}, 0, 1).learn(counted([1]) | wrong)


def test_a_second_service_knows_the_length_before_the_first_batch(place: Place) -> None:
    with place.launch() as service, service.connect(batch_size=16) as data:
        assert "0 of 5 files are counted" in str(known_length(data))
        assert operator.length_hint(data, 99) == 99
        assert len(list(data)) == len(data) == 11
    with place.launch(workers=1) as service:
        with service.connect(batch_size=16) as data:
            assert len(data) == operator.length_hint(data) == 11
        with service.connect(batch_size=10, last_batch="drop", job="other") as data:
            assert len(data) == 16
            assert len(list(data)) == 16


@pytest.mark.parametrize("last_batch", ["keep", "drop", "pad"])
def test_each_rank_knows_its_own_length(place: Place, last_batch: Any) -> None:
    place.passes()
    found: dict[int, tuple[int, int]] = {}
    with place.launch() as service:
        clients = [
            service.connect(batch_size=15, rank=rank, world_size=4, last_batch=last_batch) for rank in range(4)
        ]  # 10 full batches and a part of one
        before = [len(data) for data in clients]
        threads = [
            threading.Thread(target=lambda i=i: found.update({i: (len(list(clients[i])), len(clients[i]))}))
            for i in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for data in clients:
            data.close()
    assert [found[rank] for rank in range(4)] == [(length, length) for length in before]
    assert before == {"keep": [3, 3, 3, 2], "drop": [2] * 4, "pad": [3] * 4}[last_batch]


def test_a_changed_file_is_counted_anew(place: Place) -> None:
    place.passes()
    Path(place.files[0]).write_text("1\n" * 100)
    time.sleep(0.03)
    with place.launch() as service, service.connect(batch_size=16) as data:
        assert "4 of 5 files are counted" in str(known_length(data))
        assert operator.length_hint(data) == 10  # 122 samples in 4 files
        assert len(list(data)) == len(data) == 14
    with place.launch() as service, service.connect(batch_size=16) as data:
        assert len(data) == 14


def test_a_file_that_is_touched_while_the_service_runs_stays_counted(place: Place) -> None:
    with place.launch() as service, service.connect(batch_size=16) as data:
        list(data)
        os.utime(place.files[0], (1e9, 1e9))
        time.sleep(0.03)
        list(data)
    with place.launch() as service, service.connect(batch_size=16) as data:
        assert len(data) == 11


@pytest.mark.parametrize("what", ["code", "args"])
def test_a_provider_that_was_edited_is_counted_anew(place: Place, what: str) -> None:
    place.passes()
    if what == "code":
        place.provide(more="\n# another\n")
    options: dict[str, Any] = {"args": {"more": 3}} if what == "args" else {}
    with place.launch(**options) as service, service.connect(batch_size=16) as data:
        assert "0 of 5 files are counted" in str(known_length(data))
    place.provide()
    with place.launch() as service, service.connect(batch_size=16) as data:
        assert len(data) == 11


def test_a_wrong_count_is_said_by_file_and_replaced(place: Place, capfd: pytest.CaptureFixture[str]) -> None:
    """The generator reads something that pydp2 does not see."""
    more = """
import os

@provider(input_types=[integer_value(1000)])
def process(settings, filename):
    yield from range(int(os.environ["SAMPLES"]) if filename.endswith("part-00003.txt") else 4)
"""
    place.provide(more=more)
    os.environ["SAMPLES"] = "20"
    try:
        assert place.passes() == [3]  # 36 samples
        os.environ["SAMPLES"] = "40"
        capfd.readouterr()
        with place.launch() as service, service.connect(batch_size=16) as data:
            assert len(data) == 3
            assert len(list(data)) == len(data) == 4
            list(data)
        said = [line for line in capfd.readouterr().err.splitlines() if "counted last" in line]
        assert len(said) == 1
        assert f"file {place.files[3]} gave 40 samples, and 20 when it was counted last" in said[0]
        with place.launch() as service, service.connect(batch_size=16) as data:
            assert len(data) == 4
    finally:
        del os.environ["SAMPLES"]


@pytest.mark.parametrize("world", [1, 3])
def test_a_mixture_that_reads_each_sample_once_has_the_length_of_one_list(world: int) -> None:
    for rank in range(world):
        mixed = PassLength({"batch_size": 4, "mix": mixture()}, rank, world)
        plain = PassLength({"batch_size": 4}, rank, world)
        for length in (mixed, plain):
            length.learn(counted([20, 30]))
        assert mixed.exact == plain.exact
        mixed.note_weights([[0, 5, ["1", "1/2"]]])
        assert mixed.exact == plain.exact
        mixed.note_weights([[0, 5, ["1", "1/2"]], [1, 0, ["1", "0"]]])
        assert mixed.exact is None


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"mix": mixture("first_exhausted")}, "of this mixture is not known"),
        ({"mix": mixture("all_exhausted")}, "count the steps"),
        ({"mix": mixture("cycle_forever")}, "count the steps"),
        ({"mix": mixture("all_exhausted_without_replacement", "per_stream")}, 'batching_method="random"'),
        ({"mix": mixture("all_exhausted_without_replacement", "random", "0")}, "weights above 0"),
        ({"pack": {"length": 8}}, "of packed rows is not known: it follows from the lengths"),
        ({"pack": {"length": 8}, "mix": mixture()}, "of packed rows is not known"),
    ],
)
def test_what_follows_from_draws_or_from_lengths_of_sequences_is_estimated_by_the_last_pass(
    options: dict[str, Any], reason: str
) -> None:
    length = PassLength({"batch_size": 4} | options, 0, 1)
    length.learn(counted([20, 30]))
    assert (length.exact, length.estimate) == (None, None)
    assert reason in length.reason()
    length.note_pass(9, is_repeated=False)
    assert (length.exact, length.estimate) == (None, 9)


def test_a_client_of_a_mixture_knows_its_length_until_a_weight_is_0(place: Place) -> None:
    def mixed() -> pydp2.Client:
        sources = {"a": place.files[:3], "b": place.files[3:]}
        weights = {"a": 1, "b": 2}
        folder = place.folder / "cache"
        return pydp2.mix(sources, place.provider, weights=weights, batch_size=16, workers=1, cache_dir=folder)

    with mixed() as data:
        assert "0 of 5 files are counted" in str(known_length(data))
        assert len(list(data)) == 11
        assert len(data) == operator.length_hint(data) == 11
    with mixed() as data:
        assert len(data) == 11
        data.set_weights({"a": 1, "b": 0})
        loop = iter(data)
        next(loop)
        assert "weights above 0" in str(known_length(data))
    with pydp2.pack_sequences(mixed(), slot=0, length=8, batch_size=2) as data:
        assert "of packed rows is not known" in str(known_length(data))


def test_dropped_samples_and_files_that_end_early_count_as_they_are_delivered(place: Place) -> None:
    place.provide("check=True, check_fail_continue=True", good="x % 7", raises="x == 50")
    # without every seventh: 34 + 6 + 0 + 42 (of 50, then it raises) + 21
    assert place.passes(2, on_error="skip") == [7, 7]
    with place.launch(on_error="skip") as service, service.connect(batch_size=16) as data:
        assert len(data) == len(list(data)) == 7
    with place.launch() as service, service.connect(batch_size=16) as data:  # there, that is an error
        assert "4 of 5 files are counted" in str(known_length(data))


def test_samples_with_weights_have_an_estimate_and_those_that_all_weigh_1_a_length(place: Place) -> None:
    place.provide("calc_batch_size=weigh", weights=3)
    with place.launch() as service, service.connect(batch_size=16) as data:
        batches = len(list(data))
        assert "not every sample weighs 1" in str(known_length(data))
        assert operator.length_hint(data) == batches
    with place.launch() as service, service.connect(batch_size=16) as data:
        assert "not every sample weighs 1" in str(known_length(data))
        assert operator.length_hint(data) == sum(x % 3 + 1 for lines in CONTENTS for x in lines) // 16 + 1
    place.provide("calc_batch_size=weigh", weights=1)
    assert place.passes() == [11]
    with place.launch() as service, service.connect(batch_size=16) as data:
        assert len(data) == 11


def test_with_buckets_it_is_known_after_a_pass(place: Place) -> None:
    place.passes()
    with place.launch() as service, service.connect(batch_size=16, bucket_by=0, bucket_bounds=(1,)) as data:
        assert "with bucket_by" in str(known_length(data))
        assert operator.length_hint(data) == 11  # an estimate, without buckets
        assert len(list(data)) == len(data) == operator.length_hint(data) == 11


def test_a_pass_that_was_left_remembers_the_files_that_it_has_read(place: Place) -> None:
    with place.launch(workers=1) as service, service.connect(batch_size=1, shuffle=False) as data:
        one = iter(data)
        for _ in range(50):  # more than the first two files have
            next(one)
    with place.launch() as service:
        assert wait_until(lambda: not service.stats()["counts"]["loading"])
        assert 2 <= service.stats()["counts"]["counted"] <= 5


def test_samples_from_the_cache_on_disk_are_counted_too(place: Place) -> None:
    place.provide("cache=CacheType.CACHE_PASS_ON_DISK")
    assert place.passes() == [11]
    for counts in pydp2.CacheFolder(place.folder / "cache").counts():
        counts.path.unlink()
    assert place.passes() == [11]
    with place.launch() as service, service.connect(batch_size=16) as data:
        assert len(data) == 11


def test_an_empty_list_of_samples_has_no_batches(place: Place, text_files: Callable[..., list[str]]) -> None:
    place.files = [place.files[2]]
    assert place.passes() == [0]
    with place.launch() as service, service.connect(batch_size=16) as data:
        assert len(data) == 0
        assert list(data) == []


def middle_of_a_pass(place: Place, ranks: int, batches: int, **options: Any) -> Any:
    """The state of a job of so many ranks, each of which has had so many ``batches`` of its first pass."""
    states: dict[int, Any] = {}

    def train(rank: int) -> None:
        with service.connect(batch_size=16, rank=rank, world_size=ranks, timeout=30, **options) as data:
            one = iter(data)
            for _ in range(batches):
                next(one)
            states[rank] = data.state_dict()
            together.wait(60)

    together = threading.Barrier(ranks)
    with place.launch() as service:
        in_ranks(train, ranks)
    return states[0]


@pytest.mark.parametrize(
    ("last_batch", "then", "taken", "now"), [("drop", 1, 1, 2), ("drop", 2, 1, 3), ("pad", 1, 2, 3), ("pad", 4, 3, 1)]
)
def test_a_pass_that_another_number_of_ranks_took_up_is_not_taken_for_a_whole_one(
    place: Place, last_batch: Any, then: int, taken: int, now: int
) -> None:
    place.passes()
    state = middle_of_a_pass(place, then, taken, last_batch=last_batch)
    found: dict[int, list[int]] = {}

    def train(rank: int) -> None:
        with service.connect(batch_size=16, rank=rank, world_size=now, timeout=30, last_batch=last_batch) as data:
            data.load_state_dict(state)
            found[rank] = [len(data)]
            for _ in range(2):
                rest = len(list(data))  # the first time that of the pass of the state
                found[rank].append(len(data))
            found[rank].append(rest)
            together.wait(60)

    together = threading.Barrier(now)
    with place.launch() as service:
        in_ranks(train, now)
    assert [found[rank] for rank in range(now)] == [
        [length] * 4 for length in dealt(11 if last_batch == "pad" else 10, now, last_batch)
    ]


def test_the_rest_of_a_pass_that_a_state_took_up_tells_no_length(place: Place) -> None:
    options: dict[str, Any] = {"bucket_by": 0, "bucket_bounds": (1,)}
    state = middle_of_a_pass(place, 1, 3, **options)
    with place.launch() as service, service.connect(batch_size=16, **options) as data:
        data.load_state_dict(state)
        assert len(list(data)) == 8
        assert "known after one full pass" in str(known_length(data))
        assert len(list(data)) == len(data) == 11
        data.load_state_dict(state)
        list(data)
        assert len(data) == 11
