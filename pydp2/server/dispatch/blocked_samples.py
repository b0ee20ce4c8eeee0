"""Leave out the samples of a block list (docs/order.md, "Block list"). Pure: no IO, no clock.

Workers know nothing of it: they read and send all samples of a file, and the ledger commits them as they come. What is
blocked is taken out on the way from the ledger to the merge. So checksums, sample indices, the caches and what a worker
has to read again after a death are those of the whole file, with any block list.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from pydp2.data.columns.block_list import BlockList
from pydp2.data.columns.columns import Ints
from pydp2.errors import count_text
from pydp2.order.sample_source import SampleRun
from pydp2.server.actions import Action, Log
from pydp2.system.log_events import LogEvent


class BlockedSamples:
    """Samples that no pass of a service delivers. ``label``: the name of a file by its number."""

    def __init__(self, block_list: BlockList, label: Callable[[int], str]) -> None:
        self.of = block_list.of
        """Function that returns the blocked sample indices of a file, rising; None: there are none."""
        self._label = label
        self._reported: set[int] = set()

    def check_end(self, file: int, end: int) -> list[Action]:
        """Return a warning, once for each file, if samples of ``file`` are blocked behind its ``end``."""
        blocked = self.of(file)
        if blocked is None or file in self._reported or int(blocked[-1]) < end:
            return []
        self._reported.add(file)
        missing = len(blocked) - int(np.searchsorted(blocked, end))
        text = (
            f"block_list names {count_text(missing, 'sample')} behind the end of file {self._label(file)}, such as "
            f"sample {blocked[-1]}: the file has {count_text(end, 'sample')}, from 0 on; look whether the block list "
            "is for these data"
        )
        return [Log(text, LogEvent.BLOCK_LIST_BEYOND_END, {"file": self._label(file)})]


def are_blocked(sample_indices: Ints, blocked: Ints) -> npt.NDArray[np.bool_]:
    """Return for each of ``sample_indices`` whether it is one of ``blocked``; both rise."""
    found = np.zeros(len(sample_indices), np.bool_)
    if len(sample_indices):
        first, end = np.searchsorted(blocked, [sample_indices[0], sample_indices[-1] + 1])
        near = blocked[first:end]  # few, as a rule
        at = np.searchsorted(sample_indices, near)
        found[at[sample_indices[at] == near]] = True
    return found


def split_blocked(run: SampleRun, blocked: Ints) -> tuple[SampleRun | None, SampleRun | None]:
    """Return those samples of ``run`` that are delivered, and those that are ``blocked``, each as one run; None for
    none."""
    is_blocked = are_blocked(run.sample_indices[run.lo : run.hi], blocked)
    if not is_blocked.any():
        return run, None
    if is_blocked.all():
        return None, run
    # one run of what is left: many short ones would each cost what a long one does
    return run.take(np.flatnonzero(~is_blocked) + run.lo), run.take(np.flatnonzero(is_blocked) + run.lo)
