"""``buffered``: read entries ahead in a thread."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, SupportsIndex

from pydp2.reader.contract import Reader, batch_size_of, check_reader, check_size, decorated, iterating
from pydp2.system.prefetch import PrefetchQueue, prefetched


def buffered(reader: Reader, size: SupportsIndex) -> Reader:
    """Return a reader of which a thread reads up to ``size`` entries ahead, 0 for any number. The order is kept.

    The consumer gets an exception of ``reader`` after the entries before it. The thread starts when the consumer asks
    for the first entry, and ends when the pass ends or the consumer leaves it. The thread calls ``reader``, and closes
    the iterator. See docs/readers.md (RD-3 to RD-5).

    Raises OptionTypeError, OptionError: ``reader`` cannot be called; ``size`` is not a whole number, or is negative.
    """
    check_reader("reader", reader)
    room = check_size("size", size)

    def read_ahead(source: Reader) -> Iterator[Any]:
        return prefetched(partial(_put_entries, source), room, "pydp2 buffered")

    return decorated(read_ahead, reader, batch_size=batch_size_of(reader))


def _put_entries(reader: Reader, queue: PrefetchQueue[Any]) -> None:
    with iterating(reader) as (entries,):
        for entry in entries:
            queue.put(entry)
