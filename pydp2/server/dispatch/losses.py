"""Count and tell what a pass loses: dropped samples, and files that end early. Pure: no IO, no clock.

A loss counts when the merge meets it, not when a worker did: so what is counted before a batch, where an error budget
ends the pass, and what is told of it are the same in every run (docs/order.md, "Losses").
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import numpy.typing as npt

from pydp2.errors import (
    BadSample,
    BudgetExceeded,
    Error,
    FileCondemned,
    NotRepeatable,
    ProviderError,
    at_sample,
    builtin_name_of_mixed,
    count_text,
)
from pydp2.order.snapshot import SnapshotPoint
from pydp2.protocol.early_ends import EarlyEnds, to_list
from pydp2.server.actions import ENDED_EARLY, TIMED_OUT, Action, Log, Loss, WorkerGone
from pydp2.server.cache.file_format import DroppedSample
from pydp2.server.dispatch.ledger import MAX_MEMORY_DEATHS, MAX_PROTOCOL_DEATHS
from pydp2.system.log_events import LogEvent, LogFields

MIN_SAMPLES_FOR_SHARE = 10
"""Where the budget is a share, so many losses are always allowed: of a few samples a share says nothing."""
_REASON = 300  # characters of the reason of a fact
_TOLD = 4000  # of what a quarantine says


class Losses:
    """Losses of one pass. ``budget``: the number that is allowed (int), or the share of all samples (float); None: any.

    ``early_ends``: files that are known to end early, of a pass that is taken up in its middle, at the point ``point``;
    ``order``: in which it wants files.
    """

    def __init__(
        self,
        pass_id: int,
        label: Callable[[int], str],
        budget: float | None,
        early_ends: EarlyEnds,
        point: SnapshotPoint | None,
        order: npt.NDArray[np.int64],
    ) -> None:
        self._pass_id = pass_id
        self._label = label
        self._budget = budget
        self.early_ends: dict[int, tuple[int, str]] = dict(early_ends)
        """Files that end early, and why: (sample index, reason). What no data explains."""
        self.met: list[list[Any]] = [] if point is None else _met_before(early_ends, point, order)
        """Those whose end the merge has met, in that order: ``[file, sample index, reason]``. A pass that is taken up
        may know of others that come later."""
        self.dropped = 0 if point is None else point.dropped
        self.taken = 0 if point is None else point.merged
        """Good samples that the merge has taken."""
        self.error: Error | None = None
        """The budget is exceeded."""

    @property
    def ended(self) -> int:
        """Number of files whose early end the merge has met."""
        return len(self.met)

    def drop(self, file: int, dropped_sample: DroppedSample) -> list[Action]:
        """Count a dropped sample of ``file`` that the merge passed."""
        y, slot, reason = dropped_sample
        self.dropped += 1
        text = at_sample(self._label(file), y, slot, reason)
        self._judge(text)
        about: LogFields = {"file": self._label(file), "sample": y}
        about = {**about, "slot": slot} if slot else about
        return [
            Log(text, LogEvent.SAMPLE_DROPPED, about),
            Loss(self._pass_id, self._label(file), y, slot, reason, "dropped"),
        ]

    def end(self, file: int, y: int, early: Error | None) -> list[Action]:
        """Note that the merge met the end of ``file`` at sample index ``y``. ``early``: why it ends there, if a
        worker said so now."""
        if early is None and file not in self.early_ends:
            return []
        out: list[Action] = []
        kind, reason = ENDED_EARLY, self.early_ends.get(file, (0, ""))[1]
        if early is not None:
            kind, reason = _kind(early), str(early)
            self.early_ends[file] = (y, reason[:_REASON])
            about: LogFields = {"file": self._label(file), "sample": y}
            out.append(Log(f"the rest of a file is left out: {reason}", LogEvent.FILE_ENDED_EARLY, about))
        self.met.append([file, *self.early_ends[file]])
        self._judge(reason)
        slot = early.slot if isinstance(early, BadSample) else ""
        exception = builtin_name_of_mixed(early) if isinstance(early, ProviderError) else ""
        timeout = early.sample_timeout if isinstance(early, FileCondemned) else None
        return [*out, Loss(self._pass_id, self._label(file), y, slot, reason[:_TOLD], kind, exception, timeout)]

    def allowed_samples(self, dropped_samples: Collection[DroppedSample], sample_indices: npt.NDArray[np.int64]) -> int:
        """Return the number of samples of ``sample_indices``, next in a file, that may be taken until one of its
        ``dropped_samples`` is one too many."""
        lost = self.dropped + self.ended
        if self._exceeded(lost + len(dropped_samples), self.taken):
            for number, dropped_sample in enumerate(dropped_samples, 1):
                before = int(np.searchsorted(sample_indices, dropped_sample[0]))
                if before == len(sample_indices):
                    break
                if self._exceeded(lost + number, self.taken + before):
                    return before
        return len(sample_indices)

    def _exceeded(self, lost: int, taken: int) -> bool:
        budget = self._budget
        if budget is None or isinstance(budget, int):
            return budget is not None and lost > budget
        return lost > max(MIN_SAMPLES_FOR_SHARE, budget * (lost + taken))

    def _judge(self, last: str) -> None:
        lost = self.dropped + self.ended
        if self.error is None and self._exceeded(lost, self.taken):
            self.error = BudgetExceeded(
                f"pass {self._pass_id} has lost more than error_budget={self._budget} allows: of "
                f"{lost + self.taken:,} samples so far "
                f"{count_text(self.dropped, 'bad one was', 'bad ones were', ',')} dropped, and "
                f"{count_text(self.ended, 'file', form=',')} ended early; mend the data (quarantine=PATH lists each "
                f"loss, `pydp2 check` shows them all), or raise error_budget. The last one: {last}"
            )


def _met_before(early_ends: EarlyEnds, point: SnapshotPoint, order: npt.NDArray[np.int64]) -> list[list[Any]]:
    """Return those of ``early_ends`` that the merge had met at the point ``point``."""
    in_cycle = {cycle_file.file for cycle_file in point.cycle}
    merged = order[: point.next_file]
    over = set(merged[np.isin(merged, [*early_ends])].tolist()) - in_cycle
    return to_list({file: early_end for file, early_end in early_ends.items() if file in over})


def changed_log(label: str) -> Log:
    """Return what is told of a file that did not repeat itself, where that is allowed. It is no loss."""
    text = (
        f"file {label}: process() did not repeat itself when it was run again; the pass goes on with the samples of "
        'the new run (on_changed="warn")'
    )
    return Log(text, LogEvent.FILE_CHANGED, {"file": label})


def condemnation(label: str, y: int, gone: WorkerGone, *, skip: bool) -> FileCondemned:
    """Return the error that the deaths at sample ``y`` of the file with ``label`` come to; ``gone``: the last one."""
    how, rest = gone.how, "" if skip else ', or pass on_error="skip"'
    if gone.over_memory:
        return FileCondemned(
            f"file {label}, sample {y}: {MAX_MEMORY_DEATHS} workers in a row had more memory than they may before "
            f"process() came further (the last one {how}); raise worker_memory, or cut the file into smaller ones{rest}"
        )
    if gone.broke_protocol:
        return FileCondemned(
            f"file {label}, sample {y}: {MAX_PROTOCOL_DEATHS} workers in a row sent what the service does not accept "
            f"(the last one {how}); look for a library that replaces functions of numpy or Python, or take the file "
            f"out of the list{rest}"
        )
    return FileCondemned(
        f"file {label}, sample {y}: three workers died while process() produced it (the last one {how}); mend the code "
        f"that reads this sample, or take the file out of the list{rest}",
        sample_timeout=gone.sample_timeout,
    )


def _kind(error: Error) -> str:
    if isinstance(error, FileCondemned):
        return "condemned" if error.sample_timeout is None else TIMED_OUT
    if isinstance(error, NotRepeatable):
        return "not repeated"
    return "bad sample" if isinstance(error, BadSample) else "raised"
