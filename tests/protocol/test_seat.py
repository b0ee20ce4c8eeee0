"""The row that outlives a worker."""

from __future__ import annotations

from pydp2.engine.base import ROW, Page
from pydp2.protocol import seat
from pydp2.protocol.seat import ATTEMPT, FILE, ORDINAL, RUNNING, SINCE, WORKER, Seat


def test_the_engine_keeps_as_many_fields_as_worker_and_server_use() -> None:
    assert seat.FIELDS == ROW
    assert max(FILE, ATTEMPT, ORDINAL, RUNNING, SINCE, WORKER) < seat.FIELDS


def test_a_seat_tells_what_runs_and_only_while_it_runs() -> None:
    page = Page(3)
    mine, other = Seat(page.row(1)), Seat(page.row(2))
    mine.row[FILE], mine.row[ATTEMPT], mine.row[ORDINAL], mine.row[SINCE] = 7, 2, 100, 12345
    assert mine.running is None
    mine.row[RUNNING] = 1
    assert mine.running == (7, 2, 100)
    assert mine.since == 12345
    assert other.running is None
    assert Seat(page.row(1)).running == (7, 2, 100)
