"""A client fetches rows from the row servers of hosts: what comes is in order, and what does not come is named."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from pydp2.client import row_fetcher
from pydp2.client.received import ReceivedBatch, parse_batches, replace_by_batches
from pydp2.client.row_fetcher import PATIENCE_SECONDS as PATIENCE
from pydp2.client.row_fetcher import PIECE_BYTES, RowFetcher
from pydp2.client.row_sources import RowSources
from pydp2.data.columns.columns import Columns
from pydp2.data.rowstore.host_rows import RowServers
from pydp2.errors import RemoteProtocolError
from pydp2.host.agent.row_server import RowServer, start_row_server
from pydp2.protocol import messages as m
from pydp2.protocol.batch_packing import MAX_PACK_BYTES
from pydp2.transport import Line
from pydp2.transport.keys import new_key_pair
from pydp2.transport.sockets import new_context
from tests.agent.test_row_server import SCHEMA, at_the_service, begin, chunk_of, columns_of
from tests.interruptions import Injector, Interruption, insistently, with_its_own_exception_state
from tests.runs import alarm, wait_until

PAIR = new_key_pair()
NOWHERE = "tcp://127.0.0.1:1?key=" + "ab" * 32


@pytest.fixture
def start() -> Iterator[Callable[[], RowServer]]:
    """``start()`` starts a row server that admits the client."""
    contexts, servers = [], []

    def one() -> RowServer:
        contexts.append(new_context())  # each is a process of its own, elsewhere
        servers.append(start_row_server(contexts[-1], "tcp://127.0.0.1:*"))
        servers[-1].allow([PAIR.public])
        begin(servers[-1])
        return servers[-1]

    yield one
    for server in servers:
        server.hub.close()
    for context in contexts:
        context.term()


class Clock:
    """In place of the module ``time``: the time that the fetcher reads."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, fetcher: RowFetcher) -> Clock:
    made = Clock()
    monkeypatch.setattr(row_fetcher, "time", made)
    fetcher.receive()
    return made


@pytest.fixture
def fetcher() -> Iterator[RowFetcher]:
    made = RowFetcher(SCHEMA.slots, PAIR)
    yield made
    made.close()


def kept(server: RowServer, columns: Columns) -> Any:
    servers = RowServers()
    servers.add(1, server.address)
    return at_the_service(server.keep(chunk_of(columns, 7)) or [], servers).handles


def head_of(rows: list[int], on_hosts: list[Any], run: int = 3, first: int = 0) -> m.BatchHead:
    """A message of batches of so many ``rows``."""
    following = [[first + i, n, n, 9, 0, 0, first + i + 1, 0, 0, 0] for i, n in enumerate(rows[1:], 1)]
    return m.BatchHead(
        run, first, rows[0], rows[0], 9, 0, 0, first + 1, [], {}, 0, following=following, elsewhere=on_hosts
    )


def views(*frames: Any) -> list[memoryview]:
    return [memoryview(np.ascontiguousarray(frame)).cast("B") for frame in frames]


def body_of(here: Columns, order: list[int], *handles: Any) -> list[memoryview]:
    return views(*here.frames(), np.array(order, np.int64), np.concatenate(handles))


def serve_until(servers: list[RowServer], fetcher: RowFetcher, done: Callable[[], bool]) -> None:
    def look() -> bool:
        for server in servers:
            server.serve(time.monotonic())
        fetcher.wait(5)
        fetcher.receive()
        return done()

    assert wait_until(look)


def sources_with(fetcher: RowFetcher) -> RowSources:
    sources = RowSources(SCHEMA.slots, PAIR)
    sources._fetcher = fetcher
    return sources


def given_up(batch: ReceivedBatch, fetcher: RowFetcher) -> list[str]:
    """Where the rows of ``batch`` are waited for no longer."""
    report = sources_with(fetcher).report_missing(batch.rows)
    return [] if report is None else report.addresses


def received(fetcher: RowFetcher, head: m.BatchHead, body: list[memoryview]) -> list[ReceivedBatch]:
    fetcher.begin(head, [head.rows, *(each[1] for each in head.following)], body)
    return parse_batches(head, body, sources_with(fetcher))


