"""Write slots in the form of source code, as a provider declares them."""

from __future__ import annotations

from pydp2.data.schema.input_types import STRING_TYPES, DataType, InputType, SequenceType, Slots

_NAMES = {
    DataType.Dense: "dense_vector",
    DataType.SparseNonValue: "sparse_binary_vector",
    DataType.SparseValue: "sparse_float_vector",
    DataType.Index: "integer_value",
    DataType.Text: "text",
    DataType.Raw: "raw",
}
_LEVELS = {SequenceType.NO_SEQUENCE: "", SequenceType.SEQUENCE: "_sequence", SequenceType.SUB_SEQUENCE: "_sub_sequence"}
_SUB_SEQUENCE = "SequenceType.SUB_SEQUENCE"


def type_text(slot: InputType) -> str:
    """Return ``slot`` in the form of source code, such as ``dense_vector(64)``."""
    name, level = _NAMES[DataType(slot.type)], SequenceType(slot.seq_type)
    arguments = [] if slot.type in STRING_TYPES else [str(slot.dim)]
    if slot.is_scalar:
        name, arguments = "scalar", [] if slot.dtype is None else [f'"{slot.dtype.name}"']
    else:
        if slot.dtype is not None:
            arguments.append(f'dtype="{slot.dtype.name}"')
        if slot.shape is not None:
            arguments.append(f"shape={slot.shape}")
    if level == SequenceType.SUB_SEQUENCE and (slot.is_scalar or slot.type in STRING_TYPES):
        return f"{name}({', '.join([*arguments, f'seq_type={_SUB_SEQUENCE}'])})"
    return f"{name}{_LEVELS[level]}({', '.join(arguments)})"


def declaration_text(slots: Slots) -> str:
    """Return lines of Python that import what they need, and assign the declaration of ``slots`` to ``input_types``: a
    dict, or a list if they have no names."""
    types = [type_text(slot) for slot in slots.types]
    names = {text.partition("(")[0] for text in types} | {"SequenceType" for text in types if _SUB_SEQUENCE in text}
    lines = [f"from pydp2 import {', '.join(sorted(names))}", ""]
    if slots.names is None:
        return "\n".join([*lines, "input_types = [", *(f"    {text}," for text in types), "]"])
    entries = [f"    {_quoted(name)}: {text}," for name, text in zip(slots.names, types, strict=True)]
    return "\n".join([*lines, "input_types = {", *entries, "}"])


def _quoted(name: str) -> str:
    """Return ``name`` as a literal, in double quotes where it needs no escapes for them."""
    text = repr(name)
    return text if '"' in text or "\\" in text else f'"{text[1:-1]}"'
