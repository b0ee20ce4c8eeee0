"""Pack which batches of a run are used into the progress word, a number that a trainer writes where the service can
read it.

Such a number needs no message. It is also there when the trainer was killed, and its last messages with it.
"""

from __future__ import annotations

_RUN_BITS = 24
_COUNT_BITS = 40
_COUNT_LIMIT = 1 << _COUNT_BITS


def pack(run: int, used_batches: int) -> int:
    """Return the word that says that the first ``used_batches`` of ``run`` are used, below 2**64."""
    return run % (1 << _RUN_BITS) << _COUNT_BITS | min(used_batches, _COUNT_LIMIT - 1)


def unpack(word: int, run: int) -> int:
    """Return how many batches of ``run`` are used, as ``word`` says; 0 if it speaks of another run."""
    return word % _COUNT_LIMIT if word >> _COUNT_BITS == run % (1 << _RUN_BITS) else 0
