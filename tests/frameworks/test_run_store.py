"""The store of a run, in which earlier ranks have left texts: all ranks agree on a name that is theirs alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from time import monotonic

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.errors import ServiceUnreachable
from pydp2.frameworks.run_store import await_text, meet
from tests.frameworks.conftest import DictStore

DEADLINE = 20.0


def meet_all(store: DictStore, world_size: int) -> list[str]:
    with ThreadPoolExecutor(world_size) as pool:
        return [*pool.map(lambda rank: meet(store, rank, world_size, DEADLINE), range(world_size))]


@given(st.lists(st.tuples(st.integers(2, 4), st.sets(st.integers(0, 3))), max_size=3), st.integers(2, 4))
def test_ranks_agree_on_a_new_name_whoever_was_there_before(
    earlier: list[tuple[int, set[int]]], world_size: int
) -> None:
    """Of earlier attempts some ranks never came, so none of the others got further."""
    store, names = DictStore(), set()
    for size, absent in earlier:
        if absent.isdisjoint(range(size)):
            names |= {*meet_all(store, size)}
            continue
        for rank in {*range(size)} - absent:
            with pytest.raises(ServiceUnreachable):
                meet(store, rank, size, 0.0)
    found = meet_all(store, world_size)
    assert len({*found}) == 1
    assert names.isdisjoint(found)


def test_ranks_that_do_not_come_are_named() -> None:
    with pytest.raises(
        ServiceUnreachable, match=r"all 12 ranks must make the same loaders .* 11 ranks did not \(1, 2, .*8, …\)"
    ):
        meet(DictStore(), 0, 12, 0.05)
    with pytest.raises(ServiceUnreachable, match=r"rank 0 has not made the same loader within 0\.05 s"):
        meet(DictStore(), 1, 2, 0.05)


def test_a_text_is_waited_for() -> None:
    store = DictStore()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(await_text, store, "key", monotonic() + DEADLINE, "nothing")
        store.put("key", "text")
        assert waiting.result(DEADLINE) == "text"
