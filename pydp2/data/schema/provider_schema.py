"""Describe the declarations of a provider once its hook has run, as plain values that can be sent."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from pydp2.data.schema.input_types import Slots, suits_cells
from pydp2.errors import RemoteProtocolError
from pydp2.protocol.plain_records import from_dict

_LEAST = {"pool_size": -1, "min_pool_size": -1, "cache": 0}


@dataclass(frozen=True, kw_only=True)
class Schema:
    """Declaration of a provider once its hook has run: plain values, equal in every worker of a service.

    Attributes:
        slots: types and names, in order.
        shuffle: whether its samples are shuffled, "in training only" resolved.
        pool_size, min_pool_size: weights, -1 for no bound.
        can_over_batch_size: whether a batch may exceed its size by its last sample.
        weighted: whether ``calc_batch_size`` gives the weights; otherwise each sample weighs 1.
        cache: a CacheType as a number: the sum of 1 for memory and 2 for the disk.
        check, check_fail_continue: strict types; dropping bad samples (never without ``check``).
    """

    slots: Slots
    shuffle: bool
    pool_size: int
    min_pool_size: int
    can_over_batch_size: bool
    weighted: bool
    cache: int
    check: bool
    check_fail_continue: bool

    @property
    def cached_in_memory(self) -> bool:
        """True if passes are kept in memory."""
        return bool(self.cache & 1)

    @property
    def uses_cells(self) -> bool:
        """True if samples have cells: they are large, of one size, and in no cache. See docs/internals/bytes.md."""
        return not self.cache and suits_cells(self.slots)

    @property
    def cached_on_disk(self) -> bool:
        """True if passes are kept on the disk."""
        return bool(self.cache & 2)

    def to_wire(self) -> dict[str, Any]:
        """Return plain values by name; see :meth:`from_wire`."""
        return {f.name: getattr(self, f.name) for f in fields(self)} | {"slots": self.slots.to_wire()}

    @classmethod
    def from_wire(cls, wire: Any) -> Schema:
        """Return the declaration that :meth:`to_wire` wrote.

        Raises:
            RemoteProtocolError: names, types or values are not what :meth:`to_wire` writes.
        """
        plain = dict(wire) if isinstance(wire, dict) else {}
        slots = Slots.from_wire(plain.pop("slots", None))
        declared = from_dict(cls, plain, "a declaration", slots=slots)
        for name, least in _LEAST.items():
            if not least <= plain[name] < 1 << 62:
                raise RemoteProtocolError(f"a declaration's {name} must be at least {least}, got {plain[name]!r:.80}")
        return declared
