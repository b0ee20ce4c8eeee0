"""A thread prepares the next batch while the trainer computes, and nothing depends on whether it is in time."""

from __future__ import annotations

import _thread
import gc
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace

import numpy as np
import pytest

import pydp2
from pydp2.client import connection, received, row_sources, session
from pydp2.client import look_ahead as look_ahead_module
from pydp2.client.connection import Connection
from pydp2.client.look_ahead import LookAhead
from pydp2.client.row_sources import RowSources
from pydp2.data.columns.columns import Ints
from pydp2.data.rowstore.append_only import AppendOnlyStore
from pydp2.data.rowstore.region import RegionLayout
from pydp2.data.schema.input_types import Slots, integer_value
from pydp2.errors import ClientUseError, Error
from pydp2.protocol import messages as m
from tests.provider_code import dense, numbers, sequences
from tests.runs import NUMBERS, NUMBERS_OPTIONS, numbered, wait_until

LONG = 30.0  # seconds that nothing takes


class Work:
    """Work that notes the threads that do it, and goes on when it may."""

    def __init__(self) -> None:
        self.threads: list[int] = []
        self.begun, self.may_go_on = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.threads.append(threading.get_ident())
        self.begun.set()
        assert self.may_go_on.wait(LONG)


def start(thread: LookAhead) -> None:
    """Have its thread run: it is given nothing before."""
    thread.give(int)
    assert wait_until(lambda: bool(thread._running))
    assert thread.reclaim(LONG)


@pytest.fixture
def look_ahead() -> Iterator[LookAhead]:
    """One whose thread runs."""
    thread = LookAhead()
    start(thread)
    yield thread
    thread.close(LONG)


def test_work_is_done_in_another_thread_and_waited_for_once_it_is_begun(look_ahead: LookAhead) -> None:
    work = Work()
    look_ahead.give(work)
    assert work.begun.wait(LONG)
    threading.Timer(0.1, work.may_go_on.set).start()
    assert look_ahead.reclaim(LONG)
    assert work.may_go_on.is_set()
    assert len(work.threads) == 1
    assert work.threads != [threading.get_ident()]
    assert look_ahead.reclaim(0.0)


def test_work_that_is_not_begun_is_taken_back(look_ahead: LookAhead) -> None:
    first, second = Work(), Work()
    look_ahead.give(first)
    assert first.begun.wait(LONG)
    look_ahead.give(second)  # as no client does
    assert look_ahead.reclaim(0.0)
    first.may_go_on.set()
    second.may_go_on.set()
    third = Work()
    third.may_go_on.set()
    look_ahead.give(third)
    assert wait_until(lambda: bool(third.threads))
    assert second.threads == []


def test_work_that_is_to_be_begun_later_is_taken_back_before_and_done_after(
    look_ahead: LookAhead, monkeypatch: pytest.MonkeyPatch
) -> None:
    delays, are_over = list[float](), threading.Semaphore(0)

    def sleep(seconds: float) -> None:
        delays.append(seconds)
        assert are_over.acquire(timeout=LONG)

    monkeypatch.setattr(look_ahead_module, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
    first, second = Work(), Work()
    first.may_go_on.set()
    second.may_go_on.set()
    look_ahead.give(first, delay=0.3)
    assert wait_until(lambda: delays == [0.3])
    assert look_ahead.reclaim(LONG), "nobody waits for the delay"
    are_over.release()
    look_ahead.give(second, delay=0.1)
    assert wait_until(lambda: delays == [0.3, 0.1])
    assert second.threads == []
    are_over.release()
    assert wait_until(lambda: bool(second.threads))
    assert first.threads == []


def test_a_wait_ends_in_time_and_can_be_taken_up_again(look_ahead: LookAhead) -> None:
    work = Work()
    look_ahead.give(work)
    assert work.begun.wait(LONG)
    assert not look_ahead.reclaim(0.0)
    began = time.monotonic()
    assert not look_ahead.reclaim(0.2)
    assert 0.2 <= time.monotonic() - began < LONG
    work.may_go_on.set()
    assert look_ahead.reclaim(LONG)


@pytest.mark.parametrize("error", [ValueError("no"), MemoryError(), Error("no")])
def test_what_work_raises_is_dropped(error: Exception, look_ahead: LookAhead) -> None:
    def work() -> None:
        raise error

    for _ in range(2):
        look_ahead.give(work)
        assert look_ahead.reclaim(LONG)


def test_the_thread_does_not_wait_for_what_it_does(look_ahead: LookAhead) -> None:
    """A destructor that runs there may use the client."""
    found: list[bool] = []
    look_ahead.give(lambda: found.append(look_ahead.reclaim(LONG)))
    assert wait_until(lambda: bool(found))
    assert found == [False]
    assert look_ahead.reclaim(LONG)


def test_nothing_that_was_done_is_kept(look_ahead: LookAhead) -> None:
    class Client:
        def prepare(self) -> None:
            done.set()

    done = threading.Event()
    look_ahead.give(Client().prepare)
    assert done.wait(LONG)
    assert wait_until(lambda: not [each for each in gc.get_objects() if type(each) is Client])


def test_it_ends_with_close_even_before_it_has_begun() -> None:
    threads = _thread._count()
    for waits in (True, False):
        look_ahead = LookAhead()
        look_ahead.close(LONG)
        look_ahead = LookAhead()
        look_ahead.give(int)
        assert not waits or wait_until(lambda look_ahead=look_ahead: bool(look_ahead._running))
        look_ahead.close(LONG)
        look_ahead.close(LONG)
        look_ahead.give(int)
        assert look_ahead.reclaim(0.0)
        assert wait_until(lambda: _thread._count() <= threads)


def test_where_no_thread_can_be_had_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*arguments: object) -> int:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", start)
    look_ahead, work = LookAhead(), Work()
    look_ahead.give(work)
    look_ahead.give(work)
    assert look_ahead.reclaim(0.0)
    assert work.threads == []
    look_ahead.close(LONG)


