"""A job: the passes of one trainer. Makes the plan of a pass, pulls batches from its stream while there is credit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any

from pydp2.errors import Error, NotRepeatable
from pydp2.inputs.declaration import Declaration
from pydp2.inputs.picked import Picked
from pydp2.inputs.placed import PlacedStore
from pydp2.inputs.shelf import Shelf
from pydp2.inputs.store import ColumnStore
from pydp2.order import Blocked, Buckets, Cut, Done, Failed, Plan, Stream, file_order, stream_of
from pydp2.order.files import turn_length
from pydp2.order.plan import UNBOUNDED
from pydp2.order.saved import Saved
from pydp2.order.whole import Whole
from pydp2.protocol.facts import listed
from pydp2.protocol.packs import BATCH_COST
from pydp2.server.buckets import Padding, begun
from pydp2.server.claims import Claims
from pydp2.server.reading import Reading
from pydp2.server.whole import lying

_PULLS = 32  # batches cut in one call


@dataclass(frozen=True, slots=True)
class JobPlan:
    """The job's options that the order depends on."""

    batch_size: int
    seed: int
    shuffle: bool
    order: str
    interleave: int
    pool_bytes: int
    last_batch: str
    buckets: Buckets | None = None


@dataclass(frozen=True, slots=True)
class Ready:
    """A batch that was cut."""

    cut: Cut
    picked: Picked
    bucket: dict[str, Any]

    @property
    def cost(self) -> int:
        """The bytes that it counts as long as it is kept: its columns, and what is known of it."""
        return self.picked.padded_bytes + BATCH_COST


@dataclass(frozen=True, slots=True)
class Group:
    """Batches that go out together, one for each rank, at the end of a pass maybe fewer.

    ``after``: the position of whoever has used its one of them. What the pass can be taken up from then: ``point``
    (None: its start), ``facts`` as ``[file, ordinal, reason]``, ``gone`` samples of the tail.
    """

    batches: list[Ready]
    after: int
    gone: int
    point: Saved | None
    facts: list[list[Any]]


@dataclass(frozen=True, slots=True)
class Over:
    """The pass is over."""

    batches: int
    samples: int
    dropped: int
    uniform: bool


@dataclass(frozen=True, slots=True)
class Broke:
    """The pass failed."""

    error: Error


