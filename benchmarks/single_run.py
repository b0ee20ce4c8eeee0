"""Carry out one run in a process of its own: ``python -m benchmarks.single_run JOB``, where JOB is JSON, prints JSON.

The last line of the output is ``{"passes": […], "start": seconds, "versions": {…}}``, or ``{"absent": "…"}`` if the
peer, or a library that the workload needs, is not installed here. Anything else is a failure: a traceback on stderr and
an exit code. Other libraries may print lines before it. The module needs only numpy and the peer.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from typing import Any

from benchmarks.job import Job

PEERS = {
    "pydp2": "with_pydp2",
    "bare": "bare",
    "torch": "with_torch",
    "spdl": "with_spdl",
    "grain": "with_grain",
    "tf": "with_tf",
    "paddle": "with_paddle",
    "ray": "with_ray",
    "torchdata": "with_torchdata",
    "arrayrecord": "with_arrayrecord",
    "mosaicml": "with_mosaicml",
    "memmap": "with_memmap",
    "spdl_threads": "with_spdl_threads",
    "repeated": "repeated",
}


def to_argument(job: Job) -> str:
    """Return the job as an argument of the command line."""
    return json.dumps({**vars(job), "options": dict(job.options)})


def from_argument(text: str) -> Job:
    fields = json.loads(text)
    return Job(**{**fields, "options": tuple(fields["options"].items())})


def do(job: Job) -> dict[str, Any]:
    try:
        if job.workload == "jpeg":
            importlib.import_module("PIL")
        if job.option("train"):
            importlib.import_module("torch")
        peer = importlib.import_module(f"benchmarks.peers.{PEERS[job.peer]}")
    except ModuleNotFoundError as error:
        if str(error.name).startswith("benchmarks"):
            raise
        return {"absent": f"{error.name} is not installed"}
    if not job.passes:
        return {"passes": [], "start": 0.0, "versions": peer.versions()}
    began = time.perf_counter()
    passes = peer.measure(job)
    start = passes[0]["began"] - began
    return {"passes": passes, "start": start, "versions": peer.versions()}


def main() -> None:
    result = do(from_argument(sys.argv[1]))
    sys.stdout.write(f"\n{json.dumps(result)}\n")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # does not wait for threads of peers, some of which outlive their loaders


if __name__ == "__main__":
    main()
