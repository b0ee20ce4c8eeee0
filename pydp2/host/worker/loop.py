"""Decide which generator runs, and what is sent when (docs/order.md, "Credit", rule 4).

One generator runs until its credit is used, it reaches a stop, or it ends; then another one (:mod:`.scheduler`). It
gives way earlier to what a merge waits for: after about 20 ms, or at once if that is another job's merge and its own
does not wait. Sending never blocks: a sample without credit is held back. Between samples, about every millisecond, the
loop looks for messages. Samples are sent when a chunk is full, when the merge waits for them, and after about 20 ms:
also while the generator computes or waits for something, because then another thread sends them
(:mod:`.background_flush`).

The two threads use the same objects, but never at the same time. A lock taken twice a sample would do, and cost more
than all the rest between two samples; so each thread first says what it is about to do, and then looks what the other
one said. The interpreter's lock puts these four steps into one order for both: the thread that looks last sees the
other. So a service needs an interpreter that has the lock (:mod:`.gil`).
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from pydp2.data.columns.columns import frame_count
from pydp2.data.packers.sample_loop import SampleMarker
from pydp2.errors import LocalProtocolError, OutOfMemory, to_wire
from pydp2.host.worker.cell_writer import CellWriter
from pydp2.host.worker.chunk_builder import MAX_BLOCKED, ChunkBuilder, ChunkContent
from pydp2.host.worker.process_state import ProcessState
from pydp2.host.worker.sample_drawer import SampleDrawer
from pydp2.host.worker.scheduler import TaskScheduler
from pydp2.host.worker.task import FileTask
from pydp2.host.worker.worker_spans import WorkerSpans
from pydp2.protocol import messages as m
from pydp2.protocol.figures import clip, microseconds
from pydp2.protocol.file_ranges import FileAssignment, check_ints
from pydp2.protocol.link_states import Link
from pydp2.protocol.spans import SpanKind
from pydp2.protocol.worker_status import ATTEMPT, FILE, RUNNING, SAMPLE_INDEX, SINCE_NS, STARTED_NS, WorkerStatus
from pydp2.providers.error_location import with_location
from pydp2.providers.source_providers import SourceProviders
from pydp2.remote.remote_file import open_ahead
from pydp2.system.stdlib import threading, time
from pydp2.transport import Line, owned_arrays

_POLL = 0.001
_LAST_LINGER_MS = 2000  # for the last message of a worker
FLUSH = 0.020
"""Number of seconds that a sample waits at most for others to be sent with, and a job for another."""
_MAX_RETURNED = 1024  # files in one message
_SLOW = 0.005  # a sample that took this long does not wait for the next


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopOptions:
    """Options that the service decides for the loop of a worker.

    ``max_unbound``: how many files not yet bound a dispatch may have open here; ``times_samples``: write down when each
    sample was asked for; ``allows_changed_samples``: a file that did not repeat itself goes on; ``skips_errors``: a
    bad sample that a generator yields is dropped.
    """

    max_unbound: int
    times_samples: bool
    allows_changed_samples: bool = False
    skips_errors: bool = False


_MAX_CONTINUED = 1024  # arrays that a provider with a start may have: the checksums of a range must fit into a header


class WorkerLoop:
    """Loop of a worker that is ready."""

    def __init__(
        self,
        line: Line,
        link: Link,
        providers: SourceProviders,
        files: Sequence[str],
        status: WorkerStatus,
        process_state: ProcessState,
        options: LoopOptions,
    ) -> None:
        self._line = line
        self._link = link
        self._providers = providers
        self._files = files
        self._status = status
        self._process_state = process_state
        self._cell_writer = CellWriter(line, providers.schema.slots)
        self._send_lock = threading.Lock()  # held while the other thread is about to send, or sends
        self._checksum_count = frame_count(providers.schema.slots) + 1
        self._builder = ChunkBuilder(
            providers.schema,
            lambda error, task, y: with_location(error, files[task.file], y),
            allows_changed_samples=options.allows_changed_samples,
            skips_errors=options.skips_errors,
            can_start=providers.can_start and self._checksum_count <= _MAX_CONTINUED,
        )
        marker = SampleMarker(status.row, SAMPLE_INDEX, STARTED_NS, RUNNING, options.times_samples)
        self._drawer = SampleDrawer(providers, self._builder, files, marker, self._send_lock)
        # not a method of this object: in a reference cycle the collector would take the sample loop's buffer apart
        providers.report_unknown_to(partial(_report_unknown, process_state, files, status.row))
        self._tasks = TaskScheduler(options.max_unbound)
        self._blocked: list[list[int]] = []
        self._busy = 0.0  # seconds of turns that are over
        self._turn_since = 0.0  # when the present turn began; 0: there is none
        self._idle = self._idle_since = 0.0  # 0: it has something to do
        self.spans = WorkerSpans()
        """Spans for a trace, while one is recorded."""
        self._is_retiring = False  # no more files are begun
        self._is_quitting = False

    def send(self, message: m.Message, frames: Sequence[Any] = ()) -> None:
        """Send a message to the server."""
        self._link.check_sending(message)
        self._line.send([m.encode(message), *frames])

    def report_no_memory(self, error: MemoryError) -> None:
        """Tell the server that there is no memory to pack or send samples with, and nothing after that. Either thread
        may call it; the process has to end then."""
        lacks = OutOfMemory(
            f"a worker has no memory for the samples that it packs ({error or 'the amount is unknown'}); have "
            "process() keep less, yield smaller samples, or raise what limits it (`ulimit -v`)"
        )
        with contextlib.suppress(LocalProtocolError):  # the other thread has told it
            self.send(m.Broken(to_wire(lacks)))
        self._line.close(linger_ms=_LAST_LINGER_MS)

    def run(self) -> None:
        """Run until the server says Quit."""
        while True:
            self._receive(0)
            if self._is_quitting:
                return
            if self.spans.is_due(time.perf_counter()):
                self._send_spans()
            task = self._tasks.choose(self._report_blocked)
            if task is None:
                self._flush()
                self._idle_since = began = time.perf_counter()
                self._status.row[SINCE_NS] = time.monotonic_ns()
                self._receive(-1)
                self._status.row[SINCE_NS] = 0
                ended = time.perf_counter()
                self._idle += ended - began
                self.spans.add(SpanKind.IDLE, self._idle_since, ended)
                self._idle_since = 0.0
            elif task.unsent is not None:
                self._send_last_chunk(self._builder.unsent_chunk(task, task.unsent))
                task.unsent = None
                self._report_blocked(task)
            else:
                self._turn_since = time.perf_counter()
                self._run_task(task)
                self._busy += time.perf_counter() - self._turn_since
                self._turn_since = 0.0

    # -- the other thread ------------------------------------------------------------------------------------------
    def flush_overdue(self) -> None:
        """Send what has waited for long, if the thread of the loop is in the user's code, where it may stay for hours.

        For another thread. The loop itself looks for overdue samples while it is at work.
        """
        with self._send_lock:
            drawer = self._drawer
            drawer.set_send_pending(True)
            try:
                if drawer.in_user_code:
                    drawer.collect_from_outside()
                    if not self._builder.is_empty and time.perf_counter() - self._builder.oldest_at > FLUSH:
                        self._flush()
            finally:
                drawer.set_send_pending(False)

    # -- messages --------------------------------------------------------------------------------------------------
    def _receive(self, timeout_ms: int) -> None:
        frames = self._line.receive(timeout_ms)
        while frames is not None:
            message, body = m.decode(frames)
            self._link.check_received(message)
            self._handle(message, body)
            frames = self._line.receive(0)

    def _handle(self, message: m.Message, body: Sequence[memoryview]) -> None:
        match message:
            case m.BeginDispatch(dispatch_id, pass_id, seed):
                self._tasks.begin_dispatch(dispatch_id, pass_id, seed)
            case m.Assign(dispatch_id, items):
                self._add_tasks(dispatch_id, items, body)
            case m.Grant(items):
                for item in items:
                    self._tasks.grant(*check_ints("Grant", item, 4))
            case m.GrantCells():
                self._cell_writer.add_cells(body)
            case m.Want(attempt, until):
                self._merge_waits(attempt, until)
            case m.EndDispatch(dispatch_id):
                self._flush()  # other tasks may have something there
                self._close_tasks(self._tasks.end_dispatch(dispatch_id))
            case m.RecordSpans(on):
                self._record(on)
            case m.StealFile(attempt):
                self.send(m.ReturnFiles(self._tasks.take_unopened([attempt])))
            case m.Retire():
                self._is_retiring = True
                self._return_files()
            case m.Quit():
                self._builder.finish()
                self._blocked.clear()
                self._close_tasks(self._tasks.end_all_dispatches())
                self._is_quitting = True

    def _add_tasks(self, dispatch_id: int, items: Sequence[Any], body: Sequence[memoryview]) -> None:
        """Take over the files of a message Assign."""
        rereads = [np.frombuffer(frame, np.int64) for frame in owned_arrays(body)]
        for item in items:
            given = FileAssignment.from_wire(item)
            provider = self._providers.of_file(given.file)
            sample_indices = rereads[given.reread_frame - 1] if given.reread_frame else None
            self._tasks.add_task(
                dispatch_id,
                FileTask.from_assignment(
                    given,
                    self._checksum_count,
                    sample_indices,
                    can_start=provider.can_start,
                    can_select=provider.can_select,
                ),
            )
            open_ahead(self._files[given.file])
        if self._is_retiring:  # they were under way already
            self._return_files()

    def _merge_waits(self, attempt: int, until: int) -> None:
        """Send what there is of the file that the merge waits for, now or soon."""
        wanted = self._tasks.mark_merge_waits(attempt, until)
        if wanted is not None and wanted.is_ramping:
            self._builder.lower_enough_rows(wanted, until)
            if self._builder.is_full:
                self._flush()
        elif wanted is None or (
            self._builder.has_samples_of(wanted) and (wanted is not self._drawer.task or wanted.has_enough_for_merge)
        ):
            self._flush()  # the last samples of a file that has ended may still be here

    def _return_files(self) -> None:
        """Return the files that are not begun. Those that are go on to their ends."""
        attempts = self._tasks.take_unopened([task.attempt for task in self._tasks])
        for i in range(0, len(attempts), _MAX_RETURNED):
            self.send(m.ReturnFiles(attempts[i : i + _MAX_RETURNED]))

    def _close_tasks(self, tasks: Iterable[FileTask]) -> None:
        """Close the generators of ``tasks``, which are not needed any more."""
        for task in tasks:
            self._close_generator(task)

    # -- one file --------------------------------------------------------------------------------------------------
    def _report_blocked(self, task: FileTask) -> None:
        """Tell the server, with the next chunk, that ``task`` waits and for what."""
        need = task.missing_credit
        if need is not None and not task.wait_reported:
            task.wait_reported = True
            y = task.next_index if task.unsent is None else task.unsent.sample_index
            self._blocked.append([task.file, task.attempt, y, need])

    def _open_file(self, task: FileTask) -> None:
        """Open the generator of ``task``, unless it is open; again for what follows chosen samples that were drawn."""
        if task.selected is not None and task.selected_count == len(task.selected):
            if task.next_index < task.select_until:
                self._builder.skip_to(task, task.select_until)
                self._flush()
            if task.select_until < task.until:
                self._close_generator(task)
                task.end_selection()
        if task.is_open:
            return
        filename = self._files[task.file]
        with self._drawer.user_code():
            opened = self._providers.of_file(task.file).open_file(
                filename,
                file_index=task.file,
                seed=task.seed,
                pass_id=task.pass_id,
                start=task.next_sample,
                indices=task.selected,
            )
        task.iterator, task.context, task.close = opened.iterator, opened.context, opened.close

    def _switch_to(self, task: FileTask) -> None:
        """Note that the code of ``task`` runs from here on. Two tasks may read the same file, for two jobs."""
        row = self._status.row
        if row[ATTEMPT] != task.attempt or row[FILE] != task.file:
            self._process_state.switch_file(task.file)
            row[ATTEMPT] = task.attempt

    def _run_task(self, task: FileTask) -> None:
        """Draw samples from ``task`` until it waits, ends, or something else is due."""
        row, builder, clock = self._status.row, self._builder, time.perf_counter
        self._switch_to(task)
        self._open_file(task)
        self._drawer.task = task
        self._drawer.provider.show_context(task.context)
        edge, turn_end, ramping, draw = task.next_stop, task.block_end, task.is_ramping, self._draw
        if task.next_index >= task.until and not task.is_over:  # the last sample had to wait for credit
            builder.end_file(task)
        polled = began = clock()
        while not task.is_over:
            added = draw(task, min(edge, turn_end))
            row[RUNNING] = 0  # only now: calc_batch_size and the values are the user's code too
            if task.is_over:
                break
            if task.spent_bytes > task.limit and not task.is_replaying and task.next_index > task.start:
                self._flush(unsent_of=task if added else None)
                break
            if task.next_index >= edge:
                if not self._pass_stop(task):
                    break
                edge = task.next_stop
            now = clock()
            if builder.is_full or task.has_enough_for_merge or now - builder.oldest_at > FLUSH or now - polled > _SLOW:
                self._flush()
            if task.next_index >= turn_end:
                break
            if now - polled > _POLL:
                polled = now
                if self._has_to_give_way(task, late=now - began > FLUSH):
                    break
                self._switch_to(task)  # a message may have closed files of another dispatch, under their names
                edge, draw = task.next_stop, self._draw
                if self.spans.is_due(now):
                    self._send_spans()
        self._end_turn(task, ramping)

    def _pass_stop(self, task: FileTask) -> bool:
        """Send what comes before the stop that ``task`` has reached. Return True if it may go on."""
        if task.next_index >= task.until and not task.is_over:
            self._builder.end_file(task)
            return False
        self._flush()
        if task.selected is not None and task.next_index >= task.select_until:
            return task.is_over  # else it is opened anew when it runs next
        return task.is_over or task.missing_credit is None

    def _has_to_give_way(self, task: FileTask, *, late: bool) -> bool:
        """Look for messages. Return True if ``task`` is not wanted any more, or a merge waits for another one
        (``late``: also one of another job)."""
        self._receive(0)
        if self._is_dropped(task):
            return True
        return (late or not task.merge_waits) and self._tasks.merge_waits_for_other(task, any_job=late)

    def _is_dropped(self, task: FileTask) -> bool:
        return self._is_quitting or self._tasks.task_of(task.attempt) is not task

    def _end_turn(self, task: FileTask, was_ramping: bool) -> None:
        """Leave ``task``, which waits, is over or gives way."""
        self._status.row[RUNNING] = 0
        if self._is_dropped(task):
            return
        self._report_blocked(task)
        if task.is_over:
            self._finish_task(task)
        if was_ramping and not self._tasks.is_ramping(task.dispatch_id):
            self._flush()  # the first batches are made of these samples

    def _finish_task(self, task: FileTask) -> None:
        self._tasks.remove_task(task)
        # before the end of the file is told: the trainer may close the service on it
        self._process_state.flush_output()
        if self._builder.is_full or not self._tasks or task.merge_waits:
            self._flush()
        self._close_generator(task)

    def _close_generator(self, task: FileTask) -> None:
        if task.close is None:
            return
        self._switch_to(task)
        try:
            with self._drawer.user_code():
                task.close()
        except BaseException as error:
            sys.stderr.write(
                f"closing the generator of {self._files[task.file]} raised {type(error).__name__}: {error}\n"
            )
        task.iterator = task.yielded = None
        self._process_state.restore()

    # -- sending ---------------------------------------------------------------------------------------------------
    def _flush(self, unsent_of: FileTask | None = None) -> None:
        """Send what was built, and which files wait."""
        chunks: list[ChunkContent] = []
        span = self._begin_sending() if self.spans.is_on else None
        if not self._builder.is_empty:
            chunks = self._builder.finish(unsent_of)
            if unsent_of is not None:
                self._report_blocked(unsent_of)
        for packed in chunks[:-1]:
            self._send_chunk(packed, [])
        if chunks or self._blocked:
            self._send_last_chunk(chunks[-1] if chunks else None)
            if span is not None:
                self.spans.add(*span, time.perf_counter())

    def _send_last_chunk(self, packed: ChunkContent | None) -> None:
        """Send ``packed``, and with it the files that wait, because their samples are on the way."""
        blocked, self._blocked = self._blocked, []
        self._send_chunk(packed, blocked[:MAX_BLOCKED])
        for i in range(MAX_BLOCKED, len(blocked), MAX_BLOCKED):
            self._send_chunk(None, blocked[i : i + MAX_BLOCKED])

    def _send_chunk(self, packed: ChunkContent | None, blocked: list[list[int]]) -> None:
        parts = [] if packed is None else [part.to_wire() for part in packed.ranges]
        rows = 0 if packed is None else packed.columns.rows
        frames: list[Any] = []
        cells = None
        if packed is not None and rows:
            cells = self._cell_writer.write(packed.columns)
            frames = [*packed.columns.frames()] if cells is None else [cells]
            if packed.weights is not None:
                frames.append(np.array(packed.weights, np.int64))
        turn = time.perf_counter() - self._turn_since if self._turn_since else 0.0  # one may last as long as a file
        busy, idle = microseconds(self._busy + turn), microseconds(self._idle)
        generator = microseconds(self._drawer.generator_seconds())
        store = microseconds(self._status.store_seconds(time.monotonic_ns()))
        self.send(m.Chunk(rows, parts, blocked, busy, idle, int(cells is not None), generator, store), frames)
        if packed is not None:
            self._tasks.note_sent(part.attempt for part in packed.ranges)

    # -- traces ----------------------------------------------------------------------------------------------------
    def _record(self, on: bool) -> None:
        """Record spans from now on, or no more."""
        now = time.perf_counter()
        self.spans.end_draws()
        if self._idle_since:  # it waits for this message; the rest of that wait is a span of its own
            self.spans.add(SpanKind.IDLE, self._idle_since, now)
            self._idle_since = now
        self.spans.switch(on, now)

    def _begin_sending(self) -> tuple[SpanKind, float]:
        """Return kind and begin of a span of sending."""
        if self._drawer.in_user_code:  # so this is the other thread
            return SpanKind.SEND_MEANWHILE, time.perf_counter()
        self.spans.end_draws()
        return SpanKind.SEND, time.perf_counter()

    @property
    def _draw(self) -> Callable[[FileTask, int], bool]:
        """Way in which samples are drawn."""
        return self._draw_measured if self.spans.is_on else self._drawer.draw

    def _draw_measured(self, task: FileTask, next_stop: int) -> bool:
        """Draw as :meth:`SampleDrawer.draw`, and note the time of it."""
        drawer, first, began = self._drawer, task.next_index, time.perf_counter()
        asked = drawer.generator_seconds()
        added = drawer.draw(task, next_stop)
        ended, asked = time.perf_counter(), drawer.generator_seconds() - asked
        self.spans.note_draw(task.file, first, began, ended, ended - began - asked)
        return added

    def _send_spans(self) -> None:
        """Send the spans that wait. Another thread must not send meanwhile."""
        lost, frames = self.spans.take(time.perf_counter())
        self.send(m.RecordedSpans(lost, clip(time.monotonic_ns()), is_last=not self.spans.is_on), frames)


def _report_unknown(process_state: ProcessState, files: Sequence[str], row: memoryview, text: str) -> None:
    """Tell of keys that no slot has, in the sample that ``row`` names."""
    process_state.print_once(f"file {files[row[FILE]]}, sample {row[SAMPLE_INDEX]}: {text}", "unknown_key")
