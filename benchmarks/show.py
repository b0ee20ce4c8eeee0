"""Show tables of results on a terminal or, as markdown, on a page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.results import OURS, Row, Table

_NONE = "-"
_WIDE = 132  # columns if the output is a file
_WAYS = (" cached", " relaxed", " keys", " workers", " hosts", " 2 row servers", " row server")  # of the same libraries
_OFTEN = 0.5  # share of steps at which a loader must not be ready to be named


def _number(value: float | None, form: str = ",.0f") -> str:
    return _NONE if value is None else format(value, form)


def _significant(value: float | None) -> str:
    return _NONE if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _times(value: float | None) -> str:
    return _NONE if value is None else f"{_significant(value)}x"


def _spread(row: Row) -> float | None:
    """Return the difference of maximum and minimum as a share of the median."""
    if row.rate is None or row.low is None or row.high is None:
        return None
    return (row.high - row.low) / row.rate


COLUMNS: dict[str, Callable[[Row], str]] = {
    "": lambda row: row.contestant,
    "samples/s": lambda row: _number(row.rate),
    "spread": lambda row: _number(_spread(row), ".0%"),
    "others": lambda row: _number(row.others, ".0%"),
    "of bare": lambda row: _number(row.of_bare, ".2f"),
    "pydp2 against it": lambda row: _times(row.ahead),
    "second pass": lambda row: _number(row.second),
    "first batch, s": lambda row: _number(row.first, ".3f"),
    "start, s": lambda row: _number(row.start, ".2f"),
    "CPU s a million": lambda row: _significant(row.cpu),
    "peak MB": lambda row: _NONE if row.peak is None else f"{row.peak / 1e6:,.0f}",
}


CEILING: dict[str, Callable[[Row], str]] = {
    **{name: COLUMNS[name] for name in ("", "samples/s", "spread", "others", "pydp2 against it")},
    "CPU us a sample": COLUMNS["CPU s a million"],
    "server us": lambda row: _significant(row.server),
    "trainer us": lambda row: _significant(row.trainer),
    "carries": lambda row: _number(row.carries),
}


HOSTS: dict[str, Callable[[Row], str]] = {
    **{name: COLUMNS[name] for name in ("", "samples/s", "spread", "others")},
    "of pydp2": lambda row: _times(row.ahead and 1 / row.ahead),
    "server us": CEILING["server us"],
    "of pydp2's": lambda row: _times(row.server_more),
    "thread us": lambda row: _significant(row.server_thread),
    "agent us": lambda row: _significant(row.agent),
    "trainer us": CEILING["trainer us"],
    "carries": lambda row: _number(row.server_carries),
}


def _of_next(name: str, form: str = ",.2f") -> Callable[[Row], str]:
    return lambda row: _number(row.felt and row.felt[name], form)


LATENCY: dict[str, Callable[[Row], str]] = {
    "": COLUMNS[""],
    "p50, ms": _of_next("p50"),
    "p99, ms": _of_next("p99"),
    "max, ms": _of_next("max"),
    "not ready": _of_next("late", ".1%"),
    "steps": _of_next("steps", ",.0f"),
    "others": COLUMNS["others"],
    "CPU s a million": COLUMNS["CPU s a million"],
}


TRAINING: dict[str, Callable[[Row], str]] = {
    "": COLUMNS[""],
    "exposed": _of_next("exposed", ".1%"),
    "a step, ms": _of_next("step"),
    "of the limit": COLUMNS["of bare"],
    "wait p50, ms": _of_next("p50"),
    "wait p99, ms": _of_next("p99"),
    "its work, ms": _of_next("work"),
    "steps": _of_next("steps", ",.0f"),
    "others": COLUMNS["others"],
}


def title(table: Table) -> str:
    return f"{table.workload}, {table.workers} workers (medians of {table.rounds} alternating rounds)"


def sentences(table: Table) -> Iterator[str]:
    """Yield the main results of a table as sentences."""
    yield from _lead(table)
    if table.cached_ahead is not None:
        yield f"cached pass: pydp2 has {_significant(table.cached_ahead)}x the best other one"
    if table.first_behind is not None:
        yield f"first batch: pydp2 takes {table.first_behind:.2f}x the quickest peer's time"
    if table.strict_of_relaxed is not None:
        yield f"strict order has {table.strict_of_relaxed:.2f} of relaxed"
    yield from _failures(table)


def _lead(table: Table) -> Iterator[str]:
    if table.best is not None and table.ahead is not None:
        rows = [row for row in table.rows if row.contestant in (OURS, table.best)]
        noise = max(_spread(row) or 0.0 for row in rows)
        within = ", which is less than the rounds of one of them differ" if abs(table.ahead - 1) < noise else ""
        yield f"best peer: {table.best}; pydp2 has {table.ahead:.2f}x its samples/s{within}"


def _failures(table: Table) -> Iterator[str]:
    for row in table.rows:
        if row.failed:
            yield f"{row.contestant} failed {row.failed} of {row.tries} times"


def sentences_of_ceiling(table: Table) -> Iterator[str]:
    yield from _lead(table)
    yield from _failures(table)


def sentences_of_latency(table: Table) -> Iterator[str]:
    """Yield a sentence about loaders for which the trainer waited so often that the step may have been too short."""
    for row in table.rows:
        if row.felt and row.felt["late"] > _OFTEN:
            share = f"{row.contestant} took more than 1 ms at {row.felt['late']:.0%} of the steps"
            yield f"{share}: take a longer --step; if that changes nothing, next() itself costs as much"
    yield from _failures(table)


@dataclass(frozen=True)
class View:
    """View of the result of a command.

    Args:
        passes: number of the reported pass, from 0.
    """

    columns: dict[str, Callable[[Row], str]]
    sentences: Callable[[Table], Iterator[str]]
    passes: int = 0


VIEWS = {
    "run": View(COLUMNS, sentences),
    "native": View(COLUMNS, sentences, passes=1),
    "ceiling": View(CEILING, sentences_of_ceiling, passes=1),
    "latency": View(LATENCY, sentences_of_latency),
    "hosts": View(HOSTS, _failures, passes=1),
    "training": View(TRAINING, _failures),
}


def on_terminal(tables: list[Table], view: View = VIEWS["run"]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table as Drawn

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _WIDE
    for table in tables:
        drawn = Drawn(title=title(table), box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
        for number, name in enumerate(view.columns):
            drawn.add_column(name, justify="right" if number else "left", no_wrap=not number)
        for row in table.rows:
            style = "bold" if row.contestant == "pydp2" else "dim" if row.contestant == "bare" else None
            drawn.add_row(*(cell(row) for cell in view.columns.values()), style=style)
        console.print(drawn)
        for sentence in view.sentences(table):
            console.print(f"  {sentence}")
        console.print()


def markdown(tables: list[Table], view: View = VIEWS["run"]) -> str:
    """Return the tables as markdown."""
    lines: list[str] = []
    for table in tables:
        lines += [f"**{title(table)}**", "", f"| {' | '.join(view.columns)} |", "|---" * len(view.columns) + "|"]
        lines += [f"| {' | '.join(cell(row) for cell in view.columns.values())} |" for row in table.rows]
        lines += ["", *(f"- {sentence}" for sentence in view.sentences(table)), ""]
    return "\n".join(lines)


def versions(result: dict[str, Any]) -> list[str]:
    """Return one line for each contestant whose libraries no earlier line has."""
    lines: dict[str, None] = {}
    for name, libraries in result["versions"].items():
        for way in _WAYS:
            name = name.removesuffix(way)
        lines[f"{name}: " + ", ".join(f"{library} {version}" for library, version in libraries.items())] = None
    return list(lines)
