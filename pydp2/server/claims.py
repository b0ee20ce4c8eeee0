"""Who fills the cache with which file: of several readings that come to a file, one; the others wait for it
(docs/order.md, "Cache").

Waiting is no promise. When the reading that fills the cache ends, loses the file, or stands still in it, whoever waits
reads the file by itself. So a job may wait for what another one reads, but never for what its trainer does. The same
holds for the disk, which is asked for a file before a worker is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pydp2.cache.memory import PassCache
from pydp2.cache.terms import Answer, Found, Missing, Said, Settled, WeightedSamples
from pydp2.order import Run
from pydp2.protocol.ranges import Part
from pydp2.server.ledger import Entry
from pydp2.server.recall import fresh, from_cache, from_disk

AHEAD = 32
"""So many files before the merge wants them they are looked for on the disk."""


class Reader(Protocol):
    """A reading, as others of the same files see it."""

    def urge(self, file: int) -> bool:
        """The merge of another one waits for ``file``, which this one has claimed: whether it goes on with it."""
        ...

    def settled(self, file: int) -> None:
        """``file``, which this one waits for, is in the cache, or will not come from where it was to come from."""
        ...


class Disk(Protocol):
    """A cache on disk, as :class:`pydp2.cache.DiskCache` is one."""

    @property
    def keeps(self) -> bool:
        """Whether it is of use to offer a file."""
        ...

    @property
    def stuck(self) -> bool:
        """Nobody should wait for it."""
        ...

    def look(self, file: int) -> None:
        """Find ``file``."""
        ...

    def offer(self, file: int, stamp: tuple[int, ...], samples: WeightedSamples | None, holes: Sequence[Any]) -> bool:
        """Keep what is next in ``file``; False: it will not be kept."""
        ...

    def complete(self, file: int, stamp: tuple[int, ...]) -> None:
        """``file`` was offered whole."""
        ...

    def drop(self, file: int) -> None:
        """``file`` will not be complete."""
        ...

    def answers(self) -> list[Answer]:
        """What was found and done since the last call."""
        ...


class _Step:
    """Has a claim on files for the disk: it looks for them, or writes them."""

    def __init__(self, disk: Disk | None) -> None:
        self._disk = disk

    def urge(self, file: int) -> bool:
        return self._disk is not None and not self._disk.stuck

    def settled(self, file: int) -> None:
        raise AssertionError("the disk waits for nobody")


class Claims:
    """Of the files that the caches do not have yet, each has one reading at most that puts it there.

    ``cache``: None where nothing is kept in memory; ``disk``: None where nothing is kept there. With both, the disk
    takes what memory has no room for.
    """

    def __init__(self, cache: PassCache[Run] | None, disk: Disk | None = None) -> None:
        self.cache = cache
        self.disk = disk
        self._looking, self._writing = _Step(disk), _Step(disk)
        self._holders: dict[int, Reader] = {}
        self._waiting: dict[int, list[Reader]] = {}
        self._claimed: dict[int, Entry] = {}
        self._asked: set[int] = set()
        self._known: dict[int, Found | Missing] = {}  # what the disk answered, until somebody comes to the file
        self._stamps: dict[int, tuple[int, ...]] = {}  # of files that are on their way to the disk
        self._spills: dict[int, tuple[int, ...]] = {}  # of files on their way to memory that may have to go there

    def ahead(self, order: npt.NDArray[np.int64], following: int, bound: int) -> bool | None:
        """As :meth:`comes`, of ``order[following]``; the first ``bound`` are wanted now. Where that cannot be said yet,
        it and those behind it are looked for."""
        comes = self.comes(int(order[following]), following - bound)
        if comes is None:
            self._look(order[following : bound + AHEAD].tolist())
        return comes

    def comes(self, file: int, ahead: int = 0) -> bool | None:
        """Whether ``file`` is in the cache, or somebody is about to put it there; None: that cannot be said yet.
        ``ahead``: so many others are wanted before it."""
        if file in self._holders or (self.cache is not None and self.cache.has(file)):
            return True
        if self.disk is None or self.disk.stuck:
            return False
        answer = self._known.get(file)
        if isinstance(answer, Missing):
            return False
        return True if answer is not None and ahead < AHEAD else None

    def _look(self, files: Iterable[int]) -> None:
        """These will be wanted next: ask the disk for them."""
        for file in files:
            if self.disk is not None and not self.comes(file) and file not in self._known and file not in self._asked:
                self._asked.add(file)
                self.disk.look(file)

    def answered(self) -> list[Said]:
        """Take what the disk answered; what it has to say."""
        said: list[Said] = []
        for answer in () if self.disk is None else self.disk.answers():
            match answer:
                case Said():
                    said.append(answer)
                case Settled(file):
                    if self._holders.get(file) is self._writing:
                        self._release(file)
                case Found(file) | Missing(file):
                    self._asked.discard(file)
                    holder = self._holders.get(file)
                    if holder is None or holder is self._looking:
                        self._known[file] = answer
                        self._release(file)
        return said

    def enter(self, entry: Entry, reader: Reader) -> None:
        """``reader`` comes to the file of ``entry``: it is in the cache, or is waited for, or is read and put there."""
        cache, disk, file = self.cache, self.disk, entry.file
        if entry.ended or (cache is None and disk is None):
            return
        if cache is not None and cache.has(file):
            from_cache(entry, cache)
        elif file in self._holders:
            self._wait(entry, reader)
        elif disk is None or disk.stuck:
            self._claim(entry, reader, None)
        else:
            answer = self._known.pop(file, None)
            if answer is None:
                self._look([file])
                self._holders[file] = self._looking
                self._wait(entry, reader)
            elif isinstance(answer, Found):
                from_disk(entry, answer)
            else:
                self._claim(entry, reader, answer.stamp)

    def _wait(self, entry: Entry, reader: Reader) -> None:
        entry.awaits = True
        self._waiting.setdefault(entry.file, []).append(reader)

    def _claim(self, entry: Entry, reader: Reader, stamp: tuple[int, ...] | None) -> None:
        """The file is not there. ``stamp``: with which it can be kept on the disk, None: it cannot."""
        if entry.recall is not None:
            return
        if self.cache is not None and not self.cache.full:
            stamps = self._spills
        elif self.disk is not None and self.disk.keeps and stamp is not None:
            stamps = self._stamps
        else:
            return
        entry.claimed = True
        self._claimed[entry.file] = entry
        self._holders[entry.file] = reader
        if stamp is not None:
            stamps[entry.file] = stamp

    def urge(self, entry: Entry, reader: Reader) -> None:
        """The merge of ``reader`` waits for the file of ``entry``. If that is not going on, it waits no longer."""
        file = entry.file
        if not self._holders[file].urge(file):
            self._waiting[file].remove(reader)
            entry.awaits = False

    def commit(self, entry: Entry, part: Part, run: Run | None) -> None:
        """``part`` of a file was committed; if it ended now, it ended in order."""
        if not entry.claimed:
            return
        samples = None if run is None else fresh(run)
        if part.file in self._stamps:
            self._to_disk(part.file, samples, part.holes)
        else:
            self._to_memory(part.file, samples, part.holes)
        if entry.ended and entry.claimed:
            if part.file in self._stamps:
                assert self.disk is not None
                self.disk.complete(part.file, self._stamps.pop(part.file))
                self._holders[part.file] = self._writing
                del self._claimed[part.file]
                entry.claimed = False
            elif self.cache is not None:
                self._spills.pop(part.file, None)
                self.cache.complete(part.file)
                self._release(part.file)

    def _to_memory(self, file: int, samples: Run | None, holes: Sequence[Any]) -> None:
        cache = self.cache
        if cache is None or cache.full:
            return
        cache.offer(file, samples, holes)
        if cache.full:  # and all that was not whole is thrown out
            thrown, cache.thrown = cache.thrown, {}
            spills, self._spills = self._spills, {}
            for each, holder in list(self._holders.items()):
                if holder is self._looking or holder is self._writing or each in self._stamps:
                    continue
                if each in spills and self.disk is not None and self.disk.keeps:
                    self._stamps[each] = spills[each]
                    runs, gaps = thrown.get(each, ([], []))
                    for one in runs:
                        self._to_disk(each, one, ())
                    self._to_disk(each, None, gaps)
                else:
                    self._release(each)

    def _to_disk(self, file: int, samples: Run | None, holes: Sequence[Any]) -> None:
        stamp = self._stamps.get(file)
        if self.disk is not None and stamp is not None and not self.disk.offer(file, stamp, samples, holes):
            self._give_up(file)

    def _give_up(self, file: int) -> None:
        """``file`` does not go to the disk."""
        assert self.disk is not None
        del self._stamps[file]
        self.disk.drop(file)
        self._release(file)

    def leave(self, entry: Entry) -> None:
        """The file of ``entry`` will not be whole, or its reading wants nothing more of it."""
        if not entry.claimed:
            return
        if entry.file in self._stamps:
            self._give_up(entry.file)
        elif self.cache is not None:
            self._spills.pop(entry.file, None)
            self.cache.drop(entry.file)
            self._release(entry.file)

    def forget(self, entry: Entry, reader: Reader) -> None:
        """``reader`` ends; ``entry`` is one of its."""
        if entry.awaits:
            self._waiting[entry.file].remove(reader)
        self.leave(entry)

    def over(self) -> None:
        """A reading is over: what was looked for in vain is let go, so that the next pass sees how things are then."""
        self._known.clear()

    def _release(self, file: int) -> None:
        """Nobody has ``file`` any more: those who wait see what came of it."""
        claimed = self._claimed.pop(file, None)
        if claimed is not None:
            claimed.claimed = False
        if self._holders.pop(file, None) is not None:
            for reader in self._waiting.pop(file, ()):
                reader.settled(file)
