"""Iterate over a client in the values of a framework, some of them ahead, with the state of the batch in hand."""

from __future__ import annotations

import warnings
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Generic, NoReturn, Self, TypeVar, cast

from pydp2.client.length import NO_DATASET
from pydp2.client.pass_iterator import Pass
from pydp2.client.progress import LoopState
from pydp2.client.received import Conversion
from pydp2.client.stream import Stream
from pydp2.data.columns.batch import Batch
from pydp2.errors import ClientUseError, StateMismatch
from pydp2.frameworks.shared_service import SharedService, leave

T = TypeVar("T")
V = TypeVar("V")
_PLACES = 1024  # values that a framework reads ahead, at most


class FrameworkLoader(Generic[T]):
    """Loader of a framework over ``client``, or over another stream: one iteration is one pass, and gives
    ``convert(batch)`` of each batch.

    A new iteration leaves the pass of the one before. Where the state behind the last batch of a pass was loaded, the
    next pass begins: no iteration is empty.

    ``ahead``: values that are converted before they are asked for, so that a copy to a device which ``convert`` has
    begun goes on during a step. ``reads_ahead``: values that the training loop takes before it trains with them, in
    passes of unknown length. The state is that of the value in training: the one returned last, or so many before it.
    ``context``: where another thread may convert batches while a step runs, the function that returns what values
    depend on beside their batch, in the thread that calls it; None there: only the loop may convert now. It is called
    for each value, in both threads, which may convert two batches at the same time. See docs/frameworks.md.
    """

    def __init__(
        self,
        client: Stream,
        convert: Callable[[Batch], T],
        *,
        ahead: int = 0,
        reads_ahead: int = 0,
        context: Callable[[], object] | None = None,
    ) -> None:
        self.client = client
        self._convert = convert
        self._context = context
        self._conversion: Conversion | None = None  # that the client was told of for the last loop
        self._ahead = ahead
        self._reads_ahead = reads_ahead
        self._returned: deque[Batch] = deque()  # the first of them is in training
        self._taken: deque[Batch] = deque()  # from the client, and not returned
        self._values: deque[tuple[Batch, Any]] = deque()  # of the first of these
        self._places: dict[int, tuple[int, int, Any]] = {}
        """Pass, index and position of the batches, by number of values; other threads may add some meanwhile."""
        self._count = 0  # values that the last loop has returned
        self._asked = 0  # largest number of values behind which the state of this loop was asked for
        self._only_loop_knows = False  # how far the training loop is
        self._loaded: Mapping[str, Any] | None = None  # state of now, as long as no value was returned behind it
        self._resumed: Pass | None = (
            None  # the pass that the next loop goes on in: of that state, or an interrupted one
        )
        self._loop: Callable[[], _Loop[Any] | None] = lambda: None
        if isinstance(client.owner, SharedService):  # its end waits for the other ranks; at the latest when this exits
            self._end: Callable[[], object] = weakref.finalize(self, leave, client)
        else:
            self._end = client.close

    @property
    def batch_size(self) -> int:
        """Weight of a batch of this rank."""
        return self.client.batch_size

    @property
    def batch(self) -> Batch | None:
        """Batch in training, with its ``pass_id``, ``index`` and ``padding``; None between passes."""
        return self._returned[0] if self._returned else None

    @property
    def pass_id(self) -> int:
        """Number of the pass of :attr:`batch`, or between passes of the one that begins next, counted from 0."""
        self._resume()
        if self.batch is not None:
            return self.batch.pass_id
        now = self.client._session.progress
        return int(now.position.pass_id if now.state is LoopState.RUNNING else now.coming_pass)

    def __getitem__(self, number: object) -> NoReturn:
        """Raise TypeError, with the remedy: the DataLoader of torch or Paddle asks what is no dataset for batches."""
        raise TypeError(
            f"the values of this loader have an order, and cannot be had by number ({number!r:.40}): loop over it. It "
            "takes the place of a DataLoader, and needs none around it; where a framework wants one, give it "
            "DataLoader(dataset(…), batch_size=None), with the dataset() of pydp2.torch or pydp2.paddle"
        )

    def __iter__(self) -> Iterator[T]:
        return self.iterate(self._convert)

    def iterate(self, convert: Callable[[Batch], V], *, reads_ahead: bool = False) -> Iterator[V]:
        """Return an iterator of the next pass that gives ``convert(batch)`` in place of what this loader makes of it.

        ``reads_ahead``: it is read by a framework that takes any number of values before the loop that trains does, so
        :meth:`state_dict` needs ``taken``.
        """
        return _Loop(self, convert, reads_ahead)

    def _begin(self, loop: _Loop[Any]) -> Pass:
        """Return the pass of ``loop``, which is asked for its first value. A loop that is never asked begins none."""
        before = self._loop()
        if before is not None and before.batches is not self._resumed:
            before.close()
        self._loop = weakref.ref(loop)
        loop.reads_ahead = 0 if loop.only_loop_knows or self._has_length() else self._reads_ahead
        self._values.clear()  # another loop may convert otherwise
        self._places.clear()
        self._count, self._asked, self._only_loop_knows = 0, 0, loop.only_loop_knows
        self._resume()
        batches, self._resumed = self._resumed or cast(Pass, iter(self.client)), None
        self._conversion = None
        if self._context is not None and loop.convert is self._convert:
            self._conversion = Conversion(self._convert, self._context, None)  # the first value tells the client of it
        self.client._convert_beside_steps(None)
        if not (self._taken and self._taken[0].pass_id == batches.pass_id):
            self._forget()  # else the pass was interrupted, or is that of a state, and goes on with what was taken
            with suppress(StateMismatch):  # an interrupted pass may have no state
                self._loaded = self.client.state_dict()
        return batches

    @property
    def _is_begun(self) -> bool:
        """True if a loop has begun the present pass and was not interrupted: the next loop begins another pass."""
        states = LoopState.RUNNING, LoopState.LEFT, LoopState.FAILED
        return self._resumed is None and (bool(self._taken) or self.client._session.progress.state in states)

    def _resume(self) -> None:
        """Find out whether the pass of a state that was loaded has more; if not, the client is at the next pass."""
        if self._loaded is None or not self._loaded["batch"] or self._resumed is not None or self._is_begun:
            return
        batches = cast(Pass, iter(self.client))
        self._taken.extend(islice(batches, 1))
        if self._taken:
            self._resumed = batches
        else:
            self._loaded = None

    def _next(self, loop: _Loop[V], batches: Pass) -> V:
        """Return the next value. What comes from the client is kept first and converted then, so that neither an
        exception of a signal handler nor one of ``convert`` loses a batch."""
        taken = self._taken
        if self._ahead or self._values:
            self._convert_ahead(loop, batches)
        elif not taken:
            self._take(loop, batches)
        if not taken:
            self._resumed = None
            if self._returned:
                self._returned.popleft()
            if loop.error is None:
                self._loaded = None  # a pass without a batch is over, too
            raise loop.error or StopIteration
        value: Any = self._values[0][1] if self._values else self._value_of(taken[0], loop)
        if loop.convert is self._convert:
            value = self._hand_over(value)
        batch = taken[0]
        self._loaded = self._resumed = None
        self._returned.append(batch)
        if len(self._returned) > loop.reads_ahead + 1:
            self._returned.popleft()
        self._count = count = self._count + 1
        self._places[count] = (batch.pass_id, batch.index, batch._resume)
        self._places.pop(count - _PLACES, None)
        taken.popleft()
        if self._values:
            self._values.popleft()
        return cast(V, value)

    def _take(self, loop: _Loop[Any], batches: Pass) -> bool:
        """Take a batch from the client, if it has one and has raised nothing, and return whether it had."""
        before = len(self._taken)
        if loop.error is None:
            try:
                self._taken.extend(islice(batches, 1))
            except Exception as error:
                loop.error = error  # raised in its turn, behind what is here
        return len(self._taken) > before

    def _convert_ahead(self, loop: _Loop[Any], batches: Pass) -> None:
        """Take and convert what is to be ready with the next value, in the thread of the loop."""
        taken, values = self._taken, self._values
        while values and not (taken and values[0][0] is taken[0]):
            values.popleft()  # a call was cut off between the two
        while len(taken) <= self._ahead and self._take(loop, batches):
            pass
        for batch in islice(taken, len(values), None):
            try:
                values.append((batch, self._value_of(batch, loop)))
            except Exception:
                if not values:
                    raise
                break  # it is converted again in its turn

    def _value_of(self, batch: Batch, loop: _Loop[Any]) -> Any:
        """Return what ``loop`` gives for ``batch``: made beside the last step, else now."""
        ready, batch._ready = batch._ready, None
        conversion = self._conversion
        if conversion is not None:
            context = conversion.context()
            if context != conversion.wanted:
                self._conversion = conversion = conversion._replace(wanted=context)
                self.client._convert_beside_steps(None if context is None else conversion)
            elif ready is not None and ready[0] is conversion:
                return ready[1]
        return loop.convert(batch)

    def _hand_over(self, value: T) -> T:
        """Return what the trainer gets of a converted value, at the time when it gets it."""
        return value

    def _drop_taken(self) -> None:
        self._taken.clear()
        self._values.clear()

    def __len__(self) -> int:
        try:
            return len(self.client)
        except TypeError as error:
            raise TypeError(str(error).removesuffix(NO_DATASET)) from None

    def _has_length(self) -> bool:
        try:
            len(self)
        except TypeError:
            return False
        return True

    def set_epoch(self, epoch: int) -> None:
        """Have the next iteration begin pass ``epoch``, counted from 0; see :meth:`pydp2.Client.set_epoch`.

        If a state of this pass was loaded, the next iteration goes on there. A pass under way is left. Warns if
        pass ``epoch`` lies before a state that was loaded and not used: the caller counts its epochs from 0 again.
        """
        was_loaded = self._loaded is not None and not self._is_begun
        self._resume()
        if was_loaded and self._loaded is not None and self._loaded["pass"] == epoch:
            return
        if was_loaded and epoch < self.pass_id:
            warn_of_dropped_state(epoch, self.pass_id)
        before = self._loop()
        if before is not None:
            before.close()
        if self._resumed is not None:
            self._resumed.close()
        self._forget()
        self.client.set_epoch(epoch)

    def state_dict(self, *, taken: int | None = None) -> dict[str, Any]:
        """Return the state behind the value in training; see :meth:`pydp2.Client.state_dict`.

        ``taken``: how many values of the last iteration were used. Give it where a framework reads ahead of the loop
        that trains, by 1,024 values at most. Raises ClientUseError if that many were not returned, or more since, or if
        it is less than before: it counts from where the iteration began, not from an epoch of ``steps_per_epoch``.
        """
        if taken is not None:
            place = self._places.get(taken)
            if place is None:
                raise ClientUseError(
                    f"the place behind value {taken} is not known: {self._count} values of this iteration were "
                    f"returned, and the places behind the last {_PLACES} are kept"
                )
            if taken < self._asked:
                raise ClientUseError(
                    f"taken must count the values of this iteration from its beginning, so it never falls: got {taken} "
                    f"after {self._asked}; with steps_per_epoch an iteration goes on over several epochs"
                )
            self._asked = taken
            return self.client.state_dict(after=cast(Batch, _Place(*place)))
        if self._only_loop_knows and self._returned:
            raise ClientUseError(
                "a framework reads ahead of the training loop, so only the loop knows how far it is; give "
                "state_dict(taken=…) the number of batches that it has taken since it began to iterate"
            )
        return dict(self._loaded) if self._loaded is not None else self.client.state_dict(after=self.batch)

    def load_state_dict(
        self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]], *, allow: Collection[str] = ()
    ) -> None:
        """Go to where ``state`` was taken; see :meth:`pydp2.Client.load_state_dict`, also for ``allow``. Packed
        sequences that ranks share take the states of all ranks, as a list; see
        :meth:`pydp2.PackedSequences.load_state_dict`."""
        self.client.load_state_dict(state, allow=allow)
        if (loop := self._loop()) is not None:
            loop.is_left = True
            self._loop = lambda: None  # its end drops nothing of what follows the state
        self._forget()
        self._loaded = self.client.state_dict()

    def _forget(self) -> None:
        """Forget all that was taken from the client, which goes to another place."""
        self._drop_taken()
        self._returned.clear()
        self._loaded = self._resumed = None

    def close(self) -> None:
        """Leave the job. The service ends with the loader that started it, once the other ranks have left."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and isinstance(self.client.owner, SharedService):
            self.client.owner.waits = False  # the other ranks wait for what this one will not do any more
        self.close()


def warn_of_dropped_state(epoch: int, pass_id: int) -> None:
    """Warn that ``set_epoch(epoch)``, which calls this, drops a state in pass ``pass_id`` that was loaded."""
    warnings.warn(
        f"set_epoch({epoch}) drops the state that was loaded, which is in pass {pass_id}: a loop that resumes must "
        "count its epochs from the pass of the state, or not call set_epoch() (see docs/torch.md, Accelerate and "
        "Trainer)",
        stacklevel=3,
    )


class _Place:
    """Place behind a batch, without its arrays: what a client reads of a batch for a state."""

    def __init__(self, pass_id: int, index: int, resume: Any) -> None:
        self.pass_id, self.index, self._resume = pass_id, index, resume


class _Loop(Iterator[V]):
    """Iterator of one pass of a loader. ``only_loop_knows``: the training loop takes fewer values than this gives."""

    def __init__(self, loader: FrameworkLoader[Any], convert: Callable[[Batch], V], only_loop_knows: bool) -> None:
        self._loader = loader
        self.convert = convert
        self.only_loop_knows = only_loop_knows
        self.batches: Pass | None = None
        self.is_left = False
        """True if a state was loaded: what follows it belongs to the next loop."""
        self.error: Exception | None = None
        """Exception that the client raised when it was asked for a batch ahead of need. It is raised again once the
        batches that came before it were returned."""
        self.reads_ahead = 0
        """Values that the training loop takes before it trains with them, in this pass."""

    def __next__(self) -> V:
        loader = self._loader
        if self.is_left:
            raise StopIteration
        if self.batches is None:
            self.batches = loader._begin(self)
        elif loader._loop() is not self:
            raise ClientUseError(
                "a newer loop over this loader has left the pass of this one; go through one loop at a time, and give "
                "each of two a loader of its own"
            )
        try:
            return loader._next(self, self.batches)
        except Exception:
            raise
        except BaseException:  # of a signal handler: the next loop goes on with this pass, although this one is dropped
            loader._resumed = self.batches
            raise

    def close(self) -> None:
        """Leave the pass without its rest."""
        if self.batches is not None:
            self.batches.close()
        if self._loader._loop() is self:
            self._loader._drop_taken()
