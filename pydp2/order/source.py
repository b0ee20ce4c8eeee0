"""What the merge reads from: files whose samples become known bit by bit.

A source answers one question, "what is next in this file?", with a run of samples that are there, the end, a failure,
or "not there yet". Dropped samples (holes) never show here: a source steps over them. They are passed when the sample
behind them is taken, or when the merge looks for what is behind them: so how many are does not depend on timing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pydp2.errors import Error
from pydp2.order.saved import Recall, SavedLane


class Gap(Enum):
    """Why a file has no samples to take."""

    END = "end"
    WAIT = "wait"


END = Gap.END
WAIT = Gap.WAIT


@dataclass(frozen=True, slots=True)
class Failure:
    """The file goes no further and the pass with it: what the user's code raised, or why the file was given up."""

    error: Error


@dataclass(slots=True)
class Run:
    """Consecutive accepted samples ``lo`` to ``hi`` of a chunk that are there to be taken.

    ``ordinals``, ``sizes`` (bytes) and ``weights`` (None: all 1) are int64, one entry per row of the chunk;
    ``columns`` is whatever the pool's store takes rows from. Turns are short, so what costs the same for few samples
    as for many is done once for all that lie together: ``block`` remembers it.
    """

    columns: Any
    lo: int
    hi: int
    ordinals: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    weights: npt.NDArray[np.int64] | None
    block: Block | None = None

    def look(self) -> Run:
        """The same samples for somebody who shortens the run to what is taken of it."""
        block = self.together()
        if block.rows is not None:
            self.columns = None  # the pool has them
        return Run(self.columns, self.lo, self.hi, self.ordinals, self.sizes, self.weights, block)

    def together(self) -> Block:
        """What is known of the samples that lie together with these."""
        if self.block is None:
            self.block = Block(self)
        return self.block

    def nbytes(self, count: int) -> int:
        """The bytes of the first ``count`` samples."""
        return self.together().nbytes(self.lo, self.lo + count)


class Block:
    """What is known of samples that lie together, rows ``first`` to ``until`` of their chunk.

    ``largest``: the bytes of the largest; ``rows``: under which ids the pool's store has them, once it does.
    """

    __slots__ = ("_sums", "first", "largest", "rows", "until")

    def __init__(self, run: Run) -> None:
        self.first, self.until = run.lo, run.hi
        sizes = run.sizes[run.lo : run.hi]
        self.largest = int(sizes.max(initial=0))
        self._sums = [0, *np.cumsum(sizes).tolist()]
        self.rows: npt.NDArray[np.int64] | None = None

    def nbytes(self, lo: int, hi: int) -> int:
        """The bytes of rows ``lo`` to ``hi`` of the chunk."""
        return int(self._sums[hi - self.first] - self._sums[lo - self.first])


class Source(Protocol):
    """Files by their number in the list."""

    def front(self, file: int) -> Run | Failure | Gap:
        """What is next in ``file``. Asking again without :meth:`take` gives the same answer or a longer run."""
        ...

    def take(self, file: int, count: int) -> None:
        """The first ``count`` samples of the run at the front now belong to the pool."""
        ...

    @property
    def passed(self) -> tuple[int, int]:
        """How many samples and how many holes the merge has passed in this pass."""
        ...

    def label(self, file: int) -> str:
        """How an error message names ``file``."""
        ...

    def bind(self, file: int, recall: Recall | None = None) -> None:
        """``file`` is one of the lanes from now on, or is read again for what ``recall`` names."""
        ...

    def position(self, file: int) -> SavedLane:
        """Where the merge stands in ``file``."""
        ...

    def finish(self, file: int) -> None:
        """The end of ``file`` was met in the merge: nothing of it is asked for again."""
        ...
