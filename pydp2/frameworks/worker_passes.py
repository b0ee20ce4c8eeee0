"""Read shares of the passes of a job in worker processes that a framework's loader starts and ends (docs/paddle.md,
"paddle.io.DataLoader").

Each pass is a separate job: a worker may be a new process in each pass, and no rank disturbs another one that still
reads the pass before.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from pydp2.api.sources import Files, Source
from pydp2.client import Client
from pydp2.client.saved_state import load_stream_state, seal
from pydp2.data.columns.batch import Batch
from pydp2.errors import Error, OptionError, StateMismatch
from pydp2.frameworks.shared_service import Ranks
from pydp2.frameworks.worker_share import PassRecord, WorkerShares
from pydp2.providers import Provider


class WorkerPasses:
    """Passes of a job for the workers of one rank; a copy in another process reads the same passes.

    ``files``, ``provider``, ``options``: as for :func:`pydp2.frameworks.shared_service.open_client`, but no client and
    no ``share``. ``slots``: slots of the provider. Raises the errors of that function.
    """

    def __init__(
        self, files: Files | Source, provider: str | Provider | None, ranks: Ranks, *, job: str, **options: Any
    ) -> None:
        if "share" in options:
            raise OptionError("share cannot be given here: a loader takes its workers in turn, so each has a rank")
        self._shares = WorkerShares(files, provider, ranks, job=job, **options)
        self._reading: tuple[str, list[weakref.ref[Client]]] = "", []  # last pass in this process, and its clients
        try:
            with self._shares.look() as client:
                self.slots = client.slots
                start = client.state_dict()
            self._record = PassRecord(start)
            self._stream_identity: Mapping[str, Any] = start["stream_identity"]
        except BaseException:
            self.close()
            raise

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_reading": ("", [])}

    def load_state_dict(self, state: Mapping[str, Any], *, allow: Collection[str] = ()) -> None:
        """Let the next pass continue from ``state``. If that is behind the last batch of a pass, the next pass is the
        one after it, because no pass may be empty. Workers that are reading go on. ``allow``: differences to accept.
        Raises StateMismatch for a state of another stream."""
        self._record.restart(self._next_pass_if_over(state, allow))

    def _next_pass_if_over(self, state: Mapping[str, Any], allow: Collection[str]) -> Mapping[str, Any]:
        load_stream_state(state, self._stream_identity, allow)
        if not state.get("batch") and not allow:
            return state
        with self._shares.look() as client:
            client.load_state_dict(state, allow=allow)
            loaded = client.state_dict()  # it has the identity of this stream, so that workers need no ``allow``
            with contextlib.suppress(Error):  # the error comes again when the batch is requested
                if state.get("batch") and next(iter(client), None) is None:
                    return client.state_dict()
        return loaded

    def close(self) -> None:
        """End the service, if this process has started it, once the other ranks have left."""
        self._shares.close()

    def read(
        self, worker: int, workers: int, epoch: str, *, with_state: bool
    ) -> Iterator[tuple[Batch, dict[str, Any] | None]]:
        """Yield the batches of worker ``worker`` of ``workers`` in the next pass, each with the state behind it.

        ``epoch``: name of the pass among those of this rank, the same in all workers. Without ``with_state``, the state
        is None.
        """
        world_size = self._shares.ranks.place(self._shares.job).world_size
        start, restarts = self._record.claim(worker, epoch)
        name = f" {workers * world_size} {restarts} {start['pass']}"
        self._end_passes_before(epoch)
        with self._shares.connect(worker, workers, name) as client:
            self._reading[1].append(weakref.ref(client))
            client.load_state_dict(seal(start))
            states = _States(client, worker, workers, world_size)
            try:
                for batch in client:
                    state = states.behind_next() if with_state else None
                    if not self._shares.is_made_up(batch, workers):
                        yield batch, state
            finally:
                with contextlib.suppress(StateMismatch):  # a relaxed stream in the middle of a pass
                    self._record.note_bounds(start["pass"], client.state_dict())

    def _end_passes_before(self, epoch: str) -> None:
        """Close the clients of other passes in this process. Paddle never drops the iterator of a loop that was left,
        because one of its threads has a reference to it."""
        name, reading = self._reading
        if name != epoch:
            self._reading = epoch, []
            for reference in reading:
                if (client := reference()) is not None:
                    client.close()


class _States:
    """States behind the batches of one worker, in the order in which a loader takes them from all workers.

    The service cuts ``workers * world_size`` batches at a time, and the position of its states is behind all of them.
    Behind the batches of some workers only, the state has the position in between, with the snapshot point that was
    known before.
    """

    def __init__(self, client: Client, worker: int, workers: int, world_size: int) -> None:
        self._client = client
        self._before = client._session.progress.position
        self._worker, self._workers, self._world_size = worker, workers, world_size
        self._next = self._before.batch + (worker + 1) * world_size

    def behind_next(self) -> dict[str, Any]:
        now = self._client._session.progress.position
        before, self._before = self._before, now
        batch, self._next = self._next, self._next + self._workers * self._world_size
        if self._worker == self._workers - 1:
            return self._client._state_at(now)
        return self._client._state_at(now.before(batch, before))
