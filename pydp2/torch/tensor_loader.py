"""Load batches as tensors, on the CPU or copied to a device ahead of the step that uses them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Unpack

import torch

from pydp2.api.sources import Files, Source
from pydp2.client.saved_state import of_stream
from pydp2.client.stream import Stream
from pydp2.data.columns.batch import Batch
from pydp2.errors import OptionError
from pydp2.frameworks.loader import FrameworkLoader
from pydp2.frameworks.shared_service import LOADER_OPTIONS, LoaderKeywords, Ranks, open_loader
from pydp2.options.tables import JOB_OPTIONS, SERVICE_OPTIONS, check_keywords, takes
from pydp2.providers import Provider
from pydp2.torch.mesh import ranks_of
from pydp2.torch.tensors import Pad, TensorConverter, Tensors, can_pin, device_copy

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class Loader(FrameworkLoader[Tensors]):
    """Loader whose batches are tensors; :func:`pydp2.torch.loader` makes it.

    ``for step in loader`` is one pass. ``loader.batch``: the batch in training, with its ``pass_id``, ``index`` and
    ``padding``. ``state_dict()`` and ``load_state_dict()`` make it Stateful for torch.distributed.checkpoint, Lightning
    and Accelerate. See docs/torch.md.
    """

    def __init__(
        self,
        client: Stream,
        converter: TensorConverter,
        *,
        device: torch.device | str | int | None = None,
        pin_memory: bool = False,
        reads_ahead: int = 0,
    ) -> None:
        self._streams = _StreamCopier(converter, device) if _is_cuda(device) else None
        if self._streams is not None:
            super().__init__(client, self._streams.convert, ahead=1, reads_ahead=reads_ahead)
            return
        pin_memory = pin_memory and can_pin()
        if device is not None:
            torch.empty(0, device=device)  # raises if there is no such device
        converter.copy_to_device = device_copy(device, pin_memory=pin_memory)
        context = converter.context if converter.copy_to_device is None else None
        super().__init__(client, converter.convert_next, reads_ahead=reads_ahead, context=context)

    def _hand_over(self, value: Any) -> Tensors:
        return value if self._streams is None else self._streams.hand_over(value)

    def state_dict(self, *, taken: int | None = None) -> dict[str, Any]:
        """Return the state behind the value in training. It always has the same keys, each with a plain value.

        ``pass``, ``batch``: its position. ``stream``: the state of :meth:`pydp2.Client.state_dict` as JSON text,
        because torch.distributed.checkpoint reads only keys that the loader already has when a checkpoint is loaded.
        """
        return _as_text(super().state_dict(taken=taken))

    def coming_state(self) -> dict[str, Any]:
        """Return the state at which the next loop begins. If a loop is under way or was left, this is the beginning of
        the next pass. Raises StateMismatch if there is none, because ``order="relaxed"`` has no state inside a pass."""
        if not self._is_begun:
            return self.state_dict()
        now = self.client._session.progress
        position = now.position if now.position.pass_id == now.coming_pass else now.position.next_pass()
        return _as_text(self.client._state_of(position))

    def load_state_dict(
        self, state: Mapping[str, Any], *, allow: Collection[str] = (), skip: Iterable[int] = ()
    ) -> None:
        """Go to the position of ``state``, which a loader or a client has returned; see
        :meth:`pydp2.Client.load_state_dict`, also for the others."""
        super().load_state_dict(of_stream(state), allow=allow, skip=skip)


def _as_text(state: Mapping[str, Any]) -> dict[str, Any]:
    return {"pass": state["pass"], "batch": state["batch"], "stream": json.dumps(state)}


class _StreamCopier:
    """Copier of batches from pinned memory on a separate CUDA stream, one batch ahead of the step that computes.

    The tensors belong to the copy stream. When a step gets them, its stream waits for their copy, and
    ``record_stream`` tells the allocator that the step uses them, so that the next copy does not reuse their memory too
    early. torch itself keeps the pinned memory until the copy from it has ended.
    """

    def __init__(self, converter: TensorConverter, device: Any) -> None:
        self._converter = converter
        self._device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
        if not torch.cuda.is_available():
            raise OptionError(
                f"device={device!r} needs a GPU that torch can use, and torch {torch.__version__} here has none; "
                "leave device out, or install a torch for CUDA on a machine with a GPU"
            )
        torch.empty(0, device=self._device)  # raises if there is no such device
        self._stream = torch.cuda.Stream(self._device)
        self._copied: list[torch.Tensor] = []  # tensors of the batch that the loop is converting
        converter.copy_to_device = self._copy_to_device

    def _copy_to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        self._copied.append(tensor.pin_memory().to(self._device, non_blocking=True))
        return self._copied[-1]

    def convert(self, batch: Batch) -> Any:
        copied: list[torch.Tensor] = []
        self._copied = copied
        with torch.cuda.stream(self._stream):
            value = self._converter.convert_next(batch)
            return value, copied, self._stream.record_event()

    def hand_over(self, converted: Any) -> Tensors:
        value: Tensors
        value, copied, event = converted
        stream = torch.cuda.current_stream(self._stream.device)  # "cuda" without a number may be another device now
        stream.wait_event(event)
        for tensor in copied:
            tensor.record_stream(stream)
        return value


def _is_cuda(device: Any) -> bool:
    return device is not None and (isinstance(device, int) or torch.device(device).type == "cuda")


class TorchKeywords(LoaderKeywords, total=False):
    """Keywords of loaders and datasets for torch."""

    mesh: DeviceMesh
    dp: str | tuple[str, ...]


TORCH_OPTIONS = (*LOADER_OPTIONS, "mesh", "dp")
"""Names of all keywords of loaders and datasets for torch."""


@takes(SERVICE_OPTIONS, JOB_OPTIONS, also=TORCH_OPTIONS)
def loader(
    files: Files | Source | Stream,
    provider: str | Provider | None = None,
    *,
    device: torch.device | str | int | None = None,
    pin_memory: bool = False,
    index_dtype: torch.dtype = torch.int64,
    nested: bool = False,
    pad: Pad = None,
    pad_to: int | None = None,
    **options: Unpack[TorchKeywords],
) -> Loader:
    """Return a loader of tensors over a file list, or over a service: ``for step in pydp2.torch.loader("train.list",
    "my.process", batch_size=128)``.

    A step gets a dict by slot name, or a tuple if slots have no names. Dense slots are tensors without a copy, index
    slots int64, sparse slots CSR tensors, sequences a :class:`RaggedTensor`. Under torchrun all ranks share the batches
    of one service, which rank 0 starts. See docs/torch.md.

    Args:
        files: path of the list, the entries themselves, or a ``Source``; or without a provider the address or the
            connection file of a service, or a stream: a client, a mixture, packed sequences.
        provider: the decorated function, or its address.
        device: device of the tensors. To a CUDA device they are copied on a separate stream, one batch ahead.
        pin_memory: put tensors for the CPU into pinned memory. Without a GPU this warns, and has no effect.
        index_dtype: torch.int64 or torch.int32, for index slots, offsets, lengths and sparse indices.
        nested: return sequences as nested tensors with the jagged layout.
        pad: number that fills up sequences, or a dict of slots and numbers: such slots are a :class:`PaddedTensor`.
        pad_to: length to which they are filled up, default that of the longest sequence of the batch. Longer sequences
            lose their end.
        options: those of :func:`pydp2.load`, or with an address of :func:`pydp2.connect`. ``rank`` and ``world_size``
            are those of torch.distributed, or of the environment; ``world_size=1`` lets each rank read all. ``mesh``: a
            DeviceMesh of all processes, and ``dp``: the names of its data dimensions, default ``"dp"``; processes that
            differ along other dimensions only get the same batches. With a mesh or several processes ``last_batch`` is
            ``"pad"`` by default. ``workers_per_node``: number of workers on each machine of the run but that of rank 0,
            which has ``workers``; default 0. ``reads_ahead``: number of batches that the training loop takes before it
            trains with them if it does not know ``len(loader)``; 1 for Lightning, default 0.

    Raises:
        OptionError, OptionTypeError: an option is not valid, or does not fit the slots; or the ranks are on several
            machines, have no store, and no service is given. Also the errors of :func:`pydp2.load` and
            :func:`pydp2.connect`, in all ranks those with which the service does not start.
        ServiceUnreachable: ranks on several machines do not make their loaders within two minutes of each other.
    """
    check_keywords(loader, options)
    reads_ahead = options.pop("reads_ahead", 0)
    ranks = Ranks() if isinstance(files, Stream) else ranks_of(options)

    def make(client: Stream) -> Loader:
        converter = TensorConverter(
            client._converted_slots, index_dtype=index_dtype, nested=nested, pad=pad, pad_to=pad_to
        )
        return Loader(client, converter, device=device, pin_memory=pin_memory, reads_ahead=reads_ahead)

    return open_loader(files, provider, ranks, make, **options)
