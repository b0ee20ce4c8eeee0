"""Define what a trainer holds: a batch and the kinds of values in it (arrays, :class:`Csr`, :class:`BinaryArray`,
:class:`StringArray`, :class:`Ragged`).

A batch belongs to its user: every array in it may be written to, and none is shared with another batch.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, AnyStr, Generic, Self, SupportsIndex, overload

import numpy as np
from numpy.typing import NDArray

from pydp2.data.columns.columns import Array, Columns, Ints, aligned_empty, gather_ranges, offsets, strings
from pydp2.data.columns.converters import converters
from pydp2.data.columns.html_table import MAX_ROWS, html_table
from pydp2.data.schema.input_types import INT32_RANGE, STRING_TYPES, DataType, SequenceType, Slots, is_float
from pydp2.errors import OptionError, OptionTypeError, count_text

Positions = NDArray[np.int32] | NDArray[np.int64]
_SHOWN_NUMBERS = 8  # of a row, in a notebook
_SHOWN_STRINGS, _SHOWN_TEXT = 3, 40  # of a row, and characters of each


def start_positions(counts: Array) -> Positions:
    """Return the start of each group and the end of the last, int32 if that is enough."""
    return _narrow(offsets(counts))


def _narrow(edges: Ints) -> Positions:
    """Return a copy of ``edges``, int32 if that is enough."""
    return edges.copy() if edges[-1] >= INT32_RANGE else edges.astype(np.int32)


@dataclass(frozen=True, eq=False)
class Csr:
    """Sparse rows: row i has the columns ``indices[indptr[i]:indptr[i + 1]]``, in the order in which they were yielded.

    ``indptr``: ``(rows + 1,)`` int32; ``indices``: int32, or int64 where the width is above 2**31; ``values``: float32,
    None for binary slots; ``shape``: (rows, width). See docs/semantics.md.
    """

    indptr: Positions
    indices: Array
    values: NDArray[np.float32] | None
    shape: tuple[int, int]

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        kind = "binary" if self.values is None else "float32"
        return f"<Csr {self.shape[0]} x {self.shape[1]}, {kind}, {count_text(len(self.indices), 'entry', 'entries')}>"

    def _repr_html_(self) -> str:
        return _values_html(self)

    def to_scipy(self) -> Any:
        """Return a ``scipy.sparse.csr_matrix`` over these arrays; binary entries become float32 ones.

        Raises ImportError, with the remedy, if scipy is not installed. See docs/semantics.md.
        """
        try:
            sparse = importlib.import_module("scipy.sparse")
        except ImportError as exc:
            raise ImportError("Csr.to_scipy() needs scipy, which is not installed: pip install scipy") from exc
        values = np.ones(len(self.indices), np.float32) if self.values is None else self.values
        return sparse.csr_matrix((values, self.indices, self.indptr), shape=self.shape)


@dataclass(frozen=True, eq=False)
class _Strings(Generic[AnyStr]):
    """Strings of any length, one after the other; ``len()``: their number."""

    offsets: Ints
    data: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {count_text(len(self), 'string')}, {count_text(len(self.data), 'byte')}>"

    @overload
    def __getitem__(self, key: SupportsIndex) -> AnyStr: ...
    @overload
    def __getitem__(self, key: slice) -> Self: ...
    def __getitem__(self, key: SupportsIndex | slice) -> AnyStr | Self:
        """Return one string, or some as an array like this one: over the same bytes if the step of the slice is 1.
        Raises IndexError for a string that is not there."""
        if isinstance(key, slice):
            return self._sliced(key)
        try:
            i = range(len(self))[key]
        except IndexError:
            raise IndexError(f"there is no string {key}: the array has {len(self)}") from None
        return self._sliced(slice(i, i + 1)).to_list()[0]

    def __iter__(self) -> Iterator[AnyStr]:
        return iter(self.to_list())

    def to_list(self) -> list[AnyStr]:
        """Return the strings as objects of Python."""
        raise NotImplementedError

    def _sliced(self, key: slice) -> Self:
        starts, ends = self.offsets[:-1][key], self.offsets[1:][key]
        edges = offsets(ends - starts)
        if key.step is None or key.step == 1:
            lo = int(starts[0]) if len(starts) else 0
            return type(self)(edges, self.data[lo : lo + int(edges[-1])])
        return type(self)(edges, gather_ranges(self.data, starts, ends - starts))

    def _to_pyarrow(self, kind: str) -> Any:
        try:
            pyarrow: Any = importlib.import_module("pyarrow")
        except ImportError as exc:
            raise ImportError(
                f"{type(self).__name__}.to_pyarrow() needs pyarrow, which is not installed: pip install pyarrow"
            ) from exc
        buffers = [None, *map(pyarrow.py_buffer, (self.offsets, self.data))]
        return pyarrow.Array.from_buffers(getattr(pyarrow, kind)(), len(self), buffers)


class BinaryArray(_Strings[bytes]):
    """Bytes objects, one after the other: number i is ``data[offsets[i]:offsets[i + 1]]``.

    ``offsets``: ``(len + 1,)`` int64, from 0 to the number of bytes; ``data``: uint8. This is the layout of Arrow's
    type large_binary. ``a[i]`` is a bytes object, ``a[lo:hi]`` an array like this one; iterating gives bytes objects.
    See docs/semantics.md.
    """

    def to_list(self) -> list[bytes]:
        """Return the strings as bytes objects."""
        return strings(self.offsets, self.data, False)

    def to_pyarrow(self) -> Any:
        """Return a ``pyarrow.LargeBinaryArray`` over these arrays, without a copy.

        Raises ImportError, with the remedy, if pyarrow is not installed. See docs/semantics.md.
        """
        return self._to_pyarrow("large_binary")


class StringArray(_Strings[str]):
    """Text as UTF-8, one string after the other: number i is ``data[offsets[i]:offsets[i + 1]]``.

    ``offsets``: ``(len + 1,)`` int64, from 0 to the number of bytes; ``data``: uint8. This is the layout of Arrow's
    type large_string. ``a[i]`` is a str, ``a[lo:hi]`` an array like this one; iterating gives str objects. See
    docs/semantics.md.
    """

    def to_list(self) -> list[str]:
        """Return the strings as str objects."""
        return strings(self.offsets, self.data, True)

    def to_numpy(self) -> NDArray[Any]:
        """Return a numpy array ``(len,)`` of ``numpy.dtypes.StringDType()``, a copy."""
        return np.array(self.to_list(), np.dtypes.StringDType())

    def to_pyarrow(self) -> Any:
        """Return a ``pyarrow.LargeStringArray`` over these arrays, without a copy.

        Raises ImportError, with the remedy, if pyarrow is not installed. See docs/semantics.md.
        """
        return self._to_pyarrow("large_string")


@dataclass(frozen=True, eq=False)
class Ragged:
    """Sequences, one after the other: sequence i has the time steps ``[p[i], p[i + 1])`` of ``values``, p being
    ``sequence_start_positions``.

    ``values``: an array with one row per time step, or a :class:`Csr`, :class:`StringArray` or :class:`BinaryArray`.
    ``sub_sequence_start_positions``: of nested sequences, also counted in time steps; else None. Both are int32, and
    end with the number of time steps. ``len()``: number of sequences. See docs/semantics.md.
    """

    values: Array | Csr | BinaryArray | StringArray
    sequence_start_positions: Positions
    sub_sequence_start_positions: Positions | None = None

    def __len__(self) -> int:
        return len(self.sequence_start_positions) - 1

    def __repr__(self) -> str:
        nested = self.sub_sequence_start_positions
        groups = "" if nested is None else f" in {count_text(len(nested) - 1, 'sub-sequence')}"
        sequences, steps = count_text(len(self), "sequence"), count_text(len(self.values), "step")
        return f"<Ragged {sequences}, {steps}{groups}, of {_summary(self.values)}>"

    def _repr_html_(self) -> str:
        return _values_html(self)

    def pad(self, value: float = 0, length: int | None = None) -> tuple[Array, NDArray[np.int64]]:
        """Return a regular array ``(sequences, length, …)`` filled up with ``value``, and the lengths ``(sequences,)``.

        ``length``: of the result, default the longest sequence; longer sequences lose their end, and the lengths say
        what is left. Nested sequences are padded as one sequence of time steps each. Raises OptionTypeError for sparse
        values and strings, and for a ``value`` or ``length`` that is no number; OptionError for a negative length, and
        for a ``value`` that the dtype of ``values`` cannot hold. See docs/semantics.md.
        """
        if isinstance(self.values, Csr):
            raise OptionTypeError(
                "Ragged.pad() needs dense or integer steps, but these are sparse; use .values.to_scipy() and "
                ".sequence_start_positions"
            )
        if isinstance(self.values, BinaryArray | StringArray):
            raise OptionTypeError(
                "Ragged.pad() needs dense or integer steps, but these are strings; use .values.to_list() and "
                ".sequence_start_positions"
            )
        filling = _filling(value, self.values.dtype)
        starts = self.sequence_start_positions.astype(np.int64)
        lengths = np.diff(starts)
        if length is None:
            length = int(lengths.max(initial=0))
        elif isinstance(length, bool) or not isinstance(length, Integral):
            raise OptionTypeError(
                f"the length to pad to must be a whole number or None, got {length!r:.80} ({type(length).__name__})"
            )
        elif length < 0:
            raise OptionError(f"the length to pad to must be at least 0, got {length}")
        length = int(length)
        lengths = np.minimum(lengths, length)
        result = aligned_empty((len(lengths), length, *self.values.shape[1:]), self.values.dtype)
        result[...] = filling
        inside = np.arange(length) < lengths[:, None]
        rows, steps = np.nonzero(inside)
        result[inside] = self.values[starts[rows] + steps]
        return result, lengths


def _filling(value: Any, dtype: np.dtype[Any]) -> Array:
    """Return ``value``, one number, as an array without dimensions. Raises OptionTypeError if it is none, OptionError
    if ``dtype`` cannot hold it; a float is rounded."""
    given = np.asarray(value)
    if given.ndim or not (given.dtype.kind in "biu" or is_float(given.dtype) or isinstance(value, Real)):
        raise OptionTypeError(f"the value to pad with must be one number, got {value!r:.80} ({type(value).__name__})")
    try:
        with np.errstate(all="ignore"):  # what came of it is looked at
            made = given.astype(dtype)
            if is_float(dtype):
                fits = bool(np.isinf(made) <= (is_float(given.dtype) and np.isinf(given)))
            else:
                fits = made.item() == given.item()
    except OverflowError:
        fits = False
    if not fits:
        raise OptionError(f"the value to pad with must be a number that {dtype.name} can hold, got {value!r:.80}")
    return made


@dataclass(frozen=True, eq=False)
class Origin:
    """Origin of rows: row i is sample ``sample[i]`` of list entry ``entry[i]``.

    ``entry``: ``(rows,)`` int64, number of the entry in the file list, from 0; ``data.files`` has the entries.
    ``sample``: ``(rows,)`` int64, index of the sample in its entry, counted from 0 over all samples that the provider
    yielded, dropped ones included. ``source``: None, or with several sources ``(rows,)`` int64, the number of the
    source whose list ``entry`` means; ``data.files[source]`` has its entries. See docs/debugging.md.
    """

    entry: Ints
    sample: Ints
    source: Ints | None = None

    def __len__(self) -> int:
        return len(self.entry)

    def __repr__(self) -> str:
        return f"<Origin of {count_text(len(self), 'row')}>"


Value = Array | Csr | Ragged | BinaryArray | StringArray


def _summary(value: Any) -> str:
    if hasattr(value, "dtype"):  # the arrays of a framework too
        return f"{value.dtype} {value.shape}"
    return repr(value).strip("<>")


class Batch:
    """Samples that one step of a trainer gets.

    ``batch["pixel"]`` or ``batch[0]``: the value of a slot; the same object each time, and yours to write to.
    ``"pixel" in batch``: whether there is such a slot. Iterating gives the values in slot order (``pixel, label =
    batch``), as ``values()`` does, and not the names as a dict would; ``keys()`` and ``items()`` have the names, or
    the positions if slots have no names, and ``dict(batch)`` works. ``len(batch)``: rows, not slots. ``size``: their
    weight. ``pass_id``, ``index``: which batch of which pass. ``pool_weight``: weight that waited in the pool when
    the batch was cut. ``padding``: how many of the last rows only fill the batch up. ``bucket``: with ``bucket_by``,
    the greatest length in the bucket that the batch came from, and None for the bucket of samples longer than all
    bounds. ``group_bucket``: the greatest ``bucket`` of the batches that the ranks get in this step, None if one of
    them is None. ``origin``: which sample of which list entry each row is, with ``origin=True``. See docs/semantics.md,
    docs/buckets.md and docs/debugging.md.
    """

    __slots__ = (
        "_columns",
        "_origin",
        "_ready",
        "_resume",
        "_values",
        "bucket",
        "group_bucket",
        "index",
        "padding",
        "pass_id",
        "pool_weight",
        "size",
    )

    def __init__(
        self,
        columns: Columns,
        *,
        pass_id: int,
        index: int,
        size: int,
        pool_weight: int = 0,
        padding: int = 0,
        bucket: int | None = None,
        group_bucket: int | None = None,
    ) -> None:
        self._columns = columns
        self._origin: Origin | memoryview | None = None  # as bytes until it is asked for: int64 (rows, 2)
        self._values: list[Value | None] = [None] * len(columns.slots)
        self.pass_id = pass_id
        self.index = index
        self.size = size
        self.pool_weight = pool_weight
        self.padding = padding
        self.bucket = bucket
        self.group_bucket = group_bucket
        self._resume: Any = None  # for the client: the position of the stream behind this batch
        self._ready: tuple[Any, Any] | None = None  # a conversion, and what it made of this batch ahead

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        """Return the state of a copy, here or in another process, which belongs to no client."""
        names = [name for kind in type(self).__mro__ for name in getattr(kind, "__slots__", ())]
        made = {"_ready": None, "_resume": None, "_origin": self._decoded_origin()}
        return None, {name: getattr(self, name) for name in names} | made

    def __len__(self) -> int:
        return self._columns.rows

    @property
    def names(self) -> tuple[str, ...] | None:
        """Names of the slots, None when they were declared as a list."""
        return self._columns.slots.names

    @property
    def slots(self) -> Slots:
        """Types and names of the slots."""
        return self._columns.slots

    @property
    def origin(self) -> Origin:
        """Origin of each row, padding rows included: which sample of which list entry it is.

        Raises OptionError if the batch has none, because nothing asked for it. See docs/debugging.md.
        """
        if (origin := self._decoded_origin()) is None:
            raise OptionError(
                "batch.origin needs origin=True, and this stream was opened without it; pass origin=True to load() or "
                "connect(), to launch().connect(), or to the loader"
            )
        return origin

    def _decoded_origin(self) -> Origin | None:
        """Return the origins; None if there are none."""
        if isinstance(self._origin, memoryview):
            self._origin = Origin(*np.frombuffer(self._origin, np.int64).reshape(len(self), 2).T.copy())
        return self._origin

    @property
    def _converted_slots(self) -> Slots:
        """Slots as adapters of frameworks convert them that widen indices: arrays of indices are index slots here."""
        return self.slots

    def to(self, device: Any = None, *, non_blocking: bool = False) -> Any:
        """Return the values as torch tensors on ``device``, as :func:`pydp2.torch.to_tensors` makes them.

        Loops of torch that move what their loader gives (Lightning, Accelerate) call it. Raises ImportError, with the
        remedy, if torch is not installed. See docs/torch.md.
        """
        return converters["torch"](self, device, non_blocking=non_blocking)

    def pin_memory(self) -> Any:
        """Return the values as torch tensors in pinned memory; torch's DataLoader calls it with ``pin_memory=True``.

        Raises ImportError, with the remedy, if torch is not installed. See docs/torch.md.
        """
        return converters["torch"](self, pin_memory=True)

    def keys(self) -> tuple[str, ...] | tuple[int, ...]:
        """Return the names, or positions if there are no names, in slot order."""
        return self.names if self.names is not None else tuple(range(len(self._values)))

    def values(self) -> list[Value]:
        """Return the value of each slot, in slot order."""
        values = self._values
        for slot, value in enumerate(values):
            if value is None:
                values[slot] = _slot_value(self._columns, slot)
        return [value for value in values if value is not None]

    def items(self) -> list[tuple[str | int, Value]]:
        """Return key and value of each slot, in slot order."""
        return list(zip(self.keys(), self.values(), strict=True))

    def __contains__(self, key: object) -> bool:
        """Return True if ``batch[key]`` is the value of a slot. (Values are not searched, although
        iterating gives them.)"""
        if isinstance(key, str):
            return self.names is not None and key in self.names
        return isinstance(key, int) and -len(self._values) <= key < len(self._values)

    def __iter__(self) -> Iterator[Value]:
        return iter(self.values())

    def __getitem__(self, key: str | int) -> Value:
        """Return the value of one slot. Raises KeyError or IndexError that says which slots there are, or TypeError."""
        if isinstance(key, str):
            slot = self._columns.slots.index(key)
        elif not hasattr(type(key), "__index__"):  # a slice of a range would be one
            raise TypeError(
                f"a batch is indexed by the name or the number of a slot, got {key!r:.80}; rows are cut from the value "
                f"of a slot: batch[{self.keys()[0]!r}][0:1]"
            )
        else:
            try:
                slot = range(len(self._values))[key]
            except IndexError:
                raise IndexError(f"there is no slot {key}: the batch has {len(self._values)}") from None
        value = self._values[slot]
        if value is None:
            value = self._values[slot] = _slot_value(self._columns, slot)
        return value

    def __repr__(self) -> str:
        slots = "; ".join(f"{self._columns.slots.label(i)}: {_summary(v)}" for i, v in enumerate(self))
        rows = count_text(len(self), "row")
        return f"<Batch {self.index} of pass {self.pass_id}: {rows}, size {self.size}; {slots}>"

    def _repr_html_(self) -> str:
        caption = f"Batch {self.index} of pass {self.pass_id}: {count_text(len(self), 'row')}, size {self.size}"
        caption += f", of which {self.padding} only fill it up" if self.padding else ""
        shown = [(self._columns.slots.label(i), *_described(self[i])) for i in range(min(len(self._values), MAX_ROWS))]
        left_out = [("",)] * (len(self._values) - len(shown))
        wanted = [i for i in range(1 + len(_DESCRIBED)) if any(row[i] for row in shown)]  # no column without a text
        rows = [[row[i] for i in wanted] for row in [("slot", *_DESCRIBED), *shown]]
        return html_table(caption, rows[0], [*rows[1:], *left_out])


_DESCRIBED = ("values", "lengths", "range", "first row")


def _values_html(value: Csr | Ragged) -> str:
    return html_table(repr(value).strip("<>"), (), list(zip(_DESCRIBED, _described(value), strict=True))[1:])


def _described(value: Value) -> tuple[str, str, str, str]:
    """Return texts for :data:`_DESCRIBED`: what is in a value, how long its rows are, its least and greatest number,
    and how its first row begins."""
    if isinstance(value, Ragged):
        starts = value.sequence_start_positions
        inner, first = value.values, slice(0, int(starts[1]) if len(starts) > 1 else 0)
    elif isinstance(value, Csr):
        starts, inner, first = value.indptr, value, slice(0, 1)
    elif isinstance(value, BinaryArray | StringArray):
        starts, inner, first = value.offsets, value, slice(0, 1)
    else:
        return _summary(value), "", _range(value), _beginning(value[:1])
    lengths = np.diff(starts)
    spread = f"{lengths.min():,} to {lengths.max():,}, mean {lengths.mean():,.1f}" if len(lengths) else ""
    if isinstance(inner, np.ndarray):
        return _summary(value), spread, _range(inner), _beginning(inner[first])
    if not isinstance(inner, Csr):
        return _summary(value), spread, "", ", ".join(_quoted(each) for each in inner[first][:_SHOWN_STRINGS])
    stop = int(inner.indptr[min(first.stop, len(inner))])
    numbers = "" if inner.values is None else _range(inner.values)
    return _summary(value), spread, numbers, f"columns {_beginning(inner.indices[:stop])}" if stop else ""


def _range(numbers: Array) -> str:
    if not numbers.size:
        return ""
    with np.errstate(invalid="ignore"):  # bfloat16 warns of nan where the dtypes of numpy do not
        return f"{float(numbers.min()):.5g} to {float(numbers.max()):.5g}"


def _beginning(numbers: Array) -> str:
    shown = [f"{float(each):.5g}" for each in numbers.reshape(-1)[:_SHOWN_NUMBERS]]
    return ", ".join(shown) + (", …" if numbers.size > len(shown) else "")


def _quoted(string: str | bytes) -> str:
    return repr(string[:_SHOWN_TEXT]) + ("…" if len(string) > _SHOWN_TEXT else "")


def row_splits(batch: Batch, slot: int) -> list[NDArray[np.int64]]:
    """Return where the rows of a sequence begin and end, counted in elements of the level below; for nested ones, then
    where each sub-sequence does. (``Ragged`` counts both in time steps, which does not tell where an empty one is.)"""
    columns = batch._columns
    return [offsets(counts) for counts in columns.arrays[slot][: columns.slots.types[slot].seq_type]]


def _slot_value(columns: Columns, slot: int) -> Value:
    declared = columns.slots.types[slot]
    arrays = [a if a.flags.writeable else a.copy() for a in columns.arrays[slot]]
    if len(arrays) == 1:  # numbers, of which a batch may have many slots
        return declared.as_declared(arrays[0])
    levels, leaves = arrays[: declared.seq_type], arrays[declared.seq_type :]
    values: Array | Csr | BinaryArray | StringArray
    if declared.type in (DataType.Dense, DataType.Index):
        values = declared.as_declared(leaves[0])
    elif declared.type in STRING_TYPES:
        edges = offsets(leaves[0]) if levels else columns.row_offsets(slot)[0]
        values = StringArray(edges, leaves[1]) if declared.type == DataType.Text else BinaryArray(edges, leaves[1])
    else:
        floats = leaves[2] if declared.type == DataType.SparseValue else None
        is_row = declared.seq_type == SequenceType.NO_SEQUENCE
        edges = columns.row_offsets(slot)[0] if is_row else offsets(leaves[0])
        values = Csr(_narrow(edges), leaves[1], floats, (len(leaves[0]), declared.dim))
    if declared.seq_type == SequenceType.NO_SEQUENCE:
        return values
    if declared.seq_type == SequenceType.SEQUENCE:
        return Ragged(values, _narrow(columns.row_offsets(slot)[0]))
    subs = start_positions(levels[1])
    return Ragged(values, subs[offsets(levels[0])], subs)
