"""``pydp2 stats``: show how a service is doing, without attaching a trainer."""

from __future__ import annotations

import contextlib
import json
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from pydp2_cli import picture
from pydp2_cli.options import service_address
from pydp2_cli.output import count_text, size_text, stdout_console
from pydp2_cli.stats_line import StatsLine

_WATCH_SECONDS = 1.0
_SHOWN_REFUSALS = 20


@click.command("stats", params=service_address(), short_help="Show how a service is doing.")
@click.option(
    "--watch",
    is_flag=True,
    help="Show it again every second, until stopped with Ctrl-C; on a terminal, it fills the screen.",
)
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
    looks = list[picture.Look]()
    try:
        with contextlib.nullcontext(_print_json) if as_json else _report(address, key, fills=limit > 0) as draw:
            began, watched = time.monotonic(), not as_json
            while True:
                try:
                    found = pydp2.stats(address, key=key)
                except pydp2.errors.OptionError as error:
                    if not watched:
                        raise
                    text = f"the service has ended, and took its connection file along: {error}"
                    raise pydp2.errors.ServiceUnreachable(text) from None
                watched = True
                passed = time.monotonic() - began
                if plot is not None:
                    looks.append(picture.Look.of(passed, found))
                draw(found)
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


def _print_json(found: dict[str, Any]) -> None:
    click.echo(json.dumps(found))


def _report(address: str | None, key: Path | None, *, fills: bool) -> _Report:
    """Return the report of a service, after a first look: who waits for whom takes two. ``fills``: it fills the
    screen, if there is one."""
    import pydp2

    first = pydp2.stats(address, key=key)
    time.sleep(_WATCH_SECONDS)
    return _Screen(first) if fills and sys.stdout.isatty() else _Report(first)


class _Report:
    """Report of a service, which is printed below what was printed before; a context manager. ``first``: a look before
    those that are shown."""

    def __init__(self, first: dict[str, Any]) -> None:
        self._line = StatsLine()
        from pydp2.page.view import Looks

        self._looks = Looks()
        self._add(first)

    def __enter__(self) -> _Report:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave what was printed."""

    def _add(self, found: dict[str, Any]) -> tuple[str, str]:
        """Add a look at the service. Return the sentence about the trainers, and what follows of it."""
        from pydp2.page.view import first_line, view_of

        self._line.add_stats(found)
        return first_line(view_of(self._looks.add(found), found))

    def __call__(self, found: dict[str, Any]) -> None:
        """Print who waits for whom, a line about the whole service, and tables of its workers and of other hosts."""
        click.echo(" ".join(filter(None, self._add(found))))
        click.echo(" · ".join(self._line.parts()))
        for part in _parts(found):
            if isinstance(part, str):
                click.echo(part)
            else:
                stdout_console().print(part, markup=False)


class _Screen(_Report):
    """Report that fills the screen."""

    def __init__(self, first: dict[str, Any]) -> None:
        from rich.live import Live

        super().__init__(first)
        self._last = ""
        self._live = Live(console=stdout_console(), screen=True, auto_refresh=False)

    def __enter__(self) -> _Screen:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
        click.echo(self._last)  # the screen is as it was before

    def __call__(self, found: dict[str, Any]) -> None:
        """Draw the screen anew."""
        from rich.console import Group
        from rich.text import Text

        headline, rest = self._add(found)
        self._last = f"{headline} {rest}".rstrip()
        parts = [part if not isinstance(part, str) else Text(part) for part in (_rank_table(found), *_parts(found))]
        above = [Text(headline, style="bold"), Text(rest), Text(" · ".join(self._line.parts()), style="dim")]
        self._live.update(Group(*above, *parts), refresh=True)


def _rank_table(found: dict[str, Any]) -> Any:
    """Return a table of the ranks of all jobs."""
    from rich.table import Table

    ranks = Table("job", "rank", "state", "waits", "p50 / p99", "step", "batches ahead", "process", box=None)
    for job, figures in found["jobs"].items():
        for rank in figures["ranks"]:
            ranks.add_row(
                job,
                str(rank["rank"]),
                rank["state"] if rank["connected"] else "gone",
                f"{rank['exposed']:.0%}",
                f"{rank['exposed_p50']:.0%} / {rank['exposed_p99']:.0%}",
                f"{1000 * rank['step_seconds']:.3g} ms",
                str(rank["batches_ahead"]),
                rank["process"],
            )
    return ranks


def _parts(found: dict[str, Any]) -> Iterator[Any]:
    """Yield tables of workers, other hosts and refused peers, and texts between them."""
    from rich.table import Table

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
    yield workers
    advice = found["scaling"]
    if advice["wanted"] != advice["workers"]:
        yield f"wanted: {count_text(advice['wanted'], 'worker')} ({advice['reason']})"
    if names:
        yield _host_table(found["hosts"])
    if found["refused"]:
        yield _refused_table(found["refused"])
        if len(found["refused"]) > _SHOWN_REFUSALS:
            yield f"{len(found['refused']) - _SHOWN_REFUSALS} more addresses and reasons: pydp2 stats --json"


def _received_text(host: dict[str, Any]) -> str:
    """Return text with the number of bytes received from ``host``, and if it compresses, with that before
    compression."""
    came, inflated = size_text(host["received_bytes"]), size_text(host["inflated_bytes"])
    return came if host["received_bytes"] == host["inflated_bytes"] else f"{came} ({inflated} inflated)"


def _host_table(found: list[dict[str, Any]]) -> Any:
    """Return a table of the hosts that run workers of the service."""
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
    return hosts


def _refused_table(found: list[dict[str, Any]]) -> Any:
    """Return a table of the peers that the service did not let in, the latest first."""
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
    return refused
