"""pydp2: a running service, one client; a global pool, strict order unless told otherwise, every value checked."""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import pydp2
from benchmarks import consumer
from benchmarks.job import BATCH, Batch, Job
from benchmarks.prepared import kind_and_form
from pydp2.transport.key_files import ConnectionFile

_PROVIDED = Path(__file__).with_name("provided.py")
_PATIENCE = 30.0


def versions() -> dict[str, str]:
    return {
        "pydp2": f"{pydp2.__version__} (packing: {pydp2.packing()}; checksums: {pydp2.checksums()})",
        "numpy": np.__version__,
    }


def _dense(name: str, batch: Any) -> Batch:
    return {name: batch[name], "label": batch["label"]}


def _words(batch: Any) -> Batch:
    ids = batch["ids"]
    return {"ids": ids.values, "starts": ids.sequence_start_positions, "label": batch["label"]}


def _ctr(batch: Any) -> Batch:
    ids, pairs = batch["ids"], batch["pairs"]
    return {
        "ids": ids.indices,
        "starts": ids.indptr,
        "indices": pairs.indices,
        "values": pairs.values,
        "pair_starts": pairs.indptr,
        "label": batch["label"],
    }


_ARRAYS = {
    "mnist_text": lambda batch: _dense("pixel", batch),
    "words": _words,
    "ctr": _ctr,
    "rows": lambda batch: _dense("row", batch),
    "jpeg": lambda batch: _dense("picture", batch),
    "dense": lambda batch: _dense("row", batch),
    "ragged": _words,
    "sparse": _ctr,
    "rows_u8": lambda batch: _dense("row", batch),
    "rows_f32": lambda batch: _dense("row", batch),
    "picture": lambda batch: _dense("picture", batch),
}


def _until_all_workers_are_there(service: pydp2.Service, workers: int) -> None:
    deadline = time.monotonic() + _PATIENCE
    while len(service.stats()["workers"]) < workers:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{workers} workers must be there after {_PATIENCE:.0f} s")
        time.sleep(0.01)


@contextlib.contextmanager
def _service(
    job: Job, address: str, args: dict[str, str]
) -> Iterator[tuple[pydp2.Service, Callable[..., pydp2.Client]]]:
    """Return a context with a service, its workers, and a function that connects a trainer. Option ``network``: with
    "keys" the trainer connects over TCP; with "workers" the workers do, which an agent runs as if it were on another
    host; with "hosts" both; with "row server" both, and the trainer fetches the rows from that host. Option ``hosts``:
    number of hosts among which the workers are divided."""
    network = job.option("network")
    if network is None:
        with pydp2.launch(job.files(), address, args=args, workers=job.workers) as service:
            yield service, service.connect
        return
    with tempfile.TemporaryDirectory(prefix="pb-") as folder:
        connection = Path(folder) / "run.json"
        local = job.workers if network == "keys" else 0
        with pydp2.launch(
            job.files(), address, args=args, workers=local, bind="tcp://127.0.0.1:*", connection=connection
        ) as service:
            if not local:
                rows = "tcp://127.0.0.1:*" if network == "row server" else None
                hosts = job.option("hosts", 1)
                for number in range(hosts):
                    host = pydp2.WorkerHost(
                        connection,
                        name=f"host{number}",
                        workers=job.workers // hosts,
                        root=_PROVIDED.parents[2],
                        row_server=rows,
                    )
                    threading.Thread(target=host.run, name="host").start()  # it ends with the service
            if network != "workers":  # otherwise they would share memory
                replace(ConnectionFile.read(connection), local_address="").write(connection)
            yield service, partial(pydp2.connect, connection)


def measure(job: Job) -> list[dict]:
    """Return passes of a client, from ``iter()`` on a running service, which has read nothing before."""
    form = "_cached" if job.option("cache") else "_in_blocks" if job.option("blocks") else ""
    address = f"{_PROVIDED}:{job.workload}{form}"
    args = {"workload": job.workload, "folder": job.folder}
    with (
        _service(job, address, args) as (service, connect),
        connect(batch_size=BATCH, seed=1, order=job.option("order", "strict")) as client,
    ):
        _until_all_workers_are_there(service, job.workers)
        return consumer.passes(job, lambda: client, _ARRAYS[kind_and_form(job.workload)[0]])
