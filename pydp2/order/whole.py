"""A pass whose samples are all at hand before it begins, as those of a cached one may be: its tail, and nothing else.

What the merge would do is known then: it takes everything, and the pool puts it in the order of names (docs/order.md,
"Tail"). So no sample has to pass through either. Batches and points are those of the ordinary way, bit by bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pydp2.order.plan import Plan
from pydp2.order.pool import Pool, Rows, Store, tail_order
from pydp2.order.source import Source
from pydp2.order.stream import Stream


@dataclass(frozen=True, slots=True)
class Listing:
    """All samples of a list: ``rows``, under which ids they are found, and ``names``, as a set, both in the order of
    names. ``weights`` and ``sizes`` by id. ``weight``, ``nbytes``: of all; ``uniform``: each weighs 1."""

    rows: Rows
    names: bytes
    weights: Rows
    sizes: Rows
    weight: int
    nbytes: int
    uniform: bool


class _Nothing:
    def append(self, columns: Any) -> Rows:
        raise AssertionError("nothing comes into a pool that has everything")


class _Everything(Pool):
    """A pool that needs no filling."""

    def __init__(self, plan: Plan, listing: Listing) -> None:
        super().__init__(plan, _Nothing())
        self._listing = listing

    def start_tail(self) -> bytes:
        all_ = self._listing
        self._weight, self._size, self._uniform = all_.weights, all_.sizes, all_.uniform
        self.weight, self.bytes = all_.weight, all_.nbytes
        self._tail = all_.rows[tail_order(self._plan, len(all_.rows))]
        return all_.names


class Whole(Stream):
    """The batches of the pass of ``plan`` over all samples of ``listing``; ``source`` says that they passed."""

    def __init__(self, plan: Plan, source: Source, listing: Listing) -> None:
        self._listing = listing
        super().__init__(plan, source, _Nothing(), np.empty(0, np.int64))
        self.merge.next_file = plan.files  # it has met all of them

    def _new_pool(self, store: Store) -> Pool:
        return _Everything(self.plan, self._listing)
