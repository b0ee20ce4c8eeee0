"""``peek``: the first samples of a list and its first batch, without a service."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pydp2.api.figures import declared
from pydp2.api.foreground import NOT_THEIRS, foreground
from pydp2.api.sources import Files, Source
from pydp2.config import job_options
from pydp2.errors import BadSample, Error, OptionError, ProviderError
from pydp2.files import FileList
from pydp2.inputs import Batch, ColumnStore, Packer
from pydp2.order import END, Cut, Failed, Failure, Plan, Run, Stream, file_order
from pydp2.order.saved import Recall, SavedLane
from pydp2.order.source import Gap
from pydp2.providers import Provider, Running, place, raised

_SAMPLES, _BATCH = 3, 8


@dataclass(frozen=True)
class Seen:
    """A good sample: sample ``sample`` of ``file``, its slots' values as they were yielded, and its weight."""

    file: str
    sample: int
    values: list[Any]
    weight: int


@dataclass
class Peek:
    """What :func:`peek` saw. ``slots``: label and declaration of each; ``shuffled``: whether a training would shuffle;
    ``dropped``: bad samples that were left out; ``error``: what stopped it."""

    slots: list[tuple[str, str]]
    shuffled: bool
    samples: list[Seen] = field(default_factory=list)
    batch: Batch | None = None
    dropped: int = 0
    error: Error | None = None


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
) -> Peek:
    """The first ``samples`` of a list, and the first batch of a pass that is not shuffled, read in this process.

    Nothing is read that they do not need. A bad sample, or an exception in ``process``, ends it and is ``error``: what
    was seen before is there.

    ``files``, ``provider``, ``args``, ``is_train``, ``root`` and ``input_order`` are those of :func:`pydp2.launch`.
    While it runs, ``root`` is the working directory.

    Args:
        samples: how many to show.
        batch_size: weight of the batch.

    Raises:
        OptionError, OptionTypeError, ListError, AddressError: what was asked for cannot be.
        ProviderError: the provider's module or its ``init_hook`` raised.
    """
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 0:
        raise OptionError(f"samples must be a whole number from 0, got {samples!r:.80}")
    batch_size = job_options(batch_size=batch_size).batch_size
    with foreground(files, provider, args=args, is_train=is_train, root=root, input_order=input_order) as (
        listed,
        running,
    ):
        declaration = running.declaration
        slots = declaration.slots
        seen = Peek([(slots.label(i), declared(slot)) for i, slot in enumerate(slots.types)], declaration.shuffle)
        reading = _Reading(listed, running, seen, samples)
        plan = Plan(
            seed=0,
            pass_id=0,
            files=len(listed),
            batch_size=batch_size,
            shuffle=False,
            can_over_batch_size=declaration.can_over_batch_size,
        )
        store = ColumnStore(slots)
        try:
            outcome = Stream(plan, reading, store, file_order(plan)).next()
            match outcome:
                case Cut(index, rows, size, pool_weight):
                    seen.batch = Batch(store.take(rows), pass_id=0, index=index, size=size, pool_weight=pool_weight)
                case Failed(error):
                    seen.error = error
            reading.rest()
        finally:
            reading.close()
    return seen


class _Reading:
    """The files as a source of the merge, one sample at a time; the first ones are noted as they go by."""

    def __init__(self, files: FileList, running: Running, seen: Peek, wanted: int) -> None:
        self._files = files
        self._running = running
        self._seen = seen
        self._wanted = wanted
        declaration = running.declaration
        self._packer = Packer(declaration.slots, declaration.check)
        self._file = 0
        self._runs: Generator[Run | Failure] | None = None
        self._next: Run | Failure | Gap | None = None

    # -- what the merge asks ---------------------------------------------------------------------------------------
    def front(self, file: int) -> Run | Failure | Gap:
        """The next sample of ``file``."""
        if self._runs is None or file != self._file:
            self.close()
            self._file, self._runs, self._next = file, self._open(file), None
        if self._next is None:
            self._next = next(self._runs, END)
        return self._next

    def take(self, file: int, count: int) -> None:
        """The next one is drawn when it is asked for: nothing is read that nobody needs."""
        self._next = None

    def label(self, file: int) -> str:
        """The entry of the list."""
        return self._files[file]

    def bind(self, file: int, recall: Recall | None = None) -> None:
        """Nothing to prepare."""

    def position(self, file: int) -> SavedLane:
        """Never asked for in earnest: nothing is taken up again from a peek."""
        return SavedLane(file, 0, 0, [])

    @property
    def passed(self) -> tuple[int, int]:
        """As little as :meth:`position`."""
        return 0, 0

    def finish(self, file: int) -> None:
        """Nothing to tidy: the next file closes this one."""

    # -- reading ---------------------------------------------------------------------------------------------------
    def rest(self) -> None:
        """Go on from where the batch ended until enough samples were seen."""
        seen = self._seen
        for file in range(self._file, len(self._files)):
            while seen.error is None and len(seen.samples) < self._wanted:
                front = self.front(file)
                if isinstance(front, Failure):
                    seen.error = front.error
                elif isinstance(front, Gap):
                    break
                else:
                    self.take(file, 1)

    def close(self) -> None:
        """Close the generator of the file that is open."""
        if self._runs is not None:
            self._runs.close()

    def _open(self, file: int) -> Generator[Run | Failure]:
        name, running = self._files[file], self._running
        opened = running.open(name, file_index=file, seed=0, pass_id=0)
        y = 0
        try:
            while True:
                try:
                    sample = next(opened)
                except StopIteration:
                    return
                except NOT_THEIRS:
                    raise
                except BaseException as error:
                    yield Failure(raised(error, name, y, self._files))
                    return
                try:
                    yield self._run(name, y, sample)
                except BadSample as error:
                    if not running.declaration.check_fail_continue:
                        yield Failure(place(error, name, y))
                        return
                    self._seen.dropped += 1
                except ProviderError as error:
                    yield Failure(place(error, name, y))
                    return
                y += 1
        finally:
            opened.close()

    def _run(self, name: str, y: int, sample: Any) -> Run:
        """One sample, checked, as the merge takes it."""
        values = self._running.wrap(sample)
        self._packer.add(values)
        cut = self._packer.cut()
        if cut.bad:
            raise cut.bad[0][1]
        weight = self._running.weight(values)
        if len(self._seen.samples) < self._wanted:
            self._seen.samples.append(Seen(name, y, values, weight))
        weights = np.array([weight]) if self._running.declaration.weighted else None
        return Run(cut.columns, 0, 1, np.array([y]), cut.sample_bytes, weights)
