"""Who fills the cache with which file: of several readings that come to a file, one; the others wait for it
(docs/order.md, "Cache").

Waiting is no promise. When the reading that fills the cache ends, loses the file, or stands still in it, whoever waits
reads the file by itself. So a job may wait for what another one reads, but never for what its trainer does.
"""

from __future__ import annotations

from typing import Protocol

from pydp2.cache import PassCache
from pydp2.order import Run
from pydp2.protocol.ranges import Part
from pydp2.server.ledger import Entry
from pydp2.server.recall import fresh, from_cache


class Reader(Protocol):
    """A reading, as others of the same files see it."""

    def urge(self, file: int) -> bool:
        """The merge of another one waits for ``file``, which this one has claimed: whether it goes on with it."""
        ...

    def settled(self, file: int) -> None:
        """``file``, which this one waits for, is in the cache, or will not come from where it was to come from."""
        ...


class Claims:
    """Of the files that ``cache`` does not have yet, each has one reading at most that puts it there.

    ``cache``: None where nothing is kept.
    """

    def __init__(self, cache: PassCache[Run] | None) -> None:
        self.cache = cache
        self._holders: dict[int, Reader] = {}
        self._waiting: dict[int, list[Reader]] = {}

    def comes(self, file: int) -> bool:
        """Whether ``file`` is in the cache, or somebody is about to put it there."""
        return file in self._holders or (self.cache is not None and self.cache.has(file))

    def enter(self, entry: Entry, reader: Reader) -> None:
        """``reader`` comes to the file of ``entry``: it is in the cache, or is waited for, or is read and put there."""
        cache, file = self.cache, entry.file
        if cache is None or entry.ended:
            return
        if cache.has(file):
            from_cache(entry, cache)
        elif file in self._holders:
            entry.awaits = True
            self._waiting.setdefault(file, []).append(reader)
        elif entry.recall is None and not cache.full:
            entry.claimed = True
            self._holders[file] = reader

    def urge(self, entry: Entry, reader: Reader) -> None:
        """The merge of ``reader`` waits for the file of ``entry``. If that is not going on, it waits no longer."""
        file = entry.file
        if not self._holders[file].urge(file):
            self._waiting[file].remove(reader)
            entry.awaits = False

    def commit(self, entry: Entry, part: Part, run: Run | None) -> None:
        """``part`` of a file was committed; if it ended now, it ended in order."""
        cache = self.cache
        if cache is None or not entry.claimed:
            return
        cache.offer(part.file, None if run is None else fresh(run), part.holes)
        if cache.full:  # and all that was not whole is thrown out
            for file in list(self._holders):
                self._release(file)
        elif entry.ended:
            cache.complete(part.file)
            entry.claimed = False
            self._release(part.file)

    def leave(self, entry: Entry) -> None:
        """The file of ``entry`` will not be whole, or its reading wants nothing more of it."""
        if entry.claimed and self.cache is not None:
            entry.claimed = False
            self.cache.drop(entry.file)
            self._release(entry.file)

    def forget(self, entry: Entry, reader: Reader) -> None:
        """``reader`` ends; ``entry`` is one of its."""
        if entry.awaits:
            self._waiting[entry.file].remove(reader)
        self.leave(entry)

    def _release(self, file: int) -> None:
        """Nobody has ``file`` any more: those who wait see what came of it."""
        if self._holders.pop(file, None) is not None:
            for reader in self._waiting.pop(file, ()):
                reader.settled(file)
