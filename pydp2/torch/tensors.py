"""Convert a batch to tensors: pure functions of its arrays, one for each slot (docs/torch.md, "What a step gets")."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from pydp2.data.columns.batch import Batch, Csr
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
from pydp2.frameworks.slot_visitor import PLAIN_TYPES, SlotVisitor, pads_of_all
from pydp2.frameworks.slot_visitor import PaddedTensor as PaddedTensor
from pydp2.frameworks.slot_visitor import RaggedTensor as RaggedTensor
from pydp2.frameworks.sparse_rows import ascends, sorted_rows

Tensors = dict[str, Any] | tuple[Any, ...]
"""Value of a step: a dict by slot name, or a tuple in slot order if slots have no names."""
DeviceCopy = Callable[[torch.Tensor], torch.Tensor]
"""Function that copies a tensor to a device or into pinned memory."""
_Part = Callable[[Any, Any], Any]
"""Function that makes the tensors of a slot for the rows from ``lo`` to below ``hi`` of prepared columns."""
_GATHERED_BYTES = 1 << 20  # largest bytes of columns that are prepared together: small batches come 256 KiB at a time
Pad = float | Mapping[str, float] | Mapping[int, float] | None


class TensorConverter(SlotVisitor):
    """Function from a batch to the value of a step. The options are those of :func:`pydp2.torch.loader`.

    ``copy_to_device``: copies each tensor to a device; None: there is no copy. Raises OptionError and OptionTypeError
    for options that do not fit the slots.
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
        # numpy converts short arrays faster
        self.index_dtype = np.dtype(np.int64 if index_dtype == torch.int64 else np.int32)
        self.copy_to_device: DeviceCopy | None = None
        self._is_nested = nested
        super().__init__(slots, pads=_pads(slots, pad), length=pad_to)
        if pad_to is not None and not self.pads:
            raise OptionError("pad_to needs pad, the value to fill up with, and a slot of sequences that is padded")
        for slot in range(len(slots)):
            self._check(slot)
        self._openers = [
            None if i in self.pads or nested else self._opener(i, declared) for i, declared in enumerate(slots.types)
        ]
        self._gathered: tuple[Columns | None, list[_Part | None]] = (None, [])  # the columns that were prepared last
        self._is_sparse = any(declared.type not in (*PLAIN_TYPES, *STRING_TYPES) for declared in slots.types)
        if self._is_sparse:
            _hide_beta_warning()

    def __call__(self, batch: Batch) -> Tensors:
        """Return the values of ``batch``."""
        return self._structure(self.values(batch))

    def convert_next(self, batch: Batch) -> Tensors:
        """Return the same as a call, once for each batch of a stream. Small batches that were gathered together are
        converted together, without the numpy values of each batch."""
        for value in batch._values:
            if value is not None:
                return self(batch)  # the user may have written to the values of the batch
        columns = batch._columns
        _, lo, hi = columns.whole
        return self._structure(
            [
                visit(batch[slot], slot, batch) if part is None else part(lo, hi)
                for (slot, visit), part in zip(self.visits, self._parts(columns), strict=True)
            ]
        )

    def context(self) -> tuple[bool] | None:
        """Return the settings of this thread on which tensors depend. None: only the training thread may make tensors,
        because torch numbers nested tensors without a lock, and because sparse tensors are made without checks, which
        are switched off for all threads for a moment."""
        checks = self._is_sparse and torch.sparse.check_sparse_tensor_invariants.is_enabled()
        return None if self._is_nested or checks else (torch.is_inference_mode_enabled(),)

    def _parts(self, columns: Columns) -> list[_Part | None]:
        """Return for each slot a function that makes tensors of slices of the columns to which ``columns`` belongs."""
        whole = columns.whole[0]
        known, parts = self._gathered
        if known is not whole:
            parts = [None if opener is None else opener(whole) for opener in self._openers]
            if whole is not columns:
                self._gathered = (whole, parts) if whole.nbytes <= _GATHERED_BYTES else (None, [])
        return parts

    def _structure(self, values: list[Any]) -> Tensors:
        names = self.slots.names
        return tuple(values) if names is None else dict(zip(names, values, strict=True))

    def _opener(self, slot: int, declared: InputType) -> Callable[[Columns], _Part | None] | None:
        """Return a function that prepares a slot of columns and returns a :data:`_Part`; None if the tensors of the
        slot can only be made from the values of a batch."""
        if declared.type in STRING_TYPES or declared.seq_type == SequenceType.SUB_SEQUENCE:
            return None
        if declared.type not in PLAIN_TYPES:
            is_row = declared.seq_type == SequenceType.NO_SEQUENCE
            return (lambda columns: self._csr_part(columns, slot, declared.dim)) if is_row else None
        if declared.seq_type == SequenceType.NO_SEQUENCE:
            return lambda columns: self._plain_part(columns.arrays[slot][0], declared)
        return lambda columns: self._ragged_part(columns, slot, declared)

    def _plain_part(self, array: Array, declared: InputType) -> _Part | None:
        if declared.type == DataType.Index and array.dtype != self.index_dtype:
            array = array.astype(self.index_dtype)
        if not array.flags.writeable:
            return None
        is_other = is_bfloat16(declared.element_dtype)

        def part(lo: int, hi: int) -> torch.Tensor:
            tensor = torch.from_numpy(array[lo:hi])
            return self._on_device(tensor.view(torch.bfloat16) if is_other else tensor)

        return part

    def _ragged_part(self, columns: Columns, slot: int, declared: InputType) -> _Part | None:
        steps, edges = self._plain_part(columns.arrays[slot][1], declared), columns.row_offsets(slot)[0]
        if steps is None:
            return None

        def part(lo: int, hi: int) -> RaggedTensor:
            begin = edges[lo]
            offsets = edges[lo : hi + 1] - begin
            return RaggedTensor(steps(begin, edges[hi]), self.indices(offsets))

        return part

    def _csr_part(self, columns: Columns, slot: int, width: int) -> _Part | None:
        edges, _, indices = columns.row_offsets(slot)[0], *columns.arrays[slot][:2]
        entries = columns.arrays[slot][2] if len(columns.arrays[slot]) == 3 else np.ones(len(indices), np.float32)
        if not (indices.flags.writeable and entries.flags.writeable and ascends(edges, indices)):
            return None
        indices = indices.astype(self.index_dtype, copy=False)

        def part(lo: int, hi: int) -> torch.Tensor:
            begin, end = edges[lo], edges[hi]
            crows, columns = self.indices(edges[lo : hi + 1] - begin), torch.from_numpy(indices[begin:end])
            values = torch.from_numpy(entries[begin:end])
            return _csr_tensor(crows, self._on_device(columns), self._on_device(values), (hi - lo, width))

        return part

    def _check(self, slot: int) -> None:
        """Raise OptionError or OptionTypeError for options that do not fit ``slot``."""
        declared, label = self.slots.types[slot], self.slots.label(slot)
        if self.index_dtype == np.int32 and declared.type != DataType.Dense and declared.dim > INT32_RANGE:
            raise OptionError(f"{label} has indices up to {declared.dim}, which need index_dtype=torch.int64")
        if declared.seq_type == SequenceType.NO_SEQUENCE:
            return
        if slot in self.pads:
            _require_plain(label, declared, "pad")
        elif self._is_nested:
            _require_plain(label, declared, "nested")
            if declared.seq_type == SequenceType.SUB_SEQUENCE:
                raise OptionTypeError(
                    f"nested is for sequences, and {label} has sequences of sequences, which torch.nested has not: pad "
                    "it (pad={…}), or leave nested out"
                )

    def _on_device(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if self.copy_to_device is None else self.copy_to_device(tensor)

    def array(self, array: Array) -> torch.Tensor:
        if is_bfloat16(array.dtype):  # numpy's bfloat16 is an extension, which torch does not read
            return self._on_device(torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16))
        return self._on_device(torch.from_numpy(array))

    def sparse(self, value: Csr, slot: int, batch: Batch) -> torch.Tensor:
        return _csr_tensor(*self.csr_parts(sorted_rows(value)), value.shape)

    def make_ragged(self, values: Any, offsets: Sequence[Any]) -> Any:
        if self._is_nested:
            return torch.nested.nested_tensor_from_jagged(values, offsets[0])
        return super().make_ragged(values, offsets)


