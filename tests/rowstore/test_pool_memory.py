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
        assert not memory.names_suffice
        memory.close_pass(store)
    store = memory.open_pass(values_needed=False)
    ids = np.concatenate([store.append(rows_of(7)), store.append(on_host(servers, 70))])
    assert memory.names_suffice
    split = store.split(ids)
    assert split is not None
    assert (split.elsewhere, split.handles.tolist(), split.order.tolist()) == ([["tcp://node1", 1]], [70], [0, 1])
    memory.close_pass(store)
    assert not memory.names_suffice
    assert [handles.tolist() for _, handles in servers.take_released()] == [[70]]


def test_a_pass_has_lost_rows_if_a_host_ended_with_some_since_it_began(servers: RowServers) -> None:
    before, after, local = (PoolMemory(SLOTS, None, servers) for _ in range(3))
    before.open_pass(values_needed=False)
    local.open_pass()
    kept = on_host(servers, 70)
    servers.remove(2)
    assert not before.has_lost_rows, "it had none"
    servers.remove(kept.host)
    after.open_pass(values_needed=False)
    assert [memory.has_lost_rows for memory in (before, after, local)] == [True, False, False]
    before.open_pass(values_needed=False)
    assert not before.has_lost_rows


def test_a_pass_has_lost_the_rows_that_a_trainer_cannot_fetch(servers: RowServers) -> None:
    before, after = PoolMemory(SLOTS, None, servers), PoolMemory(SLOTS, None, servers)
    before.open_pass(values_needed=False)
    servers.turn_off(2)
    after.open_pass(values_needed=False)
    assert after.give_up(["tcp://node2", "tcp://gone", 7]) == {}, "it began without rows there"
    assert before.give_up(["tcp://node2"]) == {2: "tcp://node2"}
    assert [memory.has_lost_rows for memory in (before, after)] == [True, False]
    assert after.give_up(["tcp://node3", "tcp://node1"]) == {3: "tcp://node3", 1: "tcp://node1"}
    assert servers.off == {1, 2, 3}
    assert after.has_lost_rows
    after.open_pass(values_needed=False)
    assert after.give_up(["tcp://node3"]) == {}
    assert not after.has_lost_rows


def test_what_a_trainer_cannot_fetch_is_no_loss_of_a_pass_without_such_rows(servers: RowServers) -> None:
    memory = PoolMemory(SLOTS, None, servers)
    memory.open_pass()
    assert memory.give_up(["tcp://node1"]) == {1: "tcp://node1"}, "no rows are to stay there from now on"
    assert not memory.has_lost_rows
    assert PoolMemory(SLOTS).give_up(["tcp://node1"]) == {}
