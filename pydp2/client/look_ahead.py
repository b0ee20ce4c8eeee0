"""Do in a thread, while the trainer computes, what its next call would do first.

The work may use the sockets of a client, which is allowed: they go from the thread of a call to this one when the call
returns, and back when the next call begins (:meth:`LookAhead.reclaim`), so never two threads use them at once.
"""

from __future__ import annotations

import _thread
import contextlib
import signal
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol

from pydp2.client.progress import Progress
from pydp2.client.received import Conversion, convert_gathered, is_second_prepared, second_batch
from pydp2.client.row_sources import RowSources
from pydp2.client.run_protocol import ProgressHolder, RunProtocol
from pydp2.protocol.messages import Need
from pydp2.protocol.spans import SpanBuffer, SpanKind
from pydp2.system.stdlib import time

_LOOK_SECONDS = 0.05  # seconds between two looks whether work is done
_LONG_STEP = 0.001  # seconds of a step from which on the next batch is prepared meanwhile
_DELAY_PART, _MAX_DELAY = 1 / 8, 0.001  # part of the step, and seconds, that pass before
_WAIT_PART = 7 / 8  # of the step, in which a batch is waited for: it would be waited for in the next call, too
_SKIPPED_STEPS = 32  # in which nothing is converted, because it could not be
_GATHERED_SECONDS = 0.002  # in which batches that came with the next one are converted, too: their values may be large


class _Offer:
    """Work that is done once, by whoever claims it first."""

    __slots__ = ("_claimed", "delay", "done", "is_over", "is_wanted_back", "work")

    def __init__(self, work: Callable[[], None], delay: float) -> None:
        self.work: Callable[[], None] | None = work
        self.delay = delay
        self._claimed: dict[int, str] = {}
        self.done = _thread.allocate_lock()  # held until it is done
        self.done.acquire()
        self.is_over = self.is_wanted_back = False

    def claim(self, by: str) -> bool:
        """Return True if the work is that of ``by``, because nobody else has claimed it."""
        return self._claimed.setdefault(0, by) == by


class LookAhead:
    """Thread that is given work, one piece at a time. It starts with the first one and ends with :meth:`close`.

    It is not one of :mod:`threading`: starting one of those waits for it, and an exception of a signal handler in that
    wait would leave open whether there is one.
    """

    def __init__(self) -> None:
        self._offers: SimpleQueue[_Offer | None] = SimpleQueue()
        self._offer: _Offer | None = None  # the last one, until it is reclaimed
        self._running: list[int] = []  # the number of the thread, once it runs
        self._ended = _thread.allocate_lock()  # held while it runs
        self._is_asked_for = False

    def give(self, work: Callable[[], None], *, delay: float = 0.0) -> None:
        """Have ``work`` done soon. What was given before was reclaimed. What it raises is dropped: the caller does the
        same work when it is needed, and meets the error then. Do nothing where no thread runs yet, or none can be
        had.

        ``delay``: seconds that the thread waits before. What the caller does first with the batch that it has just got
        gives the interpreter's lock away for a moment each time it converts or drops an array, and would have to wait
        for ``work`` to give it back.
        """
        if not self._is_asked_for:
            self._is_asked_for = True
            with contextlib.suppress(RuntimeError):  # no more threads are allowed
                _thread.start_new_thread(_do_all, (self._offers, self._running, self._ended))
        if self._running:
            offer = self._offer = _Offer(work, delay)
            self._offers.put(offer)

    def reclaim(self, seconds: float) -> bool:
        """Take back what was given, or wait up to ``seconds`` until it is done. Return False if it is not done then.
        The thread itself does not wait for what it does."""
        offer = self._offer
        if offer is not None and not offer.claim("caller"):
            offer.is_wanted_back = True
            deadline = time.monotonic() + seconds
            # An exception of a signal handler may come between the end of a wait and what follows, and the lock is
            # never free again then: so each wait is short.
            while not offer.is_over:
                left = deadline - time.monotonic()
                if left <= 0 or _thread.get_ident() in self._running:
                    return False
                if offer.done.acquire(timeout=min(left, _LOOK_SECONDS)):
                    break
        self._offer = None
        return True

    @property
    def is_wanted_back(self) -> bool:
        """True if a call waits for what was given: it is to come to its end soon."""
        offer = self._offer
        return offer is None or offer.is_wanted_back

    def close(self, seconds: float) -> None:
        """End the thread, and wait up to ``seconds`` for that."""
        self._is_asked_for = True
        self._offers.put(None)
        if self._running and _thread.get_ident() not in self._running:
            self._ended.acquire(timeout=seconds)
        self._running.clear()


