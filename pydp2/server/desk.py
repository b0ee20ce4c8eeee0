"""One job as the clients' side of the service has it: its trainers, what it reads, what is told of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pydp2.config import JobOptions
from pydp2.files import FileList
from pydp2.inputs.declaration import Declaration
from pydp2.inputs.placed import PlacedStore
from pydp2.metrics import Rates, bottleneck
from pydp2.protocol import messages as m
from pydp2.server.actions import Action
from pydp2.server.asked import fits, plan_of
from pydp2.server.buckets import tight
from pydp2.server.claims import Claims
from pydp2.server.coordinator import Coordinator
from pydp2.server.job import Job, Over
from pydp2.server.reading import Reading
from pydp2.server.spec import ServiceSpec
from pydp2.server.team import Team


class Desk:
    """The job ``name`` of ``world`` ranks, with the options ``given``. ``source``: a fingerprint of the provider's
    code. ``act`` is given what follows for workers."""

    def __init__(
        self,
        name: str,
        world: int,
        given: JobOptions,
        declaration: Declaration,
        spec: ServiceSpec,
        files: FileList,
        *,
        source: str,
        budget: int,
        cache: Claims | None,
        store: Callable[[], PlacedStore] | None,
        coordinator: Coordinator,
        act: Callable[[Sequence[Action]], None],
        log: Callable[[str, str], None],
    ) -> None:
        self.name = name
        self.options = given
        self._coordinator = coordinator
        self._act = act
        self._log = log
        self._cache = cache
        self._reading: Reading | None = None
        self._samples = Rates()
        self._batches = Rates()
        self._waited = self._worked = 0.0
        self._warned_bytes = False
        plan = plan_of(given, declaration)
        self.fits = fits(plan, declaration, spec, files, source)
        """What its stream depends on, by name."""
        self.job = Job(
            plan,
            declaration,
            files=len(files),
            label=lambda file: files[file],
            budget=budget,
            workers=spec.workers,
            skip_errors=spec.skip_errors,
            cache=cache,
            store=store,
            error_budget=spec.error_budget,
        )
        self.team = Team(
            self.job,
            name=name,
            world=world,
            dynamic=given.share == "dynamic",
            lease=given.lease,
            prefetch_bytes=given.prefetch_bytes,
            read=self._read,
            over=self._over,
            log=log,
            missed=spec.timing.missed,
        )
        if -1 != declaration.pool_size < plan.batch_size:
            log(
                f"pool_size={declaration.pool_size} is smaller than batch_size={plan.batch_size}; the pool "
                f"holds {plan.batch_size} instead",
                "pool",
            )
        if warning := tight(plan.buckets, declaration.pool_size, plan.batch_size):
            log(warning, "pool")

    # -- passes ----------------------------------------------------------------------------------------------------
    def _read(self, reading: Reading | None) -> None:
        """Of this job, only ``reading`` is read from now on."""
        if self._reading is not None:
            self._act(self._coordinator.end(self._reading))
        self._reading = reading
        if reading is not None:
            self._coordinator.begin(reading, self.name)

    def _over(self, end: Over) -> None:
        if end.dropped:
            what = "bad sample was" if end.dropped == 1 else "bad samples were"
            self._log(f"pass {self.job.pass_id}: {end.dropped} {what} dropped", "")
        cache = None if self._cache is None or self._cache.disk is not None else self._cache.cache
        if cache is not None and cache.full:  # with a disk beside it the rest goes there
            self._log(
                f"the cache is full at {cache.limit} bytes: the files that did not fit are read "
                "again in every pass; raise memory_limit to keep all",
                "cache",
            )

    def serve(self, most: int) -> bool:
        """Cut what trainers have credit for, about ``most`` batches; True when there may be more."""
        more = self.team.serve(most)
        if self.job.byte_limited and not self._warned_bytes:
            self._warned_bytes = True
            self._log(
                f"pool_bytes={self.job.plan.pool_bytes} is reached before the pool has the size that was asked for; "
                "batches are drawn from what fits",
                "pool",
            )
        return more

    # -- figures ---------------------------------------------------------------------------------------------------
    def sent(self, batches: Sequence[m.BatchHead], now: float) -> None:
        """Batches went out."""
        if batches:
            self._samples.add(now, sum(head.rows for head in batches))
            self._batches.add(now, len(batches))

    def spent(self, waited: int, worked: int) -> None:
        """A trainer says how it spent its time, in us."""
        self._waited += waited / 1e6
        self._worked += worked / 1e6

    def figures(self, now: float) -> dict[str, Any]:
        """How it is going, as plain data."""
        job, reading = self.job, self.job.reading
        return {
            "pass": job.pass_id,
            "attached": not self.team.empty,
            "samples": job.total_samples,
            "batches": job.total_batches,
            "samples_in_pass": job.samples,
            "batches_in_pass": job.batches,
            "samples_per_second": self._samples.per_second(now),
            "batches_per_second": self._batches.per_second(now),
            "dropped": 0 if reading is None else reading.losses.dropped,
            "pool": job.pool(),
            "read_ahead": {
                "budget": 0 if reading is None else reading.credit.budget,
                "used": 0 if reading is None else reading.credit.used,
            },
            "run_again": dict(zip(("files", "samples"), job.again, strict=True)),
            "padding": job.padding_figures(),
            "trainer": {"waited_seconds": self._waited, "worked_seconds": self._worked},
            "bottleneck": bottleneck(self._waited, self._worked),
        }


_NONE: dict[str, Any] = {
    "pass": -1, "attached": False, "samples": 0, "batches": 0, "samples_in_pass": 0, "batches_in_pass": 0,
    "samples_per_second": 0.0, "batches_per_second": 0.0, "dropped": 0, "pool": {}, "read_ahead": {"used": 0},
    "run_again": {"files": 0, "samples": 0}, "padding": {},
    "trainer": {"waited_seconds": 0.0, "worked_seconds": 0.0},
}  # fmt: skip


def together(jobs: Sequence[dict[str, Any]], budget: int) -> dict[str, Any]:
    """The figures of all ``jobs``: those of the only one, or sums. "pass" is then the latest that any is in."""
    total = _NONE if not jobs else _sum(jobs) if len(jobs) > 1 else jobs[0]
    trainer = total["trainer"]
    return total | {
        "read_ahead": {"budget": budget, "used": total["read_ahead"]["used"]},
        "bottleneck": bottleneck(trainer["waited_seconds"], trainer["worked_seconds"]),
    }


def _sum(jobs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    total: dict[str, Any] = {}
    for name, none in _NONE.items():
        values = [job[name] for job in jobs]
        if name == "pass":
            total[name] = max(values)
        elif name == "attached":
            total[name] = any(values)
        elif name == "padding":
            total[name] = {}  # of unlike buckets: each job has its own
        elif isinstance(none, dict):
            total[name] = {key: sum(value[key] for value in values) for key in values[0]}
        else:
            total[name] = sum(values)
    return total
