"""Feed Paddle 3: a loader of tensors, and a dataset for ``paddle.io.DataLoader`` (docs/paddle.md).

Needs the extra ``paddle``.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np

from pydp2.api.sources import Files, Source
from pydp2.client.stream import Stream
from pydp2.data.columns.batch import Batch, Csr
from pydp2.data.columns.columns import Array
from pydp2.data.schema.input_types import Slots
from pydp2.errors import ClientUseError, Error, OptionError, OptionTypeError, from_wire, to_wire
from pydp2.frameworks.loader import FrameworkLoader
from pydp2.frameworks.selection import Selected, Selection
from pydp2.frameworks.shared_service import LOADER_OPTIONS, Ranks, chosen_ranks, open_loader
from pydp2.frameworks.slot_visitor import PaddedTensor as PaddedTensor
from pydp2.frameworks.slot_visitor import RaggedTensor as RaggedTensor
from pydp2.frameworks.slot_visitor import SlotVisitor, pads_of_all
from pydp2.frameworks.worker_passes import WorkerPasses
from pydp2.options.tables import JOB_OPTIONS, SERVICE_OPTIONS, check_keywords, takes
from pydp2.providers import Provider

try:
    import paddle
except ImportError as missing:
    raise ImportError(
        "pydp2.paddle needs Paddle 3, which is not installed: pip install 'paddlepaddle>=3.0'"
    ) from missing

_WIDER = {np.dtype(np.uint16): np.int32, np.dtype(np.uint32): np.int64}  # Paddle lacks the unsigned types


@takes(SERVICE_OPTIONS, JOB_OPTIONS, also=LOADER_OPTIONS)
def loader(
    files: Files | Source | Stream,
    provider: str | Provider | None = None,
    *,
    x: Selected | None = None,
    y: Selected | None = None,
    pad: float | None = None,
    place: Any = None,
    job: str = "default",
    **options: Any,
) -> FrameworkLoader[Any]:
    """Return a loader whose iterations are passes, and give each batch as tensors.

    Each batch is a dict by slot name, or a tuple if slots have no names. Dense slots are tensors of their dtype (uint16
    and uint32 as int32 and int64), indices int64, sparse slots ``paddle.sparse`` CSR tensors, sequences
    :class:`RaggedTensor` or :class:`PaddedTensor`. The rank is that of ``paddle.distributed``.

    Args:
        files, provider: a list and its provider, or without provider the address or the connection file of a service;
            or a stream: a client, a mixture, packed sequences.
        x, y: a slot, or a list of slots: each batch is then a pair ``(x, y)``, as ``paddle.Model.fit`` needs it.
        pad: value with which sequences are filled up.
        place: place of the tensors, as for ``paddle.to_tensor``; default: the current device. On the CPU they share the
            memory of the batch.
        job: name of the job that all ranks share.
        options: those of :func:`pydp2.load`. ``rank`` and ``world_size`` are those of ``paddle.distributed``;
            ``world_size=1`` lets each rank read all.

    Raises:
        OptionTypeError: a slot is uint64, for which Paddle has no type.
        OptionError: see :func:`pydp2.load`; or the ranks are on several machines and no service is given.
    """

    check_keywords(loader, options)

    def make(client: Stream) -> FrameworkLoader[Any]:
        where = paddle.get_device() if place is None else place
        on_cpu = isinstance(where, paddle.CPUPlace) or where == "cpu"
        make_tensors = _TensorMaker(client._converted_slots, x, y, pad, None if on_cpu else where)
        return FrameworkLoader(client, make_tensors, context=paddle.in_dynamic_mode if on_cpu else None)

    ranks = Ranks() if isinstance(files, Stream) else _ranks(options)
    return open_loader(files, provider, ranks, make, job=job, **options)


@takes(SERVICE_OPTIONS, JOB_OPTIONS, also=LOADER_OPTIONS)
def dataset(
    files: Files | Source,
    provider: str | Provider | None = None,
    *,
    x: Selected | None = None,
    y: Selected | None = None,
    pad: float | None = None,
    state: str | None = None,
    job: str = "default",
    **options: Any,
) -> StreamDataset:
    """Return a dataset for ``paddle.io.DataLoader(dataset, batch_size=None)``, with any ``num_workers``.

    One iteration is a pass. Its batches are those of :func:`loader`, in the same order for any ``num_workers``, with
    lists in place of tuples: a sequence is ``[values, offsets]`` or ``[values, lengths]``, a sparse slot ``[crows,
    cols, values, shape]``, the arguments of ``paddle.sparse.sparse_csr_tensor``.

    Args:
        state: name under which each batch has the state behind it, a text for :meth:`StreamDataset.state_dict`, because
            the DataLoader reads ahead. In a batch without names it is the last entry.
        files, provider, x, y, pad, job, options: as for :func:`loader`; but no client, and no ``share``.

    Raises the errors of :func:`loader`.
    """
    check_keywords(dataset, options)
    return StreamDataset(WorkerPasses(files, provider, _ranks(options), job=job, **options), x, y, pad, state)


class StreamDataset(paddle.io.IterableDataset):  # type: ignore[misc]  # of a package without types
    """Passes of a service for ``paddle.io.DataLoader``; :func:`dataset` makes it."""

    def __init__(
        self, passes: WorkerPasses, x: Selected | None, y: Selected | None, pad: float | None, state: str | None
    ) -> None:
        super().__init__()
        self._passes, self._state = passes, state
        self._iterations = count()
        self._convert = _ArrayMaker(passes.slots, x, y, pad)

    def __iter__(self) -> Iterator[Any]:
        info = paddle.io.get_worker_info()
        seed, worker, workers = ("", 0, 1) if info is None else (info.seed, info.id, info.num_workers)
        epoch = f"{seed} {next(self._iterations)}"
        try:
            for batch, state in self._passes.read(worker, workers, epoch, with_state=self._state is not None):
                yield self._with_state(self._convert(batch), state)
        except Exception as error:  # Paddle's DataLoader without workers hangs after any exception
            known = error if isinstance(error, Error) else OptionError(f"a batch has no arrays for Paddle: {error!r}")
            yield [np.zeros(1, np.int8), _Failure(json.dumps(to_wire(known)))]

    def _with_state(self, values: Any, state: dict[str, Any] | None) -> Any:
        if state is None:
            return values
        text = json.dumps(state)
        return {**values, self._state: text} if isinstance(values, dict) else [*values, text]

    def state_dict(self, batch: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any]:
        """Return the state behind ``batch``, which the DataLoader returned, as plain data like the state of a client.

        Raises ClientUseError if batches have no state, because :func:`dataset` was called without ``state=``.
        """
        if self._state is None:
            raise ClientUseError(
                "the batches of this dataset carry no state, and a DataLoader reads ahead, so only a batch can tell; "
                "make it with dataset(…, state='state')"
            )
        found: dict[str, Any] = json.loads(batch[self._state] if isinstance(batch, Mapping) else batch[-1])
        return found

    def load_state_dict(self, state: Mapping[str, Any], *, allow: Collection[str] = ()) -> None:
        """Go to the position of ``state``: the next iteration continues there, with any ``num_workers``. ``allow``: see
        :meth:`pydp2.Client.load_state_dict`."""
        self._passes.load_state_dict(state, allow=allow)

    def close(self) -> None:
        """End the service, if this dataset has started it."""
        self._passes.close()

    def __enter__(self) -> StreamDataset:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# -- inside ------------------------------------------------------------------------------------------------------------
def _ranks(options: dict[str, Any]) -> Ranks:
    """Return the rank in ``options``, from which ``rank``, ``world_size`` and ``share_along`` are removed, or that of
    ``paddle.distributed``. Raises OptionError."""
    rank, world_size, share_along = (options.pop(name, None) for name in ("rank", "world_size", "share_along"))
    return chosen_ranks(rank, world_size, _find_ranks, share_along)


def _find_ranks() -> Ranks:
    """Return the rank of this process according to Paddle's launcher or ``paddle.distributed.spawn``."""
    here = paddle.distributed.ParallelEnv()
    endpoints: list[str] = [endpoint for endpoint in here.trainer_endpoints if endpoint]
    if here.world_size == 1 or not endpoints:
        return Ranks(here.rank, here.world_size, here.world_size)
    return Ranks.at(endpoints, here.rank)


