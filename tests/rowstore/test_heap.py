"""The pool's memory against a dict of samples, under any sequence of appending, taking and releasing."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pydp2.data.rowstore.heap as store_module
from pydp2.data.columns.columns import Columns
from pydp2.data.packers.packer import Packer
from pydp2.data.rowstore import gather
from pydp2.data.rowstore.heap import HeapStore
from pydp2.data.schema.input_types import (
    Slots,
    dense_vector,
    integer_value,
    integer_value_sequence,
    integer_value_sub_sequence,
    sparse_float_vector_sub_sequence,
)

data = st.data()


@given(data=data)
def test_the_store_does_what_a_dict_of_samples_does(some, data):
    follow_a_dict(some, data, rounds=8)


@given(data=data)
def test_it_still_does_when_it_sweeps_at_every_turn_in_tiny_steps(some, data):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gather, "_PIECE", 3)
        patch.setattr(store_module, "_SLACK", 8)
        follow_a_dict(some, data, rounds=12)


def follow_a_dict(some, data, rounds):
    """Any appending, taking and releasing, compared with a dict of samples after each step."""
    slots = data.draw(some.slots)
    sample = st.tuples(*map(some.good_values, slots.types)).map(list)
    store, model = HeapStore(slots), {}
    for _ in range(data.draw(st.integers(0, rounds))):
        if data.draw(st.booleans()) or not model:
            columns = some.columns_of(slots, data.draw(st.lists(sample, max_size=5)))
            ids = store.append(columns)
            assert ids.dtype == np.int64
            assert not set(ids.tolist()) & set(model), "an id that is in use must not be given out"
            model |= {id_: columns.slice(i, i + 1) for i, id_ in enumerate(ids.tolist())}
        else:
            gone = data.draw(st.lists(st.sampled_from(sorted(model)), unique=True))
            store.release(gone)
            for id_ in gone:
                del model[id_]
        rows = data.draw(st.lists(st.sampled_from(sorted(model)), max_size=6)) if model else []
        expected = Columns.concat([Columns.empty(slots), *(model[r] for r in rows)])
        assert some.raw(store.take(rows)) == some.raw(expected)
        assert len(store) == len(model)
        assert store.live_bytes == sum(c.nbytes for c in model.values())
        assert store.held_bytes >= store.live_bytes


def churn(slots, make, rounds, pool):
    """A pool that is filled, kept level by random draws, and emptied; checks rows and bytes on the way."""
    rng = np.random.default_rng(3)
    store, live, peak = HeapStore(slots), {}, 0
    arrays = sum(map(len, slots.fields))

    def check():
        ids = list(live)
        some_ids = rng.permutation(ids)[:50].tolist()
        assert store.take(some_ids).samples() == [live[i] for i in some_ids]
        assert store.live_bytes == sum(store.take(ids).sample_bytes().tolist())
        assert store.held_bytes <= 1.25 * peak + arrays * store_module._SLACK

    number = 0
    for turn in range(rounds):
        samples = [make(number + i) for i in range(32)]
        number += 32
        live |= dict(zip(store.append(pack(slots, samples)).tolist(), samples, strict=True))
        peak = max(peak, store.live_bytes)
        if len(live) > pool:
            gone = rng.permutation(list(live))[:32].tolist()
            store.release(gone)
            for id_ in gone:
                del live[id_]
        if turn % 16 == 0:
            check()
    while live:
        gone = rng.permutation(list(live))[:128].tolist()
        store.release(gone)
        for id_ in gone:
            del live[id_]
        check()
    assert (len(store), store.live_bytes) == (0, 0)
    return store


def pack(slots, samples):
    packer = Packer(slots, strict=False)
    for sample in samples:
        packer.add(sample)
    return packer.finish().columns


def test_rows_survive_the_sweeps_of_a_long_life():
    slots = Slots((integer_value_sub_sequence(10**6), sparse_float_vector_sub_sequence(100), integer_value(10**6)))

    def make(n):
        return [[[n] * (n % 7), [n]] * (n % 4), [[[(n % 100, 0.5)]] * (n % 3)], n]

    churn(slots, make, rounds=150, pool=1000)


def test_memory_follows_what_is_live_also_when_samples_are_long():
    slots = Slots((integer_value_sequence(10**6),))
    store = churn(slots, lambda n: [[n] * (2000 if n % 5 else 1)], rounds=60, pool=1000)
    assert store.held_bytes < 4 << 20, "what sequences held is given back when they are gone"


def test_sizes_a_thousand_times_apart_need_a_quarter_more_than_what_is_live():
    """As in a pool: what comes is of any size, what goes was drawn at random. 60 MB are live, 1 MiB is slack."""
    slots = Slots((integer_value_sequence(10**6),))
    rng = np.random.default_rng(5)
    store, rows, most, live = HeapStore(slots), np.empty(0, np.int64), 0.0, 0
    for turn in range(400):
        counts = np.exp(rng.uniform(np.log(10), np.log(10_000), 200)).astype(np.int32)
        values = np.arange(int(counts.sum()), dtype=np.int32)
        rows = np.concatenate([rows, store.append(Columns(slots, len(counts), [[counts, values]]))])
        live = max(live, store.live_bytes)
        if len(rows) > 10_000:
            rng.shuffle(rows)
            store.release(rows[10_000:])
            rows = rows[:10_000]
        if turn > 100:
            most = max(most, (store.held_bytes - store_module._SLACK) / live)
    assert store.live_bytes > 50_000_000
    assert 1.05 < most <= 1.2


def test_a_row_longer_than_all_others_together_moves_in_and_out(some):
    slots = Slots((integer_value_sequence(10**6),))
    store = HeapStore(slots)
    small = store.append(some.columns_of(slots, [[[1, 2]], [[3]]]))
    big = store.append(some.columns_of(slots, [[list(range(500_000))]]))
    store.release(small[:1])
    more = store.append(some.columns_of(slots, [[[7] * 200_000], [[8]]]))
    assert store.take(big).samples() == [[list(range(500_000))]]
    store.release(big)
    assert store.take([small[1], more[1]]).samples() == [[[3]], [[8]]]
    assert store.take(more[:1]).samples() == [[[7] * 200_000]]


def test_what_was_taken_is_the_taker_s_own(some):
    slots = Slots((dense_vector(2), integer_value_sequence(9)))
    store = HeapStore(slots)
    ids = store.append(some.columns_of(slots, [[[0.5, 1.5], [1, 2]]]))
    for array in (a for arrays in store.take(ids).arrays for a in arrays):
        array[:] = 0
    taken = store.take(ids).samples()[0]
    assert (taken[0].tolist(), taken[1]) == ([0.5, 1.5], [1, 2])


def test_what_was_appended_is_copied(some):
    slots = Slots((dense_vector(2),))
    columns = some.columns_of(slots, [[[0.5, 1.5]]])
    store = HeapStore(slots)
    ids = store.append(columns)
    columns.arrays[0][0][:] = 7
    assert store.take(ids).samples()[0][0].tolist() == [0.5, 1.5]


@pytest.mark.parametrize("wrong", [[0, 0], [5], [-1], [10**6]])
def test_a_row_is_released_once_and_only_if_it_is_there(some, wrong):
    slots = Slots((integer_value(9),))
    store = HeapStore(slots)
    store.append(some.columns_of(slots, [[1], [2]]))
    with pytest.raises(KeyError, match="given back once"):
        store.release(wrong)
    assert store.take([0, 1]).samples() == [[1], [2]]
    store.release([0, 1])
    with pytest.raises(KeyError):
        store.release([0])


def test_a_cleared_store_holds_nothing_and_works_on(some):
    slots = Slots((dense_vector(2), integer_value_sequence(9)))
    columns = some.columns_of(slots, [[[0.5, 1.5], [1, 2]]])
    store = HeapStore(slots)
    store.append(columns)
    store.clear()
    assert (len(store), store.live_bytes, store.held_bytes) == (0, 0, 0)
    assert some.raw(store.take(store.append(columns))) == some.raw(columns)


@pytest.mark.parametrize("dim", [1, 1000, 250_000, 1_000_000])
def test_room_for_rows_is_set_aside_by_their_bytes(dim):
    """The first row of a gigabyte must not ask for 256 of them."""
    slots = Slots([dense_vector(dim)])
    store = HeapStore(slots)
    for rows in range(1, 4):
        store.append(Columns(slots, 1, [[np.full((1, dim), rows, np.float32)]]))
        assert store.held_bytes <= max(store_module._SLACK, 1.5 * rows * 4 * dim)


@pytest.mark.skipif(sys.platform != "linux", reason="limits addresses")
@pytest.mark.parametrize("declared", ["dense_vector(1000)", "integer_value_sequence(9)"])
def test_where_addresses_are_few_it_grows_where_it_lies_and_holds_almost_as_much(declared: str) -> None:
    """Three quarters of the room, which two copies at a time would not fit."""
    code = f"""
