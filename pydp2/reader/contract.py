"""Define a reader: a function without arguments that gives a fresh iterable at every call.

All modules of this part share this rule, and two more that follow from it: a decorator checks a reader at once, and the
code that iterates over the result of a reader closes it. See docs/readers.md.
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
"""Function of which each call returns a fresh iterable of entries. An entry is one item, or a tuple of items."""
BatchReader = Callable[[], Iterable[list[Any]]]
"""Function of which each call returns a fresh iterable of lists of entries."""


def check_reader(name: str, value: object) -> Reader:
    """Return ``value``, a reader. Raises OptionTypeError: it cannot be called; a hint helps if it is an iterable."""
    if callable(value):
        return value
    hint = ": give the function itself, not what its call gives" if isinstance(value, Iterable) else ""
    raise OptionTypeError(f"{name} must be a reader, a function without arguments that gives an iterable{hint}, "
                          f"got {value!r:.80} ({type(value).__name__})")  # fmt: skip


def check_size(name: str, value: SupportsIndex, least: int = 0) -> int:
    """Return ``value`` as a number of things, at least ``least`` and at most ``sys.maxsize``.

    Raises OptionTypeError or OptionError.
    """
    return min(check_whole(name, value, least), sys.maxsize)


def check_whole(name: str, value: SupportsIndex, least: int = 0) -> int:
    """Return ``value`` as an int, at least ``least``; 5.0 is allowed. Raises OptionTypeError or OptionError."""
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
    """Give a fresh iterator of each reader, in their order, and at the end close those that this call has opened.

    These are generators, because each call makes one, and iterators that differ from the result of the reader, such as
    the pass of a client. An iterator that a reader itself returned (an open file, say) may be in use elsewhere.
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
    """Return the result of calling ``reader``, and a fresh iterator over it."""
    given = reader()
    if not isinstance(given, Iterable):
        name = getattr(reader, "__qualname__", repr(reader))
        raise OptionTypeError(
            f"a reader must give an iterable, {name} gave {given!r:.80} ({type(given).__name__}); does it lack a yield?"
        )
    return given, iter(given)
