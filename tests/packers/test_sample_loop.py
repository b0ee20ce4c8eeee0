"""The compiled form of packing against the one in Python: the same columns, verdicts and words, drawn or added."""

from __future__ import annotations

import resource
import sys
import threading
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.data import native
from pydp2.data.packers.packer import Packer
from pydp2.data.packers.sample_loop import PackingBudget, SampleMarker
from pydp2.data.packers.slot_order import SlotOrder
from pydp2.data.schema.input_types import (
    Slots,
    dense_vector,
    dense_vector_sequence,
    integer_value,
    integer_value_sequence,
    raw_sequence,
    sparse_binary_vector,
    sparse_float_vector,
)
from pydp2.errors import BadSample

needs_compiled = pytest.mark.skipif(not native.is_built(), reason="the compiled form was not built")
PLENTY = PackingBudget(1 << 40, 1 << 40, 1 << 40, 64)
MINUTE = 60_000_000_000  # nanoseconds: no busy machine spends them on a few samples


def outcome(packer: Packer, samples: list[list[Any]], marks: list[bool], raw: Any) -> list[Any]:
    """All that can be seen of packing ``samples``; ``marks``: after which ones all is judged."""
    seen: list[Any] = []
    for values, mark in zip(samples, marks, strict=True):
        try:
            seen.append(packer.add(values))
        except BadSample as error:
            seen.append((str(error), error.slot, error.expected, error.got))
        seen.append((packer.rows, packer.nbytes))
        if mark:
            seen.append([(row, str(error)) for row, error in packer.verify()])
    cut = packer.finish()
    return [*seen, raw(cut.columns), cut.sample_bytes.tolist(), [(row, str(error)) for row, error in cut.bad]]


class Draw:
    """Draws from samples as a worker does."""

    def __init__(
        self, slots: Slots, *, strict: bool = True, fast: bool = True, timed: bool = False, others: Sequence[str] = ()
    ) -> None:
        self.row = array("q", [0] * 8)
        self.packer = Packer(slots, strict, fast)
        self.single = len(slots) == 1
        marker = SampleMarker(memoryview(self.row), 2, 4, 3, timed)
        self.drawer = self.packer.sample_loop(self.single, marker, others)
        self.packed = 0

    def __call__(self, samples: Iterator[Any], budget: PackingBudget = PLENTY, ns: int = MINUTE) -> Any:
        try:
            return self.drawer.next_unpacked(samples, self.packed, *budget, ns)
        finally:
            rows, nbytes = self.drawer.collect_counts()
            self.packer.count_packed(rows, nbytes)
            self.packed += rows


@needs_compiled
@given(data=st.data(), strict=st.booleans())
def test_both_forms_say_the_same_of_any_samples(some: Any, data: Any, strict: bool) -> None:
    slots = data.draw(some.slots)
    sample = st.tuples(*(st.one_of(some.values(t), some.good_values(t)) for t in slots.types)).map(list)
    samples = data.draw(st.lists(sample, max_size=6))
    marks = [data.draw(st.booleans()) for _ in samples]
    fast, slow = (outcome(Packer(slots, strict, form), samples, marks, some.raw) for form in (True, False))
    assert fast == slow


@needs_compiled
@given(data=st.data(), strict=st.booleans())
def test_drawing_packs_what_adding_one_by_one_packs(some: Any, data: Any, strict: bool) -> None:
    slots = data.draw(some.slots)
    sample = st.tuples(*(some.good_values(t) for t in slots.types)).map(list)
    samples = data.draw(st.lists(sample, max_size=12))
    shapes = [data.draw(st.sampled_from(["list", "tuple", "dict"])) for _ in samples]
    draw = Draw(slots, strict=strict)
    slow = Packer(slots, strict, False)
    costs = [slow.add(values) for values in samples]

    def process() -> Iterator[Any]:
        for values, shape in zip(samples, shapes, strict=True):
            if shape == "dict" and slots.names is not None:
                yield dict(zip(slots.names, values, strict=True))
            elif draw.single:
                yield values[0]
            else:
                yield values if shape == "list" else tuple(values)

    drawn, at = process(), 0
    while True:
        budget = PackingBudget(*data.draw(st.tuples(st.integers(-1, 4), *[st.integers(-50, 400)] * 2)), 64)
        before = draw.packed
        try:
            rest = draw(drawn, budget)
        except StopIteration:
            break
        finally:
            mine = costs[at : at + draw.packed - before]
            assert len(mine) <= max(0, budget.max_rows)
            assert not mine or sum(mine) + 64 * len(mine) <= budget.credit_bytes
            assert sum(mine[:-1]) < max(1, budget.column_bytes)
            at += len(mine)
        values = list(rest.values()) if isinstance(rest, dict) and slots.names else [rest] if draw.single else rest
        draw.packer.add(list(values))
        at += 1
    assert at == len(samples)
    assert (draw.packer.rows, draw.packer.nbytes) == (slow.rows, slow.nbytes)
    fast, plain = draw.packer.finish(), slow.finish()
    assert some.raw(fast.columns) == some.raw(plain.columns)
    assert not fast.bad


