"""The disk of a server that keeps its state: slow by chance, and what was not written when the server died is lost."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace, TracebackType
from typing import TYPE_CHECKING, Any

from .tasks import FOREVER, Task

if TYPE_CHECKING:
    from .network import Network


class Disk:
    """Stands in for the modules ``threading`` and ``os`` where the state directory is written."""

    def __init__(self, network: Network, slow: bool) -> None:
        self._network, self._slow = network, slow
        self._task: Task | None = None
        self._is_gone = False
        self.os = SimpleNamespace(
            **{name: getattr(os, name) for name in dir(os) if not name.startswith("__")} | {"fsync": self._fsync}
        )
        self.threading = SimpleNamespace(Condition=self._condition, Thread=self._thread)

    def _fsync(self, file: int) -> None:
        delays = [0.0, 0.01, 0.3, 1.0] if self._slow else [0.0, 0.001]
        if self._network.running is not None:  # else it is a server that starts, for which nobody waits yet
            self._network.running.wait(self._network.random.choice(delays))

    def _condition(self) -> _Condition:
        return _Condition(self)

    def _thread(self, target: Callable[[], None], **_: Any) -> _Thread:
        return _Thread(self, target)

    def start(self, target: Callable[[], None]) -> None:
        """Have ``target`` write, unless the machine is gone."""
        if not self._is_gone:
            self._task = Task(self._network, 0, target)

    def wake(self) -> None:
        """Have the writing thread look what there is to do."""
        if self._task is not None and not self._task.over:
            self._task.wake()

    def until(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Let the disk work while the server waits for it, ``timeout`` virtual seconds at most."""
        now = end = self._network.clock.now
        while not condition():
            if self._task is None or self._task.over:
                return False
            if self._task.due < FOREVER:
                end = max(end, self._task.due)
            if end - now > timeout:
                return False
            self._task.resume()
        return True

    def ended(self) -> bool:
        """Return True if nothing is written any more."""
        return self._task is None or self._task.over

    def crash(self) -> None:
        """The machine is gone: what is not written now never will be."""
        self._is_gone = True
        if self._task is not None:
            self._task.kill()


class _Condition:
    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, value: object, traceback: TracebackType | None) -> None:
        pass

    def notify_all(self) -> None:
        self._disk.wake()

    def wait_for(self, condition: Callable[[], bool], timeout: float = FOREVER) -> bool:
        task = self._disk._network.running
        if task is None:  # the server waits for its disk
            return self._disk.until(condition, timeout)
        while not condition():
            task.wait(FOREVER)
        return True


class _Thread:
    def __init__(self, disk: Disk, target: Callable[[], None]) -> None:
        self._disk, self._target = disk, target

    def start(self) -> None:
        self._disk.start(self._target)

    def join(self, timeout: float) -> None:
        self._disk.until(self._disk.ended, timeout)
