"""``pydp2 list``: print the entries of a list, with the files that its patterns match."""

from __future__ import annotations

import click


@click.command("list", short_help="Print the entries of a list.")
@click.argument("files", metavar="LIST")
@click.option("--root", metavar="FOLDER", help="Folder where patterns and the list are looked up.")
@click.option("--count", is_flag=True, help="Print only how many entries there are.")
def command(files: str, root: str | None, count: bool) -> None:
    """Print one entry a line: the files that a service of LIST would read, in the order of the list.

    LIST is a list file, a pattern, or the URL of remote files, of which a pattern is listed in its store.

    \b
    pydp2 list train.list
    pydp2 list 's3://bucket/train/*.parquet' > train.list
    """
    import pydp2

    entries = pydp2.list_files(files, root=root)
    if count:
        click.echo(len(entries))
        return
    for entry in entries:
        click.echo(entry)
