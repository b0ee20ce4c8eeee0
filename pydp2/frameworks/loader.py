"""Iterate over a client in the values of a framework, some of them ahead, with the state of the batch in training.

Theory of operation
-------------------
A batch moves from the client to the training loop in three steps: it is *taken* from the client, *converted*, and
*returned*. :class:`LoaderPass` has it meanwhile. The loop may take more batches than it trains with, and so may the
loader. A loop may be dropped, left, or cut off by an exception between any two instructions (Ctrl-C, or a conversion
that fails). Yet no batch may be lost or come twice, and the state must be that of the batch in training.

- A batch stays in ``taken`` until everything else about its return is noted, and leaves it last. If a call is cut off
  before, the next call returns the same batch again. If a batch were converted on its way from the client, it would be
  lost when the conversion fails.
- Only the loop has a reference to the client's iterator, so that a program that drops the loop leaves the pass, and
  frees the memory of its batches. A pass that was cut off must outlive its loop, though, so its iterator is in
  ``resumed`` until the next value is returned.
- The client is ahead of the training loop, so its state is not the state of the loader. Before the first value of a
  pass, the state is the one that the client had when the pass began (``state``). Behind a value, it is the state of the
  client at the mark of the batch in training. Behind the last value, it is the present state of the client.
- Some frameworks read any number of values ahead, and only the training loop knows how many it has used. So the marks
  behind the last values are kept, by the number of values since the loop began.
- The state behind the last batch of a pass leads to no more values. No iteration may be empty, so the loader checks
  whether there is a batch before a loop begins, and this batch waits in ``taken`` for the loop.
"""

from __future__ import annotations

import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, Generic, NoReturn, Self, TypeVar, cast

from pydp2.client.length import NO_DATASET
from pydp2.client.pass_iterator import Pass
from pydp2.client.progress import DeliveryMark, LoopState
from pydp2.client.received import Conversion
from pydp2.client.step_metrics import StepMetrics
from pydp2.client.stream import Stream
from pydp2.data.columns.batch import Batch, Origin, StringArray
from pydp2.errors import ClientUseError, StateMismatch
from pydp2.frameworks.shared_service import SharedService, leave
from pydp2.system.single_pass import taken_over

T = TypeVar("T")
V = TypeVar("V")
_MARKS = 1024  # largest number of values that a framework may read ahead


class LoaderPass:
    """State of a loader in one pass.

    ``taken``: batches that were taken from the client and not returned. ``values``: converted values of the first of
    them. ``returned``: the batches that were returned last, the first of which is in training. ``resumed``: the
    client's iterator, if the next loop continues with it. ``state``: the present state, as long as no value was
    returned behind it. ``is_loaded``: a user has loaded that state. ``only_loop_knows``: only the training loop knows
    how many values it has used, because a framework reads ahead of it.
    """

    def __init__(self, state: Mapping[str, Any] | None = None, *, is_loaded: bool = False) -> None:
        self.taken: deque[Batch] = deque()
        self.values: deque[tuple[Batch, Any]] = deque()
        self.returned: deque[Batch] = deque()
        self.resumed: Pass | None = None
        self.state = self._start = state
        self.is_loaded = is_loaded
        self.only_loop_knows = False
        self._marks: dict[int, DeliveryMark] = {}  # by number of values; other threads may add marks
        self._count = 0  # number of values that the present loop has returned
        self._asked = 0  # largest number of values behind which a state was requested

    def begin_loop(self, state: Mapping[str, Any] | None, *, only_loop_knows: bool) -> None:
        """Note that a loop begins or continues the pass. ``state``: the state before its first value, None if there is
        none."""
        self.values.clear()  # the new loop may convert in another way
        self._marks.clear()
        self._count, self._asked, self.only_loop_knows = 0, 0, only_loop_knows
        self._start = state

    def note_returned(self, reads_ahead: int) -> None:
        """Note that the loop gets the value of the first batch, and trains with the value ``reads_ahead`` before it."""
        batch = self.taken[0]
        self.state = self.resumed = None
        self.returned.append(batch)
        if len(self.returned) > reads_ahead + 1:
            self.returned.popleft()
        self._count = count = self._count + 1
        self._marks[count] = batch._resume
        self._marks.pop(count - _MARKS, None)
        self.taken.popleft()
        if self.values:
            self.values.popleft()

    def note_end(self) -> None:
        """Note that the loop was told that there are no more values."""
        self.resumed = None
        if self.returned:
            self.returned.popleft()

    def put_back(self, batches: Pass) -> None:
        """Undo the return of the one value that the present loop has returned: the next loop continues with
        ``batches``, and returns the value again."""
        self.taken.extendleft(self.returned)
        self.returned.clear()
        self.state, self.resumed = self._start, batches

    def drop_taken(self) -> None:
        """Forget the batches and values that the loop did not get."""
        self.taken.clear()
        self.values.clear()

    def mark_after(self, taken: int) -> DeliveryMark:
        """Return the mark of value ``taken`` of the present loop, counted from 1. Raises ClientUseError if fewer values
        were returned, if more than :data:`_MARKS` values were returned since, or if ``taken`` is less than in an
        earlier call."""
        mark = self._marks.get(taken)
        if mark is None:
            raise ClientUseError(
                f"the place behind value {taken} is not known: {self._count} values of this iteration were "
                f"returned, and the places behind the last {_MARKS} are kept"
            )
        if taken < self._asked:
            raise ClientUseError(
                f"taken must count the values of this iteration from its beginning, so it never falls: got {taken} "
                f"after {self._asked}; with steps_per_epoch an iteration goes on over several epochs"
            )
        self._asked = taken
        return mark


