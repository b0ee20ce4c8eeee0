"""Take many samples in one yield: the values of each slot for all of them, which are packed as they lie.

``rows(pixel=X, label=y)`` means the same as ``{"pixel": X[i], "label": y[i]}``, yielded for each i in turn
(:meth:`ManySamples.sample`). What is certainly right in type and width is also given as columns
(:meth:`ManySamples.columns`), whose values :mod:`.vector_checks` judges; all else is packed sample by
sample, and judged there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from pydp2.data.columns.array_likes import as_array, tensor_hint
from pydp2.data.columns.batch import BinaryArray, Csr, Ragged, StringArray
from pydp2.data.columns.columns import Array, Columns, Ints
from pydp2.data.packers.arrow_values import (
    CheckedText,
    Lists,
    Mask,
    PlainValues,
    as_arrow,
    chunks_of,
    exports_arrow,
    has_pyarrow,
    plain_values,
    table_columns,
)
from pydp2.data.packers.normalise import MAX_STRING_BYTES, REAL_KINDS, integer_limits
from pydp2.data.schema.input_types import STRING_TYPES, DataType, InputType, SequenceType, Slots, is_bfloat16, is_float
from pydp2.errors import OptionError, OptionTypeError, count_text

_INT_TYPES = {int, bool, np.int64, np.int32}
Arrays = tuple[Array, ...]


def rows(*values: Any, **named: Any) -> ManySamples:
    """Return many samples for one ``yield`` of ``process``: by the names of the slots, or all in their order.

    Each value holds one entry per sample: an array whose first axis is samples, also of another library, a
    :class:`Ragged`, :class:`Csr`, :class:`StringArray` or :class:`BinaryArray` as a batch has them, an array of Arrow
    (of pyarrow, or any object with ``__arrow_c_array__`` or ``__arrow_c_stream__``), or a list or tuple. A record batch
    or table of Arrow alone, ``rows(batch)``, means its columns by their names, the fields of structs as ``a.b``.

    Sample i is what ``{"pixel": X[i], "label": y[i]}`` would be, with the same checks and messages; entry i of a Csr is
    the list of its indices, or of its (index, value) pairs; a null of Arrow is a None. Nothing is copied before a
    sample is sent, so the values must not change until ``process`` is asked for what comes after them.

    Raises OptionTypeError or OptionError for values that are something else, or whose numbers of samples differ, and
    ImportError, with the remedy, for data of Arrow without pyarrow.
    """
    if bool(values) == bool(named):
        raise OptionTypeError(
            "rows() takes the values of all slots, by name or by position: write rows(pixel=X, label=y) or rows(X, y)"
        )
    if len(values) == 1 and isinstance(values[0], dict):
        raise OptionTypeError("rows() got a dict: write rows(**columns) if its keys are the names of the slots")
    if len(values) == 1 and exports_arrow(values[0]) and has_pyarrow():
        table = as_arrow(values[0])
        named, values = table_columns(table) or {}, (table,)
    given = named or {f"value {i}": value for i, value in enumerate(values)}
    slots = [_slot_values(label, value) for label, value in given.items()]
    count = len(slots[0])
    if any(len(slot) != count for slot in slots[1:]):
        have = ", ".join(f"{label} has {len(slot)}" for label, slot in zip(given, slots, strict=True))
        raise OptionError(f"rows() needs as many samples in each slot, but {have}")
    return ManySamples(tuple(named) if named else None, slots, count)


class ManySamples:
    """Samples that :func:`rows` makes; ``len()``: their number."""

    __slots__ = ("_count", "_names", "_slots")

    def __init__(self, names: tuple[str, ...] | None, slots: Sequence[_SlotValues], count: int) -> None:
        self._names, self._slots, self._count = names, slots, count

    def __len__(self) -> int:
        return self._count

    @property
    def names(self) -> tuple[str, ...]:
        """Names that values were given by; none if they were given by position."""
        return self._names or ()

    def __repr__(self) -> str:
        return f"<rows: {count_text(self._count, 'sample')}, {count_text(len(self._slots), 'slot')}>"

    def sample(self, i: int, single: bool) -> Any:
        """Return sample ``i`` as it would be yielded alone; ``single``: a provider's only slot is yielded bare."""
        if self._names is not None:
            return {name: slot.value_of(i) for name, slot in zip(self._names, self._slots, strict=True)}
        if single and len(self._slots) == 1:
            return self._slots[0].value_of(i)
        return tuple(slot.value_of(i) for slot in self._slots)

    def samples(self, single: bool) -> Iterator[Any]:
        """Return an iterator over all samples."""
        return (self.sample(i, single) for i in range(self._count))

    def columns(self, slots: Slots, lo: int, hi: int) -> Columns | None:
        """Return samples ``lo`` to ``hi`` laid out as columns of ``slots``, but in the dtypes that they came in, as
        views if possible; None unless each value has a type and width that fit (see also :func:`slots_of_ints`)."""
        chosen: Sequence[_SlotValues] = self._slots
        if self._names is not None and self._names != slots.names:
            given = dict(zip(self._names, self._slots, strict=True))
            chosen = [given[name] for name in slots.names or () if name in given]
        if len(chosen) != len(slots):
            return None
        arrays = []
        for declared, slot in zip(slots.types, chosen, strict=True):
            laid = slot.to_arrays(declared, lo, hi)
            if laid is None:
                return None
            arrays.append(laid)
        return Columns(slots, hi - lo, arrays)


