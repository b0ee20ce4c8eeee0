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

_DROP_SECONDS = 0.05  # that a destructor waits for a thread which prepares a batch

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

    It is a :class:`map`, because that is C code: it counts each call before any Python code runs for it, where an
    exception of a signal handler could already come.
    """

    def __new__(cls, client: PassOwner, pass_id: int, loop: LoopHandle) -> Pass:
        """Make the iterator. ``loop``: what the client knows of it."""
        return super().__new__(cls, partial(client._deliver, loop), map(loop.calls.append, count(1)))

    def __init__(self, client: PassOwner, pass_id: int, loop: LoopHandle) -> None:
        self._client = client
        self._loop = loop
        self.pass_id = pass_id

    @property
    def over(self) -> bool:
        """True if it gives nothing more: the pass has ended, with an error too, or was left."""
        return self._loop.is_over

    def close(self, *, unused: bool = False) -> None:
        """Leave the pass without its rest. ``unused``: the batch in hand is not used either; in a job
        with ``share="dynamic"`` it goes to another trainer. Raises ClientUseError while another
        thread is inside the client."""
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
            return  # when the interpreter exits, clients are closed, and what is needed below is gone
        if session.in_own_process:
            with contextlib.suppress(ClientUseError):  # a call that is inside sees by itself that this was dropped
                session.guarded(self._drop, patience=_DROP_SECONDS)

    def _drop(self) -> tuple[None, Progress]:
        """Leave the pass, unless a call was cut off: it goes on then in the next loop."""
        loop, session = self._loop, self._client._session
        now = session.progress
        if now.loop is loop and now.state is LoopState.RUNNING:
            if now.was_cut_off:
                return None, now._replace(state=LoopState.ENTERED)
            self._client._leave()
        return None, session.progress
