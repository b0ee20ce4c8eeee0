"""``multiprocess_reader``: merge several readers, each in a process of its own, into one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol, SupportsIndex

from pydp2.errors import OptionError, OptionTypeError, ReaderError
from pydp2.reader.children import ForkedChild, forked_or_warned
from pydp2.reader.contract import Reader, batch_size_of, begun, check_reader, check_size, decorated
from pydp2.reader.messages import END, ITEM, RAISED, ReaderMessage, read_into
from pydp2.system.prefetch import PrefetchHelper, PrefetchQueue, PrefetchThreads, QueueClosed


def multiprocess_reader(readers: list[Reader], use_pipe: bool = True, queue_size: SupportsIndex = 1000) -> Reader:
    """Return a reader of the entries of all ``readers``, each of which runs in a forked process of its own.

    With ``use_pipe`` it gives one entry of each reader in turn, until that reader ends, so the order is always the
    same. Without ``use_pipe`` it gives entries as they come, and reads up to ``queue_size`` of them ahead. If the
    caller has several threads already, threads take the place of processes, with a warning. Entries from processes are
    pickled on their way, so tuples and arrays keep their types. See docs/readers.md (RD-22 to RD-25).

    While iterating, it raises a ReaderError (a ValueError) if an entry is None, if a reader raised an exception (which
    is the cause; its traceback is in the text), if an entry cannot be pickled or built again here, and if a process was
    killed.

    Raises OptionTypeError, OptionError: ``readers`` is not a list of readers, or is empty; ``queue_size`` is below 1.
    """
    if not isinstance(readers, list):
        raise OptionTypeError(f"readers must be a list of readers, got {readers!r:.80} ({type(readers).__name__})")
    if not readers:
        raise OptionError("readers must hold at least one reader, got an empty list")
    checked = [check_reader(f"reader {i}", reader) for i, reader in enumerate(readers)]
    room = check_size("queue_size", queue_size, 1)
    warned: list[str] = []

    def merged(*of_pass: Reader) -> Iterator[Any]:
        sources: list[_MergedReader] = []
        queue = PrefetchQueue[ReaderMessage](room)
        threads = PrefetchThreads(queue)
        try:
            forked = forked_or_warned("multiprocess_reader()", warned)
            for i, reader in enumerate(of_pass):
                source: _MergedReader = _ReaderInProcess(i, begun(reader)) if forked else _ReaderInThread(i)
                sources.append(source)
                threads.add_helper(source)
                if isinstance(source, _ReaderInThread):
                    threads.start("pydp2 multiprocess read", _read, reader, source.put)
            if use_pipe:
                yield from _round_robin(sources)
            else:
                for source in sources:
                    threads.start("pydp2 multiprocess merge", _forward, source, queue)
                yield from _as_they_come(queue, len(sources))
        finally:
            threads.close()

    return decorated(merged, *checked, batch_size=batch_size_of(*checked))


class _MergedReader(PrefetchHelper, Protocol):
    """Source of the entries of one reader: a process or a thread."""

    def receive(self) -> ReaderMessage: ...


class _ReaderInProcess(ForkedChild):
    """Reader in a process of its own."""

    def __init__(self, number: int, reader: Reader) -> None:
        super().__init__(f"reader {number} of multiprocess_reader", lambda inbox, send: _read(reader, send))
        self._number = number

    def receive(self) -> ReaderMessage:
        try:
            return _named_reader_error(self._number, super().receive())
        except ReaderError as error:
            return RAISED, error


class _ReaderInThread:
    """Reader in a thread of this process, which reads one entry ahead."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._queue = PrefetchQueue[ReaderMessage](1)
        self.put = self._queue.put

    def receive(self) -> ReaderMessage:
        return _named_reader_error(self._number, self._queue.get())

    def stop(self) -> None:
        self._queue.close()

    def close(self) -> None:
        self._queue.close()


def _read(reader: Reader, put: Callable[[ReaderMessage], None]) -> None:
    def put_checked(message: ReaderMessage) -> None:
        if message[0] == ITEM and message[1] is None:
            raise ValueError("an entry is None, which is not a sample: leave it out, or yield (None,)")
        put(message)

    read_into(reader, put_checked)


def _named_reader_error(number: int, message: ReaderMessage) -> ReaderMessage:
    """Return ``message``; an exception of a reader becomes the cause of a ReaderError."""
    kind, error = message
    if kind != RAISED:
        return message
    text = "\n\n".join(
        [
            f"reader {number} of multiprocess_reader raised {type(error).__name__}: {error}",
            *getattr(error, "__notes__", ()),
        ]
    )
    wrapped = ReaderError(text)
    wrapped.__cause__ = error
    return RAISED, wrapped


def _round_robin(readers: list[_MergedReader]) -> Iterator[Any]:
    waiting = deque(readers)
    while waiting:
        source = waiting.popleft()
        kind, value = source.receive()
        if kind == RAISED:
            raise value
        if kind == ITEM:
            yield value
            waiting.append(source)


def _forward(reader: _MergedReader, queue: PrefetchQueue[ReaderMessage]) -> None:
    kind = ITEM
    while kind == ITEM:
        try:
            message = reader.receive()
        except QueueClosed:
            raise
        except BaseException as error:  # of any type: the consumer that waits for the queue must get it
            message = RAISED, error
        kind = message[0]
        queue.put(message)


def _as_they_come(queue: PrefetchQueue[ReaderMessage], reader_count: int) -> Iterator[Any]:
    while reader_count:
        kind, value = queue.get()
        if kind == RAISED:
            raise value
        if kind == END:
            reader_count -= 1
        else:
            yield value
