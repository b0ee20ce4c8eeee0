"""Read the rows of a stream one after the other, for a stream that is made of them.

Theory of operation
-------------------
A place consists of the position before the batch in hand, and the number of its rows that were taken. A state needs
nothing else.

A derived stream makes a batch of rows from several cursors, and an exception may come anywhere while it does. Its own
position is one value, stored at the end (:mod:`pydp2.client.run_protocol`); its cursors are then anywhere behind that
position, and have to go back. They must do so without a request to their streams: ranks of a job cannot go back one by
one, and a source with ``order="relaxed"`` has no state to go back to. So the cursor keeps the batches that it has
fetched in a :class:`History`, until a batch was made of them (:meth:`History.commit`), and :meth:`Cursor.rewind_to`
returns them again.

A fetched batch must enter the history in one step, because an exception between fetching and storing would lose it: one
call of C code takes a batch from the iterator and puts it into a list. The number of batches that were returned is
stored with the list, in one value. Only the end of a pass takes two steps; the stream itself then says that it has
ended.

A history is invalid once something else has moved the stream, for example a loaded state (:meth:`History.invalidate`).
The cursor then goes to a place with a state of its stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, repeat
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pydp2.client.pass_iterator import Pass
from pydp2.client.progress import LoopState
from pydp2.client.stream import Stream
from pydp2.data.columns.batch import Batch, Origin
from pydp2.data.columns.columns import Columns
from pydp2.errors import StateMismatch

Origins = npt.NDArray[np.int64]
"""Origins of rows, ``(3, rows)``: entry, sample and source of each, as in :class:`pydp2.data.columns.batch.Origin`."""


def origins_of(batch: Batch, rows: slice = slice(None)) -> Origins | None:
    """Return the origins of ``rows`` of ``batch``; None if it has none."""
    found = batch._decoded_origin()
    if found is None:
        return None
    source = np.zeros(len(found), np.int64) if found.source is None else found.source
    return np.stack([found.entry[rows], found.sample[rows], source[rows]])


def join_origins(parts: Sequence[Origins | None]) -> Origins | None:
    """Return the origins of all parts, one after the other; None if a part has none."""
    found = [part for part in parts if part is not None]
    return np.concatenate(found, axis=1) if found and len(found) == len(parts) else None


def origin_of_rows(origins: Origins | None, rows: Any = slice(None)) -> Origin | None:
    """Return the origins at the index ``rows`` as those of a batch; None if there are none."""
    return None if origins is None else Origin(*np.ascontiguousarray(origins[:, rows]))


class Place(NamedTuple):
    """Place in a stream: ``offset`` rows behind ``position``."""

    position: Any
    offset: int = 0

    @property
    def is_start(self) -> bool:
        """True if no row of the pass was taken."""
        return not self.position.batch and not self.offset


class History:
    """Batches of ``stream`` since the last commit, and the iterator from which the next ones come.

    ``position_before``, ``position_after``: positions of the stream before and behind the batch that was returned last.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._passes: list[Pass] = []  # the pass under way, or none
        # Pairs of a batch (None: the end of a pass) and the position before it, and how many of them were returned.
        self._entries: tuple[list[tuple[Any, Batch | None]], int] = [], 0
        self._is_valid = True
        self.position_before: Any
        self.position_after: Any
        self.position_before = self.position_after = stream._session.progress.position

    @property
    def has_more(self) -> bool:
        """True if :meth:`next_batch` may return another batch, or find the end of a pass."""
        entries, given = self._entries
        return given < len(entries) or self.is_open

    @property
    def is_open(self) -> bool:
        """True if the iterator of the pass may return more batches."""
        ended = self._stream._session.progress.state is LoopState.BETWEEN
        return bool(self._passes) and not self._passes[0].over and not ended

    def next_batch(self) -> Batch | None:
        """Return the next batch, None at the end of the pass and if no pass is under way."""
        entries, given = self._entries
        if given == len(entries):
            if not self._passes:
                return None
            entries.extend(zip(repeat(self.position_after), islice(self._passes[0], 1)))
            if given == len(entries):
                entries.append((self.position_after, None))
        self._entries = entries, given + 1
        self.position_before, self.position_after = self._position(given), self._position(given + 1)
        batch = entries[given][1]
        if batch is None and given + 1 == len(entries) and not self.is_open:
            self._passes = []
        return batch

    def commit(self) -> None:
        """Forget all batches but the one that was returned last: no rewind goes back further than that."""
        entries, given = self._entries
        self._entries = entries[given - 1 :] if given else entries, min(given, 1)

    def invalidate(self) -> None:
        """Make :meth:`rewind_to` return False until :meth:`restart`."""
        self._is_valid = False

    def restart(self, position: Any) -> None:
        """Begin a new history at ``position``, the present position of the stream."""
        self.commit()
        self.position_after = position
        self._is_valid = True

    def rewind_to(self, position: Any, *, may_begin: bool, opens: bool) -> bool:
        """Go back to ``position``, so that the batches behind it are returned again. Return False if it is not in the
        history, or something else has moved the stream. ``may_begin``: ``position`` may be the start of a pass that has
        not begun; ``opens``: begin that pass."""
        if not self._is_valid or not self._is_whole():
            return False
        entries, _ = self._entries
        known = [self._position(number).index for number in range(len(entries) + 1)]
        if position.index in known:
            given = known.index(position.index)
            self._entries, self.position_after = (entries, given), self._position(given)
        elif opens and may_begin:
            self.close()  # the position may be in the next pass
            given = 0
        else:
            return False
        if given == len(self._entries[0]) and opens and not self.is_open:
            self.open()
            return bool(self.position_after.index == position.index)
        return True

    def open(self) -> None:
        """Begin the pass of the stream's position."""
        passes: list[Any] = []
        self._passes = passes
        passes.extend(map(iter, (self._stream,)))  # one call of C code, for the same reason
        self.position_after = self._stream._session.progress.position

    def close(self) -> None:
        """Leave the pass, if one is under way, and forget its batches."""
        self._entries = [], 0
        passes, self._passes = self._passes, []
        for iterator in passes:
            iterator.close()

    def _is_whole(self) -> bool:
        """Return True if the position of the stream is the one behind the last batch of the history."""
        entries, _ = self._entries
        if not entries or entries[-1][1] is None:
            return True
        now, after = self._stream._session.progress, self._position(len(entries))
        if self._passes and now.state is LoopState.BETWEEN and now.position.index == (after.pass_id + 1, 0):
            entries.append((after, None))  # the end was found, and an exception came before it was stored
            return True
        return self.is_open and now.position.index == after.index

    def _position(self, number: int) -> Any:
        """Return the position before entry ``number``, which may be the next one that is fetched."""
        entries, _ = self._entries
        if number < len(entries):
            return entries[number][0]
        batch = entries[-1][1] if entries else None
        return self._stream._session.progress.position if batch is None else batch._resume[1]


