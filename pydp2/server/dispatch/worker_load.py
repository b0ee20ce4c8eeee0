"""Keep the files of one pass that wait for a worker, and the load of each worker: which files it has, and how many it
may have waiting.

The merge takes more of some files than of others in the same time, and waits for each: so of the files of the cycle it
is not the number that must be alike at all workers, but what the merge takes of them; only where no file follows them,
it is the number. Files that are read ahead go to the worker that comes to them first.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from pydp2.server.dispatch.file_state import QUEUED
from pydp2.server.dispatch.ledger import FileLedger

MAX_FILES = 64
"""Assignments in one message, and files not yet bound at one worker."""


class FileQueue:
    """Queue of files that need a worker, in the order in which the merge wants them. A file may stand here that has one
    by now."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []  # (position, file)
        self._queued: set[int] = set()  # those that are in the heap
        self._urgent: set[int] = set()  # those that a merge waits for now

    def __bool__(self) -> bool:
        return bool(self._heap)

    def push(self, ledger: FileLedger) -> None:
        """Add the file of ``ledger``, unless nothing is to be read of it here."""
        if ledger.state is QUEUED and ledger.file not in self._queued:
            self._queued.add(ledger.file)
            heappush(self._heap, (ledger.position, ledger.file))

    def prioritise(self, file: int) -> None:
        """Move ``file``, for which a merge waits, to the front."""
        self._urgent.add(file)

    def pop(self, most: int | None, *, beyond: bool = True) -> list[int]:
        """Remove and return all files; or (``most``) so many, and ``beyond`` that those that a merge waits for."""
        files: list[int] = []
        while self._heap and (most is None or len(files) < most):
            files.append(heappop(self._heap)[1])
        self._queued.difference_update(files)
        if not beyond:
            self._urgent.difference_update(files)
            return files
        urgent = [file for file in self._urgent if file not in files] if self._heap else []
        self._urgent.clear()
        return files + urgent


class _LeastFirst:
    """Workers, the one with the least load at the front."""

    def __init__(self) -> None:
        self.load: dict[int, tuple[int, int]] = {}
        """Load of each worker that can be given a file now."""
        self._heap: list[tuple[tuple[int, int], int]] = []  # an entry whose load is not that of its worker is old

    def set(self, worker: int, load: tuple[int, int]) -> None:
        self.load[worker] = load
        if len(self._heap) > 4 * len(self.load):  # mostly old entries
            self._heap = [(load, worker) for worker, load in self.load.items()]
            heapify(self._heap)
        else:
            heappush(self._heap, (load, worker))

    def remove(self, worker: int) -> None:
        self.load.pop(worker, None)

    def clear(self) -> None:
        self.load.clear()
        self._heap.clear()

    def first(self) -> int:
        """Return the worker with the least load, of several the one that came first."""
        while self.load.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][1]


