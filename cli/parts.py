"""``pydp2 parts``: print the entries of a file list that name the parts of large files."""

from __future__ import annotations

import gzip
import zlib

import click


def _packing(path: str) -> str:
    """Return "zstd" or "gzip" if the file cannot be read in parts because of it; of gzip files only idx arrays can."""
    try:
        with open(path, "rb") as file:
            magic = file.read(4)
        if magic == b"\x28\xb5\x2f\xfd":
            return "zstd"
        if not magic.startswith(b"\x1f\x8b"):
            return ""
        with gzip.open(path) as unpacked:
            return "gzip" if unpacked.read(2) != b"\0\0" else ""
    except (EOFError, gzip.BadGzipFile, zlib.error):
        return ""  # its reader reports the error
    except IsADirectoryError:
        return ""  # a folder of pictures
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror or error}") from None


@click.command("parts", short_help="Print list entries for parts of large files.")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(exists=True))
@click.option("--parts", type=click.IntRange(1), required=True, metavar="NUMBER", help="Number of parts of each FILE.")
def command(files: tuple[str, ...], parts: int) -> None:
    """Print one entry of a file list for each part of each FILE, or of a folder of pictures.

    The providers in pydp2.formats read an entry such as train.rec?part=3/12 as that part of the file, so several
    workers can read one large file.

    \b
    pydp2 parts train.rec --parts 64 > train.list
    pydp2 serve train.list --provider pydp2.formats.dmlc_recordio
    """
    from pydp2.file_parts import part_entries

    for file in files:
        if parts > 1 and (packing := _packing(file)):
            only = "of such files only idx" if packing == "gzip" else "no such file"
            raise click.ClickException(
                f"{file} is compressed with {packing}, and {only} can be read in parts: decompress it"
            )
    for file in files:
        for entry in part_entries(file, parts):
            click.echo(entry)
