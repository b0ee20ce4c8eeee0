"""Open a stream whose rows a service draws from several sources by weights (docs/mixing.md)."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Literal, Unpack, cast

from pydp2.api.distributed import distributed_environment
from pydp2.api.service import connect
from pydp2.api.sources import Files, Source
from pydp2.client import Client
from pydp2.client.stream import Stream
from pydp2.errors import OptionError, OptionTypeError
from pydp2.frameworks.shared_service import LoaderKeywords, Ranks, SharedService, chosen_ranks, open_client
from pydp2.options.row_options import BATCHING_METHODS, STOPPING_STRATEGIES
from pydp2.options.tables import JOB_OPTIONS, SERVICE_OPTIONS, check_keywords, takes
from pydp2.options.values import Choice, value_text
from pydp2.providers import Provider

StoppingStrategy = Literal["all_exhausted_without_replacement", "first_exhausted", "all_exhausted", "cycle_forever"]
BatchingMethod = Literal["random", "per_stream"]
Weights = Mapping[str, Any]
"""Weight of each source by its name: numbers from 0 on, of which only the ratios count."""
_PLACE = ("rank", "world_size", "share_along")
Weighted = Mapping[Any, Any] | Sequence[tuple[Files | Source, Any]]


class MixKeywords(LoaderKeywords, total=False):
    """More keywords of :func:`mix` for type checkers."""

    linear: bool
    mesh: Any
    dp: str | tuple[str, ...]


@takes(SERVICE_OPTIONS, JOB_OPTIONS, also=MixKeywords.__annotations__)
def mix(
    sources: Weighted,
    provider: str | Provider | None = None,
    *,
    address: str | os.PathLike[str] | None = None,
    weights: Weights | Sequence[tuple[int, Weights]] | None = None,
    weight_by: str | int | None = None,
    max_passes: Mapping[str, int] | None = None,
    stopping_strategy: StoppingStrategy = "all_exhausted_without_replacement",
    batching_method: BatchingMethod = "random",
    **options: Unpack[MixKeywords],
) -> Client:
    """Return a client whose rows are drawn from several sources by weights: ``mix({"wiki.list": 0.7, "code.list": 0.3},
    "my.process", batch_size=128)``.

    One service reads all sources. Where a launcher such as torchrun has started several ranks, all of them share it.
    Each batch is a :class:`MixedBatch`. See docs/mixing.md.

    Args:
        sources: a dict of list and weight, or a list of such pairs; with ``weights`` a dict of name and list. A list is
            the path of a file list, list entries or a :class:`Source`. With ``address``: weights of the sources of that
            service by name, or a schedule. Weights are numbers from 0 on; only their ratios count.
        provider: for the lists that name none, as in :func:`load`.
        address: the address or connection file of a service that has the sources, as ``launch({name: list, …})`` starts
            it; default: a service is started.
        weights: a dict of name and weight, or a schedule: a list of (step, dict), by step. A step is a batch of every
            rank, and is counted in the pass. :meth:`Client.set_weights` changes weights while the stream runs.
        weight_by: name or number of a slot with sequences: weights are shares of its time steps (tokens); default: of
            rows.
        max_passes: dict of name and number: so often the source is read in one pass of the mixture at most.
        stopping_strategy: decides what follows the end of a source. ``"all_exhausted_without_replacement"``: the other
            sources go on, and each sample comes once. ``"first_exhausted"``: the pass ends. ``"all_exhausted"``: the
            source begins again, until all sources have ended once. ``"cycle_forever"``: the source begins again, and
            the pass does not end.
        batching_method: ``"random"``: the source of each row is drawn. ``"per_stream"``: the source of each batch is
            drawn.
        options: ``batch_size`` (needed; rows), and those of :func:`load`, or with ``address`` of :func:`connect`.
            ``rank`` and ``world_size`` are those that the launcher says by default; ``mesh`` and ``dp`` as for
            :func:`pydp2.torch.loader`. ``pool_bytes`` is divided among the sources. ``last_batch`` is ``"pad"`` by
            default if there are several ranks. ``linear=True``: between two steps of the schedule the weights lie on a
            line.

    Raises:
        OptionError, OptionTypeError: a weight or an option is not valid, the slots of the sources differ, or
            ``order="relaxed"``, ``share="dynamic"`` or ``bucket_by`` is given, which no mixture has. Also the errors of
            :func:`load` and :func:`connect`.
    """
    check_keywords(mix, options)
    lists, points = _sources(sources, weights, is_address=address is not None)
    job: dict[str, Any] = dict(options)
    job["mix"] = {
        "points": points,
        "linear": job.pop("linear", False),
        "stopping_strategy": Choice(STOPPING_STRATEGIES)("stopping_strategy", stopping_strategy),
        "batching_method": Choice(BATCHING_METHODS)("batching_method", batching_method),
        "max_passes": {} if max_passes is None else max_passes,
        "weight_by": weight_by,
    }
    if address is not None:
        if provider is not None:
            raise OptionTypeError(f"provider belongs to the service at {address}, which runs; leave it out")
        return connect(address, **_place_at_service(job), **job)
    client = cast(Client, open_client(cast(Any, lists), provider, _ranks(job), **job))
    if isinstance(client.owner, SharedService):  # the stream may be read without a loader, which would end the service
        client._on_close.append(client.owner.close)
    return client


def _sources(sources: Any, weights: Any, *, is_address: bool) -> tuple[dict[str, Any], list[Any]]:
    """Return the lists by name, and the schedule of the weights as pairs of a step and the weights by name."""
    if is_address:
        if weights is not None:
            raise OptionTypeError("with address the sources are the weights, by name, or a schedule; leave weights out")
        return {}, _points(sources)
    if weights is not None:
        return {str(name): source for name, source in _pairs(sources, "list")}, _points(weights)
    lists: dict[str, Any] = {}
    fixed: dict[str, Any] = {}
    for number, (source, weight) in enumerate(_pairs(sources, "weight")):
        name = str(source) if isinstance(source, str | os.PathLike) else f"source {number}"
        name = name if name not in lists else f"{name} ({number})"
        lists[name], fixed[name] = source, weight
    return lists, [[0, fixed]]


def _points(weights: Any) -> list[Any]:
    """Return weights by name, or a schedule of them, as pairs of a step and the weights."""
    if isinstance(weights, Mapping):
        return [[0, weights]]
    return [list(point) if isinstance(point, tuple) else point for point in weights]


def _pairs(sources: Any, what: str) -> list[tuple[Any, Any]]:
    text = f"sources must be a dict of source: {what}, or a list of such pairs, got"
    if isinstance(sources, str) or not isinstance(sources, Mapping | Sequence):
        raise OptionTypeError(f"{text} {value_text(sources)}")
    pairs = list(sources.items()) if isinstance(sources, Mapping) else list(sources)
    if not pairs:
        raise OptionError("a mixture needs at least one source")
    for pair in pairs:
        if not (isinstance(pair, tuple | list) and len(pair) == 2):
            raise OptionTypeError(f"{text} {value_text(pair)}")
    for pair in pairs:
        if any(isinstance(item, Stream) for item in pair):
            raise OptionTypeError(
                "a source of a mixture is a list of files, and an open stream was given; give the lists to one mix(), "
                "whose service reads all of them, or the address of a service with several sources as address="
            )
    return [(source, value) for source, value in pairs]


def _place_at_service(options: dict[str, Any]) -> dict[str, Any]:
    """Return the keywords of :func:`connect` that say the place of this process, and remove them from ``options``."""
    if "mesh" not in options and (given := [name for name in _PLACE if options.get(name) is not None]):
        place = {name: options.pop(name) for name in given}
        needs_equal_steps = max(place.get("world_size", 1), place.get("share_along", (0, 1))[1]) > 1
    else:
        ranks = _ranks(options)
        place, needs_equal_steps = ranks.place(options.pop("job", "default"))._asdict(), ranks.needs_equal_steps
    if needs_equal_steps:
        options.setdefault("last_batch", "pad")
    return place


def _ranks(options: dict[str, Any]) -> Ranks:
    """Return the rank of this process that ``options`` say, from which it is removed, or that of the run."""
    if "mesh" in options or "dp" in options:
        of_mesh: Ranks = import_module("pydp2.torch.mesh").ranks_of(options)  # by name, as it needs torch
        return of_mesh
    rank, world_size, share_along = (options.pop(name, None) for name in _PLACE)
    return chosen_ranks(rank, world_size, _find_ranks, share_along)


def _find_ranks() -> Ranks:
    """Return the rank of this process that torch.distributed or the environment says."""
    torch = sys.modules.get("torch.distributed")
    is_initialized = torch is not None and torch.is_available() and torch.is_initialized()
    if not is_initialized and distributed_environment() is None:
        return Ranks()
    try:
        found: Ranks = import_module("pydp2.torch.ranks").find_ranks()  # by name, as it needs torch
    except ImportError:
        return Ranks()  # chosen_ranks() names the processes of the environment
    return found
