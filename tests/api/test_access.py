"""Keys of services and trainers through the calls that users make."""

from __future__ import annotations

import errno
import json
import os
import socket
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

import pydp2
from pydp2.api import connection_claim
from pydp2.api.connection_claim import ConnectionClaim
from pydp2.errors import OptionError, OptionTypeError, ServiceLost, ServiceUnreachable
from pydp2.transport import key_files as keys
from pydp2.transport.key_files import ConnectionFile
from pydp2.transport.keys import new_key_pair
from pydp2.transport.line import ACK_TIMEOUT
from pydp2.transport.service_address import ipc_path, split_key, with_key, without_token
from tests.faults.relay import free_port
from tests.runs import NUMBERS, wait_until
from tests.runs import NUMBERS_OPTIONS as OPTIONS
from tests.strangers import as_another_user

FILES = [str(n) for n in range(4)]


@pytest.fixture
def provider(provider_file: Callable[[str], str]) -> str:
    return provider_file(NUMBERS)


@pytest.fixture
def uninterrupted(provider: str) -> list[list[int]]:
    with pydp2.load(FILES, provider, workers=1, **OPTIONS) as data:
        return [batch[0].tolist() for batch in data]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "run.json"


@pytest.fixture
def service(provider: str, file: Path) -> Iterator[pydp2.Service]:
    with pydp2.launch(FILES, provider, workers=1, bind="tcp://127.0.0.1:*", connection=file) as service:
        yield service


def passed(data: pydp2.Client) -> list[list[int]]:
    with data:
        return [batch[0].tolist() for batch in data]


def transport_of(data: pydp2.Client) -> str:
    """How a trainer is connected: ``ipc`` or ``tcp``."""
    return data._connection._line.handle.getsockopt_string(zmq.LAST_ENDPOINT).partition("://")[0]


