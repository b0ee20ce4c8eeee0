"""``pydp2 count``: count the samples of a list ahead, so that services know how many batches a pass has."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click
from pydp2_cli.options import SourceArguments, SourceCommand
from pydp2_cli.output import can_redraw, count_text, stderr_console, stdout_console

if TYPE_CHECKING:
    from rich.console import Console

    from pydp2 import ListCount

_MAX_SHOWN_FILES = 20  # files that are shown one by one
_OPTIONS = [
    "workers",
    "start",
    "memory_limit",
    "worker_memory",
    "sample_timeout",
    "on_error",
    "error_budget",
    "quarantine",
    "block_list",
    "cache_dir",
    "cache_size",
    "remember_counts",
    "input_order",
]


@click.command(
    "count",
    cls=SourceCommand,
    tables={"service": _OPTIONS, "job": ["batch_size", "last_batch"]},
    short_help="Count the samples of a list ahead.",
)
@click.option("--again", is_flag=True, help="Count files again that are counted already.")
@click.option(
    "--world_size",
    metavar="NUMBER",
    type=click.IntRange(min=1),
    default=1,
    help="Ranks that share the batches of a pass; default: 1.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the counts as JSON, with all files.")
@click.pass_context
def command(ctx: click.Context, source_args: SourceArguments, again: bool, world_size: int, as_json: bool) -> None:
    """Read the files of LIST to their ends in parallel, and remember in the cache directory how many samples each has.

    Services with the same provider, arguments and --cache_dir then know len(client) from the start. Files that are
    counted already, and have not changed since, are not read. The exit code is 1 if a file cannot be read or its count
    cannot be remembered; what was counted before is kept. With --batch_size, or with one in the configuration, the
    number of batches of a pass is printed too.

    \b
    pydp2 count train.list --provider my_provider.process
    pydp2 count train.list --provider my_provider.process --batch_size 128
    pydp2 count --config configs/digits.toml --workers 8 --json
    """
    import pydp2

    if world_size > 1 and "batch_size" not in source_args.job:
        raise click.UsageError("--world_size shares out batches, and their size is not known; add --batch_size", ctx)
    options = {name: value for name, value in source_args.service.items() if name in _OPTIONS}
    with _progress_bar(stderr_console()) as progress:
        counted = pydp2.count(**source_args.source, **options, again=again, progress=progress)
    batches = _batches(counted, source_args.job, world_size)
    if as_json:
        numbers = {"batches": batches} if isinstance(batches, list) else {}
        click.echo(json.dumps(counted.plain_data() | numbers, indent=2))
    else:
        _show(stdout_console(), counted)
        _show_batches(stdout_console(), batches, source_args.job)
    if counted.missing:
        click.echo(
            f"Error: {count_text(len(counted.missing), 'file')} changed while they were read, or cannot be remembered; "
            f"run this again; the first one: {counted.missing[0]}",
            err=True,
        )
        ctx.exit(1)


@contextlib.contextmanager
def _progress_bar(console: Console) -> Iterator[Callable[[int, int, int], None]]:
    """Show the progress inside the context, on a terminal that can redraw lines."""
    if not can_redraw(console):
        yield lambda counted, files, samples: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("files"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[samples]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("files", total=None, samples="")

        def show(counted: int, files: int, samples: int) -> None:
            bar.update(task, completed=counted, total=files, samples=count_text(samples, "sample"))

        yield show


def _batches(counted: ListCount, job: dict[str, Any], world_size: int) -> list[int] | str:
    """Return the number of batches of each rank, or a text that says why it is not known; "" without a batch size, and
    if files are missing, which another message says."""
    if counted.missing:
        return ""
    try:
        batches = [
            counted.batches(rank=rank, world_size=world_size, **{"batch_size": 1} | job) for rank in range(world_size)
        ]
    except TypeError as error:
        return str(error)
    return batches if "batch_size" in job else ""


def _show_batches(console: Console, batches: list[int] | str, job: dict[str, Any]) -> None:
    if isinstance(batches, str):
        console.print(batches, style="dim", soft_wrap=True, end="\n" if batches else "")
        return
    what = ", ".join(f"{name}={job[name]}" for name in ("batch_size", "last_batch") if name in job)
    text = f"{count_text(sum(batches), 'batch', 'batches')} in a pass ({what})"
    if len(batches) > 1:
        few = "" if min(batches) == max(batches) else f"{min(batches):,} or "
        text += f"; each of {len(batches):,} ranks gets {few}{max(batches):,}"
    console.print(text, style="bold", soft_wrap=True)


def _show(console: Console, counted: ListCount) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table("file", box=None, pad_edge=False, header_style="bold")
    for name in ("samples", "dropped", *(() if counted.plain else ("weight",))):
        table.add_column(name, justify="right")
    table.add_column("")
    shown = counted.files if len(counted.files) <= _MAX_SHOWN_FILES else counted.files[:_MAX_SHOWN_FILES]
    for file in shown:
        table.add_row(escape(file.file), *_numbers(file, counted), "ended early" if file.early else "")
    if rest := len(counted.files) - len(shown):
        table.add_row(f"… {count_text(rest, 'more file')}: --json has them", style="dim")
    console.print(table)
    known = len(counted.files) - len(counted.missing)
    read = f"{count_text(counted.read, 'file')} read, {count_text(known, 'file')} counted"
    console.print(f"{count_text(counted.samples, 'sample')} ({read})", style="bold", soft_wrap=True)


def _numbers(file: Any, counted: ListCount) -> list[str]:
    if file.samples is None:
        return ["-"] * (2 if counted.plain else 3)
    weight = [] if counted.plain else [f"{file.weight:,}"]
    return [f"{file.samples:,}", f"{file.dropped:,}" if file.dropped else "-", *weight]
