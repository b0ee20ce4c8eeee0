"""Feed Keras 3 with any of its backends: a loader that ``fit``, ``evaluate`` and ``predict`` take
(docs/tensorflow.md, "Keras").

Needs ``keras`` and a backend.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, TypeVar

from pydp2.api.sources import Files, Source
from pydp2.client.stream import Stream
from pydp2.data.columns.batch import Batch, Csr, Ragged, Value
from pydp2.errors import ClientUseError, OptionError, StateMismatch
from pydp2.frameworks.loader import FrameworkLoader
from pydp2.frameworks.selection import Selected, Selection
from pydp2.frameworks.shared_service import LOADER_OPTIONS, Ranks, chosen_ranks, open_loader
from pydp2.options.tables import JOB_OPTIONS, SERVICE_OPTIONS, check_keywords, takes
from pydp2.providers import Provider

try:
    from keras.config import backend
    from keras.distribution import ModelParallel, distribution
    from keras.src.trainers.data_adapters import data_adapter_utils
    from keras.src.trainers.data_adapters.data_adapter import (
        DataAdapter,
    )  # which fit() lets through: it has no other name
except ImportError as missing:
    raise ImportError(
        "pydp2.keras needs Keras 3, which is not installed: pip install 'keras>=3.5', and torch, JAX or TensorFlow"
    ) from missing

V = TypeVar("V")


@takes(SERVICE_OPTIONS, JOB_OPTIONS, also=LOADER_OPTIONS)
def loader(
    files: Files | Source | Stream,
    provider: str | Provider | None = None,
    *,
    x: Selected,
    y: Selected | None = None,
    pad: float | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    **options: Any,
) -> KerasLoader:
    """Return a loader for ``model.fit(loader, epochs=3)``: each epoch is one pass.

    Each batch is a pair ``(x, y)``, or ``(x,)`` without ``y``. Iterating gives it as numpy arrays, and sparse slots as
    matrices of scipy.

    Args:
        files, provider: a list and its provider, or without provider the address or the connection file of a service;
            or a stream: a client, a mixture, packed sequences.
        x, y: the slots, by name or position, that the model and the loss get: one, or a list for several.
        pad: fill sequences up with this value to the longest of a batch; needed where there are sequences.
        rank, world_size: of this process among those that train together. Default: those of the backend, which are
            those of jax.distributed, of torch.distributed or ``torchrun``, or of ``TF_CONFIG``.
        options: those of :func:`pydp2.load`, or with an address of :func:`pydp2.connect`.

    Raises:
        OptionError: see :func:`pydp2.load`; or a sequence without ``pad``, or with sparse elements; ranks on several
            machines without a service; ``keras.distribution.ModelParallel`` in several processes, without ``rank``.
    """
    check_keywords(loader, options)
    ranks = Ranks() if isinstance(files, Stream) else chosen_ranks(rank, world_size, find_ranks)
    if rank is None and ranks.world_size > 1 and isinstance(distribution(), ModelParallel):
        raise OptionError(
            "with ModelParallel some processes may need the same rows; say with rank= and world_size= which rows each "
            "gets, and give it the address of a service (`pydp2 serve LIST --provider ADDRESS`) in place of the list"
        )
    return open_loader(files, provider, ranks, lambda client: KerasLoader(client, x, y, pad), **options)


def find_ranks() -> Ranks:
    """Return the place that the backend gives this process among those that train together. With JAX all processes
    call it together. Raises OptionError where the environment is unclear."""
    match backend():
        case "jax":
            import jax

            from pydp2.jax.placement import placement_of, ranks_of_run

            # Else there is one process, or jax.distributed.initialize() is still to come and nothing may start JAX.
            return ranks_of_run(placement_of(None)) if jax.distributed.is_initialized() else Ranks()
        case "torch":
            from pydp2.torch.ranks import find_ranks as find_ranks_of_torch

            return find_ranks_of_torch()
        case "tensorflow":
            from pydp2.tf import find_ranks as find_ranks_of_tf

            return find_ranks_of_tf()
    return Ranks()


class KerasLoader(FrameworkLoader[Any], DataAdapter):  # type: ignore[misc]  # of a package without types
    """Passes of ``client`` as Keras takes them; :func:`loader` makes it.

    Keras reads ahead with some backends, so give :meth:`state_dict` the number of steps that were taken in the epoch.
    """

    num_batches = 0
    """Not known. With None, Keras would take what it sees in its first epoch, which may be the rest of a pass."""
    has_partial_batch = None
    partial_batch_size = None

    def __init__(self, client: Stream, x: Selected, y: Selected | None, pad: float | None) -> None:
        self._selection, self._pad = Selection(client.slots, x, y), pad
        for slot in self._selection.order:
            declared = client.slots.types[slot]
            if declared.seq_type and (pad is None or len(client.slots.fields[slot]) > declared.seq_type + 1):
                raise OptionError(
                    f"{client.slots.label(slot)} is a sequence, which Keras takes padded: "
                    + ("give pad=0, or another value" if pad is None else "leave it out, its elements are sparse")
                )
        super().__init__(client, self._arrays)
        self._x, self._y = x, y
        self._looked_at: tuple[tuple[Batch, ...], Iterator[Batch]] | None = None
        self._is_look = False  # that was all: the loop which took it is gone
        self._before: dict[str, Any] | None = None  # state before it; None if there is none
        self._was_loaded = False  # that state
        self._token: object = None  # of the loop that began last

    def _arrays(self, batch: Batch) -> Any:
        return self._selection.arrange([self._array(batch[slot]) for slot in self._selection.order])

    def _array(self, value: Value) -> Any:
        if isinstance(value, Csr):
            return value.to_scipy()
        return value.pad(self._pad or 0)[0] if isinstance(value, Ragged) else value

    def iterate(self, convert: Callable[[Batch], V], *, reads_ahead: bool = False) -> Iterator[V]:
        """Give ``convert(batch)`` of each batch of the next pass. If only its first was taken, a pass begins again:
        with most backends Keras looks at one batch before it trains, to find out shapes."""
        first: tuple[Batch, ...] = ()
        batches = super().iterate(lambda batch: batch, reads_ahead=reads_ahead)
        if self._looked_at is not None:
            first, batches = self._looked_at
            self._looked_at = None
            batches.only_loop_knows = self._only_loop_knows = reads_ahead  # type: ignore[attr-defined]  # it is a loop
        token = self._token = object()
        try:
            for number, batch in enumerate(chain(first, batches)):
                self._looked_at, self._is_look = ((batch,), batches) if number == 0 else None, False
                yield convert(batch)
                if self._token is not token:
                    raise ClientUseError(
                        "a newer loop over this loader has taken the pass of this one; go through one loop at a time, "
                        "and give each of two a loader of its own"
                    )
                self._looked_at = None
        except GeneratorExit:  # not after an interruption, behind which the next loop goes on
            if self._token is token:
                self._is_look = self._looked_at is not None
                if not self._is_look:
                    batches.close()  # type: ignore[attr-defined]
            raise

    def _begin(self, loop: Any) -> Any:
        self._was_loaded = self._loaded is not None
        batches = super()._begin(loop)
        self._before = None
        with suppress(StateMismatch, ClientUseError):  # relaxed, in the middle of a pass
            self._before = super().state_dict()
        return batches

    def state_dict(self, *, taken: int | None = None) -> dict[str, Any]:
        """Return the state behind the value in training; see :meth:`FrameworkLoader.state_dict`. A value that was only
        looked at, and comes again in the next loop, does not count."""
        if taken is None and self._looked_at is not None and self._is_look and self._before is not None:
            return dict(self._before)
        return super().state_dict(taken=taken)

    def set_epoch(self, epoch: int) -> None:
        """Have the next loop be pass ``epoch``; see :meth:`FrameworkLoader.set_epoch`. If Keras has only looked at a
        value behind a state that was loaded, that state is not used yet."""
        if self._looked_at is not None and self._is_look and self._before is not None:
            before = self._before["pass"], self._before["batch"]
            if self._was_loaded or before == (epoch, 0):
                self._put_back(*self._looked_at)
        super().set_epoch(epoch)
        self._looked_at = None

    def _put_back(self, looked_at: tuple[Batch, ...], loop: Iterator[Batch]) -> None:
        """Be as before ``looked_at`` was taken: it comes first when the next loop goes on with the pass of ``loop``."""
        self._taken.extendleft(looked_at)
        self._returned.clear()
        self._loaded, self._resumed = self._before, loop.batches  # type: ignore[attr-defined]  # it is a loop

    def load_state_dict(
        self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]], *, allow: Collection[str] = ()
    ) -> None:
        """Go to where ``state`` was taken; see :meth:`pydp2.Client.load_state_dict`, also for ``allow``."""
        self._looked_at = None
        super().load_state_dict(state, allow=allow)

    # -- what Keras calls, by backend ----------------------------------------------------------------------------------
    def get_numpy_iterator(self) -> Any:
        """Return an iterator of one pass."""
        return iter(self)

    def get_jax_iterator(self) -> Any:
        """Return an iterator of one pass, for JAX."""
        return data_adapter_utils.get_jax_iterator(self.iterate(self._arrays, reads_ahead=True))

    def get_torch_dataloader(self) -> Any:
        """Return a torch DataLoader whose iterations are passes."""
        return data_adapter_utils.get_torch_dataloader(self)

    def get_tf_dataset(self) -> Any:
        """Return a ``tf.data.Dataset`` whose iterations are passes."""
        from pydp2.tf import Parts, stream

        return stream(self, Parts(self.client.slots, self._x, self._y, self._pad))
