"""``pydp2 cache ls | verify | clear``: list, verify or clear a cache on disk."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
from pydp2_cli.output import count_text, size_text, stdout_console

if TYPE_CHECKING:
    from pydp2 import CacheFolder

REMOTE_FILE = "(remote file)"  # provider of the copy of a remote file
_UNITS = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


class _Age(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.5 on only
    """``30m``, ``12h``, ``7d`` or ``2w``, as seconds."""

    name = "age"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number, unit = str(value)[:-1], str(value)[-1:]
        if unit not in _UNITS or not number.isascii() or not number.isdigit():
            self.fail(f"must be an age like 30m, 12h, 7d or 2w, got {value!r}", param, ctx)
        return float(int(number) * _UNITS[unit])


def _cache_dir_option(function: Callable[..., None]) -> Callable[..., None]:
    return click.option(
        "--cache_dir", metavar="DIRECTORY", help="Cache to use; default: $XDG_CACHE_HOME/pydp2 or ~/.cache/pydp2."
    )(function)


def _open_folder(cache_dir: str | None) -> CacheFolder:
    import pydp2

    return pydp2.CacheFolder(cache_dir)


@click.group("cache")
def command() -> None:
    """List, verify or clear the cache on disk.

    Providers with cache=CacheType.CACHE_PASS_ON_DISK fill it. Services also remember there how many samples each file
    has; such counts are shown as one entry for each provider. Copies of remote files are in the folder remote below, or
    in one of their own, which --cache_dir may name. Services may run meanwhile: a service keeps the entries that it is
    reading, even if they are removed.
    """


@command.command("ls", short_help="List the entries.")
@_cache_dir_option
def ls(cache_dir: str | None) -> None:
    """List the entries: provider, entry of the file list, samples, size, and when it was last used."""
    from rich.table import Table

    folder = _open_folder(cache_dir)
    entries = [*folder.entries(), *folder.counts(), *folder.copies()]
    table = Table("provider", "entry of the list", "samples", "size", "used", box=None)
    for entry in entries:
        file = entry.file or f"(counts of {count_text(entry.files, 'file')})"
        samples = str(entry.samples) if entry.provider != REMOTE_FILE else ""
        what = [entry.provider, file, samples] if not entry.damaged else ["damaged", entry.damaged, ""]
        table.add_row(*what, size_text(entry.size), _age_text(entry.used))
    if entries:
        stdout_console().print(table, markup=False)
    click.echo(
        f"{folder.path}: {_entries_text(len(entries))}, {size_text(sum(entry.size for entry in entries))}", err=True
    )


@command.command("verify", short_help="Compare checksums, print damaged entries.")
@_cache_dir_option
@click.pass_context
def verify(ctx: click.Context, cache_dir: str | None) -> None:
    """Compare all checksums and print the damaged entries. The exit code is 1 if there are any.

    Services also compare them before they use an entry, and read the files of damaged entries again.
    """
    folder = _open_folder(cache_dir)
    entries = [*folder.entries(verify=True), *folder.counts(), *folder.copies(verify=True)]
    damaged = [entry for entry in entries if entry.damaged]
    for entry in damaged:
        click.echo(f"{entry.path}: {entry.damaged}")
    click.echo(f"{folder.path}: {_entries_text(len(entries))}, {len(damaged)} damaged", err=True)
    if damaged:
        ctx.exit(1)


@command.command("clear", short_help="Remove all entries, or unused ones.")
@_cache_dir_option
@click.option(
    "--older_than",
    type=_Age(),
    metavar="AGE",
    help="Remove only entries that were not used for so long, such as 30m, 12h, 7d or 2w.",
)
@click.pass_context
def clear(ctx: click.Context, cache_dir: str | None, older_than: float | None) -> None:
    """Remove all entries, or with --older_than only those that were not used for that time. Unfinished files of
    services that were killed are always removed."""
    folder = _open_folder(cache_dir)
    latest = None if older_than is None else time.time() - older_than
    found = [*folder.entries(), *folder.counts(), *folder.copies()]
    entries = [entry for entry in found if latest is None or entry.used <= latest]
    removed = [entry for entry in entries if folder.remove(entry)]
    leftovers, leftover_bytes = folder.remove_leftovers()
    what = _entries_text(len(removed)) + (f" and {count_text(leftovers, 'unfinished file')}" if leftovers else "")
    removed_size = size_text(leftover_bytes + sum(entry.size for entry in removed))
    click.echo(f"{folder.path}: {what} removed, {removed_size}", err=True)
    if len(removed) < len(entries):
        click.echo(f"Error: {_entries_text(len(entries) - len(removed))} could not be removed", err=True)
        ctx.exit(1)


def _entries_text(number: int) -> str:
    text: str = count_text(number, "entry", "entries")
    return text


def _age_text(when: float) -> str:
    seconds = max(0.0, time.time() - when)
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f}{unit} ago"
    return f"{seconds:.0f}s ago"