def waits_at(address: str, fetcher: RowFetcher, handles: Any = 5, first: int = 0, nbytes: int = 9) -> ReceivedBatch:
    """Batch number ``first``, whose rows ``handles`` have been asked for at ``address``."""
    wanted = np.atleast_1d(np.asarray(handles, np.int64))
    head = head_of([len(wanted)], [[address, len(wanted)]], first=first)
    head.nbytes = nbytes
    return received(fetcher, head, body_of(columns_of(0, []), [*range(len(wanted))], wanted))[0]


def looks(fetcher: RowFetcher, clock: Clock, seconds: float) -> None:
    """``seconds`` go by in which the client looks again and again, as it does while it waits."""
    until = clock.now + seconds
    while clock.now < until:
        clock.now = min(until, clock.now + 0.2)
        fetcher.receive()


def requests_of(server: RowServer, fetcher: RowFetcher, count: int) -> list[tuple[bytes, m.Message, list[memoryview]]]:
    """The next ``count`` requests, with the peers that they came from; they have no answers yet."""
    came = []

    def heard() -> bool:
        server.hub.accept(time.monotonic())
        while (one := server.hub.receive()) is not None:
            came.append((one[0], *m.decode(one[1])))
        return len(came) >= count

    serve_until([], fetcher, heard)
    assert len(came) == count
    return came


def answer(server: RowServer, request: tuple[bytes, m.Message, list[memoryview]]) -> None:
    """Send the rows of ``request``, all of them."""
    peer, message, body = request
    server._answer(peer, [memoryview(m.encode(message)), *body])


def same(one: Columns, other: Columns) -> bool:
    return [f.tobytes() for f in one.frames()] == [f.tobytes() for f in other.frames()]


@with_its_own_exception_state
def test_a_message_is_replaced_by_its_batches_or_stays_wherever_an_exception_comes(fetcher: RowFetcher) -> None:
    head = head_of([1, 2], [[NOWHERE, 3]])
    body = body_of(columns_of(0, []), [2, 0, 1], np.arange(3))
    fetcher.begin(head, [1, 2], body)
    inbox: list[Any] = [(head, body)]
    injector = Injector()

    def replace() -> None:
        if not isinstance(inbox[0], ReceivedBatch):  # as a client that is called again
            replace_by_batches(inbox, 0, sources_with(fetcher), 4)

    insistently(injector, replace, lambda: None)
    assert [(batch.number, batch.head.rows, batch.awaits_rows) for batch in inbox] == [(4, 1, True), (5, 2, True)]
    assert {"replace_by_batches", "parse_batches", "RowFetcher.parts"} <= injector.names


def test_parts_are_forgotten_once_the_batches_are_there(fetcher: RowFetcher) -> None:
    head = head_of([1], [[NOWHERE, 1]])
    inbox: list[Any] = [(head, body_of(columns_of(0, []), [0], np.arange(1)))]
    fetcher.begin(head, [1], inbox[0][1])
    replace_by_batches(inbox, 0, sources_with(fetcher), 0)
    with pytest.raises(RemoteProtocolError, match="not asked for"):
        fetcher.parts(head.request_id, head.batch_index)


