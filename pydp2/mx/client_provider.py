"""Make a data provider from the stream of a pydp2 service. See docs/mxnet.md, "A service's stream"."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from pydp2.client.client import Client
from pydp2.data.columns.batch import Batch
from pydp2.data.schema.input_types import DataType, InputType, SequenceType
from pydp2.errors import OptionError, OptionTypeError
from pydp2.mx.arrays import filled
from pydp2.mx.epochs import EpochProvider
from pydp2.mx.interface import Array, DataBatch, Description

Key = str | int
"""A slot: its name, or its position."""


class ClientProvider(EpochProvider):
    """A provider of the batches of a client: dense and integer slots, with their dtypes. An epoch is a pass.

    The last batch of a pass may not be full; zeros fill it. The client belongs to the caller: the provider does not
    change its state, its errors or its end.

    Args:
        client: the result of :func:`pydp2.connect` or :func:`pydp2.load`.
        label: names or positions of the slots that are labels.
        data: names or positions of the slots that are data; None: all slots that are not labels.

    Raises:
        OptionError: there is no such slot, a slot is named twice, there is no slot for data, or a slot has no fixed
            shape (it is sparse, or a sequence).
        OptionTypeError: ``client`` is not a client, or ``label`` or ``data`` is not a list.
    """

    def __init__(self, client: Client, label: Sequence[Key] = (), data: Sequence[Key] | None = None) -> None:
        super().__init__()
        if not isinstance(client, Client):
            raise OptionTypeError(f"client must be what pydp2.connect or pydp2.load gives, got {type(client).__name__}")
        self._client = client
        self._size = client.batch_size
        self._label = [self._position("label", key) for key in _listed("label", label)]
        others = [i for i in range(len(client.slots)) if i not in self._label]
        self._data = others if data is None else [self._position("data", key) for key in _listed("data", data)]
        chosen = [*self._data, *self._label]
        if len(set(chosen)) < len(chosen) or not self._data:
            raise OptionError(
                f"data and label must name different slots, and at least one for data; got {data!r} and {label!r}"
            )
        self._described = {i: (self._name(i), self._shape(i)) for i in chosen}

    def _position(self, what: str, key: Key) -> int:
        slots = self._client.slots
        keys: Sequence[Key] = slots.names if isinstance(key, str) and slots.names is not None else range(len(slots))
        if isinstance(key, bool) or key not in keys:
            raise OptionError(
                f"{what}: the client has no slot {key!r}, it has {list(slots.names or range(len(slots)))}"
            )
        return keys.index(key)

    def _name(self, slot: int) -> str:
        names = self._client.slots.names
        return f"slot{slot}" if names is None else names[slot]

    def _shape(self, slot: int) -> tuple[int, ...]:
        declared: InputType = self._client.slots.types[slot]
        if declared.seq_type != SequenceType.NO_SEQUENCE or declared.type not in (DataType.Dense, DataType.Index):
            raise OptionError(
                f"{self._name(slot)!r} is {declared!r}, which has no fixed shape; leave it out of data and label, or "
                "have the provider yield dense vectors"
            )
        if declared.type == DataType.Index:
            return (self._size,)
        return (self._size, *declared.element_shape)

    @property
    def batch_size(self) -> int:
        """Rows of every array of a batch: the batch size of the client."""
        return self._size

    @property
    def provide_data(self) -> Description:
        """Names and shapes of the slots that are data; the name of a slot without one is its position, as in
        ``slot0``."""
        return [self._described[slot] for slot in self._data]

    @property
    def provide_label(self) -> Description:
        """Names and shapes of the slots that are labels."""
        return [self._described[slot] for slot in self._label]

    def _batches(self) -> Generator[DataBatch, None, None]:
        for batch in self._client:
            if len(batch) > self._size:
                raise OptionError(
                    f"batch {batch.index} of pass {batch.pass_id} has {len(batch)} rows, more than batch_size="
                    f"{self._size}: where calc_batch_size weighs samples, batches have no fixed number of rows"
                )
            data, label = ([self._array(batch, slot) for slot in slots] for slots in (self._data, self._label))
            yield DataBatch(data, label, len(batch) - batch.padding)

    def _array(self, batch: Batch, slot: int) -> Array:
        value: Any = batch[slot]
        return filled(value, self._size, 0)


def _listed(what: str, keys: Any) -> list[Key]:
    if isinstance(keys, str) or not isinstance(keys, Sequence):
        raise OptionTypeError(f"{what} must be a list of names or positions of slots, got {keys!r}")
    return list(keys)
