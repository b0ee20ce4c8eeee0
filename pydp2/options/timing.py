"""Hold the times that a service waits for things, in seconds. Tests use shorter ones."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Times of the server process. Those that the user may choose (``lease``, ``sample_timeout``) are options
    instead."""

    stopped_worker: float = 10.0
    """A worker may be stopped by a signal for so long, where ``sample_timeout`` does not say."""
    stack_dump: float = 0.3
    """A worker has so long to write its stack before it is killed."""
    missing_rank: float = 5.0
    """Trainers wait for a rank before it is said which one is missing."""
    trainer_probe: float = 2.0
    """Between looks whether trainers still live."""
    tick: float = 0.5
    """Between looks at what no message announces."""
    memory_check: float = 0.1
    """Between looks at the memory of workers, where ``worker_memory`` limits it."""
    worker_last_words: float = 2.0
    """The last messages of a worker that has ended arrive within it."""
    trainer_last_words: float = 0.2
    """The last messages of a trainer that is gone arrive within it."""
    taken_rank_notice: float = 1.0
    """A trainer waits for a rank that is taken before it is refused."""
    taken_rank_retry: float = 0.05
    """Between looks whether such a rank is free."""
    descriptor_check: float = 0.25
    """Between looks how many descriptors are left."""
    worker_connects: float = 1.0
    """A worker that was let in is connected within it. New trainers wait meanwhile."""
    descriptor_notice: float = 60.0
    """Descriptors were enough for so long before the log says again that they lack."""
    file_check: float = 5.0
    """Between looks whether the sockets are still where others find them."""
    heap_release: float = 5.0
    """Between two times at which free memory of the heap goes back to the system, at least."""
    snapshot_interval: float = 2.0
    """Between snapshots, where nothing happens that has to be written at once."""
    snapshot_write: float = 5.0
    """The service waits for the disk to take a snapshot."""

    host_beat: float = 1.0
    """Between two messages that say that a host, and its service, are there."""
    host_timeout: float = 10.0
    """A host, or its service, may be silent for so long before the other side takes it for lost."""
    host_drain: float = 25.0
    """A host that leaves waits for the files that its workers read, before it ends them."""


DEFAULT_TIMING = Timing()
"""What a service has that is started from here on."""
