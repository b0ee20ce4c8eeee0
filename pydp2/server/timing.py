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
    last_words: float = 0.2
    """What a vanished trainer said last arrives within it."""
    taken_rank_notice: float = 1.0
    """Seconds that a trainer waits for a rank that is taken before it is refused."""
    snapshot_interval: float = 2.0
    """Between snapshots, where nothing happens that has to be written at once."""


DEFAULT_TIMING = Timing()
"""What a service has that is started from here on."""
