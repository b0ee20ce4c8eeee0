"""Shuffle: instances of one buffer after the other, each buffer in a drawn order."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import numpy as np

from pydp2.fluid.base import GeneratedDecorator, Source, rest_of
from pydp2.fluid.tensors import Instance
from pydp2.options.values import integer_from

_check_seed = integer_from(0)


class ShuffleReader(GeneratedDecorator):
    """See :func:`shuffle`."""

    def __init__(self, underlying: Source, buffer_size: int, seed: int) -> None:
        super().__init__(underlying)
        self._buffer_size = integer_from(1)("buffer_size", buffer_size)
        self._seed = _check_seed("seed", seed) or secrets.randbits(64)

    def _instances(self) -> Iterator[Instance]:
        drawn = np.random.default_rng((self._seed, self._passes))
        return _shuffled(rest_of(self.underlying), self._buffer_size, drawn)


def _shuffled(instances: Iterator[Instance], buffer_size: int, drawn: np.random.Generator) -> Iterator[Instance]:
    buffer: list[Instance] = []
    for instance in instances:
        buffer.append(instance)
        if len(buffer) == buffer_size:
            yield from _in_drawn_order(buffer, drawn)
    yield from _in_drawn_order(buffer, drawn)


def _in_drawn_order(buffer: list[Instance], drawn: np.random.Generator) -> Iterator[Instance]:
    """All of ``buffer``, which is empty afterwards: what was given is not held."""
    order = drawn.permutation(len(buffer))
    buffer[:] = [buffer[i] for i in order[::-1]]
    while buffer:
        yield buffer.pop()


def shuffle(reader: Source, buffer_size: int, seed: int = 0) -> ShuffleReader:
    """The instances of ``reader``, in a drawn order within each ``buffer_size`` of them.

    A buffer is filled, given out in a random order, and filled again. ``seed``: what the order of each pass is drawn
    from, together with the number of the pass; 0 for another one each time. Beginning anew drops the buffer. Raises
    OptionError for a ``buffer_size`` below 1 or a negative seed. See docs/fluid.md.
    """
    return ShuffleReader(reader, buffer_size, seed)
