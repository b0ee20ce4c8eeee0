"""The real loop of a worker, which a scheduler stops and resumes wherever it looks for messages."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from pydp2.host.worker import loop
from pydp2.host.worker.loop import LoopOptions, WorkerLoop
from pydp2.protocol import messages as m
from pydp2.protocol.link_states import LinkRole, LinkState, worker_link
from pydp2.protocol.worker_status import FILE, WorkerStatus
from pydp2.providers.source_providers import SourceProviders

from .cases import ScriptedWorld


def stop_clocks(patch: pytest.MonkeyPatch) -> None:
    """Leave to the scheduler what the loop of a worker does by the clock."""
    for name, value in (("_POLL", -1.0), ("FLUSH", 1e9), ("_SLOW", 1e9)):
        patch.setattr(loop, name, value)


class _Pause(BaseException):
    """The scheduler takes over. No Exception, so that nobody on the way mistakes it for one."""


class Wire:
    """A worker's end of its connection; what a dead worker sends goes nowhere."""

    def __init__(self, send: Callable[[list[Any]], object]) -> None:
        self._send = send
        self.dead = False

    def send(self, frames: list[Any]) -> None:
        if not self.dead:
            self._send(frames)


class _NoProcessState:
    """No process, so nothing to put back."""

    def __init__(self, row: array[int]) -> None:
        self._row = row

    def switch_file(self, file: int) -> None:
        self._row[FILE] = file

    def restore(self) -> None:
        pass

    def flush_output(self) -> None:
        pass


class Worker(WorkerLoop):
    """The real loop of a worker, stopped and resumed by the scheduler wherever it looks for messages."""

    def __init__(self, world: ScriptedWorld, number: int, status_row: int, send: Callable[[list[Any]], object]) -> None:
        self.world, self.number, self.status_row = world, number, status_row
        self.wire = Wire(send)
        self.inbox: deque[list[Any]] = deque()
        self.fuel = 0
        self.idle = False
        self.killed_while: tuple[int, int, int] | None = None
        self.row = array("q", bytes(64))
        link = worker_link(LinkRole.WORKER)
        link.state = LinkState.READY
        super().__init__(
            self.wire,  # type: ignore[arg-type]
            link,
            SourceProviders([world.provider(self)]),
            world.names,
            WorkerStatus(memoryview(self.row)),
            _NoProcessState(self.row),  # type: ignore[arg-type]
            LoopOptions(max_unbound=max(1, max(world.case.workers, 4) // world.case.workers), times_samples=False),
        )

    def close(self) -> None:
        self._close_tasks(self._tasks.end_all_dispatches())

    @property
    def open(self) -> int:
        """Its generators of the pass that is read now."""
        messages = [m.decode(message)[0] for message in self.inbox]
        over = [message.dispatch_id for message in messages if isinstance(message, m.EndDispatch)]
        return sum(task.is_open and task.dispatch_id not in over for task in self._tasks)

    def die(self) -> None:
        self.wire.dead = True
        self.killed_while = WorkerStatus(memoryview(self.row)).running_sample

    def step(self, fuel: int) -> None:
        """Run until the fuel is spent or there is nothing to do."""
        self.fuel = fuel
        with suppress(_Pause):
            self.run()

    def send_now(self) -> None:
        """As the other thread does, while the loop is in the user's code; after 20 ms or not."""
        assert self._drawer.in_user_code
        self._drawer.collect_from_outside()
        self._flush()

    def _receive(self, timeout_ms: int) -> None:
        random = self.world.random
        if self.wire.dead:
            raise _Pause
        count = min(len(self.inbox), random.choice([0, 1, 1, 2, 9]) + (timeout_ms < 0))
        for _ in range(count):
            message, body = m.decode(self.inbox.popleft())
            self._link.check_received(message)
            self._handle(message, body)
        self.idle = timeout_ms < 0 and not count
        self.fuel -= 1
        if self.idle or self.fuel < 0:
            raise _Pause
        if random.random() < 0.1:
            self._flush()  # as when about 20 ms have passed
