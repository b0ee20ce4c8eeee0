"""Join several instances into one, slot by slot."""

from __future__ import annotations

from collections.abc import Iterator

from pydp2.errors import BadSample
from pydp2.fluid.base import GeneratedDecorator, Source, rest_of
from pydp2.fluid.tensors import Instance, LoDTensor, concat
from pydp2.options.values import flag, integer_from


class BatchReader(GeneratedDecorator):
    """See :func:`batch`."""

    def __init__(self, underlying: Source, batch_size: int, discard_leftover: bool) -> None:
        super().__init__(underlying)
        self._batch_size = integer_from(1)("batch_size", batch_size)
        self._discard_leftover = flag("discard_leftover", discard_leftover)

    def _instances(self) -> Iterator[Instance]:
        return _batches(rest_of(self.underlying), self._batch_size, self._discard_leftover)


def _batches(instances: Iterator[Instance], batch_size: int, discard_leftover: bool) -> Iterator[Instance]:
    given = 0
    waiting: list[Instance] = []
    for instance in instances:
        waiting.append(instance)
        if len(waiting) == batch_size:
            yield _joined(waiting, given)
            given += len(waiting)
            waiting = []
    if waiting and not discard_leftover:
        yield _joined(waiting, given)


def _joined(instances: list[Instance], first: int) -> Instance:
    for i, instance in enumerate(instances):
        if len(instance) != len(instances[0]):
            raise _bad(f"{first} to {first + i}", "all slots", "slots", str(len(instances[0])), str(len(instance)))
    return tuple(_slot(tensors, slot, first) for slot, tensors in enumerate(zip(*instances, strict=True)))


def _slot(tensors: tuple[LoDTensor, ...], slot: int, first: int) -> LoDTensor:
    where = f"{first} to {first + len(tensors) - 1}"
    return concat(tensors, lambda what, expected, got: _bad(where, f"slot {slot}", what, expected, got))


def _bad(instances: str, slot: str, what: str, expected: str, got: str) -> BadSample:
    return BadSample(
        f"instances {instances} cannot be one batch: {slot}, {what}: expected {expected}, got {got}",
        slot=slot,
        expected=expected,
        got=got,
    )


def batch(reader: Source, batch_size: int, discard_leftover: bool = False) -> BatchReader:
    """Return a reader that joins ``batch_size`` instances of ``reader`` into one.

    It joins the data along the first axis, and appends the LoDs level by level. ``discard_leftover``: whether to drop a
    last, smaller batch. Raises OptionError for a ``batch_size`` below 1. While reading it raises BadSample if the
    instances of a batch differ in the number of slots, the dtype, a dimension after the first or the number of LoD
    levels, or if one has no rows. See docs/fluid.md.
    """
    return BatchReader(reader, batch_size, discard_leftover)
