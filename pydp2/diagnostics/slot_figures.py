"""Collect figures of a slot: the forms in which its values were yielded, and ranges and counts of its packed arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pydp2.data.columns.columns import Array
from pydp2.data.schema.input_types import DataType, Field, InputType, SequenceType, Slots, is_bfloat16
from pydp2.diagnostics.declaration import type_text
from pydp2.errors import count_text

_FORMS = 6  # different forms that are listed


@dataclass
class Range:
    """Minimum and maximum of the finite numbers among ``count`` numbers; None if there are none."""

    least: float | int | None = None
    most: float | int | None = None
    count: int = 0
    not_finite: int = 0

    def add(self, array: Array) -> None:
        """Add the numbers of ``array``."""
        self.count += array.size
        if array.dtype.kind == "f":
            finite = np.isfinite(array)
            if not finite.all():
                self.not_finite += int(array.size - np.count_nonzero(finite))
                array = array[finite]
        if array.size:
            self._widen(array.min().item(), array.max().item())

    def join(self, other: Range) -> None:
        """Add the numbers of ``other``."""
        self.count += other.count
        self.not_finite += other.not_finite
        if other.least is not None and other.most is not None:
            self._widen(other.least, other.most)

    def _widen(self, least: float, most: float) -> None:
        self.least = least if self.least is None else min(self.least, least)
        self.most = most if self.most is None else max(self.most, most)


@dataclass
class SlotFigures:
    """Figures of one slot. ``given``: number of values by the form in which they were yielded; ``ranges``: ranges by
    kind of array ("values", "ids", "indices", and the counts "nnz", "nbytes", "steps", "subs")."""

    slot: str
    declared: str
    ranges: dict[str, Range]
    given: dict[str, int] = field(default_factory=dict)
    _type: InputType | None = None
    _kinds: tuple[str, ...] = ()

    @classmethod
    def of(cls, label: str, slot: InputType, fields: Sequence[Field]) -> SlotFigures:
        """Return figures of a slot without any values."""
        kinds = tuple(field.kind for field in fields)
        return cls(label, type_text(slot), {kind: Range() for kind in kinds if kind != "bytes"}, {}, slot, kinds)

    def add_value(self, value: Any) -> None:
        """Count the form in which ``value`` was yielded."""
        form = self._form(value)
        if form in self.given or len(self.given) < _FORMS:
            self.given[form] = self.given.get(form, 0) + 1
        else:
            self.given["others"] = self.given.get("others", 0) + 1

    def _form(self, value: Any) -> str:
        slot = self._type
        shaped = slot is not None and slot.type == DataType.Dense and slot.seq_type == SequenceType.NO_SEQUENCE
        if isinstance(value, np.ndarray):
            if shaped:
                return f"{value.dtype} array {value.shape}"
            return f"{value.dtype} array of {count_text(value.ndim, 'dimension')}"
        name = type(value).__name__
        return f"{name} of {len(value)}" if shaped and isinstance(value, list | tuple) else name

    def add(self, arrays: Sequence[Array]) -> None:
        """Add the arrays of packed values."""
        for kind, array in zip(self._kinds, arrays, strict=True):
            if kind == "values" and self._type is not None and is_bfloat16(self._type.element_dtype):
                array = self._type.as_declared(array).astype(np.float32)
            if kind in self.ranges:
                self.ranges[kind].add(array)

    def join(self, other: SlotFigures) -> None:
        """Add the figures of another file."""
        for kind, seen in other.ranges.items():
            self.ranges[kind].join(seen)
        for form, count in other.given.items():
            known = form if form in self.given or len(self.given) < _FORMS else "others"
            self.given[known] = self.given.get(known, 0) + count

    def plain(self) -> dict[str, Any]:
        """Return the figures as dicts and numbers."""
        ranges = {kind: dict(vars(seen)) for kind, seen in self.ranges.items()}
        return {"slot": self.slot, "declared": self.declared, "given": self.given, **ranges}


def merge_figures(slots: Slots, files: Sequence[Sequence[SlotFigures]]) -> list[SlotFigures]:
    """Return the figures of several files together; without files, empty figures."""
    total = [SlotFigures.of(slots.label(i), slot, slots.fields[i]) for i, slot in enumerate(slots.types)]
    for file in files:
        for figures, more in zip(total, file, strict=True):
            figures.join(more)
    return total
