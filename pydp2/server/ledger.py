"""The ledger: what of each file is committed, and where its attempts stand (docs/order.md, "Ledger").

A range of a file is committed once, in order, by the attempt that is valid now. Everything else is refused: output of a
worker that was given up, a range that was sent twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from pydp2.errors import Error, RemoteProtocolError
from pydp2.order.saved import NEVER, Recall, SavedLane
from pydp2.order.source import END, Failure, Gap, Run
from pydp2.protocol.ranges import HOLE_COST, OPEN, SAMPLE_COST, Part

Hole = tuple[int, str, str]
"""(ordinal, slot, reason) of a dropped sample."""
NO_PAUSE = 1 << 62
DEATHS = 3
"""A file that was running in this many dead workers at the same sample is condemned."""
STARVED = 5
"""So is one that this many workers in a row could not read on in the memory that they may have."""


@dataclass(slots=True)
class Entry:
    """One file of a pass. ``position`` is its place in the order in which the merge wants files."""

    file: int
    position: int
    pull: int = 1  # how much of it the merge takes in the same time, compared with others
    bound: bool = False
    worker: int | None = None
    attempt: int = 0
    committed: int = 0  # ordinals below are committed
    crcs: list[int] = field(default_factory=list)  # running checksums there
    spent: int = 0  # cost of what is committed
    merged: int = 0  # cost of what the merge has taken
    limit: int = 0  # cost up to which the worker may send
    runs: deque[Run] = field(default_factory=deque)  # committed, not merged
    holes: deque[Hole] = field(default_factory=deque)  # committed, not passed by the merge
    tail: Gap | Failure | None = None  # what comes after the runs, once known
    early: Error | None = None  # why the file is taken to end there
    met: bool = False  # the merge has met its end
    stops: set[int] = field(default_factory=set)  # ordinals before which all must be committed
    need: int = 0  # cost of the sample that the worker holds in hand for lack of credit
    wanted: bool = False  # the worker was told that the merge waits
    deaths: dict[int, int] = field(default_factory=dict)
    starved: int = 0  # so many workers in a row had too much memory while they ran it, and nothing new came of it
    recall: Recall | None = None  # of a file that is read again in part: what is needed of it
    until: int = NEVER  # nothing from this ordinal on is needed
    y: int = 0  # the ordinal that the merge takes next
    ends: deque[tuple[int, list[int]]] = field(default_factory=deque)  # of each run: its end, the checksum there
    cached: bool = False  # its samples came from the cache and use no credit
    claimed: bool = False  # what is committed of it goes to the cache
    awaits: bool = False  # another reading puts it there, and no worker is asked for it

    @property
    def by_turns(self) -> bool:
        """The merge takes turns with this file and others."""
        return self.pull > 1

    @property
    def ended(self) -> bool:
        """No worker has to run it any more."""
        return self.tail is not None

    @property
    def use(self) -> int:
        """Bytes of credit: granted and unspent, in flight, committed and not merged."""
        return 0 if self.cached else max(self.limit, self.spent) - self.merged  # a hole may exceed the limit

    @property
    def unspent(self) -> int:
        """Of what was granted, so much is not spent."""
        return max(0, self.limit - self.spent)

    @property
    def pause(self) -> int:
        """The next ordinal at which the worker has to wait."""
        return min(self.stops, default=NO_PAUSE)

    def accepts(self, worker: int, part: Part) -> bool:
        """Whether ``part`` comes from the attempt that is valid now."""
        return self.worker == worker and self.attempt == part.attempt and not self.ended

    def commit(self, part: Part, run: Run | None) -> None:
        """Commit the range of ``part``; ``run`` holds its samples. Raises RemoteProtocolError when it leaves a gap."""
        if part.first != self.committed:
            raise RemoteProtocolError(
                f"file {self.file}: a range from sample {part.first}, but {self.committed} are committed"
            )
        if part.rows + len(part.holes) != part.count and self.recall is None:
            raise RemoteProtocolError(f"file {self.file}: a range of {part.count} with {part.rows} samples")
        cost = HOLE_COST * len(part.holes)
        if run is not None:
            cost += run.nbytes(run.hi - run.lo) + SAMPLE_COST * part.rows
            self.runs.append(run)
            self.ends.append((part.first + part.count, part.crcs))
        self.holes.extend((y, slot, reason) for y, slot, reason in part.holes)
        self.committed += part.count
        self.starved = 0
        self.crcs = part.crcs
        self.spent += cost
        self.wanted = False
        self.need = 0
        if part.state != OPEN:
            self.tail = END
            self.limit = self.spent

    def lose(self, ordinal: int | None) -> bool:
        """The worker is gone, while asking for ``ordinal`` of this file or not at all. True: the file is condemned."""
        self.worker = None
        self.limit = self.spent
        self.need = 0
        self.wanted = False
        if ordinal is not None:
            self.deaths[ordinal] = self.deaths.get(ordinal, 0) + 1
        # Before a sample that was deadly once is asked for again, all before it must have arrived.
        self.stops = {y for y in self.deaths if y > self.committed}
        return ordinal is not None and self.deaths[ordinal] >= DEATHS

    def starve(self, ordinal: int | None) -> bool:
        """As :meth:`lose`, of a worker that had too much memory. Which sample it was asking for is chance: a file is
        condemned when nothing new comes of it, again and again."""
        self.lose(None)
        self.starved += ordinal is not None
        return self.starved >= STARVED

    def give_up(self, error: Error, *, skip: bool) -> None:
        """The file ends at what is committed: with ``error`` at that place, or (``skip``) as if it ended there."""
        self.tail = END if skip else Failure(error)
        self.early = error if skip else None
        self.worker = None
        self.limit = self.spent

    # -- what the merge asks -------------------------------------------------------------------------------------------
    def pass_holes(self, edge: int | None = None) -> Iterator[Hole]:
        """Step over the holes below ``edge`` (None: before the next sample), each when it is asked for."""
        if edge is None:
            edge = int(self.runs[0].ordinals[self.runs[0].lo]) if self.runs else NO_PAUSE
        while self.holes and self.holes[0][0] < edge:
            hole = self.holes.popleft()
            self.merged += HOLE_COST
            self.y = max(self.y, hole[0] + 1)
            yield hole

    def front(self) -> Run | Failure | Gap | None:
        """The next samples, or what comes instead; None: not known yet."""
        if self.runs:
            return self.runs[0].look()
        return self.tail

    def meet_end(self) -> bool:
        """The merge looks at the end: whether it meets it now, and in order, not before a sample that is asked for."""
        asked = None if self.recall is None else self.recall.ordinals
        if self.met or (asked is not None and len(asked) and self.committed <= int(asked[-1])):
            return False
        self.met = True
        return True

    def take(self, count: int) -> int:
        """The merge took ``count`` samples of the first run; the ordinal of the last one."""
        run = self.runs[0]
        end = run.lo + count
        self.merged += run.nbytes(count) + SAMPLE_COST * count
        run.lo = end
        last = int(run.ordinals[end - 1])
        self.y = max(self.y, last + 1)
        if run.lo == run.hi:
            self.runs.popleft()
            if self.ends:
                self.ends.popleft()
        return last

    def stand(self) -> SavedLane:
        """Where the merge stands, and the checksum at the end of what it is taking from."""
        check, crcs = self.ends[0] if self.ends else (self.committed, self.crcs)
        if self.cached or not crcs:
            check, crcs = 0, []
        return SavedLane(self.file, self.y, check, crcs)
