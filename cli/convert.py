"""``pydp2 convert``: convert a file of samples to another format."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click
from pydp2_cli.live_line import LiveLine
from pydp2_cli.output import can_redraw, size_text, stderr_console

_FORMATS = click.Choice(["idx", "csv", "libsvm", "rec", "paddle", "lst"])
_SHAPE_OF_TEXT = "must be whole numbers between commas, as in 28,28"


def _sides(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    if value is None:
        return None
    parts = value.split(",")
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise click.BadParameter(f"{_SHAPE_OF_TEXT}, got {value!r}", ctx, param)
    return tuple(map(int, parts))


@click.command("convert", short_help="Convert a file to another format.")
@click.argument("source", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("target", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--from", "source_format", type=_FORMATS, help="Format of SOURCE; default: by its name.")
@click.option("--to", "target_format", type=_FORMATS, help="Format of TARGET; default: by its name.")
@click.option("--dtype", metavar="NAME", help="csv to idx: dtype of the values; default: float32.")
@click.option("--shape", metavar="N,N", callback=_sides, help="csv to idx: shape of a sample; default: one dimension.")
@click.option(
    "--label", type=int, metavar="COLUMN", help="csv to libsvm: column of the label, -1 for the last; default: 0."
)
@click.option("--dim", type=click.IntRange(1), metavar="NUMBER", help="libsvm to csv: number of columns.")
@click.option("--base", type=click.IntRange(0, 1), metavar="0|1", help="libsvm: index of the first column; default: 0.")
@click.option("--header/--no_header", default=None, help="csv: whether the first line holds column names.")
@click.option("--separator", metavar="SIGN", help="csv: separator between numbers; default: a comma.")
@click.option(
    "--layout",
    type=click.Choice(["go", "fluid"]),
    help="To paddle: file layout, go for Paddle V2 or fluid; default: go.",
)
@click.option("--packing", type=click.Choice(["none", "snappy", "gzip"]), help="To paddle: compression; default: none.")
@click.option(
    "--folder",
    metavar="FOLDER",
    help="From lst: folder that its paths are relative to; default: the working directory.",
)
def command(source: Path, target: Path, source_format: str | None, target_format: str | None, **given: Any) -> None:
    """Write the samples of SOURCE to TARGET, in the format of TARGET.

    The formats are idx, csv, libsvm, rec (RecordIO of dmlc and MXNet), paddle (RecordIO of Paddle) and lst (a list of
    image paths; SOURCE only). Files may be larger than memory. TARGET appears only once it is complete. A list of
    images becomes a rec file and an index beside it.

    \b
    pydp2 convert train-images-idx3-ubyte.gz train.csv
    pydp2 convert old.dat new.rec
    pydp2 convert images.lst train.rec --folder images
    """
    import pydp2
    from pydp2.formats.convert import Options, convert

    options = Options(**{name: value for name, value in given.items() if value is not None})
    console = stderr_console()
    began = time.perf_counter()
    total = source.stat().st_size
    line = LiveLine(console.file) if can_redraw(console) else None

    def progress(done: int) -> None:
        if line is not None:
            share, speed = done / max(total, 1), done / max(time.perf_counter() - began, 1e-6)
            line.update([f"{share:.0%} of {size_text(total)}", f"{size_text(speed)}/s", source.name])

    try:
        count = convert(
            source,
            target,
            source_format=source_format,
            target_format=target_format,
            options=options,
            progress=progress,
        )
    except OSError as error:
        if isinstance(error, pydp2.errors.Error):
            raise
        name = error.filename or target
        raise click.ClickException(f"{name}: {error.strerror or error}") from None
    finally:
        if line is not None:
            line.clear()
    seconds = time.perf_counter() - began
    console.print(
        f"{count:,} samples, {size_text(total)} became {size_text(target.stat().st_size)} in {seconds:.1f} s",
        markup=False,
    )
