"""``python -m benchmarks.torch_start [--rounds 5]``: seconds from a loader's call to its first batch, if the code of
the workers imports torch, for the first and the second loader of a program, and beside torch's own DataLoader.

Each round is a separate program, which has imported torch before, as a training program has.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import pydp2.torch
from pydp2 import dense_vector, provider

WIDTH, LINES, FILES, WORKERS = 64, 2000, 4, 2
KINDS = ("pydp2.load", "pydp2.torch.loader", "DataLoader, fork", "DataLoader, spawn")


def samples(filename: str) -> Iterator[torch.Tensor]:
    """Parse the lines of a file."""
    with Path(filename).open() as lines:
        for line in lines:
            yield torch.tensor([float(word) for word in line.split()])


@provider(input_types=[dense_vector(WIDTH)], should_shuffle=False)
def process(settings: Any, filename: str) -> Iterator[Any]:
    """Yield the samples, for pydp2."""
    for sample in samples(filename):
        yield sample.numpy()


class Samples(torch.utils.data.IterableDataset[torch.Tensor]):
    """Dataset of the samples for torch's DataLoader; each of n workers reads every n-th file."""

    def __init__(self, files: list[str]) -> None:
        self._files = files

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = torch.utils.data.get_worker_info()
        assert worker is not None
        for filename in self._files[worker.id :: worker.num_workers]:
            yield from samples(filename)


def _open(kind: str, files: list[str]) -> Any:
    """Return a loader of batches of 128."""
    if kind == "pydp2.load":
        return pydp2.load(files, f"{__file__}:process", batch_size=128, workers=WORKERS)
    if kind == "pydp2.torch.loader":
        return pydp2.torch.loader(files, f"{__file__}:process", batch_size=128, workers=WORKERS)
    method = kind.rpartition(" ")[2]
    return torch.utils.data.DataLoader(
        Samples(files), batch_size=128, num_workers=WORKERS, multiprocessing_context=method
    )


def measure_start(kind: str, files: list[str]) -> dict[str, float]:
    """Return the seconds to the first batch of two loaders, the first of which stays open."""
    found: dict[str, float] = {}
    opened: list[Any] = []
    for name in ("first", "second"):
        began = time.perf_counter()
        opened.append(_open(kind, files))
        opened.append(iter(opened[-1]))
        next(opened[-1])
        found[name] = time.perf_counter() - began
    for resource in opened:
        close: Callable[[], object] = getattr(resource, "close", lambda: None)
        close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.torch_start")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--one", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("files", nargs="*", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        sys.stdout.write(json.dumps(measure_start(given.one, given.files)) + "\n")
        return
    with tempfile.TemporaryDirectory() as folder:
        files = [str(Path(folder) / f"{number}.txt") for number in range(FILES)]
        for file in files:
            Path(file).write_text((" ".join(f"{i / WIDTH:.4f}" for i in range(WIDTH)) + "\n") * LINES)
        rows: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
        for _ in range(given.rounds):
            for kind in KINDS:  # in turn, so that other programs of the machine disturb all kinds equally
                words = [sys.executable, "-m", "benchmarks.torch_start", "--one", kind, *files]
                done = subprocess.run(words, capture_output=True, text=True, check=True)
                rows[kind].append(json.loads(done.stdout))
        for kind, samples in rows.items():
            figures = {name: round(statistics.median(row[name] for row in samples), 2) for name in samples[0]}
            sys.stdout.write(json.dumps({"loader": kind, **figures, "n": len(samples)}) + "\n")


if __name__ == "__main__":
    main()
