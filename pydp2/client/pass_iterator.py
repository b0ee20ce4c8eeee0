"""Iterate over the batches of one pass."""

from __future__ import annotations

import contextlib
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Protocol

from pydp2.client.progress import LoopHandle, LoopState, Progress
from pydp2.client.session import ClientGuard
from pydp2.data.columns.batch import Batch
from pydp2.errors import ClientUseError

_DROP_SECONDS = 0.05  # seconds that a destructor waits for the thread that prepares a batch

if TYPE_CHECKING:
    _Batches = map[Batch]
else:
    _Batches = map


class PassOwner(Protocol):
    """Client, as the iterator of one of its passes sees it."""

    _session: ClientGuard

    def _deliver(self, loop: LoopHandle, _: None) -> Batch: ...

    def _leave(self, *, unused: bool = False) -> None: ...


class Pass(_Batches):
    """Iterator of one pass. Threads may call it one after the other.

    It derives from :class:`map`, because that is C code: it counts each call before any Python code runs. In Python
    code, a signal handler could raise before the call was counted.
    """

    def __new__(cls, client: PassOwner, pass_id: int, loop: LoopHandle) -> Pass:
        """Make the iterator. ``loop``: its record in the client."""
        return super().__new__(cls, partial(client._deliver, loop), map(loop.calls.append, count(1)))

    def __init__(self, client: PassOwner, pass_id: int, loop: LoopHandle) -> None:
        self._client = client
        self._loop = loop
        self.pass_id = pass_id

    @property
    def over(self) -> bool:
        """True if there are no more batches: the pass has ended, with an error or without, or was left."""
        return self._loop.is_over

    def close(self, *, unused: bool = False) -> None:
        """Leave the pass before its end. ``unused``: the batch in hand is not used either; in a job with
        ``share="dynamic"`` it goes to another trainer. Raises ClientUseError while another thread is inside the
        client."""
        loop, session = self._loop, self._client._session
        if loop.is_over or session.closing or not session.in_own_process:
            loop.is_over = True
        else:
            session.guarded(self._leave, unused)

    def _leave(self, unused: bool) -> tuple[None, Progress]:
        loop, session = self._loop, self._client._session
        if session.progress.loop is loop:
            self._client._leave(unused=unused)
        loop.is_over = True
        return None, session.progress

    def __del__(self) -> None:
        if not hasattr(self, "pass_id") or self._loop.is_over or (session := self._client._session).closing:
            return  # the interpreter exits: clients are closed, and modules that this needs may be cleared
        if session.in_own_process:
            with contextlib.suppress(ClientUseError):  # a call that is under way notices the drop by itself
                session.guarded(self._drop, patience=_DROP_SECONDS)

    def _drop(self) -> tuple[None, Progress]:
        """Leave the pass, unless an exception cut a call off: then the pass continues in the next loop."""
        loop, session = self._loop, self._client._session
        now = session.progress
        if now.loop is loop and now.state is LoopState.RUNNING:
            if now.is_in_call:
                return None, now._replace(state=LoopState.ENTERED)
            self._client._leave()
        return None, session.progress
