"""``pydp2 worker``: run workers on this machine for a service on another host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from pydp2_cli.options import log_format
from pydp2_cli.signals import signals_call


@click.command("worker", params=[log_format()], short_help="Run workers for a service on another host.")
@click.option(
    "--connect",
    "address",
    metavar="ADDRESS",
    help="Connection file of the service, or its address for workers; default: the file that PYDP2_CONNECTION names.",
)
@click.option(
    "--key",
    type=click.Path(path_type=Path),
    metavar="DIRECTORY",
    help="Folder with the keys of this host, for an address with ?key=…",
)
@click.option("--workers", type=click.IntRange(1, 1024), help="Number of worker processes; default: one per core.")
@click.option(
    "--root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIRECTORY",
    help="Working directory of the workers, where the provider is looked up first; default: the present one.",
)
@click.option("--name", help="Name of this host in the statistics of the service; default: its host name.")
@click.option(
    "--map",
    "maps",
    multiple=True,
    metavar="OLD=NEW",
    help="Entries of the list that begin with folder OLD begin with NEW here. Can be given several times.",
)
@click.option(
    "--patience",
    type=click.FloatRange(0),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="End after so many seconds without a service.",
)
@click.option(
    "--compress",
    type=click.Choice(["zstd"]),
    help="Compress what the workers send, for a slow network; default: none. Needs pip install 'zstandard>=0.23'.",
)
@click.option(
    "--row_server",
    metavar="ADDRESS",
    help="Keep rows on this host, where trainers fetch them, as in tcp://10.0.0.7:*; default: rows go through the "
    "service.",
)
@click.option(
    "--remote_cache",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIRECTORY",
    help="Directory of the copies of remote files on this host; default: as of `pydp2 serve`.",
)
@click.option(
    "--remote_cache_size",
    metavar="BYTES",
    help="Most bytes of these copies, as in 200GiB; default: half of the free space there.",
)
def command(address: str | None, maps: tuple[str, ...], **options: Any) -> None:
    """Run workers on this machine for a service on another host, until that service ends.

    The service needs keys: `pydp2 serve LIST --provider ADDRESS --connection run.json` writes the file that this
    command takes. The provider must be importable here, and its code the same as that of the service. Ctrl-C or
    SIGTERM lets the workers end the files that they read; a second one ends them at once.

    \b
    pydp2 worker --connect run.json
    pydp2 worker --connect run.json --workers 8 --map /data=/mnt/data
    pydp2 worker --connect run.json --row_server tcp://10.0.0.7:*
    """
    import pydp2
    from pydp2.system.log_events import LogEvent
    from pydp2.system.log_writer import write_event

    renamed = dict(_parse_map(text) for text in maps)
    host = pydp2.WorkerHost(address, maps=renamed, **options)
    with signals_call(host.leave):
        write_event(f"this host ends: {host.run()}", LogEvent.HOST_ENDS)


def _parse_map(text: str) -> tuple[str, str]:
    old, mark, new = text.partition("=")
    if not (old and mark and new):
        raise click.BadParameter(f"it must be OLD=NEW, two folders, as in /data=/mnt/data, got {text!r:.200}")
    return old, new
