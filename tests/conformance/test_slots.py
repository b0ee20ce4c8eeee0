"""What each kind of slot is in a batch: one service, one provider that declares all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pydp2
from pydp2 import Batch, Csr, InputType, Ragged

from ..provider_code import yields

CODE = """
from pydp2 import *

@provider(input_types={
    "dense": dense_vector(3), "id": integer_value(10), "binary": sparse_binary_vector(8),
    "floats": sparse_float_vector(8), "words": integer_value_sequence(100), "text": integer_value_sub_sequence(100),
    "frames": dense_vector_sequence(2), "shots": dense_vector_sub_sequence(2),
    "bags": sparse_binary_vector_sequence(8), "scores": sparse_float_vector_sequence(8),
    "bag_lists": sparse_binary_vector_sub_sequence(8), "wide": integer_value(2**40),
    "image": dense_vector(6, dtype="uint8", shape=(2, 3)),
})
def process(settings, filename):
    yield {
        "dense": [1.0, 2.0, 3.0], "id": 7, "binary": [5, 0, 2], "floats": [(6, 0.5), (1, -2.0)], "words": [4, 4, 9],
        "text": [[1, 2], [3]], "frames": [[1.0, 2.0], [3.0, 4.0]], "shots": [[[1.0, 1.0]], [[2.0, 2.0], [3.0, 3.0]]],
        "bags": [[7, 1], []], "scores": [[(2, 1.5)], [(0, 2.5), (7, 3.5)]], "bag_lists": [[[1], [2, 3]], [[0]]],
        "wide": 2**39, "image": [0, 1, 2, 3, 4, 255],
    }
    yield {
        "dense": (4.0, 5.0, 6.0), "id": 0, "binary": [], "floats": [], "words": [],
        "text": [], "frames": [], "shots": [[]],
        "bags": [], "scores": [[]], "bag_lists": [[], [[4]]],
        "wide": 0, "image": [9] * 6,
    }
    yield {
        "dense": [0.0, 0.0, 1.0], "id": 3, "binary": (1,), "floats": [(3, 4.0)], "words": (8,),
        "text": [[], [5, 6, 7]], "frames": [(5.0, 6.0)], "shots": [[[4.0, 4.0]]],
        "bags": [[3]], "scores": [], "bag_lists": [],
        "wide": 1, "image": range(6),
    }
