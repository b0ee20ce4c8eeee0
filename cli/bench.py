"""``pydp2 bench``: what is slow between files and trainer, in a table and one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from pydp2_cli import picture
from pydp2_cli.options import SourceArguments, SourceCommand
from pydp2_cli.output import count_text, stderr_console, stdout_console, user_output_to_stderr

if TYPE_CHECKING:
    from rich.console import Console

_SECONDS = 15.0
_CROWDED = 0.25


@click.command(
    "bench",
    cls=SourceCommand,
    tables={
        "service": ["workers", "start", "memory_limit", "input_order"],
        "job": ["batch_size", "shuffle", "interleave", "pool_bytes", "prefetch", "prefetch_bytes"],
    },
    short_help="Measure which stage is slow, and advise what to change.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(1),
    default=_SECONDS,
    metavar="SECONDS",
    help=f"Time for all measurements together; default: {_SECONDS:g}.",
)
@click.option(
    "--step_ms",
    type=click.FloatRange(0.001),
    metavar="NUMBER",
    help="Milliseconds that a training step takes; with it, bench says whether the trainer would wait for data, and "
    "how many workers would keep up.",
)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Save a picture of the rates and of where the time of a sample goes; needs matplotlib (the extra plot).",
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def command(
    source_args: SourceArguments, seconds: float, step_ms: float | None, plot: Path | None, as_json: bool
) -> None:
    """Measure the samples per second of LIST, stage by stage; name the bottleneck and what to change.

    It first measures process() alone, in as many processes as there would be workers. Then it adds checks and packing,
    transport, order and pool, and a trainer whose step takes --step_ms. It reads only as much of large data as fits
    into the time, and reads small data repeatedly.

    \b
    pydp2 bench train.list --provider my_provider.process --step_ms 2
    pydp2 bench --config configs/digits.toml --workers 4 --json
    """
    import pydp2

    if plot is not None:
        picture.check_plot("--plot", plot)
    console = stderr_console()

    def progress(text: str) -> None:
        console.print(f"measuring {text} …", style="dim", soft_wrap=True)

    with user_output_to_stderr(as_json):
        seen = pydp2.bench(
            **source_args.source,
            **source_args.service,
            **source_args.job,
            seconds=seconds,
            step_ms=step_ms,
            progress=progress,
        )
    if as_json:
        click.echo(json.dumps(seen.plain(), indent=2))
    else:
        _show(stdout_console(), seen)
    if plot is not None:
        picture.draw_bench(plot, seen.plain())
        click.echo(f"picture: {plot}", err=True)


def _show(console: Console, seen: Any) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("stage")
    table.add_column("samples/s", justify="right")
    table.add_column("of the time", justify="right")
    table.add_column("")
    for stage in seen.stages:
        share = "" if stage.share is None else f"{stage.share:.0%}"
        table.add_row(escape(stage.name), f"{stage.rate:,.0f}" if stage.rate else "-", share, escape(stage.note))
    console.print(table)
    many = f"{count_text(seen.workers, 'worker')}, {count_text(seen.cores, 'core')}"
    first = "none came"
    if seen.first_batch is not None:
        first = f"after {seen.first_batch:.2f} s, {seen.launched:.2f} s with the start of the service"
    console.print(f"{many}, batches of {seen.batch_size}; first batch: {first}", style="dim", soft_wrap=True)
    if seen.crowded > _CROWDED and seen.workers <= seen.cores:
        console.print(
            f"other processes had the cores for {seen.crowded:.0%} of the time: look again when the machine is quieter",
            style="yellow",
            soft_wrap=True,
        )
    sentence = seen.advice.sentence
    console.print(f"{escape(sentence[0].upper() + sentence[1:])}.", style="bold", soft_wrap=True)
