"""Which memory the rows of a pass have: that of the cache, of other hosts, of all jobs, or of the job itself."""

from __future__ import annotations

import numpy as np
import pytest

from pydp2.data.columns.columns import Columns, Ints
from pydp2.data.rowstore.append_only import AppendOnlyStore
from pydp2.data.rowstore.batch_rows import BatchRows
from pydp2.data.rowstore.heap import HeapStore, SharedHeap
from pydp2.data.rowstore.host_rows import HostRows, RowServers
from pydp2.data.rowstore.pool_memory import PoolMemory
from pydp2.data.rowstore.region import RegionLayout
from pydp2.data.schema.input_types import Slots, integer_value

SLOTS = Slots((integer_value(1 << 40),), None)


def rows_of(*values: int) -> Columns:
    return Columns(SLOTS, len(values), [[np.array(values, np.int64)]])


def values_in(columns: Columns) -> list[int]:
    values: list[int] = columns.arrays[0][0].tolist()
    return values


def ints(*values: int) -> Ints:
    return np.array(values, np.int64)


@pytest.fixture
def servers() -> RowServers:
    made = RowServers()
    for host in (1, 2, 3):
        made.add(host, f"tcp://node{host}")
    return made


def on_host(servers: RowServers, *handles: int) -> HostRows:
    return servers.accept(1, ints(*handles), ints(*[8] * len(handles)))


def test_the_memory_of_a_pass_that_ended_is_used_again() -> None:
    memory = PoolMemory(SLOTS)
    first = memory.open_pass()
    first.release_later(first.append(rows_of(1, 2)))
    memory.close_pass(first)
    second = memory.open_pass()
    assert second.held_bytes == first.held_bytes > 0


def test_a_batch_of_a_pass_that_was_left_is_there_until_whoever_has_it_drops_it() -> None:
    memory = PoolMemory(SLOTS)
    left = memory.open_pass()
    batch = BatchRows(left, left.append(rows_of(1, 2)))
    memory.close_pass(left)
    store = memory.open_pass()
    store.append(rows_of(3, 4, 5))
    assert values_in(batch.columns()) == [1, 2]
    batch.release()


def test_rows_lie_in_the_memory_of_all_jobs_if_there_is_one() -> None:
    layout = RegionLayout(SLOTS, 1 << 16, movable=True)
    shared = SharedHeap(layout, bytearray(layout.size))
    jobs = [PoolMemory(SLOTS, shared).open_pass() for _ in range(2)]
    ids = [store.append(rows_of(1, 2)).tolist() for store in jobs]
    assert ids == [[0, 1], [2, 3]]
    assert [store.close() for store in jobs] == [2, 2]
    assert len(shared) == 0


def test_rows_stay_on_hosts_only_where_nobody_needs_their_values(servers: RowServers) -> None:
    memory = PoolMemory(SLOTS, HeapStore(SLOTS), servers)
    layout = RegionLayout(SLOTS, 1 << 12)
    cache = AppendOnlyStore(layout, bytearray(layout.size))
    for store in (memory.open_pass(), memory.open_pass(cache, values_needed=False)):
        assert not memory.rows_stay
        assert not memory.may_have_rows_on(1)
        memory.close_pass(store)
    store = memory.open_pass(values_needed=False)
    ids = np.concatenate([store.append(rows_of(7)), store.append(on_host(servers, 70))])
    assert memory.rows_stay
    split = store.split(ids)
    assert split is not None
    assert (split.on_hosts, split.handles.tolist(), split.order.tolist()) == ([["tcp://node1", 1]], [70], [0, 1])
    memory.close_pass(store)
    assert not memory.rows_stay
    assert [handles.tolist() for _, handles in servers.take_released()] == [[70]]


def test_a_pass_has_no_rows_on_a_host_whose_row_server_was_off_before_it_began(servers: RowServers) -> None:
    before, after = PoolMemory(SLOTS, None, servers), PoolMemory(SLOTS, None, servers)
    before.open_pass(values_needed=False)
    servers.turn_off(2)
    after.open_pass(values_needed=False)
    servers.remove(2)
    servers.turn_off(3)
    assert [before.may_have_rows_on(host) for host in (1, 2, 3)] == [True, True, True]
    assert [after.may_have_rows_on(host) for host in (1, 2, 3)] == [True, False, True]
