"""Do in a thread, while the trainer computes, what its next call would do first.

The work may use the sockets of a client, which is allowed: they go from the thread of a call to this one when the call
returns, and back when the next call begins (:meth:`LookAhead.reclaim`), so never two threads use them at once.
"""

from __future__ import annotations

import _thread
import contextlib
import signal
from collections.abc import Callable
from queue import SimpleQueue

from pydp2.system.stdlib import time

_LOOK_SECONDS = 0.05  # seconds between two looks whether work is done


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
