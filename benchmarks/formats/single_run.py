"""Carry out one run in a process of its own: ``python -m benchmarks.formats.single_run RUN``, where RUN is JSON.

The last line of the output is the result as JSON, or ``{"absent": "…"}`` if a library is not installed here. The module
needs only numpy and what it measures.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

READERS = {"library": "libraries.blocks", "worker": "worker.chunks"}
"""Functions that read one file, by what they measure."""
LOADERS = {
    "pydp2": "own_loader.pydp2_loader",
    "torch": "loaders.torch_loader",
    "datasets": "loaders.datasets_loader",
    "webdataset": "loaders.webdataset_loader",
    "grain": "loaders.grain_loader",
    "spdl": "loaders.spdl_loader",
}
"""Functions that make passes with a loader."""
_LIBRARIES = (
    *("numpy", "pyarrow", "msgspec", "protobuf", "google-crc32c"),
    *("torch", "datasets", "webdataset", "grain", "spdl-core", "pydp2"),
)


def versions() -> dict[str, str]:
    """Return the versions of the libraries that are installed here."""
    found = {}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _reading(read: Callable[[str, str], Iterator[int]], workload: str, path: str) -> dict[str, Any]:
    """Return samples and processor time of one reading of a file, after one that does not count."""
    sum(read(workload, path))
    began = time.process_time()
    samples = sum(read(workload, path))
    return {"samples": samples, "cpu": time.process_time() - began}


def do(run: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a run."""
    what, workload, files = run["what"], run["workload"], run["files"]
    try:
        module, name = (READERS | LOADERS)[what].split(".")
        measured = getattr(importlib.import_module(f"benchmarks.formats.{module}"), name)
        if what in READERS:
            result = _reading(measured, workload, files[0])
        else:
            result = measured(workload, files, run["workers"], run["samples"])
    except ModuleNotFoundError as error:
        if str(error.name).startswith("benchmarks"):
            raise
        return {"absent": f"{error.name} is not installed"}
    except LookupError as error:
        if type(error) is not LookupError:
            raise
        return {"absent": str(error)}
    return {**result, "versions": versions()}


def main() -> None:
    result = do(json.loads(sys.argv[1]))
    sys.stdout.write(f"\n{json.dumps(result)}\n")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # does not wait for threads of peers, some of which outlive their loaders


if __name__ == "__main__":
    main()
