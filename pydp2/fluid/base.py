"""Read instances as Fluid does: ``read_next``, ``has_next``, ``reinit``; every reader is also an iterable, and a reader
to call.

It answers for the contract alone: the end of a pass, looking ahead without consuming, one thread at a time, passes that
are begun anew, closing. What a reader reads is the business of its class, which says how one pass is generated
(:class:`GeneratedReader`) or how threads fill it (:mod:`.prefetching`).

A reader has one place in one pass. Its lock is held while it reads, and a reader only ever takes the locks of those
below it, so a chain of readers cannot lock itself up.
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

END = "There is no next data"
STOP_SECONDS = 60.0
"""How long beginning anew and closing wait for a thread that is inside a read."""


class Reader(ABC):
    """A source of instances: tuples of :class:`LoDTensor`, one for each slot.

    Calling a reader, or iterating over it, gives a pass from the first instance on, so it is also a reader in the sense
    of ``pydp2.reader``. Readers with threads end them when they are closed (``with reader:``), at the end of a pass,
    and when nobody holds them any more. See docs/fluid.md.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._passes = 0
        """Passes that were begun anew; an iteration ends when it changes."""
        self._begun = False
        """Whether the present pass was read or looked at."""
        self._touched = False
        """Whether the present pass may lack instances at its beginning."""
        self._ahead: Instance | BaseException | None = None
        self._failed: Exception | None = None
        self._closed = False

    # -- for users -----------------------------------------------------------------------------------------------------
    def read_next(self) -> Instance:
        """The next instance.

        Raises EOFException, "There is no next data", at the end of the pass. An error in the data is raised where it
        stands, and by every later call until :meth:`reinit`. Where a pass was interrupted (Ctrl-C), later calls raise
        ClientUseError: what was being read then is lost.
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
                raise
            except BaseException as error:
                self._fail(error)
                raise

    def has_next(self) -> bool:
        """Return True if there is another instance in this pass. Consume nothing, however often this is called.

        True before an error too: :meth:`read_next` raises it. Once it did, this does.
        """
        with self._lock:
            self._begin()
            try:
                return self._peek()
            except Exception:
                raise
            except BaseException as error:
                self._fail(error)
                raise

    def reinit(self) -> None:
        """Begin a new pass, from the first instance, wherever this one is; whatever was read ahead is dropped.

        Raises TimeoutError where a thread stays inside of a read; the reader can be read only after a later call
        succeeded.
        """
        with self._stopped():
            self._check_open()
            self._passes += 1
            self._ahead = None
            self._fail(ClientUseError("the new pass of the reader could not be begun; reinit() tries it again"))
            self._restart()
            self._failed = None
            self._begun = self._touched = False

    def close(self) -> None:
        """End threads and close files, of all readers below this one too. A closed reader cannot be used again.

        Raises TimeoutError where a thread stays inside of a read.
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
        """A pass from the first instance on; it begins with the first ``next()``, and may be shared by threads.

        There is one place in the data: where a newer pass was begun, the older iterator raises ClientUseError.
        """
        return _Pass(self)

    def __call__(self) -> Generator[Instance]:
        """The same as a generator: so this is a reader for ``pydp2.reader``.

        Leaving it leaves the pass: its threads end, its files are closed, and the reader stands at the first instance.
        """
        with closing(_Pass(self)) as instances:
            yield from instances

    # -- for classes of readers ----------------------------------------------------------------------------------------
    @abstractmethod
    def _read(self) -> Instance:
        """The next instance, or EOFException, each time; called under the lock."""

    def _restart(self) -> None:  # noqa: B027 (there may be nothing to drop)
        """Drop everything, begin at the first instance; called under the lock."""

    def _shut(self) -> None:  # noqa: B027 (there may be nothing to close)
        """Let go of what is held; called once, under the lock."""

    def _interrupt(self) -> None:  # noqa: B027 (there may be nobody waiting)
        """Wake whoever waits inside :meth:`_read`, because the reader is being closed; called without the lock."""

    def _fail(self, error: BaseException) -> None:
        """Keep what ends the pass: it is raised until a new one is begun."""
        if not isinstance(error, Exception):  # the generators that it went through are over, which is no end of data
            error = ClientUseError(
                f"the pass was interrupted by {type(error).__name__}, and what was being read is lost; reinit() begins "
                "a new one"
            )
        self._failed = error

    def _dirty(self) -> bool:
        """Whether the present pass may lack instances at its beginning."""
        return self._touched

    def _begin(self) -> None:
        """Called under the lock before anything is read or looked at. Raises what has ended the pass."""
        self._check_open()
        if self._failed is not None:
            raise self._failed
        if not self._begun:
            self._touched = self._dirty()
            self._begun = True

    @contextmanager
    def _stopped(self) -> Iterator[None]:
        """The lock, once no other thread is inside of a read. Raises TimeoutError where one stays there."""
        if not self._lock.acquire(timeout=STOP_SECONDS):
            raise TimeoutError(
                f"another thread is still inside a read of this reader after {STOP_SECONDS:g} s; a file or reader that "
                "hangs cannot be interrupted"
            )
        try:
            yield
        finally:
            self._lock.release()

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
    """One pass of a reader; threads may share it."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
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
                self._number = reader._passes
            elif self._number != reader._passes:
                raise ClientUseError(
                    "this pass was left when a newer one of the same reader was begun: a reader has one place in its "
                    "data; read one pass after the other, or make a second reader"
                )
            try:
                return reader.read_next()
            except EOFException:
                self._over = True
                raise StopIteration from None

    def close(self) -> None:
        """Leave the pass: its threads end, its files are closed, and the reader stands at the first instance again."""
        with self._reader._stopped():
            begun = self._number is not None and not self._over
            self._over = True
            if begun and self._number == self._reader._passes and not self._reader._closed:
                self._reader.reinit()


def end() -> EOFException:
    """Return the exception that says the end of a pass."""
    return EOFException(END)


def misplaced(end: EOFException) -> RuntimeError:
    """Return the exception for an ``end`` that comes from inside of an instance, where it would pass for that of the
    data."""
    error = RuntimeError("a reader raised EOFException in the middle of an instance")
    error.__cause__ = end
    return error


class GeneratedReader(Reader):
    """A reader whose pass is a generator: :meth:`_instances`, called anew for each pass."""

    def __init__(self) -> None:
        super().__init__()
        self._pass: Iterator[Instance] | None = None

    @abstractmethod
    def _instances(self) -> Iterator[Instance]:
        """One pass; what is open in it is closed by its ``finally`` blocks.

        The generator must not refer to this reader: they would hold each other, and a reader that nobody else holds
        would keep its threads until garbage is collected.
        """

    def _read(self) -> Instance:
        if self._pass is None:
            self._pass = self._instances()
        try:
            return next(self._pass)
        except StopIteration:
            raise end() from None
        except EOFException as error:  # as a StopIteration inside of a generator
            raise misplaced(error) from error

    def _restart(self) -> None:
        self._drop()

    def _shut(self) -> None:
        self._drop()

    def _drop(self) -> None:
        generator, self._pass = self._pass, None
        close = getattr(generator, "close", None)
        if close is not None:
            close()


class DecoratedReader(Reader):
    """A reader over another one, its ``underlying``; beginning anew begins that one anew, closing closes it.

    Comes first among the bases of its classes: the others say where the instances are read.

    ``underlying`` may also be any callable that returns an iterable (see :func:`from_reader`). Raises OptionError for
    None, OptionTypeError for anything else that is no reader.
    """

    def __init__(self, underlying: Source, **others: Any) -> None:
        super().__init__(**others)
        self.underlying = reader_of(underlying)

    def _dirty(self) -> bool:
        return self._touched or (not self._begun and self.underlying._dirty())

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
    """A decorator whose pass is a generator, as a rule over :func:`rest_of` the underlying reader."""


def rest_of(reader: Reader) -> Iterator[Instance]:
    """Yield what is left of the reader's pass."""
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
    """A Fluid reader of any reader in the sense of ``pydp2.reader``: a callable without arguments that returns a fresh
    iterable of entries.

    An entry is a tuple (or list) of arrays, tensors or :class:`pydp2.Ragged`, one for each slot, or a single one. Every
    decorator of this part takes such a callable as it is, and does this itself. Raises OptionTypeError, while reading,
    for entries that no tensors can be made of. See docs/fluid.md.
    """
    if isinstance(reader, Reader):
        return reader
    if not callable(reader):
        raise OptionTypeError(f"a reader must be a callable that returns an iterable, got {type(reader).__name__}")
    return FromReader(reader)


def reader_of(source: Source | None) -> Reader:
    """``source`` as a Fluid reader. Raises OptionError for None, OptionTypeError for what is no reader."""
    if source is None:
        raise OptionError("a decorated reader needs an underlying reader, got None")
    return source if isinstance(source, Reader) else from_reader(source)
