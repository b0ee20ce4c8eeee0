"""The statements of the conformance checklist that hold for samples, columns and batches by themselves."""

from __future__ import annotations

import numpy as np
import pytest

import pydp2 as api
from pydp2.data.columns.batch import Batch, Csr, Ragged
from pydp2.data.columns.columns import Columns
from pydp2.data.packers.packer import Packer
from pydp2.data.packers.slot_order import SlotOrder
from pydp2.data.schema.input_types import (
    InputType,
    Slots,
    dense_vector,
    dense_vector_sequence,
    dense_vector_sub_sequence,
    integer_value,
    integer_value_sequence,
    integer_value_sub_sequence,
    sparse_binary_vector,
    sparse_binary_vector_sequence,
    sparse_float_vector,
    sparse_float_vector_sub_sequence,
)
from pydp2.errors import BadSample


def pack(slots, yielded, strict=False):
    """What happens to the samples of a provider on the way to columns."""
    wrapper, packer = SlotOrder(slots), Packer(slots, strict)
    for sample in yielded:
        packer.add(wrapper.arrange(sample))
    return packer.finish()


def batches(declared, yielded, batch_size=None, names=None):
    """The samples as batches, in yield order."""
    slots = Slots(tuple(declared), names)
    cut = pack(slots, yielded)
    assert not cut.bad, cut.bad[0][1]
    size = batch_size or max(1, cut.columns.rows)
    parts = [cut.columns.slice(lo, lo + size) for lo in range(0, cut.columns.rows, size)]
    return [Batch(part, pass_id=0, index=i, size=part.rows) for i, part in enumerate(parts)]


def column(declared, yielded):
    (batch,) = batches([declared], yielded)
    return batch[0]


def refusal(declared, value, strict=False):
    """The BadSample about ``value``; a failure if there is none."""
    try:
        cut = pack(Slots((declared,)), [value], strict)
    except BadSample as exc:
        return exc
    assert cut.columns.rows == 0
    return cut.bad[0][1]


def test_pd_1_a_batch_has_one_entry_per_declared_type_in_order():
    (batch,) = batches([dense_vector(2), integer_value(3), sparse_binary_vector(4)], [([0.5, 1.5], 2, [3])])
    assert [type(v) for v in batch] == [np.ndarray, np.ndarray, Csr]
    assert batch[1].tolist() == [2]


def test_pd_2_dense_samples_in_batches_of_100_are_float32_matrices():
    samples = [[float(i)] * 200 for i in range(200)]
    for _ in range(2):
        first, second = batches([dense_vector(200)], samples, batch_size=100)
        assert first[0].shape == second[0].shape == (100, 200)
        assert first[0].dtype == np.float32
        assert np.concatenate([first[0], second[0]]).tolist() == samples


def test_pd_3_ids_are_int32_in_yield_order_one_per_sample():
    ids = column(integer_value(100), [5, 3, 99])
    assert (ids.dtype, ids.shape, ids.tolist()) == (np.int32, (3,), [5, 3, 99])


def test_pd_4_sparse_binary_is_csr_with_columns_in_yield_order_and_no_values():
    csr = column(sparse_binary_vector(50), [[7, 3], [], [49]])
    assert csr.indptr.tolist() == [0, 2, 2, 3]
    assert csr.indices.tolist() == [7, 3, 49]
    assert csr.indptr.dtype == csr.indices.dtype == np.int32
    assert csr.values is None
    assert csr.shape == (3, 50)


def test_pd_5_sparse_float_has_values_aligned_with_the_columns():
    csr = column(sparse_float_vector(50), [[(7, 0.5), (3, 1.5)], [(1, 2.5)]])
    assert list(zip(csr.indices.tolist(), csr.values.tolist(), strict=True)) == [(7, 0.5), (3, 1.5), (1, 2.5)]
    assert csr.values.dtype == np.float32


def test_pd_6_an_integer_sequence_has_flat_ids_and_start_positions():
    ragged = column(integer_value_sequence(10), [[1, 2, 3], [4]])
    assert isinstance(ragged, Ragged)
    assert ragged.values.tolist() == [1, 2, 3, 4]
    assert ragged.sequence_start_positions.tolist() == [0, 3, 4]
    assert ragged.sequence_start_positions.dtype == np.int32
    assert ragged.sub_sequence_start_positions is None


