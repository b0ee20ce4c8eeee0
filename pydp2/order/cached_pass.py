"""Run a pass whose samples are all known before it begins, as in a cached pass: it consists of its tail alone.

The result of the merge is known then: it takes everything, and the pool puts it in the order of names (docs/order.md,
"Tail"). So no sample has to pass through either. Batches and points are those of the ordinary way, bit by bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pydp2.data.columns.sample_set import SampleSet, decode_set
from pydp2.data.rowstore.base import PoolStore
from pydp2.order.batcher import Batcher
from pydp2.order.plan import PassPlan
from pydp2.order.pool import Pool, PoolIds, RowIds, tail_order
from pydp2.order.sample_source import SampleSource


@dataclass(frozen=True, slots=True)
class CachedSamples:
    """All samples of a list: ``row_ids``, the ids under which they are found, and the ``samples``, both in the order
    of names. ``weights`` and ``sizes`` by id. ``weight``, ``nbytes``: of all; ``unit_weights``: each weighs 1;
    ``blocked``: number of samples that are left out."""

    row_ids: RowIds
    samples: SampleSet
    weights: RowIds
    sizes: RowIds
    weight: int
    nbytes: int
    unit_weights: bool
    blocked: int = 0


class _NoStore:
    def append(self, columns: Any) -> RowIds:
        raise AssertionError("nothing comes into a pool that has everything")


class _FullPool(Pool):
    """Pool that needs no filling."""

    def __init__(self, plan: PassPlan, listing: CachedSamples) -> None:
        super().__init__(plan, _NoStore())
        self._listing = listing

    def start_tail(self) -> SampleSet:
        all_ = self._listing
        self._weight, self._size, self.is_uniform = all_.weights, all_.sizes, all_.unit_weights
        self.weight, self.bytes = all_.weight, all_.nbytes
        if self._plan.origin:
            self._origin = np.empty((len(all_.sizes), 2), np.int64)
            self._origin[all_.row_ids] = np.transpose(decode_set(all_.samples.data))
        self._tail = all_.row_ids[tail_order(self._plan, len(all_.row_ids))]
        return all_.samples

    def remove(self, ids: PoolIds) -> RowIds:
        return ids  # what is known of samples is by row


class CachedPassBatcher(Batcher):
    """Stream of the batches of the pass of ``plan`` over all samples of ``listing``; ``source`` counts
    the samples as merged."""

    def __init__(self, plan: PassPlan, source: SampleSource, listing: CachedSamples) -> None:
        self._listing = listing
        super().__init__(plan, source, _NoStore(), np.empty(0, np.int64))
        self.merge.next_file = plan.files  # the merge has met all files

    def _new_pool(self, store: PoolStore) -> Pool:
        return _FullPool(self.plan, self._listing)
