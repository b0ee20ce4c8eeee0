"""Define the base class of streams that are made of other streams, with the passes, states and loops of a client.

A subclass cuts its batches from cursors, and defines its positions (:class:`DerivedPosition`). This class keeps cursors
and position consistent: after an exception in the middle of a batch, and after a state was loaded, the cursors go back
to the position.
"""

from __future__ import annotations

import contextlib
import weakref
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydp2.client.progress import LoopHandle, LoopState, Progress
from pydp2.client.saved_state import check_seal, open_state, save
from pydp2.client.session import ClientGuard
from pydp2.client.stream import Stream
from pydp2.data.columns.batch import Batch
from pydp2.errors import BadSample, ClientUseError, Error, OptionError, StateMismatch
from pydp2.order.stream_state import StreamPosition
from pydp2.protocol.stream_identity import check_int, damaged
from pydp2.streams.cursor import Cursor, Place
from pydp2.system.single_pass import taken_over

Cut = tuple[Batch | None, Any]
"""A batch, or None at the end of the pass, and the position behind it."""


@dataclass(slots=True)
class DerivedPosition(StreamPosition):
    """Position of a stream that is made of others. ``places``: its place in each source."""

    places: tuple[Place, ...] = ()

    def next_pass(self) -> DerivedPosition:
        """Return the position before the next pass."""
        raise NotImplementedError


