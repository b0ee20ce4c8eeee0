"""``pydp2 stats``: show how a service is doing, without attaching a trainer."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click
from pydp2_cli.output import size_text, stdout_console
from pydp2_cli.stats_line import StatsLine

_WATCH_SECONDS = 1.0


@click.command("stats", short_help="Show how a service is doing.")
@click.argument("address", required=False)
@click.option(
    "--key", type=click.Path(path_type=Path), metavar="DIRECTORY",
    help="Folder with your keys, for an address with ?key=…",
)  # fmt: skip
@click.option("--watch", is_flag=True, help="Show it again every second, until stopped with Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print the statistics as one line of JSON.")
def command(address: str | None, key: Path | None, watch: bool, as_json: bool) -> None:
    """Show how the service at ADDRESS is doing: passes, rates, who waits for whom, and the workers.

    ADDRESS is what the service prints, or the path of its connection file. Without ADDRESS, the file that the
    environment variable PYDP2_CONNECTION names is used. No trainer is attached, and the stream does not change.
    """
    import pydp2

    line = StatsLine()
    while True:
        found = pydp2.stats(address, key=key)
        line.add_stats(found)
        if as_json:
            click.echo(json.dumps(found))
        else:
            _print_stats(line, found)
        if not watch:
            return
        time.sleep(_WATCH_SECONDS)


def _print_stats(line: StatsLine, found: dict[str, Any]) -> None:
    """Print a line about the whole service, and a table of its workers."""
    from rich.table import Table

    click.echo(" · ".join(line.parts()))
    table = Table("worker", "pid", "files", "samples/s", "busy", "idle", "memory", box=None)
    for each in found["workers"]:
        if each["active"]:
            table.add_row(
                str(each["worker"]), str(each["pid"]), str(each["files"]), f"{each['samples_per_second']:,.0f}",
                f"{each['busy_seconds']:.1f} s", f"{each['idle_seconds']:.1f} s", size_text(each["memory"]),
            )  # fmt: skip
    stdout_console().print(table, markup=False)
