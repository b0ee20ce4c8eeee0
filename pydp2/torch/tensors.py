"""Convert a batch to tensors: pure functions of its arrays, one for each slot (docs/torch.md, "What a step gets")."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from pydp2.data.columns.batch import Batch, Csr, Ragged
from pydp2.data.columns.columns import Array, Columns
from pydp2.data.schema.input_types import (
    INT32_RANGE,
    STRING_TYPES,
    DataType,
    InputType,
    SequenceType,
    Slots,
    is_bfloat16,
)
from pydp2.errors import OptionError, OptionTypeError
from pydp2.frameworks.sparse_rows import ascends, sorted_columns

Tensors = dict[str, Any] | tuple[Any, ...]
"""Value of a step: by the name of the slot, or in slot order where slots have no names."""
Place = Callable[[torch.Tensor], torch.Tensor]
"""Puts a tensor where it is wanted: on a device, in pinned memory, or as it is."""
_Part = Callable[[Any, Any, Place | None], Any]
"""Makes the tensors of a slot of rows ``lo`` to ``hi`` of columns that were prepared."""
_SPARSE_TYPES = (DataType.SparseNonValue, DataType.SparseValue)
_LOT_BYTES = 1 << 20  # of columns that stay here until the next ones come; small batches come in lots of 256 KiB
Pad = float | Mapping[str, float] | Mapping[int, float] | None


class RaggedTensor(NamedTuple):
    """Sequences, one after the other: sequence i has the rows ``[offsets[i], offsets[i + 1])`` of ``values``.

    ``values``: one row per time step, ``(steps, …)``, or a sparse CSR tensor of so many rows. ``offsets``:
    ``(sequences + 1,)``. ``sub_offsets``: of nested sequences, also counted in time steps; else None.
    """

    values: torch.Tensor
    offsets: torch.Tensor
    sub_offsets: torch.Tensor | None = None


class PaddedTensor(NamedTuple):
    """Sequences, filled up to one length: ``values`` ``(sequences, length, …)`` and ``lengths`` ``(sequences,)``."""

    values: torch.Tensor
    lengths: torch.Tensor


class TensorConverter:
    """Function that makes the value of a step of a batch. The options are those of :func:`pydp2.torch.loader`.

    Raises OptionError and OptionTypeError for options that the slots cannot have.
    """

    def __init__(
        self,
        slots: Slots,
        *,
        index_dtype: torch.dtype = torch.int64,
        nested: bool = False,
        pad: Pad = None,
        pad_to: int | None = None,
    ) -> None:
        if index_dtype not in (torch.int64, torch.int32):
            raise OptionError(f"index_dtype must be torch.int64 or torch.int32, got {index_dtype!r}")
        self._slots = slots
        self._numpy_dtype = np.int64 if index_dtype == torch.int64 else np.int32  # numpy converts short arrays faster
        self._pad_to = pad_to
        pads = _pads(slots, pad)
        if pad_to is not None and not pads:
            raise OptionError("pad_to needs pad, the value to fill up with, and a slot of sequences that is padded")
        self._functions = [
            self._function(slots.label(i), declared, pads.get(i), nested) for i, declared in enumerate(slots.types)
        ]
        self._openers = [
            None if i in pads or nested else self._opener(i, declared) for i, declared in enumerate(slots.types)
        ]
        self._is_nested = nested
        self._lot: tuple[Columns | None, list[_Part | None]] = (None, [])  # what was prepared last
        self._is_sparse = any(each.type in _SPARSE_TYPES for each in slots.types)
        if self._is_sparse:
            _hide_beta_warning()

    def __call__(self, batch: Batch, place: Place | None = None) -> Tensors:
        """Return the values of ``batch``, each tensor of them passed through ``place``."""
        return self._structure([function(batch[i], place) for i, function in enumerate(self._functions)])

    def convert_next(self, batch: Batch, place: Place | None = None) -> Tensors:
        """Return what a call returns, for each batch of a stream once: small batches that were gathered together are
        converted together, and no values are made of a batch before somebody asks it for them."""
        for value in batch._values:
            if value is not None:
                return self(batch, place)  # its user may have written to it
        columns = batch._columns
        _, lo, hi = columns.whole
        return self._structure(
            [
                self._functions[i](batch[i], place) if part is None else part(lo, hi, place)
                for i, part in enumerate(self._parts(columns))
            ]
        )

    def context(self) -> tuple[bool] | None:
        """Return what tensors depend on beside their batch, in this thread. None: only the thread that trains may make
        them, because nested tensors get numbers that torch counts without a lock, and to make a sparse tensor without
        checks is to switch them off for all threads for a moment."""
        checks = self._is_sparse and torch.sparse.check_sparse_tensor_invariants.is_enabled()
        return None if self._is_nested or checks else (torch.is_inference_mode_enabled(),)

    def _parts(self, columns: Columns) -> list[_Part | None]:
        """Return for each slot what makes the tensors of a part of the columns that ``columns`` are a slice of."""
        whole = columns.whole[0]
        known, parts = self._lot
        if known is not whole:
            parts = [None if opener is None else opener(whole) for opener in self._openers]
            if whole is not columns:
                self._lot = (whole, parts) if whole.nbytes <= _LOT_BYTES else (None, [])
        return parts

    def _structure(self, values: list[Any]) -> Tensors:
        names = self._slots.names
        return tuple(values) if names is None else dict(zip(names, values, strict=True))

    def _opener(self, slot: int, declared: InputType) -> Callable[[Columns], _Part | None] | None:
        """Return the function that prepares a slot of columns, and returns the one that makes the tensors of some of
        their rows, or None where the values of a batch have to be made first."""
        if declared.type in STRING_TYPES or declared.seq_type == SequenceType.SUB_SEQUENCE:
            return None
        if declared.type in _SPARSE_TYPES:
            is_row = declared.seq_type == SequenceType.NO_SEQUENCE
            return (lambda columns: self._csr_part(columns, slot, declared.dim)) if is_row else None
        if declared.seq_type == SequenceType.NO_SEQUENCE:
            return lambda columns: self._plain_part(columns.arrays[slot][0], declared)
        return lambda columns: self._ragged_part(columns, slot, declared)

    def _plain_part(self, array: Array, declared: InputType) -> _Part | None:
        if declared.type == DataType.Index and array.dtype != self._numpy_dtype:
            array = array.astype(self._numpy_dtype)
        if not array.flags.writeable:
            return None
        is_other = is_bfloat16(declared.element_dtype)

        def part(lo: int, hi: int, place: Place | None) -> torch.Tensor:
            tensor = torch.from_numpy(array[lo:hi])
            if is_other:
                tensor = tensor.view(torch.bfloat16)
            return tensor if place is None else place(tensor)

        return part

    def _ragged_part(self, columns: Columns, slot: int, declared: InputType) -> _Part | None:
        steps, edges = self._plain_part(columns.arrays[slot][1], declared), columns.row_offsets(slot)[0]
        if steps is None:
            return None

        def part(lo: int, hi: int, place: Place | None) -> RaggedTensor:
            begin = edges[lo]
            offsets = edges[lo : hi + 1] - begin
            return RaggedTensor(steps(begin, edges[hi], place), self._index(offsets, place))

        return part

    def _csr_part(self, columns: Columns, slot: int, width: int) -> _Part | None:
        edges, _, indices = columns.row_offsets(slot)[0], *columns.arrays[slot][:2]
        entries = columns.arrays[slot][2] if len(columns.arrays[slot]) == 3 else np.ones(len(indices), np.float32)
        if not (indices.flags.writeable and entries.flags.writeable and ascends(edges, indices)):
            return None
        indices = indices.astype(self._numpy_dtype, copy=False)

        def part(lo: int, hi: int, place: Place | None) -> torch.Tensor:
            begin, end = edges[lo], edges[hi]
            crows, columns = self._index(edges[lo : hi + 1] - begin, place), torch.from_numpy(indices[begin:end])
            values = torch.from_numpy(entries[begin:end])
            if place is not None:
                columns, values = place(columns), place(values)
            return _csr_tensor(crows, columns, values, (hi - lo, width))

        return part

    def _function(
        self, label: str, declared: InputType, pad: float | None, nested: bool
    ) -> Callable[[Any, Place | None], Any]:
        """Return the function of one slot."""
        if self._numpy_dtype == np.int32 and declared.type != DataType.Dense and declared.dim > INT32_RANGE:
            raise OptionError(f"{label} has indices up to {declared.dim}, which need index_dtype=torch.int64")
        if declared.seq_type == SequenceType.NO_SEQUENCE:
            return self._element(declared)
        if pad is not None:
            _require_plain(label, declared, "pad")
            return lambda value, place: self._padded(value, pad, declared, place)
        if nested:
            _require_plain(label, declared, "nested")
            if declared.seq_type == SequenceType.SUB_SEQUENCE:
                raise OptionTypeError(
                    f"nested is for sequences, and {label} has sequences of sequences, which torch.nested has not: pad "
                    "it (pad={…}), or leave nested out"
                )
            return lambda value, place: self._nested(value, declared, place)
        return lambda value, place: self._ragged(value, declared, place)

    def _element(self, declared: InputType) -> Callable[[Any, Place | None], Any]:
        """Return the function for what is no sequence, or for all steps of one."""
        if declared.type == DataType.Dense:
            return _dense
        if declared.type in STRING_TYPES:
            return lambda value, place: value.to_list()
        return self._index if declared.type == DataType.Index else self._csr

    def _index(self, value: Any, place: Place | None) -> torch.Tensor:
        tensor = torch.from_numpy(value.astype(self._numpy_dtype, copy=False))
        return tensor if place is None else place(tensor)

    def _csr(self, value: Csr, place: Place | None) -> torch.Tensor:
        indices, values = sorted_columns(value)
        entries = torch.from_numpy(np.ones(len(indices), np.float32) if values is None else values)
        edges, columns = self._index(value.indptr, place), self._index(indices, place)
        entries = entries if place is None else place(entries)
        return _csr_tensor(edges, columns, entries, value.shape)

    def _ragged(self, value: Ragged, declared: InputType, place: Place | None) -> RaggedTensor:
        subs = value.sub_sequence_start_positions
        return RaggedTensor(
            self._element(declared)(value.values, place),
            self._index(value.sequence_start_positions, place),
            None if subs is None else self._index(subs, place),
        )

    def _nested(self, value: Ragged, declared: InputType, place: Place | None) -> torch.Tensor:
        steps = self._element(declared)(value.values, place)
        return torch.nested.nested_tensor_from_jagged(steps, self._index(value.sequence_start_positions, place))

    def _padded(self, value: Ragged, pad: float, declared: InputType, place: Place | None) -> PaddedTensor:
        if declared.type == DataType.Index:  # before it is filled up: the value may be below 0
            value = Ragged(value.values.astype(self._numpy_dtype), value.sequence_start_positions)  # type: ignore[union-attr]
        values, lengths = value.pad(pad, self._pad_to)
        return PaddedTensor(_dense(values, place), self._index(lengths, place))


def can_pin() -> bool:
    """Return True if there is a device to which pinned memory can be copied. Without one warn, as torch's DataLoader
    does: a script that asks for pinned memory runs on a machine without a GPU too."""
    accelerator = getattr(torch, "accelerator", torch.cuda)  # before torch 2.6 there is none
    if accelerator.is_available():
        return True
    warnings.warn(
        "pin_memory=True has no effect: torch finds no GPU on this machine, so the tensors stay in ordinary memory",
        stacklevel=3,
    )
    return False


def to_tensors(
    batch: Batch,
    device: Any = None,
    *,
    pin_memory: bool = False,
    non_blocking: bool = False,
    **options: Any,
) -> Tensors:
    """Return the values of ``batch`` as tensors: a dict by slot name, or a tuple where slots have no names.

    Args:
        batch: what a client delivered. Its dense values are not copied on the CPU.
        device: where the tensors go, default the CPU.
        pin_memory: put them into pinned memory, from which a copy to a device can go on beside other work. Without a
            GPU this warns, and has no effect.
        non_blocking: do not wait for the copy to the device.
        options: ``index_dtype, nested, pad, pad_to``, as :func:`pydp2.torch.loader` has them.

    Raises:
        OptionError, OptionTypeError: options that the slots cannot have. See docs/torch.md.
    """
    pin_memory = pin_memory and can_pin()

    def place(tensor: torch.Tensor) -> torch.Tensor:
        if pin_memory:
            tensor = tensor.pin_memory()
        return tensor if device is None else tensor.to(device, non_blocking=non_blocking)

    return TensorConverter(batch._converted_slots, **options)(batch, place)


def _csr_tensor(
    edges: torch.Tensor, columns: torch.Tensor, entries: torch.Tensor, shape: tuple[int, int]
) -> torch.Tensor:
    """Return the tensor of sorted columns. A worker has checked what the invariants are. A default device of this
    thread, which may not be that of another one, changes nothing."""
    return torch.sparse_csr_tensor(edges, columns, entries, size=shape, device=entries.device, check_invariants=False)


def _dense(value: Any, place: Place | None) -> torch.Tensor:
    if is_bfloat16(value.dtype):  # a dtype that torch has under another name
        tensor = torch.from_numpy(value.view(np.uint16)).view(torch.bfloat16)
    else:
        tensor = torch.from_numpy(value)
    return tensor if place is None else place(tensor)


def _pads(slots: Slots, pad: Pad) -> dict[int, float]:
    """Return with what each slot is padded, by its position."""
    if pad is None:
        return {}
    if isinstance(pad, int | float) and not isinstance(pad, bool):
        return {i: pad for i, each in enumerate(slots.types) if each.seq_type != SequenceType.NO_SEQUENCE}
    if not isinstance(pad, Mapping):
        raise OptionTypeError(f"pad must be a number, or a dict of slots and numbers, got {pad!r:.80}")
    pads: dict[int, float] = {}
    for key, value in pad.items():
        slot = slots.index(key) if isinstance(key, str) else key
        if slot not in range(len(slots)) or slots.types[slot].seq_type == SequenceType.NO_SEQUENCE:
            raise OptionError(f"pad is for slots of sequences, and {key!r} is none; leave it out")
        pads[slot] = value
    return pads


def _require_plain(label: str, declared: InputType, option: str) -> None:
    """Raise OptionTypeError where the steps of a sequence are sparse, or strings."""
    if declared.type not in (DataType.Dense, DataType.Index):
        what = "strings" if declared.type in STRING_TYPES else "sparse"
        raise OptionTypeError(
            f"{option} needs dense or integer steps, and those of {label} are {what}; name the slots to pad "
            "(pad={…}), and take this one as values and offsets"
        )


def _hide_beta_warning() -> None:
    """Have torch say here, where it is dropped, that CSR tensors are in beta: it says so once in a process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        none = torch.zeros(0, dtype=torch.int64)
        torch.sparse_csr_tensor(torch.zeros(1, dtype=torch.int64), none, none, size=(0, 1), check_invariants=False)
