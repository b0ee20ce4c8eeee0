"""Generate instances of random numbers, for tests without data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real

import numpy as np

from pydp2.errors import OptionError, OptionTypeError
from pydp2.fluid.base import Reader
from pydp2.fluid.shapes import Shape, slot_shapes
from pydp2.fluid.tensors import Instance, LoDTensor
from pydp2.options.values import integer_from, or_none


class RandomReader(Reader):
    """See :func:`random_data_generator`."""

    def __init__(
        self,
        low: float,
        high: float,
        shapes: Sequence[Sequence[int]],
        lod_levels: Sequence[int] | None,
        seed: int | None,
    ) -> None:
        super().__init__()
        self._low, self._high = _bound("low", low), _bound("high", high)
        if self._low > self._high:
            raise OptionError(f"low must not be above high, got {low:g} and {high:g}")
        slots = slot_shapes(shapes, lod_levels)
        if any(slots.lod_levels or ()):
            raise OptionError(f"random data have no LoD: lod_levels must be 0 for each slot, got {lod_levels!r:.80}")
        self._shapes = [_fixed(shape, slot) for slot, shape in enumerate(slots.shapes)]
        self._drawn = np.random.default_rng(or_none(integer_from(0, None))("seed", seed))

    def _read(self) -> Instance:
        return tuple(LoDTensor(self._numbers(shape)) for shape in self._shapes)

    def _numbers(self, shape: Shape) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        numbers = self._drawn.uniform(self._low, self._high, shape).astype(np.float32)
        return np.clip(numbers, np.float32(self._low), np.float32(self._high))

    def _peek(self) -> bool:
        return True


def _bound(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise OptionTypeError(f"{name} must be a number, got {value!r:.80}")
    number = float(value)
    if not math.isfinite(number) or abs(number) > float(np.finfo(np.float32).max):
        raise OptionError(f"{name} must be a number that float32 holds, got {number:g}")
    return number


def _fixed(shape: Shape, slot: int) -> Shape:
    if len(shape) < 2:
        raise OptionError(f"shapes must have at least 2 dimensions, rows first, that of slot {slot} is {list(shape)}")
    if min(shape) < 1:
        raise OptionError(f"all dimensions must be known, from 1, those of slot {slot} are {list(shape)}")
    return shape


def random_data_generator(
    low: float,
    high: float,
    shapes: Sequence[Sequence[int]],
    lod_levels: Sequence[int] | None = None,
    *,
    seed: int | None = None,
) -> RandomReader:
    """Return an endless reader of random instances, with one float32 tensor for each of ``shapes``.

    It draws the numbers uniformly from ``low`` to ``high``, both rounded to float32. ``reinit()`` changes nothing: the
    reader continues to draw. ``lod_levels``, if given, must be zeros. Raises OptionError for ``low`` above ``high``,
    for a negative seed, and for shapes with fewer than two dimensions or with unknown ones; OptionTypeError for bounds
    that are not numbers. See docs/fluid.md.
    """
    return RandomReader(low, high, shapes, lod_levels, seed)
