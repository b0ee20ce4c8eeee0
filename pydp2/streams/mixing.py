"""Mix several streams by weights into one, in an order that the seed and the data decide (docs/mixing.md).

Random words choose the source of each row, or batch (:mod:`pydp2.streams.mixture_draws`). Nothing else is random, so a
position consists of the number of the next word and a place in each source.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal, Unpack

import numpy as np
from numpy.typing import NDArray

from pydp2.api import machine
from pydp2.api.service import connect, load
from pydp2.api.sources import Files, Source
from pydp2.client.describe import Fact
from pydp2.client.progress import LoopState
from pydp2.client.stream import Stream
from pydp2.data.columns.batch import Batch, StringArray
from pydp2.data.columns.columns import Columns
from pydp2.data.schema.input_types import Slots
from pydp2.errors import OptionError, OptionTypeError, StateMismatch
from pydp2.options.job_options import JobOptions
from pydp2.options.tables import (
    JOB_OPTIONS,
    SERVICE_OPTIONS,
    LoadKeywords,
    check_keywords,
    job_options,
    place_options,
    split_options,
    takes,
)
from pydp2.options.values import Choice, value_text
from pydp2.protocol.stream_identity import check_bool, check_int
from pydp2.providers import Provider
from pydp2.streams.cursor import Origins, Place, join_origins, origin_of_rows, origins_of
from pydp2.streams.derived_stream import Cut, DerivedPosition, DerivedStream
from pydp2.streams.mixture_draws import BLOCK, drawn_before_end, thresholds, words_of_block

_LEAST_MEMORY = 1 << 20
_STOPPING = ("all_exhausted_without_replacement", "first_exhausted", "all_exhausted", "cycle_forever")
_METHODS = ("random", "per_stream")
_OWN = ("batch_size", "seed", "last_batch")  # options of the mixture itself
_OF_ONE_SERVICE = ("bind", "connection", "worker_bind", "keys", "advertise", "metrics", "state_dir")

StoppingStrategy = Literal["all_exhausted_without_replacement", "first_exhausted", "all_exhausted", "cycle_forever"]
BatchingMethod = Literal["random", "per_stream"]
MixSource = Files | Source | Stream
Weighted = Mapping[Any, Any] | Sequence[tuple[MixSource, Any]]


class MixedBatch(Batch):
    """Batch of a :class:`Mixture`. ``source``: ``(rows,)`` int32, the number of the source that each row is from, in
    the order in which the sources were given. See docs/mixing.md."""

    __slots__ = ("_indices", "source")

    source: NDArray[np.int32]
    _indices: Slots

    @property
    def _converted_slots(self) -> Slots:
        return self._indices


@dataclass(slots=True)
class MixPosition(DerivedPosition):
    """Position in a mixture. ``word``: number of the word that chooses next. ``ended``: which sources have ended in
    this pass."""

    word: int = 0
    ended: tuple[bool, ...] = ()

    def next_pass(self) -> MixPosition:
        """Return the position before the pass that follows, in which each source begins its next pass."""
        places = tuple(
            place if ended and place.is_start else Place(place.position.next_pass())
            for place, ended in zip(self.places, self.ended, strict=True)
        )
        return _before_pass(self.pass_id + 1, places)


class Mixture(DerivedStream):
    """Batches mixed from several streams by weights. Iterate over it like a :class:`pydp2.Client`; see :func:`mix`.

    ``source_names``: names of the sources, in the given order. ``weights``: their shares, which sum to 1.
    """

    def __init__(
        self,
        sources: Mapping[str, Stream],
        weights: Sequence[Fraction],
        job: JobOptions,
        stopping_strategy: str,
        batching_method: str,
    ) -> None:
        streams = list(sources.values())
        self.source_names = tuple(sources)
        self.weights = tuple(float(weight) for weight in weights)
        self._shares = tuple(weights)
        self._slots = _common_slots(sources)
        self._indices = next(iter(sources.values()))._converted_slots
        self._seed, self._last_batch = job.seed, job.last_batch
        self._stopping, self._batching = stopping_strategy, batching_method
        self._repeats = stopping_strategy in ("all_exhausted", "cycle_forever")
        self._words: tuple[tuple[int, int], NDArray[np.uint64]] | None = None  # words of the block used last
        self._thresholds: dict[tuple[bool, ...], tuple[NDArray[np.int64], NDArray[np.uint64]]] = {}
        self._length: tuple[tuple[int, ...], int] | None = None  # last result of _drawn(), with its arguments
        *self._first_sources, self._source_count = accumulate((s._source_count for s in streams), initial=0)
        self._gives_origins = all(stream._gives_origins for stream in streams)
        self._begun_empty = [False] * len(streams)
        self._rows = [0] * len(streams)
        places = tuple(Place(stream._session.progress.position) for stream in streams)
        super().__init__(streams, _before_pass(0, places), job.batch_size)
        self._stream_identity = {
            "kind": "mixture",
            "weights": [str(weight) for weight in weights],
            "seed": job.seed,
            "batch_size": job.batch_size,
            "last_batch": job.last_batch,
            "stopping_strategy": stopping_strategy,
            "batching_method": batching_method,
        }

    if TYPE_CHECKING:

        def __iter__(self) -> Iterator[MixedBatch]: ...

    @property
    def slots(self) -> Slots:
        """Types and names of the slots, the same in all sources."""
        return self._slots

    @property
    def files(self) -> tuple[StringArray, ...]:
        """Entries of the file list of each source, as numbered in ``batch.origin.source``: entry ``n`` of source ``k``
        is ``files[k][n]``. The sources of a source that is a mixture itself are counted one by one."""
        found: list[StringArray] = []
        for cursor in self._cursors:
            files = cursor.stream.files
            found += [files] if isinstance(files, StringArray) else files
        return tuple(found)

    @property
    def _converted_slots(self) -> Slots:
        return self._indices

    def stats(self) -> dict[str, Any]:
        """Return statistics as plain data: "sources" has for each source its "weight", the number of "rows" delivered
        from it since the mixture was made, and the "stats" of its service."""
        self._session.check_process()
        self._session.check()
        return {
            "sources": {
                name: {"weight": weight, "rows": rows, "stats": cursor.stream.stats()}
                for name, weight, rows, cursor in zip(
                    self.source_names, self.weights, self._rows, self._cursors, strict=True
                )
            }
        }

    def __len__(self) -> int:
        """Return the number of batches that this trainer gets in the present pass, or in the next one between passes.

        It follows from the numbers of rows of the sources, or of their batches with ``batching_method="per_stream"``,
        and from the random words. Raises TypeError if these numbers are not known, or the pass does not end.
        """
        if self._batching == "per_stream":
            return self._drawn(self._count(len))
        full, rest = divmod(self._drawn(self._count(lambda stream: stream._rows_of_pass())), self.batch_size)
        return full + (rest > 0 and self._last_batch != "drop")

    def _count(self, count: Callable[[Stream], int]) -> list[int]:
        """Return ``count(source)`` for each source. Raises TypeError if it is not known, or differs from pass to
        pass."""
        counts = []
        for name, cursor in zip(self.source_names, self._cursors, strict=True):
            if isinstance(cursor.stream, Mixture) and not cursor.stream._is_steady:
                raise TypeError(
                    f"the number of batches is not known: passes of {name!r} differ in length; count the steps"
                )
            try:
                counts.append(count(cursor.stream))
            except TypeError as error:
                raise TypeError(f"the number of batches is not known because of {name!r}: {error}") from None
        return counts

    @property
    def _is_steady(self) -> bool:
        """True if all passes have the same rows, and the same number of batches."""
        return self._stopping == _STOPPING[0]

    def _rows_of_pass(self) -> int:
        if self._batching == "per_stream":
            raise TypeError('the number of rows of a mixture is not known with batching_method="per_stream"')
        rows = self._drawn(self._count(lambda stream: stream._rows_of_pass()))
        return rows - (rows % self.batch_size if self._last_batch == "drop" else 0)

    def _drawn(self, numbers: Sequence[int]) -> int:
        """Return the number of rows, or batches, in a pass whose sources have ``numbers`` of them."""
        if self._stopping == "cycle_forever":
            raise TypeError('a pass does not end with stopping_strategy="cycle_forever"; count the steps')
        if self._is_steady:
            return sum(numbers)
        now = self._session.progress
        pass_id = now.position.pass_id if now.state is LoopState.RUNNING else now.coming_pass
        asked = (pass_id, *numbers)
        if self._length is None or self._length[0] != asked:
            self._length = asked, drawn_before_end(self._seed, pass_id, self._shares, numbers, self._repeats)
        return self._length[1]

    def _facts(self) -> list[Fact]:
        sources = zip(self.source_names, self.weights, self._rows, strict=True)
        return [
            ("batches", f"of {self.batch_size}; {self._batching}, {self._stopping}"),
            *((name, f"weight {weight:.3g}, {rows:,} rows came") for name, weight, rows in sources),
        ]

    # -- positions -----------------------------------------------------------------------------------------------------
    def _before_pass(self, position: MixPosition, pass_id: int) -> MixPosition:
        if self._repeats:
            raise OptionError(
                f"pass {pass_id} begins where the one before it has left the sources, with "
                f"stopping_strategy={self._stopping!r}, so it cannot be had by number; load a state"
            )
        return _before_pass(pass_id, self._places_before(position, pass_id))

    def _own_fields(self, position: MixPosition) -> dict[str, Any]:
        return {"word": position.word, "ended": list(position.ended), "world_size": self._rank[1]}

    def _from_state(self, state: Mapping[str, Any], allow: Collection[str]) -> MixPosition:
        ranks, now = check_int(state["world_size"], 1), self._rank[1]
        sources = state["sources"]
        if ranks != now and self._batching == "random":
            sources = [
                _with_last_batch(state, cursor.stream) for state, cursor in zip(sources, self._cursors, strict=True)
            ]
        places = tuple(
            self._place_of(state, cursor, allow) for state, cursor in zip(sources, self._cursors, strict=True)
        )
        ended = tuple(map(check_bool, state["ended"]))
        if len(ended) != len(places):
            raise ValueError("its sources and their ends do not agree")
        if ranks != now and any(place.offset for place in places):
            raise StateMismatch(
                f"the state is in the middle of batches that {ranks} ranks share, and there are {now}: another "
                f"world_size can take up a mixture between passes, or with batching_method='per_stream'"
            )
        return MixPosition(check_int(state["pass"]), check_int(state["batch"]), places, check_int(state["word"]), ended)

    def _seek(self, position: MixPosition) -> None:
        self._begun_empty = [False] * len(self._cursors)
        for cursor, place, ended in zip(self._cursors, position.places, position.ended, strict=True):
            cursor.go_to(place, opens=self._repeats or not ended)

    def _rewind_to(self, position: MixPosition) -> bool:
        self._begun_empty = [False] * len(self._cursors)
        return all(
            cursor.rewind_to(place, opens=self._repeats or not ended)
            for cursor, place, ended in zip(self._cursors, position.places, position.ended, strict=True)
        )

    # -- batches -------------------------------------------------------------------------------------------------------
    def _cut(self, position: MixPosition) -> Cut:
        return self._cut_stream(position) if self._batching == "per_stream" else self._cut_rows(position)

    def _cut_rows(self, position: MixPosition) -> Cut:
        """Cut a batch whose rows are drawn from the sources one by one."""
        ended, word = list(position.ended), position.word
        parts: list[list[tuple[Columns, Origins | None]]] = [[] for _ in self._cursors]
        numbers: list[NDArray[np.int64]] = []
        need = self.batch_size
        while need and not self._is_over(ended):
            chosen = self._choose(position.pass_id, word, need, ended)
            served = self._first_unserved(chosen)
            for number, count in enumerate(np.bincount(chosen[:served], minlength=len(parts)).tolist()):
                if count:
                    parts[number].append(self._cursors[number].take_with_origins(count))
            numbers.append(chosen[:served])
            need -= served
            word += served
            if served < len(chosen) and not self._fetch(int(chosen[served]), ended):
                word += 1
        source = np.concatenate([*numbers, np.empty(0, np.int64)])
        rows = len(source)
        if not rows or (rows < self.batch_size and self._last_batch == "drop"):
            return None, self._behind(position, word, ended)
        order = np.argsort(source, kind="stable")  # by source, each in its own order, as ``parts`` are
        columns = Columns.concat([part for chunk in parts for part, _ in chunk])
        take = np.empty(rows, np.int64)
        take[order] = np.arange(rows)
        padding = self.batch_size - rows if self._last_batch == "pad" else 0
        if padding:
            take, source = np.resize(take, self.batch_size), np.resize(source, self.batch_size)
        origins = [self._from_source(k, found) for k, chunk in enumerate(parts) for _, found in chunk]
        batch = MixedBatch(
            columns.take(take), pass_id=position.pass_id, index=position.batch, size=len(take), padding=padding
        )
        batch._origin = origin_of_rows(join_origins(origins), take)
        self._note(batch, source)
        return batch, self._behind(position, word, ended)

    def _cut_stream(self, position: MixPosition) -> Cut:
        """Cut a batch that is a batch of one source."""
        ended, word = list(position.ended), position.word
        while not self._is_over(ended):
            source = int(self._choose(position.pass_id, word, 1, ended)[0])
            word += 1
            if not self._fetch(source, ended):
                continue
            cursor = self._cursors[source]
            made = cursor.batch
            assert made is not None
            cursor.take(cursor.rows_left)
            batch = MixedBatch(
                made._columns,
                pass_id=position.pass_id,
                index=position.batch,
                size=made.size,
                pool_weight=made.pool_weight,
                padding=made.padding,
                bucket=made.bucket,
                group_bucket=made.group_bucket,
            )
            batch._origin = origin_of_rows(self._from_source(source, origins_of(made)))
            self._note(batch, np.full(len(made), source))
            return batch, self._behind(position, word, ended)
        return None, self._behind(position, word, ended)

    def _note(self, batch: MixedBatch, source: NDArray[np.int64]) -> None:
        batch.source, batch._indices = source.astype(np.int32), self._indices
        counts = np.bincount(source[: len(source) - batch.padding], minlength=len(self._rows))
        self._rows = [rows + count for rows, count in zip(self._rows, counts.tolist(), strict=True)]

    def _from_source(self, number: int, origins: Origins | None) -> Origins | None:
        """Return ``origins`` of rows of the source ``number`` as those of this mixture; None if it gives none."""
        if origins is None or not self._gives_origins:
            return None
        moved = origins.copy()
        moved[2] += self._first_sources[number]
        return moved

    def _behind(self, position: MixPosition, word: int, ended: list[bool]) -> MixPosition:
        """Return the position behind the batch that was cut."""
        places = tuple(cursor.place for cursor in self._cursors)
        return replace(position, batch=position.batch + 1, word=word, places=places, ended=tuple(ended))

    def _is_over(self, ended: list[bool]) -> bool:
        if self._stopping == "cycle_forever":
            return False
        return any(ended) if self._stopping == "first_exhausted" else all(ended)

    def _first_unserved(self, chosen: NDArray[np.int64]) -> int:
        """Return how many of the chosen rows can be taken from the batches in hand before another one is needed."""
        served = len(chosen)
        for source, cursor in enumerate(self._cursors):
            picks = np.flatnonzero(chosen[:served] == source)
            if len(picks) > cursor.rows_left:
                served = int(picks[cursor.rows_left])
        return served

    def _fetch(self, source: int, ended: list[bool]) -> bool:
        """Fetch the next batch of a source. Return False if its pass has ended; if sources repeat, its next pass has
        begun then."""
        cursor = self._cursors[source]
        while cursor.fetch():
            if cursor.rows_left or self._batching == "per_stream":
                self._begun_empty[source] = False
                return True
        ended[source] = True
        if self._repeats and not self._is_over(ended):
            if self._begun_empty[source]:
                raise OptionError(
                    f"the source {self.source_names[source]!r} gave no row in a whole pass, so it cannot be repeated; "
                    "leave it out, or lower batch_size if its ranks drop a last batch"
                )
            self._begun_empty[source] = True
            cursor.begin(cursor.place.position)
        return False

    def _choose(self, pass_id: int, word: int, count: int, ended: list[bool]) -> NDArray[np.int64]:
        """Return the sources that the words from ``word`` to below ``word + count`` choose, at most to the end of the
        block."""
        number, offset = divmod(word, BLOCK)
        if self._words is None or self._words[0] != (pass_id, number):
            self._words = (pass_id, number), words_of_block(self._seed, pass_id, number)
        key = (False,) * len(ended) if self._repeats else tuple(ended)
        if key not in self._thresholds:
            self._thresholds[key] = thresholds(self._shares, key)
        sources, edges = self._thresholds[key]
        return sources[np.searchsorted(edges, self._words[1][offset : offset + count], side="right")]


def _before_pass(pass_id: int, places: tuple[Place, ...]) -> MixPosition:
    return MixPosition(pass_id, 0, places, 0, (False,) * len(places))


def _with_last_batch(state: dict[str, Any], stream: Stream) -> dict[str, Any]:
    """Return the state of a source with the ``last_batch`` of ``stream``, which may differ: several ranks drop the last
    batch of a source, and one rank keeps it."""
    if isinstance(stream, DerivedStream):
        return state
    identity = {**state["state"]["stream_identity"], "last_batch": stream._stream_identity["last_batch"]}
    return {**state, "state": {**state["state"], "stream_identity": identity}}


def _common_slots(sources: Mapping[str, Stream]) -> Slots:
    (first, stream), *rest = sources.items()
    for name, other in rest:
        if other.slots != stream.slots:
            raise OptionError(
                f"the sources of a mixture must have the same slots: {first!r} has {_slots_text(stream.slots)}, "
                f"{name!r} has {_slots_text(other.slots)}; declare the same input_types in both providers"
            )
    return stream.slots


def _slots_text(slots: Slots) -> str:
    return "; ".join(f"{slots.label(i)}: {declared!r}" for i, declared in enumerate(slots.types))


@takes(SERVICE_OPTIONS, JOB_OPTIONS)
def mix(
    sources: Weighted,
    provider: str | Provider | None = None,
    *,
    args: Mapping[str, Any] | None = None,
    root: str | os.PathLike[str] | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    stopping_strategy: StoppingStrategy = "all_exhausted_without_replacement",
    batching_method: BatchingMethod = "random",
    **options: Unpack[LoadKeywords],
) -> Mixture:
    """Return a stream whose rows are drawn from several sources by weights: ``mix({"wiki.list": 0.7, "code.list": 0.3},
    "my.process", batch_size=128)``. See docs/mixing.md.

    Args:
        sources: a dict, or a list of pairs, of source and weight. A source is the path of a list, list entries or a
            :class:`Source`, which get a service of their own; an address with ``://``, which is connected to; or an
            open stream, such as a :class:`Client`. Weights are positive numbers; only their ratios count.
        provider, args, root: for the lists, as in :func:`load`.
        rank, world_size: of this trainer at the addresses, as in :func:`connect`.
        stopping_strategy: decides what follows the end of a source. ``"all_exhausted_without_replacement"``: the other
            sources go on, and each sample comes once. ``"first_exhausted"``: the pass ends. ``"all_exhausted"``: the
            source begins again, until all sources have ended once. ``"cycle_forever"``: the source begins again, and
            the pass does not end.
        batching_method: ``"random"``: the source of each row is drawn. ``"per_stream"``: the source of each batch is
            drawn.
        options: ``batch_size`` (needed; rows), ``seed``, ``last_batch`` of the mixture; other options as for
            :func:`load`, for each list, or as for :func:`connect`, for each address. With open streams only, there are
            no other options, and with ``"per_stream"`` each keeps its own ``batch_size`` and ``last_batch``.

    Raises:
        OptionError, OptionTypeError: the slots of the sources differ, a weight is not above 0, a stream is given twice,
            or several services cannot share an option. Also the errors of :func:`load` and :func:`connect`.
    """
    check_keywords(mix, options)
    pairs = _pairs(sources)
    shares = _shares([weight for _, weight in pairs])
    stopping = Choice(_STOPPING)("stopping_strategy", stopping_strategy)
    batching = Choice(_METHODS)("batching_method", batching_method)
    job = job_options(**split_options(options)[0])
    _, _, ranks = place_options("default", 0 if rank is None else rank, 1 if world_size is None else world_size)
    of_lists = {"provider": provider, "args": args, "root": root}
    of_open = [source for source, _ in pairs if isinstance(source, Stream)]
    given = [name for name in options if name not in _OWN]
    given += [name for name, value in of_lists.items() if value is not None]
    if given and len(of_open) == len(pairs):
        raise OptionTypeError(f"{given[0]} belongs to the sources, and these are open already: give it there")
    if len({id(stream) for stream in of_open}) < len(of_open):
        raise OptionError("the same stream cannot be a source twice: both would take its rows; connect another job")
    chosen = _options_of_sources(options, job, batching, ranks)
    rank_options = {"rank": rank, "world_size": world_size}
    opened: dict[str, Stream] = {}
    try:
        _open([source for source, _ in pairs], opened, of_lists, rank_options, chosen)
        wanted = None if rank is None and world_size is None else (0 if rank is None else rank, ranks)
        for name, stream in opened.items():
            wanted = wanted or stream._rank
            _check_ranks(name, stream, batching, wanted)
        return Mixture(opened, shares, job, stopping, batching)
    except BaseException:
        for stream in opened.values():
            if not any(stream is source for source in of_open):
                stream.close()
        raise


# -- inside ------------------------------------------------------------------------------------------------------------
def _options_of_sources(options: LoadKeywords, job: JobOptions, batching: str, ranks: int) -> dict[str, Any]:
    """Return the options with which sources are opened for one of ``ranks`` trainers of a mixture."""
    chosen: dict[str, Any] = {name: value for name, value in options.items() if name not in _OWN}
    last_batch = job.last_batch
    if batching == "random":  # the mixture cuts the batches; ranks need equally many rows
        last_batch = "keep" if ranks == 1 else "drop"
    elif ranks > 1 and "last_batch" not in options:
        last_batch = "drop"
    return chosen | {"batch_size": job.batch_size, "seed": job.seed, "last_batch": last_batch}


def _open(
    sources: Sequence[Any],
    opened: dict[str, Stream],
    of_lists: dict[str, Any],
    rank_options: dict[str, Any],
    options: dict[str, Any],
) -> None:
    """Open the streams of ``sources``, and add each to ``opened`` under its name."""
    lists = sum(not isinstance(source, Stream) and not _is_address(source) for source in sources)
    if lists > 1 and (wrong := [name for name in _OF_ONE_SERVICE if name in options]):
        raise OptionError(f"{wrong[0]} cannot be shared by the services of {lists} lists; launch() them one by one")
    of_job = split_options(options)[0] if lists else options
    memory = {"memory_limit": max(_LEAST_MEMORY, machine.memory().bytes // (4 * lists))} if lists else {}
    for number, source in enumerate(sources):
        name = str(source) if isinstance(source, str | os.PathLike) else f"source {number}"
        if name in opened:
            name = f"{name} ({number})"
        if isinstance(source, Stream):
            opened[name] = source
        elif _is_address(source):
            opened[name] = connect(str(source), **rank_options, **of_job)
        else:
            provider = (
                {} if isinstance(source, Source) else {"provider": of_lists["provider"], "args": of_lists["args"]}
            )
            opened[name] = load(source, root=of_lists["root"], **provider, **rank_options, **memory | options)


def _is_address(source: object) -> bool:
    return isinstance(source, str) and "://" in source


def _check_ranks(name: str, stream: Stream, batching: str, wanted: tuple[int, int]) -> None:
    """Raise OptionError if the ranks of a mixture could read the same rows, or come to different ends."""
    if stream._rank != wanted:
        raise OptionError(
            f"the source {name!r} is read as rank {stream._rank[0]} of {stream._rank[1]}, and the mixture as rank "
            f"{wanted[0]} of {wanted[1]}; connect all sources with the same rank and world_size"
        )
    last_batch = stream._stream_identity.get("last_batch")
    allowed = ("drop",) if batching == "random" else ("drop", "pad")
    if stream._rank[1] > 1 and last_batch not in (None, *allowed):
        raise OptionError(
            f"the source {name!r} is shared by {stream._rank[1]} ranks, which need equally many rows of it: connect it "
            f'with last_batch="drop", got {last_batch!r}'
        )
    if stream._rank[1] > 1 and batching == "random" and stream._stream_identity.get("weighted"):
        raise OptionError(
            f"the source {name!r} has samples that do not weigh 1 (calc_batch_size), so its {stream._rank[1]} ranks "
            'get different numbers of rows and would wait for each other; mix it with batching_method="per_stream", or '
            "without ranks"
        )


def _pairs(sources: Weighted) -> list[tuple[Any, Any]]:
    if isinstance(sources, str) or not isinstance(sources, Mapping | Sequence):
        raise OptionTypeError(f"sources must be a dict of source: weight, or a list of such pairs, got {sources!r:.80}")
    pairs = list(sources.items()) if isinstance(sources, Mapping) else list(sources)
    if not pairs:
        raise OptionError("a mixture needs at least one source")
    for pair in pairs:
        if not (isinstance(pair, tuple | list) and len(pair) == 2):
            raise OptionTypeError(
                f"sources must be a dict of source: weight, or a list of such pairs, got {pair!r:.80}"
            )
    return [(source, weight) for source, weight in pairs]


def _shares(weights: Sequence[Any]) -> list[Fraction]:
    """Return the shares as exact fractions, so that they are the same on every machine."""
    exact = []
    for weight in weights:
        try:
            share = Fraction(weight) if not isinstance(weight, bool | str | bytes) else None
        except (TypeError, ValueError, OverflowError):
            share = None
        if share is None or share <= 0:
            kind = OptionError if isinstance(weight, int | float) else OptionTypeError
            raise kind(f"a weight must be a number above 0, got {value_text(weight)}")
        exact.append(share)
    total = sum(exact)
    return [share / total for share in exact]
