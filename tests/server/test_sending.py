"""What leaves for trainers: each gets all of its own, in order, few messages for small batches."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pydp2.data.columns.columns import Columns
from pydp2.data.packers.packer import Packer
from pydp2.data.rowstore.batch_rows import BatchRows
from pydp2.data.rowstore.composite import CompositeStore
from pydp2.data.rowstore.heap import HeapStore
from pydp2.data.rowstore.host_rows import RowServers
from pydp2.data.rowstore.pass_view import PassView
from pydp2.data.schema.input_types import Slots, integer_value, integer_value_sequence
from pydp2.protocol import messages as m
from pydp2.protocol.batch_packing import MAX_BATCHES, MAX_PACK_BYTES, unpack_head
from pydp2.server.jobs.sending import Outbox

SLOTS = Slots((integer_value(1 << 20), integer_value_sequence(1 << 20)))


def store_of(count: int) -> tuple[HeapStore, np.ndarray]:
    packer = Packer(SLOTS, strict=False)
    for i in range(count):
        packer.add([i, [i] * (i % 4)])
    store = HeapStore(SLOTS)
    return store, store.append(packer.finish().columns)


batches = st.lists(
    st.tuples(
        st.sampled_from([b"a", b"b"]), st.integers(0, 5), st.sampled_from([10, MAX_PACK_BYTES // 3]), st.booleans()
    ),
    max_size=30,
)


@given(batches, st.data())
def test_each_gets_its_own_in_order(said: list[tuple[bytes, int, int, bool]], data: st.DataObject) -> None:
    store, ids = store_of(200)
    out = Outbox()
    expected: dict[bytes, list[Any]] = {b"a": [], b"b": []}
    checksums = {b"a": b"", b"b": b""}
    has_origins = data.draw(st.booleans())
    at = 0
    for index, (peer, rows, nbytes, point) in enumerate(said):
        head = m.BatchHead(1, index, rows, rows, 9, 0, 0, index + 1, [], {"index": index} if point else {}, 0)
        picked = BatchRows(store, ids[at : at + rows], nbytes=nbytes)
        records = bytes([index]) if data.draw(st.booleans()) else b""
        head.checksum_records = len(records)
        checksums[peer] += records
        head.has_origins = has_origins
        origins = (np.arange(at, at + rows) * np.array([[2], [3]])).tobytes() if has_origins else b""
        out.send(peer, head, [picked, origins, records, *([b"pool %d" % index] if point else [])])
        expected[peer].append((head, list(range(at, at + rows)), b"pool %d" % index if point else None))
        at += rows
        if data.draw(st.integers(0, 9)) == 0:
            out.send(peer, m.Probe())
            expected[peer].append(m.Probe())
    got: dict[bytes, list[Any]] = {b"a": [], b"b": []}
    for peer, message, frames, heads in out.drain():
        if not isinstance(message, m.BatchHead):
            assert heads == []
            got[peer].append(message)
            continue
        assert unpack_head(message) == heads
        picked, *rest = frames
        has_frame = has_origins and any(head.rows for head in heads)
        origins = np.frombuffer(rest.pop(0) if has_frame else b"", np.int64)
        if records := sum(each.checksum_records for each in heads):
            came = bytes(rest.pop(0))
            assert len(came) == records
            assert checksums[peer].startswith(came)
            checksums[peer] = checksums[peer].removeprefix(came)
        columns = Columns.from_frames(SLOTS, sum(head.rows for head in heads), picked.frames())
        numbers = columns.arrays[0][0].tolist()
        for i, head in enumerate(heads):
            if has_origins:
                own = np.array(numbers[: head.rows], np.int64)
                assert origins[: 2 * head.rows].tolist() == [*(2 * own), *(3 * own)]
                origins = origins[2 * head.rows :]
            got[peer].append((head, numbers[: head.rows], bytes(rest[0]) if rest and not i else None))
            del numbers[: head.rows]
    assert got == expected
    assert checksums == {b"a": b"", b"b": b""}
    assert not out.messages


def test_small_ones_go_together_and_large_ones_alone() -> None:
    store, ids = store_of(100)

    def sent(nbytes: int, count: int = 100) -> list[int]:
        out = Outbox()
        for i in range(count):
            head = m.BatchHead(1, i, 1, 1, 1, 0, 0, i + 1, [], {}, 0)
            out.send(b"a", head, [BatchRows(store, ids[i % 50 : i % 50 + 1], padding=1, nbytes=nbytes), b"", b""])
        return [len(heads) for _, _, _, heads in out.drain()]

    assert sent(10) == [MAX_BATCHES, 100 - MAX_BATCHES]
    assert sent(MAX_PACK_BYTES // 4, 9) == [4, 4, 1]
    assert sent(MAX_PACK_BYTES // 2 + 1, 3) == [1, 1, 1]
    assert sent(10 * MAX_PACK_BYTES, 3) == [1, 1, 1]


def test_large_batches_go_together_if_their_rows_stay_on_hosts() -> None:
    store, columns = HeapStore(SLOTS), store_of(100)[0].take(range(100))
    servers = RowServers()
    servers.add(1, "tcp://node1:7800")
    mixed = CompositeStore(PassView(servers), PassView(store))
    ids = mixed.append(columns)
    handles = np.arange(100, dtype=np.int64)
    there = mixed.append(servers.accept(1, handles, handles))
    for rows, sizes in ((there, [9]), (ids, [1] * 9), (np.append(there[:50], ids[:50]), [1] * 9)):
        out = Outbox()
        for i in range(9):
            head = m.BatchHead(1, i, 100, 100, 1, 0, 0, i + 1, [], {}, 0)
            out.send(b"a", head, [BatchRows(mixed, rows, padding=100, nbytes=2 * MAX_PACK_BYTES), b"", b""])
        sent = list(out.drain())
        assert [len(heads) for _, _, _, heads in sent] == sizes
        for _, message, _, heads in sent:
            assert isinstance(message, m.BatchHead)
            elsewhere = np.count_nonzero(rows >= 0) * len(heads)
            assert message.elsewhere == ([["tcp://node1:7800", elsewhere]] if elsewhere else [])


def test_who_has_the_cache_gets_numbers_and_others_the_rows() -> None:
    store, ids = store_of(100)

    def kept(peer: bytes, picked: BatchRows) -> int:
        return 77 if peer == b"a" and picked.handles()[0] % 10 else 0

    out = Outbox()
    for i in range(100):
        for peer in (b"a", b"b"):
            head = m.BatchHead(1, i, 1, 1, 1, 0, 0, i + 1, [], {}, 0)
            out.send(peer, head, [BatchRows(store, ids[i : i + 1], padding=1, nbytes=MAX_PACK_BYTES), b"", b""])
    got: dict[bytes, list[Any]] = {b"a": [], b"b": []}
    for peer, message, (rows, *rest), heads in out.drain(kept):
        assert isinstance(message, m.BatchHead)
        assert not rest
        numbers = rows.tolist() if message.shared_rows else rows.columns().arrays[0][0].tolist()
        assert numbers == [head.batch_index for head in heads] == [head.batch_index for head in unpack_head(message)]
        got[peer].append((message.shared_rows, len(heads)))
    assert got == {b"a": [(0, 1), (77, 9)] * 10, b"b": [(0, 1)] * 100}
