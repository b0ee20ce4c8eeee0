"""Keep one job of a service: its trainers, what is read for it, its statistics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from pydp2.data.rowstore.pool_memory import PoolMemory
from pydp2.data.schema.provider_schema import Schema
from pydp2.errors import OptionError, count_text
from pydp2.options.file_list import FileList
from pydp2.options.job_options import JobOptions
from pydp2.options.service_spec import ServiceSpec
from pydp2.protocol import messages as m
from pydp2.protocol.exact_weights import exact_weight
from pydp2.protocol.trainer_numbers import TrainerNumbers
from pydp2.server.actions import Action, JobLog
from pydp2.server.dispatch.file_dispatcher import FileDispatcher, ReadContext
from pydp2.server.jobs.build import JobSources, job_passes
from pydp2.server.jobs.derived import DerivedJob
from pydp2.server.jobs.group import TrainerGroup
from pydp2.server.jobs.groups import PassEnded
from pydp2.server.jobs.membership import GroupOptions, Trainer
from pydp2.server.jobs.plan import derived_identity, job_plan, small_pool_warning, source_files, stream_identity
from pydp2.server.jobs.resume import restore, take_snapshot
from pydp2.server.snapshots.job_snapshot import JobSnapshot
from pydp2.server.workers.worker_pool import WorkerPool
from pydp2.system.late_rank import LITTLE, late_rank_name
from pydp2.system.log_events import LogEvent
from pydp2.system.rates import RateCounter


def bottleneck_of(waited: float, worked: float, late: str = "") -> str:
    """Return "workers" if the trainer spends its time waiting for batches, "trainer" if batches are always there for
    it, or ``late``, the name of the rank that the others wait for, if there is one.

    ``waited`` and ``worked`` are seconds over the same stretch. Return "" when the stretch is too short to say.
    """
    total = waited + worked
    if total < 0.05:
        return ""
    share = waited / total
    if share < LITTLE:
        return "trainer"
    if late:
        return late
    return "workers" if share > 0.3 else "balanced"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceContext:
    """Values that all jobs of a service share, once the provider is known.

    ``source``: a fingerprint of the provider's code; ``memory`` makes the memory of a job's pools; ``act`` is given
    what follows for workers; ``remember_counts`` is called when a pass is over or was left; ``loss``: why the last
    snapshot of a service before this one could not be used.
    """

    schema: Schema
    spec: ServiceSpec
    files: FileList
    source: str
    read: ReadContext
    memory: Callable[[], PoolMemory]
    worker_pool: WorkerPool
    act: Callable[[Sequence[Action]], None]
    remember_counts: Callable[[], None]
    loss: str = ""


class JobSession:
    """Session of the job ``name`` of trainers with ``numbers``, with the options ``given``. ``counting``: see
    :class:`~pydp2.server.jobs.pass_stream.JobStream`."""

    def __init__(
        self,
        name: str,
        numbers: TrainerNumbers,
        given: JobOptions,
        service: ServiceContext,
        log: JobLog,
        *,
        counting: str = "",
    ) -> None:
        schema, spec, files = service.schema, service.spec, service.files
        self.name = name
        self.options = given
        self._worker_pool = service.worker_pool
        self._act = service.act
        self._remember_counts = service.remember_counts
        self._log = log
        self._cache = service.read.cache
        self._samples = RateCounter()
        self._batches = RateCounter()
        self._waited = self._worked = 0.0
        self._waited_so_far = 0.0  # with waits under way, which trainers report when they are over
        self._warned_bytes = False
        self._files = len(files)
        plan = job_plan(given, schema)
        self.stream_identity = stream_identity(plan, schema, spec, files, service.source) | derived_identity(given)
        """Everything that the stream depends on, by name."""
        of_job = JobSources(source_files(spec, len(files)), schema, service.read, service.memory, self._read)
        self.stream = job_passes(given, plan, of_job, counting=counting)
        self.sources: list[list[Any]] = [[name, numbers.start] for name, numbers in of_job.sources.items()]
        """Names and first files of the sources."""
        group = GroupOptions(
            name=name,
            numbers=numbers,
            dynamic=given.share == "dynamic",
            lease=given.lease,
            prefetch_bytes=given.prefetch_bytes,
            missing_rank=spec.timing.missing_rank,
            loss=service.loss,
        )
        self.trainers = TrainerGroup(self.stream, group, on_end=self._log_pass_end, log=log)
        if given.pack is None and -1 != schema.pool_size < plan.batch_size:
            log(
                f"pool_size={schema.pool_size} is smaller than batch_size={plan.batch_size}; the pool "
                f"holds {plan.batch_size} instead",
                LogEvent.POOL_LIMITED,
            )
        if warning := small_pool_warning(plan.buckets, schema.pool_size, plan.batch_size):
            log(warning, LogEvent.POOL_LIMITED)

    @property
    def row_kind(self) -> dict[str, Any]:
        """What the rows of a batch are, as plain data: samples, or with "kind" "mixed" or "packed" more than that."""
        if self.options.pack is not None:
            return {"kind": "packed", "length": self.options.pack["length"]}
        return {"kind": "samples" if self.options.mix is None else "mixed"}

    def set_weights(self, weights: Mapping[str, Any]) -> tuple[int, int]:
        """Let ``weights``, texts of exact fractions by source, hold from the next step on. Return its pass and number.
        Raises OptionError."""
        stream = self.stream
        if not isinstance(stream, DerivedJob) or self.options.mix is None:
            raise OptionError(f"job {self.name!r} mixes no sources; set_weights() is for the stream of mix()")
        names = [name for name, _ in self.sources]
        if {*weights} != {*names}:
            raise OptionError(
                f"set_weights() needs a weight for each source: {', '.join(names)}; got {', '.join(map(str, weights))}"
            )
        place = stream.set_weights(tuple(Fraction(exact_weight(weights[name])) for name in names))
        self.trainers.outbox.note_change()
        return place

    # -- passes ----------------------------------------------------------------------------------------------------
    def _read(self, dispatcher: FileDispatcher, begins: bool) -> None:
        """Begin to read for ``dispatcher``, or end it."""
        if begins:
            self._worker_pool.begin_pass(dispatcher, self.name)
        else:
            self._act(self._worker_pool.end_pass(dispatcher))
            self._remember_counts()

    def _log_pass_end(self, end: PassEnded) -> None:
        if padding := self.stream.describe_padding():
            self._log(padding, LogEvent.PASS_PADDING)
        losses = []
        if end.dropped:
            losses.append(f"{count_text(end.dropped, 'bad sample was', 'bad samples were')} dropped")
        if cut := self.stream.stats()["ended_early"]:
            losses.append(f"{count_text(cut, 'file was', 'files were')} cut short")
        if losses:
            self._log(f"pass {self.stream.pass_id}: {' and '.join(losses)}", LogEvent.PASS_LOSSES)
        if end.is_empty and self._files:
            whose = "its file" if self._files == 1 else f"any of {self._files} files"
            text = f"pass {self.stream.pass_id} has no samples: process yielded nothing for {whose}"
            self._log(text, LogEvent.PASS_EMPTY)
        cache = None if self._cache is None or self._cache.disk is not None else self._cache.memory
        if cache is not None and cache.full:  # with a disk beside it the rest goes there
            self._log(
                f"the cache is full at {cache.limit} bytes: the files that did not fit are read "
                "again in every pass; raise memory_limit to keep all",
                LogEvent.CACHE_LIMITED,
            )

    def serve(self, most: int) -> bool:
        """Cut what trainers have credit for, about ``most`` batches; True when there may be more."""
        more = self.trainers.serve(most)
        current = self.stream.current
        if current is not None and current.byte_limited and not self._warned_bytes:
            self._warned_bytes = True
            self._log(
                f"pool_bytes={self.stream.plan.pool_bytes} is reached before the pool has its full pool_size; "
                "batches are drawn from the samples that fit",
                LogEvent.POOL_LIMITED,
            )
        return more

    def snapshot(self) -> JobSnapshot:
        """Return what a service writes down of the job so that it can go on."""
        return take_snapshot(self.trainers, self.options, self.stream_identity)

    def restore(self, snapshot: JobSnapshot, now: float) -> None:
        """Be the job that was written down. Raises Error where it cannot be."""
        restore(self.trainers, snapshot, now)

    # -- figures ---------------------------------------------------------------------------------------------------
    def note_sent(self, now: float) -> None:
        """Batches went out: with the first ones of a pass trainers begin to work."""
        if self.stream.begin_time(now):
            self._count_used(0, 0, now)

    def note_used(self, trainer: Trainer, now: float) -> None:
        """Count the batches of ``trainer`` that are found to be used."""
        batches, samples = trainer.flow.take_used()
        if batches:
            self.stream.last_used_at = now
            self._count_used(batches, samples, now)

    def _count_used(self, batches: int, samples: int, now: float) -> None:
        self._batches.add(now, batches)
        self._samples.add(now, samples)

    def count_trainer_time(self, trainer: Trainer, need: m.Need) -> None:
        """Count how ``trainer`` spent its time before ``need``."""
        waited, worked = need.waited_us / 1e6, need.worked_us / 1e6
        self._waited += waited
        self._worked += worked
        trainer.note_steps(need, waited, worked)

    @property
    def trainer_seconds(self) -> tuple[float, float]:
        """Seconds that its trainers waited for batches, and worked."""
        return self._waited, self._worked

    def _waited_until(self, now: float) -> float:
        """Return the seconds that its trainers waited, with waits under way. It never falls."""
        waiting = sum(trainer.waiting_seconds(now) for trainer in self.trainers.registry.trainers.values())
        self._waited_so_far = max(self._waited_so_far, self._waited + waiting)
        return self._waited_so_far

    def stats(self, now: float) -> dict[str, Any]:
        """Return statistics as plain data."""
        registry, current = self.trainers.registry, self.trainers.current
        ranks = [trainer.stats(now) for _, trainer in sorted(registry.trainers.items())]
        peers = registry.numbers.peers  # of a rank: all use the same batches
        if current is not None:
            current.note_unused()
        waited = self._waited_until(now)
        return self.stream.stats() | {
            "progress": self.stream.progress(),
            "seconds_left": self.stream.seconds_left(now),
            "attached": not registry.empty,
            "ranks_to_come": registry.to_come,
            "first_trainer": registry.first_number,
            "samples_per_second": self._samples.per_second(now) / peers,
            "batches_per_second": self._batches.per_second(now) / peers,
            "trainer": {"waited_seconds": waited, "worked_seconds": self._worked},
            "ranks": ranks,
            "bottleneck": bottleneck_of(waited, self._worked, late_rank_name([{"ranks": ranks}])),
        }


_NO_STATS: dict[str, Any] = {
    "pass": -1,
    "attached": False,
    "ranks_to_come": 0,
    "samples": 0,
    "batches": 0,
    "samples_in_pass": 0,
    "batches_in_pass": 0,
    "samples_per_second": 0.0,
    "batches_per_second": 0.0,
    "dropped": 0,
    "blocked": 0,
    "ended_early": 0,
    "pool": {},
    "read_ahead": {"used": 0},
    "run_again": {"files": 0, "samples": 0},
    "padding": {},
    "trainer": {"waited_seconds": 0.0, "worked_seconds": 0.0},
}


def combine_stats(jobs: Sequence[dict[str, Any]], budget: int) -> dict[str, Any]:
    """Return the statistics of all ``jobs``: those of the only one, or sums. "pass" is then the latest that any is
    in."""
    total = _NO_STATS if not jobs else _sum_stats(jobs) if len(jobs) > 1 else jobs[0]
    trainer = total["trainer"]
    return total | {
        "read_ahead": {"budget": budget, "used": total["read_ahead"]["used"]},
        "bottleneck": bottleneck_of(trainer["waited_seconds"], trainer["worked_seconds"], late_rank_name(jobs)),
    }


def _sum_stats(jobs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    apart = {
        "pass": max(job["pass"] for job in jobs),
        "attached": any(job["attached"] for job in jobs),
        "padding": {},  # of unlike buckets: each job has its own
    }
    return {name: _sum([job[name] for job in jobs]) for name in _NO_STATS if name not in apart} | apart


def _sum(values: Sequence[Any]) -> Any:
    """Return the sum of numbers, or of each of the numbers in dicts."""
    if isinstance(values[0], dict):
        return {key: _sum([value[key] for value in values]) for key in values[0]}
    return sum(values)
