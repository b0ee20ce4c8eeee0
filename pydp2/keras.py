"""Feed Keras 3 with any of its backends: a loader that ``fit``, ``evaluate`` and ``predict`` take
(docs/tensorflow.md, "Keras").

Needs ``keras`` and a backend.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, TypeVar, cast

from pydp2.api.sources import Files, Source
from pydp2.client.pass_iterator import Pass
from pydp2.client.stream import Stream
from pydp2.data.columns.batch import Batch, Csr
from pydp2.data.columns.columns import Array
from pydp2.data.schema.input_types import Slots
from pydp2.errors import OptionError
from pydp2.frameworks.loader import FrameworkLoader, Loop
from pydp2.frameworks.selection import Selected, Selection
from pydp2.frameworks.shared_service import LOADER_OPTIONS, Ranks, chosen_ranks, open_loader
from pydp2.frameworks.slot_visitor import PLAIN_TYPES, SlotVisitor, pads_of_all
from pydp2.options.tables import JOB_OPTIONS, SERVICE_OPTIONS, check_keywords, takes
from pydp2.providers import Provider

try:
    from keras.config import backend
    from keras.distribution import ModelParallel, distribution
    from keras.src.trainers.data_adapters import data_adapter_utils
    from keras.src.trainers.data_adapters.data_adapter import (
        DataAdapter,
    )  # fit() accepts its subclasses; it has no public name
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
    share_along: tuple[int, int] | None = None,
    **options: Any,
) -> KerasLoader:
    """Return a loader for ``model.fit(loader, epochs=3)``: each epoch is one pass.

    Each batch is a pair ``(x, y)``, or ``(x,)`` without ``y``. Iterating gives it as numpy arrays, and sparse slots as
    matrices of scipy.

    Args:
        files, provider: a list and its provider, or without provider the address or the connection file of a service;
            or a stream: a client, a mixture, packed sequences.
        x, y: the slots, by name or position, for the model and the loss: one slot, or a list for several.
        pad: value with which sequences are filled up to the longest of a batch; needed if there are sequences.
        rank, world_size: rank of this process, and number of processes that train together. Default: those of the
            backend: of jax.distributed, of torch.distributed or ``torchrun``, or of ``TF_CONFIG``.
        share_along: with ``rank`` and ``world_size``, which peer of its rank this process is; see
            :func:`pydp2.connect`.
        options: those of :func:`pydp2.load`, or with an address of :func:`pydp2.connect`. ``workers_per_node``: as for
            :func:`pydp2.torch.loader`, for the backends JAX and torch.

    Raises:
        OptionError: see :func:`pydp2.load`; or a sequence without ``pad``, or with sparse elements; ranks of
            ``TF_CONFIG`` on several machines without a service; ``keras.distribution.ModelParallel`` in several
            processes, without ``rank``.
    """
    check_keywords(loader, options)
    ranks = Ranks() if isinstance(files, Stream) else chosen_ranks(rank, world_size, find_ranks, share_along)
    if rank is None and ranks.world_size > 1 and isinstance(distribution(), ModelParallel):
        raise OptionError(
            "with ModelParallel some processes may need the same rows; say with rank= and world_size= which rows each "
            "gets, with share_along= which of them get the same, and give it the address of a service (`pydp2 serve "
            "LIST --provider ADDRESS`) in place of the list"
        )
    return open_loader(files, provider, ranks, lambda client: KerasLoader(client, x, y, pad), **options)


def find_ranks() -> Ranks:
    """Return the rank of this process according to the backend. With JAX, all processes call it together. Raises
    OptionError if the environment is ambiguous."""
    match backend():
        case "jax":
            import jax

            from pydp2.jax.placement import placement_of, ranks_of_run

            # Otherwise there is one process, or jax.distributed.initialize() comes later and JAX must not start yet.
            return ranks_of_run(placement_of(None)) if jax.distributed.is_initialized() else Ranks()
        case "torch":
            from pydp2.torch.ranks import find_ranks as find_ranks_of_torch

            return find_ranks_of_torch()
        case "tensorflow":
            from pydp2.tf import find_ranks as find_ranks_of_tf

            return find_ranks_of_tf()
    return Ranks()


class KerasLoader(FrameworkLoader[Any], DataAdapter):  # type: ignore[misc]  # of a package without types
    """Loader of the passes of ``client`` for Keras; :func:`loader` makes it.

    Keras reads ahead with some backends, so give :meth:`state_dict` the number of steps that were taken in the epoch.
    """

    num_batches = 0
    """Number of batches of an epoch: not known. If it were None, Keras would use the number of its first epoch, which
    may be the rest of a pass."""
    has_partial_batch = None
    partial_batch_size = None

    def __init__(self, client: Stream, x: Selected, y: Selected | None, pad: float | None) -> None:
        self._arrays = _KerasArrays(client.slots, x, y, pad)
        super().__init__(client, self._arrays)
        self._x, self._y, self._pad = x, y, pad
        self._look: tuple[Callable[[], Loop[Any] | None], Pass] | None = None
        """Loop, and its pass, from which Keras has taken one value so far, perhaps only to look at it."""

    def iterate(self, convert: Callable[[Batch], V], *, reads_ahead: bool = False) -> Iterator[V]:
        """Return an iterator of the next pass. If only its first value is taken, the pass begins again with the next
        iterator, because with most backends Keras looks at one batch before it trains, to find out shapes."""
        return _KerasLoop(self, convert, reads_ahead)

    def state_dict(self, *, taken: int | None = None) -> dict[str, Any]:
        """Return the state behind the value in training; see :meth:`FrameworkLoader.state_dict`. A value at which Keras
        has only looked, and which comes again in the next loop, does not count."""
        if taken is None:
            self._end_look_of(None)
        return super().state_dict(taken=taken)

    def set_epoch(self, epoch: int) -> None:
        """Make ``epoch`` the pass of the next loop; see :meth:`FrameworkLoader.set_epoch`. If Keras has only looked at
        the value behind a loaded state, the state counts as not used yet."""
        self._end_look_of(None)
        self._look = None
        super().set_epoch(epoch)

    def load_state_dict(
        self, state: Mapping[str, Any], *, allow: Collection[str] = (), skip: Iterable[int] = ()
    ) -> None:
        """Go to the position of ``state``; see :meth:`pydp2.Client.load_state_dict`, also for the others."""
        super().load_state_dict(state, allow=allow, skip=skip)
        self._look = None

    def _end_look_of(self, loop: Loop[Any] | None) -> None:
        """Let the next loop begin with the value at which Keras only looked in ``loop`` (None: in a loop that was
        dropped)."""
        if self._look is not None and self._look[0]() is loop:
            self._pass.put_back(self._look[1])
            self._look = None

    # -- methods that Keras calls, by backend --------------------------------------------------------------------------
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


class _KerasArrays(SlotVisitor):
    """Converter from a batch to the values for Keras: arrays, and matrices of scipy."""

    def __init__(self, slots: Slots, x: Selected, y: Selected | None, pad: float | None) -> None:
        self._selection = Selection(slots, x, y)
        for slot in self._selection.order:
            declared = slots.types[slot]
            if declared.seq_type and (pad is None or declared.type not in PLAIN_TYPES):
                raise OptionError(
                    f"{slots.label(slot)} is a sequence, which Keras takes padded: "
                    + ("give pad=0, or another value" if pad is None else "leave it out, its elements are sparse")
                )
        super().__init__(slots, self._selection.order, pads=pads_of_all(slots, pad))

    def __call__(self, batch: Batch) -> Any:
        return self._selection.arrange(self.values(batch))

    def array(self, array: Array) -> Array:
        return array

    def sparse(self, value: Csr, slot: int, batch: Batch) -> Any:
        return value.to_scipy()

    def make_padded(self, values: Any, lengths: Any) -> Any:
        return values


class _KerasLoop(Loop[V]):
    """Iterator of one pass, which is known to its loader while it has returned no more than one value."""

    _loader: KerasLoader
    _has_given = False

    def __next__(self) -> V:
        loader = self._loader
        if self.batches is None and loader._look is not None:
            loader._end_look_of(loader._look[0]())
        elif loader._look is not None and loader._look[0]() is self:
            loader._look = None
        value = super().__next__()
        if not self._has_given:
            self._has_given = True
            loader._look = weakref.ref(self), cast(Pass, self.batches)
        return value

    def close(self) -> None:
        """Leave the pass before its end, or let the next loop begin it again."""
        look = self._loader._look
        if look is not None and look[0]() is self:
            self._loader._end_look_of(self)
            self.is_left = True
        else:
            super().close()
