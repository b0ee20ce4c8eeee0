"""``pydp2 keys new | allow | drop | list``: permanent keys of services and of the peers that they admit."""

from __future__ import annotations

from pathlib import Path

import click
from pydp2_cli.output import stdout_console

_ROLES = ("trainer", "observer", "worker")  # pydp2.transport.key_files.ROLES, which is imported late
_folder = click.argument("folder", type=click.Path(path_type=Path))


@click.group("keys")
def command() -> None:
    """Make keys, and say whose keys a service lets in.

    A service that other hosts can reach needs keys. Usually `pydp2 serve --connection FILE` makes them for one run.
    Use these commands for keys that last: each owner makes a folder, and only public keys leave it.

    \b
    pydp2 keys new service                  at the service
    pydp2 keys new ~/.pydp2-keys            at the trainer: prints its public key
    pydp2 keys allow service alice 3f2a…    at the service
    """


@command.command("new", short_help="Make a folder with a fresh pair of keys.")
@_folder
def new(folder: Path) -> None:
    """Make FOLDER with a fresh pair of keys, and print the public one.

    Nobody but its owner needs the file secret.key, which has mode 0600.
    """
    from pydp2.transport import key_files as keys

    pair = keys.new_folder(folder)
    click.echo(pair.public)


@command.command("allow", short_help="Let in the owner of a public key.")
@_folder
@click.argument("name")
@click.argument("public")
@click.option(
    "--role",
    type=click.Choice(_ROLES),
    default="trainer",
    show_default=True,
    help="What the key admits to: reading batches, asking for statistics only, or running workers.",
)
def allow(folder: Path, name: str, public: str, role: str) -> None:
    """Let in the peer NAME with the key PUBLIC, 64 hexadecimal digits, at the service whose keys are in FOLDER.

    It counts at once, also for a service that is running. An older key of that name is replaced.
    """
    from pydp2.transport import key_files as keys

    keys.allow(folder, name, role, public)
    click.echo(f"{folder}: {name} may come in as {role}", err=True)


@command.command("drop", short_help="Let a peer in no longer.")
@_folder
@click.argument("name")
def drop(folder: Path, name: str) -> None:
    """Let the peer NAME in no longer at the service whose keys are in FOLDER.

    A service that is running tells the peer so, and ends its connections within three seconds. What it has not sent by
    then, it does not send any more.
    """
    from pydp2.transport import key_files as keys

    keys.drop(folder, name)
    click.echo(f"{folder}: {name} may not come in any more", err=True)


@command.command("list", short_help="List whom a service lets in.")
@_folder
def list_keys(folder: Path) -> None:
    """List the peers that the service whose keys are in FOLDER lets in: name, role and public key."""
    from rich.table import Table

    from pydp2.transport import key_files as keys

    known = keys.allowed_keys(folder)
    table = Table("name", "role", "public key", box=None)
    for row in known:
        table.add_row(*row)
    if known:
        stdout_console().print(table, markup=False, soft_wrap=True)
    click.echo(f"{folder}: {len(known)} allowed; its own public key is {keys.own_pair(folder).public}", err=True)