@needs_compiled
def test_usual_samples_are_packed_without_a_look_at_them() -> None:
    slots = Slots(
        (
            dense_vector(3),
            integer_value_sequence(10),
            sparse_binary_vector(100),
            sparse_float_vector(100),
            dense_vector_sequence(2),
            integer_value(5),
        )
    )
    values = [[1.0, 2.0, 3.0], [1, 2], [7, 3], [(5, 1.0), [2, 2.0]], [[1.0, 2.0], (3.0, 4.0)], 4]
    arrays = [
        np.ones(3, np.float32), np.array([1, 2]), np.array([3, 4], np.int32), [], np.ones((2, 2)), np.int64(3),
    ]  # fmt: skip
    draw = Draw(slots)
    with pytest.raises(StopIteration):
        draw(iter([values, tuple(values), arrays]))
    assert draw.packed == 3


@needs_compiled
@pytest.mark.parametrize(
    "sample",
    [(1,), (1, 2, 3), (5, 1), (-1, 1), (1.0, 1), (True, 1), (None, 1), {"a": 1}, "ab", None, (1, 10**30)],
    ids=repr,
)
def test_what_it_is_not_certain_of_is_given_out(sample: Any) -> None:
    draw = Draw(Slots((integer_value(5), integer_value(5))))
    given_out = draw(iter([(1, 2), sample]))
    assert given_out is sample
    assert draw.packer.finish().columns.samples() == [[1, 2]]


@needs_compiled
def test_a_dict_with_more_keys_is_given_out_once_for_them_to_be_looked_at() -> None:
    draw = Draw(Slots((integer_value(5), integer_value(5)), ("a", "b")))
    more = {"a": 3, "b": 4, "c": 5}
    samples = iter([{"a": 1, "b": 2}, more, more, {"a": 0, "c": 0}])
    assert draw(samples) is more
    assert draw(samples) == {"a": 0, "c": 0}
    assert draw.packer.finish().columns.samples() == [[1, 2], [3, 4]]


@needs_compiled
@given(st.lists(st.sampled_from(["ab", "abc", "abd", "abcd", "abx", "abcx", "abxy", "acx", "ax", "ac"]), max_size=6))
def test_the_first_sample_with_a_key_that_was_not_declared_is_given_out(keys: list[str]) -> None:
    slots = Slots((integer_value(5), integer_value(5)), ("a", "b"))
    order, told = SlotOrder(slots, other_names=("c", "d")), list[str]()
    order.on_unknown = told.append
    draw = Draw(slots, others=("c", "d"))
    samples = [dict.fromkeys(each, 1) for each in keys]

    def given_out() -> Iterator[Any]:
        drawn = iter(samples)
        while True:
            try:
                yield draw(drawn)
            except StopIteration:
                return

    for sample in given_out():
        with suppress(BadSample):
            draw.packer.add(order.arrange(sample))
    draw.packer.finish()
    plain, said = SlotOrder(slots, other_names=("c", "d")), list[str]()
    plain.on_unknown = said.append
    for sample in samples:
        with suppress(BadSample):
            plain.arrange(sample)
    assert told == said


class Odd:
    """A key that cannot be compared with the name of the second slot."""

    def __hash__(self) -> int:
        return hash("b")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not today")


@needs_compiled
def test_a_sample_whose_keys_cannot_be_compared_leaves_nothing() -> None:
    draw = Draw(Slots((integer_value(5), integer_value(5)), ("a", "b")))
    with pytest.raises(RuntimeError, match="not today"):
        draw(iter([{"a": 1, "b": 2}, {"a": 3, Odd(): 4}]))
    with pytest.raises(StopIteration):
        draw(iter([{"a": 4, "b": 0}]))
    assert draw.packer.finish().columns.samples() == [[1, 2], [4, 0]]


