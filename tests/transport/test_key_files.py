"""Keys in files: what is written is private and whole, and what others could have written is refused."""

from __future__ import annotations

import json
import os
import resource
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from pydp2.errors import OptionError
from pydp2.transport import key_files as keys
from pydp2.transport.key_files import ROLES, AllowedKeys, ConnectionFile
from pydp2.transport.keys import KeyPair, new_key_pair
from pydp2.transport.service_address import with_key


@pytest.fixture
def connection() -> ConnectionFile:
    public = new_key_pair().public
    return ConnectionFile(
        with_key("tcp://head:7700", public),
        {role: new_key_pair() for role in ROLES},
        with_key("tcp://head:7701", public),
        with_key("ipc:///tmp/pydp2-0/d/s", public),
    )


def test_a_connection_file_is_read_as_it_was_written_and_is_private_from_its_first_moment(
    connection: ConnectionFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.json"
    modes = []
    opened = os.open

    def spy(name: object, flags: int, mode: int = 0o777, **how: object) -> int:
        if flags & os.O_CREAT:
            modes.append(mode)
        return opened(name, flags, mode, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", spy)
    before = os.umask(0)
    try:
        for _ in range(2):  # in place of the one that is there
            connection.write(path)
    finally:
        os.umask(before)
    assert modes == [0o600, 0o600]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert ConnectionFile.read(path) == connection
    assert [each.name for each in tmp_path.iterdir()] == ["run.json"]
    for pair in connection.keys.values():
        assert pair.secret not in repr(connection)


def test_a_connection_file_that_others_can_read_is_refused(connection: ConnectionFile, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    connection.write(path)
    path.chmod(0o640)
    with pytest.raises(
        OptionError, match=r"other users can read or write it \(mode 0640\); make it private: chmod 600"
    ):
        ConnectionFile.read(path)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda plain: plain.pop("address"), lambda plain: plain.pop("keys"), lambda plain: plain.update(pydp2=2),
        lambda plain: plain.update(address="tcp://head:7700"), lambda plain: plain.update(keys=[]),
        lambda plain: plain["keys"].update(trainer={"public": "a"}),
        lambda plain: plain["keys"].update(trainer={"public": "a", "secret": "b"}),
        lambda plain: plain["keys"].update(trainer=7), lambda plain: plain.clear(),
        lambda plain: plain.update(local_address=7), lambda plain: plain.update(local_address="ipc:///tmp/s"),
        lambda plain: plain.update(local_address=plain["address"]),
        lambda plain: plain.update(host_address=with_key("ipc:///tmp/s", "0" * 64)),
        lambda plain: plain.update(address=with_key("tcp://\ud800:5", "0" * 64)),
        lambda plain: plain.update(local_address=with_key("ipc:///tmp/s", "0" * 64)),
    ],
)  # fmt: skip
def test_a_damaged_connection_file_is_refused_by_name(
    spoil: Callable[[dict[str, object]], object], connection: ConnectionFile, tmp_path: Path
) -> None:
    path = tmp_path / "run.json"
    connection.write(path)
    plain = json.loads(path.read_text())
    spoil(plain)
    path.write_text(json.dumps(plain))
    with pytest.raises(OptionError, match=r"run\.json must be a connection file, .*: it is damaged"):
        ConnectionFile.read(path)


def test_what_is_no_connection_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="No such file"):
        ConnectionFile.read(tmp_path / "none")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo, 0o600)
    with pytest.raises(OptionError, match="it is not a regular file"):
        ConnectionFile.read(fifo)
    other = tmp_path / "other"
    for text in ("[" * 100_000, "import pydp2\n", "[1]", "é"):
        other.write_text(text, "utf-8")
        other.chmod(0o644)  # which it may well have
        with pytest.raises(OptionError, match=r"it holds something else; name the file that the service wrote$"):
            ConnectionFile.read(other)
    with pytest.raises(OptionError, match=r"must be a file that can be written: No such file or directory"):
        ConnectionFile(with_key("tcp://a:1", "0" * 64), {}).write(tmp_path / "none" / "run.json")


def test_the_keys_of_the_first_role_that_it_has_are_taken(connection: ConnectionFile, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    assert connection.pair(path, "trainer", "observer") == connection.keys["trainer"]
    one = ConnectionFile(connection.address, {"observer": connection.keys["observer"]})
    assert one.pair(path, "trainer", "observer") == connection.keys["observer"]
    with pytest.raises(OptionError, match="must have keys for the role trainer, it has observer"):
        one.pair(path, "trainer")


def test_a_connection_file_is_removed_by_the_service_that_wrote_it_alone(
    connection: ConnectionFile, tmp_path: Path
) -> None:
    path = tmp_path / "run.json"
    connection.write(path)
    keys.remove_connection(path, with_key("tcp://head:7700", new_key_pair().public))
    assert path.exists(), "another service has written it since"
    keys.remove_connection(path, connection.address)
    assert not path.exists()
    keys.remove_connection(path, connection.address)


def test_a_folder_has_a_pair_of_keys_that_only_its_owner_can_read(tmp_path: Path) -> None:
    folder = tmp_path / "service"
    pair = keys.new_folder(folder)
    assert keys.own_pair(folder) == pair
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "secret.key").stat().st_mode) == 0o600
    assert (folder / "public.key").read_text().strip() == pair.public
    with pytest.raises(OptionError, match=r"it has a secret\.key already"):
        keys.new_folder(folder)
    (folder / "secret.key").chmod(0o604)
    with pytest.raises(OptionError, match=r"other users can read or write it \(mode 0604\)"):
        keys.own_pair(folder)
    (folder / "secret.key").write_text("not a key")
    (folder / "secret.key").chmod(0o600)
    with pytest.raises(OptionError, match=r"must hold a secret key, as `pydp2 keys new .*it is damaged"):
        keys.own_pair(folder)


