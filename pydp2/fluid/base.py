"""Read instances as Fluid does: ``read_next``, ``has_next``, ``reinit``. Every reader is also an iterable, and a
callable that returns an iterable.

This module has only the rules that all readers share: the end of a pass, looking ahead without consuming, one thread at
a time, new passes, closing. The class of a reader defines what it reads: how a generator makes one pass
(:class:`GeneratedReader`), or how threads fill it (:mod:`.prefetching`).

A reader has one place in one pass. It holds its lock while it reads. A reader takes only the locks of the readers below
it, so a chain of readers cannot deadlock.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from types import TracebackType
from typing import Any, Self

from pydp2.errors import ClientUseError, EOFException, OptionError, OptionTypeError
from pydp2.fluid.tensors import Instance, instance_of
from pydp2.system import single_pass

END = "There is no next data"
STOP_SECONDS = 60.0
"""Seconds for which ``reinit()`` and ``close()`` wait for a thread that is inside a read."""


class Reader(ABC):
    """A source of instances: tuples of :class:`LoDTensor`, one for each slot.

    Calling a reader, or iterating over it, gives a pass from the first instance, so it is also a reader for
    ``pydp2.reader``. A reader that has threads ends them when you close it (``with reader:``), at the end of a pass,
    and when nothing refers to the reader any more. See docs/fluid.md.
    """

    def __init__(self) -> None:
        self._locks: dict[int, threading.RLock] = {}
        self._passes = 0
        """Number of the present pass. An iterator over an older pass raises an error when it has changed."""
        self._begun = False
        """True if ``read_next()`` or ``has_next()`` was called in the present pass."""
        self._begun_in: int | None = None
        """The number of forks where the present pass was begun; None if it has not begun or has ended."""
        self._touched = False
        """True if the present pass may lack instances at its beginning."""
        self._ahead: Instance | BaseException | None = None
        self._failed: Exception | None = None
        self._closed = False

    # -- for users -----------------------------------------------------------------------------------------------------
    def read_next(self) -> Instance:
        """Return the next instance.

        Raises EOFException, "There is no next data", at the end of the pass. Raises an error in the data at its place,
        and again at every later call until :meth:`reinit`. If Ctrl-C interrupted the pass, later calls raise
        ClientUseError, because the instance is lost.
        """
        with self._lock:
            self._begin()
            self._touched = True
            try:
                ahead, self._ahead = self._ahead, None
                if isinstance(ahead, BaseException):
                    raise ahead
                return self._read() if ahead is None else ahead
            except EOFException:
                self._begun_in = None
                raise
            except BaseException as error:
                self._fail(error)
                raise

    def has_next(self) -> bool:
        """Return True if there is another instance in this pass. Repeated calls consume nothing.

        Return True also if an error comes next; :meth:`read_next` raises it. After that, this method raises the error
        too.
        """
        with self._lock:
            self._begin()
            try:
                if self._peek():
                    return True
                self._begun_in = None
                return False
            except Exception:
                raise
            except BaseException as error:
                self._fail(error)
                raise

    def reinit(self) -> None:
        """Begin a new pass from the first instance. Drop everything that was read ahead.

        Raises TimeoutError if a thread stays inside a read. You can read the reader again only after a later call of
        this method succeeds.
        """
        with self._stopped():
            self._check_open()
            self._passes += 1
            self._ahead = None
            self._fail(ClientUseError("the new pass of the reader could not be begun; reinit() tries it again"))
            self._restart()
            self._failed = self._begun_in = None
            self._begun = self._touched = False

    def close(self) -> None:
        """End the threads and close the files of this reader and of all readers below it. You cannot use it again.

        Raises TimeoutError if a thread stays inside a read.
        """
        self._interrupt()
        with self._stopped():
            if not self._closed:
                self._closed = True
                self._ahead = self._failed = None
                self._shut()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Instance]:
        """Return an iterator over a pass from the first instance. The pass begins with the first ``next()``. Threads
        may share the iterator.

        A reader has one place in its data: after a newer pass has begun, the older iterator raises ClientUseError.
        """
        return _Pass(self)

    def __call__(self) -> Generator[Instance]:
        """Return the same pass as a generator, as ``pydp2.reader`` expects it.

        Closing the generator ends the pass: its threads end, its files are closed, and the reader is at the first
        instance again.
        """
        return self._generated()

    def begin_pass(self) -> Callable[[], Generator[Instance]]:
        """Count a pass here, and return a function that gives this pass as a generator, in a fork of this process.

        ``pydp2.reader`` calls it before it reads a reader in a process of its own. Without it the next fork would read
        a pass of the same number again.
        """
        with self._lock:
            number = self._pass_number() + self._dirty()
            self._skip(1)
        return lambda: self._generated(number)

    def _generated(self, number: int | None = None) -> Generator[Instance]:
        with closing(_Pass(self, number)) as instances:
            yield from instances

    # -- for classes of readers ----------------------------------------------------------------------------------------
    @abstractmethod
    def _read(self) -> Instance:
        """Return the next instance. At the end raise EOFException, at each call. The caller holds the lock."""

    def _restart(self) -> None:  # noqa: B027 (there may be nothing to drop)
        """Drop everything and go back to the first instance. The caller holds the lock."""

    def _shut(self) -> None:  # noqa: B027 (there may be nothing to close)
        """Close everything that the reader holds open. Called once; the caller holds the lock."""

    def _interrupt(self) -> None:  # noqa: B027 (there may be nobody waiting)
        """Wake the threads that wait inside :meth:`_read`, because the reader is being closed. Called without the
        lock."""

    def _fail(self, error: BaseException) -> None:
        """Keep the error that ends the pass. The reader raises it until a new pass begins."""
        if not isinstance(error, Exception):  # the generators have ended, although the data have not
            error = ClientUseError(
                f"the pass was interrupted by {type(error).__name__}, and what was being read is lost; reinit() begins "
                "a new one"
            )
        self._failed = error

    def _dirty(self) -> bool:
        """Return True if the present pass may lack instances at its beginning."""
        return self._touched

    def _begin(self) -> None:
        """Prepare for a read or a look ahead. The caller holds the lock.

        Raises the error that has ended the pass, and ClientUseError in a fork if the pass was begun before it: files
        that are open share one place, and what the fork reads the parent would lack.
        """
        self._check_open()
        if self._failed is not None:
            raise self._failed.with_traceback(None)  # or the traceback would grow with each call
        if self._begun_in not in (None, single_pass.forks):
            raise single_pass.begun_before_fork()
        if not self._begun:
            self._touched = self._dirty()
            self._begun = True
            self._begun_in = single_pass.forks

    def _pass_number(self) -> int:
        """Return the number of the present pass."""
        return self._passes

    def _skip(self, passes: int) -> None:
        """Add ``passes`` to the number of the present pass, here and in the readers below."""
        self._passes += passes

    @property
    def _lock(self) -> threading.RLock:
        """The lock of this process. A thread that does not exist in a fork may have held that of the parent."""
        return self._locks.get(single_pass.forks) or self._locks.setdefault(single_pass.forks, threading.RLock())

    @contextmanager
    def _stopped(self) -> Iterator[None]:
        """Wait until no other thread is inside a read, and hold the lock. Raises TimeoutError if a thread stays inside
        a read."""
        lock = self._lock
        if not lock.acquire(timeout=STOP_SECONDS):
            raise TimeoutError(
                f"another thread is still inside a read of this reader after {STOP_SECONDS:g} s; a file or reader that "
                "hangs cannot be interrupted"
            )
        try:
            yield
        finally:
            lock.release()

    def _peek(self) -> bool:
        if self._ahead is None:
            try:
                self._ahead = self._read()
            except EOFException:
                return False
            except Exception as error:
                self._ahead = error
        return True

    def _check_open(self) -> None:
        if self._closed:
            raise ClientUseError("the reader is closed; make a new one")


class _Pass(Iterator[Instance]):
    """One pass of a reader; threads may share it. ``planned``: its number, if that is decided."""

    def __init__(self, reader: Reader, planned: int | None = None) -> None:
        self._reader = reader
        self._planned = planned
        self._number: int | None = None
        self._over = False

    def __next__(self) -> Instance:
        reader = self._reader
        with reader._lock:
            if self._over:
                raise StopIteration
            if self._number is None:
                if reader._dirty():
                    reader.reinit()
                if self._planned is not None:
                    reader._skip(self._planned - reader._pass_number())
                self._number = reader._pass_number()
            elif self._number != reader._pass_number():
                raise single_pass.taken_over("reader")
            try:
                return reader.read_next()
            except EOFException:
                self._over = True
                raise StopIteration from None

    def close(self) -> None:
        """End the pass: its threads end, its files are closed, and the reader is at the first instance again."""
        with self._reader._stopped():
            begun = self._number is not None and not self._over
            self._over = True
            if begun and self._number == self._reader._pass_number() and not self._reader._closed:
                self._reader.reinit()


def end() -> EOFException:
    """Return the exception for the end of a pass."""
    return EOFException(END)


def misplaced(end: EOFException) -> RuntimeError:
    """Return a RuntimeError caused by ``end``, an EOFException from inside an instance. Without it, that exception
    would look like the end of the data."""
    error = RuntimeError("a reader raised EOFException in the middle of an instance")
    error.__cause__ = end
    return error


_of_parents: list[Iterator[Instance]] = []
"""Passes that a fork has dropped. They are kept because a generator that is collected is closed, and their ``finally``
blocks are the parent's affair: its threads may be inside, its temporary files would go."""


