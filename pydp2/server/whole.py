"""What a pass has to gain from a cache in memory that has everything (docs/order.md, "Cache"): its samples need not be
copied into a store, and where it is one tail it is drawn without a merge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydp2.inputs.shelf import Shelf
from pydp2.order.plan import Plan
from pydp2.order.pool import Rows
from pydp2.order.saved import Saved
from pydp2.order.whole import Listing
from pydp2.server.claims import Claims


class Lying:
    """The store of a pass whose samples all lie on ``shelf`` already."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf

    def append(self, columns: Any) -> Rows:
        """Where they lie."""
        return self.shelf.found(columns)


def lying(
    plan: Plan, claims: Claims | None, saved: Saved | None, facts: Mapping[int, Any] | None
) -> tuple[Lying, Listing | None] | None:
    """Where all samples of the pass of ``plan`` lie; None: some do not lie there, or not as the pass wants them. And
    which they are, None where the merge has to see them: the pool cannot hold them all, or the order may depend on
    more than that they are there."""
    cache = None if claims is None else claims.cache
    if cache is None or cache.shelf is None or len(cache) != plan.files or saved or facts:
        return None
    shelf = cache.shelf
    found = Lying(shelf)
    if not plan.everything or plan.buckets is not None or cache.holes_kept or shelf.nbytes >= plan.pool_bytes:
        return found, None
    if shelf.heaviest > plan.batch_size and not plan.can_over_batch_size:
        return found, None  # it fails, at a place that the merge knows
    names = cache.names()
    weight = shelf.rows if shelf.uniform else int(shelf.weights[: shelf.rows].sum())
    all_ = Listing(names.rows, names.encoded, shelf.weights, shelf.sizes, weight, shelf.nbytes, shelf.uniform)
    return found, all_