class Cursor:
    """Cursor over the rows of ``stream``, pass by pass, without padding rows."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.history = History(stream)
        self.batch: Batch | None = None
        """Batch in hand."""
        self.jumps = False
        """True if :meth:`go_to` waits, as ``set_epoch`` does, until all ranks have ended their pass; False if it makes
        the other ranks leave their pass, as a loaded state does."""
        self._rows = Columns.empty(stream.slots)
        self._offset = 0

    @property
    def place(self) -> Place:
        """Place of the next row."""
        history = self.history
        return Place(history.position_before, self._offset) if self.rows_left else Place(history.position_after)

    @property
    def rows_left(self) -> int:
        """Number of rows of the batch in hand that are left."""
        return len(self._rows) - self._offset

    def origins(self, count: int) -> Origins | None:
        """Return the origins of the next ``count`` rows of the batch in hand, without taking them; None if the stream
        gives none."""
        return None if self.batch is None else origins_of(self.batch, slice(self._offset, self._offset + count))

    def rest(self) -> Columns:
        """Return the rows of the batch in hand that are left, without taking them."""
        return self._rows.slice(self._offset, len(self._rows))

    def take(self, count: int) -> Columns:
        """Take and return the next ``count`` rows of the batch in hand, which must have as many."""
        taken = self._rows.slice(self._offset, self._offset + count)
        self._offset += count
        return taken

    def take_with_origins(self, count: int) -> tuple[Columns, Origins | None]:
        """Take the next ``count`` rows of the batch in hand, as :meth:`take` does; return their origins, too."""
        origins = self.origins(count)
        return self.take(count), origins

    def fetch(self) -> bool:
        """Fetch the next batch, once no row is left. Return False if the pass has ended."""
        batch = self.history.next_batch()
        self._drop()
        if batch is None:
            return False
        self.batch = batch
        self._rows = batch._columns.slice(0, len(batch) - batch.padding)
        return True

    def rewind_to(self, place: Place, *, opens: bool = True) -> bool:
        """Go back to ``place`` in the history. Return False if the history does not have it. ``opens``: begin the pass
        of the place."""
        self._drop()
        if not self.history.rewind_to(place.position, may_begin=place.is_start, opens=opens):
            return False
        if place.offset:
            self.fetch()
            self._offset = place.offset
        return True

    def leave(self) -> None:
        """Leave the pass, if one is under way."""
        self._drop()
        self.history.close()

    def begin(self, position: Any) -> None:
        """Begin the pass that starts at ``position``. Do nothing if it has begun and no batch was taken."""
        history = self.history
        if self.batch is None and history.position_after.index == position.index:
            if history.has_more:
                return
        else:
            self.leave()
        self._open()
        if history.position_after.index != position.index:
            self.go_to(Place(position))

    def go_to(self, place: Place, *, start: Any = None, opens: bool = True) -> None:
        """Go to ``place``. ``start``: an earlier position, if the stream must go there first, and read on to the place.

        ``opens``: begin the pass, even if no batch is between ``start`` and ``place``. Raises StateMismatch if the
        stream has no such place.
        """
        history = self.history
        history.invalidate()
        self.leave()
        first = place.position if start is None else start
        self.stream.load_state_dict(self.stream._state_of(first))
        if self.jumps and not first.batch:
            self.stream._go_to(first, after_pass=True)
        self.jumps = False
        if not opens and first.index == place.position.index:
            history.restart(first)
            return
        self._open()
        while history.position_after.index < place.position.index:
            if not self.fetch():
                self._open()
        if place.offset and not (self.fetch() and place.offset <= len(self._rows)):
            raise StateMismatch(
                f"the state is {place.offset} rows into a batch of pass {place.position.pass_id}, and that batch has "
                f"{len(self._rows)}: the data have changed, or the state is damaged"
            )
        self._offset = place.offset
        history.restart(history.position_after)

    def _open(self) -> None:
        self._drop()
        self.history.open()

    def _drop(self) -> None:
        """Drop the batch in hand."""
        self.batch, self._rows, self._offset = None, Columns.empty(self.stream.slots), 0
