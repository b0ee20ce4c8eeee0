"""Keep the load of each worker in one pass: which files it has, and how many it may have waiting.

The merge takes more of some files than of others in the same time, and waits for each: so it is not the number of files
that must be alike at all workers, but what the merge takes of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydp2.server.dispatch.ledger import FileLedger

MAX_FILES = 64
"""Assignments in one message, and unstarted files waiting at one worker."""


class WorkerLoad:
    """Files that were given out and have not ended, by worker."""

    def __init__(self) -> None:
        self._pulled: dict[int, int] = {}  # the sum over the files that a worker has
        self._load: dict[int, dict[int, FileLedger]] = {}
        self._ahead: dict[int, set[int]] = {}  # those that are not bound
        self._pace: dict[int, int] = {}  # how many unstarted files a worker may have waiting

    def __len__(self) -> int:
        """Workers."""
        return len(self._load)

    def __iter__(self) -> Iterator[int]:
        return iter(self._load)

    def add_worker(self, worker: int) -> None:
        """Note that ``worker`` can be given files."""
        self._load[worker] = {}
        self._pulled[worker] = 0
        self._ahead[worker] = set()
        self._pace[worker] = 2

    def remove_worker(self, worker: int) -> list[FileLedger]:
        """Remove ``worker``, which is gone, and return the files that it had."""
        self._ahead.pop(worker, None)
        self._pace.pop(worker, None)
        self._pulled.pop(worker, None)
        return list(self._load.pop(worker, {}).values())

    def clear(self) -> None:
        """Take all files from all workers."""
        self._load.clear()
        self._pulled.clear()

    def least_loaded(self) -> int:
        """Return the worker of whose files the merge takes the least."""
        return min(self._pulled, key=lambda worker: self._pulled[worker])

    @property
    def total(self) -> int:
        """Number of files that all workers have."""
        return sum(map(len, self._load.values()))

    def file_count(self, worker: int) -> int:
        """Return the number of files that ``worker`` has."""
        return len(self._load.get(worker, ()))

    def is_backed_up(self, worker: int) -> bool:
        """Return True if so many files that are not bound wait at ``worker`` that it gets no more of them."""
        return len(self._ahead[worker]) >= self._pace[worker]

    def assign(self, worker: int, ledger: FileLedger) -> None:
        """Give the file of ``ledger`` to ``worker``."""
        self._load[worker][ledger.file] = ledger
        self._pulled[worker] += ledger.pull
        if not ledger.bound:
            self._ahead[worker].add(ledger.file)

    def bind(self, worker: int, file: int) -> None:
        """Note that ``file``, which ``worker`` has, is bound."""
        self._ahead[worker].discard(file)

    def unassign(self, worker: int, ledger: FileLedger) -> None:
        """Take ``file`` from ``worker``, which may have one more waiting now."""
        if self._load[worker].pop(ledger.file, None) is not None:
            self._pulled[worker] -= ledger.pull
        self._ahead[worker].discard(ledger.file)
        self._pace[worker] = min(MAX_FILES, self._pace[worker] + 1)
