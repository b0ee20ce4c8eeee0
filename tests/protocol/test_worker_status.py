"""The row that outlives a worker."""

from __future__ import annotations

from pydp2.host.engine.base import STATUS_FIELDS, StatusPage
from pydp2.protocol import worker_status
from pydp2.protocol.worker_status import ATTEMPT, FILE, RUNNING, SAMPLE_INDEX, STARTED_NS, WORKER, WorkerStatus


def test_the_engine_keeps_as_many_fields_as_worker_and_server_use() -> None:
    assert worker_status.FIELD_COUNT == STATUS_FIELDS
    assert max(FILE, ATTEMPT, SAMPLE_INDEX, RUNNING, STARTED_NS, WORKER) < worker_status.FIELD_COUNT


def test_a_seat_tells_what_runs_and_only_while_it_runs() -> None:
    page = StatusPage(3)
    mine, other = WorkerStatus(page.row(1)), WorkerStatus(page.row(2))
    mine.row[FILE], mine.row[ATTEMPT], mine.row[SAMPLE_INDEX], mine.row[STARTED_NS] = 7, 2, 100, 12345
    assert mine.running_sample is None
    mine.row[RUNNING] = 1
    assert mine.running_sample == (7, 2, 100)
    assert mine.started_ns == 12345
    assert other.running_sample is None
    assert WorkerStatus(page.row(1)).running_sample == (7, 2, 100)


def test_the_time_of_a_sample_does_not_run_while_its_threads_wait_for_a_store() -> None:
    status = WorkerStatus(StatusPage(1).row(0))
    status.row[STARTED_NS] = 100
    for begins, now in ((True, 200), (True, 210), (False, 300), (False, 310)):  # two threads
        status.note_wait(begins, now)
    assert (status.started_ns, status.waits_for_store) == (200, False)
    status.note_wait(True, 400)
    assert status.waits_for_store
    status.note_wait(False, 450)
    assert status.started_ns == 250