class Job:
    """Passes over the files of the list, one at a time."""

    def __init__(
        self,
        plan: JobPlan,
        declaration: Declaration,
        *,
        files: int,
        label: Callable[[int], str],
        budget: int,
        workers: int,
        skip_errors: bool,
        cache: Claims | None,
        store: Callable[[], PlacedStore] | None = None,
        error_budget: float | None = None,
    ) -> None:
        self.plan = plan
        self.declaration = declaration
        self._files = files
        self._label = label
        self._budget = budget
        self._workers = workers
        self._skip = skip_errors
        self._cache = cache
        self._placed = store  # makes one for samples that have places
        self._error_budget = error_budget
        self.pass_id = -1
        self._skip_to = 0
        self._beyond: frozenset[int] = frozenset()
        self._world = 1
        self._cut: list[Ready] = []  # of the next group
        self._cut_bytes = 0
        self._end: Over | None = None
        self._facts: list[list[Any]] = []
        self.samples = 0  # delivered in this pass
        self.batches = 0
        self.total_samples = 0
        self.total_batches = 0
        self.waiting_for: int | None = None
        self.more = False
        """:meth:`next` had nothing because a group of so many ranks is not cut in one call: others have their turn."""
        self.crowded = False
        """It had nothing because there is no room for the rest of the group."""
        self._stream: Stream | None = None
        self._store: ColumnStore | PlacedStore | Shelf | None = None
        self._pool: ColumnStore | None = None  # of the pass before: its memory need not be made anew
        self.reading: Reading | None = None
        self.padding = Padding()
        self._bounds: dict[str, Any] = {}  # of buckets, once they are drawn: a rank without a batch does not know them

    def begin(
        self,
        pass_id: int,
        *,
        batch: int = 0,
        saved: Saved | None = None,
        facts: Mapping[int, tuple[int, str]] | None = None,
        beyond: Collection[int] = (),
        buckets: Mapping[str, Any] | None = None,
        world: int = 1,
    ) -> Reading:
        """Start pass ``pass_id`` before batch ``batch``, from the point ``saved``, for ``world`` ranks; what to read.

        ``beyond``: later batches that are not wanted; ``buckets``: what batches of an earlier pass, or of this one,
        said of them. Raises OptionError when ``saved`` is no point of this pass.
        """
        self.leave()
        self.padding = Padding()
        self._skip_to = batch
        self._beyond = frozenset(beyond)
        self._world = world
        self._cut, self._cut_bytes, self._end, self._facts = [], 0, None, []
        job, provider = self.plan, self.declaration
        self.pass_id = pass_id
        self.samples = self.batches = 0
        cached = provider.kept_in_memory
        plan = Plan(
            seed=job.seed,
            pass_id=pass_id,
            files=self._files,
            batch_size=job.batch_size,
            shuffle=job.shuffle,
            interleave=job.interleave,
            pool_size=provider.pool_size,
            min_pool_size=provider.min_pool_size,
            can_over_batch_size=provider.can_over_batch_size,
            pool_bytes=job.pool_bytes,
            everything=cached and job.shuffle and pass_id > 0,
            last_batch=job.last_batch,
            relaxed=job.order == "relaxed",
            buckets=begun(job.buckets, self._bounds | dict(buckets or {}), world),
        )
        if plan.buckets is not None and plan.buckets.bounds is not None:
            self._bounds = {"bounds": list(plan.buckets.bounds)}  # whoever asks before the next batch needs them too
        order = file_order(plan)
        if saved is not None:
            saved.check(order, plan.lanes)
        self.reading = Reading(
            pass_id=pass_id,
            seed=job.seed,
            order=order,
            lanes=min(plan.lanes, max(1, self._files)),
            budget=self._budget,
            workers=self._workers,
            label=self._label,
            ramp=_ramp(plan, order[: plan.lanes].tolist()) if saved is None else None,
            pull=partial(turn_length, plan) if plan.shuffle and not plan.relaxed else _alike,
            skip_errors=self._skip,
            cache=self._cache,
            saved=saved,
            facts=facts,
            error_budget=self._error_budget,
        )
        there = lying(plan, self._cache, saved, facts)
        if there is None:
            if self._placed is not None:
                self._store = self._placed()
            else:
                self._store = ColumnStore(provider.slots) if self._pool is None else self._pool
            self._stream = stream_of(plan, self.reading, self._store, order, saved)
        else:
            place, listing = there
            self._store = place.shelf
            if listing is None:
                self._stream = stream_of(plan, self.reading, place, order, saved)
            else:
                self.reading.losses.taken = len(listing.rows)  # there is nothing that it would read
                self._stream = Whole(plan, self.reading, listing)
        self._pool = None
        return self.reading

    @property
    def buckets(self) -> dict[str, Any]:
        """What the buckets of this pass are; {} without, and before they are known."""
        if self._stream is None or self._stream.plan.buckets is None or not self._bounds:
            return {}
        return {**self._bounds, "group": self._stream.plan.buckets.group}

    def knows(self, facts: Mapping[int, tuple[int, str]]) -> bool:
        """Whether this pass has all of ``facts``."""
        known = {} if self.reading is None else self.reading.losses.facts
        return all(file in known and known[file][0] == y for file, (y, _) in facts.items())

    @property
    def again(self) -> tuple[int, int]:
        """Files, and samples of them, that are run again because the pass was taken up in its middle."""
        return (0, 0) if self._stream is None else self._stream.again

    @property
    def running(self) -> bool:
        """A pass is under way."""
        return self._stream is not None

    @property
    def byte_limited(self) -> bool:
        """The pool of this pass was stopped by its limit in bytes."""
        return self._stream is not None and self._stream.byte_limited

    def leave(self) -> None:
        """The pass is over or not wanted any more."""
        if isinstance(self._store, ColumnStore) and len(self._store) == 0:  # at its end
            self._pool = self._store
        self._stream = None
        self._store = None
        self._cut.clear()
        self.reading = None
        self.waiting_for = None
        self.more = self.crowded = False

    def next(self, pulls: int = _PULLS, room: float = inf) -> Group | Over | Broke | None:
        """The next batches that go out together; None: nothing now. The order is decided here and nowhere else.

        Cuts ``pulls`` batches at most, and none once those of the group that is begun cost ``room`` bytes.

        With one rank a group is a batch. With ``last_batch`` "drop" or "pad" all ranks get equally many: what is left
        at the end of the pass is dropped, or made up with batches that are padding alone.
        """
        if self._stream is None or self.reading is None:
            return None
        if self._end is not None:
            return replace(self._end, samples=self.samples)
        self.more = self.crowded = False
        for pull in range(self._world - len(self._cut)):
            self.more, self.crowded = pull == pulls, self._cut_bytes >= room
            if self.more or self.crowded:
                return None
            outcome = self._pull()
            if isinstance(outcome, Ready):
                self._cut.append(outcome)
                self._cut_bytes += outcome.cost
                continue
            if isinstance(outcome, Over):
                self._end = self._even(outcome)
            elif outcome is None or self.plan.last_batch != "keep":
                return outcome
            if not self._cut:
                return outcome if self._end is None else replace(self._end, samples=self.samples)
            break
        batches, self._cut, self._cut_bytes = self._cut, [], 0
        for ready in batches:
            rows = len(ready.cut.rows) - ready.cut.padding
            self.samples += rows
            self.total_samples += rows
        self.batches += len(batches)
        self.total_batches += len(batches)
        facts = self.reading.losses.facts
        if len(self._facts) != len(facts):
            self._facts = listed(facts)
        last = batches[-1].cut
        return Group(batches, last.index + 1, last.gone, self._point(), self._facts)

    def _even(self, over: Over) -> Over:
        """The end of the pass, where the last batches are not one for each rank."""
        missing = self._world - len(self._cut)
        if not self._cut or self.plan.last_batch == "keep":
            return over
        if self.plan.last_batch == "drop":
            missing = -len(self._cut)
            self._cut = []
        else:
            first, last = self._cut[0], self._cut[-1].cut
            rows = first.cut.rows
            self._cut += [
                Ready(Cut(last.index + 1 + i, rows, 0, 0, len(rows), last.gone), first.picked, first.bucket)
                for i in range(missing)
            ]
        return replace(over, batches=over.batches + missing)

    def _pull(self) -> Ready | Over | Broke | None:
        assert self._stream is not None
        assert self._store is not None
        assert self.reading is not None
        outcome = self._stream.next()
        while isinstance(outcome, Cut) and (outcome.index < self._skip_to or outcome.index in self._beyond):
            self._store.release(outcome.rows[: len(outcome.rows) - outcome.padding])  # used before the state was saved
            outcome = self._stream.next()
        self.waiting_for = None
        match outcome:
            case Blocked(file, need, missing):
                self.waiting_for = file
                self.reading.want(file, need, missing)
                return None
            case Cut():
                picked = Picked(self._store, outcome.rows, outcome.padding, outcome.nbytes)
                if self.plan.buckets is not None:
                    self.padding.add(picked.lengths(self.plan.buckets.slot))
                return Ready(outcome, picked, self._bucket(outcome))
            case Done(batches) if batches < self._skip_to:
                return Broke(
                    NotRepeatable(
                        f"pass {self.pass_id} has {batches} batches, but {self._skip_to} were delivered when the state "
                        "was saved: the files do not give the same samples any more"
                    )
                )
            case Done(batches):
                uniform = not self.declaration.weighted
                return Over(batches, self.samples, self.reading.losses.dropped, uniform)
            case Failed(error):
                return Broke(error)

    def _bucket(self, cut: Cut) -> dict[str, Any]:
        """Where ``cut`` came from, and what the buckets of this pass are; {} without buckets."""
        if self._stream is None or self._stream.plan.buckets is None:
            return {}
        bounds = list(self._stream.pool.bounds or ())
        self._bounds = {"bounds": bounds}
        return {"longest": cut.longest, "bounds": bounds, "group": self._stream.plan.buckets.group}

    def padding_figures(self) -> dict[str, Any]:
        """How much padding the batches of this pass would have; {} without buckets."""
        return {} if self.plan.buckets is None else self.padding.figures(self.declaration.slots, self.plan.buckets.slot)

    def said_of_padding(self) -> str:
        """The same for the log, at the end of a pass; empty without buckets."""
        if self._stream is None or self.plan.buckets is None:
            return ""
        told = self.padding.told(self.declaration.slots, self.plan.buckets.slot, self._stream.pool.bounds)
        return f"pass {self.pass_id}: {told}"

    def _point(self) -> Saved | None:
        return self._stream.saved if self._stream is not None and self.plan.order == "strict" else None

    def pool(self) -> dict[str, Any]:
        """The pool as plain numbers."""
        if self._stream is None or self._store is None:
            return {"samples": 0, "weight": 0, "bytes": 0, "memory": 0}
        pool = self._stream.pool
        return {
            "samples": len(pool), "weight": pool.weight, "bytes": pool.bytes, "memory": self._store.held_bytes,
        }  # fmt: skip


def _alike(file: int) -> int:
    """What the merge takes of a file, compared with others, where it does not take turns with several."""
    return 1


def _ramp(plan: Plan, first: list[int]) -> dict[int, int]:
    """How far each of the ``first`` lanes is read turn by turn: what the first two batches will take of it.

    Without this a worker would finish its first file before it looked at its second, and the merge, which takes
    turns with all, would wait. Speed only: nothing to win where the pool wants everything first, with one lane, or
    where there are no turns.
    """
    level = plan.level(0)
    if level >= UNBOUNDED or len(first) < 2 or plan.relaxed:
        return {}
    turns = {file: turn_length(plan, file) for file in first}
    rounds = -(-(level + plan.batch_size) // sum(turns.values()))
    return {file: rounds * turn for file, turn in turns.items()}
