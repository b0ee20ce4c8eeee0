"""Which generator runs, and what is sent when (docs/order.md, "Credit", rule 4).

One generator runs until its credit is used, it reaches a stop, or it ends; then another one (:mod:`.choice`). It gives
way earlier to what a merge waits for: after about 20 ms, or at once if that is another job's merge and its own does not
wait. Sending never blocks: a sample without credit is kept in hand. Between samples, about every millisecond, messages
are looked for. Samples are sent when a chunk is full, when the merge waits for them, and after about 20 ms: also while
the generator computes or waits for something, because then another thread sends them (:mod:`.late`).

The two threads use the same things, but never at the same time. A lock taken twice a sample would do, and cost more
than all the rest between two samples; so each says first what it is about to do, and looks then what the other one
said. The interpreter's lock puts these four steps into one order for both: whichever looks last sees the other. So a
service needs an interpreter that has it (:mod:`.lock`).
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from pydp2.errors import BadSample, LocalProtocolError, OutOfMemory, ProviderError, to_wire
from pydp2.inputs import Rows
from pydp2.inputs.columns import frame_count
from pydp2.inputs.drawing import Mark
from pydp2.protocol import messages as m
from pydp2.protocol.moves import Link
from pydp2.protocol.ranges import Assignment, ints
from pydp2.protocol.seat import ATTEMPT, FILE, ORDINAL, RUNNING, SINCE, Seat
from pydp2.providers.running import Running
from pydp2.providers.where import place, raised
from pydp2.transport import Line, buffers
from pydp2.worker.block import Block
from pydp2.worker.builder import Builder, Packed
from pydp2.worker.choice import Tasks
from pydp2.worker.room import Room
from pydp2.worker.segment import MAX_BLOCKED
from pydp2.worker.surroundings import Surroundings
from pydp2.worker.task import Task

_POLL = 0.001
_POLL_NS = 1_000_000
_TELLING_MS = 2000  # for the last word of a worker
FLUSH = 0.020
"""Seconds that a sample waits at most for others to be sent with, and a job for another."""
_SLOW = 0.005  # a sample that took this long is not kept waiting for the next


class Runner:
    """The loop of a worker that is ready. ``ahead``: how many files not yet bound a reading may have open here."""

    def __init__(
        self,
        line: Line,
        link: Link,
        running: Running,
        files: Sequence[str],
        seat: Seat,
        surroundings: Surroundings,
        *,
        ahead: int,
        timed: bool,
        lenient: bool = False,
    ) -> None:
        self._line = line
        self._link = link
        self._running = running
        self._files = files
        self._seat = seat
        self._surroundings = surroundings
        self._room = Room(line, running.declaration.slots)
        self._sends = threading.Lock()  # held while the other thread is about to send, or does
        self._checksums = frame_count(running.declaration.slots) + 1
        self._builder = Builder(
            running.declaration, lambda error, task, y: place(error, files[task.file], y), lenient=lenient
        )
        # ``away``: the thread of the loop is in the user's code, and touches nothing here; ``sending``: see above
        self._mark = Mark(seat.row, ORDINAL, SINCE, RUNNING, timed)
        self._drawer = self._builder.drawer(running.single, self._mark)
        self._drawn: Task | None = None  # whose samples the drawer packs
        # not a method of this: in a circle of objects the collector would take the drawer's buffer apart
        running.wrapper.on_unknown = partial(_tell_unknown, surroundings, files, seat.row)
        self._tasks = Tasks(ahead)
        self._blocked: list[list[int]] = []
        self._busy = 0.0
        self._idle = 0.0
        self._quit = False

    def send(self, message: m.Message, frames: Sequence[Any] = ()) -> None:
        """Send to the server."""
        self._link.sending(message)
        self._line.send([m.encode(message), *frames])

    def starve(self, error: MemoryError) -> None:
        """Tell the server that there is no memory to pack or send samples with, and nothing after that. To be said by
        either thread; the process has to end then."""
        lacks = OutOfMemory(
            f"a worker has no memory for the samples that it packs ({error or 'it is not told how much'}); have "
            "process() keep less, yield smaller samples, or raise what limits it (`ulimit -v`)"
        )
        with contextlib.suppress(LocalProtocolError):  # the other thread has told it
            self.send(m.Broken(to_wire(lacks)))
        self._line.close(linger_ms=_TELLING_MS)

    def run(self) -> None:
        """Until the server says Quit."""
        while True:
            self._receive(0)
            if self._quit:
                return
            task = self._tasks.choose(self._report)
            if task is None:
                self._flush()
                began = time.perf_counter()
                self._receive(-1)
                self._idle += time.perf_counter() - began
            elif task.hand is not None:
                self._send_last(self._builder.hand_part(task, task.hand))
                task.hand = None
                self._report(task)
            else:
                began = time.perf_counter()
                self._work(task)
                self._busy += time.perf_counter() - began

    # -- the other thread ------------------------------------------------------------------------------------------
    def send_late(self) -> None:
        """Send what has waited for long, if the thread of the loop is in the user's code: it may stay there for hours.

        For another thread. Where the loop is at work it looks for that itself.
        """
        with self._sends:
            drawer = self._drawer
            drawer.sending = True
            try:
                if drawer.away:
                    self._meet()
                    if not self._builder.empty and time.perf_counter() - self._builder.since > FLUSH:
                        self._flush()
            finally:
                drawer.sending = False

    def _meet(self) -> None:
        """Count what the drawer has packed up to the sample that the user's code is at."""
        self._drawer.met = True
        self._absorb()

    @contextlib.contextmanager
    def _in_users_code(self) -> Iterator[None]:
        self._drawer.away = True
        try:
            yield
        finally:
            self._drawer.away = False
            if self._drawer.sending:
                self._wait()

    def _wait(self) -> None:
        """Until the other thread has sent."""
        with self._sends:
            pass

    # -- messages --------------------------------------------------------------------------------------------------
    def _receive(self, timeout_ms: int) -> None:
        frames = self._line.receive(timeout_ms)
        while frames is not None:
            message, body = m.decode(frames)
            self._link.received(message)
            self._obey(message, body)
            frames = self._line.receive(0)

    def _obey(self, message: m.Message, body: Sequence[memoryview]) -> None:
        match message:
            case m.BeginReading(reading, pass_id, seed):
                self._tasks.begin(reading, pass_id, seed)
            case m.Assign(reading, items):
                recalled = [np.frombuffer(frame, np.int64) for frame in buffers(body)]
                for item in items:
                    given = Assignment.from_wire(item)
                    ordinals = recalled[given.frame - 1] if given.frame else None
                    self._tasks.add(reading, Task.of(given, self._checksums, ordinals))
            case m.Grant(items):
                for item in items:
                    attempt, limit, pause, bound = ints("Grant", item, 4)
                    task = self._tasks.get(attempt)
                    if task is not None:
                        task.limit, task.pause, task.bound = limit, pause, bool(bound)
                        task.reported = False
            case m.Places():
                self._room.grant(body)
            case m.Want(attempt, until):
                wanted = self._tasks.want(attempt, until)
                if wanted is not None and wanted.ramping:
                    self._builder.ask(wanted, until)
                    if self._builder.full:
                        self._flush()
                elif wanted is None or (self._builder.holds(wanted) and (wanted is not self._drawn or wanted.is_due)):
                    self._flush()  # of a file that has ended, the last samples may still be here
            case m.EndReading(reading):
                self._flush()  # others may have something there
                self._forget(self._tasks.end(reading))
            case m.Quit():
                self._builder.cut()
                self._blocked.clear()
                self._forget(self._tasks.end_all())
                self._quit = True

    def _forget(self, tasks: Iterable[Task]) -> None:
        """Nobody wants them any more."""
        for task in tasks:
            self._close(task)

    # -- one file --------------------------------------------------------------------------------------------------
    def _report(self, task: Task) -> None:
        """Tell the server, with the next chunk, that ``task`` waits and for what."""
        need = task.waits
        if need is not None and not task.reported:
            task.reported = True
            y = task.y if task.hand is None else task.hand.ordinal
            self._blocked.append([task.file, task.attempt, y, need])

    def _open(self, task: Task) -> None:
        filename = self._files[task.file]
        with self._in_users_code():
            opened = self._running.open(filename, file_index=task.file, seed=task.seed, pass_id=task.pass_id)
        task.iterator, task.context, task.close = opened.iterator, opened.context, opened.close

    def _turn_to(self, task: Task) -> None:
        """From here on it is ``task`` whose code runs. Two of them may read the same file, for two jobs."""
        row = self._seat.row
        if row[ATTEMPT] != task.attempt or row[FILE] != task.file:
            self._surroundings.turn_to(task.file)
            row[ATTEMPT] = task.attempt

    def _work(self, task: Task) -> None:
        """Draw samples from ``task`` until it waits, ends, or something else is due."""
        row = self._seat.row
        self._turn_to(task)
        if not task.started:
            self._open(task)
        self._running.activate(task.context)
        builder, wrap, weigh, clock = self._builder, self._running.wrap, self._running.weight, time.perf_counter
        iterator, drawer = task.iterator, self._drawer
        edge, turn_end, ramping = task.edge, task.turn_end, task.ramping
        assert iterator is not None
        draw, self._drawn = drawer.draw, task
        if task.y >= task.until and not task.done:  # the last one had to wait for credit
            builder.end(task)
        polled = began = clock()
        while not task.done:
            if task.block is None:
                try:
                    try:
                        sample = draw(iterator, task.y, *builder.budget(task, min(edge, turn_end)), _POLL_NS)
                    finally:  # as in _in_users_code
                        if drawer.sending:
                            self._wait()
                        self._absorb()
                except StopIteration:
                    if not task.done:
                        builder.end(task)
                    break
                except BaseException as error:
                    if not task.done:
                        builder.fail(task, raised(error, self._files[task.file], task.y, self._files))
                    break
                if task.done:  # sent meanwhile, and found to be bad
                    break
                if type(sample) is Rows:
                    self._running.wrapper.look_for_unknown(sample.names)
                    task.block = Block(sample, self._running.declaration.slots, self._running.single)
            else:  # yielded before and looked at now: that may run the user's code too
                self._mark.at(task.y)
            try:
                if task.block is None:
                    added = builder.add(task, wrap(sample), weigh)
                else:
                    added = builder.add_next(task, min(edge, turn_end), wrap, weigh)
            except BadSample as error:
                builder.bad(task, error)
                added = False
            except ProviderError as error:
                builder.fail(task, place(error, self._files[task.file], task.y))
                break
            except Exception as error:  # of the value itself, which may be any object
                builder.fail(task, raised(error, self._files[task.file], task.y, self._files))
                break
            row[RUNNING] = 0  # only now: calc_batch_size and the values are the user's too
            if task.spent > task.limit and not task.replaying and task.y > task.start:
                self._flush(hold=task if added else None)
                break
            if task.y >= edge:
                if task.y >= task.until and not task.done:
                    builder.end(task)
                    break
                self._flush()
                edge = task.edge
                if not task.done and task.waits is not None:
                    break
            now = clock()
            if builder.full or task.is_due or now - builder.since > FLUSH or now - polled > _SLOW:
                self._flush()
            if task.y >= turn_end:
                break
            if now - polled > _POLL:
                polled = now
                self._receive(0)
                if self._quit or self._tasks.get(task.attempt) is not task:
                    return
                edge = task.edge
                late = now - began > FLUSH
                if (late or not task.wanted) and self._tasks.waiting_beside(task, any_job=late):
                    break
        row[RUNNING] = 0
        self._report(task)
        if task.done:
            self._finish(task)
        if ramping and not self._tasks.ramps(task.reading):
            self._flush()  # the first batches are made of what is here

    def _absorb(self) -> None:
        """Count the samples that the drawer has packed."""
        rows, nbytes = self._drawer.taken()
        if rows:
            assert self._drawn is not None
            self._builder.absorb(self._drawn, rows, nbytes)

    def _finish(self, task: Task) -> None:
        self._tasks.remove(task)
        self._surroundings.let_out()  # before the end of the file is told: the trainer may close the service on it
        if self._builder.full or not self._tasks or task.wanted:
            self._flush()
        self._close(task)

    def _close(self, task: Task) -> None:
        if task.close is None:
            return
        self._turn_to(task)
        try:
            with self._in_users_code():
                task.close()
        except BaseException as error:
            sys.stderr.write(
                f"closing the generator of {self._files[task.file]} raised {type(error).__name__}: {error}\n"
            )
        task.iterator = task.block = None
        self._surroundings.settle()

    # -- sending ---------------------------------------------------------------------------------------------------
    def _flush(self, hold: Task | None = None) -> None:
        """Send what was built and who waits."""
        chunks: list[Packed] = []
        if not self._builder.empty:
            chunks = self._builder.cut(hold)
            if hold is not None:
                self._report(hold)
        for packed in chunks[:-1]:
            self._send(packed, [])
        if chunks or self._blocked:
            self._send_last(chunks[-1] if chunks else None)

    def _send_last(self, packed: Packed | None) -> None:
        """Send ``packed``, and with it (their samples are on the way) the files that wait."""
        blocked, self._blocked = self._blocked, []
        self._send(packed, blocked[:MAX_BLOCKED])
        for i in range(MAX_BLOCKED, len(blocked), MAX_BLOCKED):
            self._send(None, blocked[i : i + MAX_BLOCKED])

    def _send(self, packed: Packed | None, blocked: list[list[int]]) -> None:
        parts = [] if packed is None else [part.to_wire() for part in packed.parts]
        rows = 0 if packed is None else packed.columns.rows
        frames: list[Any] = []
        placed = False
        if packed is not None and rows:
            places = self._room.put(packed.columns)
            placed = places is not None
            frames = list(packed.columns.frames()) if places is None else [places]
            if packed.weights is not None:
                frames.append(np.array(packed.weights, np.int64))
        busy, idle = int(self._busy * 1e6), int(self._idle * 1e6)
        self.send(m.Chunk(rows, parts, blocked, busy, idle, placed), frames)
        if packed is not None:
            for part in packed.parts:
                task = self._tasks.get(part.attempt)
                if task is not None:
                    task.wanted = False


def _tell_unknown(surroundings: Surroundings, files: Sequence[str], row: memoryview, text: str) -> None:
    """Tell of keys that no slot has, in the sample that ``row`` says is looked at."""
    surroundings.say(f"file {files[row[FILE]]}, sample {row[ORDINAL]}: {text}", "unknown_key")