class _Failure(str):
    """Error that a dataset yields in place of a batch, and that raises where the DataLoader returns it.

    Paddle's DataLoader waits for ever when a dataset raises: without workers because the thread that reads ends
    silently, with workers for errors that cannot be pickled. Before it returns a batch, it calls ``startswith`` of each
    text in it, to find texts that stand for a tensor. Here that call raises.
    """

    __slots__ = ()

    def startswith(self, *_: Any) -> bool:
        raise from_wire(json.loads(str(self)))


class _ArrayMaker(SlotVisitor):
    """Converter from a batch to the values that a worker of a DataLoader sends: arrays, and lists of arrays."""

    index_dtype = np.dtype(np.int64)

    def __init__(self, slots: Slots, x: Selected | None, y: Selected | None, pad: float | None) -> None:
        self._selection = Selection(slots, x, y)
        for slot in self._selection.order:
            if slots.types[slot].element_dtype == np.uint64:
                raise OptionTypeError(
                    f"{slots.label(slot)} is uint64, which Paddle has no type for; declare it as int64"
                )
        super().__init__(slots, self._selection.order, pads=pads_of_all(slots, pad))

    def __call__(self, batch: Batch) -> Any:
        """Return the values of ``batch`` in the structure of the selection."""
        return self._selection.arrange(self.values(batch))

    def array(self, array: Array) -> Any:
        wider = _WIDER.get(array.dtype)
        return array if wider is None else array.astype(wider)

    def sparse(self, value: Csr, slot: int, batch: Batch) -> Any:
        return [*self.csr_parts(value), list(value.shape)]

    def make_ragged(self, values: Any, offsets: Sequence[Any]) -> Any:
        return [values, *offsets]

    def make_padded(self, values: Any, lengths: Any) -> Any:
        return [values, lengths]


class _TensorMaker(_ArrayMaker):
    """Converter from a batch to tensors on ``place``; None: on the current device, on the CPU over the same memory."""

    make_ragged = SlotVisitor.make_ragged
    make_padded = SlotVisitor.make_padded

    def __init__(self, slots: Slots, x: Selected | None, y: Selected | None, pad: float | None, place: Any) -> None:
        super().__init__(slots, x, y, pad)
        self._place = place
        self._where = paddle.CPUPlace() if place is None else place

    def array(self, array: Array) -> Any:
        array = super().array(array)
        if self._place is None and array.size:
            return paddle.from_dlpack(array)
        return paddle.to_tensor(array, place=self._where)

    def sparse(self, value: Csr, slot: int, batch: Batch) -> Any:
        tensors = super().sparse(value, slot, batch)
        return paddle.sparse.sparse_csr_tensor(*tensors, place=self._where)  # without a place: the current device
