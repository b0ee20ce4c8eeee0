"""Turn batches into jax arrays of fixed shapes: sequences are padded, and so are sparse rows
(docs/jax.md, "What a batch becomes")."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from pydp2.data.columns.batch import Batch, Csr, Ragged
from pydp2.data.columns.columns import Array
from pydp2.data.schema.input_types import INT32_RANGE, STRING_TYPES, DataType, SequenceType, Slots
from pydp2.errors import OptionError, OptionTypeError, SampleTooLarge
from pydp2.frameworks.slot_visitor import PLAIN_TYPES, SlotVisitor, pads_of_all
from pydp2.jax.device_put import make_put
from pydp2.jax.placement import ProcessPlacement

Values = dict[str, Any] | tuple[Any, ...]
Lengths = Mapping[str | int, int]


class Padded(NamedTuple):
    """Sequences of a batch, filled up with zeros to one length. It is a pytree.

    ``values``: ``(rows, length, …)``; ``lengths``: ``(rows,)`` int32. ``segments``: for nested sequences ``(rows,
    length)`` int32, 1 for the time steps of the first sub-sequence, 2 for those of the second, 0 for padding (empty
    sub-sequences do not count); otherwise None. See docs/jax.md.
    """

    values: Any
    lengths: Any
    segments: Any = None

    @property
    def mask(self) -> Any:
        """True for time steps, False for padding: ``(rows, length)``; works in compiled functions."""
        return jnp.arange(self.values.shape[1]) < self.lengths[:, None]


@partial(jax.tree_util.register_dataclass, data_fields=["indices", "values"], meta_fields=["width"])
@dataclass(frozen=True)
class SparseRows:
    """Sparse rows of a batch, filled up to one number of entries with entries of index 0 and value 0. It is a pytree.

    ``indices``: ``(rows, entries)`` int32 (int64 if ``width`` is above 2**31); ``values``: ``(rows, entries)`` float32,
    1 for binary slots; ``width``: number of columns of the dense rows, static. See docs/jax.md.
    """

    indices: Any
    values: Any
    width: int

    def dot(self, weights: Any) -> Any:
        """Return the product of these rows and ``weights``, ``(width, …)``: ``(rows, …)``; works in compiled functions.

        It gathers the rows of ``weights`` at the indices of the entries, so no dense row is made."""
        return jnp.einsum("re,re...->r...", self.values, jnp.take(weights, self.indices, axis=0))


def rounded_length(longest: int) -> int:
    """Return the least power of two that is not below ``longest``, so that there are few lengths and few shapes to
    compile."""
    return 1 << max(longest - 1, 0).bit_length()


class ArrayMaker(SlotVisitor):
    """Function from a batch to jax arrays, for :class:`pydp2.frameworks.loader.FrameworkLoader`. ``is_on_cpu``: True if
    the arrays are only in the memory of this process.

    Args:
        slots: slots of the batches.
        placement: rows and devices of this process.
        sharding: sharding of the arrays; None: the default device.
        pad_to: lengths by slot.
        bucket_by: the slot by whose length batches are bucketed.
        mask: name of the value that is False for padding rows; None: there is no such value.

    Raises OptionError for slots that have no fixed shape, or whose values jax would truncate.
    """

    def __init__(
        self,
        slots: Slots,
        place: ProcessPlacement,
        sharding: Any,
        *,
        pad_to: Mapping[int, int],
        bucket_by: int | None,
        mask: str | None,
    ) -> None:
        self._is_global = sharding is not None and not sharding.is_fully_addressable
        self._put = make_put(place, sharding)
        self.is_on_cpu = not self._is_global and _platforms(sharding) == {"cpu"}
        self._pad_to, self._mask = pad_to, mask
        self._bucket_by = bucket_by
        super().__init__(slots, pads=pads_of_all(slots, 0))
        for slot in range(len(slots)):
            self._check(slot)
        self._names = slots.names
        if mask is not None and self._names is not None:
            if mask in self._names:
                raise OptionError(f"mask={mask!r} must be a name that no slot has; slots: {', '.join(self._names)}")
            self._names = (*self._names, mask)

    def __call__(self, batch: Batch) -> Values:
        """Return the arrays of ``batch``: a dict by slot name, or a tuple if slots have no names."""
        values = self.values(batch)
        if self._mask is not None:
            values.append(self._put(np.arange(len(batch)) < len(batch) - batch.padding))
        return tuple(values) if self._names is None else dict(zip(self._names, values, strict=True))

    def context(self) -> tuple[Any, bool]:
        """Return the settings of jax for this thread on which arrays depend: the default device, and True if numbers
        may have 64 bits."""
        return jax.config.jax_default_device, jax.config.jax_enable_x64

    def _check(self, slot: int) -> None:
        """Raise OptionError if ``slot`` cannot become arrays of the same shape in every process and on every device."""
        declared, label = self.slots.types[slot], self.slots.label(slot)
        if declared.type != DataType.Dense and declared.dim > INT32_RANGE and not jax.config.jax_enable_x64:
            raise OptionError(
                f"{label}: its numbers below {declared.dim} need 64 bits, and jax makes int32 of them; call "
                'jax.config.update("jax_enable_x64", True) before all else, or declare a smaller range'
            )
        if declared.type in STRING_TYPES:
            raise OptionError(
                f"{label}: jax has no arrays of strings; make numbers of them in the provider, or iterate over "
                "pydp2.load(), whose batches have them"
            )
        is_sparse = declared.type not in PLAIN_TYPES
        is_sequence = declared.seq_type != SequenceType.NO_SEQUENCE
        if is_sequence and is_sparse:
            raise OptionError(
                f"{label}: sequences of sparse vectors have no array of a fixed shape here; iterate over pydp2.load() "
                "and make arrays of batch values yourself, or declare the slot in another way"
            )
        if self._is_global and (is_sequence or is_sparse) and slot not in self._pad_to:
            what = "the length of its sequences" if is_sequence else "the entries of a row"
            raise OptionError(
                f"{label}: all processes need the same shape, and {what} differ between them; pass "
                f"pad_to={{{self._key(slot)!r}: 128}} with the greatest"
            )

    def _key(self, slot: int) -> str | int:
        return slot if self.slots.names is None else self.slots.names[slot]

    def array(self, array: Array) -> Any:
        return self._put(array)

    def padded(self, value: Ragged, slot: int, batch: Batch) -> Padded:
        bound = None
        if slot == self._bucket_by:  # in other processes, the last batches of a pass may come from other buckets
            bound = batch.group_bucket if self._is_global else batch.bucket
        length = min((limit for limit in (bound, self._pad_to.get(slot)) if limit is not None), default=None)
        if length is None:
            length = rounded_length(int(np.diff(value.sequence_start_positions).max(initial=0)))
        values, lengths = value.pad(length=length)
        segments = None if value.sub_sequence_start_positions is None else self._put(_segments(value, length))
        return Padded(self._put(values), self._put(lengths.astype(np.int32)), segments)

    def sparse(self, value: Csr, slot: int, batch: Batch) -> SparseRows:
        counts = np.diff(value.indptr)
        most = int(counts.max(initial=0))
        length = self._pad_to.get(slot)
        if length is None:
            length = rounded_length(most)
        elif length < most:
            label, row = self.slots.label(slot), int(counts.argmax())
            raise SampleTooLarge(
                f"{label}: row {row} of batch {batch.index} of pass {batch.pass_id} has {most} entries, and pad_to "
                f"says that a row has {length} at most; raise it"
            )
        indices, _ = Ragged(value.indices, value.indptr).pad(length=length)
        if value.values is None:
            entries = (np.arange(length) < counts[:, None]).astype(np.float32)
        else:
            entries, _ = Ragged(value.values, value.indptr).pad(length=length)
        return SparseRows(self._put(indices), self._put(entries), value.shape[1])


def _platforms(sharding: Any) -> set[str]:
    """Return the platforms of the devices of ``sharding``, or of the devices for arrays without a sharding."""
    return {device.platform for device in (jax.local_devices() if sharding is None else sharding.device_set)}


def _segments(ragged: Ragged, length: int) -> Any:
    """Return the number, from 1, of the sub-sequence of each time step, padded as the sequences: ``(rows, length)``."""
    starts = ragged.sequence_start_positions
    subs = np.unique(cast(Any, ragged.sub_sequence_start_positions))  # without empty ones
    number = np.searchsorted(subs, np.arange(starts[-1]), side="right")
    before = np.searchsorted(subs, starts[:-1])
    within = number - np.repeat(before, np.diff(starts))
    return Ragged(within.astype(np.int32), starts).pad(length=length)[0]


def lengths_by_slot(slots: Slots, pad_to: int | Lengths | None) -> dict[int, int]:
    """Return ``pad_to`` by slot number; a single length counts for every slot with sequences or sparse rows.

    Raises OptionError for a length below 1, and if there is nothing to pad; OptionTypeError if a length is not an
    integer.
    """
    if pad_to is None:
        return {}
    padded = [
        i
        for i, declared in enumerate(slots.types)
        if declared.seq_type != SequenceType.NO_SEQUENCE or declared.type not in PLAIN_TYPES
    ]
    found = {}
    for key, length in pad_to.items() if isinstance(pad_to, Mapping) else dict.fromkeys(padded, pad_to).items():
        if isinstance(length, bool) or not isinstance(length, int | np.integer):
            raise OptionTypeError(f"pad_to must be a length, or lengths by slot as {{'words': 64}}, got {length!r:.80}")
        if length < 1:
            raise OptionError(f"pad_to must be at least 1, got {length}")
        slot = slots.index(key) if isinstance(key, str) else key
        if slot not in padded:
            raise OptionError(f"pad_to names slot {key!r}, which has one shape already or is not there; leave it out")
        found[slot] = int(length)
    if not found:
        raise OptionError("pad_to is for sequences and sparse rows, and no slot has any; leave it out")
    return found
