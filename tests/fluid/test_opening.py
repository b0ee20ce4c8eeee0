"""open_files: which thread takes which file, in which order instances come, how much is read ahead, how it ends."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pydp2 import fluid
from pydp2.errors import ClientUseError, FormatError, OptionError, OptionTypeError

from ..runs import wait_until
from .conftest import SHAPES, flat, rest

SECONDS = 20.0  # what lasts longer hangs


def test_cf_7_one_file_may_be_given_as_text(nums: Any) -> None:
    (name,) = nums(5)
    with fluid.open_files(name, SHAPES) as reader:
        assert flat(reader) == [*range(5)]


def test_names_may_be_paths(nums: Any, tmp_path: Path) -> None:
    paths = [Path(name) for name in nums(3, 2)]
    with fluid.open_files(paths, SHAPES, is_test=True) as reader:
        assert flat(reader) == [*range(5)]
        written = tmp_path / "a.recordio"
        assert fluid.convert_reader_to_recordio_file(written, reader) == 5
        assert fluid.convert_reader_to_recordio_files(written, 3, reader)[1].endswith("a-00001.recordio")
    for again in (fluid.open_files(written, SHAPES), fluid.open_recordio_file(written, SHAPES)):
        with again:
            assert flat(again) == [*range(5)]


@pytest.mark.parametrize("threads", [3, 10, 2, 1])
@pytest.mark.parametrize("size", [1, 100])
def test_cf_8_three_equal_files_give_three_times_as_many_with_any_number_of_threads(
    nums: Any, threads: int, size: int
) -> None:
    (name,) = nums(40)
    with fluid.open_files([name] * 3, SHAPES, thread_num=threads, buffer_size=size) as reader:
        for _ in range(2):
            assert Counter(rest(reader)) == dict.fromkeys(range(40), 3)
            reader.reinit()


@given(st.lists(st.integers(0, 12), min_size=1, max_size=7), st.integers(1, 9), st.integers(1, 5))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
def test_cf_9_the_order_within_a_file_is_kept(nums: Any, sizes: list[int], threads: int, size: int) -> None:
    with fluid.open_files(nums(*sizes), SHAPES, thread_num=threads, buffer_size=size) as reader:
        found = flat(reader)
    assert sorted(found) == [*range(sum(sizes))]
    ends = np.cumsum([0, *sizes])
    for first, last in pairwise(ends):
        of_file = [n for n in found if first <= n < last]
        assert of_file == sorted(of_file)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=7), st.integers(1, 4))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
def test_cf_10_in_testing_files_come_one_after_the_other(nums: Any, sizes: list[int], threads: int) -> None:
    with fluid.open_files(nums(*sizes), SHAPES, thread_num=threads, is_test=True) as reader:
        assert flat(reader) == [*range(sum(sizes))]


def test_cf_11_a_free_slot_takes_the_next_file() -> None:
    """The large file waits in its middle until all small ones are through, which only the other slot can read."""
    through: Counter[str] = Counter()
    small = threading.Event()

    @fluid.register_file_reader("gated")
    def read(filename: str, shapes: Any) -> Any:
        name = Path(filename).stem
        for i in range(100 if name == "large" else 1):
            if name == "large" and i == 50:
                assert small.wait(SECONDS)
            yield [np.full((1, 1), i)]
        through[name] += 1
        if through["small"] == 3:
            small.set()

    names = ["large.gated", "small.gated", "small.gated", "small.gated"]
    with fluid.open_files(names, SHAPES, thread_num=2, buffer_size=200) as reader:
        assert len(rest(reader)) == 103
    assert through == {"large": 1, "small": 3}


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_cf_12_the_buffer_has_three_times_as_many_places_as_there_are_threads(nums: Any, threads: int) -> None:
    assert fluid.open_files(nums(1), SHAPES, thread_num=threads)._size == 3 * threads  # type: ignore[attr-defined]
    reader: Any = fluid.open_files(nums(1), SHAPES, thread_num=threads, buffer_size=2)
    assert reader._size == 2


def test_there_are_as_many_threads_as_files_and_at_most_one_a_processor(nums: Any) -> None:
    for count in (1, 2, 500):
        reader: Any = fluid.open_files(nums(3) * count, SHAPES)
        assert reader.thread_num == min(count, os.cpu_count() or 1)


@pytest.mark.parametrize("option", ["thread_num", "buffer_size", "pass_num"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "2"])
def test_cf_12_numbers_that_cannot_be_are_refused(nums: Any, option: str, value: Any) -> None:
    with pytest.raises((OptionError, OptionTypeError), match=f"{option} must be"):
        fluid.open_files(nums(1), SHAPES, **{option: value})


@pytest.mark.parametrize("names", [[], (), 5, None, [5], ["a.nums", None]])
def test_file_names_that_are_none_are_refused(names: Any) -> None:
    with pytest.raises((OptionError, OptionTypeError), match=r"filenames must be|the name of a file must be text"):
        fluid.open_files(names, SHAPES)


@pytest.mark.parametrize(("threads", "size"), [(1, 1), (3, 4), (4, 1)])
@pytest.mark.parametrize("look", [False, True])
def test_cf_13_no_more_is_read_ahead_than_the_buffer_and_one_a_thread(threads: int, size: int, look: bool) -> None:
    lock, made = threading.Lock(), 0

    @fluid.register_file_reader("counted")
    def read(filename: str, shapes: Any) -> Any:
        nonlocal made
        for i in range(40):
            with lock:
                made += 1
            yield [np.full((1, 1), i)]

    with fluid.open_files(["x.counted"] * 6, SHAPES, thread_num=threads, buffer_size=size) as reader:
        for taken in range(1, 241):
            assert not look or reader.has_next()
            reader.read_next()
            assert made - taken <= size + threads
            if taken < 8:  # as many are read: it is a bound, and no other
                assert wait_until(lambda taken=taken: made - taken == size + threads)  # type: ignore[misc]


@pytest.mark.parametrize("threads", [1, 3])
def test_cf_14_a_file_that_is_missing_is_raised_by_read_next(nums: Any, threads: int, tmp_path: Path) -> None:
    names = [*nums(5), str(tmp_path / "none.nums"), *nums(5)]
    with fluid.open_files(names, SHAPES, thread_num=threads) as reader:
        with pytest.raises(FileNotFoundError, match=r"none\.nums"):
            rest(reader)
        with pytest.raises(FileNotFoundError):
            reader.has_next()
        (tmp_path / "none.nums").write_text("7\n")
        reader.reinit()
        assert len(rest(reader)) == 11


def test_cf_14_what_was_read_before_an_error_comes_first(nums: Any, tmp_path: Path) -> None:
    broken = tmp_path / "broken.nums"
    broken.write_text("1\n2\nthree\n4\n")
    for decorate in (lambda r: r, fluid.double_buffer, lambda r: fluid.multi_pass(r, 2)):
        with decorate(fluid.open_files([*nums(3), str(broken)], SHAPES, thread_num=1)) as reader:
            assert flat(reader.read_next() for _ in range(5)) == [0, 1, 2, 1, 2]
            with pytest.raises(ValueError, match="three"):
                reader.read_next()


def test_cf_14_a_corrupt_file_is_raised_by_read_next(tmp_path: Path) -> None:
    path = tmp_path / "a.recordio"
    fluid.convert_reader_to_recordio_file(str(path), lambda: iter([(np.zeros((1, 1)),)] * 3))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with fluid.open_files(str(path), SHAPES) as reader, pytest.raises(FormatError, match="checksum"):
        reader.read_next()


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("passes", [1, 2])
def test_cf_14_an_end_inside_of_a_file_is_an_error_and_not_the_end_of_the_data(
    nums: Any, threads: int, passes: int
) -> None:
    @fluid.register_file_reader("over")
    def read(filename: str, shapes: Any) -> Any:
        below = fluid.FileReader(filename, shapes)
        while True:
            yield below.read_next()

    names = [f"over:{name}" for name in nums(4, 4, 4)]
    with fluid.open_files(names, SHAPES, thread_num=threads, pass_num=passes) as reader:
        with pytest.raises(RuntimeError, match="raised EOFException in the middle of an instance") as caught:
            rest(reader)
        assert isinstance(caught.value.__cause__, fluid.EOFException)
        with pytest.raises(RuntimeError, match="in the middle of an instance"):
            reader.has_next()


def test_a_format_that_exits_is_told_as_an_interruption() -> None:
    @fluid.register_file_reader("exits")
    def read(filename: str, shapes: Any) -> Any:
        yield [np.zeros((1, 1))]
        sys.exit(3)

    with fluid.open_files("x.exits", SHAPES) as reader:
        reader.read_next()
        with pytest.raises(SystemExit):
            reader.read_next()
        for use in (reader.read_next, reader.has_next):
            with pytest.raises(ClientUseError, match="interrupted by SystemExit"):
                use()


def test_is_test_may_be_none_as_in_the_original(nums: Any) -> None:
    with fluid.open_files(nums(3), SHAPES, is_test=None) as reader:
        assert flat(reader) == [0, 1, 2]
    with pytest.raises(OptionTypeError, match="is_test must be True, False or None, got 1"):
        fluid.open_files(nums(3), SHAPES, is_test=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("read", [0, 1, 7, 59])
def test_cf_15_beginning_anew_stops_all_threads_and_loses_nothing(nums: Any, read: int) -> None:
    """From a full channel, whose threads all wait for room."""
    before = set(threading.enumerate())
    names = nums(20, 20, 20)
    with fluid.open_files(names, SHAPES, thread_num=3, buffer_size=2) as reader:
        for _ in range(5):
            for _ in range(read):
                reader.read_next()
            if read < 50:
                reader.has_next()
                queue = reader._queue()  # type: ignore[attr-defined]
                assert wait_until(lambda queue=queue: len(queue._items) == 2)  # type: ignore[misc]
            reader.reinit()
            assert set(threading.enumerate()) <= before
        assert sorted(rest(reader)) == [*range(60)]


def test_passes_are_one_with_pass_num(nums: Any) -> None:
    with fluid.open_files(nums(4, 3), SHAPES, pass_num=3) as reader:
        assert Counter(rest(reader)) == dict.fromkeys(range(7), 3)


def test_an_empty_file_is_no_instance_and_no_error(nums: Any) -> None:
    with fluid.open_files(nums(0, 0), SHAPES) as reader:
        assert not reader.has_next()
        assert list(reader) == []


def test_closing_wakes_a_thread_that_waits_for_a_slow_file() -> None:
    go = threading.Event()

    @fluid.register_file_reader("slow")
    def read(filename: str, shapes: Any) -> Any:
        assert go.wait(SECONDS)
        yield [np.zeros((1, 1))]

    caught: list[BaseException] = []
    reader = fluid.batch(fluid.open_files("x.slow", SHAPES), 2)

    def consume() -> None:
        try:
            reader.read_next()
        except BaseException as error:
            caught.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    below: Any = reader.underlying
    assert wait_until(lambda: below._running is not None)
    closer = threading.Thread(target=reader.close)
    closer.start()
    consumer.join(SECONDS)
    assert isinstance(caught[0], ClientUseError)
    go.set()  # the file itself cannot be interrupted
    closer.join(SECONDS)
    assert not closer.is_alive()


def test_a_file_that_hangs_is_told_after_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pydp2.fluid.base.STOP_SECONDS", 0.05)
    go = threading.Event()

    @fluid.register_file_reader("hangs")
    def read(filename: str, shapes: Any) -> Any:
        yield [np.zeros((1, 1))]
        assert go.wait(SECONDS)

    reader = fluid.open_files("x.hangs", SHAPES)
    reader.read_next()
    begun = time.monotonic()
    with pytest.raises(TimeoutError, match=r"pydp2-open-files-0: still inside a read 0\.05 s after being told to end"):
        reader.reinit()
    assert time.monotonic() - begun < SECONDS / 2
    go.set()
    reader.close()
