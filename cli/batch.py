"""``pydp2 batch``: make a batch of a run again, and show from which samples its rows are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from pydp2_cli.options import SourceArguments, SourceCommand
from pydp2_cli.output import count_text, stdout_console, user_output_to_stderr
from pydp2_cli.peek import value_text

if TYPE_CHECKING:
    from rich.console import Console

    from pydp2 import Batch


@click.command(
    "batch",
    cls=SourceCommand,
    tables={"service": None},
    short_help="Make a batch of a run again, and show where its rows are from.",
)
@click.argument("state", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("number", type=click.IntRange(0))
@click.option("--origins", is_flag=True, help="Print only entry and sample of each row, with a tab between them.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the batch as JSON, values as short texts.",
)
def command(source_args: SourceArguments, state: Path, number: int, origins: bool, as_json: bool) -> None:
    """Make batch NUMBER of the pass of STATE again, and show for each row its list entry, its sample and its values.

    STATE is a JSON file with what state_dict() returned in this pass, before the batch. Batch size, seed and the other
    options of the batch are those of the state. Rows with nan or inf are named at the end.

    \b
    pydp2 batch state.json 1234 'train/*.parquet'
    pydp2 batch state.json 1234 train.list --provider my_provider.process
    """
    import pydp2

    saved = _read_state(state)
    with user_output_to_stderr(as_json or origins):
        rebuilt = pydp2.rebuild(saved, number, **source_args.source, **source_args.service)
    batch, rows = rebuilt.batch, rebuilt.rows()
    if origins:
        for row in rows:
            click.echo(f"{row.entry}\t{row.sample}")
    elif as_json:
        plain = {"pass": batch.pass_id, "batch": batch.index, "size": batch.size, "padding": batch.padding}
        texts = [row._asdict() | {"values": _texts(row)} for row in rows]
        click.echo(json.dumps({**plain, "rows": texts}, allow_nan=False))
    else:
        _show(stdout_console(), batch, rows)


def _read_state(path: Path) -> Any:
    import pydp2

    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise pydp2.errors.OptionError(f"the state {path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise pydp2.errors.OptionError(
            f"the state {path} must be a JSON file, and is not ({error}); take it out of the checkpoint: "
            "json.dump(checkpoint['data'], open('state.json', 'w'))"
        ) from None


def _texts(row: Any) -> dict[str, str]:
    """Return the values of a row as short texts."""
    return {label: value_text(value) for label, value in row.values.items()}


def _show(console: Console, batch: Batch, rows: list[Any]) -> None:
    from rich.markup import escape
    from rich.table import Table

    weight = "" if batch.size == len(batch) else f", size {batch.size}"
    padding = f", and {count_text(batch.padding, 'row')} of padding" if batch.padding else ""
    console.print(
        f"[bold]batch {batch.index} of pass {batch.pass_id}[/bold]: {count_text(len(rows), 'row')}{padding}{weight}"
    )
    table = Table(box=None, padding=(0, 1, 0, 2))
    for title in ("row", "entry", "sample", *map(batch.slots.label, range(len(batch.slots)))):
        table.add_column(escape(title), justify="right" if title in ("row", "sample") else "left", overflow="ellipsis")
    for number, row in enumerate(rows):
        table.add_row(str(number), escape(row.entry), str(row.sample), *map(escape, _texts(row).values()))
    console.print(table)
    for number, row in enumerate(rows):
        if row.not_finite:
            slots = escape(", ".join(row.not_finite))
            console.print(f"row {number} has nan or inf in {slots}: sample {row.sample} of {escape(row.entry)}")
