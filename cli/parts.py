"""``pydp2 parts``: the lines of a file list that name the parts of large files."""

from __future__ import annotations

import gzip
import zlib

import click


def _is_packed_text(path: str) -> bool:
    """Whether a file is gzip and holds no idx array, the one format that has parts nevertheless."""
    try:
        with open(path, "rb") as file:
            if file.read(2) != b"\x1f\x8b":
                return False
        with gzip.open(path) as unpacked:
            return unpacked.read(2) != b"\0\0"
    except (EOFError, gzip.BadGzipFile, zlib.error):
        return False  # whoever reads it, tells
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror or error}") from None


@click.command("parts", short_help="Name parts of large files, for a list.")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False))
@click.option("--parts", type=click.IntRange(1), required=True, metavar="NUMBER", help="How many each FILE has.")
def command(files: tuple[str, ...], parts: int) -> None:
    """Print the lines of a file list that name the parts of each FILE.

    The providers in pydp2.formats read such an entry, as in train.rec?part=3/12, as the part that it names. So one
    large file is read by as many workers as there are.

    \b
    pydp2 parts train.rec --parts 64 > train.list
    pydp2 serve train.list --provider pydp2.formats.dmlc_recordio
    """
    from pydp2.file_parts import part_entries

    for file in files:
        if parts > 1 and _is_packed_text(file):
            raise click.ClickException(f"{file} is gzip, and only idx is read in parts then: decompress it")
    for file in files:
        for entry in part_entries(file, parts):
            click.echo(entry)