class _SlotValues(Protocol):
    """Values of one slot; ``len()``: number of samples."""

    def __len__(self) -> int: ...

    def value_of(self, i: int) -> Any:
        """Return the value of sample ``i``."""

    def to_arrays(self, slot_type: InputType, lo: int, hi: int) -> Arrays | None:
        """Return the values of samples ``lo`` to ``hi`` as arrays in schema order; None if they may not fit."""


def _slot_values(label: str, value: Any) -> _SlotValues:
    if type(value) is np.ndarray and value.ndim:
        return _ArrayValues(value)
    if isinstance(value, Ragged):
        return _ragged_values(label, value)
    if isinstance(value, Csr):
        return _CsrValues(label, value)
    if isinstance(value, BinaryArray | StringArray):
        return _StringValues(label, value)
    if isinstance(value, Lists):
        return _list_values(label, value)
    if isinstance(value, list | tuple):
        return _ListValues(value)
    is_arrow = exports_arrow(value)
    array = None if is_arrow and has_pyarrow() else _plain_array(value)
    if is_arrow and array is None:
        return _arrow_slot_values(label, as_arrow(value))
    if array is not None and array.ndim:
        return _ArrayValues(array)
    what = f"a {type(value).__name__}{tensor_hint(value, 'numpy')}" if array is None else "an array without dimensions"
    raise OptionTypeError(
        "rows() takes arrays with one entry per sample, Ragged, Csr, StringArray, BinaryArray, lists and tuples; "
        f"{label} is {what}"
    )


def _plain_array(value: Any) -> Array | None:
    """Return an array, also one over a mapped file or of another library, as a plain array, whose rows are packed much
    faster; None for anything else."""
    array = as_array(value)
    return np.asarray(array) if type(array) is np.memmap else array


class _ListValues:
    def __init__(self, values: Sequence[Any]) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def value_of(self, i: int) -> Any:
        return self._values[i]

    def to_arrays(self, slot_type: InputType, lo: int, hi: int) -> Arrays | None:
        if slot_type.type != DataType.Index or slot_type.seq_type != SequenceType.NO_SEQUENCE:
            return None
        some = self._values[lo:hi]
        if not set(map(type, some)) <= _INT_TYPES:
            return None
        try:
            return (np.array(some, np.int64),)
        except OverflowError:
            return None


class _ArrayValues:
    def __init__(self, values: Array) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def value_of(self, i: int) -> Any:
        return self._values[i]

    def to_arrays(self, slot_type: InputType, lo: int, hi: int) -> Arrays | None:
        some = self._values[lo:hi]
        if slot_type.depth == 0:
            return _element_array(slot_type, some)
        if slot_type.depth > 1 or slot_type.type == DataType.SparseValue or some.ndim < 2:
            return None
        length = some.shape[1]  # all entries have the same length
        leaf = _element_array(slot_type, some.reshape(-1, *some.shape[2:])) if some.size else None
        return None if leaf is None else (np.full(len(some), length, np.int32), *leaf)


def _element_array(slot_type: InputType, values: Array) -> Arrays | None:
    """Return ``values`` as the elements of a slot, one per entry of the first axis."""
    if is_as_stored(slot_type, values):
        return (values,)
    if type(values) is not np.ndarray or slot_type.type in STRING_TYPES:
        return None
    if slot_type.type != DataType.Dense:
        return (values,) if values.ndim == 1 and values.dtype.kind in "iub" else None
    keeps_bits = is_bfloat16(values.dtype) and values.dtype == slot_type.element_dtype
    if is_bfloat16(values.dtype) and not keeps_bits:
        values = values.astype(np.float32)
    if _are_numbers(slot_type, values) and values.itemsize > 8:  # alone, a long double goes by way of float64
        return None
    fits = (keeps_bits or values.dtype.kind in REAL_KINDS) and values.size == len(values) * slot_type.dim
    fits = fits and slot_type.fits_shape(values.shape[1:])
    return (values,) if fits and (values.ndim > 1 or slot_type.is_scalar) else None


