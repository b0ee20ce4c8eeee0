"""Slots in the form of source code: what is shown can be pasted, and declares the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies

import pydp2
from pydp2.data.schema.input_types import STRING_TYPES, DataType, InputType, Slots, scalar, text
from pydp2.diagnostics.declaration import declaration_text, type_text

from ..sample_cases import input_types


@given(
    types=strategies.lists(input_types(), min_size=1, max_size=4),
    names=strategies.none() | strategies.lists(strategies.text(), min_size=4, max_size=4, unique=True),
)
def test_the_lines_that_declare_slots_declare_equal_ones(types: list[InputType], names: list[str] | None) -> None:
    slots = Slots(tuple(types), None if names is None else tuple(names[: len(types)]))
    found: dict[str, Any] = {}
    exec(declaration_text(slots), found)
    assert found["input_types"] == (types if names is None else dict(zip(names, types, strict=False)))
    assert all(getattr(pydp2, name) is found[name] for name in found.keys() - {"input_types", "__builtins__"})


def test_the_lines_are_those_that_an_author_writes() -> None:
    named = Slots((text(), scalar("int64")), ("review", 'the "best"'))
    assert declaration_text(named) == (
        "from pydp2 import scalar, text\n\n"
        'input_types = {\n    "review": text(),\n    \'the "best"\': scalar("int64"),\n}'
    )
    assert declaration_text(Slots((text(),))) == "from pydp2 import text\n\ninput_types = [\n    text(),\n]"


@pytest.mark.parametrize("kind", DataType)
@pytest.mark.parametrize("level", ["", "_sequence", "_sub_sequence"])
def test_a_declaration_is_shown_as_its_author_writes_it(kind: DataType, level: str) -> None:
    names = {
        DataType.Dense: "dense_vector", DataType.SparseNonValue: "sparse_binary_vector",
        DataType.SparseValue: "sparse_float_vector", DataType.Index: "integer_value",
        DataType.Text: "text", DataType.Raw: "raw",
    }  # fmt: skip
    arguments = "" if kind in STRING_TYPES else "7"
    text = f"{names[kind]}{level}({arguments})"
    if text.startswith(("text_sub", "raw_sub")):
        text = f"{names[kind]}(seq_type=SequenceType.SUB_SEQUENCE)"
    assert type_text(eval(text, vars(pydp2.data.schema.input_types))) == text


@pytest.mark.parametrize("text", ["scalar()", 'scalar("int64")', 'scalar_sequence("bool")', "dense_vector(1)"])
def test_a_scalar_is_shown_as_its_author_writes_it(text: str) -> None:
    assert type_text(eval(text, vars(pydp2.data.schema.input_types))) == text
