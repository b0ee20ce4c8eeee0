"""Run a pass whose samples are only counted: they are passed as they come, and no batch is cut."""

from __future__ import annotations

from pydp2.order.batcher import BatchCut, Batcher, BlockedOnFile, PassDone, PassFailed
from pydp2.order.sample_source import END, WAIT, FileFailure, SampleRun

_MANY = 4096  # samples that are waited for at a time


class CountingBatcher(Batcher):
    """Stream of no batches. The plan is one with ``relaxed``, so that no file waits for another one."""

    def next(self) -> BatchCut | BlockedOnFile | PassFailed | PassDone:
        """Pass what is there. Return what is waited for, or how the pass ended."""
        while self._failure is None:
            front = self.merge.next_run()
            if front is WAIT:
                return BlockedOnFile(self.merge.current_file, _MANY, _MANY)
            if front is END:
                return PassDone(0)
            if isinstance(front, FileFailure):
                return self._fail(front.error)
            assert isinstance(front, SampleRun)
            front.release()
            self.merge.consume(front.hi - front.lo)
        return self._failure