def go_on(data: pydp2.Client, stream: Iterator[pydp2.Batch]) -> None:
    """Read the rest of the pass, and others, slowly, for a while."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for _ in stream:
            time.sleep(0.05)
        stream = iter(data)


def test_with_the_connection_file_a_trainer_gets_the_stream_of_a_local_one(
    service: pydp2.Service, file: Path, uninterrupted: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert passed(pydp2.connect(file, **OPTIONS)) == uninterrupted
    assert passed(pydp2.connect(str(file), **OPTIONS)) == uninterrupted
    assert passed(service.connect(**OPTIONS)) == uninterrupted
    monkeypatch.setenv("PYDP2_CONNECTION", str(file))
    with pydp2.connect(**OPTIONS) as data:
        assert list(data.stats()["jobs"]) == ["default"]
    assert "jobs" in service.stats()
    service.close()
    assert not file.exists(), "it is of no use any more"


def test_a_trainer_of_this_machine_shares_memory_with_a_service_with_keys(
    service: pydp2.Service, file: Path, uninterrupted: list[list[int]]
) -> None:
    for attach in (lambda: pydp2.connect(file, **OPTIONS), lambda: service.connect(**OPTIONS)):
        with attach() as data:
            assert transport_of(data) == "ipc"
            assert [batch[0].tolist() for batch in data] == uninterrupted
            assert data._connection.row_sources.shared_rows is not None


def test_on_another_machine_a_trainer_with_the_same_file_connects_over_tcp(
    service: pydp2.Service, file: Path, uninterrupted: list[list[int]], tmp_path: Path
) -> None:
    found = ConnectionFile.read(file)
    public = split_key(found.address)[1]
    listens = socket.socket(socket.AF_UNIX)
    listens.bind(str(tmp_path / "left"))
    listens.close()  # its name stays, as on a file system that two machines share
    for path in (tmp_path / "none", tmp_path / "left", file / "no folder"):
        ConnectionFile(found.address, found.keys, "", with_key(f"ipc://{path}", public)).write(tmp_path / "copy.json")
        with pydp2.connect(tmp_path / "copy.json", **OPTIONS) as data:
            assert transport_of(data) == "tcp"
            assert [batch[0].tolist() for batch in data] == uninterrupted
            assert data._connection.row_sources.shared_rows is None


@pytest.mark.parametrize(("order", "seconds"), [("strict", ACK_TIMEOUT), ("relaxed", 0)])
def test_over_tcp_a_trainer_that_can_come_back_gives_a_connection_up_before_the_kernel_would(
    order: str, seconds: float, service: pydp2.Service, file: Path
) -> None:
    """After a cut the kernel asks less and less often, so it would notice late that the network is mended."""
    found = ConnectionFile.read(file)
    ConnectionFile(found.address, found.keys).write(file)
    with pydp2.connect(file, **OPTIONS | {"order": order}) as data:
        assert data._connection._line.handle.getsockopt(zmq.TCP_MAXRT) == seconds * 1000


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
@pytest.mark.parametrize("modes", ["as they are", "open to all"])
def test_another_user_with_a_copy_of_the_file_connects_over_tcp(
    modes: str, provider: str, file: Path, uninterrupted: list[list[int]], capfd: pytest.CaptureFixture[str]
) -> None:
    with pydp2.launch(FILES, provider, workers=1, connection=file):
        found = ConnectionFile.read(file)
        ConnectionFile(found.address, found.keys).write(file.with_name("over_tcp.json"))
        assert passed(pydp2.connect(file.with_name("over_tcp.json"), **OPTIONS)) == uninterrupted, (
            "it imports what is needed"
        )
        local = Path(ipc_path(found.local_address) or "")
        assert stat.S_IMODE(local.stat().st_mode) == 0o600
        assert stat.S_IMODE(local.parent.stat().st_mode) == 0o700
        os.chown(file, 65534, 65534)
        folders = [*file.parents[:-1]]
        if modes == "open to all":
            local.chmod(0o666)
            folders += local.parents[:-1]
        closed = {each: each.stat().st_mode for each in folders if not each.stat().st_mode & 0o001}
        for folder in closed:
            folder.chmod(0o711)

        def reads_over_tcp() -> bool:
            with pydp2.connect(file, **OPTIONS) as data:
                return transport_of(data) == "tcp" and [batch[0].tolist() for batch in data] == uninterrupted

        read = as_another_user(reads_over_tcp)
        for folder, mode in closed.items():
            folder.chmod(mode)
        assert read
    said = capfd.readouterr().err
    refused = f"a process of another user tried to connect to ipc://{local} (from user 65534,"
    assert (refused in said) == (modes == "open to all"), said


@pytest.mark.real_starts
def test_nothing_shows_a_secret_key(
    service: pydp2.Service, file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    secrets = [pair.secret for pair in ConnectionFile.read(file).keys.values()]
    with pydp2.connect(file, **OPTIONS) as data:
        shown = [repr(data), repr(service), repr(vars(service)), json.dumps(service.stats(), default=str)]
        next(iter(data))
    for process in [Path(f"/proc/{service.pid}"), *Path("/proc").glob(f"{os.getpid()}")]:
        shown += [(process / name).read_bytes().decode("latin-1") for name in ("cmdline", "environ")]
    with pytest.raises(ServiceUnreachable) as caught:
        pydp2.connect(file.rename(tmp_path / "other"), **OPTIONS | {"timeout": 1e-9})
    shown += [str(caught.value), *capfd.readouterr()]
    for secret in secrets:
        assert all(secret not in text for text in shown)


def test_an_observer_asks_for_statistics_and_reads_no_batch(service: pydp2.Service, file: Path, tmp_path: Path) -> None:
    found = ConnectionFile.read(file)
    observer = tmp_path / "observer.json"
    ConnectionFile(found.address, {"observer": found.keys["observer"]}).write(observer)
    assert list(pydp2.stats(observer)["jobs"]) == []
    with pytest.raises(OptionError, match=r"observer\.json must have keys for the role trainer, it has observer"):
        pydp2.connect(observer, **OPTIONS)
    lying = tmp_path / "lying.json"
    ConnectionFile(found.address, {"trainer": found.keys["observer"]}).write(lying)
    with pytest.raises(OptionError, match="a trainer needs a key with the role trainer, this key has the role observ"):
        pydp2.connect(lying, **OPTIONS)
    with service.connect(**OPTIONS) as data:
        next(iter(data))


@pytest.mark.parametrize("lacks", ["key", "keys of this run", "keys of this run, here", "service"])
def test_without_its_keys_one_is_told_what_to_do(
    lacks: str, service: pydp2.Service, file: Path, provider: str, tmp_path: Path
) -> None:
    where: str | Path
    if lacks == "key":
        where, text = service.address, "needs a key of yours: connect with the connection file"
    elif lacks.startswith("keys of this run"):
        local = ConnectionFile.read(file).local_address if lacks.endswith("here") else ""
        where, text = tmp_path / "other.json", "does not know the key of this process"
        with pydp2.launch(FILES, provider, workers=1, bind="tcp://127.0.0.1:*", connection=where):
            others = ConnectionFile.read(where).keys
        ConnectionFile(service.address, others, "", local).write(where)
    else:
        where, text = tmp_path / "kept.json", "no service with the key of this address answers"
        ConnectionFile.read(file).write(where)
        service.close()
    with pytest.raises(ServiceUnreachable, match=text):
        pydp2.connect(where, **OPTIONS, timeout=2.0 if lacks == "service" else 30.0)  # the others are told at once


def test_keys_that_last_admit_until_they_are_dropped(
    provider: str, uninterrupted: list[list[int]], tmp_path: Path
) -> None:
    folder, mine = tmp_path / "service", tmp_path / "mine"
    public = keys.new_folder(folder).public
    with pydp2.launch(FILES, provider, workers=1, bind="tcp://127.0.0.1:*", keys=folder) as service:
        assert split_key(service.address)[1] == public
        keys.allow(folder, "me", "trainer", keys.new_folder(mine).public)
        data = pydp2.connect(service.address, key=mine, **OPTIONS)
        stream = iter(data)
        assert next(stream)[0].tolist() == uninterrupted[0]
        keys.drop(folder, "me")
        began = time.monotonic()
        with pytest.raises(ServiceLost, match="the key of this process was removed"):
            go_on(data, stream)
        assert time.monotonic() - began < 30
        data.close()
        with pytest.raises(ServiceUnreachable, match="does not know the key of this process"):
            pydp2.connect(service.address, key=mine, **OPTIONS)
        assert passed(service.connect(**OPTIONS)) == uninterrupted


def test_a_service_that_is_started_again_has_the_keys_that_its_trainers_have(
    provider: str, uninterrupted: list[list[int]], file: Path, tmp_path: Path
) -> None:
    where = f"tcp://127.0.0.1:{free_port()}"
    given = {"bind": where, "connection": file, "state_dir": tmp_path / "state", "workers": 1}
    first = pydp2.launch(FILES, provider, **given)
    before = ConnectionFile.read(file)
    with pydp2.connect(file, **OPTIONS) as data:
        stream = iter(data)
        seen = [next(stream)[0].tolist()]
        first._process.kill()
        first._process.wait()
        with pydp2.launch(FILES, provider, **given):
            assert ConnectionFile.read(file) == before
            seen += [batch[0].tolist() for batch in stream]
    assert seen == uninterrupted
    first.close()
    assert stat.S_IMODE((tmp_path / "state" / "connection.json").stat().st_mode) == 0o600


def left_by(file: Path, provider: str) -> str:
    """What a service that was killed left at ``file``."""
    with pydp2.launch(FILES, provider, workers=1, connection=file) as killed:
        killed._process.kill()
        killed._process.wait()
    return file.read_text()


@pytest.mark.parametrize("what", ["a text", "JSON", "a folder", "a FIFO", "a link to nowhere", "kept keys"])
def test_a_file_that_is_no_connection_file_stays_as_it_is(what: str, provider: str, file: Path) -> None:
    if what == "a folder":
        file.mkdir()
    elif what == "a FIFO":
        os.mkfifo(file)
    elif what == "a link to nowhere":
        file.symlink_to("nowhere")
    else:
        pair = {"service": new_key_pair()}
        kept = ConnectionFile(with_key("tcp://a:1", "0" * 64), pair).text()
        file.write_text({"a text": "precious\n", "JSON": '{"pydp2": 1}', "kept keys": kept}[what])
    before = file.lstat()
    with pytest.raises(OptionError, match=r"connection='.*run\.json' must be .*; (name|choose) another"):
        pydp2.launch(FILES, provider, workers=1, connection=file)
    after = file.lstat()
    assert (after.st_ino, after.st_size, after.st_mtime_ns) == (before.st_ino, before.st_size, before.st_mtime_ns)
    assert [each.name for each in file.parent.iterdir() if each.name.startswith(".")] == []


def test_a_file_that_another_program_wrote_while_the_service_started_stays_as_it_is(
    provider: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = ConnectionClaim.write

    def late(place: ConnectionClaim, content: ConnectionFile) -> None:
        file.write_text("precious\n")
        write(place, content)

    monkeypatch.setattr(ConnectionClaim, "write", late)
    with pytest.raises(OptionError, match="what is there is something else"):
        pydp2.launch(FILES, provider, workers=1, connection=file)
    assert file.read_text() == "precious\n"
    assert [each.name for each in file.parent.iterdir() if each.name.startswith(".")] == []


@pytest.mark.parametrize("bears_links", [True, False])
def test_the_file_of_a_service_that_runs_is_not_taken(
    bears_links: bool, provider: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(connection_claim, "RELEASE_SECONDS", 0.0)
    if not bears_links:
        monkeypatch.setattr(os, "link", no_links)
    with pydp2.launch(FILES, provider, workers=1, connection=file) as first:
        before = file.read_text()
        with pytest.raises(ServiceUnreachable, match="is the file of a service that is running; stop it, or"):
            pydp2.launch(FILES, provider, workers=1, connection=file)
        assert file.read_text() == before
        assert "jobs" in pydp2.stats(file)
        assert first.poll() is None
    assert not file.exists()


def test_of_two_services_that_start_at_once_one_gets_the_file(
    provider: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_claim, "RELEASE_SECONDS", 0.0)
    write, running = ConnectionClaim.write, []

    def late(place: ConnectionClaim, content: ConnectionFile) -> None:
        monkeypatch.setattr(ConnectionClaim, "write", write)
        running.append(pydp2.launch(FILES, provider, workers=1, connection=file))
        write(place, content)

    monkeypatch.setattr(ConnectionClaim, "write", late)
    with pytest.raises(ServiceUnreachable, match="is the file of a service that is running"):
        pydp2.launch(FILES, provider, workers=1, connection=file)
    with running[0] as first:
        assert ConnectionFile.read(file).address == first.address


@pytest.mark.parametrize("left", ["by a killed service", "of another release", "empty"])
def test_the_file_of_a_killed_service_or_an_empty_one_is_replaced(left: str, provider: str, file: Path) -> None:
    if left == "empty":
        file.touch()
    else:
        text = left_by(file, provider)
        file.write_text(text if left == "by a killed service" else text.replace('"pydp2": 1', '"pydp2": 2'))
    with pydp2.launch(FILES, provider, workers=1, connection=file) as service:
        assert ConnectionFile.read(file).address == service.address
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert not file.exists()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"bind": "tcp://0.0.0.0:*"},
            r"bind='tcp://0\.0\.0\.0:\*' can be reached from other hosts, so the service needs",
        ),
        ({"bind": f"tcp://0.0.0.0:1?token={'0' * 32}"}, r"bind='tcp://0\.0\.0\.0:1' can be reached from other hosts"),
        ({"bind": "tcp://*:7700"}, r"bind='tcp://0\.0\.0\.0:7700' can be reached from other hosts"),
        ({"bind": "tcp://[::]:7700"}, "can be reached from other hosts"),
        ({"bind": "tcp://192.0.2.1:7700"}, "can be reached from other hosts"),
        ({"advertise": "head"}, "advertise is for a service with keys"),
        ({"bind": "ipc:///tmp/a", "connection": "a"}, "is a socket of this user alone, which needs no keys"),
        ({"bind": f"tcp://127.0.0.1:1?token={'0' * 32}", "connection": "a"}, r"leave \?token=… out of bind"),
        ({"bind": f"tcp://127.0.0.1:1?key={'0' * 64}"}, r"bind must not have \?key=…"),
        ({"bind": "tcp://head:7700", "connection": "a"}, "must have the IP address of a network interface"),
        ({"connection": "a", "advertise": "a b"}, "advertise must be the name or IP address of a host"),
        ({"connection": "a", "advertise": "head:7700"}, "without a port"),
        ({"keys": "no such folder"}, "must hold a secret key, as `pydp2 keys new"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(options: dict[str, str], text: str, provider: str) -> None:
    with pytest.raises(OptionError, match=text):
        pydp2.launch(FILES, provider, workers=1, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("address", "key", "text"),
    [
        (
            None,
            None,
            "an address or a connection file is needed, none was given; pass what the service prints, or set PYDP2_C",
        ),
        ("", None, "address must be the one that the service prints, .* or the path of a connection file, got ''"),
        (
            "tcp://127.0.0.1:1?token=abcd",
            None,
            "got 10 other characters; use the whole address that the service prints",
        ),
        ("http://a", None, "or the path of a connection file, got 'http://a'"),
        ("no.json", None, r"no\.json must be a connection file, .*No such file"),
        ("ipc:///tmp/a", "mine", r"key is for an address with \?key=…"),
        (f"tcp://a:1?key={'x' * 64}", "mine", "there must be the 64 hexadecimal digits of the service's public key"),
    ],
)
def test_where_a_trainer_cannot_connect_is_told(
    address: str | None, key: str | None, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYDP2_CONNECTION", raising=False)
    folder = None if key is None else tmp_path / key
    if folder is not None:
        keys.new_folder(folder)
    with pytest.raises(OptionError, match=text):
        pydp2.connect(address, key=folder, **OPTIONS)


def test_the_path_of_a_socket_is_told_to_be_no_address_yet(
    provider: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with (
        pydp2.launch(FILES, provider, workers=1, bind="ipc://x.sock"),
        pytest.raises(OptionError, match=r"got 'x\.sock', which is a socket; write ipc://x\.sock$"),
    ):
        pydp2.connect("x.sock", **OPTIONS)


@pytest.mark.parametrize("timeout", [None, "5", True, 0, -1, float("nan"), float("inf"), 1e300, 10**400])
def test_a_timeout_must_be_a_number_of_seconds(service: pydp2.Service, file: Path, timeout: Any) -> None:
    asks: list[Callable[[], object]] = [
        lambda: service.connect(batch_size=2, timeout=timeout),
        lambda: pydp2.connect(file, batch_size=2, timeout=timeout),
        lambda: service.stats(timeout),
        lambda: pydp2.stats(file, timeout=timeout),
    ]
    for ask in asks:
        with pytest.raises((OptionError, OptionTypeError), match="timeout must be "):
            ask()


@pytest.mark.parametrize("path", [5, True, b"here", ["."]])
def test_a_folder_must_be_a_path(path: Any) -> None:
    calls: list[Callable[[], object]] = [
        lambda: pydp2.connect("tcp://127.0.0.1:1?key=" + "0" * 64, key=path, batch_size=2),
        lambda: pydp2.launch(["a"], "a.process", root=path),
        lambda: pydp2.check(["a"], "a.process", root=path),
        lambda: pydp2.WorkerHost("tcp://127.0.0.1:1?key=" + "0" * 64, root=path),
    ]
    for call in calls:
        with pytest.raises(OptionTypeError, match=r"(key|root) must be the path of a directory"):
            call()


def test_a_service_that_can_be_started_again_needs_a_port_that_is_the_same_then(
    provider: str, file: Path, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match="must find it again at the same one; add bind='tcp://HOST:PORT'"):
        pydp2.launch(FILES, provider, workers=1, connection=file, state_dir=tmp_path / "state")


def test_the_address_names_the_host_as_others_know_it(provider: str, file: Path, tmp_path: Path) -> None:
    for host, shown in (("head.example", "tcp://head.example:"), ("::1", "tcp://[::1]:"), (None, "tcp://")):
        with pydp2.launch(
            FILES, provider, workers=1, bind="tcp://0.0.0.0:*", connection=file, advertise=host
        ) as service:
            assert service.address.startswith(shown)
            assert "0.0.0.0" not in service.address
            assert ConnectionFile.read(file).address == service.address
            assert split_key(service.address)[1] not in without_token(service.address)
    assert wait_until(lambda: not file.exists())
