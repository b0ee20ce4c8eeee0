"""Define what all streams of batches have in common: passes as iterators, their loops, and who may be inside a call.

A :class:`pydp2.client.client.Client` gets its batches from a service, a
:class:`pydp2.streams.derived_stream.DerivedStream` makes its own of the batches of other streams.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from typing import Any, NoReturn, Self

from pydp2.client.describe import Fact, stream_html, stream_text
from pydp2.client.pass_iterator import Pass
from pydp2.client.progress import (
    DeliveryMark,
    LoopHandle,
    LoopState,
    PassOrigin,
    Progress,
    position_after,
    position_at,
)
from pydp2.client.received import Conversion
from pydp2.client.session import CLOSE_SECONDS, ClientGuard
from pydp2.data.columns.batch import Batch
from pydp2.data.columns.unbatch import unbatch
from pydp2.data.schema.input_types import Slots
from pydp2.errors import ClientUseError, OptionError, OptionTypeError, StateMismatch
from pydp2.order.stream_state import PASS_LIMIT


class Stream(ABC):
    """Batches in passes. Iterating gives one pass; leaving a loop and iterating again gives the next one."""

    batch_size: int
    _session: ClientGuard
    _end: weakref.finalize[..., Any]
    """Last step of this stream: ``close`` or the garbage collector takes it."""
    _stream_identity: dict[str, Any]
    _dynamic = False
    """True if its batches go to the trainer that asks first."""
    owner: object = None
    """Object that is kept as long as this stream lives."""

    @property
    def samples(self) -> int:
        """Number of samples delivered so far, over all passes."""
        return self._session.progress.samples

    @property
    def names(self) -> tuple[str, ...] | None:
        """Names of the slots, or None if they have none."""
        return self.slots.names

    @property
    @abstractmethod
    def slots(self) -> Slots:
        """Types and names of the slots."""

    @property
    def _converted_slots(self) -> Slots:
        """Slots as adapters of frameworks convert them that widen indices: arrays of indices are index slots here."""
        return self.slots

    def state_dict(self, *, after: Batch | None = None) -> dict[str, Any]:
        """Return where this trainer stands, as plain JSON-able data: put it into the checkpoint, beside the model.

        Inside the body of a loop it counts the batch in hand as delivered: what follows a restore is the next one. The
        state is made in this process, so the call works without the service too. That of a stream which is made of
        others holds the state of each. See docs/order.md, "State", and docs/mixing.md.

        Args:
            after: a batch of the present pass; the state is the one that this method returned when the batch had just
                been delivered, however many others were taken since. Use it if another thread prefetches batches.

        Raises:
            StateMismatch: in the middle of a pass with ``order="relaxed"``, here or in a source, which has no state
                there.
            ClientUseError: ``after`` is no batch of this stream, or of a pass before.
        """
        now = self._session.progress
        return self._state_at(now.position if after is None else position_after(after, now))

    def _state_at(self, position: Any) -> dict[str, Any]:
        """Return the state at ``position``. Raises StateMismatch if the stream has none there."""
        if position.batch and self._is_relaxed:
            raise StateMismatch('order="relaxed" has no state in the middle of a pass; take it between passes')
        return self._state_of(position)

    def _state_after(self, mark: DeliveryMark) -> dict[str, Any]:
        """Return the state behind the batch that has ``mark``, for a loader that has let the batch go."""
        return self._state_at(position_at(mark, self._session.progress))

    def load_state_dict(self, state: Any, *, allow: Collection[str] = ()) -> None:
        """Go to where ``state`` was taken: the next iteration continues there, on any number of workers.

        The same batches follow as would have followed then, bit by bit. A pass under way is left.

        Args:
            state: what :meth:`state_dict` returned, here or in another process, on this or another service.
            allow: differences to accept, ``"provider_source"`` or ``"args"``, for changed code that yields the same.

        Raises:
            StateMismatch: the state belongs to another list, seed, option, provider, source or release; the text says
                what differs. Nothing has changed then.
            OptionError, OptionTypeError: ``allow`` names what may not differ.
            ClientUseError: another thread is inside this stream, or it is closed.
        """
        self._session.guarded(self._load, state, allow)

    def _load(self, state: Any, allow: Collection[str]) -> tuple[None, Progress]:
        return None, self._moved_to(self._position_of(state, allow), after_pass=False)

    def set_epoch(self, epoch: int) -> None:
        """Have the next iteration be pass ``epoch``, as ``set_epoch`` of torch's ``DistributedSampler`` does.

        If that pass comes anyway, a loaded state keeps its position inside it, and where the pass before was left or
        failed, :meth:`state_dict` returns its beginning. Otherwise, or if ``Rewound`` told a client to go there, the
        pass begins with its first batch, in its own order. All ranks of a job call this with the same number, each
        between two loops; the service waits until all have ended the pass before. See docs/resume.md.

        Args:
            epoch: a pass, counted from 0.

        Raises:
            OptionError, OptionTypeError: ``epoch`` is no number of a pass, or what begins that pass is not known: with
                ``stopping_strategy="all_exhausted"`` or ``"cycle_forever"`` of a mixture, and ``last_row="carry"`` of
                packed sequences, it follows from the passes before.
            ClientUseError: a loop is in the middle of a pass, another thread is inside this stream, or it is closed.
        """
        self._session.guarded(self._go_to_pass, _pass_number(epoch))

    def _go_to_pass(self, wanted: int) -> tuple[None, Progress]:
        now = self._session.progress
        if wanted == now.coming_pass and not self._lacks_state():
            if now.state in (LoopState.LEFT, LoopState.FAILED):  # iter() would do the same
                now = now._replace(position=now.position.next_pass(), state=LoopState.BETWEEN)
            return None, now
        if now.state is LoopState.RUNNING and not now.was_cut_off and now.loop is not None and now.loop.is_held:
            raise ClientUseError(
                f"set_epoch({wanted}) needs a client between two loops, and this one is in the middle of pass "
                f"{now.position.pass_id}; leave the loop, or close() its iterator, before"
            )
        return None, self._moved_to(self._before_pass(now.position, wanted), after_pass=True)

    def _moved_to(self, position: Any, *, after_pass: bool) -> Progress:
        """Leave the pass that is under way, and return the progress with which the next iteration begins at
        ``position``. ``after_pass``: once other ranks have ended their pass."""
        self._leave()
        moved = self._session.progress._replace(position=position, state=LoopState.BETWEEN, loop=None, origin=None)
        self._go_to(position, after_pass=after_pass)
        return moved

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of batches in a whole pass. Raises TypeError if it is not known."""

    @abstractmethod
    def __length_hint__(self) -> int:
        """Return an estimate of that number."""

    @abstractmethod
    def stats(self) -> dict[str, Any]:
        """Return statistics as plain data."""

    def close(self) -> None:
        """Leave the stream, and close those that it is made of. A service that :func:`pydp2.load` started ends with it.
        Closing twice is allowed.

        Any thread may call it. A thread that waits for a batch meanwhile gets a ClientUseError, and this call waits for
        that; if it takes longer than 5 seconds, this call raises ClientUseError too.
        """
        session = self._session
        if self._end.alive and session.in_own_process:
            session.closing = True
            self._close_sources()
            if not session.stop(CLOSE_SECONDS):
                raise ClientUseError(
                    f"another thread has been inside this client for {CLOSE_SECONDS:g} s; find out what it "
                    "does there, and close the client again"
                )
            if session.is_reentrant:
                return  # called by a signal handler in the middle of a call, which closes this when it goes on
        self._end()

    def _close_sources(self) -> None:
        """Close the streams that this one is made of."""
        return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def reader(self) -> Callable[[], Iterator[tuple[Any, ...]]]:
        """Return a reader of samples: each call of it is one pass, whose batches are taken apart again.

        A sample is the tuple of its slot values, also of a single slot; rows that only fill a batch up are left out. So
        ``batch_size`` is how many samples travel together, and decorators and :func:`pydp2.reader.batch` see single
        ones. If the caller leaves a pass, it is left at the service too. See docs/readers.md.
        """

        def read() -> Iterator[tuple[Any, ...]]:
            one = iter(self)
            try:
                for batch in one:
                    yield from unbatch(batch)
            finally:
                one.close()  # type: ignore[attr-defined]  # it is a Pass

        return read

    def __getitem__(self, number: object) -> NoReturn:
        """Raise TypeError, with the remedy: torch's DataLoader asks a dataset that it does not know for batches."""
        raise TypeError(
            f"the batches of a {type(self).__name__} have an order, and cannot be had by number ({number!r:.40}): loop "
            "over it. torch's DataLoader does not take it: use pydp2.torch.loader(…) in place of the DataLoader, or "
            "DataLoader(pydp2.torch.dataset(…), batch_size=None)"
        )

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        """Raise TypeError: numpy would read a whole pass otherwise."""
        raise TypeError(f"a {type(self).__name__} gives batches of arrays, and is none: loop over it")

    def __iter__(self) -> Iterator[Batch]:
        return self._session.guarded(self._open)

    def _open(self) -> tuple[Pass, Progress]:
        """Return the iterator of the pass that :class:`LoopState` tells, and the progress with it."""
        session = self._session
        now = session.progress
        if now.state is LoopState.RUNNING and now.was_cut_off:
            session.progress = now._replace(state=LoopState.ENTERED)
        elif now.state is LoopState.RUNNING and now.loop is not None and now.loop.is_held:
            if self._has_next(now.loop):
                raise ClientUseError(
                    "this client is in the middle of a pass: a second iteration would mix two; leave the first loop, "
                    "or close() its iterator, before the next pass begins"
                )
            now.loop.is_over = True
        now = session.progress
        if now.state is not LoopState.ENTERED:
            begins = now.state is LoopState.BETWEEN
            session.is_damaged = True  # until the pass is asked for
            position = now.position if begins else now.position.next_pass()
            session.progress = now = now._replace(
                position=position, state=LoopState.ENTERED, loop=None, origin=PassOrigin(position.batch)
            )
        if session.is_damaged:
            self._begin()
            now = session.progress
        self._convert_beside_steps(None)  # as the loop before may have asked for
        loop = LoopHandle()
        one = Pass(self, now.position.pass_id, loop)
        loop.iterator = weakref.ref(one)
        return one, now._replace(state=LoopState.RUNNING, loop=loop, calls=0)

    def _deliver(self, loop: LoopHandle, _: None) -> Batch:
        """Return the next batch, for next()."""
        if not loop.is_over and (batch := self._session.guarded(self._next, loop)) is not None:
            return batch
        loop.is_over = True
        raise StopIteration

    def __repr__(self) -> str:
        return stream_text(type(self).__name__, self._facts(), self._session)

    def _repr_html_(self) -> str:
        return stream_html(type(self).__name__, self._facts(), self.slots, self._session)

    # -- what each kind of stream does in its own way ------------------------------------------------------------------
    @abstractmethod
    def _facts(self) -> list[Fact]:
        """Return what is shown of it beside position and slots."""

    @property
    @abstractmethod
    def _rank(self) -> tuple[int, int]:
        """Rank of this trainer in its job, and the number of ranks."""

    @abstractmethod
    def _begin(self) -> None:
        """Ask for the pass from the position on; nothing is damaged then."""

    @abstractmethod
    def _next(self, loop: LoopHandle) -> tuple[Batch | None, Progress]:
        """Return the next batch, None at the end of the pass, and the progress with it."""

    def _convert_beside_steps(self, conversion: Conversion | None) -> None:
        """Have batches of the present pass converted while a step of the trainer runs, where this stream can. None:
        they are not to be, any more."""
        return

    @abstractmethod
    def _has_next(self, loop: LoopHandle) -> bool:
        """Return True if there is another batch of the pass; if not, end the pass."""

    @abstractmethod
    def _leave(self, *, unused: bool = False) -> None:
        """Leave the pass, if one is under way. ``unused``: the batch in hand is not used."""

    @abstractmethod
    def _state_of(self, position: Any, *, rows_behind: bool = False) -> dict[str, Any]:
        """Return ``position`` as a state. ``rows_behind``: the trainer has had some rows of the batches behind it."""

    @abstractmethod
    def _position_of(self, state: Any, allow: Collection[str]) -> Any:
        """Return the position of a state. Raises StateMismatch."""

    def _before_pass(self, position: Any, pass_id: int) -> Any:
        """Return the position before pass ``pass_id``, as known at ``position``. Raises OptionError if it is not."""
        return position.before_pass(pass_id)

    def _lacks_state(self) -> bool:
        """Return True if other ranks went to a place, and this one was told to go there, too."""
        return False

    @abstractmethod
    def _go_to(self, position: Any, *, after_pass: bool) -> None:
        """Have the next pass begin at ``position``, once other ranks have ended their pass if ``after_pass``."""

    @property
    def _is_relaxed(self) -> bool:
        """True if there is no state in the middle of a pass, because of ``order="relaxed"``."""
        return bool(self._stream_identity.get("order") == "relaxed")

    @abstractmethod
    def _rows_of_pass(self) -> int:
        """Return the number of rows of this trainer in a whole pass, padding left out. Raises TypeError if it is not
        known."""


def _pass_number(value: Any) -> int:
    """Return ``value`` as the number of a pass. Raises OptionError, or OptionTypeError for what is no integer."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise OptionTypeError(f"a pass has a number from 0 on, got {value!r:.80} ({type(value).__name__})")
    number = int(value.__index__())
    if not 0 <= number < PASS_LIMIT:
        raise OptionError(f"a pass has a number from 0 to {PASS_LIMIT - 1}, got {number}")
    return number
