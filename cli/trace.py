"""``pydp2 trace``: record what the processes of a running service do, and when."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from pydp2_cli.options import require_folder, service_address
from pydp2_cli.output import count_text, stdout_console

_LETTERS = {
    "generator": ("g", "green"),
    "check and pack": ("p", "yellow"),
    "send": ("s", "cyan"),
    "idle": ("·", "dim"),
    "receive chunks": ("r", "cyan"),
    "merge and cut": ("m", "magenta"),
    "send batches": ("b", "blue"),
    "other": ("o", "dim"),
    "wait": ("w", "red"),
    "step": ("t", "green"),
    "no report": ("?", "dim"),
}
"""Letter and colour of the spans of a process."""
_GAP = (" ", "default")
_LEAST_COLUMNS, _MOST_COLUMNS = 10, 200
_LEAST_SHARE = 0.005


@click.command("trace", params=service_address(), short_help="Record what a service does, for Perfetto.")
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--seconds",
    type=click.FloatRange(0.001, 300),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="Length of the trace.",
)
@click.option(
    "--picture",
    is_flag=True,
    help="Draw the trace on the terminal, with a line and a letter for what each process does; also without FILE.",
)
def command(address: str | None, key: Path | None, file: Path | None, seconds: float, picture: bool) -> None:
    """Record for some seconds what the workers, the server and the trainers of the service at ADDRESS do, and write it
    to FILE in Chrome's trace format. Open FILE with ui.perfetto.dev or chrome://tracing.

    ADDRESS is what the service prints, or the path of its connection file. The stream does not change; what is recorded
    has the names of files, and no data.

    \b
    pydp2 trace run.json out.json
    pydp2 trace run.json --seconds 2 --picture
    """
    import pydp2

    if not math.isfinite(seconds):
        raise click.BadParameter(f"need a number of seconds up to 300, have {seconds}", param_hint="'--seconds'")
    if file is not None:
        require_folder(file, "'FILE'")
    traced = pydp2.trace(address, seconds=seconds, key=key)
    if file is not None:
        try:
            file.write_text(json.dumps(traced))
        except OSError as error:
            raise click.ClickException(f"{file} cannot be written: {error.strerror or error}") from None
        spans = sum(event["ph"] == "X" for event in traced["traceEvents"])
        click.echo(f"trace: {file} ({count_text(spans, 'span')}); open it with ui.perfetto.dev", err=True)
    if lost := traced["otherData"]["lost_spans"]:
        click.echo(f"{count_text(lost, 'span')} had no room; make the trace shorter", err=True)
    if picture or file is None:
        _draw(traced, shares(traced))


def _draw(traced: Mapping[str, Any], parts: Mapping[str, Mapping[str, float]]) -> None:
    """Draw a line for each process: what it did most in each of the equal parts of the time."""
    from rich.text import Text

    console = stdout_console()
    columns = min(max(console.width - 1, _LEAST_COLUMNS), _MOST_COLUMNS)
    for name, line in _lines(traced, columns).items():
        done = ", ".join(f"{what} {share:.0%}" for what, share in parts[name].items() if share >= _LEAST_SHARE)
        console.print(Text.assemble((name, "bold"), f": {done or 'nothing'}"))
        console.print(Text.assemble(*(_LETTERS.get(what, _GAP) for what in line)), no_wrap=True, crop=True)
    shown = {what for line in _lines(traced, columns).values() for what in line if what}
    legend = "  ".join(f"{_LETTERS[what][0]} {what}" for what in _LETTERS if what in shown)
    console.print(f"{traced['otherData']['seconds']:g} s from left to right; {legend}")


def _lines(traced: Mapping[str, Any], columns: int) -> dict[str, list[str]]:
    """Return for each process what it did most in each of ``columns`` parts of the time; "": nothing."""
    width = 1e6 * traced["otherData"]["seconds"] / columns
    names = {e["pid"]: e["args"]["name"] for e in traced["traceEvents"] if e["name"] == "process_name"}
    found: dict[str, list[dict[str, float]]] = {name: [{} for _ in range(columns)] for name in names.values()}
    for event in traced["traceEvents"]:
        if event["ph"] == "X" and not event["tid"] and event["name"] in _LETTERS:
            cells, begin, end = found[names[event["pid"]]], event["ts"], event["ts"] + event["dur"]
            for number in range(int(begin / width), min(int(end / width) + 1, columns)):
                shared = min(end, (number + 1) * width) - max(begin, number * width)
                cells[number][event["name"]] = cells[number].get(event["name"], 0.0) + shared
    return {name: [_most(cell, width) for cell in cells] for name, cells in found.items()}


def _most(cell: Mapping[str, float], width: float) -> str:
    """Return what took most of the time of ``cell``; "" if most of it was nothing."""
    name = max(cell, key=lambda each: cell[each], default="")
    return name if name and cell[name] >= width - sum(cell.values()) else ""


def shares(traced: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return for each process of a trace, by name, the share of the time of each name of its first thread. A span that
    lies in another one counts for the outer one."""
    names = {e["pid"]: e["args"]["name"] for e in traced["traceEvents"] if e["name"] == "process_name"}
    length = 1e6 * traced["otherData"]["seconds"]
    found = {name: defaultdict[str, float](float) for name in names.values()}
    for event in traced["traceEvents"]:
        if event["ph"] == "X" and not event["tid"] and event["name"] != "gather":
            found[names[event["pid"]]][event["name"]] += event["dur"] / length
    return {name: dict(sorted(parts.items(), key=lambda part: -part[1])) for name, parts in found.items()}
