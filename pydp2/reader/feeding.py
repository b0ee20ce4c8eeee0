"""Data feeder: turn a mini-batch, which is a list of entries, into a batch with columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from pydp2.data.columns.array_likes import NotReadable, read_array
from pydp2.data.columns.batch import Batch
from pydp2.data.columns.columns import Columns
from pydp2.data.packers.normalise import describe, shape_words
from pydp2.data.packers.packer import Packer
from pydp2.data.schema.input_types import DataType, InputType, SequenceType, Slots, is_float
from pydp2.errors import BadSample, OptionError, OptionTypeError, bad_sample_at, bad_value, count_text

Types = Mapping[str, InputType] | Sequence[InputType] | Sequence[tuple[str, InputType]]
FeedMapping = Mapping[str, int] | Sequence[str] | None
_MOST_DIMENSIONS = 3


class FedBatch(Batch):
    """Batch made by a :class:`DataFeeder`.

    ``frames`` has an item for each dense slot whose values have two or three dimensions. Its key is the name of the
    slot, or its position if slots have no names; its value is ``(height, width)``, the last two dimensions. A row of
    such a slot has as many elements as a value, even if ``dim`` is another number.
    """

    __slots__ = ("frames",)

    def __init__(self, columns: Columns, *, pass_id: int, index: int, frames: dict[str | int, tuple[int, int]]) -> None:
        super().__init__(columns, pass_id=pass_id, index=index, size=columns.rows)
        self.frames = frames


class DataFeeder:
    """Function object that turns mini-batches into batches: ``feeder(entries)``. See docs/readers.md (RD-35 to RD-37).

    Args:
        input_types: the slots: a dict of types by name, a list of types, or a list of (name, type) pairs.
        mapping: says which column of an entry each slot takes. A dict has the column of each slot name; several slots
            may take one column, and a column may be unused. A list has the names of the columns in their order. None:
            slot i takes column i, and an entry has no further columns. The feeder ignores names that no slot has.

    Raises:
        OptionTypeError: a mapping of another type, a name that is not a str, a column that is not a whole number, or a
            mapping for slots without names.
        OptionError: a slot without a column, a column below 0, a list that repeats a name, or no slots.
    """

    def __init__(self, input_types: Types, mapping: FeedMapping = None) -> None:
        self.slots = _slots(input_types)
        self._columns = _columns(self.slots, mapping)
        self._all_columns = mapping is None

    def __call__(self, entries: Iterable[Any], *, pass_id: int = 0, index: int = 0) -> FedBatch:
        """Return the batch of ``entries``, as batch ``index`` of pass ``pass_id``.

        The items of a tuple or list are the columns of an entry; any other entry is its only column.

        The values of a dense slot may be nested up to three levels deep, and must all have the same shape. A value with
        one dimension must have ``dim`` numbers. For values with more dimensions, the column is (rows, elements of a
        value).

        Raises BadSample (a ValueError): an entry has too few columns, or without a mapping too many; or a value does
        not fit its slot.
        """
        packer = Packer(self.slots, strict=False)
        shapes: dict[int, tuple[int, ...]] = {}
        for number, entry in enumerate(entries):
            try:
                values = self._values(entry, shapes)
                if not number:  # the first entry decides the shapes of the batch
                    packer = Packer(self._fitted(shapes), strict=False)
                packer.add(values)
            except BadSample as error:
                raise bad_sample_at(f"entry {number} of the mini-batch, ", error) from None
        columns, _, bad = packer.finish()
        if bad:
            raise bad_sample_at(f"entry {bad[0][0]} of the mini-batch, ", bad[0][1])
        frames = {self._key(slot): (shape[-2], shape[-1]) for slot, shape in shapes.items() if len(shape) > 1}
        return FedBatch(columns, pass_id=pass_id, index=index, frames=frames)

    def _fitted(self, shapes: Mapping[int, tuple[int, ...]]) -> Slots:
        """Return the slots; slots of frames whose size differs from ``dim`` have the size of the frame."""
        types = list(self.slots.types)
        for slot, shape in shapes.items():
            if prod(shape) != types[slot].dim:
                types[slot] = replace(types[slot], dim=prod(shape), shape=None)
        return Slots(tuple(types), self.slots.names)

    def _key(self, slot: int) -> str | int:
        return slot if self.slots.names is None else self.slots.names[slot]

    def _values(self, entry: Any, shapes: dict[int, tuple[int, ...]]) -> list[Any]:
        columns = entry if isinstance(entry, tuple | list) else (entry,)
        if self._all_columns and len(columns) > len(self._columns):
            raise bad_value(
                "all slots",
                f"{count_text(len(self._columns), 'column')}, one for each slot",
                f"an entry with {count_text(len(columns), 'column')}; a mapping says which columns the slots take",
            )
        values = []
        for slot, (declared, column) in enumerate(zip(self.slots.types, self._columns, strict=True)):
            if column >= len(columns):
                label = self.slots.label(slot)
                raise bad_value(
                    label, f"column {column} of the entry", f"an entry with {count_text(len(columns), 'column')}"
                )
            value = columns[column]
            dense = declared.type == DataType.Dense and declared.seq_type == SequenceType.NO_SEQUENCE
            if dense and not declared.is_scalar:
                value = _flat(self.slots.label(slot), declared, value, slot, shapes)
            values.append(value)
        return values


def _flat(label: str, declared: InputType, value: Any, slot: int, shapes: dict[int, tuple[int, ...]]) -> Any:
    """Return a dense value without its nesting. Its shape must equal the one in ``shapes``, and is noted there."""
    if value is None or isinstance(value, np.ma.MaskedArray):
        return value  # the packer raises the error
    try:
        array = read_array(value)
    except NotReadable as error:
        raise bad_value(label, f"a vector, or lists of equal lengths{error.hint}", error.got) from None
    if not array.ndim:
        raise bad_value(label, "a vector", f"{value!r:.80} ({type(value).__name__})")
    fits = array.size == declared.dim and declared.fits_shape(array.shape)
    if array.size == declared.dim and not fits:
        raise bad_value(label, shape_words(declared, array, value), describe(array))
    if array.ndim > _MOST_DIMENSIONS and (declared.shape is None or not fits):
        raise bad_value(label, f"at most {_MOST_DIMENSIONS} dimensions", f"{array.ndim}, of shape {array.shape}")
    if array.ndim == 1 and len(array) != declared.dim:
        raise bad_value(label, count_text(declared.dim, "number"), f"{len(array)}")
    if not array.size:
        raise bad_value(label, "a frame with numbers in it", f"an empty one, of shape {array.shape}")
    shape = shapes.setdefault(slot, array.shape)
    if shape != array.shape:
        raise bad_value(label, f"the shape {shape}, as before it in this batch", f"{array.shape}")
    if array.ndim > 1:
        return _flattened(declared, value, array)
    return value if isinstance(value, np.ndarray | Sequence) else array


def _flattened(declared: InputType, value: Any, array: np.ndarray[Any, Any]) -> Any:
    """Return the numbers of ``value``, which is nested, one after the other; ``array`` has them in one dtype."""
    kind = array.dtype.kind
    if kind not in "fO" or (kind == "f" and is_float(declared.element_dtype)) or not isinstance(value, list | tuple):
        return array.reshape(-1)
    parts = [*_parts(value, array.ndim)]  # among floats, numpy makes floats of ints, and these may be rounded
    if not all(isinstance(part, int | float | np.generic | np.ndarray) for part in parts):
        return array.reshape(-1)
    return [number for part in parts for number in (part.ravel().tolist() if isinstance(part, np.ndarray) else [part])]


def _parts(value: Any, levels: int) -> Iterator[Any]:
    """Yield the items of lists and tuples that are nested up to ``levels`` deep."""
    if levels and isinstance(value, list | tuple):
        for part in value:
            yield from _parts(part, levels - 1)
    else:
        yield value


def _slots(input_types: Types) -> Slots:
    if isinstance(input_types, Mapping):
        return Slots(tuple(input_types.values()), tuple(input_types))
    if isinstance(input_types, InputType) or not isinstance(input_types, Sequence):
        raise OptionTypeError(
            "input_types must be a dict of types by name, a list of types or of (name, type) pairs, "
            f"got {input_types!r:.80}"
        )
    pairs = [declared for declared in input_types if isinstance(declared, tuple) and len(declared) == 2]
    if pairs and len(pairs) == len(input_types):
        return Slots(tuple(declared for _, declared in pairs), tuple(name for name, _ in pairs))
    return Slots(tuple(input_types), None)  # type: ignore[arg-type]  # Slots looks at each


def _columns(slots: Slots, mapping: FeedMapping) -> list[int]:
    """Return the column of each slot."""
    if mapping is None:
        return list(range(len(slots)))
    if isinstance(mapping, list | tuple):
        given = {name: column for column, name in enumerate(mapping)}
        if len(given) != len(mapping):
            raise OptionError(f"a list as mapping must name each column once, got {mapping!r:.200}")
    elif isinstance(mapping, Mapping):
        given = dict(mapping)
    else:
        raise OptionTypeError(
            f"mapping must be a dict of name to column, a list of names or None, got {mapping!r:.80} "
            f"({type(mapping).__name__})"
        )
    if slots.names is None:
        raise OptionTypeError("a mapping needs slots with names: give input_types as a dict, or as (name, type) pairs")
    for name, column in given.items():
        if not isinstance(name, str):
            raise OptionTypeError(f"mapping must have the names of slots, got {name!r:.80} ({type(name).__name__})")
        if isinstance(column, bool) or not isinstance(column, int | np.integer):
            raise OptionTypeError(f"mapping must give a column as a whole number, got {column!r:.80} for {name!r}")
        if column < 0:
            raise OptionError(f"mapping must give columns from 0, got {column} for {name!r}")
    unknown = [] if isinstance(mapping, list | tuple) else [name for name in given if name not in slots.names]
    missing = [name for name in slots.names if name not in given]
    if missing:
        raise OptionError(
            f"mapping must have the names of the slots, {', '.join(slots.names)}"
            + f"; it lacks {', '.join(missing)}"
            + (f"; there is no slot {', '.join(unknown)}" if unknown else "")
        )
    return [int(given[name]) for name in slots.names]