def is_as_stored(slot_type: InputType, values: Array) -> bool:
    """Return True if ``values`` are dense elements of the very dtype and shape of a slot: any value fits then."""
    return (
        slot_type.type == DataType.Dense
        and values.dtype == slot_type.element_dtype
        and values.shape[1:] == slot_type.element_shape
        and type(values) is np.ndarray
    )


def _are_numbers(slot_type: InputType, values: Array) -> bool:
    """Return True if an entry of ``values``, in a sample by itself, is a number and no array."""
    return slot_type.is_scalar and not slot_type.depth and values.ndim == 1


def slots_of_ints(columns: Columns) -> list[int]:
    """Return the slots of ``columns`` for single numbers of a float dtype that have ints. In a sample by itself such a
    number is refused by a strict check, and else goes by way of float64."""
    return [
        slot
        for slot, (declared, arrays) in enumerate(zip(columns.slots.types, columns.arrays, strict=True))
        if arrays[0].dtype.kind in "iub" and is_float(declared.element_dtype) and _are_numbers(declared, arrays[0])
    ]


def exceeds_id_dtype(columns: Columns) -> bool:
    """Return True if an id of ``columns`` is beyond its dtype: in a sample by itself that is found to
    be bad before all else."""
    for declared, arrays, depth in zip(columns.slots.types, columns.arrays, columns.slots.depths, strict=True):
        ids = arrays[depth]
        if declared.type != DataType.Dense and declared.type not in STRING_TYPES and ids.size:
            least, most = integer_limits(declared.element_dtype)
            if int(ids.min()) < least or int(ids.max()) > most:
                return True
    return False


class _CsrValues:
    def __init__(self, label: str, value: Csr) -> None:
        self._starts = _checked_offsets(label, "indptr", value.indptr, len(value.indices))
        self._indices = np.asarray(value.indices)
        self._values = None if value.values is None else np.asarray(value.values)
        if value.values is not None and len(value.values) != len(value.indices):
            raise OptionError(
                f"{label}: a Csr needs a value for each index, it has {len(value.values)} for {len(value.indices)}"
            )

    def __len__(self) -> int:
        return len(self._starts) - 1

    def value_of(self, i: int) -> list[Any]:
        lo, hi = self._starts[i], self._starts[i + 1]
        indices = self._indices[lo:hi].tolist()
        return indices if self._values is None else list(zip(indices, self._values[lo:hi].tolist(), strict=True))

    def to_arrays(self, slot_type: InputType, lo: int, hi: int) -> Arrays | None:
        return _grouped(self, slot_type, self._starts[lo : hi + 1])

    def element_arrays(self, slot_type: InputType, lo: int, hi: int) -> Arrays | None:
        """Return its entries ``lo`` to ``hi`` as indices, and values if there are."""
        indices, values = self._indices[lo:hi], self._values
        if indices.ndim != 1 or indices.dtype.kind not in "iu":
            return None
        if slot_type.type != DataType.SparseValue:
            fits = values is None and slot_type.type in (DataType.SparseNonValue, DataType.Index)
            return (indices,) if fits else None
        if values is None or values.ndim != 1 or values.dtype.kind != "f" or values.itemsize > 8:
            return None
        return indices, values[lo:hi]


class _StringValues:
    def __init__(self, label: str, value: BinaryArray | StringArray) -> None:
        data = np.asarray(value.data)
        if data.dtype != np.uint8 or data.ndim != 1:
            raise OptionTypeError(f"{label}: data must be an array (bytes,) of uint8")
        self._starts = _checked_offsets(label, "offsets", value.offsets, len(data))
        self._data = data
        self._is_text = isinstance(value, StringArray)
        if isinstance(value, CheckedText):
            self._is_utf8 = True
        self._counts_fit = bool((np.diff(self._starts) <= MAX_STRING_BYTES).all())

    def __len__(self) -> int:
        return len(self._starts) - 1

    def value_of(self, i: int) -> str | bytes:
        string = self._data[self._starts[i] : self._starts[i + 1]].tobytes()
        try:
            return string.decode() if self._is_text else string
        except UnicodeDecodeError:
            return string  # a sample of a text slot is bad by that

    def to_arrays(self, slot_type: InputType, lo: int, hi: int) -> Arrays | None:
        return _grouped(self, slot_type, self._starts[lo : hi + 1])

    def element_arrays(self, slot_type: InputType, lo: int, hi: int) -> Arrays | None:
        """Return its bytes ``lo`` to ``hi``."""
        fits = self._is_text and self._is_utf8 if slot_type.type == DataType.Text else not self._is_text
        return (self._data[lo:hi],) if fits and self._counts_fit and slot_type.type in STRING_TYPES else None

    @cached_property
    def _is_utf8(self) -> bool:
        """True if each string is UTF-8: if all together are, and none begins inside of a character."""
        try:
            self._data.tobytes().decode()
        except UnicodeDecodeError:
            return False
        starts = self._starts[self._starts < len(self._data)]
        return not (self._data[starts] & 0xC0 == 0x80).any()