def test_who_is_allowed_has_one_role_until_dropped(tmp_path: Path) -> None:
    keys.new_folder(tmp_path)
    alice, again, bob = (new_key_pair().public for _ in range(3))
    keys.allow(tmp_path, "alice", "trainer", alice)
    keys.allow(tmp_path, "bob", "observer", bob.upper())
    assert keys.allowed_keys(tmp_path) == [("alice", "trainer", alice), ("bob", "observer", bob)]
    keys.allow(tmp_path, "alice", "observer", again)
    assert keys.allowed_keys(tmp_path) == [("alice", "observer", again), ("bob", "observer", bob)]
    keys.drop(tmp_path, "alice")
    assert keys.allowed_keys(tmp_path) == [("bob", "observer", bob)]
    with pytest.raises(OptionError, match="must allow 'alice' for it to be dropped; it allows bob"):
        keys.drop(tmp_path, "alice")


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "a" * 65, "a b"])
def test_a_name_that_is_no_file_name_is_refused(name: str, tmp_path: Path) -> None:
    keys.new_folder(tmp_path)
    with pytest.raises(OptionError, match="a name must be up to 64 letters"):
        keys.allow(tmp_path, name, "trainer", "0" * 64)


def test_what_is_no_key_is_refused_and_never_counts(tmp_path: Path) -> None:
    keys.new_folder(tmp_path)
    with pytest.raises(OptionError, match="a public key must be 64 hexadecimal digits, got 3 characters"):
        keys.allow(tmp_path, "alice", "trainer", "abc")
    keys.allow(tmp_path, "alice", "trainer", "0" * 64)
    (tmp_path / "allow" / "trainer" / "bob.key").write_bytes(b"\xff")
    (tmp_path / "allow" / "trainer" / "carol.key").write_text("short")
    assert [each.name for each in keys.allowed_keys(tmp_path)] == ["alice"]


def test_a_service_sees_what_its_folder_allows_when_it_looks_again(tmp_path: Path) -> None:
    pair = keys.new_folder(tmp_path)
    of_run, lasting = new_key_pair().public, new_key_pair().public
    allowed = AllowedKeys(pair, {of_run: "trainer"}, tmp_path)
    assert [allowed.role_of(key) for key in (of_run, lasting, "")] == ["trainer", None, None]
    keys.allow(tmp_path, "alice", "observer", lasting)
    assert allowed.role_of(lasting) is None
    allowed.refresh()
    assert allowed.role_of(lasting) == "observer"
    (tmp_path / "allow" / "observer").rename(tmp_path / "away")
    allowed.refresh()
    assert [allowed.role_of(key) for key in (of_run, lasting)] == ["trainer", None], "what cannot be read allows none"


def test_a_key_has_one_name(tmp_path: Path) -> None:
    """Dropped under one name, it would still be let in under the other."""
    keys.new_folder(tmp_path)
    key = new_key_pair().public
    keys.allow(tmp_path, "alice", "trainer", key)
    keys.allow(tmp_path, "alice", "worker", key)
    with pytest.raises(OptionError, match=r"lets this one in as 'alice' \(worker\); drop 'alice' before"):
        keys.allow(tmp_path, "bob", "trainer", key)
    keys.drop(tmp_path, "alice")
    keys.allow(tmp_path, "bob", "trainer", key)
    assert keys.allowed_keys(tmp_path) == [("bob", "trainer", key)]


def test_what_is_no_regular_file_is_no_key_and_is_not_waited_for(tmp_path: Path) -> None:
    keys.new_folder(tmp_path)
    keys.allow(tmp_path, "alice", "trainer", "0" * 64)
    os.mkfifo(tmp_path / "allow" / "trainer" / "bob.key")
    (tmp_path / "allow" / "trainer" / "carol.key").mkdir()
    assert [each.name for each in keys.allowed_keys(tmp_path)] == ["alice"]


def test_a_pair_is_no_text_of_its_secret() -> None:
    pair = KeyPair("1" * 64, "2" * 64)
    assert "2" not in f"{pair} {pair!r}"


def test_keys_stay_allowed_while_no_descriptor_is_left_to_read_them(tmp_path: Path) -> None:
    pair, peer = keys.new_folder(tmp_path / "service"), keys.new_folder(tmp_path / "peer").public
    keys.allow(tmp_path / "service", "peer", "worker", peer)
    allowed = keys.AllowedKeys(pair, {}, tmp_path / "service")
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limit[1]))
    try:
        allowed.refresh()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    assert allowed.role_of(peer) == "worker"
    keys.drop(tmp_path / "service", "peer")
    allowed.refresh()
    assert allowed.role_of(peer) is None