def can_pin() -> bool:
    """Return True if there is a device to which pinned memory can be copied. Otherwise only warn, as torch's DataLoader
    does, so that a script with pinned memory also runs on a machine without a GPU."""
    accelerator = getattr(torch, "accelerator", torch.cuda)  # torch has it since 2.6
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
    """Return the values of ``batch`` as tensors: a dict by slot name, or a tuple if slots have no names.

    Args:
        batch: a batch of a client. On the CPU its dense values are not copied.
        device: device of the tensors, default the CPU.
        pin_memory: put them into pinned memory, from which a copy to a device can run in the background. Without a GPU
            this warns, and has no effect.
        non_blocking: do not wait for the copy to the device.
        options: ``index_dtype, nested, pad, pad_to``, as for :func:`pydp2.torch.loader`.

    Raises:
        OptionError, OptionTypeError: an option does not fit the slots. See docs/torch.md.
    """
    converter = TensorConverter(batch._converted_slots, **options)
    converter.copy_to_device = device_copy(device, pin_memory=pin_memory and can_pin(), non_blocking=non_blocking)
    return converter(batch)


def device_copy(device: Any, *, pin_memory: bool, non_blocking: bool = False) -> DeviceCopy | None:
    """Return the function that pins a tensor and copies it to ``device``; None if neither is wanted."""
    if device is None:
        return torch.Tensor.pin_memory if pin_memory else None

    def copy(tensor: torch.Tensor) -> torch.Tensor:
        return (tensor.pin_memory() if pin_memory else tensor).to(device, non_blocking=non_blocking)

    return copy


def _csr_tensor(
    edges: torch.Tensor, columns: torch.Tensor, entries: torch.Tensor, shape: tuple[int, int]
) -> torch.Tensor:
    """Return the CSR tensor of sorted columns, without checks, because a worker has checked the invariants. It does not
    depend on the default device of this thread."""
    return torch.sparse_csr_tensor(edges, columns, entries, size=shape, device=entries.device, check_invariants=False)


def _pads(slots: Slots, pad: Pad) -> dict[int, float]:
    """Return the number that pads each slot, by slot number."""
    if pad is None:
        return {}
    if isinstance(pad, int | float) and not isinstance(pad, bool):
        return pads_of_all(slots, pad)
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
    """Raise OptionTypeError if the steps of a sequence are sparse, or strings."""
    if declared.type not in PLAIN_TYPES:
        what = "strings" if declared.type in STRING_TYPES else "sparse"
        raise OptionTypeError(
            f"{option} needs dense or integer steps, and those of {label} are {what}; name the slots to pad "
            "(pad={…}), and take this one as values and offsets"
        )


def _hide_beta_warning() -> None:
    """Trigger torch's warning about the beta state of CSR tensors, which it gives once per process, and drop it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        none = torch.zeros(0, dtype=torch.int64)
        torch.sparse_csr_tensor(torch.zeros(1, dtype=torch.int64), none, none, size=(0, 1), check_invariants=False)