def test_pd_7_both_position_vectors_of_a_nested_sequence_count_time_steps():
    ragged = column(integer_value_sub_sequence(10), [[[1, 2], [3]], [[4], [], [5, 6]]])
    assert ragged.values.tolist() == [1, 2, 3, 4, 5, 6]
    assert ragged.sequence_start_positions.tolist() == [0, 3, 6]
    assert ragged.sub_sequence_start_positions.tolist() == [0, 2, 3, 4, 4, 6]
    assert set(ragged.sequence_start_positions) <= set(ragged.sub_sequence_start_positions)
    assert ragged.sequence_start_positions.dtype == ragged.sub_sequence_start_positions.dtype == np.int32


def test_pd_8_dense_sequences_have_one_row_per_time_step():
    flat = column(dense_vector_sequence(2), [[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0]]])
    assert flat.values.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert flat.sequence_start_positions.tolist() == [0, 2, 3]
    nested = column(dense_vector_sub_sequence(2), [[[[1.0, 2.0]], [[3.0, 4.0]]], [[[5.0, 6.0]]]])
    assert nested.values.shape == (3, 2)
    assert nested.sub_sequence_start_positions.tolist() == [0, 1, 2, 3]


def test_pd_9_the_csr_rows_of_a_sparse_sequence_are_time_steps():
    flat = column(sparse_binary_vector_sequence(9), [[[1, 2], []], [[3]]])
    assert flat.values.indptr.tolist() == [0, 2, 2, 3]
    assert flat.values.shape == (3, 9)
    assert flat.sequence_start_positions.tolist() == [0, 2, 3]
    nested = column(sparse_float_vector_sub_sequence(9), [[[[(1, 0.5)]], [[(2, 1.5)], []]]])
    assert nested.values.shape == (3, 9)
    assert nested.sequence_start_positions.tolist() == [0, 3]
    assert nested.sub_sequence_start_positions.tolist() == [0, 1, 3]


def test_pd_10_an_empty_sequence_repeats_a_position_and_adds_no_element():
    flat = column(integer_value_sequence(10), [[1], [], [2]])
    assert flat.sequence_start_positions.tolist() == [0, 1, 1, 2]
    assert flat.values.tolist() == [1, 2]
    nested = column(integer_value_sub_sequence(10), [[], [[]], [[1]]])
    assert nested.sequence_start_positions.tolist() == [0, 0, 0, 1]
    assert nested.sub_sequence_start_positions.tolist() == [0, 0, 1]


def test_pd_11_all_aliases_give_equal_input_types():
    for level in (0, 1, 2):
        assert api.dense_vector(5, level) == api.dense_slot(5, level) == api.dense_array(5, level)
        assert api.integer_value(5, level) == api.index_slot(5, level)
        assert api.sparse_binary_vector(5, level) == api.sparse_non_value_slot(5, level)
        assert api.sparse_float_vector(5, level) == api.sparse_value_slot(5, level) == api.sparse_vector(5, level)
    for kind in ("dense_vector", "integer_value", "sparse_binary_vector", "sparse_float_vector"):
        assert getattr(api, f"{kind}_sequence")(5) == getattr(api, kind)(5, 1)
        assert getattr(api, f"{kind}_sub_sequence")(5) == getattr(api, kind)(5, 2)
    assert api.integer_sequence(5) == api.integer_value_sequence(5)
    assert api.sparse_vector_sequence(5) == api.sparse_float_vector_sequence(5)
    assert api.sparse_vector_sub_sequence(5) == api.sparse_float_vector_sub_sequence(5)


def test_pd_12_repr_names_dim_seq_type_and_type_and_marks_unknown_codes():
    assert repr(integer_value_sequence(10)) == (
        "InputType(dim=10, seq_type=SequenceType.SEQUENCE, type=DataType.Index)"
    )
    assert repr(InputType(10, 7, 9)) == "InputType(dim=10, seq_type=INVALID(7), type=INVALID(9))"


def test_pd_13_a_list_yielded_for_a_single_slot_is_its_value():
    assert column(integer_value_sequence(10), [[1, 2]]).values.tolist() == [1, 2]
    assert refusal(integer_value(10), [1]).expected == "an int in [0, 10)"


def test_pd_14_a_single_slot_with_dict_types_takes_a_bare_value_and_a_dict():
    (batch,) = batches([integer_value(10)], [3, {"label": 4}], names=("label",))
    assert batch["label"].tolist() == [3, 4]


def test_pd_15_dict_samples_are_ordered_by_name_whatever_the_dict_order():
    samples = [{"a": 1, "b": 2}, {"b": 4, "a": 3}]
    (batch,) = batches([integer_value(10), integer_value(10)], samples, names=("b", "a"))
    assert (batch[0].tolist(), batch["a"].tolist()) == ([2, 4], [1, 3])