"""


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory) -> Batch:
    """The one batch of a file with three samples of all kinds of slots."""
    path = tmp_path_factory.mktemp("slots") / "prov.py"
    path.write_text(CODE)
    with pydp2.load(["f"], f"{path}:process", batch_size=10, is_train=False, workers=1) as data:
        (only,) = data
    return only


def _is(array: Any, dtype: type, values: Any) -> None:
    assert isinstance(array, np.ndarray)
    assert array.dtype == dtype
    assert array.tolist() == values


def test_pd_01_a_batch_has_one_entry_for_each_declared_slot_in_their_order(batch: Batch) -> None:
    singles = ["dense", "id", "binary", "floats"]
    names = [*singles, "words", "text", "frames", "shots", "bags", "scores", "bag_lists", "wide", "image"]
    assert list(batch.keys()) == names
    assert [key for key, _ in batch.items()] == names
    assert len(list(batch)) == len(names)
    assert len(batch) == 3
    assert batch["id"] is batch[1]


def test_pd_01_slots_declared_as_a_list_are_found_by_position(deliver: Any) -> None:
    code = yields("[integer_value(10), dense_vector(1)]", "[(4, [0.5])]")
    ((batch,),) = deliver(code)
    assert batch.names is None
    assert batch.keys() == (0, 1)
    _is(batch[0], np.int32, [4])
    _is(batch[-1], np.float32, [[0.5]])
    with pytest.raises(IndexError, match="there is no slot 2: the batch has 2"):
        batch[2]
    with pytest.raises(KeyError, match="slots have no names"):
        batch["label"]


def test_pd_02_dense_samples_become_float32_matrices_and_every_pass_is_the_same(deliver: Any) -> None:
    code = yields("dense_vector(200)", "([i + j / 1000 for j in range(200)] for i in range(200))")
    first, second = deliver(code, passes=2, batch_size=100)
    expected = np.arange(200)[:, None] + np.arange(200)[None, :] / 1000
    assert [b[0].shape for b in first] == [(100, 200), (100, 200)]
    assert all(b[0].dtype == np.float32 for b in first)
    np.testing.assert_array_equal(np.concatenate([b[0] for b in first]), expected.astype(np.float32))
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a[0], b[0])


def test_pd_03_integers_are_int32_in_the_order_in_which_they_were_yielded(batch: Batch) -> None:
    # ten were asked for and three exist: the batch has three
    _is(batch["id"], np.int32, [7, 0, 3])


def test_pd_03_a_range_beyond_int32_gives_int64(batch: Batch) -> None:
    _is(batch["wide"], np.int64, [2**39, 0, 1])


def test_pd_02_a_dense_slot_may_declare_dtype_and_shape(batch: Batch) -> None:
    _is(batch["dense"], np.float32, [[1, 2, 3], [4, 5, 6], [0, 0, 1]])
    _is(batch["image"], np.uint8, [[[0, 1, 2], [3, 4, 255]], [[9] * 3, [9] * 3], [[0, 1, 2], [3, 4, 5]]])


def test_pd_04_sparse_binary_is_csr_without_values_and_columns_as_yielded(batch: Batch) -> None:
    csr = batch["binary"]
    assert isinstance(csr, Csr)
    _is(csr.indptr, np.int32, [0, 3, 3, 4])
    _is(csr.indices, np.int32, [5, 0, 2, 1])
    assert csr.values is None
    assert csr.shape == (3, 8)


def test_pd_05_sparse_float_has_values_beside_its_columns(batch: Batch) -> None:
    csr = batch["floats"]
    assert isinstance(csr, Csr)
    _is(csr.indptr, np.int32, [0, 2, 2, 3])
    _is(csr.indices, np.int32, [6, 1, 3])
    _is(csr.values, np.float32, [0.5, -2.0, 4.0])
    assert csr.shape == (3, 8)


def test_pd_06_integer_sequences_are_flat_with_start_positions(batch: Batch) -> None:
    words = batch["words"]
    assert isinstance(words, Ragged)
    _is(words.values, np.int32, [4, 4, 9, 8])
    _is(words.sequence_start_positions, np.int32, [0, 3, 3, 4])
    assert words.sub_sequence_start_positions is None
    assert len(words) == 3


def test_pd_07_both_position_vectors_of_nested_sequences_count_time_steps(batch: Batch) -> None:
    text = batch["text"]
    assert isinstance(text, Ragged)
    _is(text.values, np.int32, [1, 2, 3, 5, 6, 7])
    _is(text.sequence_start_positions, np.int32, [0, 3, 3, 6])
    _is(text.sub_sequence_start_positions, np.int32, [0, 2, 3, 3, 6])
    assert text.sub_sequence_start_positions is not None
    assert set(text.sequence_start_positions.tolist()) <= set(text.sub_sequence_start_positions.tolist())


def test_pd_08_dense_sequences_have_one_row_for_each_time_step(batch: Batch) -> None:
    frames, shots = batch["frames"], batch["shots"]
    assert isinstance(frames, Ragged)
    assert isinstance(shots, Ragged)
    _is(frames.values, np.float32, [[1, 2], [3, 4], [5, 6]])
    _is(frames.sequence_start_positions, np.int32, [0, 2, 2, 3])
    _is(shots.values, np.float32, [[1, 1], [2, 2], [3, 3], [4, 4]])
    _is(shots.sequence_start_positions, np.int32, [0, 3, 3, 4])
    _is(shots.sub_sequence_start_positions, np.int32, [0, 1, 3, 3, 4])


def test_pd_09_the_rows_of_sparse_sequences_are_time_steps(batch: Batch) -> None:
    bags, scores, nested = batch["bags"], batch["scores"], batch["bag_lists"]
    assert isinstance(bags, Ragged)
    assert isinstance(bags.values, Csr)
    _is(bags.values.indptr, np.int32, [0, 2, 2, 3])
    _is(bags.values.indices, np.int32, [7, 1, 3])
    assert bags.values.shape == (3, 8)
    _is(bags.sequence_start_positions, np.int32, [0, 2, 2, 3])
    assert isinstance(scores, Ragged)
    assert isinstance(scores.values, Csr)
    _is(scores.values.indptr, np.int32, [0, 1, 3, 3])
    _is(scores.values.indices, np.int32, [2, 0, 7])
    _is(scores.values.values, np.float32, [1.5, 2.5, 3.5])
    _is(scores.sequence_start_positions, np.int32, [0, 2, 3, 3])
    assert isinstance(nested, Ragged)
    assert isinstance(nested.values, Csr)
    _is(nested.values.indptr, np.int32, [0, 1, 3, 4, 5])
    _is(nested.values.indices, np.int32, [1, 2, 3, 0, 4])
    _is(nested.sequence_start_positions, np.int32, [0, 3, 4, 4])
    _is(nested.sub_sequence_start_positions, np.int32, [0, 2, 3, 3, 4])


def test_pd_10_an_empty_sequence_repeats_a_position_and_adds_nothing(batch: Batch) -> None:
    for name in ("words", "text", "frames", "shots", "bags"):
        ragged = batch[name]
        assert isinstance(ragged, Ragged)
        starts = ragged.sequence_start_positions
        assert starts[1] == starts[2], name
        assert starts[-1] == len(ragged.values), name


ALIASES: list[tuple[Callable[..., InputType], Callable[..., InputType]]] = [
    (pydp2.dense_slot, pydp2.dense_vector),
    (pydp2.dense_array, pydp2.dense_vector),
    (pydp2.index_slot, pydp2.integer_value),
    (pydp2.sparse_non_value_slot, pydp2.sparse_binary_vector),
    (pydp2.sparse_value_slot, pydp2.sparse_float_vector),
    (pydp2.sparse_vector, pydp2.sparse_float_vector),
    (pydp2.sparse_vector_sequence, pydp2.sparse_float_vector_sequence),
    (pydp2.sparse_vector_sub_sequence, pydp2.sparse_float_vector_sub_sequence),
    (pydp2.integer_sequence, pydp2.integer_value_sequence),
]


@pytest.mark.parametrize(("alias", "plain"), ALIASES)
def test_pd_11_an_alias_gives_an_equal_type(alias: Callable[..., InputType], plain: Callable[..., InputType]) -> None:
    assert alias(12) == plain(12)
    assert alias(12) != plain(13)


@pytest.mark.parametrize("name", ["dense_vector", "sparse_binary_vector", "sparse_float_vector", "integer_value"])
def test_pd_11_the_suffixes_mean_the_sequence_levels(name: str) -> None:
    plain = getattr(pydp2, name)
    levels = pydp2.SequenceType
    assert plain(4) == plain(4, levels.NO_SEQUENCE)
    assert getattr(pydp2, f"{name}_sequence")(4) == plain(4, levels.SEQUENCE)
    assert getattr(pydp2, f"{name}_sub_sequence")(4) == plain(4, levels.SUB_SEQUENCE)
    assert len({plain(4, level) for level in levels}) == 3


def test_pd_12_the_repr_of_a_type_names_its_codes() -> None:
    assert repr(pydp2.integer_sequence(10)) == (
        "InputType(dim=10, seq_type=SequenceType.SEQUENCE, type=DataType.Index)"
    )
    assert repr(pydp2.dense_vector(3)) == ("InputType(dim=3, seq_type=SequenceType.NO_SEQUENCE, type=DataType.Dense)")
    assert repr(InputType(5, 7, 9)) == "InputType(dim=5, seq_type=INVALID(7), type=INVALID(9))"


def test_a_batch_is_its_owners_and_no_other(deliver: Any) -> None:
    """Keeping every batch works, every array can be written, and writing into one reaches no other."""
    code = """
    @provider(input_types=[dense_vector(2), integer_value_sub_sequence(50), sparse_float_vector_sequence(9)])
    def process(settings, filename):
        for i in range(40):
            yield [float(i), 0.0], [[i], [i, i]], [[(i % 9, 1.0)], []]
    """

    def arrays(batch: Batch) -> list[np.ndarray[Any, Any]]:
        dense, words, bags = batch
        assert isinstance(dense, np.ndarray)
        assert isinstance(words, Ragged)
        assert isinstance(words.values, np.ndarray)
        assert isinstance(bags, Ragged)
        csr = bags.values
        assert isinstance(csr, Csr)
        assert csr.values is not None
        found = [dense, words.values, words.sequence_start_positions, words.sub_sequence_start_positions]
        return [*found, bags.sequence_start_positions, csr.indptr, csr.indices, csr.values]  # type: ignore[list-item]

    kept, untouched = deliver(code, passes=2, batch_size=7)
    assert [len(b) for b in kept] == [7, 7, 7, 7, 7, 5]
    for batch in kept:
        assert all(array.flags.writeable for array in arrays(batch))
    for array in arrays(kept[2]):
        array[...] = 99
    for i, (changed, same) in enumerate(zip(kept, untouched, strict=True)):
        for a, b in zip(arrays(changed), arrays(same), strict=True):
            assert np.array_equal(a, b) == (i != 2)