class GeneratedReader(Reader):
    """A reader whose pass is a generator: :meth:`_instances`, called anew for each pass."""

    def __init__(self) -> None:
        super().__init__()
        self._pass: Iterator[Instance] | None = None
        self._pass_begun_in = 0

    @abstractmethod
    def _instances(self) -> Iterator[Instance]:
        """Return one pass, as a generator. Its ``finally`` blocks close what it opens.

        The generator must not refer to this reader. Otherwise the two refer to each other, and after the last use of
        the reader its threads would run until the garbage collector frees it.
        """

    def _read(self) -> Instance:
        if self._pass is None:
            self._pass = self._instances()
            self._pass_begun_in = single_pass.forks
        try:
            return next(self._pass)
        except StopIteration:
            raise end() from None
        except EOFException as error:  # like a StopIteration inside a generator
            raise misplaced(error) from error

    def _restart(self) -> None:
        self._drop()

    def _shut(self) -> None:
        self._drop()

    def _drop(self) -> None:
        generator, self._pass = self._pass, None
        if generator is not None and self._pass_begun_in != single_pass.forks:
            _of_parents.append(generator)
            return
        close = getattr(generator, "close", None)
        if close is not None:
            close()


class DecoratedReader(Reader):
    """A reader over another one, its ``underlying``. ``reinit()`` and ``close()`` also restart and close the underlying
    reader.

    A derived class names this class first among its bases; the other bases define where it reads its instances.

    ``underlying`` may also be any callable that returns an iterable (see :func:`from_reader`). Raises OptionError for
    None, and OptionTypeError for any other value that is not a reader.
    """

    def __init__(self, underlying: Source, **others: Any) -> None:
        super().__init__(**others)
        self.underlying = reader_of(underlying)

    def _dirty(self) -> bool:
        return self._touched or (not self._begun and self.underlying._dirty())

    def _skip(self, passes: int) -> None:
        super()._skip(passes)
        self.underlying._skip(passes)

    def _restart(self) -> None:
        super()._restart()
        self.underlying.reinit()

    def _shut(self) -> None:
        super()._shut()
        self.underlying.close()

    def _interrupt(self) -> None:
        super()._interrupt()
        self.underlying._interrupt()


