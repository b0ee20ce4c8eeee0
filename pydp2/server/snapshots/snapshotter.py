"""Write snapshots of the jobs of a service, and restore the jobs from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import msgpack

from pydp2.errors import OptionError, StateMismatch
from pydp2.options.job_options import JobOptions
from pydp2.options.timing import Timing
from pydp2.protocol.stream_identity import differences
from pydp2.server.snapshots.job_snapshot import JobSnapshot
from pydp2.server.snapshots.state_dir import StateDir
from pydp2.system.log_events import WriteLog


class SnapshottedJob(Protocol):
    """Job with snapshots, such as a :class:`pydp2.server.jobs.session.JobSession`."""

    @property
    def options(self) -> JobOptions:
        """Options that its trainers share."""
        ...

    @property
    def stream_identity(self) -> dict[str, Any]:
        """Values that its stream depends on, by name."""
        ...

    def snapshot(self) -> JobSnapshot:
        """Return what is written down of the job."""
        ...

    def restore(self, snapshot: JobSnapshot, now: float) -> None:
        """Be the job that was written down."""
        ...


class Snapshotter:
    """Writer of snapshots to the state directory ``path``; None: there is no directory, and nothing is written. Raises
    OptionError, StateMismatch."""

    def __init__(self, path: str | None, log: WriteLog, timing: Timing) -> None:
        self._every = timing.snapshot_interval
        self._path = path
        self._state = None if path is None else StateDir(path, log, timing.snapshot_write)
        self._found: list[Any] = []
        self._begun = False  # True after restore(); until then the snapshot that was read must not be replaced
        self._at = 0.0
        if self._state is not None:
            self._state.check()
            self._found = self._state.read()

    @property
    def durable(self) -> bool:
        """True if the service has a state directory, from which it can be started again."""
        return self._state is not None

    @property
    def loss(self) -> str:
        """Reason, for trainers, why the latest snapshot was lost; "" if it was not."""
        return "" if self._state is None else self._state.loss

    def provider_differences(self, files: int, identity_of: Callable[[JobOptions], dict[str, Any]]) -> list[str]:
        """Return texts with the differences between the provider and that of the snapshots which are not restored yet.
        ``identity_of`` returns the part of a job's stream identity that comes from the provider. Raises
        StateMismatch."""
        wrong: dict[str, None] = {}
        for plain in self._found:
            snapshot = JobSnapshot.from_plain(plain, files)
            try:
                now = _plain(identity_of(snapshot.options))
            except OptionError as error:
                wrong[str(error)] = None
                continue
            then = {name: snapshot.stream_identity.get(name) for name in now}
            wrong |= dict.fromkeys(differences(then, now))
        return [*wrong]

    def restore(self, files: int, opens: Callable[[JobSnapshot], SnapshottedJob], now: float) -> None:
        """Open and restore the session of each job that has a snapshot. Raises StateMismatch if the stream of one would
        be different."""
        assert self._state is not None
        for plain in self._found:
            snapshot = JobSnapshot.from_plain(plain, files)
            if snapshot.options.share == "dynamic":  # only an earlier release wrote these
                continue
            job_session = opens(snapshot)
            if wrong := differences(snapshot.stream_identity, _plain(job_session.stream_identity)):
                raise StateMismatch(
                    f"state_dir={self._path!r} was written for another stream of job {snapshot.name!r}: "
                    f"{'; '.join(wrong)}; start the service with the same arguments as before, or give another "
                    "directory"
                )
            job_session.restore(snapshot, now)
        self._found = []
        self._begun = True

    def is_due(self, now: float) -> bool:
        """Return True if it is time for the next snapshot."""
        return self.durable and now - self._at >= self._every

    def write(self, job_sessions: Iterable[SnapshottedJob], now: float, *, wait: bool = False) -> None:
        """Write snapshots of ``job_sessions`` if it is time. With ``wait``, write in any case, and return once they are
        on the disk. A dynamic job has no snapshot: after a restart its trainers load a state."""
        if self._state is None or not self._begun or not (wait or self.is_due(now)):
            return
        self._at = now
        jobs = [
            job_session.snapshot().to_plain() for job_session in job_sessions if job_session.options.share != "dynamic"
        ]
        self._state.write(jobs, wait=wait)

    def close(self) -> None:
        """Write the pending snapshot and stop."""
        if self._state is not None:
            self._state.close()


def _plain(identity: dict[str, Any]) -> dict[str, Any]:
    """Return ``identity`` in the form in which it is read from a file."""
    plain: dict[str, Any] = msgpack.unpackb(msgpack.packb(identity))
    return plain
