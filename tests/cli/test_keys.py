"""``pydp2 keys``: from a fresh folder to a trainer that comes in, and to one that does not any more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pydp2_cli.keys
from click.testing import Result

from pydp2.transport.key_files import ROLES, own_pair


def test_keys_are_made_allowed_listed_and_dropped(tmp_path: Path, cli: Callable[..., Result]) -> None:
    service, mine = str(tmp_path / "service"), str(tmp_path / "mine")
    made = [cli("keys", "new", folder) for folder in (service, mine)]
    assert [each.exit_code for each in made] == [0, 0]
    public = made[1].stdout.strip()
    assert public == own_pair(tmp_path / "mine").public
    allowed = cli("keys", "allow", service, "alice", public, "--role", "observer")
    assert (allowed.exit_code, allowed.stdout) == (0, "")
    assert allowed.stderr == f"{service}: alice may come in as observer\n"
    shown = cli("keys", "list", service)
    assert shown.exit_code == 0
    assert [line.split() for line in shown.stdout.splitlines()[1:]] == [["alice", "observer", public]]
    assert shown.stderr == f"{service}: 1 allowed; its own public key is {made[0].stdout.strip()}\n"
    dropped = cli("keys", "drop", service, "alice")
    assert (dropped.exit_code, dropped.stderr) == (0, f"{service}: alice may not come in any more\n")
    assert cli("keys", "list", service).stdout == ""
    for each in (*made, allowed, shown, dropped):
        for folder in ("service", "mine"):
            assert own_pair(tmp_path / folder).secret not in each.stdout + each.stderr


def test_what_cannot_be_is_told_in_one_line(tmp_path: Path, cli: Callable[..., Result]) -> None:
    folder = str(tmp_path / "service")
    assert cli("keys", "new", folder).exit_code == 0
    for args, text in (
        (("new", folder), "it has a secret.key already"),
        (("allow", folder, "alice", "abc"), "a public key must be 64 hexadecimal digits"),
        (("allow", str(tmp_path / "none"), "alice", "0" * 64), "must hold a secret key, as `pydp2 keys new"),
        (("drop", folder, "alice"), "must allow 'alice' for it to be dropped; it allows none"),
    ):
        said = cli("keys", *args)
        assert said.exit_code == 1
        assert said.stdout == ""
        assert said.stderr.startswith("Error: ")
        assert text in said.stderr
        assert said.stderr.count("\n") == 1


def test_the_command_knows_the_roles_of_keys() -> None:
    assert pydp2_cli.keys._ROLES == ROLES, "written twice, so that --help imports nothing"
