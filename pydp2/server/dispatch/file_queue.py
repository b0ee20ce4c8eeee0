"""Files that wait for a worker, in the order in which the merge wants them."""

from __future__ import annotations

from heapq import heappop, heappush

from pydp2.server.dispatch.file_state import QUEUED
from pydp2.server.dispatch.ledger import FileLedger


class FileQueue:
    """Queue of files of one pass that need a worker. A file may stand here that has one by now."""

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

    def pop(self, most: int | None) -> list[int]:
        """Remove and return all files; or (``most``) so many, and beyond that those that a merge waits for."""
        files: list[int] = []
        while self._heap and (most is None or len(files) < most):
            files.append(heappop(self._heap)[1])
        urgent = [file for file in self._urgent if file not in files] if self._heap else []
        self._urgent.clear()
        self._queued.difference_update(files)
        return files + urgent
