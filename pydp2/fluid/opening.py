"""Read many files with several threads, through one queue."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from pydp2.errors import OptionError, OptionTypeError
from pydp2.fluid.base import Reader
from pydp2.fluid.files import Name, format_of, instances_of, text_of
from pydp2.fluid.prefetching import InstanceQueue, PrefetchingReader, PutInstances
from pydp2.fluid.repeating import multi_pass
from pydp2.fluid.shapes import SlotShapes, slot_shapes
from pydp2.options.values import flag_or_none, integer_from


class MultipleReader(PrefetchingReader):
    """See :func:`open_files`."""

    def __init__(self, filenames: Sequence[str], slots: SlotShapes, thread_num: int, buffer_size: int) -> None:
        super().__init__(buffer_size, "pydp2-open-files")
        self.filenames = tuple(filenames)
        self.thread_num = thread_num
        self._declared = slots

    def _producers(self) -> Sequence[PutInstances]:
        waiting = _Waiting(self.filenames)
        slots = self._declared
        return [lambda queue: _read(waiting, slots, queue) for _ in range(self.thread_num)]


class _Waiting:
    """The files that no thread has taken yet."""

    def __init__(self, filenames: Sequence[str]) -> None:
        self._names = deque(filenames)
        self._lock = threading.Lock()

    def popleft(self) -> str | None:
        """Return the next file, each file once; None if no file is left."""
        with self._lock:
            return self._names.popleft() if self._names else None


def _read(waiting: _Waiting, slots: SlotShapes, queue: InstanceQueue) -> None:
    while not queue.closed and (name := waiting.popleft()) is not None:
        with closing(instances_of(name, slots)) as instances:
            for instance in instances:
                queue.put(instance)


def open_files(
    filenames: Name | Sequence[Name],
    shapes: Sequence[Sequence[int]],
    lod_levels: Sequence[int] | None = None,
    dtypes: Sequence[Any] | None = None,
    *,
    thread_num: int | None = None,
    buffer_size: int | None = None,
    pass_num: int = 1,
    is_test: bool | None = False,
) -> Reader:
    """Return a reader of the instances of all files. Threads read the files; each instance comes once.

    ``thread_num`` threads (default: one for each file, at most one for each processor) take files from the list. Each
    thread reads its file to the end, into one queue for ``buffer_size`` instances (default: 3 x ``thread_num``). So
    instances of one file keep their order, but the order between files depends on the speed of the threads.
    ``is_test``: one thread reads the files in the order of the list. ``shapes``, ``lod_levels``, ``dtypes``: as in
    :class:`FileReader`. ``pass_num``: so many passes are read as one, see :func:`multi_pass`.

    Raises OptionError and OptionTypeError for invalid values, and OptionError for a name without a registered tag.
    ``read_next()`` raises an error in a file, after the instances that were read before it. See docs/fluid.md.
    """
    names = _names(filenames)
    slots = slot_shapes(shapes, lod_levels, dtypes)
    threads = min(len(names), os.cpu_count() or 1) if thread_num is None else integer_from(1)("thread_num", thread_num)
    room = None if buffer_size is None else integer_from(1)("buffer_size", buffer_size)
    if flag_or_none("is_test", is_test):
        threads = 1
    reader = MultipleReader(names, slots, threads, 3 * threads if room is None else room)
    passes = integer_from(1)("pass_num", pass_num)
    return reader if passes == 1 else multi_pass(reader, passes)


def _names(filenames: Name | Sequence[Name]) -> list[str]:
    if isinstance(filenames, str | os.PathLike):
        filenames = [filenames]
    if not isinstance(filenames, Sequence):
        raise OptionTypeError(f"filenames must be a list of names, or one name, got {type(filenames).__name__}")
    if not filenames:
        raise OptionError("filenames must be a list of at least one name, got none")
    names = [text_of(name) for name in filenames]
    for name in names:
        format_of(name)
    return names
