"""Let one pass fill the cache with a file when several passes come to it; the others wait for it (docs/order.md,
"Cache").

When the pass that fills the cache ends, loses the file, or stands still in it, each pass that waits reads the file by
itself. So a job may wait for what another one reads, but never for what its trainer does. The same
holds for the disk, which is asked for a file before a worker is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from copy import copy
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pydp2.data.columns.checksum import EndChecksum
from pydp2.order.sample_source import SampleRun
from pydp2.protocol.file_ranges import FileRange
from pydp2.server.cache.disk_messages import CacheNotice, DiskAnswer, DiskHit, DiskMiss, OfferSettled, WeightedRun
from pydp2.server.cache.memory import MemoryCache
from pydp2.server.dispatch.file_state import COMPLETE, FileEvent, FileState
from pydp2.server.dispatch.ledger import FileLedger
from pydp2.server.dispatch.reread import serve_from_cache, serve_from_disk

LOOK_AHEAD = 32
"""So many files before the merge wants them they are looked for on the disk."""


class CacheConsumer(Protocol):
    """Pass over files, as other passes over the same files see it."""

    def prioritise(self, file: int) -> bool:
        """Hurry with ``file``, which this pass has claimed and the merge of another one waits for. Return True if it
        goes on with it."""
        ...

    def cache_settled(self, file: int) -> None:
        """Note that ``file``, which this pass waits for, is in the cache now, or will not come to it."""
        ...


class DiskTier(Protocol):
    """Cache on disk, as :class:`pydp2.server.cache.disk.DiskCache` is one."""

    @property
    def accepts_offers(self) -> bool:
        """True if it is of use to offer a file."""
        ...

    @property
    def is_stalled(self) -> bool:
        """True if passes should not wait for the disk."""
        ...

    def look_up(self, file: int) -> None:
        """Find ``file``."""
        ...

    def offer(self, file: int, stamp: tuple[int, ...], samples: WeightedRun | None, dropped: Sequence[Any]) -> bool:
        """Keep what is next in ``file``; False: it will not be kept."""
        ...

    def finish_file(self, file: int, stamp: tuple[int, ...], end: EndChecksum) -> None:
        """Note that ``file`` was offered whole, with its ``end``."""
        ...

    def discard(self, file: int) -> None:
        """Drop ``file``, which will not be complete."""
        ...

    def take_answers(self) -> list[DiskAnswer]:
        """Return what the disk found and did since the last call."""
        ...


class _DiskStep:
    """Claim on files for the disk, while it looks for them or writes them."""

    def __init__(self, disk: DiskTier | None) -> None:
        self._disk = disk

    def prioritise(self, file: int) -> bool:
        return self._disk is not None and not self._disk.is_stalled

    def cache_settled(self, file: int) -> None:
        raise AssertionError("the disk waits for no reading")


class CacheFill:
    """Files that the caches do not have yet, each with at most one pass that puts it there.

    ``cache``: None where nothing is kept in memory; ``disk``: None where nothing is kept there. With both, the disk
    takes what memory has no room for.
    """

    def __init__(self, cache: MemoryCache[SampleRun] | None, disk: DiskTier | None = None) -> None:
        self.memory = cache
        self.disk = disk
        self._looking, self._writing = _DiskStep(disk), _DiskStep(disk)
        self._holders: dict[int, CacheConsumer] = {}
        self._waiting: dict[int, list[CacheConsumer]] = {}
        self._claimed: dict[int, FileLedger] = {}
        self._lookups: set[int] = set()
        self._outdated_lookups: Counter[int] = Counter()  # of passes that are over: their answers are for nobody
        # What the disk answered, until a merge comes to the file.
        self._disk_answers: dict[int, DiskHit | DiskMiss] = {}
        self._stamps: dict[int, tuple[int, ...]] = {}  # of files that are on their way to the disk
        self._spills: dict[int, tuple[int, ...]] = {}  # of files on their way to memory that may have to go there

    def prefetch(self, order: npt.NDArray[np.int64], following: int, bound: int) -> bool | None:
        """Return :meth:`is_coming` of ``order[following]``; the first ``bound`` files are wanted now. If that cannot
        be said yet, look for this file and those behind it on the disk."""
        comes = self.is_coming(int(order[following]), following - bound)
        if comes is None:
            self._look(order[following : bound + LOOK_AHEAD].tolist())
        return comes

    def is_coming(self, file: int, ahead: int = 0) -> bool | None:
        """Return True if ``file`` is in the cache or a pass is about to put it there; None: that cannot be said yet.
        ``ahead``: number of other files that are wanted before it."""
        if file in self._holders or (self.memory is not None and self.memory.has(file)):
            return True
        if self.disk is None or self.disk.is_stalled:
            return False
        answer = self._disk_answers.get(file)
        if isinstance(answer, DiskMiss):
            return False
        return True if answer is not None and ahead < LOOK_AHEAD else None

    def _look(self, files: Iterable[int]) -> None:
        """These will be wanted next: ask the disk for them."""
        for file in files:
            if (
                self.disk is not None
                and not self.is_coming(file)
                and file not in self._disk_answers
                and file not in self._lookups
            ):
                self._lookups.add(file)
                self.disk.look_up(file)

    def take_disk_answers(self) -> list[CacheNotice]:
        """Take what the disk answered; what it has to say."""
        said: list[CacheNotice] = []
        for answer in () if self.disk is None else self.disk.take_answers():
            match answer:
                case CacheNotice():
                    said.append(answer)
                case OfferSettled(file):
                    if self._holders.get(file) is self._writing:
                        self._release(file)
                case DiskHit(file) | DiskMiss(file) if self._outdated_lookups[file]:
                    self._outdated_lookups -= Counter([file])
                case DiskHit(file) | DiskMiss(file):
                    self._lookups.discard(file)
                    holder = self._holders.get(file)
                    if holder is None or holder is self._looking:
                        self._disk_answers[file] = answer
                        self._release(file)
        return said

    def end_checksum(self, file: int) -> EndChecksum:
        """Return the end of ``file``, which is in memory, and the checksum there; (0, 0) if it is not."""
        return (0, 0) if self.memory is None else self.memory.end_checksum(file)

    def open_file(self, ledger: FileLedger, reader: CacheConsumer) -> None:
        """Let ``reader`` have the file of ``ledger``: from the cache, by waiting for another pass, or by reading it
        and putting it there."""
        cache, disk, file = self.memory, self.disk, ledger.file
        if ledger.ended or (cache is None and disk is None):
            return
        if cache is not None and cache.has(file):
            serve_from_cache(ledger, cache)
        elif file in self._holders:
            self._wait(ledger, reader)
        elif disk is None or disk.is_stalled:
            self._claim(ledger, reader, None)
        else:
            answer = self._disk_answers.pop(file, None)
            if answer is None:
                self._look([file])
                self._holders[file] = self._looking
                self._wait(ledger, reader)
            elif isinstance(answer, DiskHit):
                serve_from_disk(ledger, answer)
            else:
                self._claim(ledger, reader, answer.stamp)

    def _wait(self, ledger: FileLedger, reader: CacheConsumer) -> None:
        ledger.move(FileEvent.AWAIT_CACHE)
        self._waiting.setdefault(ledger.file, []).append(reader)

    def _claim(self, ledger: FileLedger, reader: CacheConsumer, stamp: tuple[int, ...] | None) -> None:
        """Claim a file that is not in the cache. ``stamp``: the stamp with which the disk can keep it, None: it
        cannot."""
        if ledger.reread is not None and not ledger.reread.is_whole:
            return
        if self.memory is not None and not self.memory.full:
            stamps = self._spills
        elif self.disk is not None and self.disk.accepts_offers and stamp is not None:
            stamps = self._stamps
        else:
            return
        ledger.fills_cache = True
        self._claimed[ledger.file] = ledger
        self._holders[ledger.file] = reader
        if stamp is not None:
            stamps[ledger.file] = stamp

    def prioritise(self, ledger: FileLedger, reader: CacheConsumer) -> None:
        """Hurry with the file of ``ledger``, for which the merge of ``reader`` waits. If nothing moves there,
        ``reader`` stops waiting and reads the file itself."""
        file = ledger.file
        if not self._holders[file].prioritise(file):
            self._waiting[file].remove(reader)
            ledger.move(FileEvent.CACHE_SETTLED)

    def commit(self, ledger: FileLedger, part: FileRange, run: SampleRun | None) -> None:
        """Offer ``part`` of a file, which was committed, to the caches. If the file ended now, it ended in order."""
        if not ledger.fills_cache:
            return
        if part.file in self._stamps:
            self._to_disk(part.file, None if run is None else copy(run), part.dropped)
        else:
            self._to_memory(part.file, run, part.dropped)
        if ledger.state is COMPLETE and ledger.fills_cache:
            if part.file in self._stamps:
                assert self.disk is not None
                self.disk.finish_file(part.file, self._stamps.pop(part.file), ledger.end_checksum)
                self._holders[part.file] = self._writing
                del self._claimed[part.file]
                ledger.fills_cache = False
            elif self.memory is not None:
                self._spills.pop(part.file, None)
                self.memory.finish_file(part.file, ledger.end_checksum)
                self._release(part.file)

    def _to_memory(self, file: int, samples: SampleRun | None, dropped: Sequence[Any]) -> None:
        cache = self.memory
        if cache is None or cache.full:
            return
        cache.offer(file, samples, dropped)
        if cache.full:  # and all that was not whole is thrown out
            thrown, cache.rejected = cache.rejected, {}
            spills, self._spills = self._spills, {}
            for each, holder in list(self._holders.items()):
                if holder is self._looking or holder is self._writing or each in self._stamps:
                    continue
                if each in spills and self.disk is not None and self.disk.accepts_offers:
                    self._stamps[each] = spills[each]
                    runs, gaps = thrown.get(each, ([], []))
                    for one in runs:
                        self._to_disk(each, one, ())
                    self._to_disk(each, None, gaps)
                else:
                    self._release(each)

    def _to_disk(self, file: int, samples: SampleRun | None, dropped: Sequence[Any]) -> None:
        stamp = self._stamps.get(file)
        if self.disk is not None and stamp is not None and not self.disk.offer(file, stamp, samples, dropped):
            self._give_up(file)

    def _give_up(self, file: int) -> None:
        """Give up putting ``file`` on the disk."""
        assert self.disk is not None
        del self._stamps[file]
        self.disk.discard(file)
        self._release(file)

    def abandon(self, ledger: FileLedger) -> None:
        """Give up the file of ``ledger``: it will not be whole, or its pass wants nothing more of it."""
        if not ledger.fills_cache:
            return
        if ledger.file in self._stamps:
            self._give_up(ledger.file)
        elif self.memory is not None:
            self._spills.pop(ledger.file, None)
            self.memory.discard(ledger.file)
            self._release(ledger.file)

    def detach(self, ledger: FileLedger, reader: CacheConsumer) -> None:
        """Release ``ledger``, a file of ``reader``, which ends."""
        if ledger.state is FileState.AWAITING_CACHE:
            self._waiting[ledger.file].remove(reader)
        self.abandon(ledger)

    def forget_answers(self) -> None:
        """Forget what was looked for and not used, for a pass that begins: it sees how things are then. Whoever waits
        for an answer still gets it."""
        self._disk_answers.clear()
        for file in [file for file in self._lookups if not self._waiting.get(file)]:
            self._lookups.discard(file)
            self._outdated_lookups[file] += 1  # it is answered before the disk is asked again
            if self._holders.get(file) is self._looking:
                self._release(file)

    def _release(self, file: int) -> None:
        """Free ``file``, which no pass has any more: those that wait see what came of it."""
        claimed = self._claimed.pop(file, None)
        if claimed is not None:
            claimed.fills_cache = False
        if self._holders.pop(file, None) is not None:
            for reader in self._waiting.pop(file, ()):
                reader.cache_settled(file)
