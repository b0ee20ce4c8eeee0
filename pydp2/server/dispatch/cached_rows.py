"""Find the rows of a pass in a cache in memory that holds all of its samples (docs/order.md, "Cache"). They need not
be copied into a store, and a pass that is one tail needs no merge."""

from __future__ import annotations

from pydp2.data.rowstore.append_only import AppendOnlyStore
from pydp2.order.cached_pass import CachedSamples
from pydp2.order.plan import PassPlan
from pydp2.server.dispatch.cache_fill import CacheFill


def cached_rows(plan: PassPlan, cache_fill: CacheFill | None) -> tuple[AppendOnlyStore, CachedSamples | None] | None:
    """Return the store in which all samples of the pass of ``plan``, which begins with its first batch, lie; None: some
    do not lie there, or not as the pass wants them. Return also which samples these are; None: the merge has to see
    them, because the pool cannot hold them all or the order may depend on more than which samples there are."""
    cache = None if cache_fill is None else cache_fill.memory
    if cache is None or cache.row_store is None or len(cache) != plan.files:
        return None
    row_store = cache.row_store
    to_merge = None if cache.block_list else (row_store, None)  # what remains of a file is copied out of the store
    if not plan.wait_for_all or plan.buckets is not None or cache.has_dropped:
        return to_merge
    names = cache.sample_set()
    if names.nbytes >= plan.pool_bytes:
        return to_merge
    if names.max_weight > plan.batch_size and not plan.can_over_batch_size:
        return to_merge  # it fails, at a place that the merge knows
    all_ = CachedSamples(
        names.row_ids,
        names.samples,
        row_store.weights,
        row_store.sizes,
        names.weight,
        names.nbytes,
        names.max_weight == 1 and names.weight == len(names.row_ids),
        names.blocked,
    )
    return row_store, all_
