"""Common parts of the formats whose files hold arrays with a row per sample on their first axis: hdf5, zarr.

A format says which arrays a file has (:class:`RowArray`); :class:`ArrayFile` reads rows of all of them. An array in
chunks is decoded whole rows of chunks at a time, and the last of them stay, so that reading forward decodes each chunk
once, whatever the chunks of the other arrays are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pydp2.data.columns.batch import BinaryArray, Ragged, StringArray
from pydp2.data.columns.columns import offsets
from pydp2.data.packers.many_samples import ManySamples, rows
from pydp2.data.schema.input_types import STRING_TYPES, DataType, InputType, dense_vector, raw, scalar, text
from pydp2.errors import FormatError, OptionError, OptionTypeError
from pydp2.file_parts import FilePart, split_entry
from pydp2.formats.library_errors import errors_of
from pydp2.formats.serving import BLOCK
from pydp2.formats.source import Closable

Array = NDArray[Any]
Indices = NDArray[np.int64]
Kind = np.dtype[Any] | str | None
"""Kind of an element: "text", "raw", the dtype of numbers in a list of any length, or None for a number itself."""

MOST_BYTES = 1 << 30
"""Most bytes of a row of an array, and of the chunks that hold a row."""
_MOST_ROWS = 1 << 14
_SHOWN = 8
_UNKNOWN = 1 << 12  # bytes that a row is taken for if rows differ


@dataclass
class RowArray:
    """Array of a file. ``chunk_rows``: rows of a chunk, 0 without chunks. ``kind_of``: kind of a dtype, raises
    OptionTypeError for one that no slot takes. ``read(lo, hi)``: rows lo to hi - 1."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunk_rows: int
    kind_of: Callable[[np.dtype[Any]], Kind]
    read: Callable[[int, int], Array]

    def __post_init__(self) -> None:
        self._slab = -1, np.zeros(0)
        is_fixed = self.dtype.kind != "T" and not self.dtype.hasobject
        self.row_bytes = math.prod(self.shape[1:]) * self.dtype.itemsize if is_fixed else _UNKNOWN
        slab_bytes = max(1, self.chunk_rows) * self.row_bytes
        if is_fixed and slab_bytes > MOST_BYTES:
            raise ValueError(f"chunks of a row have at most {MOST_BYTES} bytes, these {slab_bytes}: write smaller ones")
        self._slab_rows = self.chunk_rows * max(1, BLOCK // max(1, slab_bytes))

    def rows(self, lo: int, hi: int) -> Array:
        """Return rows ``lo`` to ``hi - 1``."""
        size = self._slab_rows
        if not size:
            return self.read(lo, hi)
        pieces = []
        while lo < hi:
            begin = lo - lo % size
            if self._slab[0] != begin:
                self._slab = begin, self.read(begin, min(self.shape[0], begin + size))
            pieces.append(self._slab[1][lo - begin : min(hi - begin, size)])
            lo = begin + size
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


@dataclass(frozen=True)
class ArraySlot:
    """Values of an array, or of the field at ``path`` of its compound values, and the type of their slot."""

    array: str
    path: tuple[str, ...]
    type: InputType

    def values(self, block: dict[str, Array]) -> Any:
        """Return the values of a block of rows as :func:`rows` takes them."""
        values = block[self.array]
        for field in self.path:
            values = values[field]
        if self.type.type in STRING_TYPES:
            return _strings(values, self.type.type == DataType.Text)
        if values.dtype.kind == "O":
            dtype = self.type.element_dtype
            lists = [np.asarray(value, dtype) for value in values]
            return Ragged(np.concatenate([np.zeros(0, dtype), *lists]), offsets(np.array([*map(len, lists)], np.int64)))
        if values.dtype.kind in "mM":
            return values.astype(values.dtype.newbyteorder("=")).view(np.int64)
        return values.astype(self.type.element_dtype, copy=False)


def _strings(values: Array, is_text: bool) -> StringArray | BinaryArray:
    kind = StringArray if is_text else BinaryArray
    if values.dtype.kind == "U":
        values = np.char.encode(values, "utf-8", "surrogatepass")
    if values.dtype.kind in "SV":
        width = values.dtype.itemsize
        data = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), width)
        lengths = np.char.str_len(values) if values.dtype.kind == "S" else np.full(len(values), width)
        return kind(offsets(lengths), data[np.arange(width) < lengths[:, None]])
    strings = [string.encode() if isinstance(string, str) else bytes(string) for string in values.tolist()]
    return kind(offsets(np.array(list(map(len, strings)), np.int64)), np.frombuffer(b"".join(strings), np.uint8))


