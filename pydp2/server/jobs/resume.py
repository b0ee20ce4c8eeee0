"""Take the pass of a job up again: in a service that was started again, or after rows were lost with their host.

In both cases the pass begins once more at a state from which no rank misses a batch, and each rank stands where it
stood. A service that was killed has read both from its disk.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydp2.options.job_options import JobOptions
from pydp2.order.stream_state import StreamState
from pydp2.server.jobs.agreement import UNFINISHED, Generation, cut_off
from pydp2.server.jobs.group import TrainerGroup
from pydp2.server.jobs.membership import TrainerEvent
from pydp2.server.snapshots.job_snapshot import JobSnapshot, PassState, RankSnapshot
from pydp2.system.log_events import LogEvent

_RESTORED_BY = {
    PassState.BEFORE: TrainerEvent.JOIN,  # it may have begun since
    PassState.IN: TrainerEvent.JOIN,
    PassState.ENDED: TrainerEvent.RESTORE_END,
    PassState.LEFT: TrainerEvent.LEAVE,
}


def take_snapshot(group: TrainerGroup, options: JobOptions, identity: dict[str, Any]) -> JobSnapshot:
    """Return what a service writes down of the job of ``group`` so that it can go on. (Of a job of one rank: which
    trainer has it. That trainer knows the rest.)"""
    group.outbox.snapshot_due = False
    registry, stream, generation, current = group.registry, group.stream, group.generation, group.current
    has_ranks, running = not registry.is_single_rank, None
    if current is not None and has_ranks and stream.plan.order == "strict":
        running = current.resume_state()
    return JobSnapshot(
        name=registry.name,
        numbers=registry.numbers,
        options=options,
        stream_identity=identity,
        ranks=registry.snapshot(None if current is None else current.first_missing),
        pass_id=stream.pass_id if has_ranks else -1,
        loaded=generation.loaded,
        begun_from_state=sorted(generation.begun_from_state),
        running=running,
        errors={**group.outcomes.errors} if has_ranks else {},
        previous_pass=generation.previous_pass,
        buckets=stream.known_buckets if has_ranks else {},
    )


def restore(group: TrainerGroup, snapshot: JobSnapshot, now: float) -> None:
    """Make ``group``, which has just begun, the one that was written down. Raises Error where it cannot be."""
    registry, stream = group.registry, group.stream
    group.generation = Generation(snapshot.loaded, {*snapshot.begun_from_state}, snapshot.previous_pass)
    group.outcomes.errors = {**snapshot.errors}
    registry.restore(snapshot.ranks, now)
    stream.pass_id, stream.known_buckets = snapshot.pass_id, snapshot.buckets
    if snapshot.running is not None and not registry.is_single_rank:
        _reopen(group, snapshot.running, snapshot.ranks)
    elif snapshot.is_cut_off:
        group.outcomes.errors.setdefault(snapshot.pass_id, cut_off(registry.name, snapshot.pass_id))


def restart_pass(group: TrainerGroup) -> None:
    """Go back to where no trainer of ``group`` misses a batch, if rows of its pass are lost with their host."""
    current, registry = group.current, group.registry
    if current is None or not group.stream.memory.has_lost_rows:
        return
    group.log(f"rows of pass {group.stream.pass_id} are lost with their host and are read again", LogEvent.ROWS_LOST)
    start, ranks = current.resume_state(), registry.snapshot(current.first_missing)
    group.stop()
    for trainer in registry.trainers.values():
        if trainer.state is PassState.IN:
            trainer.begin_again()
    if registry.is_single_rank:  # its trainer says where it is
        group.stream.pass_id -= 1
    else:
        _reopen(group, start, [rank for rank in ranks if rank.state is not PassState.BEFORE])


def _reopen(group: TrainerGroup, start: StreamState, ranks: Iterable[RankSnapshot]) -> None:
    """Begin the pass at ``start``, with ``ranks`` where they stood. Errors are kept, also of this pass: a rank that was
    told may not have heard it."""
    group.open(start)
    for rank in ranks:
        trainer = group.registry.trainers.get(rank.number)
        if trainer is not None:
            trainer.move(_RESTORED_BY[rank.state])
            trainer.first_unused = rank.first_unused
        elif rank.state not in UNFINISHED:
            group.registry.passed_through[rank.number] = rank.state
