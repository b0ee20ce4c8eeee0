"""Define the base class of all streams of batches: passes as iterators, loops over them, and one call at a time.

A :class:`pydp2.client.client.Client` gets its batches from a service.
"""

from __future__ import annotations

import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing
from typing import Any, NoReturn, Self

from pydp2.client.describe import Fact, stream_html, stream_text
from pydp2.client.pass_iterator import Pass
from pydp2.client.progress import (
    DeliveryMark,
    LoopHandle,
    LoopState,
    PassStart,
    Progress,
    position_after,
    position_at,
)
from pydp2.client.received import Conversion
from pydp2.client.session import CLOSE_SECONDS, ClientGuard
from pydp2.client.step_metrics import StepMetrics
from pydp2.data.columns.batch import Batch, StringArray
from pydp2.data.columns.unbatch import unbatch
from pydp2.data.schema.input_types import Slots
from pydp2.errors import ClientUseError, OptionError, OptionTypeError, StateMismatch
from pydp2.order.stream_state import PASS_LIMIT

_MAX_SKIPPED = 4096  # batches: their numbers fit into a message


class Stream(ABC):
    """Batches in passes. Iterating gives one pass; leaving a loop and iterating again gives the next one."""

    batch_size: int
    _session: ClientGuard
    _steps: StepMetrics
    _end: weakref.finalize[..., Any]
    """Finalizer of this stream, called by ``close`` or by the garbage collector."""
    _stream_identity: dict[str, Any]
    _dynamic = False
    """True if batches go to whichever trainer asks first (``share="dynamic"``)."""
    owner: object = None
    """Object that must live as long as this stream, such as its service."""

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
    @abstractmethod
    def files(self) -> StringArray | tuple[StringArray, ...]:
        """Entries of the file list, or with several sources those of each source."""

    @property
    @abstractmethod
    def _converted_slots(self) -> Slots:
        """Slots for framework adapters that widen indices: dense arrays that hold indices are index slots here."""

    def state_dict(self, *, after: Batch | None = None) -> dict[str, Any]:
        """Return the position of this trainer as plain JSON-able data: put it into the checkpoint, beside the model.

        Inside the body of a loop, the batch in hand counts as delivered: after a restore, the next one follows. The
        state is made in this process, so the call works without the service too. See docs/order.md, "State".

        Args:
            after: a batch of the present pass. The state is then the one behind this batch, however many others were
                taken since. Use it if another thread prefetches batches.

        Raises:
            StateMismatch: a stream with ``order="relaxed"`` is in the middle of a pass, where it has no state.
            ClientUseError: ``after`` is not a batch of this stream, or it is of an earlier pass.
        """
        now = self._session.progress
        return self._state_at(now.position if after is None else position_after(after, now))

    def _state_at(self, position: Any) -> dict[str, Any]:
        """Return the state at ``position``. Raises StateMismatch if the stream has none there."""
        if position.batch and self._is_relaxed:
            raise StateMismatch('order="relaxed" has no state in the middle of a pass; take it between passes')
        return self._state_of(position)

    def _state_after(self, mark: DeliveryMark) -> dict[str, Any]:
        """Return the state behind the batch that has ``mark``, for a loader that no longer has the batch."""
        return self._state_at(position_at(mark, self._session.progress))

    def load_state_dict(self, state: Any, *, allow: Collection[str] = (), skip: Iterable[int] = ()) -> None:
        """Go to the position of ``state``: the next iteration continues there, on any number of workers.

        The same batches follow as would have followed when it was taken, bit by bit. A pass under way is left.

        Args:
            state: a state that :meth:`state_dict` returned, in this or another process, on this or another service.
            allow: differences to accept: ``"provider_source"`` or ``"args"``, for changed code that yields the same
                samples; ``"block_list"``, for a state from between two passes.
            skip: numbers of batches (``batch.index``) of the pass of the state that are passed over, such as
                ``range(1230, 1240)``. All other batches stay as they are, and the states that follow contain the
                numbers. The batches that other ranks get in the same step are passed over too, so all ranks load the
                same state with the same ``skip``. See docs/debugging.md.

        Raises:
            StateMismatch: the state belongs to another list, seed, option, provider, source or release; the text says
                what differs. Nothing has changed then.
            OptionError, OptionTypeError: ``allow`` has a wrong name; ``skip`` has a number of a batch before the state.
            ClientUseError: another thread is inside this stream, or it is closed.
        """
        self._session.guarded(self._load, state, allow, skip)

    def _load(self, state: Any, allow: Collection[str], skip: Iterable[int]) -> tuple[None, Progress]:
        position = self._position_of(state, allow)
        if numbers := _batch_numbers(skip):
            position = self._without(position, numbers)
        return None, self._moved_to(position, after_pass=False)

    def set_epoch(self, epoch: int) -> None:
        """Make ``epoch`` the pass of the next iteration, as ``set_epoch`` of torch's ``DistributedSampler`` does.

        If that pass would come next anyway, a loaded state keeps its position inside it. If the pass before it was left
        or failed, :meth:`state_dict` then returns the beginning of pass ``epoch``. If another pass would come next, or
        if ``Rewound`` told the client to go to this one, pass ``epoch`` begins with its first batch, in its own order.
        All ranks of a job call this with the same number, each between two loops; the service waits until all have
        ended the pass before. See docs/resume.md.

        Args:
            epoch: a pass, counted from 0.

        Raises:
            OptionError, OptionTypeError: ``epoch`` is not the number of a pass.
            ClientUseError: a loop is in the middle of a pass, another thread is inside this stream, or it is closed.
        """
        self._session.guarded(self._go_to_pass, _pass_number(epoch))

    def _go_to_pass(self, wanted: int) -> tuple[None, Progress]:
        now = self._session.progress
        if wanted == now.coming_pass and not self._lacks_state():
            if now.state in (LoopState.LEFT, LoopState.FAILED):  # as iter() would do
                now = now._replace(position=now.position.next_pass(), state=LoopState.BETWEEN)
            return None, now
        if now.state is LoopState.RUNNING and not now.is_in_call and now.loop is not None and now.loop.is_held:
            raise ClientUseError(
                f"set_epoch({wanted}) needs a client between two loops, and this one is in the middle of pass "
                f"{now.position.pass_id}; leave the loop, or close() its iterator, before"
            )
        return None, self._moved_to(now.position.before_pass(wanted), after_pass=True)

    def _moved_to(self, position: Any, *, after_pass: bool) -> Progress:
        """Leave the pass that is under way, and return the progress with which the next iteration begins at
        ``position``. ``after_pass``: it begins once other ranks have ended their pass."""
        self._leave()
        moved = self._session.progress._replace(position=position, state=LoopState.BETWEEN, loop=None, start=None)
        self._go_to(position, after_pass=after_pass)
        return moved

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of batches in a whole pass. Raises TypeError if it is not known."""

    @abstractmethod
    def __length_hint__(self) -> int:
        """Return an estimate of the number of batches in a whole pass."""

    def metrics(self) -> dict[str, float]:
        """Return scalars about the steps since the last call, for TensorBoard, W&B or MLflow; see docs/watching.md.

        ``data/exposed`` is the share of their time in which the trainer waited for batches, ``data/exposed_p50`` and
        ``data/exposed_p99`` are quantiles of that share over the steps; ``data/step_ms`` and ``data/wait_ms`` are
        means; ``data/samples_per_second``, ``data/steps``. All are 0 before the first step.
        """
        return self._steps.take(time.perf_counter())

    @abstractmethod
    def stats(self) -> dict[str, Any]:
        """Return statistics as plain data."""

    def close(self) -> None:
        """Close this stream. If :func:`pydp2.load` started the service, the service ends too. Closing
        twice is allowed.

        Any thread may call it. If another thread is waiting for a batch, it gets a ClientUseError, and this call waits
        until it has come out; after 5 seconds, this call raises ClientUseError too.
        """
        session = self._session
        if self._end.alive and session.in_own_process:
            session.closing = True
            if not session.stop(CLOSE_SECONDS):
                raise ClientUseError(
                    f"another thread has been inside this client for {CLOSE_SECONDS:g} s; find out what it "
                    "does there, and close the client again"
                )
            if session.is_reentrant:
                return  # a signal handler called this during another call, which closes the stream when it continues
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def reader(self) -> Callable[[], Iterator[tuple[Any, ...]]]:
        """Return a reader of samples. Each call of it is one pass, whose batches are split into samples again.

        A sample is a tuple of slot values, also if there is only one slot; padding rows are left out. So ``batch_size``
        only says how many samples travel together, and decorators and :func:`pydp2.reader.batch` see single samples. If
        the caller leaves a pass, it is left at the service too. See docs/readers.md.
        """

        def read() -> Iterator[tuple[Any, ...]]:
            with closing(iter(self)) as batches:  # type: ignore[type-var]  # it is a Pass
                for batch in batches:
                    yield from unbatch(batch)

        return read

    def __getitem__(self, number: object) -> NoReturn:
        """Raise TypeError with a remedy: torch's DataLoader indexes a dataset that is no IterableDataset."""
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
        """Return the iterator of the pass that follows from :class:`LoopState`, and the progress with it."""
        session = self._session
        now = session.progress
        if now.is_in_call:
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
            session.is_damaged = True  # until the pass is requested
            position = now.position if begins else now.position.next_pass()
            session.progress = now = now._replace(
                position=position, state=LoopState.ENTERED, loop=None, start=PassStart(position.batch)
            )
        if session.is_damaged:
            self._begin()
            now = session.progress
        self._convert_beside_steps(None)  # the loop before may have set a conversion
        loop = LoopHandle()
        iterator = Pass(self, now.position.pass_id, loop)
        loop.iterator = weakref.ref(iterator)
        return iterator, now._replace(state=LoopState.RUNNING, loop=loop, calls=0)

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

    # -- methods of the subclasses -------------------------------------------------------------------------------------
    @abstractmethod
    def _facts(self) -> list[Fact]:
        """Return the facts that are shown beside position and slots."""

    @property
    @abstractmethod
    def _rank(self) -> tuple[int, int]:
        """Rank of this trainer in its job, and the number of ranks."""

    @abstractmethod
    def _begin(self) -> None:
        """Request the pass from the position on, and reset ``is_damaged``."""

    @abstractmethod
    def _next(self, loop: LoopHandle) -> tuple[Batch | None, Progress]:
        """Return the next batch, or None at the end of the pass, and the progress behind it."""

    @abstractmethod
    def _convert_beside_steps(self, conversion: Conversion | None) -> None:
        """Convert the batches of the present pass while a step of the trainer runs. None ends this."""

    @abstractmethod
    def _has_next(self, loop: LoopHandle) -> bool:
        """Return True if there is another batch of the pass; if not, end the pass."""

    @abstractmethod
    def _leave(self, *, unused: bool = False) -> None:
        """Leave the pass, if one is under way. ``unused``: the batch in hand is not used."""

    @abstractmethod
    def _state_of(self, position: Any) -> dict[str, Any]:
        """Return ``position`` as a state."""

    @abstractmethod
    def _position_of(self, state: Any, allow: Collection[str]) -> Any:
        """Return the position of a state. Raises StateMismatch."""

    @abstractmethod
    def _without(self, position: Any, batches: Collection[int]) -> Any:
        """Return ``position`` with ``batches`` passed over. Raises OptionError if that cannot be."""

    @abstractmethod
    def _lacks_state(self) -> bool:
        """Return True if other ranks went to another state, and this one was told to go there too."""

    @abstractmethod
    def _go_to(self, position: Any, *, after_pass: bool) -> None:
        """Let the next pass begin at ``position``; with ``after_pass``, once other ranks have ended their pass."""

    @property
    def _is_relaxed(self) -> bool:
        """True if there is no state in the middle of a pass, because of ``order="relaxed"``."""
        return bool(self._stream_identity.get("order") == "relaxed")


def _batch_numbers(values: Any) -> set[int]:
    """Return ``values`` as numbers of batches. Raises OptionError for too many, or OptionTypeError for anything else
    than integers."""
    numbers = values if isinstance(values, range) else None if isinstance(values, str) else list(values)
    if numbers is not None and len(numbers) > _MAX_SKIPPED:
        raise OptionError(
            f"skip may name {_MAX_SKIPPED:,} batches at most, got {len(numbers):,}; to begin far behind a state, load "
            "a later one"
        )
    if numbers is None or any(isinstance(n, bool) or not hasattr(n, "__index__") for n in numbers):
        raise OptionTypeError(f"skip must be numbers of batches, such as range(10, 20), got {values!r:.80}")
    return {int(n.__index__()) for n in numbers}


def _pass_number(value: Any) -> int:
    """Return ``value`` as the number of a pass. Raises OptionError, or OptionTypeError if it is not an integer."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise OptionTypeError(f"a pass has a number from 0 on, got {value!r:.80} ({type(value).__name__})")
    number = int(value.__index__())
    if not 0 <= number < PASS_LIMIT:
        raise OptionError(f"a pass has a number from 0 to {PASS_LIMIT - 1}, got {number}")
    return number
