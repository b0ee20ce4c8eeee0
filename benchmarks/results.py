"""What the runs come to: medians and ratios. Plain functions over plain data, without clock, processes or printing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

OURS = "pydp2"
LIMIT = "bare"
OURS_CACHED = "pydp2 cached"
CACHED = (OURS_CACHED, "tf.data cached")
Run = dict[str, Any]
Figure = Callable[[Run], float | None]


def rate(run: Run, number: int = 0) -> float:
    """Samples/s of a whole pass, from ``iter()`` to its end."""
    of = run["passes"][number]
    return of["samples"] / of["seconds"]


def second(run: Run) -> float | None:
    return rate(run, 1) if len(run["passes"]) > 1 else None


def ratio(runs: Iterable[Run], one: str, other: str, figure: Figure = rate) -> float | None:
    """The median over rounds of what ``one`` has against what ``other`` has in the same round; None without any.

    The machine may be twice as slow in one round as in another, so only what ran side by side is divided.
    """
    of: dict[str, dict[int, float]] = {one: {}, other: {}}
    for run in runs:
        if run["contestant"] in of and (value := figure(run)):
            of[run["contestant"]][run["round"]] = value
    pairs = [value / of[other][number] for number, value in of[one].items() if number in of[other]]
    return median(pairs) if pairs else None


@dataclass(frozen=True)
class Row:
    """One contestant in one table. Rates in samples/s; None: not measured.

    Args:
        rate, low, high: median, least and most of the first pass.
        of_bare: its rate against the bare generator's, ``ahead``: pydp2's against it; medians of rounds.
        cpu: seconds of processor time of all processes for a million samples, in the first pass.
        others: the share of the machine that processes outside of the run took meanwhile; medians.
        peak: bytes of all processes together, at most.
        failed: how often it did not get through, of ``tries``.
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


@dataclass(frozen=True)
class Table:
    """One workload at one number of workers; rows from the fastest to the slowest, bare first.

    Args:
        best: the fastest peer in the first pass, ``ahead``: pydp2's rate against it.
        cached_ahead: pydp2's cached pass against the best other one.
        first_behind: pydp2's first batch, as a multiple of the quickest peer's.
        strict_of_relaxed: pydp2's rate in strict order against that in relaxed order.
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


def _row(name: str, timed: list[Run], watched: list[Run]) -> Row:
    mine = [run for run in timed if run["contestant"] == name]
    through = [run for run in mine if "passes" in run]
    finished = [run for run in timed if "passes" in run]
    rates = [rate(run) for run in through]
    passes = [run["passes"][0] for run in through]
    peaks = [run["peak"] for run in watched if run["contestant"] == name and "peak" in run]
    return Row(
        contestant=name,
        tries=len(mine),
        failed=len(mine) - len(through),
        rate=_median(rates),
        low=min(rates, default=None),
        high=max(rates, default=None),
        of_bare=ratio(finished, name, LIMIT),
        ahead=ratio(finished, OURS, name),
        steady=_median(p["steady"] for p in passes),
        second=_median(second(run) for run in through),
        first=_median(p["first"] for p in passes),
        cpu=_median(p["cpu"] / p["samples"] * 1e6 for p in passes),
        start=_median(run["start"] for run in through),
        others=_median(p.get("others") for p in passes),
        peak=max(peaks, default=None),
    )


def _most(rows: Sequence[Row], figure: Callable[[Row], float | None]) -> str | None:
    """Whose figure is the greatest."""
    known = [(value, row.contestant) for row in rows if (value := figure(row)) is not None]
    return max(known)[1] if known else None


def _is_peer(row: Row) -> bool:
    return row.contestant != LIMIT and not row.contestant.startswith(OURS)


def _table(workload: str, workers: int, runs: list[Run]) -> Table:
    timed, watched = [run for run in runs if run["round"]], [run for run in runs if not run["round"]]
    finished = [run for run in timed if "passes" in run]
    names = dict.fromkeys(run["contestant"] for run in runs)
    rows = [_row(name, timed, watched) for name in names]
    rows.sort(key=lambda row: (row.contestant != LIMIT, -(row.rate or 0)))
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
        ahead=ratio(finished, OURS, best) if best else None,
        cached_ahead=ratio(finished, OURS_CACHED, cached, second) if cached else None,
        first_behind=ratio(finished, OURS, quickest, lambda run: run["passes"][0]["first"]) if quickest else None,
        strict_of_relaxed=ratio(finished, OURS, f"{OURS} relaxed"),
    )


def tables(runs: Iterable[Run]) -> list[Table]:
    """One for each workload and number of workers, in the order in which they were run."""
    apart: dict[tuple[str, int], list[Run]] = {}
    for run in runs:
        apart.setdefault((run["workload"], run["workers"]), []).append(run)
    return [_table(workload, workers, of) for (workload, workers), of in apart.items()]
