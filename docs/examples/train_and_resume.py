"""Training that may be killed at any moment: run it again with the same words, and it goes on.

    python docs/examples/train_and_resume.py run.npz --passes 3 --every 10

A softmax classifier in plain numpy learns the digits of the sample data. Every few steps, model and place in the data
go into one file, so that they always belong together; kill -9, a full disk or a power cut leave the last whole one.
However often it was killed, it ends with the same weights, bit by bit, as one that ran through.
"""

from __future__ import annotations

import argparse
import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from pydp2_samples import path
from pydp2_samples.softmax import Softmax

import pydp2

PARTS = ("weights", "bias", "_pace_weights", "_pace_bias")  # all that a step changes


def save(file: Path, model: Softmax, data: pydp2.Client) -> None:
    """Write model and place in the data as one file: all of it, or nothing."""
    place = json.dumps(data.state_dict()).encode()
    packed = io.BytesIO()
    arrays: dict[str, Any] = {name: getattr(model, name) for name in PARTS}
    np.savez(packed, data=np.frombuffer(place, np.uint8), **arrays)
    write(file, packed.getvalue())


def write(file: Path, content: bytes) -> None:
    """Replace ``file`` in one step that outlives a crash of the machine: a temporary file, fsync, rename, fsync."""
    temporary = file.with_name(f"{file.name}.tmp")
    with open(temporary, "wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    temporary.replace(file)
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the new name is on the disk too
    finally:
        os.close(folder)


def restore(file: Path, model: Softmax, data: pydp2.Client) -> None:
    """Bring back what :func:`save` wrote: the model, and the place in the data."""
    with np.load(file) as saved:
        for name in PARTS:
            setattr(model, name, saved[name])
        data.load_state_dict(json.loads(saved["data"].tobytes()))


def train(file: Path, passes: int, every: int, workers: int) -> Softmax:
    """Train to the end of the last pass, from ``file`` on where it is there."""
    model = Softmax()
    with pydp2.load(
        "train.list", "digits_provider.process", root=path("digits"), workers=workers, batch_size=32, seed=7
    ) as data:
        if file.exists():
            restore(file, model, data)
        # In the middle of a pass the loop below goes on there; the passes before it are over.
        for _ in range(data.state_dict()["pass"], passes):
            for batch in data:
                model.step(batch)
                if batch.index % every == every - 1:
                    save(file, model, data)
        save(file, model, data)
    return model


def main() -> None:
    """Train, and say how well the model knows digits that it has not seen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="where model and place in the data are kept")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--every", type=int, default=10, help="steps between two saves")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    model = train(options.file, options.passes, options.every, options.workers)
    held_out = {"is_train": False, "workers": 1, "batch_size": 64}
    with pydp2.load("test.list", "digits_provider.process", root=path("digits"), **held_out) as unseen:
        print(f"accuracy on digits that were held out: {model.accuracy(unseen):.4f}")


if __name__ == "__main__":
    main()
