"""Samples to ranges: whatever is bad, however files take turns and wherever chunks are cut, the same comes out."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pydp2.data.columns.columns import frame_count
from pydp2.data.packers.many_samples import rows
from pydp2.data.schema.input_types import Slots, dense_vector, integer_value, sparse_float_vector_sequence
from pydp2.errors import BadSample, NotRepeatable, ProviderError
from pydp2.host.worker import chunk_builder
from pydp2.host.worker.chunk_builder import MAX_BLOCKED, MAX_RANGES, MAX_ROWS, ChunkBuilder
from pydp2.host.worker.yielded_samples import YieldedSamples
from pydp2.protocol import messages as m
from pydp2.protocol.file_ranges import FILE_OPEN, FILE_RAISED
from pydp2.providers.error_location import with_location
from tests.simulated.chunks import (
    Outcome,
    Yield,
    again,
    expected,
    fresh,
    run_at_random,
    schema,
    task_of,
)

good = st.tuples(st.just("good"), st.integers(0, 99))
bad = st.tuples(st.sampled_from(["bad type", "bad value", "bad weight"]), st.integers(0, 99))
ends = st.sampled_from([("end", 0), ("end", 0), ("raise", 0)])
files = st.lists(st.builds(lambda many, end: [*many, end], st.lists(good | good | bad, max_size=25), ends), min_size=1,
                 max_size=4)  # fmt: skip
long_files = st.lists(st.builds(
    lambda many, times, end: [*many * times, end],
    st.lists(good | good | good | bad, min_size=1, max_size=20) | st.lists(good, min_size=8, max_size=20),
    st.integers(1, 8), ends), min_size=1, max_size=3)  # fmt: skip
flags = st.booleans()
chooser = st.integers(0, 2**32).map(random.Random)


@given(files, flags, flags, chooser, st.sampled_from([0.0, 0.05, 0.3, 0.7]))
def test_what_comes_out_is_what_the_files_say(
    files: list[list[Yield]], drop: bool, weighted: bool, choose: random.Random, cuts: float
) -> None:
    ledger = run_at_random(choose, files, schema(drop=drop, weighted=weighted), cuts=cuts)
    for file, content in enumerate(files):
        assert ledger.found[file] == expected(content, drop=drop, weighted=weighted)


@given(long_files, flags, flags, chooser, st.sampled_from([0.0, 0.05, 0.3]))
def test_samples_that_come_many_at_once_are_what_they_are_alone(
    files: list[list[Yield]], drop: bool, weighted: bool, choose: random.Random, cuts: float
) -> None:
    declared = schema(drop=drop, weighted=weighted)
    alone = run_at_random(choose, files, declared, cuts=cuts)
    ledger = run_at_random(choose, files, declared, cuts=cuts, blocks=0.3)
    for file, content in enumerate(files):
        assert ledger.found[file] == expected(content, drop=drop, weighted=weighted)
        assert ledger.entries[file].crcs == alone.entries[file].crcs
        assert ledger.entries[file].spent_bytes == alone.entries[file].spent_bytes
    assert {file: str(error) for file, error in ledger.errors.items()} == {
        file: str(error) for file, error in alone.errors.items()
    }


@given(long_files, flags, flags, chooser)
def test_a_new_attempt_may_be_given_them_in_other_pieces(
    files: list[list[Yield]], drop: bool, weighted: bool, choose: random.Random
) -> None:
    declared = schema(drop=drop, weighted=weighted)
    first = run_at_random(choose, files, declared, cuts=0.3, blocks=0.3)
    starts = [
        again(file, choose.choice(marks[:-1])) if len(marks) > 1 else fresh(file)
        for file, marks in enumerate(first.marks)
    ]
    begun = [entry.committed for entry in starts]
    second = run_at_random(choose, files, declared, starts, cuts=0.3, blocks=0.3)
    for file, content in enumerate(files):
        whole = expected(content, drop=drop, weighted=weighted)
        assert second.found[file].samples == [sample for sample in whole.samples if sample[0] >= begun[file]]
        assert second.found[file].dropped_samples == [y for y in whole.dropped_samples if y >= begun[file]]
        assert second.entries[file].crcs == first.entries[file].crcs
        assert second.entries[file].spent_bytes == first.entries[file].spent_bytes


@given(files, flags, chooser)
def test_checksums_and_costs_depend_on_the_samples_alone(
    files: list[list[Yield]], drop: bool, choose: random.Random
) -> None:
    """Not on the chunks, nor on the files that share them."""
    declared = schema(drop=drop, weighted=False)
    runs = [run_at_random(choose, files, declared, cuts=cuts) for cuts in (0.0, 0.2, 0.8)]
    for file in range(len(files)):
        entries = [run.entries[file] for run in runs]
        assert len({tuple(entry.crcs) for entry in entries}) == 1
        assert len({entry.spent_bytes for entry in entries}) == 1
        alone = run_at_random(choose, [files[file]], declared, cuts=0.1)
        assert alone.entries[0].crcs == entries[0].crcs


@given(files, flags, flags, chooser)
def test_a_new_attempt_sends_what_is_missing_and_nothing_below(
    files: list[list[Yield]], drop: bool, weighted: bool, choose: random.Random
) -> None:
    declared = schema(drop=drop, weighted=weighted)
    first = run_at_random(choose, files, declared, cuts=0.3)
    starts = []
    for file, marks in enumerate(first.marks):
        open_marks = [mark for mark in marks if mark[0] < first.found[file].length or len(marks) > 1]
        starts.append(again(file, choose.choice(open_marks)) if open_marks and choose.random() < 0.8 else fresh(file))
    begun = [entry.committed for entry in starts]
    second = run_at_random(choose, files, declared, starts, cuts=0.3)
    for file, content in enumerate(files):
        whole = expected(content, drop=drop, weighted=weighted)
        found = second.found[file]
        assert found.samples == [sample for sample in whole.samples if sample[0] >= begun[file]]
        assert found.dropped_samples == [y for y in whole.dropped_samples if y >= begun[file]]
        assert (found.end, found.length) == (whole.end, whole.length)
        assert second.entries[file].crcs == first.entries[file].crcs
        assert second.entries[file].spent_bytes == first.entries[file].spent_bytes


@given(st.lists(good | good | bad, min_size=1, max_size=25), st.data(), flags, chooser)
def test_a_file_that_does_not_repeat_itself_is_named_and_gives_nothing(
    content: list[Yield], data: st.DataObject, weighted: bool, choose: random.Random
) -> None:
    declared = schema(drop=True, weighted=False)
    first = run_at_random(choose, [[*content, ("end", 0)]], declared, cuts=0.5)
    committed, crcs, spent = data.draw(st.sampled_from(first.marks[0]))
    if not committed:
        return
    at = data.draw(st.integers(0, committed - 1))
    change = data.draw(st.sampled_from(["another value", "hole or not", "ends", "raises", "more", "less", "order"]))
    other = list(content)
    kind, n = other[at]
    match change:
        case "another value":
            other[at] = (kind, (n + 1) % 100)
            if kind in ("bad type", "bad value"):
                return  # a dropped sample stays a dropped sample, whatever was in it
        case "hole or not":
            other[at] = ("good" if kind in ("bad type", "bad value") else "bad value", n)
        case "ends":
            del other[at:]
        case "raises":
            other[at:] = [("raise", 0)]
        case "more":
            other.insert(at, ("good", 77))
        case "less":
            del other[at]
        case "order":
            other[at : at + 2] = reversed(other[at : at + 2])

    def seen(samples: list[Yield]) -> list[Any]:
        shown = expected([*[*samples, ("end", 0)][:committed], ("end", 0)], drop=True, weighted=False)
        return [shown.samples, shown.dropped_samples, shown.length]

    if change != "raises" and seen(other) == seen(content):
        return  # a run of equal samples: nobody could tell
    if other[-1:] != [("raise", 0)]:
        other.append(("end", 0))
    second = run_at_random(choose, [other], declared, [again(0, (committed, crcs, spent))], cuts=0.3)
    assert isinstance(second.errors[0], NotRepeatable)
    assert "file f0: process() did not repeat itself" in str(second.errors[0])
    assert f"its first {committed} samples" in str(second.errors[0])
    assert second.found[0].samples == second.found[0].dropped_samples == []
    assert second.entries[0].committed == committed


@given(
    st.lists(good | good | bad, max_size=25), st.lists(good | good | bad, max_size=25), st.integers(0, 25),
    st.sampled_from(["end", "raise"]), flags, chooser,
)  # fmt: skip
def test_a_file_that_may_change_goes_on_with_what_it_gives_now_and_that_is_told_once(
    content: list[Yield], other: list[Yield], same: int, end: str, weighted: bool, choose: random.Random
) -> None:
    """Behind what is committed; one that ends or raises before that does so there."""
    declared = schema(drop=True, weighted=weighted)
    first = run_at_random(choose, [[*content, ("end", 0)]], declared, cuts=0.3)
    mark = choose.choice([mark for mark in first.marks[0] if mark[0]] or [(0, [], 0)])
    changed: list[Yield] = [*content[:same], *other, (end, 0)]
    second = run_at_random(choose, [changed], declared, [again(0, mark)], cuts=0.3, lenient=True)
    whole, committed, found = expected(changed, drop=True, weighted=weighted), mark[0], second.found[0]
    assert found.samples == [sample for sample in whole.samples if sample[0] >= committed]
    assert found.dropped_samples == [y for y in whole.dropped_samples if y >= committed]
    assert (found.end, found.length) == (whole.end, max(committed, whole.length))
    before = expected([*content, ("end", 0)], drop=True, weighted=weighted)

    def head(shown: Outcome) -> list[Any]:
        return [[s for s in shown.samples if s[0] < committed], [y for y in shown.dropped_samples if y < committed]]

    differs = whole.length < committed or head(whole) != head(before)
    assert second.changed == [differs]


def test_a_hole_at_another_place_is_noticed_though_the_samples_are_the_same() -> None:
    declared = schema(drop=True, weighted=False)
    content: list[Yield] = [("good", 1), ("bad value", 2), ("end", 0)]
    mark = run_at_random(random.Random(1), [content], declared, cuts=0.0).marks[0][-1]
    other = [content[1], content[0], content[2]]
    second = run_at_random(random.Random(1), [other], declared, [again(0, mark)], cuts=0.0)
    assert isinstance(second.errors[0], NotRepeatable)


def test_errors_are_told_at_their_place_and_keep_their_kind() -> None:
    for kind, words in (("bad type", "id: expected"), ("bad value", "words: expected"), ("raise", "process raised")):
        content = [("good", 1), ("good", 2), (kind, 3), ("good", 4), ("end", 0)]
        ledger = run_at_random(random.Random(1), [content], schema(drop=False, weighted=False), cuts=0.0)
        error = ledger.errors[0]
        assert isinstance(error, ProviderError if kind == "raise" else BadSample)
        assert str(error).startswith("file f0, sample 2")
        assert words.partition(":")[0] in str(error)
        assert [sample[0] for sample in ledger.found[0].samples] == [0, 1]


def test_calc_batch_size_that_raises_costs_its_own_sample_and_no_other() -> None:
    content = [("good", 1), ("bad weight", 2), ("good", 3), ("end", 0)]
    ledger = run_at_random(random.Random(1), [content], schema(drop=True, weighted=True), cuts=0.0)
    assert str(ledger.errors[0]) == "file f0, sample 1: calc_batch_size raised"
    assert [sample[0] for sample in ledger.found[0].samples] == [0]


def test_code_of_a_value_that_raises_leaves_the_builder_as_it_was() -> None:
    class Hostile:
        def __index__(self) -> int:
            raise RuntimeError("hostile")

        __len__ = __iter__ = __float__ = __array__ = __index__

    declared = schema(drop=False, weighted=False)
    builder = ChunkBuilder(declared, lambda error, task, y: with_location(error, "f", y))
    task = task_of(fresh(0), declared)
    assert builder.add_sample(task, [1, [2]], lambda values: 1)
    for values in ([Hostile(), [1]], [1, Hostile()], [1, [Hostile()]]):
        try:
            builder.add_sample(task, values, lambda values: 1)  # type: ignore[arg-type]
        except RuntimeError:
            pass
        else:  # it was found to be bad without its help
            assert task.is_over
            task.is_over = False
            builder._segments[-1].state, builder._segments[-1].error = FILE_OPEN, None
    (packed,) = builder.finish()
    assert packed.columns.samples() == [[1, [2]]]
    assert task.next_index == 1


# -- headers -----------------------------------------------------------------------------------------------------------
def headers(builder: ChunkBuilder, blocked: int = MAX_BLOCKED) -> list[int]:
    """The sizes of the headers of all that ``builder`` has, told beside as many files that wait as there can be."""
    big = (1 << 62) - 1
    sizes = []
    for packed in builder.finish():
        parts = [part.to_wire() for part in packed.ranges]
        sizes.append(len(m.encode(m.Chunk(big, parts, [[big] * 4] * blocked, big, big))))
    return sizes


def a_builder(slots: Slots | None = None) -> tuple[ChunkBuilder, Any]:
    declared = schema(drop=True, weighted=False, slots=slots) if slots else schema(drop=True, weighted=False)
    builder = ChunkBuilder(declared, lambda error, task, y: with_location(error, "file", y))

    def task(file: int, start: int = 0) -> Any:
        return task_of(fresh(file), declared)

    return builder, task


@pytest.mark.parametrize("letter", ["a", "é", "一", "😀", "\udcff", "\0", '"'])
def test_holes_with_long_reasons_and_an_error_stay_within_headers(letter: str) -> None:
    builder, task = a_builder()
    for file in range(MAX_RANGES):
        one = task(file)
        for _ in range(24 if file % 8 == 0 else 1):
            long = letter * 500
            builder.add_bad(one, BadSample(long, slot=long, expected=long, got=long))
        builder.fail_file(one, ProviderError(letter * 100_000))
    sizes = headers(builder)
    assert max(sizes) <= m.HEADER_LIMIT


def test_a_chunk_full_of_values_out_of_range_is_sent_as_several() -> None:
    """They are found when it is cut: MAX_ROWS of them, each with its reason."""
    builder, task = a_builder()
    one = task(0)
    for i in range(MAX_ROWS):
        builder.add_sample(one, [100 + i, []], lambda values: 1)
    assert builder.is_full
    chunks = builder.finish()
    assert len(chunks) > 1
    parts = [part for packed in chunks for part in packed.ranges]
    assert [part.first_index for part in parts] == [0, *np.cumsum([part.count for part in parts])[:-1].tolist()]
    assert [dropped_sample[0] for part in parts for dropped_sample in part.dropped] == list(range(MAX_ROWS))
    assert all(len(m.encode(m.Chunk(0, [part.to_wire()], [], 0, 0))) <= m.HEADER_LIMIT for part in parts)


def test_good_rows_between_many_holes_stay_with_their_ordinals() -> None:
    builder, task = a_builder()
    one = task(0)
    for i in range(3000):
        builder.add_sample(one, [i % 100 if i % 3 == 0 else 1000, []], lambda values: 1)
    seen: list[tuple[int, int]] = []
    for packed in builder.finish():
        rows = iter(packed.columns.samples())
        for part in packed.ranges:
            dropped_samples = {dropped_sample[0] for dropped_sample in part.dropped}
            seen += [
                (y, next(rows)[0])
                for y in range(part.first_index, part.first_index + part.count)
                if y not in dropped_samples
            ]
        assert list(rows) == []
    assert seen == [(i, i % 100) for i in range(0, 3000, 3)]


def test_a_header_does_not_grow_with_the_number_of_slots() -> None:
    slots = Slots(tuple(sparse_float_vector_sequence(10) for _ in range(1000)))
    builder, task = a_builder(slots)
    assert frame_count(slots) == 4000
    for file in range(MAX_RANGES):
        builder.add_sample(task(file), [[]] * 1000, lambda values: 1)
    (size,) = headers(builder)
    assert size < 32_000


def test_it_is_time_to_send_when_there_is_as_much_of_all_files_as_a_merge_lacks() -> None:
    builder, task = a_builder(Slots((dense_vector(1), integer_value(5))))
    first, second = task(1), task(2)

    def add(one: Any, count: int) -> bool:
        for _ in range(count):
            builder.add_sample(one, [[1.0], 3], lambda values: 1)
        return builder.is_full

    assert not add(first, 3)
    builder.lower_enough_rows(first, 5)
    builder.lower_enough_rows(second, 40)
    assert not add(second, 1)
    assert add(second, 1)
    builder.finish()
    assert not add(first, 20), "it is said anew when that was sent"
    builder.finish()
    builder.lower_enough_rows(first, 20)
    assert not add(second, 30), "what was sent is on its way"


def test_the_fullest_chunk_that_a_runner_lets_come_about_fits() -> None:
    builder, task = a_builder(Slots((dense_vector(1), integer_value(5))))
    while not builder.is_full:
        one = task(len(builder._segments) + (1 << 40))
        one.attempt = one.next_index = 1 << 40
        one.start = 1 << 40
        builder.add_sample(one, [[1.0], 3], lambda values: 1)
    sizes = headers(builder)
    assert len(sizes) == 1
    assert sizes[0] <= m.HEADER_LIMIT


def test_room_for_parts_is_what_files_that_wait_leave() -> None:
    big = (1 << 62) - 1
    empty = m.encode(m.Chunk(big, [], [[big] * 4] * MAX_BLOCKED, big, big))
    assert len(empty) + chunk_builder.MAX_RANGES_BYTES <= m.HEADER_LIMIT
    error = msgpack.packb({"kind": "ProviderError", "message": "x" * 24_000, "builtin": "x" * 40})
    assert chunk_builder._MAX_DROPPED_BYTES + len(error) + 80 <= chunk_builder.MAX_RANGES_BYTES


def test_a_hand_is_sent_by_itself() -> None:
    builder, task = a_builder()
    one = task(3)
    builder.add_sample(one, [1, [1, 2]], lambda values: 1)
    builder.add_sample(one, [2, []], lambda values: 1)
    before = one.spent_bytes
    (packed,) = builder.finish(one)
    assert [part.count for part in packed.ranges] == [1]
    assert one.unsent is not None
    assert one.spent_bytes + one.unsent.cost == before
    (part,) = (sent := builder.unsent_chunk(one, one.unsent)).ranges
    assert (part.first_index, part.count, part.rows, part.state) == (1, 1, 1, FILE_OPEN)
    assert sent.columns.samples() == [[2, []]]
    assert one.spent_bytes == before


def test_a_sample_to_be_held_that_turns_out_bad_is_no_hand() -> None:
    for drop, state in ((True, FILE_OPEN), (False, FILE_RAISED)):
        declared = schema(drop=drop, weighted=False)
        builder = ChunkBuilder(declared, lambda error, task, y: with_location(error, "f", y))
        task = task_of(fresh(0), declared)
        builder.add_sample(task, [1, []], lambda values: 1)
        builder.add_sample(task, [500, []], lambda values: 1)
        (packed,) = builder.finish(task)
        assert task.unsent is None
        assert packed.ranges[0].state == state
        assert packed.columns.samples() == [[1, []]]


def test_a_file_that_is_over_is_not_held_in_hand_either() -> None:
    declared = schema(drop=False, weighted=False)
    builder = ChunkBuilder(declared, lambda error, task, y: with_location(error, "f", y))
    task = task_of(fresh(0), declared)
    builder.add_sample(task, [500, []], lambda values: 1)
    builder.add_sample(task, [1, []], lambda values: 1)
    (packed,) = builder.finish(task)
    assert task.is_over
    assert task.unsent is None
    assert [(part.count, part.state) for part in packed.ranges] == [(0, FILE_RAISED)]


@settings(max_examples=30)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=200), chooser)
def test_files_that_are_empty_or_tiny_travel_together(lengths: list[int], choose: random.Random) -> None:
    contents: list[list[Yield]] = [[*(("good", k) for k in range(length % 3)), ("end", 0)] for length in lengths]
    ledger = run_at_random(choose, contents, schema(drop=False, weighted=False), cuts=0.0)
    for file, content in enumerate(contents):
        assert ledger.found[file] == expected(content, drop=False, weighted=False)


def test_a_block_that_fills_a_quarter_of_a_chunk_is_sent_without_a_copy_and_a_smaller_one_waits() -> None:
    declared = replace(schema(drop=False, weighted=False), slots=Slots((dense_vector(128),)))
    for count, is_enough in ((1200, False), (2400, True)):
        builder, task = ChunkBuilder(declared, lambda error, task, y: error), task_of(fresh(0), declared)
        values = np.ones((count, 128), np.float32)
        task.yielded = YieldedSamples(rows(values), declared.slots, True)
        while task.yielded is not None:
            assert not builder.is_full
            assert builder.add_yielded(task, task.next_stop, list, len)
        assert builder.is_full == is_enough
        (chunk,) = builder.finish()
        assert np.shares_memory(chunk.columns.arrays[0][0], values)
        assert not builder.is_full
