"""Define a reader: a function without arguments that gives a fresh iterable at every call.

All modules of this part share this rule, and two more that follow from it: a decorator checks a reader at once, and the
code that iterates over the result of a reader closes it. See docs/readers.md.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
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
    raise OptionTypeError(
        f"{name} must be a reader, a function without arguments that gives an iterable{hint}, "
        f"got {value!r:.80} ({type(value).__name__})"
    )


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


def decorated(
    read: Callable[..., Iterator[Any]],
    *readers: Reader,
    begin: Callable[[], tuple[Any, ...]] = tuple,
    batch_size: int | None = None,
) -> Reader:
    """Return a reader whose passes are ``read(*readers, *begin())``.

    Args:
        read: generator function of the readers, and of what distinguishes this pass.
        readers: the readers below.
        begin: function that is called once for each pass, when it begins; what it returns belongs to this pass.
        batch_size: number of entries in each list, if the entries are lists that :func:`batch` made.
    """

    def reader() -> Iterator[Any]:
        return read(*readers, *begin())

    reader.__qualname__ = read.__qualname__  # for errors
    reader.begin_pass = lambda: partial(read, *map(begun, readers), *begin())  # type: ignore[attr-defined]
    if batch_size is not None:
        reader.batch_size = batch_size  # type: ignore[attr-defined]
    return reader


def begun(reader: Reader) -> Reader:
    """Begin a pass of ``reader``, and return a function that is called once and gives this pass, also in a fork.

    A reader that counts its passes has a function ``begin_pass`` for this, and decorators call those of the readers
    below; counted in the fork, each pass there would have the same number. A reader without it is returned as it is.
    """
    begin_pass: Callable[[], Reader] | None = getattr(reader, "begin_pass", None)
    return reader if begin_pass is None else begin_pass()


def batch_size_of(*readers: Reader) -> int | None:
    """Return the number of entries in each list that ``readers`` give; None if they differ, or are no batch readers."""
    sizes = {getattr(reader, "batch_size", None) for reader in readers}
    return sizes.pop() if len(sizes) == 1 else None


@contextmanager
def iterating(*readers: Reader) -> Iterator[list[Iterator[Any]]]:
    """Give a fresh iterator of each reader, in their order, and at the end close those that this call has opened.

    These are generators, because each call makes one, and iterators that differ from the result of the reader, such as
    the pass of a client. An iterator that a reader itself returned (an open file, say) may be in use elsewhere.
    """
    with ExitStack() as stack:
        iterators = []
        for reader in readers:
            given, iterator = _called(reader)
            iterators.append(iterator)
            close = getattr(iterator, "close", None)
            if close is not None and (isgenerator(iterator) or given is not iterator):
                stack.callback(close)
        yield iterators


def _called(reader: Reader) -> tuple[object, Iterator[Any]]:
    """Return the result of calling ``reader``, and a fresh iterator over it."""
    given = reader()
    if not isinstance(given, Iterable):
        name = getattr(reader, "__qualname__", repr(reader))
        raise OptionTypeError(
            f"a reader must give an iterable, {name} gave {given!r:.80} ({type(given).__name__}); does it lack a yield?"
        )
    return given, iter(given)
