"""Register batches and their values as pytrees, so that ``jax.tree.map``, ``jax.jit`` and ``jax.device_put`` take them
(docs/jax.md, "Batches as pytrees")."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, cast

import jax
from jax.tree_util import DictKey, SequenceKey

from pydp2.data.columns.batch import Batch, BinaryArray, Csr, Ragged, StringArray
from pydp2.data.columns.columns import Columns
from pydp2.data.schema.input_types import Slots

_FACTS = ("pass_id", "index", "size", "pool_weight", "padding", "bucket", "group_bucket")


class _TreeColumns:
    """Replacement for :class:`Columns` in a batch that JAX has made from ``leaves``, one value for each slot.

    JAX also makes batches whose leaves are tracers, shapes or other objects without data. So a leaf is only accessed
    when the user asks for the number of rows.
    """

    __slots__ = ("leaves", "slots")

    def __init__(self, slots: Slots, leaves: tuple[Any, ...]) -> None:
        self.slots, self.leaves = slots, leaves

    @property
    def rows(self) -> int:
        """Number of rows of the first value, 0 if it has none."""
        first = self.leaves[0]
        has_rows = isinstance(first, Csr | Ragged | BinaryArray | StringArray) or bool(getattr(first, "shape", None))
        return len(first) if has_rows else 0


class _Static(NamedTuple):
    """Part of a batch that is not a leaf. Two are equal if their slots are, because another index of a batch must not
    cause a compilation.

    ``facts``: the attributes of the batch beside its values. They are None in a transformation, because compiled code
    would keep those of the batch with which it was traced.
    """

    slots: Slots
    facts: tuple[Any, ...]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Static) and self.slots == other.slots

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.slots)


def _flatten(batch: Batch) -> tuple[tuple[Any, ...], _Static]:
    columns: Any = batch._columns
    values = columns.leaves if isinstance(columns, _TreeColumns) else tuple(batch.values())
    return values, _Static(columns.slots, tuple(getattr(batch, name) for name in _FACTS))


def _flatten_with_keys(batch: Batch) -> tuple[tuple[tuple[Any, Any], ...], _Static]:
    values, static = _flatten(batch)
    names = static.slots.names
    keys: Iterable[Any] = map(SequenceKey, range(len(values))) if names is None else map(DictKey, names)
    return tuple(zip(keys, values, strict=True)), static


def _unflatten(static: _Static, leaves: Iterable[Any]) -> Batch:
    values = tuple(leaves)
    batch = Batch(cast(Columns, _TreeColumns(static.slots, values)), pass_id=0, index=0, size=0)
    batch._values[:] = values
    is_traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(values))
    for name, fact in zip(_FACTS, static.facts, strict=True):
        setattr(batch, name, None if is_traced else fact)
    return batch


def register() -> None:
    """Register :class:`Batch` and those of its values that are no arrays. The leaves are arrays; everything else on
    which compiled code depends (names and types of slots, the width of sparse rows) is static."""
    jax.tree_util.register_pytree_with_keys(Batch, _flatten_with_keys, _unflatten, _flatten)
    jax.tree_util.register_dataclass(Ragged, ["values", "sequence_start_positions", "sub_sequence_start_positions"], [])
    jax.tree_util.register_dataclass(Csr, ["indptr", "indices", "values"], ["shape"])
    for strings in (BinaryArray, StringArray):
        jax.tree_util.register_dataclass(strings, ["offsets", "data"], [])
