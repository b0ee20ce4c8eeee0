"""Batches as tensors: the same numbers as in the arrays, without a copy where that can be."""

from __future__ import annotations

import importlib
import subprocess
import sys
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch: Any = pytest.importorskip("torch")

from pydp2.data.columns.batch import Batch, BinaryArray, Csr, Ragged, StringArray  # noqa: E402
from pydp2.data.schema.input_types import (  # noqa: E402
    DataType,
    Slots,
    dense_vector,
    dense_vector_sequence,
    integer_value,
    integer_value_sequence,
    integer_value_sub_sequence,
    is_bfloat16,
    sparse_binary_vector,
    sparse_binary_vector_sequence,
    sparse_float_vector,
)
from pydp2.errors import OptionError, OptionTypeError  # noqa: E402
from pydp2.torch.tensors import PaddedTensor, RaggedTensor, TensorConverter, to_tensors  # noqa: E402
from tests.sample_cases import columns_of, good_values, slots  # noqa: E402


def batch_of(declared: Slots, samples: list[Any]) -> Batch:
    return Batch(columns_of(declared, samples), pass_id=0, index=0, size=len(samples))


@st.composite
def batches(draw: Any) -> Batch:
    declared = draw(slots())
    sample = st.tuples(*(good_values(each) for each in declared.types)).map(list)
    return batch_of(declared, draw(st.lists(sample, max_size=4)))


def same(array: Any, tensor: Any) -> bool:
    return np.array_equal(array, tensor.numpy(), equal_nan=array.dtype.kind == "f")


def entries(value: Csr) -> list[dict[int, float]]:
    """Each row as its columns and their values."""
    edges = value.indptr.tolist()
    floats = np.ones(len(value.indices)) if value.values is None else value.values
    return [dict(zip(value.indices[a:b].tolist(), floats[a:b].tolist(), strict=True)) for a, b in pairwise(edges)]


def check(value: Any, tensor: Any) -> None:
    """Slot by slot the same numbers."""
    if isinstance(value, Ragged):
        assert isinstance(tensor, RaggedTensor)
        check(value.values, tensor.values)
        assert same(value.sequence_start_positions, tensor.offsets)
        subs = value.sub_sequence_start_positions
        assert tensor.sub_offsets is None if subs is None else same(subs, tensor.sub_offsets)
    elif isinstance(value, Csr):
        assert tensor.layout is torch.sparse_csr
        assert tensor.shape == value.shape
        rows = Csr(tensor.crow_indices().numpy(), tensor.col_indices().numpy(), tensor.values().numpy(), value.shape)
        assert repr(entries(rows)) == repr([dict(sorted(row.items())) for row in entries(value)])
    elif isinstance(value, BinaryArray | StringArray):
        assert tensor == value.to_list()
    elif is_bfloat16(value.dtype):
        assert tensor.dtype is torch.bfloat16
        assert same(value.astype(np.float32), tensor.float())
    else:
        assert same(value, tensor)


@given(batches())
def test_the_tensors_have_the_numbers_of_the_arrays_whatever_the_slots(batch: Batch) -> None:
    tensors = to_tensors(batch)
    assert isinstance(tensors, tuple) if batch.names is None else list(tensors) == list(batch.names)
    for value, tensor in zip(batch, tensors if isinstance(tensors, tuple) else tensors.values(), strict=True):
        check(value, tensor)


def arrays_of(tensor: Any) -> list[Any]:
    """The memory of a tensor, of the parts of a sparse one, of sequences."""
    if isinstance(tensor, RaggedTensor):
        return [array for part in tensor if part is not None for array in arrays_of(part)]
    if isinstance(tensor, list):
        return []
    if tensor.layout is torch.sparse_csr:
        return [each.numpy() for each in (tensor.crow_indices(), tensor.col_indices(), tensor.values())]
    return [(tensor.view(torch.int16) if tensor.dtype is torch.bfloat16 else tensor).numpy()]


