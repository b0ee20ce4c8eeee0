"""Threads of which one at a time runs, when the virtual clock says so: code that waits in its middle, as a client does.

The world resumes a task and waits until it waits again, so that a seed is one course of all of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .network import Network

FOREVER = float("inf")
_PATIENCE = 60.0  # seconds of real time that a task may run without waiting


class Killed(BaseException):
    """Raised in a task that waits, when its process dies."""


class Task:
    """A process, or a thread of one, on machine ``machine``: it runs ``run`` until that returns."""

    def __init__(self, network: Network, machine: int, run: Callable[[], None]) -> None:
        self._network, self._machine, self._run = network, machine, run
        self._go, self._waits = threading.Semaphore(0), threading.Semaphore(0)
        self._number = 0  # of the wait that it is in; an event for an earlier one is void
        self._woken = self._killed = False
        self._frozen_until = 0.0
        self._error: BaseException | None = None
        self.due = 0.0
        """Time at which it goes on by itself."""
        self.over = False
        self._thread = threading.Thread(target=self._main, daemon=True)
        self._thread.start()
        self._plan(0.0)

    # -- in its own thread ---------------------------------------------------------------------------------------------
    def _main(self) -> None:
        self._go.acquire()
        try:
            if not self._killed:
                self._run()
        except Killed:
            pass
        except BaseException as error:
            self._error = error
        finally:
            self.over = True
            self._waits.release()

    def wait(self, seconds: float) -> bool:
        """Let the world go on; return True if :meth:`wake` was called within ``seconds``."""
        if self._killed:
            raise Killed
        self._number += 1
        self._woken = False
        self._plan(seconds)
        self._waits.release()
        self._go.acquire()
        if self._killed:
            raise Killed
        return self._woken

    # -- in the thread of the world ------------------------------------------------------------------------------------
    def _plan(self, seconds: float) -> None:
        number = self._number
        self.due = self._network.clock.now + seconds
        if seconds < FOREVER:
            self._network.at(seconds, lambda: self._continue(number))

    def _continue(self, number: int) -> None:
        if number != self._number or self.over:
            return
        left = self._frozen_until - self._network.clock.now
        if left > 0:
            self._network.at(left, lambda: self._continue(number))
        else:
            self.resume()

    def resume(self) -> None:
        """Let it run until it waits, or has ended. Raises what it raised."""
        self._number += 1
        before, self._network.running = self._network.running, self
        self._network.here = self._machine
        self._go.release()
        assert self._waits.acquire(timeout=_PATIENCE), "a task runs without an end"
        self._network.running = before
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def wake(self) -> None:
        """Have it go on soon: what it waits for has come."""
        self._woken = True
        if self._network.running is not self:
            number = self._number
            self._network.at(self._network.random.random() * 0.0005, lambda: self._continue(number))

    def freeze(self, seconds: float) -> None:
        """Have it stand still, as a process that is stopped does."""
        self._frozen_until = self._network.clock.now + seconds

    def kill(self) -> None:
        """Have it end where it is."""
        if not self.over and not self._killed:
            self._killed = True
            self.resume()
        self._thread.join(_PATIENCE)
