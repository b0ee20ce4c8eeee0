"""Measure what a resume costs: the seconds from the start of the program to its first batch, and how many samples are
read again, for providers that read a file from its first sample, from any, or chosen samples alone.

A pass is run once for each provider and pool, and states are taken on the way. Then each state is loaded in a new
service, in alternating rounds. The samples are made in memory, so reading costs as little as it can.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import pydp2
from benchmarks.resume_provider import COUNTS, MERGED, SLOTS
from pydp2.data.columns import sample_set
from pydp2.order.snapshot import decode_samples

WAYS = ("whole", "start", "indices")
SHARES = (1, 50, 99)
POOLS = {"16 MiB": 16 << 20, "1 GiB": 1 << 30}
"""Values of ``pool_bytes``; 1 GiB is the default."""
FILES, SAMPLES = 1000, 100_000
_BATCH = 1024
_ALL = 1 << 62


@dataclass(frozen=True)
class Resumed:
    """One resume: seconds to the first batch, samples in the pool of the state, and samples that were read again."""

    seconds: float
    pool: int
    again: int


class Counts:
    """Files in ``folder`` through which the providers count."""

    def __init__(self, folder: Path, files: int) -> None:
        self._merged, self._counts = folder / "merged", folder / "counts"
        np.zeros(files, np.int64).tofile(self._merged)
        np.zeros(SLOTS, np.int64).tofile(self._counts)

    @contextmanager
    def counting(self, state: dict[str, Any] | None) -> Iterator[None]:
        """Let services that start meanwhile count what they read again for ``state``."""
        merged = np.memmap(self._merged, np.int64, "r+")
        merged[:] = 0
        if state is not None:
            files, _ = _pool_of(state)
            merged[files] = _ALL
            for lane in state["point"]["lanes"]:
                merged[lane[0]] = lane[1]
        np.zeros(SLOTS, np.int64).tofile(self._counts)
        names = {MERGED: str(self._merged), COUNTS: str(self._counts)}
        os.environ.update(names)
        try:
            yield
        finally:
            for name in names:
                del os.environ[name]

    @property
    def again(self) -> int:
        """Samples that were read again."""
        return int(np.fromfile(self._counts, np.int64).sum())


def _pool_of(state: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    return decode_samples(sample_set.set_from_text(state["point"]["pool"]))


def _load(way: str, pool_bytes: int, names: Sequence[str], workers: int) -> pydp2.Client:
    return pydp2.load(
        names, f"benchmarks.resume_provider.{way}", batch_size=_BATCH, seed=1, workers=workers, pool_bytes=pool_bytes
    )


def states(
    way: str, pool_bytes: int, names: Sequence[str], samples: int, shares: Sequence[int], workers: int
) -> dict[int, dict[str, Any]]:
    """Return the states at ``shares`` percent of a pass over files of ``samples`` samples each."""
    batches = -(-len(names) * samples // _BATCH)
    wanted = {max(1, batches * share // 100): share for share in shares}
    found = {}
    with _load(way, pool_bytes, names, workers) as data:
        for batch in data:
            if (share := wanted.get(batch.index)) is not None:
                state = data.state_dict()
                if state["point"] is not None:  # else nothing but the beginning of the pass was saved
                    found[share] = state
                if len(found) == len(wanted) or batch.index >= max(wanted):
                    break
    return found


def resume(
    way: str, pool_bytes: int, names: Sequence[str], state: dict[str, Any], counts: Counts, workers: int
) -> Resumed:
    """Load ``state`` in a new service, and take one batch."""
    with counts.counting(state):
        began = time.perf_counter()
        with _load(way, pool_bytes, names, workers) as data:
            data.load_state_dict(state)
            next(iter(data))
            seconds, again = time.perf_counter() - began, counts.again
    return Resumed(seconds, len(_pool_of(state)[0]), again)


def show(
    ways: Sequence[str], pools: Sequence[str], shares: Sequence[int], rounds: int, scale: float, workers: int = 2
) -> None:
    """Measure and print a table; medians of ``rounds``. ``scale``: share of the files."""
    names = [f"{number}+{SAMPLES}" for number in range(max(1, int(FILES * scale)))]
    table = Table("pool_bytes", "at", "provider", "samples in pool", "read again", "of pool", "first batch (s)")
    total = len(names) * SAMPLES
    with tempfile.TemporaryDirectory() as folder:
        counts = Counts(Path(folder), len(names))
        for pool in pools:
            taken = {}
            for way in ways:
                with counts.counting(None):
                    taken[way] = states(way, POOLS[pool], names, SAMPLES, shares, workers)
            for share in shares:
                results: dict[str, list[Resumed]] = {way: [] for way in ways if share in taken[way]}
                for _ in range(rounds):
                    for way, found in results.items():
                        found.append(resume(way, POOLS[pool], names, taken[way][share], counts, workers))
                for way, found in results.items():
                    again = statistics.median(each.again for each in found)
                    held = statistics.median(each.pool for each in found)
                    seconds = statistics.median(each.seconds for each in found)
                    figures = f"{held:,.0f}", f"{again / total:.1%}", f"{again / held:.2f}", f"{seconds:.2f}"
                    table.add_row(pool, f"{share} %", way, *figures)
    Console().print(table)
    print(f"{len(names):,} files of {SAMPLES:,} samples, {workers} workers; medians of {rounds}")
