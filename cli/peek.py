"""``pydp2 peek``: show the first samples of a list, and a first batch."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from pydp2_cli.options import SourceArguments, SourceCommand
from pydp2_cli.output import count_text, stdout_console, user_output_to_stderr

if TYPE_CHECKING:
    from rich.console import Console

    from pydp2 import Batch

_BATCH = 8
_OF_PASSES = ("workers", "seed", "shuffle", "interleave", "order", "pool_bytes")
_SHADES = " ░▒▓█"  # of a cell with nothing, to one with twice what a full shuffle has
_PICTURE = 64  # columns of the picture of a shuffle
_POOR = 0.5  # quality below which the command says what helps
_ENTRIES = 8  # entries that are shown of an array or a list


@click.command(
    "peek",
    cls=SourceCommand,
    tables={
        "service": ["input_order", "workers"],
        "job": ["batch_size", "seed", "shuffle", "interleave", "order", "pool_bytes"],
    },
    short_help="Show the first samples and a first batch, or how well a pass is shuffled.",
)
@click.option(
    "--shuffle-quality",
    is_flag=True,
    help="Read a whole pass in place of the first samples, and show how well it is shuffled.",
)
@click.option(
    "--samples", type=click.IntRange(0), default=3, metavar="NUMBER", help="Number of samples to show; default: 3."
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print samples and batch as JSON, samples in full; numbers that JSON lacks are the texts nan, inf and -inf.",
)
def command(source_args: SourceArguments, shuffle_quality: bool, samples: int, as_json: bool) -> None:
    """Show the first samples of LIST as the provider yields them, and the first batch, without shuffling.

    It runs the provider in this process, without a service, and reads only as much as it needs. The batch has 8
    samples if neither --batch_size nor the --config file says otherwise.

    With --shuffle-quality it runs a service for one pass, with the options of a training (--seed, --interleave, …).

    \b
    pydp2 peek train.list --provider my_provider.process
    pydp2 peek --config configs/nested.toml --samples 1 --batch_size 256
    """
    import pydp2

    if shuffle_quality:
        _peek_at_shuffle(source_args, as_json)
        return
    context = click.get_current_context()
    if given := [name for name in _OF_PASSES if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]:
        raise click.UsageError(f"--{given[0]} is for --shuffle-quality: the first samples come as they are in the list")
    with user_output_to_stderr(as_json):
        seen = pydp2.peek(
            **source_args.source,
            input_order=source_args.service.get("input_order"),
            samples=samples,
            batch_size=source_args.job.get("batch_size", _BATCH),
        )
    if as_json:
        click.echo(json.dumps(_plain(seen), allow_nan=False))
    else:
        _show(stdout_console(), seen)
    if seen.error is not None:
        raise seen.error


def _peek_at_shuffle(source_args: SourceArguments, as_json: bool) -> None:
    """Read a whole pass, and show how well it is shuffled."""
    import pydp2

    with user_output_to_stderr(as_json):
        found = pydp2.shuffle_quality(**source_args.source, **source_args.service, **source_args.job)
    if as_json:
        figures = {name: value for name, value in asdict(found).items() if name != "picture"}
        click.echo(json.dumps(figures | {"picture": found.picture.round(4).tolist()}))
        return
    console = stdout_console()
    console.print(f"[bold]shuffle quality {found.quality:.2f}[/bold] (1: a full shuffle, 0: the order of the list)")
    counts = f"{count_text(found.samples, 'sample')} in {count_text(found.batches, 'batch', 'batches')}"
    for line in (
        f"{counts}, each compared with a full shuffle:",
        f"- samples that follow each other in the stream are {found.list_distance:.0%} as far apart in the list",
        f"- samples that follow each other in the list are {found.stream_distance:.0%} as far apart in the stream",
        f"- a batch has samples of {found.files_per_batch:.1f} files, and would have {found.full_files_per_batch:.1f}",
    ):
        console.print(line, highlight=False)
    for row in found.picture:
        width = _PICTURE // len(row)
        console.print("".join(width * _SHADES[min(round(2 * cell), len(_SHADES) - 1)] for cell in row))
    console.print("[dim]from left to right the pass, from top to bottom the list; even grey: a full shuffle[/dim]")
    if found.quality < _POOR:
        console.print(
            "a larger pool_size mixes more, and so does a larger --interleave with many files; samples that are sorted "
            "in the files are best shuffled once on the disk",
            soft_wrap=True,
        )


def _plain(seen: Any) -> dict[str, Any]:
    names = [label for label, _ in seen.slots]
    return {
        "slots": dict(seen.slots),
        "shuffled_in_training": seen.shuffled,
        "dropped": seen.dropped,
        "files": seen.files,
        "empty_files": seen.empty_files,
        "samples": [
            {"file": s.file, "sample": s.sample, "weight": s.weight, "values": _values_of(s, names)}
            for s in seen.samples
        ],
        "batch": None
        if seen.batch is None
        else {
            "rows": len(seen.batch),
            "size": seen.batch.size,
            "slots": {name: _form(value) for name, value in zip(names, seen.batch, strict=True)},
        },
        "error": None if seen.error is None else str(seen.error),
    }


def _values_of(sample: Any, names: list[str]) -> dict[str, Any]:
    return {name: _listed(value) for name, value in zip(names, sample.values, strict=True)}


def _listed(value: Any) -> Any:
    """Return a value in the form of JSON: as lists, numbers and texts."""
    import numpy as np

    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    plain = value.tolist() if hasattr(value, "tolist") else value
    if hasattr(plain, "__iter__"):
        return [_listed(entry) for entry in plain]
    if type(plain) is not type(value):
        return _listed(plain)
    return _listed(float(value)) if isinstance(value, np.longdouble) else str(value)


def _show(console: Console, seen: Any) -> None:
    from rich.markup import escape
    from rich.table import Table

    for sample in seen.samples:
        weight = "" if sample.weight == 1 else f", weight {sample.weight}"
        console.print(f"[bold]sample {sample.sample} of {escape(sample.file)}[/bold]{weight}")
        table = Table(box=None, show_header=False, padding=(0, 1, 0, 2))
        for (label, declared), value in zip(seen.slots, sample.values, strict=True):
            table.add_row(escape(label), f"[dim]{escape(declared)}[/dim]", escape(value_text(value)))
        console.print(table)
    if seen.dropped:
        console.print(f"{count_text(seen.dropped, 'bad sample')} left out")
    nothing = seen.batch is None and seen.error is None
    if seen.empty_files:
        words = f"process yielded nothing for {seen.empty_files:,} of {count_text(seen.files, 'file')}"
        console.print(f"{'no samples: ' * nothing}{words}")
    elif nothing:
        console.print(f"no samples: {'all are bad' if seen.files else 'the list is empty'}")
    if seen.batch is not None:
        _show_batch(console, seen.batch, [label for label, _ in seen.slots])
    if seen.shuffled and seen.batch is not None:
        console.print("[dim]in the order of the list; a trainer gets them shuffled[/dim]")


def _show_batch(console: Console, batch: Batch, labels: list[str]) -> None:
    from rich.markup import escape
    from rich.table import Table

    weight = "" if batch.size == len(batch) else f", size {batch.size}"
    console.print(f"[bold]first batch[/bold]: {count_text(len(batch), 'row')}{weight}")
    table = Table(box=None, show_header=False, padding=(0, 1, 0, 2))
    for label, value in zip(labels, batch, strict=True):
        table.add_row(escape(label), f"[dim]{escape(_form(value))}[/dim]", escape(_array(value)))
    console.print(table)


def _form(value: Any) -> str:
    """Return text with the dtype and shape, or the form, of a slot in a batch."""
    return f"{value.dtype} {value.shape}" if hasattr(value, "dtype") else repr(value).strip("<>")


def value_text(value: Any) -> str:
    """Return one value of a sample as a short text."""
    if hasattr(value, "dtype") and value.shape:
        return f"{value.dtype} {value.shape}: {_array(value)}"
    if hasattr(value, "dtype"):
        value = value.item()
    if isinstance(value, list | tuple):
        begin, end = "[]" if isinstance(value, list) else "()"
        inner = ", ".join(value_text(entry) for entry in value[:_ENTRIES])
        return f"{len(value)}: {begin}{inner}, …{end}" if len(value) > _ENTRIES else f"{begin}{inner}{end}"
    text = f"{value:.6g}" if isinstance(value, float) and len(repr(value)) > 8 else repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"


def _array(value: Any) -> str:
    """Return the first values of a slot of a batch as text."""
    import numpy as np

    if hasattr(value, "sequence_start_positions"):
        value = value.values
    if hasattr(value, "offsets"):
        return value_text(value[: _ENTRIES + 1].to_list())
    flat = np.asarray(value if hasattr(value, "dtype") else value.indices).reshape(-1)
    entries = " ".join(f"{entry:g}" if flat.dtype.kind == "f" else str(entry) for entry in flat[:_ENTRIES].tolist())
    return f"{entries} …" if len(flat) > _ENTRIES else entries
