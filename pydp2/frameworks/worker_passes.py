"""Read the passes of a job in worker processes that a framework's loader starts and ends, each of them a share
(docs/paddle.md, "paddle.io.DataLoader").

Such a loader takes the batches of its n workers in turn. Worker i of rank r reads as rank ``i * world_size + r`` of
``n * world_size``, so each rank has the batches that it has without workers, in the same order. Each pass is a job of
its own: a worker may be a new process in each pass, and no rank disturbs another one that still reads the pass before.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import multiprocessing
import os
import tempfile
import weakref
from collections.abc import Collection, Iterator, Mapping
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

from pydp2.api.service import connect
from pydp2.api.sources import Files, Source
from pydp2.client import Client
from pydp2.client.saved_state import beginning_of_pass, load_stream_state, seal
from pydp2.client.stream import Stream
from pydp2.data.columns.batch import Batch
from pydp2.errors import ClientUseError, Error, OptionError, StateMismatch
from pydp2.frameworks.shared_service import START_SECONDS, Ranks, is_address, keep_service, open_service
from pydp2.options.tables import JOB_OPTIONS
from pydp2.providers import Provider

_CONNECT_SECONDS = 10.0
"""Seconds to wait for a service that runs already."""


class WorkerPasses:
    """Passes of a job for the workers of one rank; a copy in another process reads the same ones.

    ``files``, ``provider``, ``options``: as for :func:`pydp2.frameworks.shared_service.open_client`, but no client and
    no ``share``. ``slots``: what the provider declares. Raises what that function raises.
    """

    def __init__(
        self, files: Files | Source, provider: str | Provider | None, ranks: Ranks, *, job: str, **options: Any
    ) -> None:
        if isinstance(files, Stream):
            raise OptionError("worker processes cannot read from a stream of this one; give the list, or an address")
        if "share" in options:
            raise OptionError("share cannot be given here: a loader takes its workers in turn, so each has a rank")
        if ranks.world_size > 1:
            options.setdefault("last_batch", "pad")
        self._ranks, self._job = ranks, job
        self._options = {key: value for key, value in options.items() if key in JOB_OPTIONS}
        self._end: weakref.finalize[..., WorkerPasses] | None = None
        self._reading: tuple[str, list[weakref.ref[Client]]] = "", []  # last pass in this process, and who reads it
        self._timeout = START_SECONDS
        self._address: str | os.PathLike[str]
        if is_address(files, provider):
            self._address, self._timeout = files, _CONNECT_SECONDS
            self._options = options  # of the job alone, or connect() says where they belong
        else:
            rest: dict[str, Any] = {key: value for key, value in options.items() if key not in JOB_OPTIONS}
            self._address, service = open_service(files, provider, ranks, job=job, **rest)
            keeper = keep_service(self._address, ranks, job=job) if service is None else service
            self._end = weakref.finalize(self, keeper.close)  # at the latest when the program ends
        try:
            with self._look() as client:
                self.slots = client.slots
                start = client.state_dict()
            self._record = PassRecord(start)
            self._stream_identity: Mapping[str, Any] = start["stream_identity"]
        except BaseException:
            self.close()
            raise

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_end": None, "_reading": ("", [])}

    def load_state_dict(self, state: Mapping[str, Any], *, allow: Collection[str] = ()) -> None:
        """Have the next pass continue from ``state``, or if that is behind the last batch of a pass, be the one behind
        it: no pass is empty. Workers that read meanwhile go on. ``allow``: differences to accept. Raises StateMismatch
        for a state of another stream."""
        self._record.restart(self._next_pass_if_over(state, allow))

    def _next_pass_if_over(self, state: Mapping[str, Any], allow: Collection[str]) -> Mapping[str, Any]:
        load_stream_state(state, self._stream_identity, allow)
        if not state.get("batch") and not allow:
            return state
        with self._look() as client:
            client.load_state_dict(state, allow=allow)
            loaded = client.state_dict()  # what was allowed to differ is that of this stream: no worker asks again
            with contextlib.suppress(Error):  # it is met again where the batch is asked for
                if state.get("batch") and next(iter(client), None) is None:
                    return client.state_dict()
        return loaded

    def _look(self) -> Client:
        """Return a client that is in the way of no other."""
        job = f"{self._job} {os.urandom(4).hex()}"
        return connect(self._address, job=job, rank=0, world_size=1, timeout=self._timeout, **self._options)

    def close(self) -> None:
        """End the service, if this process has started it, once the other ranks have left."""
        if self._end is not None:
            self._end()

    def read(
        self, worker: int, workers: int, epoch: str, *, with_state: bool
    ) -> Iterator[tuple[Batch, dict[str, Any] | None]]:
        """Give the share of worker ``worker`` of ``workers`` in the next pass, with the state behind each batch.

        ``epoch``: names the pass among those of this rank, the same in all workers. ``with_state``: None otherwise.
        """
        ranks = self._ranks
        world = workers * ranks.world_size
        start, restarts = self._record.claim(worker, epoch)
        place: dict[str, Any] = {"rank": worker * ranks.world_size + ranks.rank, "world_size": world}
        job = f"{self._job} {world} {restarts} {start['pass']}"
        self._end_passes_before(epoch)
        with connect(self._address, job=job, **place, timeout=self._timeout, **self._options) as client:
            self._reading[1].append(weakref.ref(client))
            if multiprocessing.parent_process() is not None:  # a worker may end in the middle, without closing this
                Finalize(client, client.close, exitpriority=10)
            client.load_state_dict(seal(start))
            states = _States(client, worker, workers, ranks.world_size)
            try:
                for batch in client:
                    state = states.behind_next() if with_state else None
                    if ranks.world_size > 1 or workers == 1 or batch.padding < len(batch):
                        yield batch, state
            finally:
                with contextlib.suppress(StateMismatch):  # relaxed, and in the middle of the pass
                    self._record.note_bounds(start["pass"], client.state_dict())

    def _end_passes_before(self, epoch: str) -> None:
        """Close what still reads another pass in this process. Paddle never drops the iterator of a loop that was left,
        because a thread of its own holds it."""
        name, reading = self._reading
        if name != epoch:
            self._reading = epoch, []
            for each in reading:
                if (client := each()) is not None:
                    client.close()


class _States:
    """States behind the batches of one worker, in the order in which a loader takes them from all workers.

    The service cuts ``workers * world_size`` batches at a time, and a state of it is behind all of them. Behind those
    of some workers only it is the place between, with the point that was known before.
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


