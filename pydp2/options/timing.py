"""Hold the times that a service waits for things, in seconds. Tests use shorter ones."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Times of the server process, in seconds. Those that the user may choose (``lease``, ``sample_timeout``) are
    options instead."""

    stopped_worker: float = 10.0
    """How long a worker may stay stopped by a signal before it is killed; ``sample_timeout`` overrides it."""
    stack_dump: float = 0.3
    """How long a worker may write its stack before it is killed."""
    missing_rank: float = 5.0
    """How long trainers wait for a rank before the log says which one is missing."""
    trainer_probe: float = 2.0
    """How often the server looks whether trainers still live."""
    tick: float = 0.5
    """How often the loop looks at what no message announces."""
    memory_check: float = 0.1
    """How often the memory of workers is measured, where ``worker_memory`` limits it."""
    worker_last_words: float = 2.0
    """How long the last messages of a worker that has ended may be under way."""
    trainer_last_words: float = 0.2
    """How long the last messages of a trainer that is gone may be under way."""
    taken_rank_notice: float = 1.0
    """How long a trainer waits for a rank that is taken before it is refused."""
    taken_rank_retry: float = 0.05
    """How often the server looks whether such a rank is free."""
    descriptor_check: float = 0.25
    """How often the server looks how many descriptors are left."""
    worker_connects: float = 1.0
    """How long a worker that was let in may take to connect. New trainers wait meanwhile."""
    descriptor_notice: float = 60.0
    """How long descriptors must have been enough before the log says again that they lack."""
    file_check: float = 5.0
    """How often the server looks whether its sockets are still where others find them."""
    heap_release: float = 5.0
    """How often free memory of the heap goes back to the system, at most."""
    snapshot_interval: float = 2.0
    """How often a snapshot is written, where nothing happens that has to be written at once."""
    snapshot_write: float = 5.0
    """How long the service waits for the disk to take a snapshot."""

    host_beat: float = 1.0
    """How often a host, and its service, say that they are there."""
    host_timeout: float = 10.0
    """How long a host, or its service, may be silent before the other side takes it for lost."""
    host_drain: float = 25.0
    """How long a host that leaves may read on in the files that its workers have, before it ends them."""


DEFAULT_TIMING = Timing()
"""Times of a service that is started from here on."""
