"""Declare the shapes, dtypes and LoD levels of slots, and check instances against the declaration."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np

from pydp2.errors import OptionError, OptionTypeError, bad_value, count_text
from pydp2.fluid.tensors import Instance
from pydp2.options.values import integer_from

Shape = tuple[int, ...]


def checked_shapes(shapes: Sequence[Sequence[int]]) -> tuple[Shape, ...]:
    """Return ``shapes`` as tuples: at least one shape, each with at least one dimension. A dimension is at least 0, or
    -1 for any.

    Raises OptionTypeError or OptionError for any other value.
    """
    if isinstance(shapes, str) or not isinstance(shapes, Sequence):
        raise OptionTypeError(f"shapes must be a list of shapes, one for each slot, got {shapes!r:.80}")
    if not shapes:
        raise OptionError("shapes must have one shape for each slot, got none")
    return tuple(_shape(shape, slot) for slot, shape in enumerate(shapes))


def _shape(shape: Sequence[int], slot: int) -> Shape:
    if isinstance(shape, str) or not isinstance(shape, Sequence):
        raise OptionTypeError(f"the shape of slot {slot} must be a list of dimensions, got {shape!r:.80}")
    if not shape:
        raise OptionError(f"the shape of slot {slot} must have at least one dimension, got none")
    return tuple(integer_from(-1)(f"a dimension of slot {slot}", dim) for dim in shape)


@dataclass(frozen=True)
class SlotShapes:
    """The declaration of the slots of a file. ``lod_levels`` and ``dtypes``: None allows any."""

    shapes: tuple[Shape, ...]
    lod_levels: tuple[int, ...] | None = None
    dtypes: tuple[np.dtype[Any], ...] | None = None

    def check(self, instance: Instance, filename: str, sample_index: int) -> Instance:
        """Return ``instance``, number ``sample_index`` of the file, if it matches the declaration. Otherwise raise
        BadSample that names the slot and the values."""
        mismatch = self._mismatch(instance)
        if mismatch is not None:
            raise bad_value(*mismatch, where=f"file {filename}, sample {sample_index}, ")
        return instance

    def _mismatch(self, instance: Instance) -> tuple[str, str, str] | None:
        """Return slot, expected and actual value of the first mismatch."""
        if len(instance) != len(self.shapes):
            return "all slots", count_text(len(self.shapes), "slot"), str(len(instance))
        for i, (tensor, shape) in enumerate(zip(instance, self.shapes, strict=True)):
            slot, have = f"slot {i}", tensor.shape
            if len(have) != len(shape):
                return slot, f"{count_text(len(shape), 'dimension')} {_shape_text(shape)}", _shape_text(have)
            if any(need not in (-1, dim) for need, dim in zip(shape, have, strict=True)):
                return slot, f"shape {_shape_text(shape)}", _shape_text(have)
            if self.dtypes is not None and tensor.dtype != self.dtypes[i]:
                return slot, str(self.dtypes[i]), str(tensor.dtype)
            if self.lod_levels is not None and len(tensor.lod) != self.lod_levels[i]:
                return slot, f"{count_text(self.lod_levels[i], 'level')} of LoD", str(len(tensor.lod))
        return None


def _shape_text(shape: Shape) -> str:
    return str(list(shape))


def slot_shapes(
    shapes: Sequence[Sequence[int]], lod_levels: Sequence[int] | None = None, dtypes: Sequence[Any] | None = None
) -> SlotShapes:
    """Return the declaration of a file's slots. Raises OptionError if the lists differ in length, and OptionError or
    OptionTypeError for invalid shapes, levels or dtypes."""
    checked = checked_shapes(shapes)
    for name, given in (("lod_levels", lod_levels), ("dtypes", dtypes)):
        if given is not None and (isinstance(given, str) or not isinstance(given, Sized) or len(given) != len(checked)):
            raise OptionError(
                f"{name} must be a list with one entry for each of the {len(checked)} shapes, got {given!r:.80}"
            )
    levels = None if lod_levels is None else tuple(integer_from(0)("a LoD level", level) for level in lod_levels)
    try:
        kinds = None if dtypes is None else tuple(np.dtype(kind) for kind in dtypes)
    except TypeError as exc:
        raise OptionTypeError(f"dtypes must be dtypes of numpy or their names, got {dtypes!r:.80} ({exc})") from None
    return SlotShapes(checked, levels, kinds)
