"""Read the rows of a stream one after the other, for a stream that is made of them.

A place is the position before the batch in hand, and how many of its rows were taken: all that a state needs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from pydp2.client.pass_iterator import Pass
from pydp2.client.stream import Stream
from pydp2.columns.batch import Batch
from pydp2.columns.columns import Columns
from pydp2.errors import StateMismatch


class Place(NamedTuple):
    """Place in a stream: ``offset`` rows behind ``position``."""

    position: Any
    offset: int = 0

    @property
    def is_start(self) -> bool:
        """True if nothing of the pass was taken."""
        return not self.position.batch and not self.offset

    def to_state(self, identity: dict[str, Any]) -> dict[str, Any]:
        """Return the place as plain data."""
        return {"state": self.position.to_state(identity), "offset": self.offset}


class Cursor:
    """Rows of ``stream``, pass by pass. Rows that only fill a batch up are left out."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.batch: Batch | None = None
        """Batch in hand."""
        self.jumps = False
        """True if :meth:`go_to` goes to the beginning of a pass once all ranks have ended theirs, as ``set_epoch``
        does; a loaded state takes the other ranks out of it."""
        self._pass: Pass | None = None
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
        batch = None if self._pass is None else next(self._pass, None)
        self._drop()
        if batch is None:
            self._pass = None
            self._behind = self.stream._session.progress.position
            return False
        self._before, self._behind = self._behind, batch._resume[1]
        self.batch = batch
        self._rows = batch._columns.slice(0, len(batch) - batch.padding)
        return True

    def leave(self) -> None:
        """Leave the pass, if one is under way."""
        self._drop()
        one, self._pass = self._pass, None
        if one is not None:
            one.close()

    def begin(self, position: Any) -> None:
        """Begin the pass at whose start ``position`` is. Nothing happens if it has begun and no batch was taken."""
        if self._pass is not None and self.batch is None and _index(self._behind) == _index(position):
            return
        self.leave()
        self._open()
        if _index(self._behind) != _index(position):
            self.go_to(Place(position))

    def go_to(self, place: Place, *, start: Any = None, opens: bool = True) -> None:
        """Go to ``place``, by way of ``start``: a position before it, if the stream should be asked for that one.

        ``opens``: take up its pass, also if no batch is between the two. Raises StateMismatch if the stream has no such
        place.
        """
        self.leave()
        first = place.position if start is None else start
        self.stream.load_state_dict(first.to_state(self.stream._stream_identity))
        if self.jumps and not first.batch:
            self.stream._jump(first)
        self.jumps = False
        if not opens and _index(first) == _index(place.position):
            self._behind = first
            return
        self._open()
        while _index(self._behind) < _index(place.position):
            if not self.fetch():
                self._open()
        if place.offset and not (self.fetch() and place.offset <= len(self._rows)):
            raise StateMismatch(
                f"the state is {place.offset} rows into a batch of pass {place.position.pass_id}, and that batch has "
                f"{len(self._rows)}: the data have changed, or the state is damaged"
            )
        self._offset = place.offset

    def _open(self) -> None:
        self._drop()
        one = iter(self.stream)
        assert isinstance(one, Pass)
        self._pass = one
        self._behind = self.stream._session.progress.position

    def _drop(self) -> None:
        """Drop the batch in hand."""
        self.batch, self._rows, self._offset = None, Columns.empty(self.stream.slots), 0


def _index(position: Any) -> tuple[int, int]:
    return position.pass_id, position.batch
