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
from pydp2.frameworks.shared_service import LOADER_OPTIONS, LoaderKeywords, Ranks, check_others, is_address, open_loader
from pydp2.jax.arrays import ArrayMaker, Lengths, Values, lengths_by_slot
from pydp2.jax.placement import ProcessPlacement, check_divisible, placement_of, ranks_of_run
from pydp2.options.tables import JOB_OPTIONS, SERVICE_OPTIONS, check_keywords, takes
from pydp2.providers import Provider


class JaxLoader(FrameworkLoader[Values]):
    """Loader of jax arrays, made by :func:`loader`: one iteration is one pass.

    A value is a dict of arrays by slot name, or a tuple where slots have no names. ``batch``: the numpy batch behind
    the value in hand, not to be written to, because an array may lie in its memory. The state is that of the value in
    hand, and the same in all processes. See docs/jax.md.
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

        if make.is_on_cpu:  # there is no copy that could begin early, and another thread may convert
            super().__init__(client, convert, context=make.context)
        else:
            super().__init__(client, convert, ahead=ahead)
        self._drops = drops

    def __iter__(self) -> Iterator[Values]:
        return chain(super().__iter__(), self._no_batches()) if self._drops else super().__iter__()

    def _no_batches(self) -> Iterator[Values]:
        """Yield nothing. Raises OptionError if the pass that has ended gave nothing, because its batch was dropped."""
        try:
            batches = len(self)
        except TypeError:  # it is not known
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
    elsewhere in pydp2, the default of ``last_batch`` is ``"drop"``, because arrays of another shape are compiled anew,
    and cannot be divided among devices. See docs/jax.md.

    Args:
        files: what :func:`pydp2.load` takes, beside ``provider``; or without a provider the address or the connection
            file of a service, or a stream: a client, a mixture, packed sequences.
        provider: the decorated function, or its address.
        sharding: of the arrays, the first axis being the rows, as ``NamedSharding(mesh, P("data"))``; a slot with fewer
            axes takes the first ones of it. Default: the default device.
        ahead: batches whose copies to the device begin before they are asked for. It changes nothing where all devices
            are the CPU of this process.
        pad_to: time steps to which sequences are padded, or cut; entries to which sparse rows are padded; one number,
            or by slot. Default: the bound of the bucket, else the next power of two.
        mask: name of a value ``(rows,)``, False for rows that only fill a batch up, for ``last_batch="pad"``; the last
            of the tuple where slots have no names. Default: none.
        options: those of :func:`pydp2.load`, or with an address of :func:`pydp2.connect`. ``batch_size`` (needed): rows
            of a batch of this process; the global batch has as many for each process. ``rank`` and ``world_size`` are
            those of jax and the sharding; ``world_size=1`` lets each process read all, for arrays of its own devices.

    Raises:
        OptionError: ``batch_size`` cannot be divided among the devices, or another option that cannot be; what
            :func:`pydp2.load` and :func:`pydp2.connect` raise.
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
        place, last = placement_of(sharding), files._stream_identity.get("last_batch")
        _check_stream(files, place, sharding)
    else:
        last = given.setdefault("last_batch", "drop")
        place = _chosen_place(placement_of(sharding), sharding, given)
        _check_options(place, sharding, given)
        if place.replica:
            given["job"] = f"{given.get('job', 'default')}-replica-{place.replica}"
    shares = place.world_size > 1 and not isinstance(files, Stream) and not is_address(files, provider)
    if shares and place.world_size != jax.process_count():  # jax does not know the others, so they cannot be asked
        ranks = Ranks(place.rank, place.world_size, 0)
    else:
        ranks = ranks_of_run(place) if shares else Ranks(place.rank, place.world_size)

    def make(client: Stream) -> JaxLoader:
        if shares:  # the service ends with the first process that leaves it and sees no other: none may come later
            multihost_utils.sync_global_devices("pydp2.jax.loader")
        bucket_by = (client._stream_identity if client is files else given).get("bucket_by")
        maker = ArrayMaker(
            client.slots,
            place,
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


def _chosen_place(place: ProcessPlacement, sharding: Sharding | None, given: dict[str, Any]) -> ProcessPlacement:
    """Take ``rank`` and ``world_size`` out of ``given``, and return the place that they say. Raises OptionError."""
    chosen = {name: given.pop(name) for name in ("rank", "world_size") if name in given}
    if not chosen:
        check_others(jax.process_count())  # and not those with other rows: all may hold the same
        return place
    if sharding is not None and not sharding.is_fully_addressable:
        raise OptionError("rank and world_size follow from a sharding over several processes; leave them out")
    if chosen != {"world_size": 1} and len(chosen) == 1:
        raise OptionError("rank and world_size belong together; pass both, world_size=1 alone, or neither")
    return place._replace(**{"rank": 0, **chosen})


def _check_stream(stream: Stream, place: ProcessPlacement, sharding: Sharding | None) -> None:
    """Raise OptionError if the batches of ``stream`` are not those that ``sharding`` wants here."""
    rank, world_size = stream._rank
    if sharding is not None and not sharding.is_fully_addressable and stream._rank != (place.rank, place.world_size):
        raise OptionError(
            f"this process needs rank {place.rank} of {place.world_size} for the rows that the sharding gives it, and "
            f"the stream is rank {rank} of {world_size}; pass rank= and world_size= to the call that makes the stream"
        )
    share = "dynamic" if getattr(stream, "_dynamic", False) else "ranks"
    _check_options(place, sharding, {**stream._stream_identity, "batch_size": stream.batch_size, "share": share})


def _check_options(place: ProcessPlacement, sharding: Sharding | None, given: Mapping[str, Any]) -> None:
    """Raise OptionError for options that would give arrays which cannot be divided, or which differ between
    processes."""
    if sharding is None:
        return
    if isinstance(batch_size := given.get("batch_size"), int):
        check_divisible(batch_size, place)
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