class DerivedStream(Stream):
    """Stream over ``sources``, which must be different streams. Raises OptionError for one with
    ``share="dynamic"``."""

    def __init__(self, sources: Sequence[Stream], position: Any, batch_size: int) -> None:
        for source in sources:
            if source._dynamic:
                raise OptionError(
                    'a source has share="dynamic", whose batches come in no fixed order, so its rows would be lost or '
                    "repeated after a restore; share it by ranks, or give each trainer a job of its own"
                )
        self._cursors = [Cursor(source) for source in sources]
        self._session = ClientGuard(Progress(position))
        self._needs_seek = False  # True if the cursors are not at the position
        self._ready: tuple[Any, Cut] | None = None  # a position, and the batch that was cut behind it
        self._last_length: int | None = None  # number of batches of the last pass
        self.batch_size = batch_size
        """Number of rows of a batch; the last one of a pass may have fewer."""
        self._end = weakref.finalize(self, self._session.release)

    # -- for subclasses ------------------------------------------------------------------------------------------------
    @abstractmethod
    def _seek(self, position: Any) -> None:
        """Move the cursors to ``position``."""

    @abstractmethod
    def _rewind_to(self, position: Any) -> bool:
        """Move the cursors back to ``position`` in their histories. Return False if that is not possible."""

    @abstractmethod
    def _cut(self, position: Any) -> Cut:
        """Return the batch behind ``position``, at which the cursors are."""

    @abstractmethod
    def _own_fields(self, position: Any) -> dict[str, Any]:
        """Return the fields of a state at ``position``, except pass, batch and the states of the sources, as plain
        data."""

    @abstractmethod
    def _from_state(self, state: Mapping[str, Any], allow: Collection[str]) -> Any:
        """Return the position of a state whose stream identity is right. Raises StateMismatch, KeyError, TypeError or
        ValueError if the state is not valid."""

    # -- states --------------------------------------------------------------------------------------------------------
    def _position_of(self, state: Any, allow: Collection[str]) -> Any:
        plain = open_state(state, self._stream_identity, allow)
        try:
            position = self._from_state(plain, allow)
        except StateMismatch:
            raise
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise damaged(
                ", ".join(name for name in state if name not in ("version", "stream_identity", "digest")), error
            ) from None
        check_seal(state)
        return position

    def _state_of(self, position: Any, *, rows_behind: bool = False) -> dict[str, Any]:
        sources = [
            {"state": cursor.stream._state_of(place.position, rows_behind=True), "offset": place.offset}
            for cursor, place in zip(self._cursors, position.places, strict=True)
        ]
        content = {**position.position, **self._own_fields(position), "sources": sources}
        return save(content, self._stream_identity)

    def _place_of(self, state: Mapping[str, Any], cursor: Cursor, allow: Collection[str]) -> Place:
        """Return the place of a source from ``state``, its part of a state of this stream."""
        return Place(cursor.stream._position_of(state["state"], allow), check_int(state["offset"]))

    def __length_hint__(self) -> int:
        """Return an estimate of the number of batches in a pass: that of the last pass."""
        return NotImplemented if self._last_length is None else self._last_length

    @property
    def _rank(self) -> tuple[int, int]:
        return self._cursors[0].stream._rank

    @property
    def _is_relaxed(self) -> bool:
        return any(cursor.stream._is_relaxed for cursor in self._cursors)

    # -- passes --------------------------------------------------------------------------------------------------------
    def _begin(self) -> None:
        position: Any = self._session.progress.position
        if self._ready is not None and self._ready[0] is position:
            position = self._ready[1][1]
        if self._needs_seek:
            if not self._rewind_to(position):
                self._check_can_seek(position)
                self._seek(position)
        elif all(place.is_start for place in position.places):
            self._needs_seek = True  # until all cursors have begun
            for cursor, place in zip(self._cursors, position.places, strict=True):
                cursor.begin(place.position)
        else:
            raise ClientUseError(
                "a source is in the middle of a pass, and nothing says which of its rows were used; load the state of "
                "this stream, or begin before the first batch of the source"
            )
        self._session.is_damaged = self._needs_seek = False

    def _check_can_seek(self, position: Any) -> None:
        """Raise StateMismatch, and abandon the pass, if a source has no state at ``position``."""
        if position.batch and self._is_relaxed:
            self._session.progress = self._session.progress._replace(state=LoopState.FAILED, loop=None)
            self._require_seek(jumps=True)
            raise StateMismatch(
                'a source has order="relaxed", and cannot go back to where the loop was interrupted, so the rest of '
                f"pass {position.pass_id} is lost; the next loop begins the pass behind it"
            )

    def _go_to(self, position: Any, *, after_pass: bool) -> None:
        self._require_seek(jumps=after_pass)

    def _require_seek(self, *, jumps: bool) -> None:
        """Note that the cursors must be moved to the position before the next batch is cut. ``jumps``: as
        :attr:`Cursor.jumps`."""
        self._needs_seek = True
        for cursor in self._cursors:
            cursor.jumps = jumps
            cursor.history.invalidate()

    def _places_before(self, position: Any, pass_id: int) -> tuple[Place, ...]:
        """Return the places of the sources before pass ``pass_id``, if each pass takes one pass of each source."""
        first = position if not position.batch else position.next_pass()
        return tuple(
            Place(cursor.stream._before_pass(place.position, place.position.pass_id + pass_id - first.pass_id))
            for cursor, place in zip(self._cursors, first.places, strict=True)
        )

    def _take(self) -> Cut:
        """Return the batch behind the position. It is the same object until the position changes."""
        position = self._session.progress.position
        if self._ready is None or self._ready[0] is not position:
            if self._session.is_damaged:
                self._begin()
            self._needs_seek = self._session.is_damaged = True  # after an exception, the cursors may be anywhere
            cut = self._cut(position)
            self._ready = position, cut
            for cursor in self._cursors:
                cursor.history.commit()
            self._session.is_damaged = self._needs_seek = False
        return self._ready[1]

    def _next(self, loop: LoopHandle) -> tuple[Batch | None, Progress]:
        session = self._session
        now = session.progress
        if now.loop is not loop:
            raise taken_over("stream")
        if now.state is LoopState.BETWEEN:
            return None, now
        session.progress = now._replace(state=LoopState.ENTERED)
        try:
            batch, position = self._take()
        except Error as error:
            self._failed(loop, error)
            raise
        if batch is None:
            return None, self._ended_at(position)
        batch._resume = (now.start, position)
        samples = now.samples + len(batch) - batch.padding
        return batch, Progress(
            position, LoopState.RUNNING, now.run, now.done + 1, samples, loop, loop.calls[0], now.start
        )

    def _has_next(self, loop: LoopHandle) -> bool:
        try:
            batch, position = self._take()
        except Error as error:
            self._failed(loop, error)
            raise
        if batch is None:
            self._session.progress = self._ended_at(position)
        return batch is not None

    def _ended_at(self, position: Any) -> Progress:
        """Return the progress behind the end of the pass, whose last position is ``position``."""
        self._last_length = self._session.progress.position.batch
        return self._session.progress._replace(position=position.next_pass(), state=LoopState.BETWEEN)

    def _failed(self, loop: LoopHandle, error: Error) -> None:
        """End an iterator after an :class:`~pydp2.Error`. Unless the data caused it, the pass continues in a new
        iterator."""
        loop.is_over = True
        if self._session.closing:
            self._end()
            return
        progresses = [self._session.progress, *(cursor.stream._session.progress for cursor in self._cursors)]
        failed = isinstance(error, BadSample) or any(progress.state is LoopState.FAILED for progress in progresses)
        self._require_seek(jumps=failed)
        self._session.progress = self._session.progress._replace(
            state=LoopState.FAILED if failed else LoopState.ENTERED, loop=None
        )

    def _leave(self, *, unused: bool = False) -> None:
        now = self._session.progress
        if now.state not in (LoopState.RUNNING, LoopState.ENTERED):
            return
        if now.loop is not None:
            now.loop.is_over = True
        self._session.progress = now._replace(state=LoopState.LEFT)
        for cursor in self._cursors:
            with contextlib.suppress(Error):  # the source was closed before
                cursor.leave()

    def _close_sources(self) -> None:
        with contextlib.ExitStack() as stack:
            for cursor in self._cursors:
                stack.callback(cursor.stream.close)
