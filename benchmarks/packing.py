"""Measure how many tokens a second are packed into rows: by pydp2's service, by a loop in numpy, and by Grain.

All of them pack the same documents of the same files, best fit first, into rows of the same length with positions and
segment numbers. pydp2 shuffles the documents and reads them in workers; the others read them from memory of their own,
in order, in the process that packs. Runs alternate, each in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left, insort
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
METHODS = ("pydp2", "numpy", "grain")
_FILES = 8
_END = 0  # the token that ends a document
_BINS = 64  # rows that are filled at the same time
_ROWS = 8  # of a batch
_DEADLINE = 600  # seconds


def make(folder: Path, tokens: int) -> list[str]:
    """Write files of documents whose lengths are those of a mixed text corpus: log-normal, 245 tokens in the median."""
    random = np.random.default_rng(1)
    paths = []
    for number in range(_FILES):
        path = folder / f"tokens-{number}.bin"
        values = random.integers(1, 50_000, tokens // _FILES, dtype=np.uint16)
        ends = np.cumsum(random.lognormal(5.5, 1.0, len(values) // 200).astype(np.int64) + 2)
        values[ends[ends < len(values)]] = _END
        values.tofile(path)
        paths.append(str(path))
    return paths


def documents(paths: list[str]) -> Iterator[Any]:
    """Yield the documents of all files."""
    for path in paths:
        values = np.fromfile(path, np.uint16).astype(np.int32)
        ends = np.append(np.flatnonzero(values == _END) + 1, len(values))
        yield from (values[lo:hi] for lo, hi in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True) if hi > lo)


def with_pydp2(paths: list[str], length: int, workers: int, ranks: int) -> tuple[float, int]:
    """Return seconds and tokens of one pass. Each rank is a thread of this process."""
    import threading

    import pydp2

    args = {"dtype": "uint16", "end_token": _END}
    taken = [0] * ranks

    def train(rank: int) -> None:
        stream = service.connect(batch_size=64, rank=rank, world_size=ranks, last_batch="pad")
        with pydp2.pack_sequences(stream, slot="tokens", length=length, batch_size=_ROWS) as data:
            for batch in data:
                taken[rank] += int(batch.segments.length.sum())

    with pydp2.launch(paths, "pydp2.formats.tokens.process", args=args, workers=workers) as service:
        began = time.perf_counter()
        threads = [threading.Thread(target=train, args=(rank,)) for rank in range(ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(_DEADLINE)
        return time.perf_counter() - began, sum(taken)


def with_numpy(paths: list[str], length: int) -> tuple[float, int]:
    """Return seconds and tokens of a loop that packs windows of documents, one document after the other."""
    began, taken = time.perf_counter(), 0
    window: list[Any] = []
    filled = 0
    for document in documents(paths):
        window += [document[at : at + length] for at in range(0, len(document), length)]
        filled += len(document)
        if filled >= _BINS * length:
            taken += _pack_window(window, length)
            window, filled = [], 0
    taken += _pack_window(window, length)
    return time.perf_counter() - began, taken


def _pack_window(window: list[Any], length: int) -> int:
    """Pack pieces of documents into rows with positions and segment numbers. Return the number of their tokens."""
    free: list[tuple[int, int]] = []
    rows: list[list[Any]] = []
    for piece in sorted(window, key=len, reverse=True):
        found = bisect_left(free, (len(piece), -1))
        room, row = free.pop(found) if found < len(free) else (length, len(rows))
        if row == len(rows):
            rows.append([])
        rows[row].append(piece)
        insort(free, (room - len(piece), row))
    tokens, positions, segments = (np.zeros((len(rows), length), np.int32) for _ in range(3))
    for row, pieces in enumerate(rows):
        at = 0
        for number, piece in enumerate(pieces, 1):
            here = slice(at, at + len(piece))
            tokens[row, here], positions[row, here], segments[row, here] = piece, np.arange(len(piece)), number
            at += len(piece)
    return int((segments > 0).sum())


def with_grain(paths: list[str], length: int) -> tuple[float, int]:
    """Return seconds and tokens of Grain's best-fit packing."""
    import grain
    from grain import experimental

    pieces = [{"tokens": doc[at : at + length]} for doc in documents(paths) for at in range(0, len(doc), length)]
    source = grain.MapDataset.source(pieces).to_iter_dataset()
    packed = experimental.BestFitPackIterDataset(source, length_struct={"tokens": length}, num_packing_bins=_BINS)
    began, taken = time.perf_counter(), 0
    for rows in packed.batch(_ROWS):
        taken += int((rows["tokens_segment_ids"] > 0).sum())
    return time.perf_counter() - began, taken


def single(method: str, paths: list[str], given: Any) -> tuple[float, int]:
    """Return seconds and tokens of one run of ``method`` in this process."""
    if method == "pydp2":
        return with_pydp2(paths, given.length, given.workers, given.ranks)
    return with_numpy(paths, given.length) if method == "numpy" else with_grain(paths, given.length)


def show(given: argparse.Namespace) -> int:
    """Run all methods in turn, ``given.rounds`` times, and print medians."""
    pythons = {"grain": given.grain or sys.executable}
    rates: dict[str, list[float]] = {method: [] for method in given.method}
    with tempfile.TemporaryDirectory() as folder:
        paths = make(Path(folder), given.tokens)
        for _ in range(given.rounds):
            for method in given.method:
                command = [pythons.get(method, sys.executable), "-m", "benchmarks.packing", method, *paths]
                command += ["--length", str(given.length), "--workers", str(given.workers), "--ranks", str(given.ranks)]
                environ = os.environ | {"PYTHONPATH": str(ROOT)}
                done = subprocess.run(
                    command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=_DEADLINE, check=True
                )
                seconds, tokens = json.loads(done.stdout.splitlines()[-1])
                rates[method].append(tokens / seconds)
    first = statistics.median(rates[given.method[0]])
    for method, found in rates.items():
        median, low, high = statistics.median(found), min(found), max(found)
        print(
            f"{method:<6} {median / 1e6:6.2f} million tokens/s ({low / 1e6:.2f} to {high / 1e6:.2f}), "
            f"{given.method[0]} / {method}: {first / median:.2f}"
        )
    return 0


def add_to(commands: Any) -> None:
    """Add the command to those of the benchmarks."""
    parser = commands.add_parser("packing", help="tokens a second that are packed into rows")
    parser.add_argument("--method", nargs="+", choices=METHODS, default=METHODS, help="default: all")
    parser.add_argument("--grain", help="Python of an environment that has Grain; default: this one")
    parser.add_argument("--tokens", type=int, default=16_000_000, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    _add_shape(parser)
    parser.set_defaults(do=show)


def _add_shape(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--length", type=int, default=2048, help="tokens of a row; default: %(default)s")
    parser.add_argument("--workers", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--ranks", type=int, default=1, help="default: %(default)s")


def main() -> None:
    """Run one method, and print its seconds and tokens."""
    parser = argparse.ArgumentParser()
    parser.add_argument("method", choices=METHODS)
    parser.add_argument("paths", nargs="+")
    _add_shape(parser)
    given = parser.parse_args()
    print(json.dumps(single(given.method, given.paths, given)))


if __name__ == "__main__":
    main()