class FrameworkLoader(Generic[T]):
    """Loader of a framework over ``client``: one iteration is one pass, and yields ``convert(batch)`` for each batch.

    A new iteration leaves the pass of the one before. If the state behind the last batch of a pass was loaded, the next
    pass begins, because no iteration may be empty.

    ``ahead``: number of values that are converted before they are requested, so that a copy to a device which
    ``convert`` has begun goes on during a step. ``reads_ahead``: number of values that the training loop takes before
    it trains with them, in passes of unknown length. The state is that of the value in training: the value returned
    last, or the one ``reads_ahead`` before it. ``context``: None if only the loop may convert. Otherwise another thread
    may convert batches while a step runs, and this function returns the settings of the calling thread on which values
    depend; if it returns None, only the loop may convert this value. It is called for each value, in both threads,
    which may convert two batches at the same time. See docs/frameworks.md.
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
        self._conversion: Conversion | None = None  # conversion that the client has for the last loop
        self._ahead = ahead
        self._reads_ahead = reads_ahead
        self._pass = LoaderPass()
        self._steps = StepMetrics()
        self._loop: Callable[[], Loop[Any] | None] = lambda: None
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
        returned = self._pass.returned
        return returned[0] if returned else None

    @property
    def origin(self) -> Origin | None:
        """Origin of the rows of :attr:`batch`; None between passes. It is no value of the batch, so no tensor is made
        of it. Raises OptionError without ``origin=True``. See docs/debugging.md."""
        batch = self.batch
        return None if batch is None else batch.origin

    @property
    def files(self) -> StringArray | tuple[StringArray, ...]:
        """Entries of the file list, or with several sources those of each source; see :attr:`origin`."""
        return self.client.files

    @property
    def pass_id(self) -> int:
        """Number of the pass of :attr:`batch`, or between passes that of the next pass, counted from 0."""
        self._resume()
        if self.batch is not None:
            return self.batch.pass_id
        now = self.client._session.progress
        return int(now.position.pass_id if now.state is LoopState.RUNNING else now.coming_pass)

    def metrics(self) -> dict[str, float]:
        """Return scalars about the steps since the last call; see :meth:`pydp2.Client.metrics`. The conversion of a
        batch that the training loop has to wait for counts as waiting."""
        return self._steps.take(time.perf_counter())

    def __getitem__(self, number: object) -> NoReturn:
        """Raise TypeError with a remedy: the DataLoader of torch or Paddle indexes objects that are no datasets."""
        raise TypeError(
            f"the values of this loader have an order, and cannot be had by number ({number!r:.40}): loop over it. It "
            "takes the place of a DataLoader, and needs none around it; where a framework wants one, give it "
            "DataLoader(dataset(…), batch_size=None), with the dataset() of pydp2.torch or pydp2.paddle"
        )

    def __iter__(self) -> Iterator[T]:
        return self.iterate(self._convert)

    def iterate(self, convert: Callable[[Batch], V], *, reads_ahead: bool = False) -> Iterator[V]:
        """Return an iterator of the next pass that yields ``convert(batch)`` in place of this loader's own values.

        ``reads_ahead``: a framework takes any number of values before the training loop does, so :meth:`state_dict`
        needs ``taken``.
        """
        return Loop(self, convert, reads_ahead)

    def _begin(self, loop: Loop[Any]) -> Pass:
        """Return the pass of ``loop``, which was asked for its first value. A loop that is never asked for a value
        begins no pass."""
        before = self._loop()
        if before is not None and before.batches is not self._pass.resumed:
            before.close()
        self._loop = weakref.ref(loop)
        loop.reads_ahead = 0 if loop.only_loop_knows or self._has_length() else self._reads_ahead
        current = self._pass
        is_loaded = current.is_loaded and current.state is not None
        self._resume()
        batches, current.resumed = current.resumed or cast(Pass, iter(self.client)), None
        self._conversion = None
        if self._context is not None and loop.convert is self._convert:
            self._conversion = Conversion(self._convert, self._context, None)  # the client gets it with the first value
        self.client._convert_beside_steps(None)
        goes_on = current.taken and current.taken[0].pass_id == batches.pass_id  # was interrupted, or is from a state
        if not goes_on:
            current = self._pass = LoaderPass(is_loaded=is_loaded)
        state = None
        with suppress(StateMismatch, ClientUseError):  # a pass that was cut off may have no state
            state = self._state()
        if not goes_on:
            current.state = state
        current.begin_loop(state, only_loop_knows=loop.only_loop_knows)
        return batches

    @property
    def _is_begun(self) -> bool:
        """True if a loop has begun the present pass and was not interrupted: the next loop begins another pass."""
        states = LoopState.RUNNING, LoopState.LEFT, LoopState.FAILED
        now = self.client._session.progress
        return self._pass.resumed is None and (bool(self._pass.taken) or (now.state in states and not now.is_in_call))

    def _resume(self) -> None:
        """Check whether the pass of a loaded state has more batches; if not, the client is at the next pass then."""
        current = self._pass
        if current.state is None or not current.state["batch"] or current.resumed is not None or self._is_begun:
            return
        batches = cast(Pass, iter(self.client))
        current.taken.extend(islice(batches, 1))
        if current.taken:
            current.resumed = batches
        else:
            current.state = None

    def _next(self, loop: Loop[V], batches: Pass) -> V:
        """Return the next value. A batch from the client is stored before it is converted, so that neither an exception
        of a signal handler nor one of ``convert`` loses it."""
        current = self._pass
        if self._ahead or current.values:
            self._convert_ahead(loop, batches)
        elif not current.taken:
            self._take(loop, batches)
        if not current.taken:
            current.note_end()
            if loop.error is None:
                current.state = None  # a pass without a batch has ended too
            raise loop.error or StopIteration
        value: Any = current.values[0][1] if current.values else self._value_of(current.taken[0], loop)
        if loop.convert is self._convert:
            value = self._hand_over(value)
        current.note_returned(loop.reads_ahead)
        return cast(V, value)

    def _take(self, loop: Loop[Any], batches: Pass) -> bool:
        """Take a batch from the client; return False if it has no more, or has raised an error."""
        taken = self._pass.taken
        before = len(taken)
        if loop.error is None:
            try:
                taken.extend(islice(batches, 1))
            except Exception as error:
                loop.error = error  # raised once the batches before it were returned
        return len(taken) > before

    def _convert_ahead(self, loop: Loop[Any], batches: Pass) -> None:
        """Take and convert the batches that must be ready with the next value, in the thread of the loop."""
        taken, values = self._pass.taken, self._pass.values
        while values and not (taken and values[0][0] is taken[0]):
            values.popleft()  # a call was cut off between the removal of the batch and that of its value
        while len(taken) <= self._ahead and self._take(loop, batches):
            pass
        for batch in islice(taken, len(values), None):
            try:
                values.append((batch, self._value_of(batch, loop)))
            except Exception:
                if not values:
                    raise
                break  # it is converted again when it is needed

    def _value_of(self, batch: Batch, loop: Loop[Any]) -> Any:
        """Return the value of ``batch`` for ``loop``: converted during the last step, or now."""
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
        """Return the value for the trainer from a converted value, at the time when the trainer gets it."""
        return value

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
        """Let the next iteration begin pass ``epoch``, counted from 0; see :meth:`pydp2.Client.set_epoch`.

        If a state of this pass was loaded, the next iteration continues there. A pass under way is left. Warns if pass
        ``epoch`` is before a state that was loaded and not used, because the caller then counts its epochs from 0
        again.
        """
        current = self._pass
        is_unused = current.state is not None and not self._is_begun
        self._resume()
        state = current.state if is_unused else None
        if state is not None and state["pass"] == epoch and (current.is_loaded or not state["batch"]):
            return
        if is_unused and current.is_loaded and epoch < self.pass_id:
            warn_of_dropped_state(epoch, self.pass_id)
        before = self._loop()
        if before is not None:
            before.close()
        if current.resumed is not None:
            current.resumed.close()
        self._pass = LoaderPass()
        self.client.set_epoch(epoch)

    def state_dict(self, *, taken: int | None = None) -> dict[str, Any]:
        """Return the state behind the value in training; see :meth:`pydp2.Client.state_dict`.

        ``taken``: number of used values since the iteration began (not since an epoch of ``steps_per_epoch`` began).
        Pass it if a framework reads ahead of the training loop, by 1,024 values at most. Raises ClientUseError if fewer
        values were returned, if more than 1,024 were returned since, or if ``taken`` is less than in an earlier call.
        """
        if taken is not None:
            return self.client._state_after(self._pass.mark_after(taken))
        if self._pass.only_loop_knows and self._pass.returned:
            raise ClientUseError(
                "a framework reads ahead of the training loop, so only the loop knows how far it is; give "
                "state_dict(taken=…) the number of batches that it has taken since it began to iterate"
            )
        return self._state()

    def _state(self) -> dict[str, Any]:
        current = self._pass
        return dict(current.state) if current.state is not None else self.client.state_dict(after=self.batch)

    def load_state_dict(
        self, state: Mapping[str, Any], *, allow: Collection[str] = (), skip: Iterable[int] = ()
    ) -> None:
        """Go to the position of ``state``; see :meth:`pydp2.Client.load_state_dict`, also for the others."""
        self.client.load_state_dict(state, allow=allow, skip=skip)
        if (loop := self._loop()) is not None:
            loop.is_left = True
            self._loop = lambda: None  # the end of the old loop must not drop batches behind the state
        self._pass = LoaderPass(self.client.state_dict(), is_loaded=True)

    def close(self) -> None:
        """Leave the job. The service ends with the loader that started it, once the other ranks have left."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and isinstance(self.client.owner, SharedService):
            self.client.owner.waits = False  # the other ranks may wait for this one, which has failed
        self.close()


