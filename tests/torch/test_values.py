"""Tensors of torch as values of samples: those on the CPU are arrays, and the others are told what to call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")

import pydp2  # noqa: E402
from pydp2 import rows  # noqa: E402
from pydp2.data.schema.input_types import (  # noqa: E402
    InputType,
    Slots,
    dense_vector,
    dense_vector_sequence,
    integer_value,
    integer_value_sequence,
    integer_value_sub_sequence,
    raw,
    scalar,
    scalar_sequence,
    sparse_binary_vector,
    sparse_float_vector,
)
from pydp2.errors import BadSample, OptionTypeError  # noqa: E402
from pydp2.reader.feeding import DataFeeder  # noqa: E402
from tests.sample_cases import FORMS, verdict  # noqa: E402

PICTURE = torch.arange(60, dtype=torch.uint8).reshape(4, 5, 3)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    ("declared", "value"),
    [
        (dense_vector(3), torch.tensor([0.5, 1.5, 2.5])),
        (dense_vector(3), torch.tensor([1, 2, 3], dtype=torch.float16)),
        (dense_vector((3, 4, 5), dtype="uint8"), PICTURE.permute(2, 0, 1)),
        (dense_vector(60, dtype="uint8"), PICTURE),
        (dense_vector((2, 2), dtype="bool"), torch.eye(2) > 0),
        (dense_vector_sequence(2), torch.ones(3, 2)),
        (dense_vector_sequence(2), [torch.ones(2)] * 3),
        (scalar(), torch.tensor(1.5)),
        (scalar(), torch.tensor([1.5])),
        (scalar("int64"), torch.tensor(7)),
        (scalar_sequence(), torch.ones(3)),
        (integer_value(9), torch.tensor(7)),
        (integer_value_sequence(9), torch.tensor([7, 1])),
        (integer_value_sequence(9), list(torch.tensor([7, 1]))),
        (integer_value_sub_sequence(9), torch.tensor([[7, 1]])),
        (sparse_binary_vector(9), torch.tensor([7, 1])),
        (sparse_float_vector(9), [(torch.tensor(7), torch.tensor(0.5))]),
        (raw(), torch.tensor([1, 2], dtype=torch.uint8)),
    ],
)
def test_a_tensor_on_the_cpu_is_its_array(declared: InputType, value: Any, strict: bool, form: bool) -> None:
    array = [each.numpy() for each in value] if isinstance(value, list) and torch.is_tensor(value[0]) else value
    if torch.is_tensor(value):
        array = value.numpy()
    elif isinstance(value[0], tuple):
        array = [(7, 0.5)]
    expected = verdict(declared, array, strict, form)
    assert isinstance(expected, list), expected
    assert verdict(declared, value, strict, form) == expected


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("declared", "value", "words"),
    [
        (dense_vector(2), torch.ones(2, requires_grad=True), "(write x.detach().cpu()), got tensor([1., 1.], requires"),
        (dense_vector(2), torch.ones(2, device="meta"), "(write x.detach().cpu()), got"),
        (scalar(), torch.tensor(1.0, requires_grad=True), "(write x.detach().cpu()), got"),
        (dense_vector(2), [torch.tensor(1.0, requires_grad=True)] * 2, "(write x.detach().cpu()), got"),
        (dense_vector_sequence(2), torch.ones(3, 2, requires_grad=True), "(write x.detach().cpu()), got"),
        (integer_value_sequence(2), torch.ones(2, requires_grad=True), "(write x.detach().cpu()), got"),
        (dense_vector(2), torch.ones(2, dtype=torch.bfloat16), "(write x.float()), got"),
        (dense_vector(2), torch.ones(2).to_sparse(), "(write x.to_dense()), got"),
        (
            dense_vector((3, 4, 5)),
            PICTURE,
            "(write np.asarray(x).transpose(2, 0, 1)), got an array (Tensor) of shape (4, 5, 3) and dtype uint8",
        ),
    ],
)
def test_a_tensor_that_does_not_fit_is_told_what_to_write(
    declared: InputType, value: Any, words: str, form: bool
) -> None:
    assert words in verdict(declared, value, False, form)


NARROW = torch.tensor([1.0, 2.0], dtype=torch.bfloat16)


@pytest.mark.parametrize(
    "x",
    [
        NARROW,
        NARROW.clone().requires_grad_(),
        torch.ones(2).to(torch.float8_e4m3fn),
        NARROW.to_sparse(),
        torch.ones(2).to_sparse().requires_grad_(),
        torch._neg_view(torch.ones(2)),
        torch._neg_view(NARROW),
    ],
    ids=["bfloat16", "with gradient", "float8", "sparse", "sparse with gradient", "negative view", "negative bfloat16"],
)
def test_what_a_remedy_makes_of_a_tensor_is_taken(x: torch.Tensor) -> None:
    code = verdict(dense_vector(2), x, False, FORMS[0]).partition(" (write ")[2].rpartition("), got ")[0]
    assert verdict(dense_vector(2), eval(code, {"x": x}), False, FORMS[0]) == [[x.detach().to_dense().float().tolist()]]


def test_a_block_of_tensors_is_a_block_of_arrays() -> None:
    slots = Slots((dense_vector((3, 4, 5)), integer_value(9)), ("x", "y"))
    block, labels = torch.arange(180.0).reshape(3, 3, 4, 5), torch.tensor([1, 2, 3])
    laid = rows(x=block, y=labels).columns(slots, 0, 3)
    assert laid is not None
    assert [each[0].tolist() for each in laid.arrays] == [block.tolist(), labels.tolist()]
    with pytest.raises(OptionTypeError, match=r"x is a Tensor \(write x.detach\(\).cpu\(\)\)"):
        rows(x=block.requires_grad_())


def test_the_feeder_takes_tensors_and_tells_of_others() -> None:
    feeder = DataFeeder({"x": dense_vector((3, 4, 5)), "y": integer_value_sequence(9)})
    chw = PICTURE.permute(2, 0, 1)
    batch: Any = feeder([(chw, torch.tensor([1, 2]))])
    assert batch["x"].tolist() == [chw.float().tolist()]
    for value in (chw.float().requires_grad_(), [chw[0].float().requires_grad_()] * 3):
        with pytest.raises(BadSample, match=r"entry 0 of the mini-batch, x: .*\(write x.detach\(\).cpu\(\)\), got"):
            feeder([(value, [1])])
    with pytest.raises(BadSample, match=r"x: .*\(write np.asarray\(x\).transpose\(2, 0, 1\)\)"):
        feeder([(PICTURE, [1])])


CODE = """
import torch
from pydp2 import dense_vector, integer_value, provider, scalar

TYPES = {"image": dense_vector((3, 4, 5), dtype="uint8"), "label": integer_value(9), "weight": scalar()}

@provider(input_types=TYPES, pool_size=8)
def process(settings, filename):
    image = torch.arange(60, dtype=torch.uint8).reshape(4, 5, 3)
    for i in range(9):
        yield {"image": image.permute(2, 0, 1), "label": torch.tensor(i), "weight": torch.tensor(i / 2)}
    yield {"image": image, "label": torch.tensor(0), "weight": torch.tensor(0.0)}
"""


def test_a_provider_may_yield_tensors(provider_file: Any) -> None:
    words = r"file f, sample 9, slot image: .*\(write np.asarray\(x\).transpose\(2, 0, 1\)\)"
    with pydp2.load(["f"], provider_file(CODE), batch_size=9, workers=1, shuffle=False) as data:
        batches = iter(data)
        batch: Any = next(batches)
        assert batch["image"].tolist() == [PICTURE.permute(2, 0, 1).tolist()] * 9
        assert batch["label"].tolist() == [*range(9)]
        assert batch["weight"].tolist() == (np.arange(9) / 2).tolist()
        with pytest.raises(BadSample, match=words):
            next(batches)
