"""Rows that stay on hosts: the service knows their numbers, and each row server what it has to keep."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.data.columns.columns import Columns, Ints
from pydp2.data.rowstore.batch_rows import BatchRows, concat_rows
from pydp2.data.rowstore.composite import CompositeStore
from pydp2.data.rowstore.heap import HeapStore
from pydp2.data.rowstore.host_rows import RowServers
from pydp2.data.rowstore.pass_view import PassView
from pydp2.data.schema.input_types import Slots, integer_value
from pydp2.order.pool import Pool
from pydp2.order.sample_source import SampleRun

from ..order.arrivals import plan_of
from ..order.oracle import Options

SLOTS = Slots((integer_value(1 << 40),), None)
ADDRESSES = {host: f"tcp://node{host}:7800?key=" + "ab" * 32 for host in (1, 2, 3)}


def local_rows(values: list[int]) -> Columns:
    return Columns(SLOTS, len(values), [[np.array(values, np.int64)]])


def ints(values: list[int]) -> Ints:
    return np.array(values, np.int64)


def on_three_hosts() -> tuple[RowServers, CompositeStore]:
    servers = RowServers()
    for host, address in ADDRESSES.items():
        servers.add(host, address)
    return servers, CompositeStore(PassView(servers), PassView(HeapStore(SLOTS)))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 3), st.integers(0, 9)),
        st.tuples(st.just("release"), st.integers(0, 10**6), st.integers(1, 6)),
        st.tuples(st.just("refuse"), st.integers(1, 3), st.integers(1, 9)),
        st.tuples(st.just("tell"), st.just(0), st.just(0)),
    ),
    max_size=40,
)


@given(STEPS, st.randoms(use_true_random=False))
def test_each_row_is_found_where_it_lies_and_is_told_to_be_free_once(steps: list, random: object) -> None:
    """Any appending, splitting and releasing, against a dict of where each row lies. The value of a row that is here,
    and the handle of one that is not, is its number."""
    servers, store = on_three_hosts()
    rows: dict[int, tuple[int, int]] = {}  # by id: host (0: here), number
    kept: dict[int, set[int]] = {host: set() for host in ADDRESSES}
    count = 0

    def tell() -> None:
        for host, handles in servers.take_released():
            assert len(handles)
            for handle in handles.tolist():
                kept[host].remove(handle)  # raises if it was told before

    for step, a, b in steps:
        if step == "append":
            numbers = [*range(count, count + b)]
            count += b
            chunk = local_rows(numbers)
            if a:
                chunk = servers.accept(a, ints(numbers), ints([8] * b))
                kept[a].update(numbers)
            ids = store.append(chunk)
            assert not rows.keys() & set(ids.tolist()), "the id of a row that is kept"
            rows |= {row: (a, number) for row, number in zip(ids.tolist(), numbers, strict=True)}
        elif step == "release" and rows:
            gone = [row for i, row in enumerate(sorted(rows)) if (a >> i % 20) & 1][:b]
            store.release_later(ints(gone))
            for row in gone:
                del rows[row]
        elif step == "refuse":
            numbers = [*range(count, count + b)]
            count += b
            kept[a].update(numbers)
            servers.accept(a, ints(numbers), ints([8] * b)).slice(0, b).release()
        elif step == "tell":
            tell()
        chosen = [row for row in rows if random.random() < 0.5]  # type: ignore[attr-defined]
        random.shuffle(chosen)  # type: ignore[attr-defined]
        check_split(store, chosen, rows)
    tell()
    for host in ADDRESSES:
        assert servers.row_count(host) == len(kept[host])
        assert kept[host] == {number for at, number in rows.values() if at == host}
    store.close()
    store.release_later(ints([*rows]))  # of batches that are given back after the pass
    tell()
    assert not any(kept.values())


def check_split(store: CompositeStore, chosen: list[int], rows: dict[int, tuple[int, int]]) -> None:
    split = store.split(ints(chosen))
    if split is None:
        assert all(rows[row][0] == 0 for row in chosen)
        assert store.take(ints(chosen)).arrays[0][0].tolist() == [rows[row][1] for row in chosen]
        return
    found = split.store.take(split.here).arrays[0][0].tolist() + split.handles.tolist()
    assert [found[i] for i in split.order] == [rows[row][1] for row in chosen]
    assert sorted(split.order.tolist()) == [*range(len(chosen))]
    hosts = [host for host, address in ADDRESSES.items() for at, _ in split.elsewhere if at == address]
    assert len(hosts) == len(split.elsewhere)
    expected = [host for row in chosen if (host := rows[row][0])]
    assert [count for _, count in split.elsewhere] == [expected.count(host) for host in sorted({*expected})]
    with pytest.raises(RuntimeError, match="fetched from there"):
        store.take(ints(chosen))


def test_batches_of_one_message_are_split_together() -> None:
    servers, store = on_three_hosts()
    here = store.append(local_rows([7, 8]))
    there = store.append(servers.accept(2, ints([70, 80]), ints([8, 8])))
    batches = [BatchRows(store, ints([there[1], here[0]])), BatchRows(store, ints([here[1], there[0]]))]
    split = store.split(concat_rows(batches).row_ids)
    assert split is not None
    assert split.elsewhere == [[ADDRESSES[2], 2]]
    assert split.store.take(split.here).arrays[0][0].tolist() == [7, 8]
    assert split.handles.tolist() == [80, 70]
    assert split.order.tolist() == [2, 0, 1, 3]
    assert store.split(here) is None


@pytest.mark.parametrize("taken", [0, 2, 5])
def test_rows_that_a_pool_has_are_not_given_back_with_what_was_not_taken(taken: int) -> None:
    """The pool has the rows of a run before the merge has passed them all; then the pass is left."""
    servers, store = on_three_hosts()
    handles, numbers = ints([70, 71, 72, 73, 74]), np.arange(5)
    run = SampleRun(servers.accept(2, handles, np.full(5, 8)), 0, 5, numbers, np.full(5, 8), None)
    other = SampleRun(servers.accept(2, handles + 100, np.full(5, 8)), 0, 5, numbers, np.full(5, 8), None)
    pool = Pool(plan_of([], Options(batch_size=4)), store)
    pool.pool_ids_of(0, run.view())
    run.lo += taken
    other.view()  # it was looked at, and is in no pool
    store.close()
    for each in (run, other):
        each.release()
    ((host, released),) = servers.take_released()
    assert host == 2
    assert sorted(released.tolist()) == [*handles.tolist(), *(handles + 100).tolist()]
    assert servers.row_count(2) == 0


def test_of_a_host_that_is_gone_nothing_is_told_and_its_rows_are_lost_if_it_had_some() -> None:
    servers, store = on_three_hosts()
    ids = store.append(servers.accept(1, ints([5, 6]), ints([8, 8])))
    assert [servers.turn_off(1), servers.turn_off(1), servers.off] == [True, False, {1}]
    assert servers.host_at(ADDRESSES[1]) == 1
    servers.remove(1)
    assert servers.loss_count == 1
    servers.remove(2)
    assert servers.loss_count == 1, "it had none"
    store.release_later(ids)
    assert servers.take_released() == []
    assert (1 in servers, 3 in servers, len(servers)) == (False, True, 1)
    assert servers.host_at(ADDRESSES[1]) is None
    assert (servers.row_count(1), servers.off) == (0, frozenset())
