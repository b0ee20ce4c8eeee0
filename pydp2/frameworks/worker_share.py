"""Read a job in worker processes that a framework's loader starts and ends, each of them a share.

Theory of operation
-------------------
Such a loader takes the batches of its n workers in turn. Worker i of rank r reads as rank ``i * world_size + r`` of
``n * world_size``: ranks get the batches of a pass in turn too, so each rank of the run has the batches that it has
without workers, in the same order (:class:`WorkerShares`), if all ranks have equally many workers.

- The job has equally many batches for each of its ranks, so the service may make up whole batches. A loader without
  workers has none of them, so a worker leaves them out, unless another rank of the run waits for as many steps.
- The processes do not know of each other. A loader starts new ones for each epoch, or keeps them, and it may drop them
  in the middle of a pass. So which pass comes next is no process's own count. It stands in a file (:class:`PassRecord`)
  whose lock they take for a moment when a pass begins.
- Between two passes no worker may be connected, and a service ends when nobody is. So the process of the loader keeps
  the service, with a client that reads nothing.
- A worker is ended by its loader and runs no finalizers of Python's own. Its client would stay a rank of the job for as
  long as a lease, so what closes it is one of ``multiprocessing``, which does run.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import multiprocessing
import os
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

from pydp2.api.service import connect
from pydp2.api.sources import Files, Source
from pydp2.client import Client
from pydp2.client.saved_state import beginning_of_pass
from pydp2.client.stream import Stream
from pydp2.data.columns.batch import Batch
from pydp2.errors import ClientUseError, OptionTypeError
from pydp2.frameworks.shared_service import START_SECONDS, Ranks, is_address, keep_service, open_service
from pydp2.options.tables import split_options
from pydp2.providers import Provider


class WorkerShares:
    """Shares of a job for the workers of one rank; a copy in another process reads the same job, and ends nothing.

    ``files``, ``provider``, ``options``: as for :func:`pydp2.frameworks.shared_service.open_client`, but no stream.
    Raises what that function raises; options of the job at the first :meth:`connect`.
    """

    def __init__(
        self,
        files: Files | Source,
        provider: str | Provider | None,
        ranks: Ranks,
        *,
        job: str = "default",
        **options: Any,
    ) -> None:
        if isinstance(files, Stream):
            raise OptionTypeError(
                "a dataset connects in each process that reads it, so it cannot take an open stream; give it the list "
                "and the provider, or the address of a service"
            )
        if ranks.world_size > 1:
            options.setdefault("last_batch", "pad")
        self.ranks, self.job = ranks, job
        self._address: str | os.PathLike[str]
        self._options = options  # with an address of the job alone, or connect() says where they belong
        self._end: weakref.finalize[..., WorkerShares] | None = None
        if is_address(files, provider):
            self._address = files
        else:
            of_job, rest = split_options(options)
            self._address, service = open_service(files, provider, ranks, job=job, **rest)
            self._options = of_job | {"timeout": START_SECONDS}
            keeper = keep_service(self._address, ranks, job=job) if service is None else service
            self._end = weakref.finalize(self, keeper.close)  # at the latest when the program ends

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_end": None}

    def connect(self, worker: int, workers: int, name: str) -> Client:
        """Return the client of worker ``worker`` of ``workers``. ``name``: tells its job from others of this rank."""
        ranks = self.ranks
        rank, world_size = worker * ranks.world_size + ranks.rank, workers * ranks.world_size
        client = connect(self._address, job=self.job + name, rank=rank, world_size=world_size, **self._options)
        if multiprocessing.parent_process() is not None:
            Finalize(client, client.close, exitpriority=10)
        return client

    def look(self) -> Client:
        """Return a client of all batches that is in the way of no other."""
        return connect(self._address, job=f"{self.job} {os.urandom(4).hex()}", rank=0, world_size=1, **self._options)

    def is_made_up(self, batch: Batch, workers: int) -> bool:
        """Return True if ``batch`` is there only because ``workers`` are ranks, which get equally many."""
        return workers > 1 and self.ranks.world_size == 1 and batch.padding == len(batch)

    def close(self) -> None:
        """End the service, if this process has started it, once the other ranks have left."""
        if self._end is not None:
            self._end()


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
        if not isinstance(state, Mapping) or not isinstance(state.get("pass"), int):
            raise ClientUseError("a state must be what state_dict() returned")
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
                kept = {"buckets": {"bounds": record["bounds"]}} if "bounds" in record else {}
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
                    record["next"]["buckets"] = {"bounds": list(state["buckets"]["bounds"])}

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


def _pass_after(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state at the beginning of the pass behind that of ``state``."""
    return beginning_of_pass(state, state["pass"] + 1, state.get("buckets", {}).get("bounds"))


def _remove(path: str, owner: int) -> None:
    if os.getpid() == owner:
        Path(path).unlink(missing_ok=True)
