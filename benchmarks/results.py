"""Compute medians and ratios of runs: plain functions over plain data, without clock, processes or printing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

OURS = "pydp2"
LIMIT = "bare"
LIMIT_OF_TRAINING = "cached batch"
OURS_CACHED = "pydp2 cached"
CACHED = (OURS_CACHED, "tf.data cached")
Run = dict[str, Any]
Figure = Callable[[Run], float | None]


def rate(run: Run, number: int = 0) -> float:
    """Return the samples/s of a whole pass, from ``iter()`` to its end."""
    of = run["passes"][number]
    return of["samples"] / of["seconds"]


def second(run: Run) -> float | None:
    return rate(run, 1) if len(run["passes"]) > 1 else None


def ratio(runs: Iterable[Run], first: str, second: str, figure: Figure = rate) -> float | None:
    """Return the median over rounds of the figure of ``first`` divided by that of ``second``; None without rounds.

    The machine may be twice as slow in one round as in another, so only figures of the same round are divided.
    """
    of: dict[str, dict[int, float]] = {first: {}, second: {}}
    for run in runs:
        if run["contestant"] in of and (value := figure(run)):
            of[run["contestant"]][run["round"]] = value
    pairs = [value / of[second][number] for number, value in of[first].items() if number in of[second]]
    return median(pairs) if pairs else None


@dataclass(frozen=True)
class Row:
    """One contestant in one table. Rates in samples/s; None: not measured.

    Args:
        rate, low, high: median, minimum and maximum for the reported pass.
        of_bare: its rate divided by that of the bare generator, or of a cached batch in a training; ``ahead``: the rate
            of pydp2 divided by its rate; medians of rounds.
        cpu: microseconds of processor time of all processes for a sample, in that pass; server, trainer: those of
            pydp2's server, and of the process that receives the batches; agent: those of the agents of hosts;
            server_thread: those of the server's busiest thread.
        server_more: the time of its server divided by that of pydp2's server, median of rounds.
        others: share of the machine that processes outside the run took; medians.
        peak: peak of the bytes of all processes together.
        felt: times of ``next()``, if they were measured: see :meth:`benchmarks.latency.Felt.figures`; medians of
            rounds, but ``max`` is the longest of all.
        failed: number of failed runs among ``tries``.
    """

    contestant: str
    tries: int
    failed: int
    rate: float | None
    low: float | None
    high: float | None
    of_bare: float | None
    ahead: float | None
    steady: float | None
    second: float | None
    first: float | None
    cpu: float | None
    start: float | None
    others: float | None
    peak: int | None
    server: float | None = None
    trainer: float | None = None
    agent: float | None = None
    server_thread: float | None = None
    server_more: float | None = None
    felt: dict[str, float] | None = None

    @property
    def carries(self) -> float | None:
        """Samples/s at which the busier of server and trainer would fill one core."""
        busier = max(self.server or 0.0, self.trainer or 0.0)
        return 1e6 / busier if busier else None

    @property
    def server_carries(self) -> float | None:
        """Samples/s at which the busiest thread of the server would fill one core."""
        return 1e6 / self.server_thread if self.server_thread else None


@dataclass(frozen=True)
class Table:
    """One workload with one number of workers; rows from the fastest to the slowest, bare first.

    Args:
        best: the fastest peer in the first pass, ``ahead``: the rate of pydp2 divided by its rate.
        cached_ahead: the rate of pydp2's cached pass divided by that of the fastest cached peer.
        first_behind: pydp2's time to the first batch divided by that of the fastest peer.
        strict_of_relaxed: pydp2's rate in strict order divided by that in relaxed order.
    """

    workload: str
    workers: int
    rounds: int
    rows: tuple[Row, ...]
    best: str | None
    ahead: float | None
    cached_ahead: float | None
    first_behind: float | None
    strict_of_relaxed: float | None


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _felt(passes: list[dict[str, Any]]) -> dict[str, float] | None:
    felt = [p["felt"] for p in passes if "felt" in p]
    if not felt:
        return None
    return {name: (max if name == "max" else median)(figures[name] for figures in felt) for name in felt[0]}


def _each(passes: list[dict[str, Any]], name: str) -> float | None:
    """Return the median of the microseconds per sample of ``name``."""
    return _median(p[name] / p["samples"] * 1e6 for p in passes if p.get(name) is not None)


def _row(name: str, limit: str, timed: list[Run], watched: list[Run], number: int) -> Row:
    figure = partial(rate, number=number)
    own = [run for run in timed if run["contestant"] == name]
    through = [run for run in own if "passes" in run]
    finished = [run for run in timed if "passes" in run]
    rates = [figure(run) for run in through]
    passes = [run["passes"][number] for run in through]
    peaks = [run["peak"] for run in watched if run["contestant"] == name and "peak" in run]
    return Row(
        contestant=name,
        tries=len(own),
        failed=len(own) - len(through),
        rate=_median(rates),
        low=min(rates, default=None),
        high=max(rates, default=None),
        of_bare=ratio(finished, name, limit, figure),
        ahead=ratio(finished, OURS, name, figure),
        steady=_median(p["steady"] for p in passes),
        second=_median(second(run) for run in through),
        first=_median(p["first"] for p in passes),
        cpu=_each(passes, "cpu"),
        start=_median(run["start"] for run in through),
        others=_median(p.get("others") for p in passes),
        peak=max(peaks, default=None),
        server=_each(passes, "server_cpu"),
        trainer=_each(passes, "trainer_cpu"),
        agent=_each(passes, "agent_cpu"),
        server_thread=_each(passes, "server_thread_cpu"),
        server_more=ratio(finished, name, OURS, lambda run: _each([run["passes"][number]], "server_cpu")),
        felt=_felt(passes),
    )


def _most(rows: Sequence[Row], figure: Callable[[Row], float | None]) -> str | None:
    """Return the contestant with the largest figure."""
    known = [(value, row.contestant) for row in rows if (value := figure(row)) is not None]
    return max(known)[1] if known else None


def _is_peer(row: Row) -> bool:
    return row.contestant not in (LIMIT, LIMIT_OF_TRAINING) and not row.contestant.startswith(OURS)


def _table(workload: str, workers: int, runs: list[Run], number: int) -> Table:
    timed, watched = [run for run in runs if run["round"]], [run for run in runs if not run["round"]]
    finished = [run for run in timed if "passes" in run]
    names = dict.fromkeys(run["contestant"] for run in runs)
    limit = LIMIT_OF_TRAINING if LIMIT_OF_TRAINING in names else LIMIT
    rows = [_row(name, limit, timed, watched, number) for name in names]
    rows.sort(key=lambda row: (row.contestant != limit, -(row.rate or 0)))
    peers = [row for row in rows if _is_peer(row)]
    best = _most([row for row in peers if row.contestant not in CACHED], lambda row: row.rate)
    cached = _most([row for row in peers if row.contestant in CACHED], lambda row: row.second)
    quickest = _most(peers, lambda row: -row.first if row.first else None)
    return Table(
        workload=workload,
        workers=workers,
        rounds=max((run["round"] for run in runs), default=0),
        rows=tuple(rows),
        best=best,
        ahead=ratio(finished, OURS, best, partial(rate, number=number)) if best else None,
        cached_ahead=ratio(finished, OURS_CACHED, cached, second) if cached else None,
        first_behind=ratio(finished, OURS, quickest, lambda run: run["passes"][0]["first"]) if quickest else None,
        strict_of_relaxed=ratio(finished, OURS, f"{OURS} relaxed"),
    )


def tables(runs: Iterable[Run], number: int = 0) -> list[Table]:
    """Return one table for each workload and number of workers, in the order of the runs.

    Args:
        number: number of the reported pass, from 0.
    """
    apart: dict[tuple[str, int], list[Run]] = {}
    for run in runs:
        apart.setdefault((run["workload"], run["workers"]), []).append(run)
    return [_table(workload, workers, of, number) for (workload, workers), of in apart.items()]
