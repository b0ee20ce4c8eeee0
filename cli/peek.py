"""``pydp2 peek``: show the first samples of a list, and a first batch."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import click
from pydp2_cli.options import SourceArguments, SourceCommand
from pydp2_cli.output import count_text, stdout_console, user_output_to_stderr

if TYPE_CHECKING:
    from rich.console import Console

    from pydp2 import Batch

_BATCH = 8
_ENTRIES = 8  # entries that are shown of an array or a list


@click.command(
    "peek",
    cls=SourceCommand,
    tables={"service": ["input_order"], "job": ["batch_size"]},
    short_help="Show the first samples and a first batch.",
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
def command(source_args: SourceArguments, samples: int, as_json: bool) -> None:
    """Show the first samples of LIST as the provider yields them, and the first batch, without shuffling.

    It runs the provider in this process, without a service, and reads only as much as it needs. The batch has 8
    samples if neither --batch_size nor the --config file says otherwise.

    \b
    pydp2 peek train.list --provider my_provider.process
    pydp2 peek --config configs/nested.toml --samples 1 --batch_size 256
    """
    import pydp2

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
