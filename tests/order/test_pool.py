"""What a pool keeps of its samples."""

from __future__ import annotations

from random import Random

import pytest

from pydp2.order.batcher import BatchCut, Batcher
from pydp2.order.file_order import files_in_order

from .arrivals import Arrivals, NameStore, next_outcome, plan_of
from .oracle import File, Options, Row


@pytest.mark.parametrize("bulk", [True, False])
@pytest.mark.parametrize("shuffle", [True, False])
def test_it_is_as_much_as_the_pool_has_samples_however_long_the_pass_and_whatever_ids_they_have(
    bulk: bool, shuffle: bool
) -> None:
    files = [File([Row()] * 4000)] * 8
    plan = plan_of(files, Options(batch_size=32, pool_size=500, interleave=4, shuffle=shuffle))
    random = Random(1)
    source, store = Arrivals(files, random, False, 100), NameStore(random)
    made = Batcher(plan, source, store, files_in_order(plan))
    if not bulk:
        made._bulk = None
    while isinstance(outcome := next_outcome(made, source), BatchCut):
        store.take(outcome.row_ids, outcome.padding)
    assert made.batch_index == 1000
    assert len(made.pool.sizes) <= 2 * 1024  # it begins with 1024: 500 samples, and a chunk of 100 of each of 4 files
