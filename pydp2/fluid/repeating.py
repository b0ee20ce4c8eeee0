"""Read several passes of a reader as one."""

from __future__ import annotations

from collections.abc import Iterator

from pydp2.fluid.base import GeneratedDecorator, Reader, Source, rest_of
from pydp2.fluid.tensors import Instance
from pydp2.options.values import integer_from


class MultiPassReader(GeneratedDecorator):
    """See :func:`multi_pass`."""

    def __init__(self, underlying: Source, pass_num: int) -> None:
        super().__init__(underlying)
        self._pass_num = integer_from(1)("pass_num", pass_num)

    def _skip(self, passes: int) -> None:
        self._passes += passes
        self.underlying._skip(passes * self._pass_num)

    def _instances(self) -> Iterator[Instance]:
        return _repeated(self.underlying, self._pass_num)


def _repeated(reader: Reader, pass_num: int) -> Iterator[Instance]:
    for number in range(pass_num):
        if number:
            reader.reinit()
        yield from rest_of(reader)


def multi_pass(reader: Source, pass_num: int) -> MultiPassReader:
    """Return a reader that reads ``pass_num`` passes of ``reader``, one after the other, as one pass.

    ``has_next()`` returns True until the last pass has ended. ``reinit()`` counts the passes from 0 again. An empty
    reader ends at once. Raises OptionError for a ``pass_num`` below 1. See docs/fluid.md.
    """
    return MultiPassReader(reader, pass_num)
