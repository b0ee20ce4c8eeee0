"""Measure a service from the side of a trainer, for some seconds, independent of the size of the data."""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydp2.api.service import Service, launch
from pydp2.client import Client
from pydp2.errors import Error, ServiceLost

_AFTER = 0.7  # least share of the time after the first batch, because a rate needs some time
_LATE = 1.0  # seconds that a batch may be late before the service is ended


@dataclass
class ServiceRates:
    """Figures of a service. ``rate``: samples per second; ``launched``, ``first``: seconds to the first batch, from the
    launch and from the beginning of the pass; ``waited``, ``worked``: seconds of the trainer; ``cached``: rate of the
    passes after the first one, if they come from a cache; ``filled``: number of samples in the pool if the time ended
    before a batch came."""

    rate: float = 0.0
    launched: float | None = None
    first: float | None = None
    waited: float = 0.0
    worked: float = 0.0
    cached: float | None = None
    filled: int = 0
    seconds: float = 0.0
    marks: list[tuple[float, int]] = field(default_factory=list, repr=False)


def run_service(
    source: Mapping[str, Any],
    service: Mapping[str, Any],
    job: Mapping[str, Any],
    *,
    seconds: float,
    step: float | None = None,
    caches: bool = False,
) -> ServiceRates:
    """Serve and take batches for ``seconds``, with a step of ``step`` seconds for each; run one pass after another.

    ``caches``: the provider caches, so only the first pass reads files. The run leaves no files behind.
    """
    ran = ServiceRates()
    asked = time.perf_counter()
    with (
        tempfile.TemporaryDirectory(prefix="pydp2-bench-") as cache,
        launch(**source, **service, cache_dir=cache) as running,
        running.connect(**job, world_size=1) as data,
    ):
        began = time.perf_counter()
        with _Deadline(running, seconds * (1 + _AFTER) + _LATE) as deadline:
            try:
                _take(ran, data, began, seconds, step or 0.0)
            except ServiceLost:
                if not deadline.over:
                    raise
                ran.filled = deadline.filled
            now = time.perf_counter()
        ran.seconds = now - began
        if ran.first is not None:
            ran.launched = began - asked + ran.first
            _rate(ran, began, (now, data.samples), caches)
    return ran


def _take(ran: ServiceRates, data: Client, began: float, seconds: float, step: float) -> None:
    clock, end = time.perf_counter, began + seconds
    while True:
        before = data.samples
        asked = clock()
        for _ in data:
            now = clock()
            if ran.first is None:
                ran.first = now - began
                end = max(end, now + seconds * _AFTER)
                ran.marks.append((now, data.samples))
            else:
                ran.waited += now - asked
            if now >= end:
                return
            if step:
                time.sleep(step)
            asked = clock()
            ran.worked += asked - now
        ran.marks.append((clock(), data.samples))
        if data.samples == before:
            raise Error("a pass over this list has no samples, so there is nothing to measure")


def _rate(ran: ServiceRates, began: float, last: tuple[float, int], caches: bool) -> None:
    """Compute the rates from ``marks``, for the first batch and then the end of each pass, and from ``last``, for the
    last batch."""
    first, *ends = ran.marks
    if caches and ends:
        ran.rate = _per_second((began, 0), ends[0])
        ran.cached = _per_second(ends[0], last) if last[1] > ends[0][1] else None
    elif len(ends) > 1:
        ran.rate = _per_second(ends[0], ends[-1])
    elif ends:
        ran.rate = _per_second((began, 0), ends[0])
    else:
        ran.rate = _per_second(first, last) or _per_second((began, 0), last)


def _per_second(before: tuple[float, int], after: tuple[float, int]) -> float:
    return (after[1] - before[1]) / max(after[0] - before[0], 1e-9)


class _Deadline:
    """Timer that ends the service after ``seconds``, so that a waiting trainer stops. ``filled``: number of samples in
    the pool at that time."""

    def __init__(self, service: Service, seconds: float) -> None:
        self._service, self._seconds = service, seconds
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pydp2-deadline", daemon=True)
        self.over = False
        self.filled = 0

    def _run(self) -> None:
        if not self._left.wait(self._seconds):
            with contextlib.suppress(Error):
                self.filled = int(self._service.stats(timeout=1.0)["pool"].get("samples", 0))
            self.over = True
            self._service.close()

    def __enter__(self) -> _Deadline:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self._thread.join()


def largest(files: Iterable[str], root: Path) -> float | None:
    """Return the share of the largest file in the bytes of all ``files``; None if they are not files, or too many."""
    sizes = []
    for name in files:
        try:
            sizes.append((root / name).stat().st_size)
        except (OSError, ValueError):
            return None
        if len(sizes) > 10_000:
            return None
    return max(sizes) / total if (total := sum(sizes)) else None
