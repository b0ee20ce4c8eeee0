"""Readers made of readers, in the caller's thread: map, shuffle, chain, compose, firstn, cache, Fake, batch.

Decorators that need threads or processes are in :mod:`.prefetch`, :mod:`.mapping` and :mod:`.merging`. See
docs/readers.md.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from itertools import chain as chained
from itertools import count, islice, repeat
from typing import Any, SupportsIndex

from pydp2.errors import ComposeNotAligned, OptionError, OptionTypeError, count_text
from pydp2.reader.contract import (
    BatchReader,
    Reader,
    batch_size_of,
    check_reader,
    check_size,
    check_whole,
    decorated,
    iterating,
)

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

    def mapped(*readers: Reader) -> Iterator[Any]:
        with iterating(*readers) as iterators:
            for entries in zip(*iterators, strict=False):  # not map(): a StopIteration of func would end it silently
                yield func(*entries)

    return decorated(mapped, *checked)


def shuffle(reader: Reader, buf_size: SupportsIndex, *, seed: SupportsIndex | None = None) -> Reader:
    """Return a reader that collects ``buf_size`` entries, gives them in a random order, and collects the next ones.

    A ``buf_size`` of 0 or 1 keeps the order. With ``seed`` the order of the n-th pass depends on (seed, n) alone, so
    passes differ and a run can be repeated. With None it comes from the global :mod:`random`. The first entry comes
    when the buffer is full or ``reader`` has ended. See docs/readers.md (RD-13, RD-14).

    Raises OptionTypeError, OptionError: ``reader`` cannot be called; ``buf_size`` or ``seed`` is not a whole number, or
    is negative.
    """
    check_reader("reader", reader)
    size = max(check_size("buf_size", buf_size), 1)
    drawn_from = None if seed is None else check_whole("seed", seed)
    passes = count()

    def shuffled(source: Reader, draw: Any) -> Iterator[Any]:
        with iterating(source) as (entries,):
            while buffer := list(islice(entries, size)):
                draw.shuffle(buffer)
                yield from buffer

    def begin() -> tuple[Any]:
        return (random if drawn_from is None else random.Random(f"{drawn_from}/{next(passes)}"),)

    return decorated(shuffled, reader, begin=begin, batch_size=batch_size_of(reader))


def chain(*readers: Reader) -> Reader:
    """Return a reader of the entries of each reader in turn. All readers are called at the start of a pass.

    Raises OptionTypeError: one of ``readers`` cannot be called. See docs/readers.md (RD-12).
    """
    checked = _checked(readers)

    def one_after_the_other(*readers: Reader) -> Iterator[Any]:
        with iterating(*readers) as iterators:
            yield from chained(*iterators)

    return decorated(one_after_the_other, *checked, batch_size=batch_size_of(*checked))


def compose(*readers: Reader, check_alignment: bool = True) -> Reader:
    """Return a reader of tuples, each made of one entry of each reader.

    An entry that is a tuple adds all its items; any other entry (a list too) is one item: ``(1, 2)`` and ``3`` give
    ``(1, 2, 3)``. Without ``check_alignment`` the pass ends when the shortest reader ends. Without readers there are no
    entries. See docs/readers.md (RD-6 to RD-11).

    Raises:
        ComposeNotAligned: (while iterating) the readers differ in length; raised after the last complete tuple.
        OptionTypeError: one of ``readers`` cannot be called.
    """
    checked = _checked(readers)

    def composed(*readers: Reader) -> Iterator[tuple[Any, ...]]:
        with iterating(*readers) as iterators:
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

    return decorated(composed, *checked)


def firstn(reader: Reader, n: SupportsIndex) -> Reader:
    """Return a reader of the first ``n`` entries, or of all if there are fewer. It asks ``reader`` for no more.

    Raises OptionTypeError, OptionError: ``reader`` cannot be called; ``n`` is not a whole number, or is negative. See
    docs/readers.md (RD-15, RD-16).
    """
    check_reader("reader", reader)
    number = check_size("n", n)

    def first(source: Reader) -> Iterator[Any]:
        with iterating(source) as (entries,):
            yield from islice(entries, number)

    return decorated(first, reader, batch_size=batch_size_of(reader))


def cache(reader: Reader) -> Reader:
    """Read all entries now and return a reader that gives them from memory. See docs/readers.md (RD-17).

    Raises OptionTypeError: ``reader`` cannot be called, or its result is not iterable. Exceptions of ``reader`` pass
    unchanged.
    """
    with iterating(check_reader("reader", reader)) as (entries,):
        entries_read = tuple(entries)
    return decorated(lambda: iter(entries_read), batch_size=batch_size_of(reader))


class Fake:
    """Decorator ``Fake()(reader, n)``: gives the first entry of ``reader`` n times, to measure without reading.

    The first pass of the new reader reads ``reader``, once. If ``reader`` has no entries, the new one has none either.
    See docs/readers.md (RD-29).
    """

    def __call__(self, reader: Reader, data_num: SupportsIndex) -> Reader:
        """Return the reader.

        Raises OptionTypeError, OptionError: ``reader`` cannot be called; ``data_num`` is not a whole number, or is
        negative.
        """
        first = firstn(reader, 1)
        number = check_size("data_num", data_num)
        entries_read: list[Any] = []

        def fake() -> Iterator[Any]:
            if not entries_read:
                entries_read.extend(first())
            for entry in entries_read:
                yield from repeat(entry, number)

        return decorated(fake, batch_size=batch_size_of(reader))


def batch(reader: Reader, batch_size: Any, drop_last: bool = False) -> BatchReader:
    """Return a reader of lists of ``batch_size`` entries. A shorter last list is left out with ``drop_last``.

    No list is empty. ``int()`` converts ``batch_size``. The reader has this number as its attribute ``batch_size``, by
    which :func:`train` knows that the reader gives batches; decorators that do not change entries pass it on. See
    docs/readers.md (RD-30, RD-31).

    Raises OptionError: the size is below 1, or infinite; ValueError, TypeError: ``int()`` cannot convert it.
    """
    check_reader("reader", reader)
    try:
        size = min(int(batch_size), sys.maxsize)
    except OverflowError:
        raise OptionError(f"batch_size must be a number with an end, got {batch_size!r:.80}") from None
    if size <= 0:
        raise OptionError(f"batch_size must be at least 1, got {batch_size!r:.80}")

    def batches(source: Reader) -> Iterator[list[Any]]:
        with iterating(source) as (entries,):
            while group := list(islice(entries, size)):
                if len(group) < size and drop_last:
                    return
                yield group

    return decorated(batches, reader, batch_size=size)


def _checked(readers: tuple[Reader, ...]) -> list[Reader]:
    return [check_reader(f"reader {i}", reader) for i, reader in enumerate(readers)]