def test_pd_16_tuples_under_dict_types_are_taken_by_position():
    (batch,) = batches([integer_value(10), integer_value(10)], [(1, 2), [3, 4]], names=("b", "a"))
    assert (batch["b"].tolist(), batch["a"].tolist()) == ([1, 3], [2, 4])


@pytest.mark.parametrize("strict", [False, True])
def test_pd_17_a_dict_sample_with_list_types_is_a_type_error(strict):
    for slots in (Slots((integer_value(10),)), Slots((integer_value(10),) * 2)):
        with pytest.raises(TypeError) as caught:
            pack(slots, [{"a": 1, "b": 2}], strict)
        assert not isinstance(caught.value, BadSample)


@pytest.mark.parametrize("strict", [False, True])
def test_pd_18_a_dict_sample_that_lacks_a_name_is_a_bad_sample_that_names_it(strict):
    with pytest.raises(BadSample, match="label"):
        pack(Slots((integer_value(10),) * 2, ("pixel", "label")), [{"pixel": 1}], strict)


def test_pd_19_unknown_keys_of_a_dict_sample_are_ignored():
    (batch,) = batches([integer_value(10)] * 2, [{"z": object(), "a": 1, "b": 2}], names=("a", "b"))
    assert (batch["a"].tolist(), batch["b"].tolist()) == ([1], [2])


@pytest.mark.parametrize("sample", [(1,), (1, 2, 3), [], 5])
@pytest.mark.parametrize("names", [None, ("a", "b")])
def test_pd_21_a_wrong_number_of_values_is_a_bad_sample(sample, names):
    with pytest.raises(BadSample, match="2 values"):
        pack(Slots((integer_value(10),) * 2, names), [sample])


def test_pd_48_out_of_range_ids_never_reach_a_batch_and_the_others_all_do():
    rng = np.random.default_rng(0)
    ids = rng.integers(-3, 13, 1000).tolist()
    cut = pack(Slots((integer_value(10),)), ids, strict=True)
    good = [i for i in ids if 0 <= i < 10]
    assert Batch(cut.columns, pass_id=0, index=0, size=len(good))[0].tolist() == good
    assert [row for row, _ in cut.bad] == [row for row, i in enumerate(ids) if not 0 <= i < 10]


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        (sparse_binary_vector(10), [3, 3]),
        (sparse_float_vector(10), [(3, 1.0), (3, 2.0)]),
        (dense_vector(3), [1.0, 2.0]),
        (dense_vector(3), [1.0, 2.0, 3.0, 4.0]),
        (dense_vector(3), np.zeros(4)),
        (dense_vector(2), [1.0, 2]),
        (integer_value(10), 10),
        (integer_value(10), -1),
        (integer_value_sequence(10), [1, 10]),
        (sparse_binary_vector(10), [10]),
        (sparse_binary_vector(10), [-1]),
        (sparse_float_vector(10), [(10, 1.0)]),
        (sparse_float_vector(10), [(-1, 1.0)]),
    ],
)
def test_pd_51_duplicates_lengths_ints_and_ranges_make_a_bad_sample(declared, value):
    refused = refusal(declared, value, strict=True)
    assert refused.slot == "slot 0"
    assert refused.expected in str(refused)
    assert refused.got in str(refused)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_pd_52_float_arrays_are_accepted_for_dense_slots(dtype, strict):
    values = np.array([0.5, 1.5], dtype)
    cut = pack(Slots((dense_vector(2), dense_vector_sequence(2))), [(values, [values, values])], strict)
    assert cut.columns.arrays[0][0].tolist() == [[0.5, 1.5]]
    assert cut.columns.arrays[1][1].tolist() == [[0.5, 1.5]] * 2


def test_batches_are_the_same_after_a_journey_over_the_wire():
    slots = Slots((integer_value_sub_sequence(10), sparse_float_vector(10)))
    columns = pack(slots, [([[1, 2], []], [(1, 0.5)]), ([], [])]).columns
    frames = [bytes(f) for f in columns.frames()]
    batch = Batch(Columns.from_frames(Slots.from_wire(slots.to_wire()), 2, frames), pass_id=0, index=0, size=2)
    assert batch[0].values.tolist() == [1, 2]
    assert batch[0].sub_sequence_start_positions.tolist() == [0, 2, 2]
    assert batch[1].indptr.tolist() == [0, 1, 1]
