"""Training loop of Paddle V2: passes over a reader, which it reports as events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydp2.errors import BadSample, OptionError, OptionTypeError, bad_sample_at
from pydp2.reader.contract import Reader, check_reader, check_size, iterating
from pydp2.reader.decorators import batch
from pydp2.reader.feeding import DataFeeder, FedBatch, FeedMapping, Types


@dataclass(frozen=True)
class BeginPass:
    """Event: pass ``pass_id`` begins, counted from 0."""

    pass_id: int


@dataclass(frozen=True)
class BeginIteration:
    """Event: a batch was read, before ``step`` gets it. ``batch_id`` counts the batches of a pass from 0."""

    pass_id: int
    batch_id: int


@dataclass(frozen=True)
class EndForwardBackward:
    """Event: the cost and its gradients are computed; the weights are as before."""

    pass_id: int
    batch_id: int


@dataclass(frozen=True)
class EndIteration:
    """Event: the weights are updated. ``cost`` is the result of ``step``."""

    pass_id: int
    batch_id: int
    cost: Any


@dataclass(frozen=True)
class EndPass:
    """Event: the reader has ended."""

    pass_id: int


Event = BeginPass | BeginIteration | EndForwardBackward | EndIteration | EndPass


def train(
    reader: Reader,
    mapping: FeedMapping,
    batch_size: int | None,
    passes: int,
    event_handler: Callable[[Event], object] | None = None,
    *,
    input_types: Types,
    step: Callable[[FedBatch], Any],
    update: Callable[[], object] | None = None,
) -> None:
    """Train for ``passes`` passes: call ``reader`` anew for each, and ``step`` for each of its mini-batches.

    Args:
        reader: a reader of entries, of which ``batch_size`` form a mini-batch; or a reader that :func:`batch` made,
            also under decorators that do not change entries, whose lists are the mini-batches; or with
            ``batch_size=None`` any batch reader. It may be endless.
        mapping: which column of an entry each slot takes, see :class:`DataFeeder`.
        batch_size: number of entries of a mini-batch. For a reader that :func:`batch` made, its own size or None.
        passes: number of passes.
        event_handler: function that is called with each event: BeginPass, then for each mini-batch BeginIteration,
            EndForwardBackward and EndIteration, then EndPass.
        input_types: the slots, see :class:`DataFeeder`.
        step: function ``step(batch)`` that computes cost and gradients; it returns the cost.
        update: function that changes the weights by the gradients; None if ``step`` does so.

    Exceptions of ``reader``, ``step``, ``update`` and ``event_handler`` pass unchanged. See docs/readers.md (RD-38).

    Raises:
        OptionTypeError, OptionError: an argument has a type or value that is not allowed; the result of ``reader`` is
            not iterable.
        BadSample: a value does not fit its slot.
    """
    batches = _batches(check_reader("reader", reader), batch_size)
    number = check_size("passes", passes)
    feeder = DataFeeder(input_types, mapping)
    handle = event_handler if event_handler is not None else _nobody
    for name, function in (("step", step), ("update", update or _nobody), ("event_handler", handle)):
        if not callable(function):
            raise OptionTypeError(f"{name} must be a function, got {function!r:.80}")
    for pass_id in range(number):
        handle(BeginPass(pass_id))
        with iterating(batches) as (lists,):
            for batch_id, entries in enumerate(lists):
                handle(BeginIteration(pass_id, batch_id))
                cost = step(_fed(feeder, entries, pass_id, batch_id))
                handle(EndForwardBackward(pass_id, batch_id))
                if update is not None:
                    update()
                handle(EndIteration(pass_id, batch_id, cost))
        handle(EndPass(pass_id))


def _fed(feeder: DataFeeder, entries: list[Any], pass_id: int, batch_id: int) -> FedBatch:
    try:
        return feeder(entries, pass_id=pass_id, index=batch_id)
    except BadSample as error:
        remedy = ""
        first = next(iter(entries), None)
        if isinstance(first, list) and first:
            tuples = " of tuples" if isinstance(first[0], tuple) else ""
            remedy = f"; its entry is a list{tuples}: of a reader of mini-batches train with batch_size=None"
        raise bad_sample_at(f"pass {pass_id}, mini-batch {batch_id}: ", error, remedy) from None


def _nobody(*_: object) -> None:
    pass


def _batches(reader: Reader, batch_size: int | None) -> Reader:
    of_reader = getattr(reader, "batch_size", None)
    if of_reader is not None and batch_size not in (None, of_reader):
        raise OptionError(f"the reader gives batches of {of_reader}, and batch_size={batch_size} is another size")
    return reader if batch_size is None or of_reader is not None else batch(reader, batch_size)