def _pass_after(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state at the beginning of the pass behind that of ``state``."""
    return beginning_of_pass(state, state["pass"] + 1, state.get("buckets", {}).get("bounds"))


def _buckets(bounds: Mapping[str, Any]) -> dict[str, Any]:
    return {"buckets": dict(bounds)} if bounds else {}


def require_state(state: object) -> None:
    """Raise ClientUseError for what cannot be a state."""
    if not isinstance(state, Mapping) or not isinstance(state.get("pass"), int):
        raise ClientUseError("a state must be what state_dict() returned")


class PassRecord:
    """File that tells all workers of a rank which pass they read: where it began, and where the next one will.

    It is a file because workers are other processes, and the loader may start them anew, or keep them. Of a state, only
    the number of its pass is needed. :meth:`changing` is for what else they tell each other.
    """

    def __init__(self, start: Mapping[str, Any]) -> None:
        descriptor, path = tempfile.mkstemp(prefix="pydp2-passes-")
        os.close(descriptor)
        self._path = path
        self._end = weakref.finalize(self, _remove, path, os.getpid())
        self.restart(start)

    def __getstate__(self) -> dict[str, Any]:
        return {"_path": self._path}

    def restart(self, state: Mapping[str, Any]) -> None:
        """Have the next pass begin at ``state``."""
        require_state(state)
        with self.changing() as record:
            restarts = record.get("restarts", -1) + 1
            record.update(epoch=None, workers=[], start=None, next=dict(state), restarts=restarts)

    @property
    def is_begun(self) -> bool:
        """True if a worker has begun the pass."""
        with self.changing() as record:
            return record["epoch"] is not None

    def claim(self, worker: int, epoch: str) -> tuple[dict[str, Any], int]:
        """Return where ``worker`` begins in the pass that is called ``epoch``, which the first worker opens, and how
        often a state was loaded before: those who still read what was left then are in other jobs.

        Bounds of buckets that were kept are in it if they were when the pass was opened: all workers begin alike, also
        one that begins when another has found them.
        """
        with self.changing() as record:
            if record["epoch"] != epoch or worker in record["workers"]:
                kept = _buckets({"bounds": record["bounds"]}) if "bounds" in record else {}
                start = {**kept, **record["next"]}
                record.update(epoch=epoch, workers=[], start=start, next=_pass_after(record["next"]))
            record["workers"].append(worker)
            return record["start"], record["restarts"]

    def go_on(self, epoch: str, state: Mapping[str, Any]) -> None:
        """Have the pass that is called ``epoch`` be that of ``state``, which each of its workers has loaded."""
        with self.changing() as record:
            if record["epoch"] != epoch:
                record.update(epoch=epoch, workers=[], start=dict(state), next=_pass_after(state))

    def note_bounds(self, pass_id: int, state: Mapping[str, Any]) -> None:
        """Have the next pass use the bounds of buckets that pass ``pass_id`` has found, as ``state`` has them."""
        if "bounds" in state.get("buckets", {}):
            with self.changing() as record:
                if record["next"]["pass"] == pass_id + 1:
                    record["next"] |= _buckets({"bounds": state["buckets"]["bounds"]})

    def keep_bounds(self, buckets: Mapping[str, Any]) -> None:
        """Keep the bounds of ``buckets`` for all passes to come, if it has any and none are kept."""
        if "bounds" in buckets:
            with self.changing() as record:
                record.setdefault("bounds", list(buckets["bounds"]))

    @contextlib.contextmanager
    def changing(self) -> Iterator[dict[str, Any]]:
        """Give the contents under a lock, and write down what was changed in them."""
        try:
            opened = open(self._path, "r+")  # noqa: SIM115  # closed below, where its content is used
        except FileNotFoundError:
            raise ClientUseError(
                f"{self._path}, in which the workers of this loader find the pass that they read, was removed, as "
                "programs do that clean up old files; make the loader anew, and set TMPDIR to a folder that is not "
                "cleaned up"
            ) from None
        with opened as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            text = file.read()
            record: dict[str, Any] = json.JSONDecoder().raw_decode(text)[0] if text else {}
            yield record
            file.seek(0)
            file.write(json.dumps(record))  # before the rest of a longer one goes: whoever is killed here leaves both
            file.flush()
            file.truncate()


def _remove(path: str, owner: int) -> None:
    if os.getpid() == owner:
        Path(path).unlink(missing_ok=True)