class ArrayFile(Closable):
    """Arrays of an open file, all with as many rows. ``len()``: the number of rows.

    Attributes: ``name``, of the file; ``slots``, by their names.

    Raises:
        FormatError: the arrays have different numbers of rows, or one has no rows or values that no slot takes.
        OptionError: ``keys`` names a field that is absent.
    """

    def __init__(
        self, name: str, arrays: Sequence[RowArray], keys: Sequence[str] | None, close: Callable[[], object]
    ) -> None:
        self.name, self._close = name, close
        counts = {array.name: array.shape[0] for array in arrays}
        if len(set(counts.values())) > 1:
            raise FormatError(
                f"{name}: arrays must have as many rows, but {', '.join(f'{k} has {n}' for k, n in counts.items())}; "
                "keys=[…] serves the arrays that it names alone",
                file=name,
            )
        self._count = next(iter(counts.values()), 0)
        every = {slot: value for array in arrays for slot, value in _slots(name, array, keys)}
        self.slots = every
        if keys is not None:
            chosen = {key: [slot for slot in every if slot == key or slot.startswith(f"{key}.")] for key in keys}
            for key, found in chosen.items():
                if not found:
                    raise OptionError(f"{name} has no array or field {key}")
            self.slots = {slot: every[slot] for found in chosen.values() for slot in found}
        if not self.slots:
            raise FormatError(f"{name} has no arrays", file=name)
        used = {slot.array for slot in self.slots.values()}
        self._arrays = [array for array in arrays if array.name in used]
        self._unit = max(1, *(array.chunk_rows for array in self._arrays))
        self._block = max(1, min(_MOST_ROWS, BLOCK // max(1, sum(array.row_bytes for array in self._arrays))))

    def __len__(self) -> int:
        return self._count

    def blocks(self, part: FilePart, start: int, indices: Indices | None) -> Iterator[dict[str, Array]]:
        """Yield the rows of ``part``, some at a time, from its row ``start`` on, or those of ``indices`` alone: an
        array by its name. Parts have whole chunks of the array whose chunks have the most rows."""
        first, last = (min(self._count, n * self._unit) for n in part.range(-(-self._count // self._unit)))
        if indices is None:
            for lo in range(first + start, last, self._block):
                yield self._rows(lo, min(last, lo + self._block))
            return
        wanted = indices + first
        numbers = wanted // self._block
        for number in np.unique(numbers).tolist():
            some = wanted[numbers == number]
            lo = int(some[0])
            block = self._rows(lo, int(some[-1]) + 1)
            yield block if len(next(iter(block.values()))) == len(some) else {k: v[some - lo] for k, v in block.items()}

    def _rows(self, lo: int, hi: int) -> dict[str, Array]:
        block = {}
        for array in self._arrays:
            with errors_of(self.name, lambda: f"array {array.name}, rows {lo} to {hi - 1}"):  # noqa: B023 - called here
                block[array.name] = array.rows(lo, hi)
                if len(block[array.name]) != hi - lo:
                    raise ValueError(f"expected {hi - lo} rows, got {len(block[array.name])}")
        return block

    def close(self) -> None:
        """Close the file."""
        self._close()


def _slots(file: str, array: RowArray, keys: Sequence[str] | None) -> Iterator[tuple[str, ArraySlot]]:
    """Yield (name, slot) of an array; of compound values for each field, ``a.b``. Those that ``keys`` names not, or
    none of whose fields, may have any type."""
    for name, path, dtype, shape in _leaves(array.name, (), array.dtype, array.shape[1:]):
        if keys is None or any(name == key or name.startswith(f"{key}.") for key in keys):
            try:
                yield name, ArraySlot(array.name, path, _slot_type(array.kind_of, dtype, shape))
            except OptionTypeError as error:
                raise FormatError(
                    f"{file}, array {name}: {error}; keys=[…] serves the arrays that it names alone", file=file
                ) from None


def _leaves(
    name: str, path: tuple[str, ...], dtype: np.dtype[Any], shape: tuple[int, ...]
) -> Iterator[tuple[str, tuple[str, ...], np.dtype[Any], tuple[int, ...]]]:
    if dtype.subdtype is not None:
        yield from _leaves(name, path, dtype.subdtype[0], shape + dtype.subdtype[1])
    elif dtype.names is not None:
        for field in dtype.names:
            yield from _leaves(f"{name}.{field}", (*path, field), dtype[field], shape)
    else:
        yield name, path, dtype, shape


def _slot_type(kind_of: Callable[[np.dtype[Any]], Kind], dtype: np.dtype[Any], shape: tuple[int, ...]) -> InputType:
    """Return the type of the slot of values ``(rows, *shape)``. Raises OptionTypeError: no slot takes them."""
    kind = kind_of(dtype)
    if kind is not None and shape:
        raise OptionTypeError(f"strings and lists must be one per sample, got the shape {shape} of a sample")
    if isinstance(kind, str):
        return text() if kind == "text" else raw()
    number = dtype if kind is None else kind
    if number.kind in "mM":
        number = np.dtype(np.int64)
    if number.kind not in "biuf" or number.itemsize > 8:
        raise OptionTypeError(f"no slot takes values of {number}; write them as numbers of float64, or of int64")
    if 0 in shape:
        raise OptionTypeError(f"a dense slot has at least one number, got the shape {shape} of a sample")
    if math.prod(shape) * number.itemsize > MOST_BYTES:
        raise OptionTypeError(f"a sample has at most {MOST_BYTES} bytes, got the shape {shape}")
    return dense_vector(shape, dtype=number) if shape else scalar(number, 0 if kind is None else 1)


def listed(names: Iterable[str]) -> str:
    """Return the first of ``names`` in a row."""
    known = list(names)
    return ", ".join(known[:_SHOWN]) + ", …" * (len(known) > _SHOWN)


# -- the provider ------------------------------------------------------------------------------------------------------
def checked_keys(option: str, keys: Any) -> tuple[str, ...] | None:
    """Return the option ``keys``, a list of names, as a tuple; None: all. Raises OptionTypeError, OptionError."""
    if keys is None:
        return None
    if not isinstance(keys, list | tuple) or not all(isinstance(key, str) for key in keys):
        raise OptionTypeError(f'{option} must be a list of names, such as ["image", "label"], got {keys!r:.80}')
    if not keys or len(set(keys)) < len(keys):
        raise OptionError(f"{option} must name each array once, got {keys!r:.80}")
    return tuple(keys)


def decide_slots(settings: Any, file_list: Sequence[str], open_file: Callable[[str], ArrayFile]) -> None:
    """Declare the slots of the first file of the list that has a row, or else of the first; keep ``open_file``."""
    settings.open_file, settings.first, settings.slots = open_file, "", {}
    for name in dict.fromkeys(split_entry(entry)[0] for entry in file_list):
        with open_file(name) as file:
            if len(file) or not settings.first:
                settings.first, settings.slots = name, file.slots
            if len(file):
                break
    settings.input_types = {name: slot.type for name, slot in settings.slots.items()} or {"data": scalar()}


def serve_rows(settings: Any, filename: str, start: int, indices: Indices | None) -> Iterator[ManySamples]:
    """Yield the rows of an entry. Raises FormatError: it has other slots than the first file."""
    name, part = split_entry(filename)
    with settings.open_file(name) as file:
        for slot in settings.slots.keys() | file.slots.keys():
            expected, got = (slots[slot].type if slot in slots else "absent" for slots in (settings.slots, file.slots))
            if expected != got:
                raise FormatError(
                    f"{name} must have the arrays of {settings.first}: {slot} is {expected} there and {got} here; "
                    "keys=[…] serves the arrays that it names alone",
                    file=name,
                )
        for block in file.blocks(part, start, indices):
            with errors_of(name):
                made = rows(**{key: slot.values(block) for key, slot in file.slots.items()})
            yield made
