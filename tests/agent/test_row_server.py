"""The row server of a host: it keeps what the service may want, and sends it to trainers of the service alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.data.columns.columns import Columns
from pydp2.data.rowstore.host_rows import HostRows, RowServers
from pydp2.data.schema.provider_schema import Schema
from pydp2.errors import RemoteProtocolError
from pydp2.host.agent.row_server import RowServer, TrainerKeys, start_row_server
from pydp2.order.sample_source import SampleRun
from pydp2.protocol import messages as m
from pydp2.protocol.file_ranges import FILE_OPEN, FileAssignment, FileRange
from pydp2.server.workers.chunk_decoder import decode_chunk
from pydp2.transport import Line
from pydp2.transport.keys import KeyPair, new_key_pair
from pydp2.transport.sockets import new_context
from tests.runs import wait_until

SCHEMA = Schema.from_wire(
    {
        "slots": [[[2, 0, 0, None, None], [10, 1, 3, None, None]], ["pixel", "ids"]], "shuffle": True,
        "pool_size": 100, "min_pool_size": -1, "can_over_batch_size": True, "weighted": False, "cache": 0,
        "check": True, "check_fail_continue": True,
    }
)  # fmt: skip


def columns_of(first: int, lengths: list[int]) -> Columns:
    """Rows ``first``, ``first + 1``, …: two floats that are the number, and as many ids as ``lengths`` say."""
    rows = np.repeat(np.arange(first, first + len(lengths), dtype=np.float32), 2).reshape(-1, 2)
    ids = np.concatenate([np.full(n, i % 10, np.int32) for i, n in enumerate(lengths)] or [np.empty(0, np.int32)])
    return Columns(SCHEMA.slots, len(lengths), [[rows], [np.array(lengths, np.int32), ids]])


def chunk_of(columns: Columns, *attempts: int) -> list[memoryview]:
    """What a worker sends: the rows, all of the first attempt."""
    parts = [
        FileRange(0, attempt, 0, columns.rows * (i == 0), columns.rows * (i == 0), FILE_OPEN, [1], [], {}).to_wire()
        for i, attempt in enumerate(attempts)
    ]
    frames = [m.encode(m.Chunk(columns.rows, parts, [], 0, 0)), *columns.frames()]
    return [memoryview(frame).cast("B") if isinstance(frame, bytes) else memoryview(frame) for frame in frames]


def begin(server: RowServer, reading: int = 1, attempt: int = 7, *, rows_stay: bool = True) -> None:
    server.note_provider(SCHEMA.to_wire())
    server.note_sent_to_worker(m.BeginDispatch(reading, 0, 0, rows_stay))
    server.note_sent_to_worker(m.Assign(reading, [assignment(attempt)]))


def assignment(attempt: int) -> list[Any]:
    return FileAssignment(0, attempt, 0, 0, 0, 1 << 20, 1 << 62, True, []).to_wire()


def without_hub() -> RowServer:
    hub: Any = None
    return RowServer(hub, TrainerKeys(KeyPair("", "")))


def at_the_service(frames: list[Any], servers: RowServers) -> HostRows:
    """What the service makes of a message."""
    message, body = m.decode(frames)
    assert isinstance(message, m.Chunk)
    views = [memoryview(frame).cast("B") for frame in body]
    (_, run), *_ = decode_chunk(
        message, views, SCHEMA, claim=lambda _, named: servers.accept(1, *(frame.view(np.int64) for frame in named))
    )
    assert isinstance(run, SampleRun)
    return run.columns


def same(one: Columns | None, other: Columns) -> bool:
    return one is not None and [f.tobytes() for f in one.frames()] == [f.tobytes() for f in other.frames()]


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(0, 10**6), st.booleans()), max_size=12))
def test_rows_come_back_by_their_handles_until_they_are_released_and_never_after(steps: list) -> None:
    server, servers = without_hub(), RowServers()
    servers.add(1, "")
    begin(server)
    known: dict[int, Columns] = {}
    gone: set[int] = set()
    for count, choice, release in steps:
        columns = columns_of(choice, [(choice >> i) % 4 for i in range(count)])
        sent = server.keep(chunk_of(columns, 7))
        assert sent is not None
        rows = at_the_service(sent, servers)
        assert rows.sample_bytes().tolist() == columns.sample_bytes().tolist()
        handles = rows.handles.tolist()
        assert not {*handles} & (known.keys() | gone), "a handle stands for one row for ever"
        known |= {handle: columns.slice(i, i + 1) for i, handle in enumerate(handles)}
        if release:
            some = [handle for i, handle in enumerate(known) if choice >> i & 1]
            server.release([np.array(some, np.int64)])
            gone.update(some)
            for handle in some:
                del known[handle]
        chosen = [handle for i, handle in enumerate(known) if choice >> i % 16 & 1] * 2
        expected = Columns.concat([Columns.empty(SCHEMA.slots), *(known[handle] for handle in chosen)])
        assert same(server.take(np.array(chosen, np.int64)), expected)
        for handle in gone:
            assert server.take(np.array([handle], np.int64)) is None
    assert server.row_count == len(known)


@pytest.mark.parametrize(
    "frames",
    [
        [m.encode(m.Broken({"kind": "ProviderError"}))],
        [m.encode(m.Chunk(0, [], [], 0, 0))],
        [m.encode(m.Chunk(2, [], [], 0, 0, 1)), np.zeros(2, np.int64)],
    ],
    ids=["another message", "no rows", "rows in cells"],
)
def test_what_has_no_rows_of_its_own_goes_as_it_is(frames: list[Any]) -> None:
    server = without_hub()
    begin(server)
    assert server.keep([memoryview(frame).cast("B") for frame in frames]) is None


def test_rows_stay_only_of_readings_that_allow_it() -> None:
    server, columns = without_hub(), columns_of(0, [1, 2])
    begin(server, 1, 7)
    begin(server, 2, 8, rows_stay=False)
    assert server.keep(chunk_of(columns, 7)) is not None
    assert server.keep(chunk_of(columns, 8)) is None
    assert server.keep(chunk_of(columns, 7, 8)) is None, "a part of it goes to the service, so all does"
    server.note_sent_to_worker(m.EndDispatch(1))
    assert server.keep(chunk_of(columns, 7)) is None
    assert server.row_count == 2, "until the service says that they are not needed"


def test_a_row_server_that_is_turned_off_keeps_what_it_has_until_a_new_session() -> None:
    server, servers, columns = without_hub(), RowServers(), columns_of(0, [1, 2])
    servers.add(1, "")
    begin(server)
    handles = at_the_service(server.keep(chunk_of(columns, 7)) or [], servers).handles
    server.turn_off()
    begin(server, 2, 9)
    assert server.keep(chunk_of(columns, 9)) is None
    assert same(server.take(handles), columns)
    server.begin_session()
    assert server.take(handles) is None
    begin(server, 3, 10)
    again = at_the_service(server.keep(chunk_of(columns, 10)) or [], servers).handles
    assert not {*handles.tolist()} & {*again.tolist()}
    assert server.take(handles) is None


@pytest.mark.parametrize("body", [[], [b"1234567"], [np.array([99], np.int64)], [np.array([-1], np.int64)]])
def test_rows_that_are_not_there_cannot_be_released(body: list[Any]) -> None:
    server = without_hub()
    begin(server)
    with pytest.raises(RemoteProtocolError, match="ReleaseRows"):
        server.release(body)


def test_a_row_cannot_be_released_twice_in_one_message() -> None:
    server, servers = without_hub(), RowServers()
    servers.add(1, "")
    begin(server)
    handles = at_the_service(server.keep(chunk_of(columns_of(0, [1]), 7)) or [], servers).handles
    with pytest.raises(RemoteProtocolError, match="ReleaseRows"):
        server.release([np.concatenate([handles, handles])])
    assert server.row_count == 1


# -- with trainers -----------------------------------------------------------------------------------------------------
@pytest.fixture
def server() -> Iterator[RowServer]:
    context = new_context()
    made = start_row_server(context, "tcp://127.0.0.1:*")
    yield made
    made.hub.close()
    context.term()


@pytest.fixture
def connect(server: RowServer) -> Iterator[Callable[[KeyPair], Line]]:
    context, lines = new_context(), []

    def line(pair: KeyPair) -> Line:
        lines.append(Line(context, server.address, watch=True, key_pair=pair))
        return lines[-1]

    yield line
    for each in lines:
        each.close()
    context.term()


def answer(server: RowServer, line: Line) -> tuple[m.Message, Any] | None:
    found: list[Any] = []

    def came() -> bool:
        server.serve(time.monotonic())
        found.extend(frames for frames in [line.receive(5)] if frames is not None)
        return bool(found) or line.is_lost

    assert wait_until(came)
    return m.decode(found[0]) if found else None


def test_a_trainer_whose_key_is_allowed_gets_rows_and_no_other_peer_does(
    server: RowServer, connect: Callable[[KeyPair], Line]
) -> None:
    servers, columns = RowServers(), columns_of(5, [3, 0, 2])
    servers.add(1, server.address)
    begin(server)
    handles = at_the_service(server.keep(chunk_of(columns, 7)) or [], servers).handles
    trainer, stranger = new_key_pair(), new_key_pair()
    server.allow([trainer.public])
    line = connect(trainer)
    line.send([m.encode(m.FetchRows(4)), handles[::-1].copy()])
    message, body = answer(server, line) or (None, None)
    assert message == m.FetchedRows(4, 3, False)
    found = Columns.from_frames(SCHEMA.slots, 3, [bytes(frame) for frame in body])
    assert same(found, columns.take(np.array([2, 1, 0])))
    line.send([m.encode(m.FetchRows(5)), handles + 1])
    message, body = answer(server, line) or (None, None)
    assert (message, list(body or ())) == (m.FetchedRows(5, 0, True), [])
    other = connect(stranger)
    other.send([m.encode(m.FetchRows(6)), handles])
    assert answer(server, other) is None
    assert other.read_refusal
    server.allow([])
    line.send([m.encode(m.FetchRows(7)), handles])
    assert answer(server, line) is None, "its key was removed"


@pytest.mark.parametrize(
    "frames",
    [
        [m.encode(m.FetchRows(1))],
        [m.encode(m.FetchRows(1)), b"1234567"],
        [m.encode(m.Need(1, 1, 0, 0, 0))],
        [b"garbage"],
    ],
)
def test_a_trainer_that_breaks_the_protocol_loses_its_connection(
    frames: list[bytes], server: RowServer, connect: Callable[[KeyPair], Line]
) -> None:
    begin(server)
    pair = new_key_pair()
    server.allow([pair.public])
    line = connect(pair)
    line.send(frames)
    assert answer(server, line) is None
    assert [each["reason"] for each in server.hub.refusals.to_plain(time.monotonic())] == ["broke the protocol"]
