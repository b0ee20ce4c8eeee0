"""``buffered``: a reader that is read ahead by a thread."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, SupportsIndex

from pydp2.reader.channel import END, RAISED, Channel, PassThreads, read_into
from pydp2.reader.contract import Reader, check_reader, check_size


def buffered(reader: Reader, size: SupportsIndex) -> Reader:
    """A thread reads up to ``size`` entries ahead of the consumer, 0 for any number. The order is kept.

    What ``reader`` raises is raised at its place. The thread begins with the first entry that is asked for, and ends
    with the pass or when the consumer leaves it; it also iterates and closes what ``reader`` gives. See docs/readers.md
    (RD-3 to RD-5).

    Raises OptionTypeError, OptionError: no reader; ``size`` is no whole number, or negative.
    """
    check_reader("reader", reader)
    room = check_size("size", size)

    def ahead() -> Iterator[Any]:
        channel = Channel(room)
        crew = PassThreads(channel)
        value = None
        try:
            crew.start("buffered", read_into, reader, channel.put)
            while True:
                kind, value = channel.get()
                if kind == END:
                    return
                if kind == RAISED:
                    raise value
                yield value
        finally:
            value = None  # an exception that refers to the frame that refers to it would wait for a collection
            crew.close()

    return ahead