@given(batches(), st.lists(st.integers(0, 4), max_size=3), st.sampled_from([torch.int64, torch.int32]))
def test_batches_that_came_together_have_tensors_of_their_own(uninterrupted: Batch, cuts: list[int], kind: Any) -> None:
    wide = any(each.dim > 2**31 and each.type != DataType.Dense for each in uninterrupted.slots.types)
    converter = TensorConverter(uninterrupted.slots, index_dtype=torch.int64 if wide else kind)
    edges = sorted({0, len(uninterrupted), *(min(each, len(uninterrupted)) for each in cuts)})
    parts = [uninterrupted._columns.slice(lo, hi) for lo, hi in pairwise(edges)] or [uninterrupted._columns]
    several = [Batch(each, pass_id=0, index=0, size=each.rows) for each in parts]
    seen: list[Any] = []
    for batch in several:
        tensors = converter.convert_next(batch)
        values = tensors if isinstance(tensors, tuple) else list(tensors.values())
        mine = [array for tensor in values for array in arrays_of(tensor)]
        assert all(array.flags.writeable for array in mine)
        assert not any(np.shares_memory(array, other) for array in mine for other in seen)
        seen += mine
        for declared, value, tensor in zip(batch.slots.types, batch, values, strict=True):
            check(value, tensor)
            if declared.type == DataType.Dense and declared.seq_type == 0 and len(batch):
                assert np.shares_memory(value, arrays_of(tensor)[0])


def test_what_was_written_into_the_values_of_a_batch_is_what_its_tensors_get(words: Batch) -> None:
    words["label"][:] = 7  # type: ignore[index,call-overload]
    assert TensorConverter(words.slots).convert_next(words)["label"].tolist() == [7, 7, 7]  # type: ignore[call-overload]


@given(batches())
def test_a_default_device_moves_nothing(batch: Batch) -> None:
    """It is that of one thread, and batches are converted in two."""
    converter = TensorConverter(batch.slots)
    with torch.device("meta"):
        first, second = converter(batch), converter.convert_next(batch)
    for tensors in (first, second):
        for tensor in tensors if isinstance(tensors, tuple) else tensors.values():
            assert all(array is not None for array in arrays_of(tensor))  # numpy() is refused elsewhere


WORDS = Slots(
    (dense_vector(2), integer_value(10), integer_value_sequence(9), integer_value_sub_sequence(9)),
    ("pixel", "label", "words", "texts"),
)


@pytest.fixture
def words() -> Batch:
    return batch_of(
        WORDS, [[[0.0, 1.0], 3, [1, 2, 3], [[1], [2, 3]]], [[2.0, 3.0], 4, [], []], [[4.0, 5.0], 5, [4], [[5, 6, 7]]]]
    )


def test_dense_values_are_not_copied_and_labels_are_such_as_a_loss_takes(words: Batch) -> None:
    tensors = to_tensors(words)
    tensors["pixel"][0, 0] = 9
    assert words["pixel"][0, 0] == 9  # type: ignore[index,call-overload]
    assert tensors["label"].dtype is torch.int64
    assert torch.nn.functional.cross_entropy(torch.zeros(3, 10), tensors["label"]) > 0
    assert to_tensors(words, index_dtype=torch.int32)["words"].values.dtype is torch.int32


def test_sequences_are_padded_or_nested_on_request(words: Batch) -> None:
    padded = to_tensors(words, pad={"words": -100, "texts": 0}, pad_to=2)
    assert isinstance(padded["words"], PaddedTensor)
    assert padded["words"].values.tolist() == [[1, 2], [-100, -100], [4, -100]]
    assert padded["words"].lengths.tolist() == [2, 0, 1]
    assert padded["texts"].values.tolist() == [[1, 2], [0, 0], [5, 6]]
    assert to_tensors(words, pad=0)["words"].values.shape == (3, 3)
    nested = to_tensors(words, nested=True, pad={"texts": 0})["words"]
    assert nested.is_nested
    assert [each.tolist() for each in nested.unbind()] == [[1, 2, 3], [], [4]]


def test_sequences_of_vectors_are_nested_and_padded() -> None:
    batch = batch_of(Slots((dense_vector_sequence(2),), None), [[[[1.0, 2.0], [3.0, 4.0]]], [[[5.0, 6.0]]]])
    (nested,) = to_tensors(batch, nested=True)
    assert [each.shape for each in nested.unbind()] == [(2, 2), (1, 2)]
    ((values, lengths),) = to_tensors(batch, pad=0.5)
    assert values.tolist() == [[[1, 2], [3, 4]], [[5, 6], [0.5, 0.5]]]
    assert lengths.tolist() == [2, 1]


