"""``peek``: show the first samples of a list and its first batch, without a service."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Never

import numpy as np

from pydp2.api.sources import Files, Source
from pydp2.data.columns.batch import Batch
from pydp2.data.columns.columns import Ints
from pydp2.data.packers.packer import Packer
from pydp2.data.rowstore.heap import HeapStore
from pydp2.diagnostics.local_provider import NOT_THEIRS, foreground
from pydp2.diagnostics.slot_figures import type_text
from pydp2.errors import BadSample, Error, OptionError
from pydp2.options.file_list import FileList
from pydp2.options.tables import check_keywords, job_options, takes
from pydp2.order.batcher import BatchCut, Batcher, PassFailed
from pydp2.order.file_order import files_in_order
from pydp2.order.plan import PassPlan
from pydp2.order.sample_source import END, FileFailure, SampleRun, SourceState
from pydp2.order.snapshot import FilePosition, Reread
from pydp2.providers import Provider, StartedProvider, user_error, with_location

_SAMPLES, _BATCH = 3, 8


@dataclass(frozen=True)
class PeekedSample:
    """One good sample: number ``sample`` of ``file``, the values of its slots as they were yielded, and its weight."""

    file: str
    sample: int
    values: list[Any]
    weight: int


@dataclass
class Peek:
    """Result of :func:`peek`. ``slots``: label and declaration of each; ``shuffled``: whether a training would shuffle;
    ``dropped``: number of bad samples that were left out; ``files``: how many were read, or begun; ``empty_files``: for
    how many of these ``process`` yielded nothing; ``error``: the error that ended it, if any."""

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

    It reads only what these need. A bad sample, or an exception in ``process``, ends it and becomes ``error``; the
    result has all that came before.

    ``files``, ``provider``, ``args``, ``is_train``, ``root`` and ``input_order`` are those of :func:`pydp2.launch`.
    While it runs, ``root`` is the working directory.

    Args:
        samples: how many to show.
        batch_size: weight of the batch.

    Raises:
        OptionError, OptionTypeError, ListError, AddressError: what was asked for cannot be.
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
        reading = _LocalFiles(source.files, running, seen, samples)
        plan = PassPlan(
            seed=0,
            pass_id=0,
            files=len(source.files),
            batch_size=batch_size,
            shuffle=False,
            can_over_batch_size=schema.can_over_batch_size,
        )
        store = HeapStore(slots)
        try:
            outcome = Batcher(plan, reading, store, files_in_order(plan)).next()
            match outcome:
                case BatchCut(index, rows, size, pool_weight):
                    seen.batch = Batch(store.take(rows), pass_id=0, index=index, size=size, pool_weight=pool_weight)
                case PassFailed(error):
                    seen.error = error
            reading.rest()
        finally:
            reading.close()
    return seen


class _LocalFiles:
    """Files as a source of the merge, one sample at a time; it notes the first samples."""

    def __init__(self, files: FileList, running: StartedProvider, seen: Peek, wanted: int) -> None:
        self._files = files
        self._running = running
        self._seen = seen
        self._wanted = wanted
        schema = running.schema
        self._packer = Packer(schema.slots, schema.check)
        self._file = 0
        self._runs: Generator[SampleRun | FileFailure] | None = None
        self._next: SampleRun | FileFailure | SourceState | None = None

    # -- what the merge asks ---------------------------------------------------------------------------------------
    def next_run(self, file: int) -> SampleRun | FileFailure | SourceState:
        """Return the next sample of ``file``."""
        if self._runs is None or file != self._file:
            self.close()
            self._file, self._runs, self._next = file, self._open(file), None
        if self._next is None:
            self._next = next(self._runs, END)
        return self._next

    def plain_run(self, file: int) -> None:
        """Return None: samples are drawn one by one, so that no more than needed is read."""

    def consume(self, file: int, count: int) -> None:
        """Do nothing: :meth:`next_run` draws the next sample, so that no more than needed is read."""
        self._next = None

    def label(self, file: int) -> str:
        """Return the entry of the list."""
        return self._files[file]

    def open_file(self, file: int, reread: Reread | None = None) -> None:
        """Do nothing: a file needs no preparation."""

    def position(self, file: int) -> FilePosition:
        """Return a dummy: no state is made from a peek."""
        return FilePosition(file, 0, 0, [])

    @property
    def merged_counts(self) -> tuple[int, int]:
        """Return a dummy, as :meth:`position` does."""
        return 0, 0

    def compare(self, file: int) -> SourceState:
        """Return END: nothing is read again."""
        return END

    def end_checksums(self, files: Ints) -> tuple[Ints, Ints]:
        """Return dummies, as :meth:`position` does."""
        return np.zeros_like(files), np.zeros_like(files)

    def note_snapshot(self) -> None:
        """Do nothing, as :meth:`position` does."""

    def close_file(self, file: int) -> None:
        """Do nothing: the next file closes this one."""

    # -- reading ---------------------------------------------------------------------------------------------------
    def rest(self) -> None:
        """Read on from the end of the batch until there are enough samples."""
        seen = self._seen
        for file in range(self._file, len(self._files)):
            while seen.error is None and len(seen.samples) < self._wanted:
                front = self.next_run(file)
                if isinstance(front, FileFailure):
                    seen.error = front.error
                elif isinstance(front, SourceState):
                    break
                else:
                    self.consume(file, 1)

    def close(self) -> None:
        """Close the generator of the file that is open."""
        if self._runs is not None:
            self._runs.close()

    def _open(self, file: int) -> Generator[SampleRun | FileFailure]:
        name, running = self._files[file], self._running
        opened = running.open_file(name, file_index=file, seed=0, pass_id=0)
        self._seen.files += 1
        y = 0
        try:
            samples = opened.located(NOT_THEIRS)
            while True:
                try:
                    sample = next(samples, END)
                except Error as error:
                    yield FileFailure(error)
                    return
                if sample is END:
                    self._seen.empty_files += not y
                    return
                try:
                    with opened.user_code():
                        run = self._run(name, y, sample)
                    yield run
                except BadSample as error:
                    if not running.schema.check_fail_continue:
                        yield FileFailure(with_location(error, name, y))
                        return
                    self._seen.dropped += 1
                except NOT_THEIRS:
                    raise
                except Exception as error:  # of calc_batch_size, or raised by the value itself
                    yield FileFailure(user_error(error, name, y, running.settings.file_list))
                    return
                y += 1
        finally:
            opened.close()

    def _run(self, name: str, y: int, sample: Any) -> SampleRun:
        """Return one sample, checked, in the form that the merge takes."""
        values = self._running.arrange(sample)
        self._packer.add(values)
        cut = self._packer.finish()
        if cut.bad:
            raise cut.bad[0][1]
        weight = self._running.weight_of(values)
        if len(self._seen.samples) < self._wanted:
            self._seen.samples.append(PeekedSample(name, y, values, weight))
        weights = np.array([weight]) if self._running.schema.weighted else None
        return SampleRun(cut.columns, 0, 1, np.array([y]), cut.sample_bytes, weights)
