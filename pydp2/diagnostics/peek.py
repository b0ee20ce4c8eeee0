"""``peek``: show the first samples of a list and its first batch, without a service."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Never

import numpy as np

from pydp2.api.sources import Files, Source
from pydp2.data.columns.batch import Batch
from pydp2.data.rowstore.heap import HeapStore
from pydp2.diagnostics.declaration import type_text
from pydp2.diagnostics.local_provider import foreground
from pydp2.errors import BadSample, Error, OptionError, SampleTooLarge
from pydp2.options.file_list import FileList
from pydp2.options.tables import check_keywords, job_options, takes
from pydp2.order.batcher import too_large_text
from pydp2.order.plan import PassPlan
from pydp2.order.pool import Pool
from pydp2.order.sample_source import SampleRun
from pydp2.providers import Provider, StartedProvider
from pydp2.providers.local_reader import LocalReader, LocalSamples

_SAMPLES, _BATCH = 3, 8


@dataclass(frozen=True)
class PeekedSample:
    """One good sample: its file, its sample index, the values of its slots as they were yielded, and its weight."""

    file: str
    sample: int
    values: list[Any]
    weight: int


@dataclass
class Peek:
    """Result of :func:`peek`. ``slots``: label and declaration of each slot; ``shuffled``: True if a training would
    shuffle; ``dropped``: number of dropped samples; ``files``: number of files that were read or begun;
    ``empty_files``: number of these files without samples; ``error``: the error that ended the reading, if any."""

    slots: list[tuple[str, str]]
    shuffled: bool
    samples: list[PeekedSample] = field(default_factory=list)
    batch: Batch | None = None
    dropped: int = 0
    files: int = 0
    empty_files: int = 0
    error: Error | None = None


@takes()
def peek(
    files: Files | Source,
    provider: str | Provider | None = None,
    *,
    args: Mapping[str, Any] | None = None,
    is_train: bool | None = None,
    root: str | os.PathLike[str] | None = None,
    input_order: Sequence[str] | None = None,
    samples: int = _SAMPLES,
    batch_size: int = _BATCH,
    **others: Never,
) -> Peek:
    """Return the first ``samples`` of a list, and the first batch of an unshuffled pass, read in this process.

    It reads no more than these need. A bad sample, or an exception in ``process``, ends the reading and becomes
    ``error``; the result has the samples before it.

    ``files``, ``provider``, ``args``, ``is_train``, ``root`` and ``input_order`` are those of :func:`pydp2.launch`.
    While it runs, ``root`` is the working directory.

    Args:
        samples: number of samples to return.
        batch_size: weight of the batch.

    Raises:
        OptionError, OptionTypeError, ListError, AddressError: an argument is not valid.
        ProviderError: the provider's module or its ``init_hook`` raised.
    """
    check_keywords(peek, others)
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 0:
        raise OptionError(f"samples must be a whole number from 0, got {samples!r:.80}")
    batch_size = job_options(batch_size=batch_size).batch_size
    with foreground(files, provider, args=args, is_train=is_train, root=root, input_order=input_order) as (
        source,
        running,
    ):
        schema = running.schema
        slots = schema.slots
        seen = Peek([(slots.label(i), type_text(slot)) for i, slot in enumerate(slots.types)], schema.shuffle)
        plan = PassPlan(
            seed=0,
            pass_id=0,
            files=len(source.files),
            batch_size=batch_size,
            shuffle=False,
            can_over_batch_size=schema.can_over_batch_size,
        )
        _Reading(seen, running, plan, samples).read(source.files)
    return seen


class _Reading:
    """Reading of ``wanted`` samples, and of the first batch of ``plan``, into ``seen``."""

    def __init__(self, seen: Peek, started: StartedProvider, plan: PassPlan, wanted: int) -> None:
        self._seen, self._started, self._plan, self._wanted = seen, started, plan, wanted
        self._store = HeapStore(started.schema.slots)
        self._pool = Pool(plan, self._store)

    def read(self, files: FileList) -> None:
        """Read ``files`` in order, no more of them than needed."""
        for number, name in enumerate(files):
            if self._is_over:
                break
            self._seen.files += 1
            opened = self._started.open_file(name, file_index=number, seed=0, pass_id=0)
            with contextlib.closing(LocalReader(self._started, opened)) as reader:
                while not self._is_over and (drawn := next(reader, None)) is not None:
                    self._add(number, name, drawn)
                if not self._is_over and not reader.drawn:
                    self._seen.empty_files += 1
        if self._seen.error is None and self._seen.batch is None and len(self._pool):
            self._cut()

    @property
    def _is_over(self) -> bool:
        seen = self._seen
        return seen.error is not None or (seen.batch is not None and len(seen.samples) >= self._wanted)

    def _add(self, number: int, name: str, drawn: LocalSamples) -> None:
        """Add the sample, or the error, that was drawn from file ``number``, ``name``."""
        seen, schema = self._seen, self._started.schema
        for _, error in drawn.errors:
            if isinstance(error, BadSample) and schema.check_fail_continue:
                seen.dropped += 1
            else:
                seen.error = error
        if not drawn.indices:
            return
        if len(seen.samples) < self._wanted:
            seen.samples.append(PeekedSample(name, drawn.indices[0], drawn.values, drawn.weights[0]))
        if seen.batch is None:
            packed, weights = drawn.packed, np.array(drawn.weights) if schema.weighted else None
            run = SampleRun(packed.columns, 0, 1, np.array(drawn.indices), packed.sample_bytes, weights).view()
            if too_large := too_large_text(self._plan, run):
                seen.error = SampleTooLarge(f"file {name}, {too_large}")
                return
            self._pool.add(number, run)
            if self._pool.weight >= self._plan.fill_level(0):
                self._cut()

    def _cut(self) -> None:
        pool_weight = self._pool.weight
        rows, size = self._pool.draw(0)
        self._seen.batch = Batch(self._store.take(rows), pass_id=0, index=0, size=size, pool_weight=pool_weight)
