"""Read the rows of a stream one after the other, for a stream that is made of them.

A place is the position before the batch in hand, and how many of its rows were taken: all that a state needs.

An exception may come anywhere while rows are taken. A cursor therefore keeps the batches that it has fetched until
:meth:`Cursor.mark`, and :meth:`Cursor.put_back` gives them again, without a question to the stream: ranks of a job
cannot go back one by one.
"""

from __future__ import annotations

from itertools import islice, repeat
from typing import Any, NamedTuple

from pydp2.client.pass_iterator import Pass
from pydp2.client.progress import LoopState
from pydp2.client.stream import Stream
from pydp2.data.columns.batch import Batch
from pydp2.data.columns.columns import Columns
from pydp2.errors import StateMismatch


class Place(NamedTuple):
    """Place in a stream: ``offset`` rows behind ``position``."""

    position: Any
    offset: int = 0

    @property
    def is_start(self) -> bool:
        """True if nothing of the pass was taken."""
        return not self.position.batch and not self.offset


class Cursor:
    """Rows of ``stream``, pass by pass. Rows that only fill a batch up are left out."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.batch: Batch | None = None
        """Batch in hand."""
        self.jumps = False
        """True if :meth:`go_to` goes to the beginning of a pass once all ranks have ended theirs, as ``set_epoch``
        does; a loaded state takes the other ranks out of it."""
        self._passes: list[Pass] = []  # the one that is under way
        # What was fetched since the last mark, as (position before it, batch; None at the end of a pass), and how much
        # of it was taken: one value, so that no exception comes between the two.
        self._fetched: tuple[list[tuple[Any, Batch | None]], int] = [], 0
        self._is_known = True  # that is all since the last mark
        self._rows = Columns.empty(stream.slots)
        self._offset = 0
        self._before = self._behind = stream._session.progress.position

    @property
    def place(self) -> Place:
        """Place of the next row."""
        return Place(self._before, self._offset) if self.rows_left else Place(self._behind)

    @property
    def rows_left(self) -> int:
        """Number of rows of the batch in hand that were not taken."""
        return len(self._rows) - self._offset

    def rest(self) -> Columns:
        """Return the rows of the batch in hand that were not taken. They stay there."""
        return self._rows.slice(self._offset, len(self._rows))

    def take(self, count: int) -> Columns:
        """Return the next ``count`` rows of the batch in hand, which has as many."""
        taken = self._rows.slice(self._offset, self._offset + count)
        self._offset += count
        return taken

    def fetch(self) -> bool:
        """Take the next batch in hand, when no row is left. Return False if the pass has ended."""
        entries, taken = self._fetched
        if taken == len(entries):
            if not self._passes:
                return False
            # One call of C code takes a batch and keeps it.
            entries.extend(zip(repeat(self._behind), islice(self._passes[0], 1)))
            if taken == len(entries):
                entries.append((self._behind, None))
        self._drop()
        before, batch = entries[taken]
        self._fetched = entries, taken + 1
        self._before, self._behind = before, self._behind_entry(taken)
        if batch is None:
            if taken + 1 == len(entries) and not self._is_open:
                self._passes = []
            return False
        self.batch = batch
        self._rows = batch._columns.slice(0, len(batch) - batch.padding)
        return True

    def mark(self) -> None:
        """Forget what was fetched, but for the batch in hand: nothing goes back behind here."""
        entries, taken = self._fetched
        self._fetched = entries[taken - 1 :] if taken else entries, min(taken, 1)

    def forget(self) -> None:
        """Have :meth:`put_back` return False until the stream was asked for a place."""
        self._is_known = False

    def put_back(self, place: Place, *, opens: bool = True) -> bool:
        """Go back to ``place`` by giving again what was fetched since :meth:`mark`. Return False if it is not known, or
        the stream was moved by others. ``opens``: take up the pass of the place."""
        entries, _ = self._fetched
        self._drop()
        if not self._is_known or not self._is_whole():
            return False
        for number in range(len(entries) + 1):
            before = entries[number][0] if number < len(entries) else self._behind_entry(number - 1)
            if before.index == place.position.index:
                break
        else:
            if not (opens and place.is_start):
                return False
            self.leave()
            entries, number, before = [], 0, None  # this may be the next pass
        self._fetched, self._behind = (entries, number), before
        if number == len(entries) and opens and not self._is_open:
            self._open()
            if self._behind.index != place.position.index:
                return False
        if place.offset:
            self.fetch()
            self._offset = place.offset
        return True

    def leave(self) -> None:
        """Leave the pass, if one is under way."""
        self._drop()
        self._fetched = [], 0
        passes, self._passes = self._passes, []
        for one in passes:
            one.close()

    def begin(self, position: Any) -> None:
        """Begin the pass at whose start ``position`` is. Nothing happens if it has begun and no batch was taken."""
        entries, taken = self._fetched
        if self.batch is None and self._behind.index == position.index:
            if taken < len(entries) or self._is_open:
                return
        else:
            self.leave()
        self._open()
        if self._behind.index != position.index:
            self.go_to(Place(position))

    def go_to(self, place: Place, *, start: Any = None, opens: bool = True) -> None:
        """Go to ``place``, by way of ``start``: a position before it, if the stream should be asked for that one.

        ``opens``: take up its pass, also if no batch is between the two. Raises StateMismatch if the stream has no such
        place.
        """
        self._is_known = False
        self.leave()
        first = place.position if start is None else start
        self.stream.load_state_dict(self.stream._state_of(first))
        if self.jumps and not first.batch:
            self.stream._jump(first)
        self.jumps = False
        if not opens and first.index == place.position.index:
            self._behind = first
            self._is_known = True
            return
        self._open()
        while self._behind.index < place.position.index:
            if not self.fetch():
                self._open()
        if place.offset and not (self.fetch() and place.offset <= len(self._rows)):
            raise StateMismatch(
                f"the state is {place.offset} rows into a batch of pass {place.position.pass_id}, and that batch has "
                f"{len(self._rows)}: the data have changed, or the state is damaged"
            )
        self._offset = place.offset
        self.mark()
        self._is_known = True

    @property
    def _is_open(self) -> bool:
        """True if the iterator of the pass may give more."""
        ended = self.stream._session.progress.state is LoopState.BETWEEN
        return bool(self._passes) and not self._passes[0].over and not ended

    def _is_whole(self) -> bool:
        """Return True if the stream is where the last of what was fetched has left it."""
        entries, _ = self._fetched
        if not entries or entries[-1][1] is None:
            return True
        now, behind = self.stream._session.progress, self._behind_entry(len(entries) - 1)
        if self._passes and now.state is LoopState.BETWEEN and now.position.index == (behind.pass_id + 1, 0):
            entries.append((behind, None))  # the end was found, and an exception came before it was kept
            return True
        return self._is_open and now.position.index == behind.index

    def _behind_entry(self, number: int) -> Any:
        """Return the position behind entry ``number`` of what was fetched."""
        entries, _ = self._fetched
        if number + 1 < len(entries):
            return entries[number + 1][0]
        batch = entries[number][1] if number >= 0 else None
        return self.stream._session.progress.position if batch is None else batch._resume[1]

    def _open(self) -> None:
        self._drop()
        passes: list[Any] = []
        self._passes = passes
        passes.extend(map(iter, (self.stream,)))  # here too
        self._behind = self.stream._session.progress.position

    def _drop(self) -> None:
        """Drop the batch in hand."""
        self.batch, self._rows, self._offset = None, Columns.empty(self.stream.slots), 0
