"""Feed Keras 3 with any of its backends: a loader that ``fit``, ``evaluate`` and ``predict`` take
(docs/tensorflow.md, "Keras").

Needs ``keras`` and a backend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any, TypeVar

from pydp2.api.sources import Files, Source
from pydp2.client import Client
from pydp2.columns.batch import Batch, Csr, Ragged, Value
from pydp2.errors import OptionError
from pydp2.frameworks.loader import FrameworkLoader
from pydp2.frameworks.selection import Selected, Selection
from pydp2.frameworks.shared_service import Ranks, open_client
from pydp2.options.tables import JOB_OPTIONS, SERVICE_OPTIONS, takes
from pydp2.providers import Provider

try:
    from keras.src.trainers.data_adapters import data_adapter_utils
    from keras.src.trainers.data_adapters.data_adapter import (
        DataAdapter,
    )  # which fit() lets through: it has no other name
except ImportError as missing:
    raise ImportError("pydp2.keras needs Keras 3, which is not installed: pip install 'pydp2[tf]'") from missing

V = TypeVar("V")


@takes(SERVICE_OPTIONS, JOB_OPTIONS)
def loader(
    files: Files | Source | Client,
    provider: str | Provider | None = None,
    *,
    x: Selected,
    y: Selected | None = None,
    pad: float | None = None,
    job: str = "default",
    rank: int = 0,
    world_size: int = 1,
    **options: Any,
) -> KerasLoader:
    """Return a loader for ``model.fit(loader, epochs=3)``: each epoch is one pass.

    Each batch is a pair ``(x, y)``, or ``(x,)`` without ``y``. Iterating gives it as numpy arrays, and sparse slots as
    matrices of scipy.

    Args:
        files, provider: a list and its provider, or without provider the address or the connection file of a service;
            or a client.
        x, y: the slots, by name or position, that the model and the loss get: one, or a list for several.
        pad: fill sequences up with this value to the longest of a batch; needed where there are sequences.
        job, rank, world_size: as for :func:`pydp2.connect`; several ranks need a service that runs already.
        options: those of :func:`pydp2.load`.

    Raises:
        OptionError: see :func:`pydp2.load`; or a sequence without ``pad``, or with sparse elements.
    """
    if world_size > 1 and provider is not None:
        raise OptionError(
            "several ranks need one service; start it (`pydp2 serve LIST --provider ADDRESS`), and give each rank its "
            "address in place of list and provider"
        )
    client = open_client(files, provider, Ranks(rank, world_size, world_size), job=job, **options)
    try:
        return KerasLoader(client, x, y, pad)
    except BaseException:
        client.close()
        raise


class KerasLoader(FrameworkLoader[Any], DataAdapter):  # type: ignore[misc]  # of a package without types
    """Passes of ``client`` as Keras takes them; :func:`loader` makes it.

    Keras reads ahead with some backends, so give :meth:`state_dict` the number of steps that were taken in the epoch.
    """

    num_batches = 0
    """Not known. With None, Keras would take what it sees in its first epoch, which may be the rest of a pass."""
    has_partial_batch = None
    partial_batch_size = None

    def __init__(self, client: Client, x: Selected, y: Selected | None, pad: float | None) -> None:
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
        try:
            for number, batch in enumerate(chain(first, batches)):
                self._looked_at = ((batch,), batches) if number == 0 else None
                yield convert(batch)
            self._looked_at = None
        finally:
            if self._looked_at is None:
                batches.close()  # type: ignore[attr-defined]  # it can be closed

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where ``state`` was taken; see :meth:`pydp2.Client.load_state_dict`."""
        self._looked_at = None
        super().load_state_dict(state)

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