def warn_of_dropped_state(epoch: int, pass_id: int) -> None:
    """Warn that ``set_epoch(epoch)``, which calls this, drops a loaded state in pass ``pass_id``."""
    warnings.warn(
        f"set_epoch({epoch}) drops the state that was loaded, which is in pass {pass_id}: a loop that resumes must "
        "count its epochs from the pass of the state, or not call set_epoch() (see docs/torch.md, Accelerate and "
        "Trainer)",
        stacklevel=3,
    )


class Loop(Iterator[V]):
    """Iterator of one pass of a loader. ``only_loop_knows``: the training loop may have used fewer values than this
    iterator has returned."""

    def __init__(self, loader: FrameworkLoader[Any], convert: Callable[[Batch], V], only_loop_knows: bool) -> None:
        self._loader = loader
        self.convert = convert
        self.only_loop_knows = only_loop_knows
        self.batches: Pass | None = None
        self.is_left = False
        """True if a state was loaded, so that the next batches belong to the next loop."""
        self.error: Exception | None = None
        """Exception of the client for a batch that was taken ahead. It is raised again once the batches before it were
        returned."""
        self.reads_ahead = 0
        """Values that the training loop takes before it trains with them, in this pass."""

    def __next__(self) -> V:
        loader = self._loader
        if self.is_left:
            raise StopIteration
        began = time.perf_counter()
        if self.batches is None:
            self.batches = loader._begin(self)
        elif loader._loop() is not self:
            raise taken_over("loader")
        else:
            loader._steps.end_step(began)
        try:
            value = loader._next(self, self.batches)
        except Exception:
            raise
        except BaseException:  # of a signal handler: the next loop continues this pass, although this one is dropped
            loader._pass.resumed = self.batches
            raise
        loader._steps.begin_step(began, time.perf_counter(), len(loader._pass.returned[-1]))
        return value

    def close(self) -> None:
        """Leave the pass before its end, unless another loop has taken it over."""
        if self._loader._loop() is self:
            if self.batches is not None:
                self.batches.close()
            self._loader._pass.drop_taken()