def _grouped(values: _CsrValues | _StringValues, slot_type: InputType, edges: Ints) -> Arrays | None:
    """Return the groups of ``values`` between ``edges`` as arrays of a slot with one level of counts."""
    if slot_type.depth != 1:
        return None
    elements = values.element_arrays(slot_type, int(edges[0]), int(edges[-1]))
    return None if elements is None else (_group_sizes(edges), *elements)


class _RaggedValues:
    """Sequences of ``values`` (an array, or strings or sparse entries) between ``starts``; or of sub-sequences between
    ``sub_starts``, of which number i has ``first_subs[i]`` to ``first_subs[i + 1]``. All are checked."""

    def __init__(
        self, values: Any, inner: _SlotValues, starts: Ints, sub_starts: Ints | None, first_subs: Ints | None
    ) -> None:
        self._values, self._inner = values, inner
        self._starts, self._sub_starts = starts, sub_starts
        self._first_subs: Ints = starts if first_subs is None else first_subs

    def __len__(self) -> int:
        return len(self._starts) - 1

    def value_of(self, i: int) -> Any:
        if self._sub_starts is None:
            return self._steps(int(self._starts[i]), int(self._starts[i + 1]))
        edges = self._sub_starts[self._first_subs[i] : self._first_subs[i + 1] + 1].tolist()
        return [self._steps(lo, hi) for lo, hi in pairwise(edges)]

    def _steps(self, lo: int, hi: int) -> Any:
        if isinstance(self._values, np.ndarray):
            return self._values[lo:hi]
        return [self._inner.value_of(i) for i in range(lo, hi)]

    def to_arrays(self, slot_type: InputType, lo: int, hi: int) -> Arrays | None:
        if 1 + (self._sub_starts is not None) + isinstance(self._inner, _CsrValues | _StringValues) != slot_type.depth:
            return None
        counts: list[Array] = []
        edges = self._starts[lo : hi + 1]
        if self._sub_starts is not None:
            of_subs = self._first_subs[lo : hi + 1]
            counts.append(_group_sizes(of_subs))
            edges = self._sub_starts[of_subs[0] : of_subs[-1] + 1]
        counts.append(_group_sizes(edges))
        first, last = int(edges[0]), int(edges[-1])
        if isinstance(self._inner, _CsrValues | _StringValues):
            inner = self._inner._starts[first : last + 1]
            counts.append(_group_sizes(inner))
            elements = self._inner.element_arrays(slot_type, int(inner[0]), int(inner[-1]))
        else:
            values = self._values
            if slot_type.type == DataType.SparseValue or not isinstance(values, np.ndarray):
                return None
            elements = _element_array(slot_type, values[first:last])
        return None if elements is None else (*counts, *elements)


def _ragged_values(label: str, value: Ragged) -> _RaggedValues:
    inner = _slot_values(label, value.values)
    steps = len(inner)
    starts = _checked_offsets(label, "sequence_start_positions", value.sequence_start_positions, steps)
    array = _plain_array(value.values)
    values = value.values if array is None else array
    if value.sub_sequence_start_positions is None:
        return _RaggedValues(values, inner, starts, None, None)
    subs = _checked_offsets(label, "sub_sequence_start_positions", value.sub_sequence_start_positions, steps)
    return _RaggedValues(values, inner, starts, subs, _sub_offsets(label, starts, subs))


def _group_sizes(edges: Ints) -> Array:
    return (edges[1:] - edges[:-1]).astype(np.int32)


