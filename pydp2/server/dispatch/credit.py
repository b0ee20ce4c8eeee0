"""Read-ahead credit in bytes: what cannot deadlock (docs/order.md, "Credit").

A budget is split into a reserve of equal shares, one for each file of the cycle, and a rest that files not yet bound
draw from. A bound file may always come to its share, so the file that the merge waits for can always be read; a file
not yet bound takes only what is left of the rest. When no file is left that is not bound, the shares take up the rest.
One sample may exceed this, alone, when the merge waits for exactly that sample.

A file that is handed out ahead takes credit before a worker begins it, because a worker that ended a file must not wait
for the next one. So it starts with little, and few files wait at a worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heappop, heappush

from pydp2.protocol.messages import Grant
from pydp2.server.actions import Action, Send
from pydp2.server.dispatch.file_state import READING
from pydp2.server.dispatch.ledger import FileLedger
from pydp2.server.dispatch.worker_load import MAX_FILES

_STEPS = 8  # a file not yet bound is granted at most twice this part of what it may come to at a time


class Credit:
    """Use of a read-ahead budget of ``budget`` bytes, by file."""

    def __init__(self, budget: int, cycle_length: int, workers: int) -> None:
        self._cycle_length, self.workers = cycle_length, max(1, workers)
        self._all_bound = False
        self.resizes = 0
        """Number of times that shares changed: what was refused before may be granted now."""
        self._use: dict[int, int] = {}
        self._bound: set[int] = set()
        self._ahead_use = 0
        self._ended_files = self._ended_cost = 0
        self.resize(budget)

    def resize(self, budget: int) -> None:
        """Set the budget to ``budget``. A file that uses more than the new share gets nothing until it uses less."""
        self.budget = budget
        self.share = max(1, budget // (self._cycle_length if self._all_bound else 2 * self._cycle_length))
        self.rest = budget - self.share * self._cycle_length
        # Several workers read ahead side by side, so no single file may take all of the rest.
        self.ahead = max(1, min(self.share, self.rest // self.workers))
        self.resizes += 1
        self._set_start()

    def share_among(self, workers: int) -> None:
        """Set the number of workers that read ahead side by side to ``workers``."""
        if workers != self.workers:
            self.workers = max(1, workers)
            self.resize(self.budget)

    @property
    def used(self) -> int:
        """Number of bytes in use by all files."""
        return sum(self._use.values())

    def set_use(self, file: int, use: int) -> None:
        """Note that ``file`` uses ``use`` bytes now: granted and unspent, in flight, or committed and not merged."""
        before = self._use.get(file, 0)
        if use:
            self._use[file] = use
        else:
            self._use.pop(file, None)
        if file not in self._bound:
            self._ahead_use += use - before

    def bind(self, file: int, *, last: bool = False) -> None:
        """Let ``file``, one of the files of the cycle now, draw on a share of its own. ``last``: no other file will
        be bound."""
        self._bound.add(file)
        self._ahead_use -= self._use.get(file, 0)
        if last:
            self._all_bound = True
            self.resize(self.budget)

    def release(self, file: int) -> None:
        """Free what ``file`` uses: the merge is done with it."""
        if file not in self._bound:
            self._ahead_use -= self._use.get(file, 0)
        self._use.pop(file, None)
        self._bound.discard(file)

    def file_ended(self, cost: int) -> None:
        """Note that a file was read to its end, and cost so many bytes of credit in all."""
        self._ended_files += 1
        self._ended_cost += cost
        self._set_start()

    @property
    def rest_left(self) -> int:
        """Number of bytes that files not yet bound may still be granted."""
        return self.rest - self._ahead_use

    def _set_start(self) -> None:
        start = self.ahead // _STEPS
        if self._ended_files:
            start = min(start, max(self.ahead // (2 * MAX_FILES), 2 * self._ended_cost // self._ended_files))
        self.start = max(1, start)
        """Credit that a file not yet bound starts with: enough for two files of the usual size, in limits."""
        self.max_waiting = min(MAX_FILES, max(2, self.ahead // 2 // self.start))
        """Number of files not yet bound that a worker may have, so that those it has not begun use little credit."""

    def room(self, file: int) -> int:
        """Return the number of bytes that ``file`` may be granted now beyond what it has."""
        use = self._use.get(file, 0)
        if file in self._bound:
            return max(0, self.share - use)
        return max(0, min(self.ahead - use, self.rest_left))

    def grant_for(self, ledger: FileLedger, *, pressing: bool) -> int:
        """Return the number of bytes that the file of ``ledger`` is granted now: what there is room for, if that is
        worth a message or the merge is waiting (``pressing``).

        A worker that waits for credit gets none drop by drop, as fast as the merge takes samples: it would send as many
        chunks, and each takes more memory than a few small samples in it.
        """
        room, step = self.room(ledger.file), self.min_grant(ledger)
        missing = ledger.need - ledger.unspent  # of the sample that it has in hand
        more = 0
        if room and (pressing or (room >= max(step, missing) and (missing > 0 or ledger.unspent < 2 * step))):
            # a file not yet bound leaves to others what it does not need soon
            more = room if ledger.bound or pressing else min(room, max(missing, 4 * step - ledger.unspent))
        if pressing and missing > more and not ledger.runs:
            more = missing  # one sample larger than the share, alone, because nothing else can go on
        return more

    def min_grant(self, ledger: FileLedger) -> int:
        """Return the smallest number of bytes that is worth a message."""
        return self.share // 4 if ledger.bound else self.ahead // (2 * _STEPS)

    def lacks_rest(self, ledger: FileLedger) -> bool:
        """Return True if the file of ``ledger``, which was granted nothing, may be granted something once others use
        less."""
        if ledger.bound:
            return False
        missing, step = ledger.need - ledger.unspent, self.min_grant(ledger)
        least = max(step, missing)
        wants = missing > 0 or ledger.unspent < 2 * step
        return wants and self.rest_left < least <= self.ahead - self._use.get(ledger.file, 0)


class Grants:
    """Grants to the files of one pass that workers read: which may be granted more, and what workers are told of it.

    ``credit``: what they are granted from; ``ledgers``: those of the pass, by file.
    """

    def __init__(self, credit: Credit, ledgers: Mapping[int, FileLedger]) -> None:
        self._credit, self._ledgers = credit, ledgers
        self._blocked: dict[int, FileLedger] = {}  # those that may be granted more now
        self._lack_rest: list[tuple[int, int, int]] = []  # heap of (position, file, attempt) of those that may be
        self._lacking: set[int] = set()  # granted more once others use less, and these attempts
        self._resizes = credit.resizes
        self.messages: dict[int, dict[int, list[int]]] = {}
        """Grants that workers are sent next, by worker and attempt."""

    def update(self, ledger: FileLedger) -> None:
        """Note what the file of ``ledger`` uses now, and that it may be granted more if a worker reads it."""
        self._credit.set_use(ledger.file, ledger.use)
        if ledger.state is READING:
            self._blocked[ledger.file] = ledger
        else:
            self._blocked.pop(ledger.file, None)

    def release(self, file: int) -> None:
        """Free what ``file`` uses: the merge is done with it."""
        self._blocked.pop(file, None)
        self._credit.release(file)

    def begin(self, ledger: FileLedger) -> None:
        """Grant the credit with which a worker begins the file of ``ledger``."""
        room = self._credit.room(ledger.file)
        ledger.limit += room if ledger.bound else min(room, self._credit.start)
        self._credit.set_use(ledger.file, ledger.use)

    def note_waiting(self, ledger: FileLedger, sample_index: int, need: int) -> None:
        """Note that the worker of ``ledger`` waits at ``sample_index``: for credit of ``need`` bytes, or (0) at a stop,
        which ends here because all before it is committed."""
        if need:
            ledger.need = need
            self.update(ledger)
        elif ledger.pause <= sample_index:  # else the stop is lifted, and the worker does not know it yet
            ledger.pauses.discard(ledger.pause)
            self.grant(ledger, tell=True)

    def grant(self, ledger: FileLedger, *, pressing: bool = False, tell: bool = False) -> None:
        """Raise the limit of ``ledger`` if there is room worth a message, or if the merge is waiting (``pressing``).
        ``tell``: its worker is told its limits in any case."""
        assert ledger.worker is not None
        more = self._credit.grant_for(ledger, pressing=pressing)
        if not more and not tell:
            if ledger.attempt not in self._lacking and self._credit.lacks_rest(ledger):
                self._lacking.add(ledger.attempt)
                heappush(self._lack_rest, (ledger.position, ledger.file, ledger.attempt))
            return
        if more:
            ledger.limit = max(ledger.limit, ledger.spent_bytes) + more
            ledger.need = 0
        self._credit.set_use(ledger.file, ledger.use)
        self._blocked.pop(ledger.file, None)
        item = [ledger.attempt, ledger.limit, ledger.pause, int(ledger.bound)]
        self.messages.setdefault(ledger.worker, {})[ledger.attempt] = item

    def grant_waiting(self) -> None:
        """Grant more to the files that can have more now, in the order in which the merge wants them."""
        if self._resizes != self._credit.resizes:
            self._resizes = self._credit.resizes
            self._blocked = {file: ledger for file, ledger in self._ledgers.items() if ledger.state is READING}
        for ledger in sorted(self._blocked.values(), key=lambda ledger: ledger.position):
            self.grant(ledger)
        self._blocked.clear()
        while self._lack_rest:
            _, file, attempt = self._lack_rest[0]
            known = self._ledgers.get(file)
            if known is not None and known.state is READING and known.attempt == attempt:
                if self._credit.lacks_rest(known):
                    break
                self.grant(known)
            heappop(self._lack_rest)
            self._lacking.discard(attempt)

    def take_messages(self) -> list[Action]:
        """Return what workers are told of their grants since the last call, in one message for each worker."""
        messages, self.messages = self.messages, {}
        return [Send(worker, Grant([*items.values()])) for worker, items in messages.items()]
