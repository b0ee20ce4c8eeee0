"""Keep the jobs of a service: open and drop them, share memory and row servers among them, add up their statistics."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from typing import Any

from pydp2.data.rowstore.host_rows import RowServers
from pydp2.data.rowstore.pool_memory import PoolMemory
from pydp2.data.schema.provider_schema import Schema
from pydp2.options.file_list import FileList
from pydp2.options.job_options import JobOptions
from pydp2.options.service_spec import ServiceSpec
from pydp2.protocol import messages as m
from pydp2.protocol.trainer_numbers import TrainerNumbers
from pydp2.server.actions import DEFAULT_JOB, Action, Log, SendToHost
from pydp2.server.gateway.attach import check_memory
from pydp2.server.gateway.resources import Resources, memory_figures, read_ahead_budget
from pydp2.server.jobs.membership import Trainer
from pydp2.server.jobs.resume import restart_pass
from pydp2.server.jobs.session import JobSession, ServiceContext, combine_stats
from pydp2.server.snapshots.snapshotter import Snapshotter
from pydp2.server.workers.cell_grants import CellGrants
from pydp2.server.workers.worker_pool import WorkerPool
from pydp2.system.log_events import LogEvent, WriteLog
from pydp2.transport import Hub
from pydp2.transport.service_address import without_token


class JobTable:
    """Jobs of a service by name. ``hub``: the sockets of their trainers; ``row_servers``: those of other hosts, None:
    there are no other hosts."""

    def __init__(
        self,
        spec: ServiceSpec,
        files: FileList,
        hub: Hub,
        worker_pool: WorkerPool,
        log: WriteLog,
        snapshotter: Snapshotter,
        row_servers: RowServers | None = None,
    ) -> None:
        self._spec, self._hub, self._log = spec, hub, log
        self.worker_pool, self._snapshotter = worker_pool, snapshotter
        self._budget = read_ahead_budget(spec.workers, spec.memory_limit)
        self._row_servers = row_servers
        self.files = files
        self.sessions: dict[str, JobSession] = {}
        """Jobs by name."""
        self.resources: Resources | None = None
        """Resources that the jobs share; None until the provider is known."""
        self.actions: list[Action] = []
        """Actions for workers that followed from what clients said; the loop carries them out."""

    def fit_budget(self) -> None:
        """Let as many workers as there are now read ahead."""
        self._budget = read_ahead_budget(self.worker_pool.target, self._spec.memory_limit)
        self.worker_pool.fit_budget(self._budget)
        if self.resources is not None:
            self.resources.budget = self._budget

    def provider_ready(self, schema: Schema, source: str, cell_grants: CellGrants | None = None) -> Resources:
        """Note that the provider is known, and the cells of its samples: jobs can begin. Those that were written down
        do. Return what they share."""
        resources = self.resources = Resources(
            self._spec, self.files, self._hub, self._log, self._budget, schema, source, cell_grants
        )
        if self._snapshotter.durable:
            self._snapshotter.restore(
                len(self.files), lambda kept: self.open(kept.name, kept.numbers, kept.options), time.monotonic()
            )
        return resources

    # -- jobs ------------------------------------------------------------------------------------------------------
    def open(self, name: str, numbers: TrainerNumbers, given: JobOptions, counting: str = "") -> JobSession:
        """Return the session of a job that begins. Raises OptionError when the machine cannot hold one more."""
        resources = self.resources
        assert resources is not None
        others = {job.name: job.options for job in self.sessions.values()}
        check_memory(name, given, others, self._spec, resources.available, resources.schema)
        log = functools.partial(self.log_job, name)
        job = self.sessions[name] = JobSession(name, numbers, given, self._context(resources), log, counting=counting)
        return job

    def _context(self, resources: Resources) -> ServiceContext:
        shared = None if resources.pool_memory is None else resources.pool_memory.rows
        return ServiceContext(
            schema=resources.schema,
            spec=self._spec,
            files=self.files,
            source=resources.source,
            read=resources.read_context(),
            memory=functools.partial(PoolMemory, resources.schema.slots, shared, self._row_servers),
            worker_pool=self.worker_pool,
            act=lambda actions: self.actions.extend(actions),
            remember_counts=resources.counts.remember,
            loss=self._snapshotter.loss,
        )

    def log_job(self, job: str, text: str, event: LogEvent, /, *, names_job: bool = False, **fields: str | int) -> None:
        """Log ``text`` about ``job``, after its name, unless ``text`` has it or it is the default job alone."""
        named = names_job or (job == DEFAULT_JOB and len(self.sessions) < 2)
        self.actions.append(Log(text if named else f"job {job!r}: {text}", event, {"job": job, **fields}))

    def drop(self, job_session: JobSession) -> None:
        """Forget a job that is over."""
        job_session.trainers.stop()
        del self.sessions[job_session.name]
        if not self.sessions and self.resources is not None and self.resources.pool_memory is not None:
            self.resources.pool_memory.release_memory()

    # -- rows that are lost ----------------------------------------------------------------------------------------
    def rows_unreachable(self, job_session: JobSession, trainer: Trainer, addresses: Sequence[Any]) -> None:
        """Have the hosts send their rows that ``trainer`` cannot fetch from row servers at ``addresses``."""
        for host, address in job_session.stream.memory.give_up(addresses).items():
            self.actions.append(SendToHost(host, m.SendRows()))
            self.log_job(
                job_session.name,
                f"{trainer.name} cannot fetch rows at {without_token(address)}; the rows of that host come "
                "through the service from now on; let trainers reach that address, or start the host without a "
                "row server",
                LogEvent.ROW_SERVER_UNREACHABLE,
                rank=trainer.rank,
            )
        restart_pass(job_session.trainers)

    def restart_broken_passes(self) -> None:
        """Take up passes that have lost rows where no trainer misses a batch."""
        for job_session in self.sessions.values():
            restart_pass(job_session.trainers)

    # -- figures ---------------------------------------------------------------------------------------------------
    @property
    def is_attached(self) -> bool:
        """True while a trainer is connected."""
        return any(not job.trainers.registry.empty for job in self.sessions.values())

    def is_read_by(self, job: str, pid: int) -> bool:
        """Return True if all trainers of ``job`` are in process ``pid`` of this machine."""
        trainers = self.sessions[job].trainers.registry.trainers.values() if job in self.sessions else ()
        return bool(trainers) and all(trainer.pid == pid and not trainer.host for trainer in trainers)

    @property
    def readable_files(self) -> int:
        """Number of files that can be read at a time: each job with a trainer reads those of the list."""
        return len(self.files) * sum(not job.trainers.registry.empty for job in self.sessions.values())

    def trainer_totals(self) -> tuple[int, float, float, bool]:
        """Return the samples that trainers got, the seconds that they waited and worked, and whether one is there."""
        sessions = [*self.sessions.values()]
        waited, worked = (sum(job.trainer_seconds[i] for job in sessions) for i in (0, 1))
        return sum(job.stream.total_samples for job in sessions), waited, worked, self.is_attached

    def stats(self) -> dict[str, Any]:
        """Return statistics as plain data: of all jobs together, of each, and of what they share."""
        now = time.monotonic()
        jobs = {name: job_session.stats(now) for name, job_session in self.sessions.items()}
        shared: dict[str, Any] = {"cache": {}, "counts": {}, "memory_available": {}}
        shared |= {"memory_available": memory_figures()} if self.resources is None else self.resources.figures()
        return combine_stats([*jobs.values()], self._budget) | {"jobs": jobs} | shared
