"""Shuffle instances within one buffer after the other."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import numpy as np

from pydp2.fluid.base import GeneratedDecorator, Source, rest_of
from pydp2.fluid.tensors import Instance
from pydp2.options.values import integer_from

_check_seed = integer_from(0, None)


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
    """Yield all instances of ``buffer`` in a random order. Remove each one first, so that the buffer does not keep its
    memory."""
    order = drawn.permutation(len(buffer))
    buffer[:] = [buffer[i] for i in order[::-1]]
    while buffer:
        yield buffer.pop()


def shuffle(reader: Source, buffer_size: int, seed: int = 0) -> ShuffleReader:
    """Return a reader that shuffles each ``buffer_size`` instances of ``reader``.

    It fills a buffer, gives out the instances in a random order, and fills the buffer again. ``seed`` and the number of
    the pass decide the order; with 0 each reader draws a seed of its own. ``reinit()`` drops the buffer. Raises
    OptionError for a ``buffer_size`` below 1 or a negative seed. See docs/fluid.md.
    """
    return ShuffleReader(reader, buffer_size, seed)