# -- which batch -------------------------------------------------------------------------------------------------------
SLOTS = Slots((integer_value(1 << 40),))


def message(run: int, rows: int, shared: int = 8) -> tuple[m.BatchHead, list[memoryview]]:
    head = m.BatchHead(run, 4, rows, rows, 9, 0, 0, 5, [], {}, 0, shared_rows=shared)
    return head, [memoryview(np.arange(3).tobytes())]


def test_the_message_of_the_batch_that_follows_is_split_and_an_invalid_one_is_left_alone() -> None:
    layout = RegionLayout(SLOTS, 1 << 12)
    sources, present = RowSources(SLOTS, shared_rows=AppendOnlyStore(layout, bytearray(layout.size))), object()
    inbox: list[object] = [present, message(1, 3)]
    following = received.second_batch(inbox, sources, 1, 8)
    assert following is not None
    assert (inbox, following.number) == ([present, following], 8)
    assert received.second_batch(inbox, sources, 1, 8) is following
    following.columns()
    assert following.sizes[1] == 24
    for wrong in ([present], [present, message(2, 3)], [present, message(1, 4)], [present, (m.Probe(), [])]):
        before = list(wrong)
        assert received.second_batch(wrong, sources, 1, 8) is None
        assert wrong == before


# -- in a client -------------------------------------------------------------------------------------------------------
def await_thread(data: pydp2.Client) -> None:
    """The step lasts until the thread has done what it was given, however late it came to that."""
    offer = data._session.look_ahead._offer
    assert offer is None or wait_until(lambda: offer.is_over)


LENGTHS = sequences(400, "1000", "pool_size=64", first="1000 * int(filename)")


