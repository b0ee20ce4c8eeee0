"""Readers made of readers, in the caller's thread: map, shuffle, chain, compose, firstn, cache, Fake, batch.

What needs threads or processes stands in :mod:`.prefetch`, :mod:`.mapping` and :mod:`.merging`. See docs/readers.md.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from itertools import chain as chained
from itertools import count, islice, repeat
from typing import Any, SupportsIndex

from pydp2.errors import ComposeNotAligned, OptionError, OptionTypeError, count_text
from pydp2.reader.contract import BatchReader, Reader, check_reader, check_size, check_whole, iterating

_END = object()  # not None: that is an item like any other


def map_readers(func: Callable[..., Any], *readers: Reader) -> Reader:
    """Return a reader of ``func(*entries)`` until the shortest reader ends. See docs/readers.md (RD-2).

    Raises OptionTypeError: ``func`` or one of ``readers`` cannot be called, or there is no reader.
    """
    if not callable(func):
        raise OptionTypeError(f"func must be a function of an entry of each reader, got {func!r:.80}")
    checked = _checked(readers)
    if not checked:
        raise OptionTypeError("map_readers() needs at least one reader to map")

    def reader() -> Iterator[Any]:
        with iterating(*checked) as iterators:
            for entries in zip(*iterators, strict=False):  # not map(): a StopIteration of func would end it silently
                yield func(*entries)

    return reader


def shuffle(reader: Reader, buf_size: SupportsIndex, *, seed: SupportsIndex | None = None) -> Reader:
    """Collect ``buf_size`` entries, give them in a drawn order, collect the next. 0 and 1 keep the order.

    ``seed``: the order of the n-th call is then drawn from (seed, n) alone, so passes differ and a run can be repeated;
    None: from the global :mod:`random`. No entry comes earlier than one buffer allows, and none before a buffer is full
    or the reader has ended. See docs/readers.md (RD-13, RD-14).

    Raises OptionTypeError, OptionError: no reader; ``buf_size`` or ``seed`` is no whole number, or negative.
    """
    check_reader("reader", reader)
    size = max(check_size("buf_size", buf_size), 1)
    drawn_from = None if seed is None else check_whole("seed", seed)
    passes = count()

    def shuffled() -> Iterator[Any]:
        draw = random if drawn_from is None else random.Random(f"{drawn_from}/{next(passes)}")
        with iterating(reader) as (entries,):
            while buffer := list(islice(entries, size)):
                draw.shuffle(buffer)
                yield from buffer

    return shuffled


def chain(*readers: Reader) -> Reader:
    """Return a reader of the entries of each reader in turn. All readers are called at the start of a pass.

    Raises OptionTypeError: one of ``readers`` cannot be called. See docs/readers.md (RD-12).
    """
    checked = _checked(readers)

    def reader() -> Iterator[Any]:
        with iterating(*checked) as iterators:
            yield from chained(*iterators)

    return reader


def compose(*readers: Reader, check_alignment: bool = True) -> Reader:
    """One entry of each reader put together: tuples are joined, anything else (lists too) is one item of the result.

    ``(1, 2)`` and ``3`` give ``(1, 2, 3)``. Without ``check_alignment`` the shortest reader ends the pass. No readers:
    no entries. See docs/readers.md (RD-6 to RD-11).

    Raises:
        ComposeNotAligned: (while iterating) readers differ in length; after all entries that have one of each.
        OptionTypeError: one of ``readers`` cannot be called.
    """
    checked = _checked(readers)

    def reader() -> Iterator[tuple[Any, ...]]:
        with iterating(*checked) as iterators:
            for number in count() if iterators else ():
                entries = [next(iterator, _END) for iterator in iterators]
                ended = [i for i, entry in enumerate(entries) if entry is _END]
                if ended and check_alignment and len(ended) < len(entries):
                    raise ComposeNotAligned(
                        f"the readers must be of one length, but of {len(entries)} readers number "
                        f"{', '.join(map(str, ended))} (from 0) ended after "
                        f"{count_text(number, 'entry', 'entries')} and the others did not; "
                        "check_alignment=False stops at the shortest"
                    )
                if ended:
                    return
                yield tuple(chained.from_iterable(e if isinstance(e, tuple) else (e,) for e in entries))

    return reader


def firstn(reader: Reader, n: SupportsIndex) -> Reader:
    """Return a reader of the first ``n`` entries, or of all if there are fewer. It asks ``reader`` for no more.

    Raises OptionTypeError, OptionError: no reader; ``n`` is no whole number, or negative. See docs/readers.md (RD-15,
    RD-16).
    """
    check_reader("reader", reader)
    number = check_size("n", n)

    def first() -> Iterator[Any]:
        with iterating(reader) as (entries,):
            yield from islice(entries, number)

    return first


def cache(reader: Reader) -> Reader:
    """Read all entries now and return a reader that gives them from memory. See docs/readers.md (RD-17).

    Raises OptionTypeError: ``reader`` cannot be called, or gives nothing that can be iterated; and what it raises.
    """
    with iterating(check_reader("reader", reader)) as (entries,):
        kept = tuple(entries)
    return lambda: iter(kept)


class Fake:
    """Decorator ``Fake()(reader, n)``: gives the first entry of ``reader`` n times, to measure without reading.

    ``reader`` is read once, at the first call of the new one. One without entries gives none. See docs/readers.md
    (RD-29).
    """

    def __call__(self, reader: Reader, data_num: SupportsIndex) -> Reader:
        """Return the reader.

        Raises OptionTypeError, OptionError: no reader; ``data_num`` is no whole number, or negative.
        """
        first = firstn(reader, 1)
        number = check_size("data_num", data_num)
        kept: list[Any] = []

        def fake() -> Iterator[Any]:
            if not kept:
                kept.extend(first())
            for entry in kept:
                yield from repeat(entry, number)

        return fake


def batch(reader: Reader, batch_size: Any, drop_last: bool = False) -> BatchReader:
    """Return a reader of lists of ``batch_size`` entries. A shorter last list is left out with ``drop_last``.

    ``batch_size``: what ``int()`` makes of it. The reader has it as its attribute ``batch_size``, which is how
    :func:`train` knows that it gives batches. See docs/readers.md (RD-30, RD-31).

    Raises OptionError: the size is not above 0, or infinite; ValueError, TypeError: ``int()`` cannot make a number of
    it.
    """
    check_reader("reader", reader)
    try:
        size = min(int(batch_size), sys.maxsize)
    except OverflowError:
        raise OptionError(f"batch_size must be a number with an end, got {batch_size!r:.80}") from None
    if size <= 0:
        raise OptionError(f"batch_size must be at least 1, got {batch_size!r:.80}")

    def batches() -> Iterator[list[Any]]:
        with iterating(reader) as (entries,):
            while group := list(islice(entries, size)):
                if len(group) < size and drop_last:
                    return
                yield group

    batches.batch_size = size  # type: ignore[attr-defined]  # a function takes attributes
    return batches


def _checked(readers: tuple[Reader, ...]) -> list[Reader]:
    return [check_reader(f"reader {i}", reader) for i, reader in enumerate(readers)]
