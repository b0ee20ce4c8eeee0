"""The order of the files of a pass, and how long a file's turns are (docs/order.md, "Files", "Merge")."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pydp2.order.plan import Plan
from pydp2.order.words import Words, below, permutation

# A fixed turn would keep equal files in step: where files are sorted inside, every batch would see the same stretch
# of each. Turns of different lengths drift apart.
TURNS = (16, 23, 32, 45, 64)
_TURN_COUNT = np.array([len(TURNS)], np.uint64)


def file_order(plan: Plan) -> npt.NDArray[np.int64]:
    """The numbers of all files in the order in which the merge wants them, int64 (files,)."""
    if not plan.shuffle:
        return np.arange(plan.files, dtype=np.int64)
    return permutation(plan.seed, plan.pass_id, "files", plan.files)


def turn_length(plan: Plan, file: int) -> int:
    """How many samples a turn of ``file`` takes."""
    if not plan.shuffle:
        return 1 << 62
    return TURNS[int(below(Words(plan.seed, plan.pass_id, "turn", file).take(1), _TURN_COUNT)[0])]
