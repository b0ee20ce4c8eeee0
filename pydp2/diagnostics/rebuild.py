"""``rebuild``: make a batch of a run again, alone, from a state that was saved before it.

A state says where its stream stands, and the order follows from the seed and the data alone. So a service goes to the
state, makes the batches behind it up to the wanted one, and delivers that one only.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping
from contextlib import closing
from typing import Any, NamedTuple, Unpack, cast

import numpy as np

from pydp2.api.service import load
from pydp2.api.sources import Sources
from pydp2.client import Client
from pydp2.client.saved_state import check_state, of_stream
from pydp2.data.columns.batch import Batch, StringArray
from pydp2.data.columns.unbatch import unbatch
from pydp2.data.schema.input_types import is_float
from pydp2.errors import NotRepeatable, OptionError
from pydp2.options.service_options import ServiceKeywords
from pydp2.options.tables import JOB_OPTIONS, SERVICE_OPTIONS, check_keywords, takes
from pydp2.options.values import integer_from
from pydp2.protocol.stream_identity import WEIGHTS, damaged
from pydp2.providers import Provider

_FROM_STATE = (*JOB_OPTIONS, "on_error")
"""Options that the state gives, as far as the stream depends on them."""


class RebuiltRow(NamedTuple):
    """Row of a batch: sample ``sample`` of list entry ``entry``. ``values``: its value of each slot, by label;
    ``not_finite``: labels of the slots in which it has nan or inf."""

    entry: str
    sample: int
    values: dict[str, Any]
    not_finite: list[str]


class Rebuilt(NamedTuple):
    """Result of :func:`rebuild`. ``batch``: the batch. ``files``: the entries of the file list, or of the list of each
    source; ``files[n]`` is entry ``n`` of ``batch.origin``."""

    batch: Batch
    files: StringArray | tuple[StringArray, ...]

    def rows(self) -> list[RebuiltRow]:
        """Return the rows of the batch one by one, without padding. Raises OptionError for packed sequences, whose
        rows have pieces of several samples, and for a batch without origins."""
        batch, origin = self.batch, self.batch.origin
        if len(origin) != len(batch):
            raise OptionError("a row of packed sequences has pieces of several samples; use batch.origin and unpack()")
        labels = [batch.slots.label(i) for i in range(len(batch.slots))]
        rows = []
        for i, values in enumerate(unbatch(batch)):
            files = self.files if origin.source is None else self.files[int(origin.source[i])]
            entry = cast(StringArray, files)[int(origin.entry[i])]
            named = dict(zip(labels, values, strict=True))
            bad = [label for label, value in named.items() if not _is_finite(value)]
            rows.append(RebuiltRow(entry, int(origin.sample[i]), named, bad))
        return rows


def _is_finite(value: Any) -> bool:
    """Return True if no number in ``value`` is nan or inf."""
    if isinstance(value, np.ndarray | np.generic):
        return not is_float(value.dtype) or bool(np.isfinite(value.astype(np.float64)).all())
    if isinstance(value, list | tuple):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


@takes(SERVICE_OPTIONS)
def rebuild(
    state: Mapping[str, Any],
    batch: int,
    files: Sources | Client,
    provider: str | Provider | None = None,
    *,
    args: Mapping[str, Any] | None = None,
    is_train: bool | None = None,
    root: str | os.PathLike[str] | None = None,
    allow: Collection[str] = (),
    **options: Unpack[ServiceKeywords],
) -> Rebuilt:
    """Return batch number ``batch`` of the pass of ``state`` once more, and the entries of the list for its
    :attr:`~pydp2.Batch.origin`.

    A service is started for it, which ends before this returns. Batch size, seed and all other options on which the
    batch depends are those of the state. The state may be that of any rank. See docs/debugging.md.

    Args:
        state: what ``state_dict()`` of a client or a loader returned in this pass, before the batch was delivered.
        batch: number of the batch in its pass (``batch.index``).
        files: the file list, with ``provider``, ``args``, ``is_train`` and ``root`` as for :func:`load`; of a mixture a
            dict of the names of its sources and their lists. Or the stream itself, opened by one rank with the
            arguments of then. The stream then leaves its pass, goes to the state and stays open.
        allow: differences to accept, as for :meth:`pydp2.Client.load_state_dict`.
        options: options of the service, as for :func:`launch`.

    Raises:
        OptionError, OptionTypeError: the batch comes before the state or is not in the pass, or an argument is not
            valid. The stream shares its batches among ranks, or deals rows with ``balance``.
        StateMismatch: the state is damaged, or belongs to other files, another provider or another release.
        NotRepeatable: the files do not give the samples of then.
    """
    check_keywords(rebuild, options)
    number = integer_from(0)("batch", batch)
    found = of_stream(state)
    check_state(found)
    if isinstance(files, Client):
        if provider is not None or args or options:
            raise OptionError("provider, args and options belong to the stream, which is open already; leave them out")
        return Rebuilt(_batch_of(files, found, number, allow), files.files)
    identity = found.get("stream_identity")
    if not isinstance(identity, Mapping):
        raise damaged("stream_identity", ValueError("it is no object"))
    of_state: dict[str, Any] = {name: identity[name] for name in _FROM_STATE if identity.get(name) is not None}
    if "mix" in of_state:
        of_state["mix"] = {**of_state["mix"], **identity[WEIGHTS]}
    if is_train is None:
        known = identity.get("is_train")
        is_train = None if isinstance(known, Mapping) else bool(known)  # of several sources each has its own
    chosen: dict[str, Any] = of_state | {"origin": True} | options
    with closing(load(files, provider, args=args, is_train=is_train, root=root, world_size=1, **chosen)) as stream:
        return Rebuilt(_batch_of(stream, found, number, allow), stream.files)


def _batch_of(stream: Client, state: Mapping[str, Any], number: int, allow: Collection[str]) -> Batch:
    """Return batch ``number`` of the pass of ``state``, from ``stream``."""
    if (ranks := stream._rank[1]) > 1:
        raise OptionError(
            f"rebuild() needs a stream that has all batches, and this one shares them among {ranks} ranks; pass the "
            "file list, or open the stream with world_size=1"
        )
    if (stream._attach.options.get("pack") or {}).get("balance") is not None:
        raise OptionError(
            "balance deals the rows of a step over the ranks, so one rank cannot make a batch of then again; open the "
            "stream without balance, and make all batches of the step"
        )
    position = stream._position_of(state, allow)
    if stream._is_relaxed:
        raise OptionError('order="relaxed" gives other batches each time, so none can be made again')
    if number < position.batch:
        raise OptionError(
            f"the state is before batch {position.batch} of pass {position.pass_id}, and batch {number} came earlier; "
            "use a state that was saved before it"
        )
    stream.load_state_dict(stream._state_of(position.at_batch(number)))  # the service passes over those between
    try:
        with closing(iter(stream)) as batches:  # type: ignore[type-var]  # it is a Pass
            for batch in batches:
                if batch.index == number:
                    return batch
    except NotRepeatable as error:
        raise NotRepeatable(f"batch {number} of pass {position.pass_id} cannot be made again: {error}") from error
    raise OptionError(f"pass {position.pass_id} has no batch {number}; give a number of a batch that was delivered")