class WorkerLoad:
    """Files that were given out and have not ended, by worker."""

    def __init__(self) -> None:
        self._pulled: dict[int, int] = {}  # the sum over the files that a worker has
        self._load: dict[int, dict[int, FileLedger]] = {}
        self._ahead: dict[int, set[int]] = {}  # those that are not bound
        self._pace: dict[int, int] = {}  # how many unstarted files a worker may have waiting
        self._retired: set[int] = set()  # workers that end their files and get no more
        self._reserved: dict[int, int] = {}  # workers that get no other file for now than the one that they have
        self._silent: dict[int, FileLedger] = {}  # files of which nothing came, and that were not asked for
        self._requested: set[int] = set()  # files that their workers were asked for
        self._asked: set[int] = set()  # workers that have not answered that
        # workers that can be given a file now
        self._by_pull, self._by_count = _LeastFirst(), _LeastFirst()
        self._idle: set[int] = set()  # those of them that have none
        self.total = 0
        """Number of files that all workers have."""

    def __len__(self) -> int:
        """Return the number of workers that can be given files."""
        return len(self._load) - len(self._retired)

    def __iter__(self) -> Iterator[int]:
        return iter(self._load)

    @property
    def takes_files(self) -> bool:
        """True if some worker can be given a file now."""
        return bool(self._by_pull.load)

    @property
    def has_idle(self) -> bool:
        """True if some worker that can be given a file has none."""
        return bool(self._idle)

    @property
    def reserved_files(self) -> list[int]:
        """Files that workers have which get no other one for now."""
        return [*self._reserved.values()]

    def add_worker(self, worker: int) -> None:
        """Note that ``worker`` can be given files."""
        self._load[worker] = {}
        self._set_pulled(worker, 0)
        self._ahead[worker] = set()
        self._pace[worker] = 2

    def retire(self, worker: int) -> None:
        """Note that ``worker`` is given no more files."""
        if worker in self._load:
            self._retired.add(worker)
            self._exclude(worker)

    def reserve(self, worker: int, file: int) -> None:
        """Give ``worker``, which has ``file`` alone, no other file until :meth:`note_output`."""
        self._reserved[worker] = file
        self._exclude(worker)

    def note_output(self, worker: int, file: int) -> None:
        """Note that ``worker`` has begun ``file``, or has it no more. Let it have other files again, if it was reserved
        for ``file``."""
        self._silent.pop(file, None)
        if self._reserved.get(worker) == file:
            del self._reserved[worker]
            self._set_pulled(worker, self._pulled[worker])

    def files_of(self, worker: int) -> list[FileLedger]:
        """Return the files that ``worker`` has."""
        return [*self._load.get(worker, {}).values()]

    def remove_worker(self, worker: int) -> list[FileLedger]:
        """Remove ``worker``, which is gone, and return the files that it had."""
        self._retired.discard(worker)
        self._reserved.pop(worker, None)
        self._ahead.pop(worker, None)
        self._asked.discard(worker)
        self._pace.pop(worker, None)
        self._pulled.pop(worker, None)
        self._exclude(worker)
        ledgers = list(self._load.pop(worker, {}).values())
        for ledger in ledgers:
            self._silent.pop(ledger.file, None)
            self._requested.discard(ledger.file)
        self.total -= len(ledgers)
        return ledgers

    def clear(self) -> None:
        """Take all files from all workers."""
        self._load.clear()
        self._silent.clear()
        self._requested.clear()
        self._asked.clear()
        self._retired.clear()
        self._reserved.clear()
        self._pulled.clear()
        self._by_pull.clear()
        self._by_count.clear()
        self._idle.clear()
        self.total = 0

    def least_loaded(self) -> int:
        """Return the worker of whose files the merge takes the least."""
        return self._by_pull.first()

    def fewest_files(self) -> int:
        """Return the worker with the fewest files: it comes to one more first."""
        return self._by_count.first()

    def _set_pulled(self, worker: int, pulled: int) -> None:
        self._pulled[worker] = pulled
        if worker in self._retired or worker in self._reserved:
            return
        count = len(self._load[worker])
        self._by_pull.set(worker, (pulled, count))
        self._by_count.set(worker, (count, pulled))
        if count:
            self._idle.discard(worker)
        else:
            self._idle.add(worker)

    def _exclude(self, worker: int) -> None:
        """Have no file given to ``worker``."""
        self._by_pull.remove(worker)
        self._by_count.remove(worker)
        self._idle.discard(worker)

    def file_count(self, worker: int) -> int:
        """Return the number of files that ``worker`` has."""
        return len(self._load.get(worker, ()))

    def is_backed_up(self, worker: int, most: int) -> bool:
        """Return True if so many files that are not bound wait at ``worker``, or ``most``, that it gets no more of
        them."""
        return len(self._ahead[worker]) >= min(self._pace[worker], most)

    def assign(self, worker: int, ledger: FileLedger) -> None:
        """Give the file of ``ledger`` to ``worker``."""
        self._load[worker][ledger.file] = self._silent[ledger.file] = ledger
        self.total += 1
        self._set_pulled(worker, self._pulled[worker] + ledger.pull)
        if not ledger.bound:
            self._ahead[worker].add(ledger.file)

    def next_to_steal(self) -> FileLedger | None:
        """Return a file that its worker has probably not begun, for a worker that has none; None if there is no such
        file, or enough workers were asked already. It is the one that its worker, which has the most, comes to last."""
        if len(self._asked) >= len(self._idle):
            return None
        candidates = [
            (len(self._load[worker]), ledger.position, worker, ledger.file)
            for ledger in self._silent.values()
            if (worker := ledger.worker) is not None and worker not in self._asked and len(self._load[worker]) > 1
        ]
        if not candidates:
            return None
        _, _, worker, file = max(candidates)
        self._asked.add(worker)
        self._requested.add(file)
        return self._silent.pop(file)

    def is_requested(self, file: int) -> bool:
        """Return True if the worker of ``file`` was asked for it."""
        return file in self._requested

    def note_answer(self, worker: int) -> None:
        """Note that ``worker``, if it was asked for a file, has returned it or has begun it."""
        self._asked.discard(worker)

    def bind(self, worker: int, file: int) -> None:
        """Note that ``file``, which ``worker`` has, is bound."""
        self._ahead[worker].discard(file)

    def unassign(self, worker: int, ledger: FileLedger) -> None:
        """Take ``file`` from ``worker``, which may have one more waiting now."""
        self.note_output(worker, ledger.file)
        if self._load[worker].pop(ledger.file, None) is not None:
            self.total -= 1
            self._set_pulled(worker, self._pulled[worker] - ledger.pull)
        self._ahead[worker].discard(ledger.file)
        self._requested.discard(ledger.file)
        self._pace[worker] = min(MAX_FILES, self._pace[worker] + 1)
