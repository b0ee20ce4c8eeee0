"""Double buffer: the next instances are read, and placed, while the present one is used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pydp2.errors import EOFException
from pydp2.fluid.base import DecoratedReader, Reader, Source
from pydp2.fluid.placing import placer
from pydp2.fluid.prefetching import InstanceQueue, PrefetchingReader, PutInstances
from pydp2.fluid.tensors import Instance
from pydp2.options.values import integer_from


class DoubleBufferReader(DecoratedReader, PrefetchingReader):
    """See :func:`double_buffer`."""

    def __init__(self, underlying: Source, place: Any, depth: int) -> None:
        super().__init__(underlying, size=integer_from(1)("depth", depth), name="pydp2-double-buffer")
        self._place = placer(place)

    def _producers(self) -> Sequence[PutInstances]:
        underlying, place = self.underlying, self._place
        return [lambda queue: _fill(queue, underlying, place)]

    def _restart(self) -> None:
        self._interrupt()  # the thread may be waiting for the threads of a reader below: it is not to wait for them
        super()._restart()


def _fill(queue: InstanceQueue, underlying: Reader, place: Callable[[Instance], Instance]) -> None:
    while True:
        queue.wait_for_room()  # before reading: so that no more than `depth` are there
        try:
            instance = place(underlying.read_next())
        except EOFException:
            return
        queue.put(instance)


def double_buffer(reader: Source, place: Any = None, depth: int = 2) -> DoubleBufferReader:
    """``reader``, read ahead by a thread: at most ``depth`` instances wait, in the same order.

    ``place``: where they are put before they are asked for. None or ``"cpu"``: they stay arrays. A ``torch.device``,
    ``"cuda"``, ``"cuda:1"`` and the like: the data become torch tensors on it; ``"auto"``: on the first CUDA device, or
    arrays where there is none. That needs the extra ``torch``; raises ImportError, with the remedy, where it is
    missing, OptionError for a place that does not exist. See docs/fluid.md.
    """
    return DoubleBufferReader(reader, place, depth)
