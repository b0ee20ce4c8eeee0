"""Work out which samples make which batch where the last one of an epoch is filled up: the rule of ``round_batch``.

This module counts samples; it does not look into them. See docs/mxnet.md, "round_batch".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from pydp2.errors import OptionError, count_text

T = TypeVar("T")


@dataclass(frozen=True)
class EpochStart:
    """Start of an epoch: in reading number ``reading`` of the data, after its first ``skip`` samples."""

    reading: int = 0
    skip: int = 0


def batches(
    read: Callable[[int], Iterator[T]], start: EpochStart, size: int, round_batch: bool
) -> Iterator[tuple[list[T], int]]:
    """Yield the batches of the epoch that begins at ``start``, each with the number of its samples that are padding.

    Args:
        read: ``read(n)`` is an iterator over all samples, read for the n-th time from 0 on.
        start: where the epoch begins.
        size: samples of a batch.
        round_batch: whether samples from the beginning of the next reading fill the last batch; otherwise it has fewer
            samples.

    Raises:
        OptionError: there are fewer samples than a batch has, so the batch cannot be filled in this way (a ValueError).
    """
    samples = read(start.reading)
    seen = sum(1 for _ in islice(samples, start.skip))
    while batch := list(islice(samples, size)):
        seen += len(batch)
        missing = size - len(batch) if round_batch else 0
        if missing and seen < size:
            raise OptionError(
                f"round_batch needs at least a batch of {count_text(size, 'sample')}, but the data has {seen}; use a "
                "smaller batch_size, or round_batch=False"
            )
        yield batch + list(islice(read(start.reading + 1), missing)), missing


def next_epoch_start(start: EpochStart, missing: int) -> EpochStart:
    """Return the start of the next epoch, ``missing`` samples of which filled up the last batch of this one."""
    return EpochStart(start.reading + 1, missing)
