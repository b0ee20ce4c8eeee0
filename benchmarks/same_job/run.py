"""Run the job with one loader in a folder with the data: ``python -m benchmarks.same_job.run LOADER``.

Prints a digest and the size of each step. ``--stop N`` ends the process abruptly after N steps, and leaves the
checkpoint in ``--checkpoint``; if that file exists, the job continues from it.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import os
import pickle  # noqa: TID251 - only for checkpoints of this run, in the form that most loaders expect
from pathlib import Path

import numpy as np


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("loader")
    parser.add_argument("--stop", type=int)
    parser.add_argument("--checkpoint", type=Path, required=True)
    given = parser.parse_args()
    job = importlib.import_module(f"benchmarks.same_job.with_{given.loader}")
    state = pickle.loads(given.checkpoint.read_bytes()) if given.checkpoint.exists() else None
    for number, (pixels, labels, checkpoint) in enumerate(job.steps(state), 1):
        digest = hashlib.sha256(np.ascontiguousarray(pixels, np.float32).tobytes())
        digest.update(np.ascontiguousarray(labels, np.int64).tobytes())
        print(digest.hexdigest()[:16], len(labels), flush=True)
        if number == given.stop:
            given.checkpoint.write_bytes(pickle.dumps(checkpoint))
            os._exit(0)


if __name__ == "__main__":  # the workers of some loaders import this file again
    main()
