"""``multiprocess_reader``: several readers, each in a process of its own, as one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol, SupportsIndex

from pydp2.errors import OptionError, OptionTypeError, ReaderError
from pydp2.prefetch import PrefetchHelper, PrefetchQueue, PrefetchThreads, QueueClosed
from pydp2.reader.children import ForkedChild, forked_or_warned
from pydp2.reader.contract import Reader, check_reader, check_size
from pydp2.reader.messages import END, ITEM, RAISED, ReaderMessage, read_into


def multiprocess_reader(readers: list[Reader], use_pipe: bool = True, queue_size: SupportsIndex = 1000) -> Reader:
    """Return a reader of the entries of all ``readers``, each of which runs in a forked process of its own.

    ``use_pipe``: one entry of each in turn, as long as it has some; so the order is always the same. Without it: as
    they come, up to ``queue_size`` of them read ahead. Where the caller has threads already, threads take the place of
    processes, with a warning. Entries are pickled on their way, so tuples and arrays stay what they are. See
    docs/readers.md (RD-22 to RD-25).

    While iterating: ReaderError (a ValueError) where an entry is None, where a reader raised (what it was is the cause,
    and its traceback is in the text), where an entry cannot be pickled or built again here, and where its process was
    killed.

    Raises OptionTypeError, OptionError: ``readers`` is no list of readers, or is empty; ``queue_size`` is below 1.
    """
    if not isinstance(readers, list):
        raise OptionTypeError(f"readers must be a list of readers, got {readers!r:.80} ({type(readers).__name__})")
    if not readers:
        raise OptionError("readers must hold at least one reader, got an empty list")
    checked = [check_reader(f"reader {i}", reader) for i, reader in enumerate(readers)]
    room = check_size("queue_size", queue_size, 1)
    told: list[str] = []

    def merged() -> Iterator[Any]:
        sources: list[_MergedReader] = []
        queue = PrefetchQueue[ReaderMessage](room)
        threads = PrefetchThreads(queue)
        try:
            forked = forked_or_warned("multiprocess_reader()", told)
            for i, reader in enumerate(checked):
                source: _MergedReader = _ReaderInProcess(i, reader) if forked else _ReaderInThread(i)
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

    return merged


class _MergedReader(PrefetchHelper, Protocol):
    """Where the entries of one reader come from."""

    def receive(self) -> ReaderMessage: ...


class _ReaderInProcess(ForkedChild):
    """A reader in a process of its own."""

    def __init__(self, number: int, reader: Reader) -> None:
        super().__init__(f"reader {number} of multiprocess_reader", lambda inbox, send: _read(reader, send))
        self._number = number

    def receive(self) -> ReaderMessage:
        try:
            return _named_reader_error(self._number, super().receive())
        except ReaderError as error:
            return RAISED, error


class _ReaderInThread:
    """A reader in a thread of this process. It is read one entry ahead."""

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
    told = "\n\n".join([f"reader {number} of multiprocess_reader raised {type(error).__name__}: {error}",
                        *getattr(error, "__notes__", ())])  # fmt: skip
    wrapped = ReaderError(told)
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