class GeneratedDecorator(DecoratedReader, GeneratedReader):
    """A decorator whose pass is a generator, usually over :func:`rest_of` the underlying reader."""


def rest_of(reader: Reader) -> Iterator[Instance]:
    """Yield the remaining instances of the reader's pass."""
    while True:
        try:
            instance = reader.read_next()
        except EOFException:
            return
        yield instance


class FromReader(GeneratedReader):
    """See :func:`from_reader`."""

    def __init__(self, reader: Callable[[], Iterable[Any]]) -> None:
        super().__init__()
        self._source = reader

    def _instances(self) -> Iterator[Instance]:
        return _entries(self._source)


def _entries(source: Callable[[], Iterable[Any]]) -> Iterator[Instance]:
    made = source()
    if not isinstance(made, Iterable):
        raise OptionTypeError(f"a reader must return an iterable, {source!r:.80} gave {type(made).__name__}")
    items = iter(made)
    try:
        for entry in items:
            yield instance_of(entry, "a reader")
    finally:
        close = getattr(items, "close", None)
        if close is not None:
            close()


Source = Reader | Callable[[], Iterable[Any]]


def from_reader(reader: Callable[[], Iterable[Any]]) -> Reader:
    """Return a Fluid reader over ``reader``: a callable without arguments that returns a new iterable of entries at
    each call.

    An entry is a tuple or list of arrays, tensors or :class:`pydp2.Ragged`, one for each slot; for one slot it may be
    the array itself. Every decorator of this package accepts such a callable and calls this function itself. Raises
    OptionTypeError if ``reader`` is not callable, and while reading for entries that cannot become tensors. See
    docs/fluid.md.
    """
    if isinstance(reader, Reader):
        return reader
    if not callable(reader):
        raise OptionTypeError(f"a reader must be a callable that returns an iterable, got {type(reader).__name__}")
    return FromReader(reader)


def reader_of(source: Source | None) -> Reader:
    """Return ``source`` as a Fluid reader. Raises OptionError for None, and OptionTypeError for any other value that is
    not a reader."""
    if source is None:
        raise OptionError("a decorated reader needs an underlying reader, got None")
    return source if isinstance(source, Reader) else from_reader(source)