def _checked_offsets(label: str, name: str, positions: Any, total: int) -> Ints:
    """Return ``positions`` as the edges of groups of ``total`` entries."""
    edges = np.asarray(positions)
    if edges.ndim != 1 or not len(edges) or edges.dtype.kind not in "iu":
        raise OptionTypeError(f"{label}: {name} must be an array of ints, one more than there are groups")
    edges = edges.astype(np.int64)
    if edges[0] or edges[-1] != total or (edges[1:] < edges[:-1]).any():
        raise OptionError(f"{label}: {name} must rise from 0 to {total}, the number of entries")
    return edges


def _sub_offsets(label: str, starts: Ints, subs: Ints) -> Ints:
    """Return for each sequence the position in ``subs`` by which it begins, and the one by which the last one ends."""
    first = np.searchsorted(subs, starts, "left")
    behind = np.searchsorted(subs, starts, "right")
    if (first == behind).any():
        raise OptionError(f"{label}: each of sequence_start_positions must be one of sub_sequence_start_positions")
    if (behind - first)[1:-1].max(initial=1) > 1:
        raise OptionError(
            f"{label}: an empty sub-sequence lies between two sequences, and a Ragged does not say whose it is: "
            "give a list with the sub-sequences of each sample"
        )
    first[0], first[-1] = 0, len(subs) - 1
    return first


# -- Arrow -------------------------------------------------------------------------------------------------------------
def _arrow_slot_values(label: str, column: Any) -> _SlotValues:
    """Return the values of a pyarrow Array or ChunkedArray."""
    if table_columns(column) is not None:
        raise OptionTypeError(
            f"rows() takes the columns of an Arrow table one by one: write rows(batch) for all of them, or "
            f"rows({label}=batch['{label}']); {label} is a {type(column).__name__} with several"
        )
    parts = [_chunk_values(label, chunk) for chunk in chunks_of(column)]
    return parts[0] if len(parts) == 1 else _ChunkedValues(parts)


def _chunk_values(label: str, array: Any) -> _SlotValues:
    try:
        plain, missing = plain_values(array)
    except (OptionError, OptionTypeError) as error:
        raise type(error)(f"{label}: {error}") from None
    values = _slot_values(label, plain)
    return values if missing is None else _GappedValues(values, missing, lambda i: array[i].as_py())


def _list_values(label: str, lists: Lists) -> _RaggedValues:
    starts, values = _checked_offsets(label, "offsets", lists.starts, _count(lists.values)), lists.values
    if not isinstance(values, Lists):
        return _RaggedValues(values, _slot_values(label, values), starts, None, None)
    inner = values.values  # no list: a slot has two levels at most
    edges = _checked_offsets(label, "offsets", values.starts, _count(inner))
    return _RaggedValues(inner, _slot_values(label, inner), edges[starts], edges, starts)


def _count(plain: PlainValues) -> int:
    return len(plain.starts) - 1 if isinstance(plain, Lists) else len(plain)


class _ChunkedValues:
    """Values of several chunks, at least one, one after the other; nothing is copied to join them."""

    def __init__(self, parts: Sequence[_SlotValues]) -> None:
        self._parts = parts
        self._starts = np.concatenate([[0], np.cumsum([len(part) for part in parts])])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def _part_of(self, i: int) -> int:
        return int(np.searchsorted(self._starts, i, "right")) - 1

    def value_of(self, i: int) -> Any:
        number = self._part_of(i)
        return self._parts[number].value_of(i - int(self._starts[number]))

    def to_arrays(self, slot_type: InputType, lo: int, hi: int) -> Arrays | None:
        found: list[Arrays] = []
        for number in range(self._part_of(lo), len(self._parts)):
            first, last = int(self._starts[number]), int(self._starts[number + 1])
            if first >= hi and found:
                break
            laid = self._parts[number].to_arrays(slot_type, max(lo, first) - first, min(hi, last) - first)
            if laid is None:
                return None
            found.append(laid)
        return found[0] if len(found) == 1 else tuple(np.concatenate(same) for same in zip(*found, strict=True))


class _GappedValues:
    """``values`` of which the ``missing`` ones are null, or hold a null: these are judged one by one, as what
    ``entry`` returns: None, or a list with a None."""

    def __init__(self, values: _SlotValues, missing: Mask, entry: Callable[[int], Any]) -> None:
        self._values, self._missing, self._entry = values, missing, entry

    def __len__(self) -> int:
        return len(self._missing)

    def value_of(self, i: int) -> Any:
        return self._entry(i) if self._missing[i] else self._values.value_of(i)

    def to_arrays(self, slot_type: InputType, lo: int, hi: int) -> Arrays | None:
        return None if self._missing[lo:hi].any() else self._values.to_arrays(slot_type, lo, hi)
