"""Define the states of a file in a pass and the transitions between them.

Whether the merge has bound the file, and whether its samples also go to the cache, does not depend on its state:
:class:`pydp2.server.dispatch.ledger.FileLedger` keeps these as flags.
"""

from __future__ import annotations

from enum import Enum


class FileState(Enum):
    """State of a file in a pass."""

    QUEUED = "queued"
    AWAITING_CACHE = "awaiting cache"
    READING = "reading"
    CONDEMNED = "condemned"
    COMPLETE = "complete"
    CACHED = "cached"
    SKIPPED = "skipped"
    FAILED = "failed"
    CLOSED = "closed"


class FileEvent(Enum):
    """Event that changes the state of a file."""

    NOTHING_WANTED = "nothing wanted"
    """The pass needs no sample of the file."""
    AWAIT_CACHE = "await cache"
    """Another reading, or the disk, puts the file into the cache."""
    CACHE_SETTLED = "cache settled"
    """The file is in the cache, or will not come from there."""
    SERVE_FROM_CACHE = "serve from cache"
    """All samples of the file are taken from the cache."""
    ASSIGN = "assign"
    """A worker is to run the file."""
    WORKER_LOST = "worker lost"
    """The worker is gone; another one may read the file on."""
    CONDEMN = "condemn"
    """The worker is gone, and so many were lost in this file that no other one gets it."""
    COMPLETE = "complete"
    """The last range of the file is committed."""
    SKIP_REST = "skip rest"
    """The file ends at what is committed, as if it had no more."""
    FAIL = "fail"
    """The file ends at what is committed, with an error."""
    CLOSE = "close"
    """The merge is done with the file, or the pass is over."""


_S, _E = FileState, FileEvent

FILE_TRANSITIONS: dict[tuple[FileState, FileEvent], FileState] = {
    (_S.QUEUED, _E.NOTHING_WANTED): _S.COMPLETE,
    (_S.QUEUED, _E.AWAIT_CACHE): _S.AWAITING_CACHE,
    (_S.QUEUED, _E.SERVE_FROM_CACHE): _S.CACHED,
    (_S.QUEUED, _E.ASSIGN): _S.READING,
    (_S.AWAITING_CACHE, _E.CACHE_SETTLED): _S.QUEUED,
    (_S.READING, _E.WORKER_LOST): _S.QUEUED,
    (_S.READING, _E.CONDEMN): _S.CONDEMNED,
    (_S.READING, _E.COMPLETE): _S.COMPLETE,
    (_S.READING, _E.SKIP_REST): _S.SKIPPED,
    (_S.READING, _E.FAIL): _S.FAILED,
    (_S.CONDEMNED, _E.SKIP_REST): _S.SKIPPED,
    (_S.CONDEMNED, _E.FAIL): _S.FAILED,
    **{
        (state, _E.CLOSE): _S.CLOSED
        for state in (_S.QUEUED, _S.AWAITING_CACHE, _S.READING, _S.COMPLETE, _S.CACHED, _S.SKIPPED, _S.FAILED)
    },
}
"""State and event to the next state."""

# The merge compares with these at every turn, and Python 3.11 looks a member of an Enum up by a call.
QUEUED, READING, CACHED, COMPLETE = FileState.QUEUED, FileState.READING, FileState.CACHED, FileState.COMPLETE
ENDED_STATES = (COMPLETE, CACHED, FileState.SKIPPED, FileState.FAILED)
"""States in which it is known what comes after the committed samples."""
