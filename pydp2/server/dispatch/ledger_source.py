"""Give the merge of one pass the samples that are committed (docs/order.md, "Ledger"). Pure: no IO, no clock.

The merge asks what is next in a file, takes some of it, and meets ends, in an order that is a function of the samples
alone. So all that must not depend on timing is noted here, when the merge comes to it, and never when a worker
does: which samples are lost, where the error budget ends the pass, which checksums a state has.

What the merge takes makes room for more. The source tells this, and which files it needs, to the dispatcher; the
dispatcher never calls the source. Between them lie the ledgers.
"""

from __future__ import annotations

from pydp2.data.columns.checksum import EndChecksum
from pydp2.data.columns.sample_set import SampleSet
from pydp2.order.sample_source import END, WAIT, FileFailure, SampleRun, SourceState
from pydp2.order.snapshot import FilePosition, PoolChecks, Reread
from pydp2.server.dispatch.file_dispatcher import FileDispatcher
from pydp2.server.dispatch.ledger import FileLedger
from pydp2.server.dispatch.losses import Losses
from pydp2.server.dispatch.pass_checksums import PassChecksums


class LedgerSource:
    """Source of the samples of one pass (:class:`pydp2.order.sample_source.SampleSource`): those that workers of
    ``dispatcher`` read.

    ``losses`` and ``checksums``: of the pass, from what the merge takes.
    """

    def __init__(self, dispatcher: FileDispatcher, losses: Losses, checksums: PassChecksums) -> None:
        self._dispatcher, self._losses, self._checksums = dispatcher, losses, checksums
        self._ledgers, self._grants = dispatcher.ledgers, dispatcher.grants
        self.label = dispatcher.label

    @property
    def merged_counts(self) -> tuple[int, int]:
        """Samples and dropped samples that the merge has passed."""
        return self._losses.taken, self._losses.dropped

    def open_file(self, file: int, reread: Reread | None = None) -> None:
        """Let ``file`` take turns from now on, or read it again for what ``reread`` names."""
        ledger = self._dispatcher.open_file(file, reread)
        if ledger.reread is not None and ledger.is_merged:
            self._checksums.compare_later(ledger)

    def position(self, file: int) -> FilePosition:
        """Return where the merge stands in ``file``."""
        return self._ledgers[file].merge_position()

    def next_run(self, file: int) -> SampleRun | FileFailure | SourceState:
        """Return what comes next in ``file``."""
        ledger, losses = self._ledgers[file], self._losses
        if ledger.dropped:
            self._pass_dropped(ledger)
        run = ledger.next_run()
        if run is END and not losses.error and ledger.meet_end():
            self._dispatcher.actions += losses.end(file, ledger.committed, ledger.early_end)
        if losses.error:
            return FileFailure(losses.error, file)
        if ledger.dropped and isinstance(run, SampleRun):
            run.hi = run.lo + losses.allowed_samples(ledger.dropped, run.sample_indices[run.lo : run.hi])
        return WAIT if run is None else run

    def plain_run(self, file: int) -> SampleRun | None:
        """Return what comes next in ``file`` if it is samples of weight 1, and nothing was dropped there."""
        ledger = self._ledgers[file]
        if ledger.dropped or self._losses.error or not ledger.runs or ledger.runs[0].weights is not None:
            return None
        return ledger.runs[0].view()

    def consume(self, file: int, count: int) -> None:
        """Note that ``count`` samples of ``file`` went into the pool."""
        ledger = self._ledgers[file]
        checksum = self._checksums.next_of(ledger)
        self._checksums.edges.note(ledger)
        y = ledger.consume(count)
        if ledger.reread is None or y >= ledger.reread.start:  # else they had been taken before
            self._losses.taken += count
            if checksum is not None:
                self._checksums.note_taken(file, checksum)
        if ledger.dropped:
            self._pass_dropped(ledger, y)
        else:
            self._grants.update(ledger)

    def _pass_dropped(self, ledger: FileLedger, edge: int | None = None) -> None:
        for dropped_sample in ledger.pass_dropped(edge):
            self._dispatcher.actions += self._losses.drop(ledger.file, dropped_sample)
            if self._losses.error:
                break
        self._grants.update(ledger)

    def compare(self, file: int) -> FileFailure | SourceState:
        """Return whether ``file``, which is read again, is known to be what it was."""
        return self._ledgers[file].compare()

    def close_file(self, file: int) -> None:
        """Note that the merge met the end of ``file``, or needs nothing more of it."""
        self._checksums.note_end(self._ledgers[file])
        self._dispatcher.close_file(file)

    def pool_checks(self, samples: SampleSet) -> PoolChecks:
        """Return what is known of the files of a pool of ``samples``: the end of each that has ended, or an
        earlier checksum behind its samples."""
        return self._checksums.pool_checks(samples, self._end_in_cache, self._ledgers)

    def _end_in_cache(self, file: int) -> EndChecksum:
        return (0, 0) if file in self._ledgers else self._dispatcher.cache.end_checksum(file)

    def note_snapshot(self) -> None:
        """Note that the pool was saved: a state from now on has checksums of what is merged after it."""
        self._checksums.note_snapshot()
