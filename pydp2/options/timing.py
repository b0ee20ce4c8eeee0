"""Define the timeouts and intervals of a service, in seconds. Tests use shorter ones."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Times of the server process, in seconds. Those that the user may choose (``lease``, ``sample_timeout``) are
    options instead."""

    stopped_worker: float = 10.0
    """Seconds that a worker may stay stopped by a signal before it is killed; ``sample_timeout`` overrides it."""
    stack_dump: float = 0.3
    """Seconds that a worker may take to write its stack before it is killed."""
    missing_rank: float = 5.0
    """Seconds that trainers wait for a rank before the log says which one is missing."""
    trainer_probe: float = 2.0
    """Seconds between two checks whether trainers are still alive."""
    tick: float = 0.5
    """Seconds between two rounds of the loop's checks that no message triggers."""
    memory_check: float = 0.1
    """Seconds between two measurements of the memory of workers, if ``worker_memory`` limits it."""
    worker_last_words: float = 2.0
    """Seconds that the last messages of a worker whose process has ended may be under way."""
    trainer_last_words: float = 0.2
    """Seconds that the last messages of a trainer whose process has ended may be under way."""
    taken_rank_notice: float = 1.0
    """Seconds that a trainer waits for a rank that another trainer has, before it is refused."""
    taken_rank_retry: float = 0.05
    """Seconds between two checks whether such a rank is free."""
    descriptor_check: float = 0.25
    """Seconds between two checks of the number of free descriptors."""
    worker_connects: float = 1.0
    """Seconds that an admitted worker may take to connect. New trainers wait meanwhile."""
    descriptor_notice: float = 60.0
    """Seconds for which there must have been enough descriptors before the log reports a lack of them again."""
    file_check: float = 5.0
    """Seconds between two checks whether the socket files of the server are still there."""
    heap_release: float = 5.0
    """Least number of seconds between two releases of free heap memory to the system."""
    snapshot_interval: float = 2.0
    """Seconds between two snapshots, if no event requires one at once."""
    snapshot_write: float = 5.0
    """Seconds that the service waits until a snapshot is on the disk."""

    host_beat: float = 1.0
    """Seconds between two beats of a host, and of its service."""
    host_timeout: float = 10.0
    """Seconds that a host, or its service, may be silent before the other side considers it lost."""
    host_drain: float = 25.0
    """Seconds that the workers of a host that leaves may go on reading their files, before it ends them."""


DEFAULT_TIMING = Timing()
"""Timing of services that are started from now on. Tests replace it."""
