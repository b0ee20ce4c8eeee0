"""What the states of files and workers say, compared with everything else that knows where these are."""

from __future__ import annotations

from pydp2.server.dispatch.file_dispatcher import FileDispatcher
from pydp2.server.dispatch.file_state import FileState
from pydp2.server.workers.worker_pool import WorkerPool, WorkState


def check_file_states(dispatcher: FileDispatcher) -> None:
    """Between two calls no file is condemned, and workers, attempts and cache agree with the states."""
    given = {
        ledger.file: (worker, ledger)
        for worker, ledgers in dispatcher.load._load.items()
        for ledger in ledgers.values()
    }
    assert {file for file, ledger in dispatcher.ledgers.items() if ledger.state is FileState.READING} == set(given)
    for file, ledger in dispatcher.ledgers.items():
        assert ledger.state is not FileState.CONDEMNED
        assert (ledger.state is FileState.CLOSED) == dispatcher._ended
        assert (ledger.worker is not None) == (ledger.state is FileState.READING)
        attempt_of = dispatcher.attempts.dispatcher_of(ledger.attempt)
        assert (attempt_of is dispatcher) == (ledger.state is FileState.READING)
        waits = dispatcher in dispatcher.cache._waiting.get(file, ())
        assert waits == (ledger.state is FileState.AWAITING_CACHE)
    for file, (worker, ledger) in given.items():
        assert dispatcher.ledgers[file] is ledger
        assert ledger.worker == worker


def check_worker_states(worker_pool: WorkerPool) -> None:
    """As many workers as can be are active, and these are those that files are given to."""
    states = {number: worker.state for number, worker in worker_pool._workers.items()}
    active = {number for number, state in states.items() if state is WorkState.ACTIVE}
    assert WorkState.GONE not in states.values()
    assert len(active) <= worker_pool.target
    assert len(active) == worker_pool.target or WorkState.STANDBY not in states.values()
    assert all(set(dispatcher.load) == active for dispatcher in worker_pool.dispatchers.values())