def _do_all(offers: SimpleQueue[_Offer | None], running: list[int], ended: _thread.LockType) -> None:
    """Do what is offered, until None is."""
    with contextlib.suppress(ValueError, OSError):  # signals are for the thread that waits for batches
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    with ended:
        running.append(_thread.get_ident())
        while (offer := offers.get()) is not None:
            if offer.delay:
                time.sleep(offer.delay)
            if offer.claim("thread"):
                _do(offer)
            del offer  # else a client would live until more work comes


def _do(offer: _Offer) -> None:
    work, offer.work = offer.work, None
    try:
        with contextlib.suppress(Exception):
            if work is not None:
                work()
    finally:
        offer.is_over = True
        offer.done.release()


class BatchSource(Protocol):
    """Connection of a client, as the thread uses it that prepares the next batch."""

    inbox: list[Any]
    row_sources: RowSources
    spans: SpanBuffer

    def send(self, message: Need) -> None: ...

    def fetch_second(self, seconds: float, look_ahead: LookAhead) -> None: ...

    def wait_for_rows(self, seconds: float) -> None: ...


def send_need(connection: BatchSource, run: RunProtocol, holder: ProgressHolder, need: Need, now: float) -> None:
    """Send ``need``, unless the connection is lost, and note it in ``run``, whose progress is that of ``holder``."""
    holder.is_damaged = True
    if run.lost is None:
        connection.send(need)
    run.note_sent(need, now)
    holder.is_damaged = False


class NextBatch:
    """Batch behind the one in hand, which is received, gathered and converted while a long step of the trainer runs.
    The message that the next call would send first is sent then, too.

    ``run``, ``holder``: of the client. ``conversion``: the one that the loop of the present pass asked for.
    """

    def __init__(
        self, look_ahead: LookAhead, connection: BatchSource, run: RunProtocol, holder: ProgressHolder
    ) -> None:
        self._look_ahead, self._connection, self._run, self._holder = look_ahead, connection, run, holder
        self._step = 0.0  # seconds of the last step
        self.conversion: Conversion | None = None
        self._skips = 0  # steps in which nothing is converted

    def set_conversion(self, conversion: Conversion | None) -> None:
        """Have batches converted with ``conversion`` from now on."""
        self.conversion, self._skips = conversion, 0

    def begin_step(self, progress: Progress, last: float) -> None:
        """Have the next batch prepared beside a step, if the last one was long. ``progress``: behind the batch in hand.
        ``last``: seconds of the last step; 0.0: not known, as that of the one before."""
        if last:
            self._step = last
        if self._step < _LONG_STEP:
            return
        conversion = None if self._skips else self.conversion
        self._skips = max(self._skips - 1, 0)
        asks = self._run.window.asks_ahead(progress.done)
        if asks or not is_second_prepared(self._connection.inbox, conversion is not None):
            work = partial(self._prepare, progress, conversion)
            self._look_ahead.give(work, delay=min(self._step * _DELAY_PART, _MAX_DELAY))

    def _prepare(self, progress: Progress, conversion: Conversion | None) -> None:
        """Ask for more, if it is time for that, receive the batch behind the one in hand, gather its rows and convert
        them."""
        connection, look_ahead, now = self._connection, self._look_ahead, time.monotonic()
        if not self._run.must_begin(now) and (need := self._run.need_ahead(progress)) is not None:
            send_need(connection, self._run, self._holder, need, now)
        if len(connection.inbox) == 1:  # the batch in hand
            connection.fetch_second(self._step * _WAIT_PART, look_ahead)
        following = second_batch(connection.inbox, connection.row_sources, progress.run, progress.done)
        if following is not None and following.awaits_rows:
            connection.wait_for_rows(0.0)
        if following is None or following.awaits_rows:
            return
        began = time.perf_counter()
        following.columns()  # gathers them
        if conversion is not None:
            until = time.perf_counter() + min(self._step / 2, _GATHERED_SECONDS)
            self._skips = _SKIPPED_STEPS  # unless it can be converted
            if convert_gathered(
                connection.inbox,
                conversion,
                progress.position,
                lambda: not look_ahead.is_wanted_back and time.perf_counter() < until,
            ):
                self._skips = 0
        pass_id, index = progress.position.pass_id, following.head.batch_index
        connection.spans.add(SpanKind.GATHER_AHEAD, began, time.perf_counter(), pass_id, index)
