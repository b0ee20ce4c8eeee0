"""Whether a pass can be drawn straight from the cache in memory, without merge and store (docs/order.md, "Cache")."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydp2.inputs.shelf import Shelf
from pydp2.order.plan import Plan
from pydp2.order.saved import Saved
from pydp2.order.whole import Listing
from pydp2.server.claims import Claims


def whole(
    plan: Plan, claims: Claims | None, saved: Saved | None, facts: Mapping[int, Any] | None
) -> tuple[Shelf, Listing] | None:
    """Where all samples of the pass of ``plan`` lie, and which they are. None: it takes the ordinary way, because not
    all is there, or the order may depend on more than that."""
    cache = None if claims is None else claims.cache
    if cache is None or cache.shelf is None or not plan.everything or plan.buckets is not None or saved or facts:
        return None
    shelf = cache.shelf
    if len(cache) != plan.files or cache.holes_kept or shelf.nbytes >= plan.pool_bytes:
        return None
    if shelf.heaviest > plan.batch_size and not plan.can_over_batch_size:
        return None  # it fails, at a place that the merge knows
    names = cache.names()
    weight = shelf.rows if shelf.uniform else int(shelf.weights[: shelf.rows].sum())
    return shelf, Listing(names.rows, names.encoded, shelf.weights, shelf.sizes, weight, shelf.nbytes, shelf.uniform)
