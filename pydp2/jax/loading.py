"""Open a loader of jax arrays: for one device, for all devices of this process, or for a mesh of several processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, Unpack

import jax
from jax.experimental import multihost_utils
from jax.sharding import Sharding, SingleDeviceSharding

from pydp2.api.sources import Files, Source
from pydp2.client.stream import Stream
from pydp2.data.columns.batch import Batch
from pydp2.data.schema.input_types import Slots
from pydp2.errors import OptionError, OptionTypeError
from pydp2.frameworks.loader import FrameworkLoader
from pydp2.frameworks.shared_service import LOADER_OPTIONS, LoaderKeywords, check_others, is_address, open_loader
from pydp2.jax.arrays import ArrayMaker, Lengths, Values, lengths_by_slot
from pydp2.jax.placement import ProcessPlacement, check_divisible, placement_of, ranks_of_run
from pydp2.options.tables import JOB_OPTIONS, SERVICE_OPTIONS, check_keywords, takes
from pydp2.providers import Provider


class JaxLoader(FrameworkLoader[Values]):
    """Loader of jax arrays, made by :func:`loader`: one iteration is one pass.

    A value is a dict of arrays by slot name, or a tuple if slots have no names. ``batch``: the numpy batch of the value
    in training; do not write to it, because an array may share its memory. The state is that of the value in training,
    and the same in all processes. See docs/jax.md.
    """

    def __init__(self, client: Stream, make: ArrayMaker, *, ahead: int, rows: int | None, drops: bool) -> None:
        def convert(batch: Batch) -> Values:
            if rows is not None and len(batch) != rows:
                raise OptionError(
                    f"each batch must have batch_size={rows} rows, to be divided among devices; batch {batch.index} of "
                    f"pass {batch.pass_id} has {len(batch)}, because its provider weighs samples; leave "
                    "calc_batch_size out there, or pass sharding=None"
                )
            return make(batch)

        if make.is_on_cpu:  # no copy could begin early, but another thread may convert
            super().__init__(client, convert, context=make.context)
        else:
            super().__init__(client, convert, ahead=ahead)
        self._drops = drops

    def __iter__(self) -> Iterator[Values]:
        return chain(super().__iter__(), self._no_batches()) if self._drops else super().__iter__()

    def _no_batches(self) -> Iterator[Values]:
        """Yield nothing. Raises OptionError if the pass that has ended had no batch, because its last was dropped."""
        try:
            batches = len(self)
        except TypeError:  # the length is not known
            return
        if batches < 1:
            raise OptionError(
                f"a pass needs at least one whole batch for each process, and all files together have fewer samples "
                f'than batch_size={self.batch_size} for each; lower it, or pass last_batch="pad"'
            )
        yield from ()


@takes(SERVICE_OPTIONS, JOB_OPTIONS, also=LOADER_OPTIONS)
def loader(
    files: Files | Source | Stream,
    provider: str | Provider | None = None,
    *,
    sharding: Sharding | jax.Device | None = None,
    ahead: int = 2,
    pad_to: int | Lengths | None = None,
    mask: str | None = None,
    **options: Unpack[LoaderKeywords],
) -> JaxLoader:
    """Return a loader of jax arrays: ``for batch in loader("train.list", process, batch_size=128, sharding=s)``.

    With several processes (``jax.distributed``) all of them call it together, and each reads its own rows. Unlike
    elsewhere in pydp2, the default of ``last_batch`` is ``"drop"``, because arrays of another shape need another
    compilation, and cannot be divided among devices. See docs/jax.md.

    Args:
        files: as for :func:`pydp2.load`, with a ``provider``; or without a provider the address or the connection file
            of a service, or a stream: a client, a mixture, packed sequences.
        provider: the decorated function, or its address.
        sharding: sharding of the arrays, whose first axis are the rows, such as ``NamedSharding(mesh, P("data"))``; for
            a slot with fewer axes, only its first axes count. Default: the default device.
        ahead: number of batches whose copies to the device begin before they are requested. It has no effect if all
            devices are the CPU of this process.
        pad_to: number of time steps to which sequences are padded, or cut, and of entries to which sparse rows are
            padded; one number, or a dict by slot. Default: the bound of the bucket, or the next power of two.
        mask: name of a value ``(rows,)`` that is False for padding rows, for ``last_batch="pad"``; if slots have no
            names, it is the last item of the tuple. Default: no such value.
        options: those of :func:`pydp2.load`, or with an address of :func:`pydp2.connect`. ``batch_size`` (needed): rows
            of a batch of this process; the global batch has as many for each process. ``rank`` and ``world_size`` are
            those of jax and the sharding; ``world_size=1`` lets each process read all, for arrays of its own devices.
            ``workers_per_node``: number of workers on each machine but that of rank 0, which has ``workers``; default
            0.

    Raises:
        OptionError: ``batch_size`` cannot be divided among the devices, or another option is not valid. Also the errors
            of :func:`pydp2.load` and :func:`pydp2.connect`.
    """
    check_keywords(loader, options)
    if isinstance(sharding, jax.Device):
        sharding = SingleDeviceSharding(sharding)
    if not isinstance(sharding, Sharding | None):
        raise OptionTypeError(
            f"sharding must be a jax.sharding.Sharding, as NamedSharding(mesh, P('data')), got {sharding!r:.80}"
        )
    if isinstance(ahead, bool) or not isinstance(ahead, int) or ahead < 0:
        raise OptionError(f"ahead must be a number of batches from 0 on, got {ahead!r:.80}")
    given: dict[str, Any] = dict(options)
    if isinstance(files, Stream):
        placement, last = placement_of(sharding), files._stream_identity.get("last_batch")
        _check_stream(files, placement, sharding)
    else:
        last = given.setdefault("last_batch", "drop")
        placement = _chosen_placement(placement_of(sharding), sharding, given)
        _check_options(placement, sharding, given)
    is_open = isinstance(files, Stream) or is_address(files, provider, given.get("root"))
    ranks = placement.ranks(0)
    shares = ranks.world_size > 1 and not is_open
    if shares and ranks.world_size == jax.process_count():  # else jax does not know the others, and cannot reach them
        ranks = ranks_of_run(placement)

    def make(client: Stream) -> JaxLoader:
        if shares:  # all must connect first: the service ends when a process leaves it and sees no other
            multihost_utils.sync_global_devices("pydp2.jax.loader")
        bucket_by = (client._stream_identity if client is files else given).get("bucket_by")
        maker = ArrayMaker(
            client.slots,
            placement,
            sharding,
            pad_to=lengths_by_slot(client.slots, pad_to),
            bucket_by=None if bucket_by is None else _slot(client.slots, bucket_by),
            mask=mask,
        )
        rows = None if sharding is None else client.batch_size
        return JaxLoader(client, maker, ahead=ahead, rows=rows, drops=last == "drop")

    return open_loader(files, provider, ranks, make, **given)


def _slot(slots: Slots, key: str | int) -> int:
    return slots.index(key) if isinstance(key, str) else int(key)


def _chosen_placement(
    placement: ProcessPlacement, sharding: Sharding | None, given: dict[str, Any]
) -> ProcessPlacement:
    """Return the placement of ``rank`` and ``world_size`` in ``given``, from which they are removed, or ``placement``.
    Raises OptionError."""
    if "share_along" in given:
        raise OptionError(
            "processes that hold the same rows of a sharding are peers of one rank already: leave share_along out"
        )
    chosen = {name: given.pop(name) for name in ("rank", "world_size") if name in given}
    if not chosen:
        check_others(jax.process_count())  # not placement.world_size: all processes may have the same rows
        return placement
    if sharding is not None and not sharding.is_fully_addressable:
        raise OptionError("rank and world_size follow from a sharding over several processes; leave them out")
    if chosen != {"world_size": 1} and len(chosen) == 1:
        raise OptionError("rank and world_size belong together; pass both, world_size=1 alone, or neither")
    return placement._replace(**{"rank": 0, **chosen})


def _check_stream(stream: Stream, placement: ProcessPlacement, sharding: Sharding | None) -> None:
    """Raise OptionError if the batches of ``stream`` do not fit ``placement`` and ``sharding``."""
    rank, world_size = stream._rank
    if (
        sharding is not None
        and not sharding.is_fully_addressable
        and stream._rank != (placement.rank, placement.world_size)
    ):
        raise OptionError(
            f"this process needs rank {placement.rank} of {placement.world_size} for the rows that the sharding gives "
            f"it, and the stream is rank {rank} of {world_size}; pass rank= and world_size= to the call that makes the "
            "stream"
        )
    share = "dynamic" if getattr(stream, "_dynamic", False) else "ranks"
    _check_options(placement, sharding, {**stream._stream_identity, "batch_size": stream.batch_size, "share": share})


def _check_options(placement: ProcessPlacement, sharding: Sharding | None, given: Mapping[str, Any]) -> None:
    """Raise OptionError for options that would give arrays which cannot be divided, or which differ between
    processes."""
    if sharding is None:
        return
    if isinstance(batch_size := given.get("batch_size"), int):
        check_divisible(batch_size, placement)
    if given["last_batch"] == "keep":
        raise OptionError(
            'with a sharding all batches must have the same rows, and last_batch="keep" gives a smaller one at the end '
            'of a pass; pass "drop", or "pad" with mask= to tell the rows that only fill up'
        )
    if not sharding.is_fully_addressable and (given.get("share") == "dynamic" or given.get("order") == "relaxed"):
        raise OptionError(
            "processes that make one global array must get equally many batches, in one order: leave out "
            'share="dynamic" and order="relaxed"'
        )
