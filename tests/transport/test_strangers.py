"""A running service, and whoever may come to its address: strangers get nothing, take nothing, and disturb nobody."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import pydp2
from pydp2.errors import OptionError, ServiceUnreachable
from pydp2.transport.service_address import INNER_SUFFIX, ipc_path, split_token, without_token
from tests.provider_code import dense
from tests.runs import NUMBERS, Program, processes, wait_until
from tests.runs import NUMBERS_OPTIONS as OPTIONS
from tests.strangers import (
    BUSY_HUB,
    FLOODS,
    SERVICE,
    Crowd,
    as_another_user,
    descriptors,
    descriptors_at_rest,
    dial,
    greeting,
    resident,
    silent,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at the server in /proc")
FILES = [str(n) for n in range(8)]
FEW = 128
STRANGERS = 200
PASSES = 12


@pytest.fixture
def provider(provider_file: Callable[[str], str]) -> str:
    return provider_file(NUMBERS)


@pytest.fixture
def quiet(provider: str) -> Iterator[list[list[int]]]:
    """Passes one after another that nobody disturbs."""
    with pydp2.load(FILES, provider, workers=1, **OPTIONS) as data:
        expected = [one_pass(data) for _ in range(PASSES)]
    return iter(expected)


def one_pass(data: pydp2.Client) -> list[list[int]]:
    return [batch[0].tolist() for batch in data]


def passes(data: pydp2.Client, quiet: Iterator[list[list[int]]], count: int) -> bool:
    """Whether the next ``count`` passes are those that nobody disturbs."""
    return all(one_pass(data) == next(quiet) for _ in range(count))


def launched(program: Callable[..., Program], bind: str, provider: str, limit: int = FEW) -> tuple[str, int, Program]:
    """Address, process number and program of a service that may open ``limit`` descriptors."""
    made = program(SERVICE, str(limit), bind, provider, "2", "{}", *FILES)
    _, address, pid = made.said("at ").split()
    return address, int(pid), made


# -- over TCP, before and after the greeting ---------------------------------------------------------------------------
ALIKE = ("wrong token, then parts", "no token, then parts", "no mechanism, then empty parts", "a command of a mebibyte")


@pytest.mark.parametrize(
    "how", [pytest.param(each, marks=pytest.mark.slow if each in ALIKE else ()) for each in FLOODS]
)
def test_a_flood_without_the_token_or_a_key_takes_no_memory_and_the_trainer_goes_on(
    how: str, provider: str, quiet: Iterator[list[list[int]]], tmp_path: Path
) -> None:
    keys = tmp_path / "run.json" if "a key" in how else None
    with pydp2.launch(FILES, provider, workers=1, bind="tcp://127.0.0.1:*", connection=keys) as service:
        with service.connect(**OPTIONS) as data:
            assert passes(data, quiet, 1)
            before = resident(service.pid)
            crowd = Crowd(service.address, [how] * 2)
            try:
                wait_until(lambda: crowd.sent > 64 << 20, 1.5)  # so much a mechanism without a token would have taken
                assert passes(data, quiet, 5)
                most = resident(service.pid)
            finally:
                crowd.end()
        assert crowd.sent
        assert most - before < 8 << 20, f"{crowd.sent} bytes were sent"
        assert service.poll() is None


def test_who_comes_again_and_again_does_not_pile_up_while_the_server_is_busy(program: Callable[..., Program]) -> None:
    """libzmq asks about each of them, and keeps what it asks about until there is an answer."""
    made = program(BUSY_HUB, "0.1")
    address = made.said("at ").split()[1]
    before = resident(made.process.pid)
    crowd = Crowd(address, ["wrong token, then parts"] * 3)
    try:
        assert not wait_until(lambda: resident(made.process.pid) - before > 64 << 20, 4), "some 70 KB each"
    finally:
        crowd.end()
    assert crowd.sent


def test_a_greeting_that_is_not_finished_is_dropped(provider: str) -> None:
    """Wherever it ends; all of these wait at the same time."""
    with pydp2.launch(FILES, provider, workers=1, bind="tcp://127.0.0.1:*") as service:
        with ExitStack() as stack:
            several = []
            for sent in (0, 1, 10, 11, 12, 63, 64, 70):
                several.append(stack.enter_context(dial(service.address)))
                several[-1].settimeout(30)
                several[-1].sendall((greeting(b"PLAIN") + bytes(64))[:sent])
            for one in several:
                while one.recv(1 << 10):  # until it is closed
                    pass
        with service.connect(**OPTIONS) as data:
            next(iter(data))


@pytest.mark.parametrize("wrong", ["none", "another", "as long as none"])
def test_without_the_token_one_is_told_soon(wrong: str, provider: str) -> None:
    with pydp2.launch(FILES, provider, workers=1, bind="tcp://127.0.0.1:*") as service:
        endpoint, token = split_token(service.address)
        address, error, text = {
            "none": (endpoint, ServiceUnreachable, "lacks the token of its service"),
            "another": (f"{endpoint}?token={'0' * 32}", ServiceUnreachable, "has another token than this address"),
            "as long as none": (f"{endpoint}?token=", OptionError, "32 to 128 hexadecimal digits"),
        }[wrong]
        began = time.monotonic()
        with pytest.raises(error, match=text) as caught:
            pydp2.connect(address, **OPTIONS)
        assert time.monotonic() - began < 20
        assert token not in str(caught.value)
        with service.connect(**OPTIONS) as data:
            next(iter(data))


def test_a_token_that_the_user_names_is_the_one(provider: str) -> None:
    token = "0123456789abcdef" * 2
    with pydp2.launch(FILES, provider, workers=1, bind=f"tcp://localhost:0?token={token.upper()}") as service:
        assert split_token(service.address)[1] == token
        with pydp2.connect(service.address, **OPTIONS) as data:
            next(iter(data))


@pytest.mark.parametrize("query", ["token=", "token=12", "token=" + "x" * 32, "token=" + "0" * 129, "kez=1", "", "?"])
def test_what_is_no_token_is_refused(query: str, provider: str) -> None:
    with pytest.raises(OptionError, match=r"bind: behind tcp://127\.0\.0\.1:0 there must be") as caught:
        pydp2.launch(FILES, provider, bind=f"tcp://127.0.0.1:0?{query}")
    assert not query or query == "?" or query not in str(caught.value).partition("got")[2]


def test_each_service_has_a_token_of_its_own(provider: str) -> None:
    tokens = set()
    for _ in range(2):
        with pydp2.launch(FILES, provider, workers=1, bind="tcp://127.0.0.1:*") as service:
            tokens.add(split_token(service.address)[1])
    assert len(tokens) == 2


def test_the_token_is_kept_with_the_state_by_this_user_alone(provider: str, tmp_path: Path) -> None:
    from tests.faults.relay import free_port

    state, where = tmp_path / "state", f"tcp://127.0.0.1:{free_port()}"
    before = os.umask(0)
    try:
        with pydp2.launch(FILES, provider, workers=1, bind=where, state_dir=state) as service:
            address = service.address
    finally:
        os.umask(before)
    assert stat.S_IMODE((state / "token").stat().st_mode) == 0o600
    with pydp2.launch(FILES, provider, workers=1, bind=where, state_dir=state) as service:
        assert service.address == address
    for spoil in (lambda: (state / "token").write_text("?"), lambda: (state / "token").chmod(0o644)):
        spoil()
        with pytest.raises(OptionError, match=r"must be a file of this user alone that holds the token.*remove it"):
            pydp2.launch(FILES, provider, bind=where, state_dir=state)
    named = f"{where}?token={'a' * 32}"
    with pydp2.launch(FILES, provider, workers=1, bind=named, state_dir=state) as service:
        assert service.address == named


# -- few descriptors ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["ipc", "tcp"])
def test_strangers_who_take_all_descriptors_take_no_place_from_a_trainer(
    kind: str, provider: str, quiet: Iterator[list[list[int]]], program: Callable[..., Program], tmp_path: Path
) -> None:
    bind = "tcp://127.0.0.1:*" if kind == "tcp" else f"ipc://{tmp_path}/s"
    address, pid, made = launched(program, bind, provider)
    everything = sorted(file * 1000 + n for file in range(len(FILES)) for n in range(file * 29 % 97 + 20))
    with pydp2.connect(address, **OPTIONS) as data:
        assert passes(data, quiet, 1)
        own = descriptors_at_rest(pid, 2)
        with silent(address, STRANGERS):
            assert passes(data, quiet, 4)
            assert wait_until(lambda: "descriptors" in made.screen)
        assert wait_until(lambda: descriptors(pid) <= own + 1)
        with pydp2.connect(address, job="another", **OPTIONS) as late:
            assert sorted(value for batch in one_pass(late) for value in batch) == everything
        assert passes(data, quiet, 1)
    assert made.screen.count("(RLIMIT_NOFILE)") == 1, made.screen
    assert "Traceback" not in made.screen
    assert made.process.poll() is None


@pytest.mark.parametrize("kind", ["ipc", pytest.param("tcp", marks=pytest.mark.slow)])
def test_workers_are_replaced_while_strangers_take_all_descriptors(
    kind: str, provider: str, quiet: Iterator[list[list[int]]], program: Callable[..., Program], tmp_path: Path
) -> None:
    """A worker that comes finds a descriptor, or waits for one; that what it prints has one, too."""
    bind = "tcp://127.0.0.1:*" if kind == "tcp" else f"ipc://{tmp_path}/s"
    address, _, made = launched(program, bind, provider)
    with pydp2.connect(address, **OPTIONS) as data:
        assert passes(data, quiet, 1)
        for _ in range(2):
            with silent(address, STRANGERS):
                workers = processes("pydp2-worker")
                for worker in workers:
                    os.kill(worker, signal.SIGKILL)
                assert passes(data, quiet, 1)
                assert made.process.poll() is None
        assert passes(data, quiet, 1)
    assert "Traceback" not in made.screen


def test_killed_workers_leave_no_descriptor(
    provider_file: Callable[[str], str], program: Callable[..., Program], tmp_path: Path
) -> None:
    """Each has lent memory for what it sends, or was about to."""
    provider = provider_file(dense(200, 1000))
    address, pid, made = launched(program, f"ipc://{tmp_path}/s", provider, 66)
    with pydp2.connect(address, batch_size=50) as data:
        assert sum(map(len, data)) == 200 * len(FILES)
        own = descriptors_at_rest(pid, 2)
        for _ in range(32):
            killed = processes("pydp2-worker")[:1]
            for worker in killed:
                os.kill(worker, signal.SIGKILL)
            assert wait_until(lambda killed=killed: not set(killed) & set(processes("pydp2-worker")))  # type: ignore[misc]
            assert wait_until(lambda: len(processes("pydp2-worker")) == 3, 20)
        assert sum(map(len, data)) == 200 * len(FILES)
        assert wait_until(lambda: descriptors(pid) <= own + 2), f"{own} at first, then {descriptors(pid)}"
    assert made.process.poll() is None


def test_who_is_not_let_in_is_told_what_is_lacking(
    provider: str, program: Callable[..., Program], tmp_path: Path
) -> None:
    address, pid, made = launched(program, f"ipc://{tmp_path}/s", provider, 70)
    descriptors_at_rest(pid, 2)  # a worker that comes later takes what a trainer leaves
    trainers: list[Any] = []

    def connect_many() -> None:
        for number in range(70):
            trainers.append(pydp2.connect(address, job=str(number), timeout=6, pool_bytes="1MiB", **OPTIONS))

    try:
        with pytest.raises(ServiceUnreachable, match=r"no descriptors left .*needs one more .*it has 70 .*ulimit -n"):
            connect_many()
        assert len(trainers) >= 4
        trainers.pop().close()
        trainers.append(pydp2.connect(address, job="again", timeout=30, pool_bytes="1MiB", **OPTIONS))
        next(iter(trainers[0]))
    finally:
        for each in trainers:
            each.close()
    assert made.process.poll() is None


# -- files of other users ----------------------------------------------------------------------------------------------
def test_sockets_are_this_users_alone_whatever_the_umask(provider: str, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with pydp2.launch(FILES, provider, workers=1, bind=f"ipc://{tmp_path}/s") as service:
            assert one_trainer(service)
            modes = {path.name: oct(stat.S_IMODE(path.stat().st_mode)) for path in tmp_path.glob("s*")}
    finally:
        os.umask(before)
    assert modes == dict.fromkeys(["s", f"s{INNER_SUFFIX}", "s.fd", "s.lock"], oct(0o600))
    assert list(tmp_path.glob("s*")) == []


def one_trainer(service: pydp2.Service) -> bool:
    with service.connect(**OPTIONS) as data:
        return bool(one_pass(data))


def test_a_lock_that_is_a_link_is_not_followed(provider: str, tmp_path: Path) -> None:
    (tmp_path / "s.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ServiceUnreachable, match="cannot bind"):
        pydp2.launch(FILES, provider, bind=f"ipc://{tmp_path}/s")
    assert not (tmp_path / "elsewhere").exists()
    state = tmp_path / "state"
    state.mkdir()
    (state / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OptionError, match="state_dir="):
        pydp2.launch(FILES, provider, state_dir=state)
    assert not (tmp_path / "elsewhere").exists()


def test_files_beside_a_socket_are_kept(provider: str, tmp_path: Path) -> None:
    (tmp_path / "s.fd").write_text("of a week")
    with pydp2.launch(FILES, provider, workers=1, bind=f"ipc://{tmp_path}/s") as service:
        assert one_trainer(service), "descriptors cannot be handed over, so bytes go through sockets"
    (tmp_path / f"s{INNER_SUFFIX}").write_text("of another")
    with pytest.raises(ServiceUnreachable, match="cannot bind"):
        pydp2.launch(FILES, provider, workers=1, bind=f"ipc://{tmp_path}/s")
    assert (tmp_path / "s.fd").read_text() == "of a week"
    assert (tmp_path / f"s{INNER_SUFFIX}").read_text() == "of another"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
@pytest.mark.parametrize("socket_of", ["", ".fd"])
def test_another_user_is_turned_away_even_where_the_mode_lets_it_in(
    socket_of: str, provider: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pydp2.launch(FILES, provider, workers=1, bind=f"ipc://{tmp_path}/s") as service:
        path = f"{ipc_path(service.address)}{socket_of}"
        Path(path).chmod(0o666)
        for folder in (tmp_path, *tmp_path.parents[:-1]):
            if folder.stat().st_uid == os.geteuid() and not folder.stat().st_mode & 0o001:
                folder.chmod(0o711)

        def is_turned_away() -> bool:
            one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET if socket_of else socket.SOCK_STREAM)
            one.settimeout(10)
            one.connect(path)
            if socket_of:
                one.send(bytes(16))
            return bool(socket_of) or b"belongs to user 0" in one.recv(1000)

        assert as_another_user(is_turned_away)
        assert one_trainer(service)
    said = capfd.readouterr().err
    assert ("of another user tried to connect" in said) == (not socket_of)


def test_who_speaks_zmtp_to_the_public_socket_is_answered_and_hung_up_on(provider: str) -> None:
    """As a release would that is told nothing first: it must not wait."""
    with pydp2.launch(FILES, provider, workers=1) as service, dial(service.address) as one:
        one.settimeout(10)
        with contextlib.suppress(BrokenPipeError):  # it was quicker
            one.sendall(greeting(b"NULL"))
        assert one.recv(1000).startswith(b"pydp2 ")
        with contextlib.suppress(ConnectionResetError):  # what it said was not read
            assert one.recv(1000) == b""


def test_a_service_without_a_gate_is_known_for_another_release(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(f"{tmp_path}/s")
        other.listen()
        child = os.fork()
        if child == 0:
            try:
                one, _ = other.accept()
                one.sendall(b"\xff" + bytes(8) + b"\x7f\x03\0")
                time.sleep(0.2)
            finally:
                os._exit(0)
        try:
            with pytest.raises(ServiceUnreachable, match="another release of pydp2"):
                pydp2.connect(f"ipc://{tmp_path}/s", timeout=5, **OPTIONS)
        finally:
            os.waitpid(child, 0)


def test_addresses_are_shown_without_their_token() -> None:
    assert without_token(f"tcp://127.0.0.1:5?token={'a' * 32}") == "tcp://127.0.0.1:5"
    assert without_token("ipc:///a?token=b") == "ipc:///a?token=b"
