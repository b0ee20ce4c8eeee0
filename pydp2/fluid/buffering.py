"""Read the next instances in a thread, and copy them to a device, while the caller uses the present one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pydp2.errors import EOFException
from pydp2.fluid.base import DecoratedReader, Reader, Source
from pydp2.fluid.placing import placement
from pydp2.fluid.prefetching import InstanceQueue, PrefetchingReader, PutInstances
from pydp2.fluid.tensors import Instance
from pydp2.options.values import integer_from


class DoubleBufferReader(DecoratedReader, PrefetchingReader):
    """See :func:`double_buffer`."""

    def __init__(self, underlying: Source, place: Any, depth: int) -> None:
        super().__init__(underlying, size=integer_from(1)("depth", depth), name="pydp2-double-buffer")
        self._placement = placement(place)

    def _producers(self) -> Sequence[PutInstances]:
        underlying, copy = self.underlying, self._placement.copy
        return [lambda queue: _fill(queue, underlying, copy)]

    def _read(self) -> Instance:
        instance = super()._read()
        self._placement.hand_over(instance)
        return instance

    def _restart(self) -> None:
        self._interrupt()  # wake the thread: it may be waiting for the threads of a reader below
        super()._restart()


def _fill(queue: InstanceQueue, underlying: Reader, copy: Callable[[Instance], Instance]) -> None:
    while True:
        queue.wait_for_room()  # before it reads, so that no more than `depth` instances exist
        try:
            instance = copy(underlying.read_next())
        except EOFException:
            return
        queue.put(instance)


def double_buffer(reader: Source, place: Any = None, depth: int = 2) -> DoubleBufferReader:
    """Return a reader whose thread reads ``reader`` ahead. At most ``depth`` instances wait, in the same order.

    ``place``: the device to which the thread copies them. None or ``"cpu"``: they stay arrays. A ``torch.device``, or a
    name such as ``"cuda"`` or ``"cuda:1"``: the data become torch tensors on that device. ``"auto"``: the first CUDA
    device; if there is none, they stay arrays. Every place except None and ``"cpu"`` needs the extra ``torch``. Raises
    ImportError, with the remedy, if torch is not installed, OptionError for a place that does not exist or a ``depth``
    below 1, and OptionTypeError for a place of another type. See docs/fluid.md.
    """
    return DoubleBufferReader(reader, place, depth)
