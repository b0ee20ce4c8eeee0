"""Pack the number of used batches of a run into the progress word, a number in memory that a trainer writes and the
service reads.

It needs no message. It also survives when the trainer is killed and its last messages are lost.
"""

from __future__ import annotations

_RUN_BITS = 24
_COUNT_BITS = 40
_COUNT_LIMIT = 1 << _COUNT_BITS


def pack(run: int, used_batches: int) -> int:
    """Return the word, below 2**64, which says that the first ``used_batches`` batches of ``run`` are used."""
    return run % (1 << _RUN_BITS) << _COUNT_BITS | min(used_batches, _COUNT_LIMIT - 1)


def unpack(word: int, run: int) -> int:
    """Return the number of used batches of ``run`` according to ``word``; 0 if the word is of another run."""
    return word % _COUNT_LIMIT if word >> _COUNT_BITS == run % (1 << _RUN_BITS) else 0
