"""``xmap_readers``: run a mapper in several threads or processes at the same time.

One thread reads the source. For each mapper, one thread takes entries that were read. If the mapper is a process, this
thread only sends entries to the process and receives results. A queue of limited size counts the entries under way: the
reading thread puts a token into it for each entry, and the consumer takes a token out for each result.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from queue import Empty
from typing import Any, Protocol, SupportsIndex

from pydp2.errors import OptionTypeError, ReaderError
from pydp2.reader.children import ForkedChild, forked_or_warned
from pydp2.reader.contract import Reader, check_reader, check_size, decorated
from pydp2.reader.messages import END, ITEM, RAISED, ReaderMessage, read_into
from pydp2.system.prefetch import PrefetchQueue, PrefetchThreads, QueueClosed

_AHEAD = 2  # entries that a process has: the one that it maps, and the next one, so that it need not wait

Mapper = Callable[[Any], Any]
Results = Iterator[tuple[int, ReaderMessage]]
_Queue = PrefetchQueue[Any]


def xmap_readers(
    mapper: Mapper,
    reader: Reader,
    process_num: SupportsIndex,
    buffer_size: SupportsIndex,
    order: bool = False,
    *,
    processes: bool = False,
) -> Reader:
    """Return a reader of ``mapper(entry)`` for each entry of ``reader``, ``process_num`` of them at a time.

    At most ``buffer_size`` entries wait besides those that are being mapped; 0 means any number. With ``order`` results
    have the order of ``reader``; otherwise they come as they are ready. With ``processes`` mappers run in forked
    processes in place of threads, which helps mappers that compute in Python; entries and results are then pickled on
    their way. If the caller has several threads already, mappers run in threads, with a warning. See docs/readers.md
    (RD-18 to RD-21).

    While iterating, it raises the exceptions of ``mapper`` and ``reader``; those of a process have its traceback in
    their notes. It raises ReaderError if a process was killed, and if an entry or result cannot be built again on the
    other side.

    Raises OptionTypeError, OptionError: ``mapper`` or ``reader`` cannot be called; ``process_num`` is below 1;
    ``buffer_size`` is negative.
    """
    if not callable(mapper):
        raise OptionTypeError(f"mapper must be a function of an entry, got {mapper!r:.80}")
    check_reader("reader", reader)
    number = check_size("process_num", process_num, 1)
    room = check_size("buffer_size", buffer_size)
    warned: list[str] = []

    def mapped(source: Reader) -> Iterator[Any]:
        mappings: list[_Mapping] = []
        value = None
        tokens, todo, done = _Queue(room + number if room else 0), _Queue(), _Queue()
        threads = PrefetchThreads(tokens, todo, done)
        try:
            forked = processes and forked_or_warned("xmap_readers()", warned)
            for i in range(number):  # fork before the first thread starts
                if forked:
                    mappings.append(child := _MapperInProcess(i, mapper))
                    threads.add_helper(child)
                else:
                    mappings.append(_MapperInThread(mapper))
            threads.start("pydp2 xmap read", _feed, source, number, tokens, todo, done)
            for mapping in mappings:
                threads.start("pydp2 xmap map", _map, mapping, todo, done)
            results = _results(done, number)
            for kind, value in _in_order(results) if order else _as_they_come(results):
                if kind == RAISED:
                    raise value
                tokens.get()
                yield value
        finally:
            value = None  # see buffered()
            threads.close()

    return decorated(mapped, reader)


# -- one mapper, in a thread or a process ------------------------------------------------------------------------------
class _Mapping(Protocol):
    """One mapper, in a thread or a process: it maps the entries that it gets, in their order."""

    max_pending: int

    def submit(self, entry: object) -> None: ...
    def result(self) -> ReaderMessage: ...


class _MapperInThread:
    """Mapper in the thread that asks for its results."""

    max_pending = 1

    def __init__(self, mapper: Mapper) -> None:
        self._mapper = mapper
        self._entry: Any = None

    def submit(self, entry: object) -> None:
        self._entry = entry

    def result(self) -> ReaderMessage:
        try:
            return ITEM, self._mapper(self._entry)
        except BaseException as error:
            return RAISED, error
        finally:
            self._entry = None


class _MapperInProcess(ForkedChild):
    """Mapper in a process of its own."""

    max_pending = _AHEAD

    def __init__(self, number: int, mapper: Mapper) -> None:
        def work(inbox: _Queue, send: Callable[[ReaderMessage], None]) -> None:
            local_mapper = _MapperInThread(mapper)
            while True:
                message = inbox.get()
                if message[0] == ITEM:
                    local_mapper.submit(message[1])
                    message = local_mapper.result()
                try:
                    send(message)
                except QueueClosed:
                    raise
                except Exception as error:  # the result cannot be pickled
                    send((RAISED, error))

        super().__init__(f"mapper {number} of xmap_readers", work)

    def submit(self, entry: object) -> None:
        self.send(entry)

    def result(self) -> ReaderMessage:
        return self.receive()


# -- threads -----------------------------------------------------------------------------------------------------------
def _feed(reader: Reader, mappers: int, tokens: _Queue, todo: _Queue, done: _Queue) -> None:
    """Number the entries of ``reader`` and put them into ``todo``; then put an end (None) for each mapper."""
    count = 0

    def put(message: ReaderMessage) -> None:
        nonlocal count
        if message[0] == ITEM:
            tokens.put(None)
            todo.put((count, message[1]))
            count += 1
            return
        if message[0] == RAISED:
            done.put((count, (_SOURCE, message[1])))
        for _ in range(mappers):
            todo.put(None)

    read_into(reader, put)


_SOURCE = "raised by the source"


def _map(mapping: _Mapping, todo: _Queue, done: _Queue) -> None:
    """Take entries from ``todo``, have them mapped at ``mapping``, put the results into ``done``, then an END."""
    under_way: deque[int] = deque()
    more = True
    try:
        while more or under_way:
            while more and len(under_way) < mapping.max_pending:
                try:
                    task = todo.get(block=not under_way)
                except Empty:
                    break
                if task is None:
                    more = False
                    break
                try:
                    mapping.submit(task[1])
                except (QueueClosed, ReaderError):
                    under_way.append(task[0])
                    raise
                except Exception as error:  # the entry cannot be pickled; other entries are not affected
                    done.put((task[0], (RAISED, error)))
                else:
                    under_way.append(task[0])
            if under_way:
                message = mapping.result()
                done.put((under_way.popleft(), message))
        done.put((-1, (END, None)))
    except QueueClosed:
        raise
    except BaseException as error:  # its process was killed
        done.put((under_way[0], (RAISED, error)))


# -- the consumer ------------------------------------------------------------------------------------------------------
def _results(done: _Queue, mappers: int) -> Results:
    """Yield numbered results as they come. An exception of the source comes after the results of its entries."""
    last = None
    while mappers:
        number, message = done.get()
        if message[0] == END:
            mappers -= 1
        elif message[0] == _SOURCE:
            last = number, (RAISED, message[1])
        else:
            yield number, message
    if last is not None:
        yield last


def _as_they_come(results: Results) -> Iterator[ReaderMessage]:
    for _, message in results:
        yield message


def _in_order(results: Results) -> Iterator[ReaderMessage]:
    waiting: dict[int, ReaderMessage] = {}
    expected = 0
    for number, message in results:
        waiting[number] = message
        while expected in waiting:
            yield waiting.pop(expected)
            expected += 1
