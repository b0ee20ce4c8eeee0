"""Compute the order of the files of a pass, and how long a file's turns are (docs/order.md, "Files", "Merge")."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from pydp2.order.plan import PassPlan
from pydp2.order.random_bits import RandomBits, permutation

# A fixed turn would keep equal files in step: where files are sorted inside, every batch would see the same stretch
# of each. Turns of different lengths drift apart.
BLOCK_LENGTHS = (16, 23, 32, 45, 64)


def files_in_order(plan: PassPlan) -> npt.NDArray[np.int64]:
    """Return the numbers of all files in the order in which the merge wants them, int64 (files,)."""
    if not plan.shuffle:
        return np.arange(plan.files, dtype=np.int64)
    return permutation(plan.seed, plan.pass_id, "files", plan.files)


def block_length(plan: PassPlan, file: int) -> int:
    """Return how many samples a turn of ``file`` takes."""
    if not plan.shuffle:
        return 1 << 62
    return _turn(plan.seed, plan.pass_id, file)


@lru_cache(1 << 12)  # the server asks when it assigns a file, and again when the merge opens it
def _turn(seed: int, pass_id: int, file: int) -> int:
    word = int(RandomBits(seed, pass_id, "turn", file).draw(1)[0])
    return BLOCK_LENGTHS[word * len(BLOCK_LENGTHS) >> 64]
