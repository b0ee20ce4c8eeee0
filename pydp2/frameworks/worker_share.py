"""Read shares of a job in worker processes that a framework's loader starts and ends.

Theory of operation
-------------------
Such a loader takes the batches of its n workers in turn. Worker i of rank r reads as rank ``i * world_size + r`` of
``n * world_size``: ranks get the batches of a pass in turn too, so each rank of the run gets the same batches as
without workers, in the same order (:class:`WorkerShares`), if all ranks have equally many workers.

- The job has equally many batches for each of its ranks, so the service may add batches that are all padding. A loader
  without workers would not get them, so a worker leaves them out, unless another rank of the run has as many steps.
- The processes do not know of each other. A loader starts new ones for each epoch, or keeps them, and it may drop them
  in the middle of a pass. So no process can count the passes by itself. The next pass is in a file
  (:class:`PassRecord`), whose lock they take for a moment when a pass begins.
- Between two passes no worker may be connected, and a service ends when no client is. So the process of the loader
  keeps the service running, with a client that reads nothing.
- The loader ends a worker in a way that runs no finalizers of Python itself. Its client would stay a rank of the job
  for the time of a lease, so a finalizer of ``multiprocessing``, which does run, closes it.
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

from pydp2.api.access import Address
from pydp2.api.service import connect
from pydp2.api.sources import Files, Source
from pydp2.client import Client
from pydp2.client.saved_state import beginning_of_pass
from pydp2.client.stream import Stream
from pydp2.data.columns.batch import Batch
from pydp2.errors import ClientUseError, OptionTypeError
from pydp2.frameworks.shared_service import (
    START_SECONDS,
    Ranks,
    check_no_workers,
    is_address,
    keep_service,
    open_service,
)
from pydp2.options.tables import split_options
from pydp2.providers import Provider


class WorkerShares:
    """Shares of a job for the workers of one rank. A copy in another process reads the same job, and does not end the
    service.

    ``files``, ``provider``, ``options``: as for :func:`pydp2.frameworks.shared_service.open_client`, but no stream.
    Raises the errors of that function; those about options of the job come at the first :meth:`connect`.
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
        if ranks.needs_equal_steps:
            options.setdefault("last_batch", "pad")
        self.ranks, self.job = ranks._replace(store=None), job  # other processes read too
        self._address: Address
        self._options = options  # with an address, connect() refuses options of a service
        self._end: weakref.finalize[..., WorkerShares] | None = None
        if is_address(files, provider, options.get("root")):
            check_no_workers(options)
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
        """Return the client of worker ``worker`` of ``workers``. ``name``: appended to the name of the job, to tell it
        from other jobs of this rank."""
        place = self.ranks.place(self.job + name)
        rank, world_size = worker * place.world_size + place.rank, workers * place.world_size
        place = place._replace(rank=rank, world_size=world_size)
        client = connect(self._address, **place._asdict(), **self._options)
        if multiprocessing.parent_process() is not None:
            Finalize(client, client.close, exitpriority=10)
        return client

    def look(self) -> Client:
        """Return a client that gets all batches, in a job of its own, so that it disturbs no other client."""
        return connect(self._address, job=f"{self.job} {os.urandom(4).hex()}", rank=0, world_size=1, **self._options)

    def is_made_up(self, batch: Batch, workers: int) -> bool:
        """Return True if ``batch`` is all padding, which the service added because ``workers`` are ranks with equally
        many batches."""
        return workers > 1 and self.ranks.place(self.job).world_size == 1 and batch.padding == len(batch)

    def close(self) -> None:
        """End the service, if this process has started it, once the other ranks have left."""
        if self._end is not None:
            self._end()


class PassRecord:
    """File from which all workers of a rank learn which pass they read: the state at its start, and that of the next
    pass.

    It is a file because workers are other processes, which the loader may replace or keep. Of a state, only the number
    of its pass is needed. With :meth:`changing`, workers can exchange other data.
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
        """Let the next pass begin at ``state``."""
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
        """Return the state at which ``worker`` begins the pass with the name ``epoch``, and the number of states that
        were loaded before. The first worker opens the pass. The number is part of the job's name, so that workers that
        still read an abandoned pass are in another job.

        The state has bounds of buckets if they were known when the pass was opened. So all workers begin with the same
        state, also one that begins after another worker has found bounds.
        """
        with self.changing() as record:
            if record["epoch"] != epoch or worker in record["workers"]:
                buckets = {"buckets": {"bounds": record["bounds"]}} if "bounds" in record else {}
                start = {**buckets, **record["next"]}
                record.update(epoch=epoch, workers=[], start=start, next=_pass_after(record["next"]))
            record["workers"].append(worker)
            return record["start"], record["restarts"]

    def go_on(self, epoch: str, state: Mapping[str, Any]) -> None:
        """Note that the pass with the name ``epoch`` is that of ``state``, which each of its workers has loaded."""
        with self.changing() as record:
            if record["epoch"] != epoch:
                record.update(epoch=epoch, workers=[], start=dict(state), next=_pass_after(state))

    def note_bounds(self, pass_id: int, state: Mapping[str, Any]) -> None:
        """Let the next pass use the bounds of buckets in ``state``, which pass ``pass_id`` has found."""
        if "bounds" in state.get("buckets", {}):
            with self.changing() as record:
                if record["next"]["pass"] == pass_id + 1:
                    record["next"]["buckets"] = {"bounds": list(state["buckets"]["bounds"])}

    def keep_bounds(self, buckets: Mapping[str, Any]) -> None:
        """Store the bounds of ``buckets``, if there are any, for all later passes, unless bounds are stored already."""
        if "bounds" in buckets:
            with self.changing() as record:
                record.setdefault("bounds", list(buckets["bounds"]))

    @contextlib.contextmanager
    def changing(self) -> Iterator[dict[str, Any]]:
        """Return a context with the content of the file, under a lock; write the changes at its end."""
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
            file.write(json.dumps(record))  # before the truncation: a process that is killed here leaves valid text
            file.flush()
            file.truncate()


def _pass_after(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state at the beginning of the pass after that of ``state``."""
    return beginning_of_pass(state, state["pass"] + 1, state.get("buckets", {}).get("bounds"))


def _remove(path: str, owner: int) -> None:
    if os.getpid() == owner:
        Path(path).unlink(missing_ok=True)
