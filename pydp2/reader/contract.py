"""Define a reader: a function without arguments that gives a fresh iterable at every call.

The rule that all modules of this part share, and what follows from it: a reader is checked when it is decorated, and
what it gave is closed by whoever iterated it. See docs/readers.md.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from inspect import isgenerator
from typing import Any, SupportsIndex

from pydp2.errors import OptionError, OptionTypeError

Reader = Callable[[], Iterable[Any]]
"""Each call gives a fresh iterable of entries; an entry is one item, or a tuple of items."""
BatchReader = Callable[[], Iterable[list[Any]]]
"""Each call gives a fresh iterable of lists of entries."""


def check_reader(name: str, value: object) -> Reader:
    """``value`` as a reader. Raises OptionTypeError: it cannot be called; it says so if it is what a reader gives."""
    if callable(value):
        return value
    hint = ": give the function itself, not what its call gives" if isinstance(value, Iterable) else ""
    raise OptionTypeError(f"{name} must be a reader, a function without arguments that gives an iterable{hint}, "
                          f"got {value!r:.80} ({type(value).__name__})")  # fmt: skip


def check_size(name: str, value: SupportsIndex, least: int = 0) -> int:
    """``value`` as a number of things from ``least``; more than Python can count are as many as it can.

    Raises OptionTypeError or OptionError.
    """
    return min(check_whole(name, value, least), sys.maxsize)


def check_whole(name: str, value: SupportsIndex, least: int = 0) -> int:
    """``value`` as a whole number from ``least``; 5.0 is one. Raises OptionTypeError or OptionError."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise OptionTypeError(f"{name} must be a whole number, got {value!r:.80} ({type(value).__name__})")
    number = operator.index(value)
    if number < least:
        raise OptionError(f"{name} must be at least {least}, got {number}")
    return number


@contextmanager
def iterating(*readers: Reader) -> Iterator[list[Iterator[Any]]]:
    """A fresh iterator of each reader, in their order; closed at the end, those that this call has opened.

    A generator is: each call makes one. So is an iterator that differs from what the reader gave, as the pass of a
    client. An iterator that a reader gave as it is (an open file, say) may be somebody's who goes on with it.
    """
    with ExitStack() as stack:
        iterators = []
        for reader in readers:
            given, iterator = _begun(reader)
            iterators.append(iterator)
            close = getattr(iterator, "close", None)
            if close is not None and (isgenerator(iterator) or given is not iterator):
                stack.callback(close)
        yield iterators


def _begun(reader: Reader) -> tuple[object, Iterator[Any]]:
    """What the call of ``reader`` gave, and a fresh iterator over it."""
    given = reader()
    if not isinstance(given, Iterable):
        name = getattr(reader, "__qualname__", repr(reader))
        raise OptionTypeError(
            f"a reader must give an iterable, {name} gave {given!r:.80} ({type(given).__name__}); does it lack a yield?"
        )
    return given, iter(given)
