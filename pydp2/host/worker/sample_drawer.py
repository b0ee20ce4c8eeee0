"""Draw the samples of a file from its generator and add them to a chunk, for workers and for benchmarks.

The user's code runs here: the generator, ``calc_batch_size``, and the values themselves, which may be any objects.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pydp2.data.packers.many_samples import ManySamples
from pydp2.data.packers.sample_loop import SampleMarker
from pydp2.errors import BadSample, ProviderError
from pydp2.host.worker.chunk_builder import ChunkBuilder
from pydp2.host.worker.task import FileTask
from pydp2.host.worker.yielded_samples import YieldedSamples
from pydp2.protocol.worker_status import SINCE_NS
from pydp2.providers.error_location import user_error, with_location
from pydp2.providers.source_providers import SourceProviders
from pydp2.system.stdlib import time

_BURST_NS = 1_000_000  # so long the compiled loop may pack samples by itself before it comes back


class SampleDrawer:
    """Drawer of samples, which ``providers`` yield and which it adds to the chunk of ``builder``.

    While the user's code runs, another thread may send what was packed (:mod:`.background_flush`). It holds
    ``send_lock`` meanwhile (None: there is no such thread).
    """

    def __init__(
        self,
        providers: SourceProviders,
        builder: ChunkBuilder,
        files: Sequence[str],
        marker: SampleMarker,
        send_lock: threading.Lock | None = None,
    ) -> None:
        self._providers, self._builder, self._files, self._marker = providers, builder, files, marker
        self._send_lock = send_lock
        self._sample_loop = builder.sample_loop(providers.is_single_slot, marker, providers.other_names)
        self._sample_loop.measures = True
        self._task: FileTask | None = None
        self._asked_ns = 0  # in calls of the user's code that are over
        self._asked_since = 0  # when the present one began, in nanoseconds; 0: there is none
        self.provider = providers.of_file(0)
        """Provider of the file of ``task``."""

    @property
    def task(self) -> FileTask | None:
        """Task whose samples are packed; set it before :meth:`draw`."""
        return self._task

    @task.setter
    def task(self, task: FileTask) -> None:
        self._task, self.provider = task, self._providers.of_file(task.file)

    def generator_seconds(self) -> float:
        """Return how many seconds the generators have had so far, with those of a call that is under way."""
        since = self._asked_since
        return (self._asked_ns + (time.monotonic_ns() - since if since else 0)) / 1e9

    def _end_asking(self) -> None:
        """Count the call that is over: what the sample loop packed meanwhile is not the generator's."""
        packing, self._sample_loop.packing_ns = self._sample_loop.packing_ns, 0
        since, self._asked_since = self._asked_since, 0
        self._asked_ns += max(0, time.monotonic_ns() - since - packing)

    @property
    def in_user_code(self) -> bool:
        """True while the thread that draws is in the user's code, and touches nothing of the worker."""
        return self._sample_loop.in_user_code

    def set_send_pending(self, pending: bool) -> None:
        """Note that another thread is about to send or sends, or (False) that it has sent."""
        self._sample_loop.send_pending = pending

    @contextmanager
    def user_code(self) -> Iterator[None]:
        """Run the user's code within this context: meanwhile, another thread may send."""
        self._builder.copy_lent()
        self._asked_since = time.monotonic_ns()
        self._sample_loop.in_user_code = True
        try:
            yield
        finally:
            self._sample_loop.in_user_code = False
            self._end_asking()
            if self._sample_loop.send_pending:
                self._wait_for_flush()

    def _wait_for_flush(self) -> None:
        """Wait until the other thread has sent."""
        if self._send_lock is not None:
            with self._send_lock:
                pass

    def collect_counts(self) -> None:
        """Count the samples that the sample loop has packed. For another thread: up to the sample that the user's code
        is at."""
        rows, nbytes = self._sample_loop.collect_counts()
        if rows:
            assert self._task is not None
            self._builder.count_packed(self._task, rows, nbytes)

    def collect_from_outside(self) -> None:
        """Count them in another thread, while the user's code runs."""
        self._sample_loop.counts_collected = True
        self.collect_counts()

    def draw(self, task: FileTask, next_stop: int) -> bool:
        """Add what comes next of ``task``, whose next stop is ``next_stop``: one sample, or several that the compiled
        loop packs or that one yield has.

        Return True if the last one was added. Return False if it was bad: then it is a dropped sample, or the task is
        over, as it is at the end of the file and where the user's code raised.
        """
        builder, provider = self._builder, self.provider
        if task.yielded is None:
            sample = self._next_unpacked(task, next_stop)
            if task.is_over:  # at its end; or the samples were sent meanwhile, and one found to be bad
                return False
            if type(sample) is BadSample:
                builder.add_bad(task, sample, yielded=True)
                return False
            if type(sample) is ManySamples:
                provider.slot_order.report_unknown(sample.names)
                task.yielded = YieldedSamples(sample, provider.schema.slots, provider.is_single_slot)
        else:  # yielded before and packed now: that may run the user's code too
            self._marker.begin_sample(task.next_sample)
        try:
            if task.yielded is None:
                return builder.add_sample(task, provider.arrange(sample), provider.weight_of)
            return builder.add_yielded(task, next_stop, provider.arrange, provider.weight_of)
        except BadSample as error:
            builder.add_bad(task, error)
        except ProviderError as error:
            builder.fail_file(task, with_location(error, self._files[task.file], task.next_sample))
        except Exception as error:  # raised by the value itself
            self._fail(task, error)
        return False

    def _next_unpacked(self, task: FileTask, next_stop: int) -> object:
        """Return the next sample that is not packed yet; None if the task is over."""
        assert task.iterator is not None
        sample_loop = self._sample_loop
        self._builder.copy_lent()
        row = self._marker.row
        self._asked_since = row[SINCE_NS] = time.monotonic_ns()
        try:
            try:
                return sample_loop.next_unpacked(
                    task.iterator, task.next_sample, *self._builder.packing_budget(task, next_stop), _BURST_NS
                )
            finally:
                row[SINCE_NS] = 0
                self._end_asking()
                if sample_loop.send_pending:  # as in user_code()
                    self._wait_for_flush()
                self.collect_counts()
        except StopIteration:
            if not task.is_over:
                self._builder.end_file(task)
        except BaseException as error:
            if not task.is_over:
                self._fail(task, error)
        return None

    def _fail(self, task: FileTask, error: BaseException) -> None:
        self._builder.fail_file(task, user_error(error, self._files[task.file], task.next_sample, self._files))