@pytest.mark.parametrize("is_long", [True, False])
def test_beside_long_steps_batches_are_gathered_ahead_and_the_stream_is_the_same(
    is_long: bool, provider_file: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    take = row_sources.MappedRows.columns

    def noted(self: row_sources.MappedRows, lo: int, hi: int) -> object:
        if self._columns is None:
            threads.append(threading.get_ident())
        return take(self, lo, hi)

    monkeypatch.setattr(row_sources.MappedRows, "columns", noted)
    monkeypatch.setattr(look_ahead_module, "_LONG_STEP", 0.001 if is_long else 60.0)
    seen: list[int] = []
    with pydp2.load(["1", "2"], provider_file(LENGTHS), workers=1, batch_size=16, seed=3) as data:
        for batch in data:
            value = batch[0]
            assert isinstance(value, pydp2.Ragged)
            starts: Ints = value.sequence_start_positions.astype(np.int64)
            assert (np.diff(starts) == 1000).all()
            assert isinstance(value.values, np.ndarray)
            seen += value.values[starts[:-1]].tolist()
            time.sleep(0.01 if is_long else 0.003)
            await_thread(data)
    assert sorted(seen) == [file * 1000 + i for file in (1, 2) for i in range(400)]
    ahead = len(threads) - threads.count(threading.get_ident())
    assert ahead > 4 if is_long else ahead == 0


FILES = [str(n) for n in range(40)]


def test_beside_long_steps_the_thread_asks_for_batches(
    provider_file: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[bool, int, int]] = []  # by the thread, batches that it says were used, batches taken
    taken, send = 0, Connection.send

    def noted(self: Connection, message: m.Message, frames: Sequence[bytes] = ()) -> None:
        if isinstance(message, m.Need):
            asked.append((threading.get_ident() != threading.main_thread().ident, message.used_batches, taken))
        send(self, message, frames)

    monkeypatch.setattr(Connection, "send", noted)
    with pydp2.load(FILES, provider_file(NUMBERS), workers=1, **NUMBERS_OPTIONS) as data:
        stream = iter(data)
        for batch in stream:
            taken = batch.index + 1
            time.sleep(0.01)
            await_thread(data)
    assert sum(by_thread for by_thread, _, _ in asked) >= 2
    assert all(used <= before for _, used, before in asked)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """However short a step is, the next batch is prepared in it."""
    monkeypatch.setattr(look_ahead_module, "_LONG_STEP", 0.0)


@pytest.mark.usefixtures("always")
def test_passes_that_are_left_closed_and_dropped_meanwhile_are_the_same(provider_file: Callable[[str], str]) -> None:
    with pydp2.launch(FILES, provider_file(NUMBERS), workers=1) as service:
        with service.connect(**NUMBERS_OPTIONS) as data:
            expected = [[numbered(batch) for batch in data] for _ in range(6)]
        with service.connect(**NUMBERS_OPTIONS) as data:
            for number, uninterrupted in enumerate(expected):
                found = []
                for batch in data:
                    found.append(numbered(batch))
                    if number % 2 and len(found) == 20 + number:
                        break
                assert found == uninterrupted[: len(found)]
                assert number % 2 or len(found) == len(uninterrupted)


@pytest.mark.usefixtures("always")
def test_a_state_that_is_loaded_meanwhile_is_gone_on_from(provider_file: Callable[[str], str]) -> None:
    with pydp2.load(FILES, provider_file(NUMBERS), workers=1, **NUMBERS_OPTIONS) as data:
        stream, found = iter(data), []
        for _ in range(30):
            found.append(numbered(next(stream)))
            if len(found) == 10:
                state = data.state_dict()
        data.load_state_dict(state)
        assert [numbered(batch) for batch, _ in zip(data, range(20), strict=False)] == found[10:]


@pytest.mark.usefixtures("always")
def test_a_call_does_not_wait_for_ever_for_the_thread(
    provider_file: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work()
    with pydp2.load(FILES, provider_file(NUMBERS), workers=1, **NUMBERS_OPTIONS) as data:
        stream = iter(data)
        found = [numbered(next(stream))]
        data._session.look_ahead.give(int)
        assert wait_until(lambda: bool(data._session.look_ahead._running))
        assert data._session.look_ahead.reclaim(LONG)
        data._session.look_ahead.give(work)
        assert work.begun.wait(LONG)
        with monkeypatch.context() as short:
            short.setattr(session, "_RECLAIM_SECONDS", 0.2)
            with pytest.raises(ClientUseError, match="has not come out"):
                next(stream)
        work.may_go_on.set()
        assert data._session.look_ahead.reclaim(LONG)
        found += [numbered(batch) for batch in data]
        assert [index for index, _ in found] == list(range(len(found)))
        assert len({sample for _, samples in found for sample in samples}) == sum(len(s) for _, s in found)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread waits for the next batch as long as it takes."""
    fetch = Connection.fetch_second
    monkeypatch.setattr(connection, "_SECOND_SECONDS", LONG)
    monkeypatch.setattr(Connection, "fetch_second", lambda self, seconds, thread: fetch(self, LONG, thread))


WIDE = dense(200, 1 << 14, "pool_size=64")


@pytest.mark.usefixtures("always", "patient")
def test_a_large_batch_that_is_sent_when_it_is_asked_for_is_gathered_in_the_step_before_it(
    provider_file: Callable[[str], str],
) -> None:
    """There is room for one batch beside that in hand, so the next one is not there when the step begins."""
    with pydp2.load(
        ["1"], provider_file(WIDE), workers=1, batch_size=16, seed=3, prefetch_bytes=2 * (17 << 16) + 4096
    ) as data:
        inbox, ahead = data._connection.inbox, 0

        def is_gathered() -> bool:
            return len(inbox) > 1 and (not isinstance(inbox[1], received.ReceivedBatch) or inbox[1].is_prepared)

        start(data._session.look_ahead)
        for batch in data:
            if 1 < batch.index < 11 and data._session.look_ahead._offer is not None:
                assert wait_until(is_gathered), batch.index
                ahead += 1
        assert ahead > 4


ENDLESS = numbers(49, "should_shuffle=False", before="while i == 48: time.sleep(0.05)", below=100)


@pytest.mark.usefixtures("always", "patient")
def test_a_call_takes_the_sockets_back_from_a_thread_that_waits(provider_file: Callable[[str], str]) -> None:
    with pydp2.load(["1"], provider_file(ENDLESS), workers=1, batch_size=16, prefetch=1) as data:
        stream = iter(data)
        thread = data._session.look_ahead
        start(thread)
        for _ in range(3):
            next(stream)
        assert wait_until(lambda: thread._offer is not None and thread._offer._claimed.get(0) == "thread")
        time.sleep(0.01)
        assert thread._offer is not None
        assert not thread._offer.is_over, "it waits for a batch that does not come"
        began = time.monotonic()
        stream.close()  # type: ignore[attr-defined]
        assert time.monotonic() - began < 5