def test_a_connection_that_an_exception_has_cut_off_does_not_hold_up_the_end(
    fetcher: RowFetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = []

    def interrupted(*arguments: Any, **options: Any) -> Line:
        kept.append(Line(*arguments, **options))
        raise Interruption  # before anybody knows it

    monkeypatch.setattr(row_fetcher, "Line", interrupted)
    with pytest.raises(Interruption):
        waits_at(NOWHERE, fetcher)
    with alarm(10):
        fetcher.close()


def test_rows_of_two_hosts_and_of_the_service_come_together_in_the_order_of_the_batches(
    start: Callable[[], RowServer], fetcher: RowFetcher
) -> None:
    one, two = start(), start()
    here, first, second = columns_of(0, [1, 0]), columns_of(10, [2, 3, 0]), columns_of(20, [1])
    handles = kept(one, first), kept(two, second)
    head = head_of([2, 4], [[one.address, 3], [two.address, 1]])
    batches = received(fetcher, head, body_of(here, [5, 2, 0, 4, 3, 1], *handles))
    assert [batch.awaits_rows for batch in batches] == [True, True]
    serve_until([one, two], fetcher, lambda: not batches[1].awaits_rows)
    expected = Columns.concat([here, first, second]).take(np.array([5, 2, 0, 4, 3, 1]))
    assert same(batches[0].columns(), expected.slice(0, 2))
    assert same(batches[1].columns(), expected.slice(2, 6))
    assert sum(batch.sizes[1] for batch in batches) == pytest.approx(expected.nbytes, abs=1)
    assert all(array.flags.writeable for arrays in batches[0].columns().arrays for array in arrays)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("batch_bytes", "together"), [(MAX_PACK_BYTES // 2, 2), (0, 5), (MAX_PACK_BYTES + 1, 1)])
def test_small_batches_are_fetched_together_and_large_ones_alone(
    batch_bytes: int, together: int, seed: int, start: Callable[[], RowServer], fetcher: RowFetcher
) -> None:
    random = np.random.default_rng(seed)
    servers, here = [start(), start()], columns_of(0, [1] * random.integers(0, 4))
    kinds = [columns_of(100 * i, random.integers(0, 4, random.integers(1, 9)).tolist()) for i in (1, 2)]
    handles = [kept(server, columns) for server, columns in zip(servers, kinds, strict=True)]
    uninterrupted = Columns.concat([here, *kinds])
    order = random.permutation(uninterrupted.rows)
    edges = [
        0,
        *np.sort(random.integers(0, uninterrupted.rows + 1, 4)).tolist(),
        uninterrupted.rows,
    ]  # a batch may have no rows
    on_hosts = [[server.address, columns.rows] for server, columns in zip(servers, kinds, strict=True)]
    head = head_of(np.diff(edges).tolist(), on_hosts)
    head.nbytes = batch_bytes * 5
    batches = received(fetcher, head, body_of(here, order.tolist(), *handles))
    lots = [id(batch.rows[0]) for batch in batches if isinstance(batch.rows, tuple)]
    assert [lots.count(lot) for lot in dict.fromkeys(lots)] == [min(together, 5 - at) for at in range(0, 5, together)]
    serve_until(servers, fetcher, lambda: not any(batch.awaits_rows for batch in batches))
    for batch, (lo, hi) in zip(batches, pairwise(edges), strict=True):
        assert same(batch.columns(), uninterrupted.take(order[lo:hi]))


def test_rows_that_a_host_does_not_have_make_it_unreachable_at_once(
    start: Callable[[], RowServer], fetcher: RowFetcher
) -> None:
    server = start()
    handles = kept(server, columns_of(0, [1, 1]))
    (batch,) = received(fetcher, head_of([2], [[server.address, 2]]), body_of(columns_of(0, []), [0, 1], handles + 9))
    serve_until([server], fetcher, lambda: bool(given_up(batch, fetcher)))
    assert given_up(batch, fetcher) == [server.address]
    assert batch.awaits_rows


@pytest.mark.parametrize("address", ["", NOWHERE, "tcp://no-such-host.invalid:1?key=" + "ab" * 32])
def test_a_host_that_cannot_be_reached_or_is_not_known_any_more_is_named_after_a_while(
    address: str, fetcher: RowFetcher, clock: Clock
) -> None:
    batch = waits_at(address, fetcher)
    looks(fetcher, clock, PATIENCE - 0.1)
    assert given_up(batch, fetcher) == []
    looks(fetcher, clock, 0.2)
    assert given_up(batch, fetcher) == [address]


def test_a_row_server_that_sends_has_its_time_anew_for_all_that_it_was_asked_for(
    start: Callable[[], RowServer], fetcher: RowFetcher, clock: Clock
) -> None:
    server = start()
    handles = kept(server, columns_of(0, [1, 1, 1]))
    first, second, third = (waits_at(server.address, fetcher, each, n) for n, each in enumerate(handles))
    came = requests_of(server, fetcher, 3)
    looks(fetcher, clock, PATIENCE - 0.1)
    answer(server, came[0])
    serve_until([], fetcher, lambda: not first.awaits_rows)
    looks(fetcher, clock, PATIENCE - 0.1)
    assert given_up(second, fetcher) == given_up(third, fetcher) == []
    answer(server, came[1])
    serve_until([], fetcher, lambda: not second.awaits_rows)
    looks(fetcher, clock, PATIENCE + 0.1)
    assert given_up(third, fetcher) == [server.address]


def test_an_answer_for_a_run_that_was_left_shows_that_the_row_server_sends(
    start: Callable[[], RowServer], fetcher: RowFetcher, clock: Clock
) -> None:
    server = start()
    handles = kept(server, columns_of(0, [1, 1]))
    waits_at(server.address, fetcher, handles[0])
    (old,) = requests_of(server, fetcher, 1)
    fetcher.forget()
    batch = waits_at(server.address, fetcher, handles[1])
    looks(fetcher, clock, PATIENCE - 0.1)
    answer(server, old)
    (line,) = fetcher.handles
    assert line.poll(5000)
    looks(fetcher, clock, PATIENCE - 0.1)
    assert given_up(batch, fetcher) == []


@pytest.mark.parametrize(("row_bytes", "rows"), [(PIECE_BYTES // 3, [3, 3, 1]), (3 * PIECE_BYTES, [1] * 7), (1, [7])])
def test_no_answer_is_larger_than_a_piece_or_a_row(
    row_bytes: int, rows: list[int], start: Callable[[], RowServer], fetcher: RowFetcher
) -> None:
    server = start()
    columns = columns_of(0, [1, 0, 2, 3, 1, 1, 2])
    handles = kept(server, columns)
    head = head_of([7], [[server.address, 7]])
    head.nbytes = 7 * row_bytes
    (batch,) = received(fetcher, head, body_of(columns_of(0, []), [6, 5, 4, 3, 2, 1, 0], handles))
    came = requests_of(server, fetcher, len(rows))
    assert [len(body[0]) // 8 for _, _, body in came] == rows
    for each in came:
        answer(server, each)
    serve_until([], fetcher, lambda: not batch.awaits_rows)
    assert same(batch.columns(), columns.take(np.arange(7)[::-1]))


def test_a_row_that_is_larger_than_a_piece_has_more_time(fetcher: RowFetcher, clock: Clock) -> None:
    small, large = waits_at(NOWHERE, fetcher), waits_at(NOWHERE, fetcher, first=1, nbytes=20 * PIECE_BYTES)
    looks(fetcher, clock, PATIENCE + 0.1)
    assert (given_up(small, fetcher), given_up(large, fetcher)) == ([NOWHERE], [])
    looks(fetcher, clock, PATIENCE)
    assert given_up(large, fetcher) == [NOWHERE]


def test_the_time_in_which_this_process_stood_still_says_nothing_of_a_row_server(
    start: Callable[[], RowServer], fetcher: RowFetcher, clock: Clock
) -> None:
    server = start()
    columns = columns_of(0, [2])
    batch = waits_at(server.address, fetcher, kept(server, columns))
    looks(fetcher, clock, PATIENCE - 0.1)
    clock.now += 14.0
    fetcher.receive()
    looks(fetcher, clock, PATIENCE - 0.1)
    assert given_up(batch, fetcher) == []
    serve_until([server], fetcher, lambda: not batch.awaits_rows)
    assert same(batch.columns(), columns)


def test_all_row_servers_that_are_silent_are_named_at_once(
    start: Callable[[], RowServer], fetcher: RowFetcher, clock: Clock
) -> None:
    """Also those that were never heard and have a little time left: each of them would cost a new run of its own."""
    server, silent = start(), [NOWHERE.replace(":1?", f":{port}?") for port in range(1, 5)]
    handles = kept(server, columns_of(0, [1, 1]))
    heard = waits_at(server.address, fetcher, handles[0], 0)
    serve_until([server], fetcher, lambda: not heard.awaits_rows)
    batch = waits_at(silent[0], fetcher, first=1)
    waits_at(silent[1], fetcher, first=2)
    looks(fetcher, clock, 0.8)
    late = waits_at(silent[2], fetcher, first=3)
    waits_at(server.address, fetcher, handles[1], 4)
    looks(fetcher, clock, 1.0)
    waits_at(silent[3], fetcher, first=5)
    looks(fetcher, clock, PATIENCE - 1.7)
    assert given_up(batch, fetcher) == silent[:3]
    assert given_up(late, fetcher) == []


def test_no_more_row_servers_are_named_at_once_than_fit_into_a_header(fetcher: RowFetcher, clock: Clock) -> None:
    silent = [NOWHERE.replace(":1?", f":{port}?") for port in range(1, 41)]
    batch, *_ = [waits_at(address, fetcher, first=n) for n, address in enumerate(silent)]
    looks(fetcher, clock, PATIENCE + 0.1)
    assert given_up(batch, fetcher) == silent[:32]


def test_a_row_server_that_sends_something_else_counts_as_unreachable(
    start: Callable[[], RowServer], fetcher: RowFetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start()
    handles = kept(server, columns_of(0, [1]))
    (batch,) = received(fetcher, head_of([1], [[server.address, 1]]), body_of(columns_of(0, []), [0], handles))

    def lie() -> bool:
        server.hub.accept(time.monotonic())
        if (came := server.hub.receive()) is not None:
            server.hub.send(came[0], [m.encode(m.FetchedRows(1, 1, False)), b"no columns"])
        fetcher.wait(5)
        fetcher.receive()
        return bool(given_up(batch, fetcher))

    assert wait_until(lie)
    assert given_up(batch, fetcher) == [server.address]


def test_rows_come_over_a_new_connection_if_the_first_one_ends(
    start: Callable[[], RowServer], fetcher: RowFetcher
) -> None:
    server = start()
    columns = columns_of(4, [2])
    handles = kept(server, columns)
    (batch,) = received(fetcher, head_of([1], [[server.address, 1]]), body_of(columns_of(0, []), [0], handles))
    peers: list[bytes] = []

    def heard() -> bool:
        server.hub.accept(time.monotonic())
        if (came := server.hub.receive()) is not None:
            peers.append(came[0])
        return bool(peers)

    assert wait_until(heard)
    server.hub.end_peer(peers[0])  # it gets no answer, and its connection ends
    serve_until([server], fetcher, lambda: not batch.awaits_rows)
    assert same(batch.columns(), columns)


def test_what_was_asked_for_in_a_run_that_was_left_is_forgotten(
    start: Callable[[], RowServer], fetcher: RowFetcher
) -> None:
    server = start()
    handles = kept(server, columns_of(0, [1, 2]))
    old, new = (head_of([1], [[server.address, 1]], run) for run in (3, 4))
    here = columns_of(0, [])
    fetcher.begin(old, [1], body_of(here, [0], handles[:1]))
    fetcher.drop(3, 0)
    fetcher.begin(old, [1], body_of(here, [0], handles[:1]))
    fetcher.forget()
    with pytest.raises(RemoteProtocolError, match="were not asked for"):
        fetcher.parts(3, 0)
    (batch,) = received(fetcher, new, body_of(here, [0], handles[1:]))
    serve_until([server], fetcher, lambda: not batch.awaits_rows)
    assert same(batch.columns(), columns_of(0, [1, 2]).slice(1, 2))


@pytest.mark.parametrize(
    ("on_hosts", "order", "handles", "said"),
    [
        ([["a", 2]], [0, 1], [1], "one number for each row"),
        ([["a", 2]], [0], [1, 2], "one number for each row"),
        ([["a", 2]], [0, 0], [1, 2], "not in an order"),
        ([["a", 2]], [0, 7], [1, 2], "not in an order"),
        ([["a", 2]], [0, -1], [1, 2], "not in an order"),
        ([["a", 2]], [-1, 1], [1, 2], "not in an order"),
        ([["a", 3]], [0, 1], [1, 2, 3], "rows on hosts need"),
        ([["a", 0]], [0, 1], [], "its row server and their number"),
        ([["a", True]], [0, 1], [1], "its row server and their number"),
        ([[7, 2]], [0, 1], [1, 2], "its row server and their number"),
        (["a"], [0, 1], [1, 2], "its row server and their number"),
        ([["a", 1]] * 1025, [0, 1], [1, 2], "at most 1024"),
    ],
)
def test_a_message_that_contradicts_itself_is_refused(
    on_hosts: list[Any], order: list[int], handles: list[int], said: str, fetcher: RowFetcher
) -> None:
    frames = body_of(columns_of(0, []), order, np.array(handles, np.int64))
    with pytest.raises(RemoteProtocolError, match=said):
        fetcher.begin(head_of([2], on_hosts), [2], frames)


def test_a_message_without_the_frames_that_say_where_rows_are_is_refused(fetcher: RowFetcher) -> None:
    with pytest.raises(RemoteProtocolError, match="rows on hosts need"):
        fetcher.begin(head_of([2], [["a", 1]]), [2], views(np.zeros(2, np.int64)))