def test_sparse_rows_are_a_matrix_that_multiplies_and_a_bag_of_embeddings() -> None:
    declared = Slots((sparse_binary_vector(5), sparse_float_vector(5)), ("words", "weights"))
    batch = batch_of(declared, [[[3, 0], [(4, 0.5), (1, 2.0)]], [[], []], [[2], [(0, -1.0)]]])
    tensors = to_tensors(batch)
    assert tensors["words"].to_dense().tolist() == [[1, 0, 0, 1, 0], [0] * 5, [0, 0, 1, 0, 0]]
    assert (tensors["weights"] @ torch.eye(5)).tolist() == [[0, 2, 0, 0, 0.5], [0] * 5, [-1, 0, 0, 0, 0]]
    bag = torch.nn.EmbeddingBag(5, 2, mode="sum", include_last_offset=True)
    summed = bag(tensors["words"].col_indices(), tensors["words"].crow_indices())
    assert torch.allclose(summed[0], bag.weight[0] + bag.weight[3])
    assert summed[1].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"index_dtype": torch.int16}, OptionError, "torch.int64 or torch.int32, got torch.int16"),
        ({"pad_to": 3}, OptionError, "pad_to needs pad"),
        ({"pad": {"label": 0}}, OptionError, "slots of sequences, and 'label' is none"),
        ({"pad": "0"}, OptionTypeError, "pad must be a number, or a dict"),
        ({"pad": {"word": 0}}, KeyError, "no slot is called 'word'"),
        ({"nested": True}, OptionTypeError, "texts has sequences of sequences"),
    ],
)
def test_an_option_that_the_slots_cannot_have_says_what_to_do(
    words: Batch, options: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        to_tensors(words, **options)


def test_sequences_of_sparse_rows_can_only_be_had_as_they_are() -> None:
    batch = batch_of(Slots((sparse_binary_vector_sequence(5),), ("steps",)), [[[[1], [0, 4]]], [[]]])
    check(batch["steps"], to_tensors(batch)["steps"])
    for options in ({"pad": 0}, {"nested": True}):
        with pytest.raises(OptionTypeError, match="those of steps are sparse"):
            to_tensors(batch, **options)
    wide = batch_of(Slots((integer_value(2**31 + 1),), None), [[2**31]])
    assert to_tensors(wide)[0].tolist() == [2**31]
    with pytest.raises(OptionError, match=r"slot 0 has indices up to 2147483649, which need index_dtype=torch.int64"):
        to_tensors(wide, index_dtype=torch.int32)


def test_a_batch_moves_itself_where_a_loop_of_torch_moves_what_its_loader_gives(words: Batch) -> None:
    moved = words.to("meta")
    assert {name: str(each.device) for name, each in moved.items() if name != "words" and name != "texts"} == {
        "pixel": "meta", "label": "meta",
    }  # fmt: skip
    assert words.to("cpu", non_blocking=True)["pixel"].tolist() == words["pixel"].tolist()  # type: ignore[union-attr]
    if torch.accelerator.is_available():
        assert words.pin_memory()["pixel"].is_pinned()


PROGRAM = """
import sys
import pydp2
from pydp2_samples import path
with pydp2.load("train.list", "digits_provider.process", root=path("digits"), batch_size=9, workers=1) as client:
    for batch in client:
        assert "torch" not in sys.modules
        print(tuple(batch.to("meta")["pixel"].shape))
        break
"""


def test_a_batch_moves_itself_in_a_program_that_has_imported_no_adapter() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "(9, 64)\n"


def test_sequences_are_of_one_class_for_torch_and_paddle_and_pickles_of_before_find_it() -> None:
    for module in ("pydp2.torch", "pydp2.torch.tensors", "pydp2.frameworks.slot_visitor"):
        assert importlib.import_module(module).RaggedTensor is RaggedTensor
        assert importlib.import_module(module).PaddedTensor is PaddedTensor