@contextmanager
def little_memory(room: int) -> Iterator[None]:
    """This process may have ``room`` bytes more than it has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@needs_compiled
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the limit is not kept")
@pytest.mark.parametrize("single", [True, False])
def test_a_sample_that_there_is_no_memory_for_leaves_nothing(single: bool) -> None:
    slots = Slots((raw_sequence(),) if single else (integer_value(5), raw_sequence()))
    large = np.zeros(1 << 30, np.uint8)  # never touched, so it takes addresses and no memory

    def samples(*strings: Any) -> Iterator[Any]:
        return iter([list(strings) if single else (1, list(strings))])

    draw = Draw(slots)
    with pytest.raises(StopIteration):
        draw(samples(b"ab", b"c"))
    with little_memory(1 << 28), pytest.raises(MemoryError):
        draw(samples(b"de", large))
    with pytest.raises(StopIteration):
        draw(samples(b"f"))
    strings = [sample[-1] for sample in draw.packer.finish().columns.samples()]
    assert strings == [[b"ab", b"c"], [b"f"]]


@pytest.mark.parametrize("fast", [pytest.param(True, marks=needs_compiled), False])
def test_the_seat_tells_which_sample_is_asked_for(fast: bool) -> None:
    draw = Draw(Slots((integer_value(100),)), fast=fast, timed=True)
    seen = []

    def process() -> Iterator[int]:
        for i in range(5):
            seen.append((draw.row[2], draw.row[3]))
            assert began <= draw.row[4] <= time.monotonic_ns()
            draw.row[3] = 0
            yield i

    samples = process()
    for i in range(5):
        began = time.monotonic_ns()
        draw.drawer.next_unpacked(samples, i, 0, 0, 0, 64, MINUTE)
    assert seen == [(i, 1) for i in range(5)]


@needs_compiled
def test_the_seat_follows_the_samples_that_are_packed() -> None:
    draw = Draw(Slots((integer_value(100),)))
    asked = []

    def process() -> Iterator[int]:
        for i in range(5):
            asked.append(draw.row[2])
            yield i

    with pytest.raises(StopIteration):
        draw(process())
    assert asked == [0, 1, 2, 3, 4]
    assert draw.row[2] == 5


@pytest.mark.parametrize("fast", [pytest.param(True, marks=needs_compiled), False])
def test_what_the_generator_raises_passes_and_what_was_packed_stays(fast: bool) -> None:
    draw = Draw(Slots((integer_value(100),)), fast=fast)

    def process() -> Iterator[int]:
        yield 1
        yield 2
        raise KeyError("mine")

    samples = process()
    for i in (1, 2) if not fast else ():
        draw.packer.add([draw(samples)])
        assert draw.packer.rows == i
    with pytest.raises(KeyError, match="mine"):
        draw(samples)
    assert draw.packer.finish().columns.samples() == [[1], [2]]
    assert not draw.drawer.in_user_code


@needs_compiled
def test_it_stops_when_its_time_is_over() -> None:
    draw = Draw(Slots((integer_value(1 << 40),)))
    forever = iter(range(1 << 40))
    began = time.monotonic()
    draw(forever, ns=20_000_000)
    assert 0.02 <= time.monotonic() - began < 20
    assert draw.packed


@needs_compiled
def test_another_thread_may_take_what_was_packed_while_the_generator_runs() -> None:
    draw = Draw(Slots((integer_value(1 << 40),)))
    inside, go_on = threading.Event(), threading.Event()
    taken: list[list[Any]] = []

    def process() -> Iterator[int]:
        yield from range(10)
        inside.set()
        assert go_on.wait(10)
        yield from range(10, 20)

    def other() -> None:
        assert inside.wait(10)
        drawer = draw.drawer
        drawer.send_pending = True
        assert drawer.in_user_code
        drawer.counts_collected = True
        draw.packer.count_packed(*drawer.collect_counts())
        taken.extend(draw.packer.finish().columns.samples())
        drawer.send_pending = False
        go_on.set()

    thread = threading.Thread(target=other)
    thread.start()
    samples = process()
    assert draw(samples) == 10, "the sample that came meanwhile is given out"
    thread.join()
    draw.packer.add([10])
    with pytest.raises(StopIteration):
        draw(samples)
    assert [value for [value] in taken + draw.packer.finish().columns.samples()] == list(range(20))