import resource
import numpy as np
from pydp2 import dense_vector, integer_value_sequence
from pydp2.data.columns.columns import Columns
from pydp2.data.schema.input_types import Slots
from pydp2.data.rowstore.heap import HeapStore
slots = Slots(({declared},))
def columns(y):
    if "dense" in {declared!r}:
        return Columns(slots, 250, [[np.full((250, 1000), y, "f")]])
    return Columns(slots, 2, [[np.full(2, 125_000, np.int32), np.full(250_000, y % 9, np.int32)]])
columns(0)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 200_000_000,) * 2)
store = HeapStore(slots)
ids = [store.append(columns(y)) for y in range(150)]
for y, each in enumerate(ids):
    assert (store.take(each).arrays[0][-1] == (y if "dense" in {declared!r} else y % 9)).all()
for each in ids[::2]:
    store.release(each)
for y, each in enumerate(ids[1::2]):
    assert (store.take(each).arrays[0][-1] == (2 * y + 1 if "dense" in {declared!r} else (2 * y + 1) % 9)).all()
try:
    for y in range(300):
        store.append(columns(y))
except MemoryError:
    print("full")
"""
    alone = os.environ | {"OPENBLAS_NUM_THREADS": "1"}  # a thread takes addresses whenever it first allocates
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=alone)
    assert done.stdout == "full\n", done.stderr
