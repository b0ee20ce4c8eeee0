"""``pydp2 stats``: show how a service is doing, without attaching a trainer."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import click
from pydp2_cli import picture
from pydp2_cli.output import count_text, size_text, stdout_console
from pydp2_cli.stats_line import StatsLine

_WATCH_SECONDS = 1.0
_SHOWN_REFUSALS = 20


@click.command("stats", short_help="Show how a service is doing.")
@click.argument("address", required=False)
@click.option(
    "--key",
    type=click.Path(path_type=Path),
    metavar="DIRECTORY",
    help="Folder with your keys, for an address with ?key=…",
)
@click.option("--watch", is_flag=True, help="Show it again every second, until stopped with Ctrl-C.")
@click.option(
    "--seconds",
    type=click.FloatRange(0.1),
    metavar="SECONDS",
    help="Watch for so long, then stop.",
)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Save a picture of what was watched: samples/s, waits, pool and memory, a line for each job. Needs matplotlib "
    "(the extra plot), and --watch or --seconds.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the statistics as one line of JSON.")
def command(
    address: str | None, key: Path | None, watch: bool, seconds: float | None, plot: Path | None, as_json: bool
) -> None:
    """Show how the service at ADDRESS is doing: passes, rates, who waits for whom, and the workers.

    ADDRESS is what the service prints, or the path of its connection file. Without ADDRESS, the file that the
    environment variable PYDP2_CONNECTION names is used. No trainer is attached, and the stream does not change.

    \b
    pydp2 stats run.json --watch
    pydp2 stats run.json --seconds 60 --plot run.png
    """
    import pydp2

    if seconds is not None and not math.isfinite(seconds):
        raise click.BadParameter(
            f"need a number of seconds from 0.1, have {seconds}; --watch goes on until it is stopped",
            param_hint="'--seconds'",
        )
    if plot is not None:
        if not watch and seconds is None:
            raise click.UsageError("--plot needs --watch or --seconds")
        picture.check_plot("--plot", plot)
    limit = seconds if seconds is not None else math.inf if watch else 0.0
    line, looks, began, watched = StatsLine(), list[picture.Look](), time.monotonic(), False
    try:
        while True:
            try:
                found = pydp2.stats(address, key=key)
            except pydp2.errors.OptionError as error:
                if not watched:
                    raise
                text = f"the service has ended, and took its connection file along: {error}"
                raise pydp2.errors.ServiceUnreachable(text) from None
            watched = True
            line.add_stats(found)
            passed = time.monotonic() - began
            if plot is not None:
                looks.append(picture.Look.of(passed, found))
            if as_json:
                click.echo(json.dumps(found))
            else:
                _print_stats(line, found)
            if passed >= limit:
                return
            time.sleep(min(_WATCH_SECONDS, limit - passed))
    finally:  # also if the user stops the command, or the service ends
        if plot is not None:
            _save_plot(plot, looks)


def _save_plot(file: Path, looks: list[picture.Look]) -> None:
    if len(looks) < 2:
        click.echo(f"no picture: the service was seen {count_text(len(looks), 'time')}, and two are needed", err=True)
        return
    picture.draw_stats(file, looks)
    click.echo(f"picture: {file}", err=True)


def _print_stats(line: StatsLine, found: dict[str, Any]) -> None:
    """Print a line about the whole service, and tables of its workers and of other hosts."""
    from rich.table import Table

    click.echo(" · ".join(line.parts()))
    names = {host["number"]: host["host"] for host in found["hosts"]}
    workers = Table("worker", "pid", "files", "samples/s", "busy", "idle", "memory", box=None)
    if names:
        workers.add_column("host")
    for worker in found["workers"]:
        if worker["active"]:
            row = [
                str(worker["worker"]),
                str(worker["pid"]),
                str(worker["files"]),
                f"{worker['samples_per_second']:,.0f}",
                f"{worker['busy_seconds']:.1f} s",
                f"{worker['idle_seconds']:.1f} s",
                "" if worker["host"] else size_text(worker["memory"]),
            ]
            workers.add_row(*row, *([names.get(worker["host"], "this one")] if names else []))
    stdout_console().print(workers, markup=False)
    advice = found["scaling"]
    if advice["wanted"] != advice["workers"]:
        click.echo(f"wanted: {count_text(advice['wanted'], 'worker')} ({advice['reason']})")
    if names:
        _print_hosts(found["hosts"])
    if found["refused"]:
        _print_refused(found["refused"])


def _received_text(host: dict[str, Any]) -> str:
    """Return text with the number of bytes received from ``host``, and if it compresses, with that before
    compression."""
    came, inflated = size_text(host["received_bytes"]), size_text(host["inflated_bytes"])
    return came if host["received_bytes"] == host["inflated_bytes"] else f"{came} ({inflated} inflated)"


def _print_hosts(found: list[dict[str, Any]]) -> None:
    """Print a table of the hosts that run workers of the service."""
    from rich.table import Table

    hosts = Table(
        "host", "state", "workers", "received", "waiting there", "rows there", "round trip", "memory", box=None
    )
    for host in found:
        hosts.add_row(
            host["host"],
            host["state"],
            str(host["places"]),
            _received_text(host),
            size_text(host.get("waiting_bytes", 0)),
            f"{host['rows_kept']:,}",
            f"{host.get('round_trip_ms', 0.0):.1f} ms",
            size_text(host.get("memory", 0)),
        )
    stdout_console().print(hosts, markup=False)


def _print_refused(found: list[dict[str, Any]]) -> None:
    """Print a table of the peers that the service did not let in, the latest first."""
    from rich.table import Table

    refused = Table("refused", "from", "why", "times", "last", box=None)
    for refusal in found[:_SHOWN_REFUSALS]:
        refused.add_row(
            f"port for {refusal['port']}",
            refusal["address"],
            refusal["reason"],
            f"{refusal['count']:,}",
            f"{refusal['seconds_ago']:.0f} s ago",
        )
    stdout_console().print(refused, markup=False)
    if len(found) > _SHOWN_REFUSALS:
        click.echo(f"{len(found) - _SHOWN_REFUSALS} more addresses and reasons: pydp2 stats --json")
