"""Read a service through torch's DataLoader: each of its worker processes is a rank of the job.

The processes of a DataLoader do not know of each other, and it starts new ones for each epoch. Their common data (the
pass that they read, and the position of each when a state was taken) are in a record (:class:`PassRecord`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, Self, Unpack

import torch
from torch.utils.data import IterableDataset, get_worker_info

from pydp2.api.sources import Files, Source
from pydp2.client import Client
from pydp2.client.saved_state import beginning_of_pass, check_state, of_stream
from pydp2.data.columns.batch import Batch
from pydp2.errors import ClientUseError, JobTaken, OptionTypeError, ProviderError, StateMismatch
from pydp2.frameworks.loader import warn_of_dropped_state
from pydp2.frameworks.worker_share import PassRecord, WorkerShares
from pydp2.options.tables import JOB_OPTIONS, SERVICE_OPTIONS, check_keywords, takes
from pydp2.providers import Provider
from pydp2.torch.mesh import ranks_of
from pydp2.torch.tensor_loader import TORCH_OPTIONS, Loader, TorchKeywords
from pydp2.torch.tensors import Pad, TensorConverter, Tensors

_MEET_SECONDS = 60.0  # seconds in which all workers of one DataLoader must report their positions
_MEET_POLL_SECONDS = 0.01


class _Worker(NamedTuple):
    """Worker ``number`` of ``workers`` of a DataLoader; ``seed`` differs between its epochs, and is None in the process
    of the DataLoader itself."""

    number: int = 0
    workers: int = 1
    seed: int | None = None


class _Iteration:
    """Progress of an iteration of a dataset."""

    def __init__(self) -> None:
        self.loaded: Mapping[str, Any] | None = None  # state from which it continues; its loader may begin before it
        self.start: Mapping[str, Any] | None = None  # state before its first batch
        self.before: Batch | None = None  # the batch before the one in training
        self.now: Batch | None = None  # the batch in training
        self.is_over = False

    def note(self, batch: Batch | None) -> None:
        """Note that ``batch`` is in training now."""
        self.before, self.now = self.now, batch

    def state(self, loader: Loader) -> dict[str, Any]:
        """Return the state behind the batch in training, and the state behind the batch before it."""
        if self.now is None and not self.is_over:
            if self.loaded is not None:
                return dict(self.loaded)
            coming = loader.coming_state()
            return {"now": coming, "before": coming}
        now, earlier = loader.state_dict(), self.start
        before = self.now if self.is_over else self.before
        if before is not None:
            earlier = None
            with suppress(StateMismatch):  # a relaxed stream has a state only between passes
                earlier = loader.client.state_dict(after=before)
        return {"now": now, "before": earlier}


class Dataset(IterableDataset):  # type: ignore[misc]  # torch has no types where it is not installed
    """Batches of a service for ``DataLoader(dataset, batch_size=None, num_workers=n)``; :func:`pydp2.torch.dataset`
    makes it.

    With any number of workers, the DataLoader returns the same batches as a loader, in the same order. See
    docs/torch.md.
    """

    def __init__(self, shares: WorkerShares, conversion: Mapping[str, Any]) -> None:
        self._shares = shares
        self._conversion = dict(conversion)
        self._record = PassRecord({"pass": 0})  # for the workers
        self._opened: tuple[int, int, Loader] | None = None  # process, number of workers, loader
        self._begun = 0  # number of iterations in this process
        self._state: Mapping[str, Any] | None = None  # state to load before the first iteration
        self._allow: Collection[str] = ()  # differences of that state to accept
        self._loaded_in = 0  # process in which it was loaded
        self._iteration = _Iteration()  # the iteration that has begun, or returned a batch, last

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes for another process: all but the client of this process."""
        return self.__dict__ | {"_opened": None, "_iteration": _Iteration()}

    def __iter__(self) -> Iterator[Tensors]:
        info = get_worker_info()
        worker = _Worker() if info is None else _Worker(info.id, info.num_workers, info.seed - info.id)
        epoch, skipped = f"{worker.seed} {self._begun}", 0
        iteration = self._iteration = _Iteration()
        if self._state is not None:
            if self._loaded_in != os.getpid():  # otherwise new workers would continue from the state in every epoch
                raise ClientUseError(
                    "a state was loaded in the process of the DataLoader, and its workers read: resume with "
                    "torchdata's StatefulDataLoader, with num_workers=0, or with pydp2.torch.loader(…), which needs no "
                    "DataLoader"
                )
            state, skipped = self._common_state(worker, self._state)
            loader = self._loader(worker, f"{state['pass']}-{state['batch']}")
            loader.load_state_dict(state, allow=self._allow)
            iteration.loaded, self._state = self._state, None
            pass_id = int(loader.state_dict()["pass"])
            self._record.go_on(epoch, {"pass": pass_id})
            if loader.pass_id != pass_id:  # this worker has no more batches of that pass, but another one may have
                self._begun += 1
                return self._values((), loader, iteration, skipped)
        elif worker.seed is not None:
            start = self._record.claim(worker.number, epoch)[0]
            loader = self._loader(worker, f"{start['pass']}-0")
            bounds = start.get("buckets", {}).get("bounds")
            if self._begun or bounds is None:
                loader.set_epoch(start["pass"])
            else:  # a new job would find other bounds
                loader.load_state_dict(beginning_of_pass(loader.client.state_dict(), start["pass"], bounds))
        else:
            loader = self._loader(worker)
        self._begun += 1
        return self._values(loader, loader, iteration, skipped)

    def _values(
        self, values: Iterable[Tensors], loader: Loader, iteration: _Iteration, skipped: int
    ) -> Iterator[Tensors]:
        self._iteration = iteration
        with suppress(StateMismatch):  # a relaxed stream that was interrupted in the middle of a pass
            iteration.start = loader.coming_state()
        try:
            for value in values:
                self._iteration = iteration  # another iteration may have begun without a request for a batch
                iteration.note(loader.batch)
                if iteration.before is None and loader.batch is not None:
                    self._record.keep_bounds(loader.batch._resume[1].buckets)
                if skipped:
                    skipped -= 1
                elif not self._is_made_up(loader.batch):
                    yield value
            iteration.is_over = True
        except ProviderError as error:
            if get_worker_info() is None:
                raise
            # Its class, which has a builtin as a base, cannot be pickled, and the DataLoader would wait for ever.
            raise ProviderError(str(error)) from None

    def _is_made_up(self, batch: Batch | None) -> bool:
        """Return True for a batch of padding that a loader would not get. With buckets, other batches may follow, whose
        turns it keeps."""
        info = get_worker_info()
        if info is None or batch is None or batch._resume[1].buckets:
            return False
        return self._shares.is_made_up(batch, info.num_workers)

    def _loader(self, worker: _Worker, start: str = "") -> Loader:
        """Return the loader of this process. Workers with another ``start`` are in another job, because workers of an
        older iterator may still be connected."""
        opened = (os.getpid(), 0 if worker.seed is None else worker.workers)
        if self._opened is not None and self._opened[:2] == opened:
            return self._opened[2]
        job = "" if worker.seed is None else f"-{worker.workers}-workers-{start}"
        connect_here = partial(self._shares.connect, worker.number, worker.workers, job)
        client = connect_here() if worker.seed is None else _connect_once_free(connect_here)
        loader = Loader(client, TensorConverter(client.slots, **self._conversion))
        self._opened = (*opened, loader)
        return loader

    def __len__(self) -> int:
        """Return the number of batches that this rank gets in a pass. Raises TypeError if it is not known."""
        if get_worker_info() is not None:
            raise TypeError("the number of batches is that of the DataLoader, ask for it there")
        return len(self._loader(_Worker()))

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration of the DataLoader begin pass ``epoch``. If a state in that pass was loaded in this
        process, it continues there."""
        self._record.restart({"pass": epoch})
        loaded = None if self._state is None else self._state["now"]["pass"]
        if get_worker_info() is not None or loaded == epoch:
            return
        if loaded is not None and epoch < loaded:
            warn_of_dropped_state(epoch, loaded)
        self._state, self._iteration = None, _Iteration()
        self._loader(_Worker()).set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this process. torchdata's StatefulDataLoader calls it in each of its workers."""
        if self._state is not None:
            return dict(self._state)
        self._check_reads_here()
        if self._opened is None or self._opened[0] != os.getpid():
            return {}
        return self._iteration.state(self._opened[2])

    def _check_reads_here(self) -> None:
        """Raise ClientUseError in the process of a DataLoader whose workers have read."""
        if get_worker_info() is None and not self._begun and self._record.is_begun:
            raise ClientUseError(
                "workers of a DataLoader have read this dataset, and only they know how far they are: take the state "
                "of torchdata's StatefulDataLoader, or use num_workers=0, or pydp2.torch.loader(…), which needs no "
                "DataLoader"
            )

    def load_state_dict(self, state: Mapping[str, Any], *, allow: Collection[str] = ()) -> None:
        """Let the next iteration in this process continue at the position of ``state``. ``allow``: see
        :meth:`pydp2.Client.load_state_dict`. Raises StateMismatch if ``state`` is not a state of a dataset."""
        if state or not isinstance(state, Mapping):
            _check_states(state)
        self._state, self._allow, self._loaded_in = state or None, allow, os.getpid()
        self._iteration = _Iteration()

    def _common_state(self, worker: _Worker, state: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
        """Return the state that all workers can load, and the number of batches that this worker has returned behind
        it. A worker is at most one batch ahead of another."""
        if worker.workers == 1:
            return state["now"], 0
        position = [state["now"]["pass"], state["now"]["batch"]]
        least = _least_position(self._record, worker, position)
        if position == least:
            return state["now"], 0
        if state["before"] is not None and [state["before"]["pass"], state["before"]["batch"]] == least:
            return state["before"], 1
        raise StateMismatch(
            f"worker {worker.number} of {worker.workers} stood at batch {position}, and another one at {least}, which "
            "is more than one step before: the states are not of one step; load those of one checkpoint"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the job, and end the service if this rank has started it."""
        if self._opened is not None and self._opened[0] == os.getpid():
            self._opened[2].close()
        self._opened = None
        self._shares.close()


def _check_states(state: Any) -> None:
    """Raise StateMismatch unless ``state`` has the states that :meth:`Dataset.state_dict` returned."""
    if not isinstance(state, Mapping) or not {"now", "before"} <= state.keys():
        raise StateMismatch("a state must be what state_dict() of the dataset returned")
    for name in ("now", "before"):
        if name == "now" or state[name] is not None:
            check_state(of_stream(state[name]))


def _least_position(record: PassRecord, worker: _Worker, position: list[int]) -> list[int]:
    """Report ``position``, that of ``worker``; return the least position, once all workers have reported theirs."""
    deadline = time.monotonic() + _MEET_SECONDS
    number, own = str(worker.number), [os.getpid(), position]
    with record.changing() as contents:
        earlier = contents.get("places", {})
        # The seed is a part of the state, so two loadings may have the same one.
        if contents.get("seed") != worker.seed or number in earlier:
            earlier = {}
        earlier = {other: entry for other, entry in earlier.items() if _runs(entry[0])}
        contents.update(seed=worker.seed, places=earlier | {number: own})
    while True:
        with record.changing() as contents:
            positions: dict[str, list[Any]] = dict(contents["places"])
        if len(positions) == worker.workers:
            return min(position for _, position in positions.values())
        if time.monotonic() > deadline:
            raise ClientUseError(
                f"only {len(positions)} of {worker.workers} workers have loaded a state within {_MEET_SECONDS:g} s; "
                "load a state that was taken with as many workers"
            )
        time.sleep(_MEET_POLL_SECONDS)


def _connect_once_free(connect_here: Callable[[], Client]) -> Client:
    """Connect. Try again if the rank is taken, because the worker of an older iterator of the DataLoader may be about
    to end."""
    deadline = time.monotonic() + _MEET_SECONDS
    while True:
        try:
            return connect_here()
        except JobTaken:
            if time.monotonic() > deadline:
                raise
        time.sleep(_MEET_POLL_SECONDS)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@takes(SERVICE_OPTIONS, JOB_OPTIONS, also=TORCH_OPTIONS)
def dataset(
    files: Files | Source,
    provider: str | Provider | None = None,
    *,
    index_dtype: torch.dtype = torch.int64,
    nested: bool = False,
    pad: Pad = None,
    pad_to: int | None = None,
    **options: Unpack[TorchKeywords],
) -> Dataset:
    """Return an ``IterableDataset`` of whole batches, for ``DataLoader(dataset, batch_size=None)``.

    It is for code that insists on a DataLoader; :func:`pydp2.torch.loader` needs none. The service starts with this
    call, in rank 0. The arguments are those of :func:`pydp2.torch.loader`. The order is the same for any number of
    workers of the DataLoader. More of them make nothing faster, because the workers of the service read the samples.

    Raises the errors of :func:`pydp2.torch.loader`; those about options of the job come with the first batch.
    """
    check_keywords(dataset, options)
    if options.pop("reads_ahead", 0):
        raise OptionTypeError("reads_ahead is for a loader: a DataLoader keeps the states of its own workers")
    ranks = ranks_of(options)
    conversion = {"index_dtype": index_dtype, "nested": nested, "pad": pad, "pad_to": pad_to}
    return Dataset(WorkerShares(files, provider, ranks, **options), conversion)
