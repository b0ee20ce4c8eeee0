"""LoD tensors: what a LoD may be, joining, and the way to and from Ragged."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pydp2
from pydp2.errors import BadSample, OptionError, OptionTypeError
from pydp2.fluid import LoDTensor, check_lod, from_ragged, from_reader, to_ragged
from pydp2.fluid.tensors import concat, instance_of
from tests.array_likes import KINDS, Unreadable

LENGTHS = st.lists(st.lists(st.integers(0, 4), max_size=4), min_size=1, max_size=6)


def offsets(lengths: Any) -> list[int]:
    return [0, *np.cumsum(lengths, dtype=int).tolist()]


def nested(lengths: list[list[int]]) -> LoDTensor:
    """Sequences of sub-sequences of these lengths; rows are numbered."""
    flat = [n for inner in lengths for n in inner]
    return LoDTensor(np.arange(sum(flat)), [offsets([len(inner) for inner in lengths]), offsets(flat)])


@pytest.mark.parametrize(
    ("lod", "rows"),
    [
        ([], 5),
        ([[0, 5]], 5),
        ([[0, 0, 5, 5]], 5),
        ([[0, 2, 3], [0, 2, 2, 5]], 5),
        ([[0, 1], [0, 2], [0, 1, 4]], 4),
        ([[0, 0]], 0),
        ([np.array([0, 3], np.int32)], 3),
    ],
)
def test_cf_30_a_lod_that_is_one_is_accepted(lod: Any, rows: int) -> None:
    levels = check_lod(lod, rows)
    assert [level.tolist() for level in levels] == [list(map(int, level)) for level in lod]
    assert all(level.dtype == np.int64 for level in levels)
    assert len(LoDTensor(np.zeros((rows, 2)), lod).lod) == len(lod)


@pytest.mark.parametrize(
    ("lod", "message"),
    [
        ([[1, 5]], "starts with 0, level 0 with 1"),
        ([[0]], "at least 2 offsets, level 0 has 1"),
        ([[]], "at least 2 offsets, level 0 has 0"),
        ([[0, 4]], "the lowest level of a LoD ends with 4, but the data has 5 rows"),
        ([[0, 6]], "ends with 6, but the data has 5 rows"),
        ([[0, 3, 2, 5]], "never fall, level 0 goes from 3 to 2"),
        ([[0, 3], [0, 2, 5]], "level 0 of a LoD ends with 3, but level 1 has 2 sequences"),
        ([[0, 2], [2, 2, 5]], "level 1 with 2"),
    ],
)
def test_cf_30_a_lod_that_is_none_is_refused_with_the_rule(lod: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        check_lod(lod, 5)
    with pytest.raises(OptionError, match=message):
        LoDTensor(np.zeros(5), lod)


@pytest.mark.parametrize("lod", [[5], [[0.0, 5.0]], ["ab"], [[[0, 5]]]])
def test_levels_are_lists_of_whole_numbers(lod: Any) -> None:
    with pytest.raises(OptionTypeError, match="a level of a LoD is a list of whole numbers"):
        check_lod(lod, 5)


def test_a_tensor_shows_what_it_is_and_is_an_array_for_numpy() -> None:
    tensor = nested([[2, 0], [3]])
    assert repr(tensor) == "<LoDTensor int64 (5,), 2 sequences in 2 levels>"
    assert (len(tensor), tensor.shape, tensor.dtype) == (5, (5,), np.int64)
    assert np.asarray(tensor).tolist() == [0, 1, 2, 3, 4]
    assert np.asarray(tensor, np.float32).dtype == np.float32
    assert [lengths.tolist() for lengths in tensor.lengths()] == [[2, 1], [2, 0, 3]]
    assert [level.tolist() for level in tensor.absolute()] == [[0, 2, 5], [0, 2, 2, 5]]
    assert tensor.with_data(np.zeros((5, 3))).lod[0].tolist() == [0, 2, 3]
    with pytest.raises(OptionError, match="the data has 4 rows"):
        tensor.with_data(np.zeros(4))


def test_a_tensor_of_a_tensor_has_its_data() -> None:
    tensor = LoDTensor(np.arange(3), [[0, 1, 3]])
    assert LoDTensor(tensor).data is tensor.data
    assert LoDTensor(tensor).lod == ()


def fail(what: str, expected: str, got: str) -> BadSample:
    return BadSample(f"{what}: {expected}, {got}")


@given(st.lists(LENGTHS, min_size=1, max_size=5))
def test_cf_23_joined_lods_are_those_of_all_sequences_together(groups: list[list[list[int]]]) -> None:
    groups = [group for group in groups if sum(map(sum, group))] or [[[1]]]
    tensors = [nested(group) for group in groups]
    joined = concat(tensors, fail)
    whole = nested([inner for group in groups for inner in group])
    assert [level.tolist() for level in joined.lod] == [level.tolist() for level in whole.lod]
    assert np.array_equal(np.asarray(joined), np.concatenate([np.asarray(t) for t in tensors]))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8))
def test_sequences_go_to_ragged_and_back(lengths: list[int]) -> None:
    tensor = LoDTensor(np.arange(sum(lengths), dtype=np.float32), [offsets(lengths)])
    ragged = to_ragged(tensor)
    assert ragged.sequence_start_positions.tolist() == offsets(lengths)
    assert ragged.sequence_start_positions.dtype == np.int32
    assert ragged.sub_sequence_start_positions is None
    back = from_ragged(ragged)
    assert [level.tolist() for level in back.lod] == [offsets(lengths)]
    assert back.data is ragged.values


@given(LENGTHS)
def test_nested_sequences_go_to_ragged_and_back_or_are_refused_where_ragged_cannot_tell(
    lengths: list[list[int]],
) -> None:
    flat = [n for inner in lengths for n in inner]
    if not flat:
        return  # a level of no sequences is no LoD
    tensor = nested(lengths)
    ragged = to_ragged(tensor)
    assert len(ragged) == len(lengths)
    assert ragged.sub_sequence_start_positions is not None
    assert ragged.sub_sequence_start_positions.tolist() == offsets(flat)
    inner = [(a, b) for a, b in pairwise(lengths)]
    unclear = any(not a or not b or not a[-1] or not b[0] for a, b in inner)
    if not unclear:
        assert [level.tolist() for level in from_ragged(ragged).lod] == [level.tolist() for level in tensor.lod]
        return
    starts, subs = ragged.sequence_start_positions.tolist(), ragged.sub_sequence_start_positions.tolist()
    if any(subs.count(start) > 1 for start in starts[1:-1]):
        with pytest.raises(OptionError, match="does not say whose"):
            from_ragged(ragged)
        return
    again = to_ragged(from_ragged(ragged))  # sequences of nothing at an end: another LoD of the same positions
    assert again.sub_sequence_start_positions is not None
    assert (again.sequence_start_positions.tolist(), again.sub_sequence_start_positions.tolist()) == (starts, subs)


def test_what_a_service_delivers_becomes_a_tensor_and_back(provider_file: Any, text_files: Any) -> None:
    """Sub-sequences of a whole service, packed in a worker."""
    address = provider_file(
        """
        @provider(input_types=[integer_value_sub_sequence(100)])
        def process(settings, filename):
            yield [[1, 2], [3]]
            yield [[4], [5, 6, 7], [8]]
        """
    )
    with pydp2.load(text_files([[1]]), address, batch_size=2, shuffle=False, workers=1) as data:
        (batch,) = list(data)
    tensor = from_ragged(batch[0])
    assert [level.tolist() for level in tensor.lod] == [[0, 2, 5], [0, 2, 3, 4, 7, 8]]
    again = to_ragged(tensor)
    assert again.values is batch[0].values
    assert np.array_equal(again.sub_sequence_start_positions, batch[0].sub_sequence_start_positions)
    assert again.sequence_start_positions.dtype == batch[0].sequence_start_positions.dtype


def test_what_the_other_side_does_not_have_is_refused() -> None:
    with pytest.raises(OptionError, match="one or two levels of sequences, this LoD has 0"):
        to_ragged(LoDTensor(np.zeros(3)))
    with pytest.raises(OptionError, match="this LoD has 3"):
        to_ragged(LoDTensor(np.zeros(4), [[0, 1], [0, 2], [0, 1, 4]]))
    csr = pydp2.Csr(np.array([0, 1], np.int32), np.array([0], np.int32), None, (1, 5))
    with pytest.raises(OptionTypeError, match="dense or integer steps, these are sparse"):
        from_ragged(pydp2.Ragged(csr, np.array([0, 1], np.int32)))
    strings = pydp2.BinaryArray(np.array([0, 1]), np.zeros(1, np.uint8))
    with pytest.raises(OptionTypeError, match=r"dense or integer steps, these are strings \(BinaryArray\)"):
        from_ragged(pydp2.Ragged(strings, np.array([0, 1], np.int32)))
    for nested in (None, np.array([0], np.int32)):
        with pytest.raises(OptionError, match="has at least one sequence, this Ragged has none"):
            from_ragged(pydp2.Ragged(np.zeros(0), np.array([0], np.int32), nested))
    values = np.zeros(4)
    with pytest.raises(OptionError, match="must be one of sub_sequence_start_positions"):
        from_ragged(pydp2.Ragged(values, np.array([0, 3, 4], np.int32), np.array([0, 2, 4], np.int32)))
    with pytest.raises(OptionError, match="at time step 2, and a Ragged does not say whose it is"):
        from_ragged(pydp2.Ragged(values, np.array([0, 2, 4], np.int32), np.array([0, 2, 2, 4], np.int32)))


@pytest.mark.parametrize("lod", [None, 5, np.array(3)])
def test_a_lod_that_is_no_list_of_levels_is_a_type_error(lod: Any) -> None:
    with pytest.raises(OptionTypeError, match="a LoD is a list of levels"):
        LoDTensor(np.zeros(3), lod)
    with pytest.raises(OptionTypeError, match="a LoD is a list of levels"):
        check_lod(lod, 3)


MASKED = np.ma.array([1, 2], mask=[False, True])


@pytest.mark.parametrize("value", [MASKED, [MASKED, [3, 4]], [([5, 6], MASKED)], [1, np.ma.masked], np.ma.array([1])])
def test_a_mask_is_refused_and_not_dropped(value: Any) -> None:
    with pytest.raises(OptionTypeError, match=r"without a mask \(write x\.filled\(0\)\)"):
        LoDTensor(value)
    for source in (lambda: iter([[value]]), lambda: iter([[np.zeros(1), value]])):
        with pytest.raises(OptionTypeError, match=r"a reader must give .* slot [01] without a mask \(write x\.filled"):
            for _ in from_reader(source):
                pass


@pytest.mark.parametrize("kind", KINDS)
def test_what_exports_its_numbers_is_a_tensor(kind: Any) -> None:
    (tensor,) = instance_of([kind(np.arange(3.0))], "process")
    assert np.asarray(tensor).tolist() == [0, 1, 2]


def test_an_array_that_cannot_be_read_is_told_what_to_call() -> None:
    with pytest.raises(OptionTypeError, match=r"process must give numbers for slot 0 \(write x.numpy\(\)\), got"):
        instance_of([Unreadable([1.0])], "process")
