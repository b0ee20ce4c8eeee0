"""Addresses: of providers, and of services."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

import pydp2
from pydp2.errors import AddressError, OptionError, ServiceUnreachable

from ..runs import one_pass

ONE = """
@provider(input_types=[integer_value(10)])
def process(settings, filename):
    yield 1

def plain(settings, filename):
    yield 1

number = 3
"""


TYPES = "input_types=[integer_value(10)]"
OLD = {
    "at-import": f"{{old}}\n\n@provider({TYPES})\ndef process(settings, filename):\n    yield 1\n",
    "in-the-hook": "def hook(settings, **kwargs):\n    {old}\n\n@provider(init_hook=hook)\n"
    "def process(settings, filename):\n    yield 1\n",
    "in-process": f"@provider({TYPES})\ndef process(settings, filename):\n    {{old}}\n    yield 1\n",
}


@pytest.mark.parametrize("where", OLD)
def test_an_import_of_paddle_s_trainer_says_what_to_import_in_its_place(
    where: str, provider_file: Callable[[str], str]
) -> None:
    old = "import paddle.trainer.PyDataProvider2"
    with pytest.raises(ModuleNotFoundError, match="No module named 'paddle") as caught:
        raise one_pass(["a"], provider_file(OLD[where].format(old=old))).error or AssertionError("nothing was said")
    first = str(caught.value).splitlines()[0]
    assert "raised ModuleNotFoundError" in first
    assert first.endswith("; the names of PyDataProvider2 are in pydp2: write from pydp2 import *")


def test_an_import_of_something_else_has_no_such_hint(provider_file: Callable[[str], str]) -> None:
    with pytest.raises(ModuleNotFoundError) as caught:
        one_pass(["a"], provider_file("import paddle_of_another_kind\n" + ONE.lstrip()))
    assert "PyDataProvider2" not in str(caught.value)


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("no_such_module_at_all.process", r"there is no module 'no_such_module_at_all'; is its folder on sys\.path"),
        ("{module}.proces", r"the module prov has no attribute 'proces', did you mean 'process'\?"),
        ("{file}:proces", r"has no attribute 'proces', did you mean 'process'\?"),
        ("{folder}/other.py:process", r"there is no file .*other\.py"),
        ("{file}", r"which function of it\? write module\.process, module:process or file\.py:process"),
        ("process", r"'process' is not the address of a provider; write"),
        ("{file}:plain", r"plain is not a provider; decorate it with @provider\(input_types=…\)"),
        ("{file}:number", r"number must be a decorated function, it is a int"),
    ],
    ids=["module", "attribute", "attribute-in-file", "file", "no-attribute", "bare", "undecorated", "no-function"],
)
def test_a_wrong_provider_address_says_what_is_not_there(
    address: str,
    text: str,
    provider_file: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """In one line of the trainer's exception; nothing is written to the terminal beside it."""
    provider_file(ONE)
    monkeypatch.syspath_prepend(tmp_path)
    address = address.format(module="prov", file=tmp_path / "prov.py", folder=tmp_path)
    with pytest.raises(AddressError, match=text) as caught:
        one_pass(["a"], address)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr().err == ""


def test_an_error_inside_the_module_shows_its_own_traceback(
    provider_file: Callable[[str], str], capfd: pytest.CaptureFixture[str]
) -> None:
    """An ImportError of the user's module is not mistaken for a wrong address, and no frame of ours is shown."""
    address = provider_file("import no_such_module_at_all\n" + ONE)
    with pytest.raises(ModuleNotFoundError, match="raised ModuleNotFoundError while it was imported") as caught:
        one_pass(["a"], address)
    assert not isinstance(caught.value, AddressError)
    text = str(caught.value)
    assert text.endswith("ModuleNotFoundError: No module named 'no_such_module_at_all'")
    assert "prov.py" in text
    assert "pydp2/" not in text
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("bind", "text"),
    [
        ("tcp://", "HOST:PORT"),
        ("tcp://127.0.0.1", "HOST:PORT"),
        ("tcp://127.0.0.1:70000", "port below 65536"),
        ("5555", r"must be ipc://PATH or tcp://127\.0\.0\.1:PORT"),
        ("udp://127.0.0.1:5555", r"must be ipc://PATH or tcp://127\.0\.0\.1:PORT"),
        ("ipc://", "the path of a socket"),
        ("ipc:///" + "x" * 120, "at most 104 bytes"),
        ("tcp://0.0.0.0:5555", "can be reached from other hosts, so the service needs keys"),
        ("tcp://*:5555", "can be reached from other hosts, so the service needs keys"),
        ("tcp://192.168.0.1:5555", "can be reached from other hosts, so the service needs keys"),
        ("tcp://example.com:5555", "must have the IP address of a network interface"),
    ],
)
def test_a_malformed_address_to_serve_at_is_refused(bind: str, text: str, provider_file: Callable[[str], str]) -> None:
    with pytest.raises(OptionError, match=text):
        pydp2.launch(["a"], provider_file(ONE), bind=bind)


@pytest.mark.parametrize("kind", ["tcp", "ipc"])
def test_an_address_that_is_taken_is_refused_and_its_service_undisturbed(
    kind: str, provider_file: Callable[[str], str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    address = provider_file(ONE)
    bind = "tcp://127.0.0.1:0" if kind == "tcp" else f"ipc://{tmp_path}/s"
    with pydp2.launch(["a"], address, bind=bind, workers=1) as service:
        with pytest.raises(ServiceUnreachable, match=f"taken|{os.strerror(errno.EADDRINUSE)}") as caught:
            pydp2.launch(["a"], address, bind=service.address, workers=1)
        assert "another path" in str(caught.value) or "an address that is free" in str(caught.value)
        with service.connect(batch_size=1) as data:
            assert len(list(data)) == 1
    assert capfd.readouterr().err == ""


def test_a_port_that_another_program_has_is_refused(provider_file: Callable[[str], str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(
            ServiceUnreachable, match=rf"cannot bind tcp://127\.0\.0\.1:{port}: {os.strerror(errno.EADDRINUSE)}"
        ):
            pydp2.launch(["a"], provider_file(ONE), bind=f"tcp://127.0.0.1:{port}", workers=1)


def test_a_stale_socket_of_a_service_that_was_killed_is_taken_over(
    provider_file: Callable[[str], str], tmp_path: Path
) -> None:
    """The lock says that nobody lives there; afterwards nothing of it is left in the file system."""
    left = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(left))
    (tmp_path / "s.lock").touch()
    assert stat.S_ISSOCK(left.stat().st_mode)
    with (
        pydp2.launch(["a"], provider_file(ONE), bind=f"ipc://{left}", workers=1) as service,
        service.connect(batch_size=1) as data,
    ):
        assert len(list(data)) == 1
    assert not left.exists()
    assert not (tmp_path / "s.lock").exists()


def test_a_file_of_the_users_in_the_way_of_a_socket_is_kept(
    provider_file: Callable[[str], str], tmp_path: Path
) -> None:
    """libzmq would replace whatever is there without a word."""
    precious = tmp_path / "results"
    precious.write_text("of a week")
    with pytest.raises(ServiceUnreachable, match="is there and no socket; choose another path"):
        pydp2.launch(["a"], provider_file(ONE), bind=f"ipc://{precious}")
    assert precious.read_text() == "of a week"


def test_a_socket_in_a_folder_that_is_not_there_is_refused(provider_file: Callable[[str], str], tmp_path: Path) -> None:
    with pytest.raises(ServiceUnreachable, match=r"No such file or directory.*choose a path in a folder"):
        pydp2.launch(["a"], provider_file(ONE), bind=f"ipc://{tmp_path}/no/s")


def test_a_relative_socket_path_is_found_from_everywhere(
    provider_file: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pydp2.launch(["a"], provider_file(ONE), bind="ipc://s", workers=1) as service:
        assert service.address == f"ipc://{os.path.realpath(tmp_path)}/s"
        monkeypatch.chdir("/")
        with service.connect(batch_size=1) as data:
            assert len(list(data)) == 1


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("ipc:///tmp/pydp2-nobody/s", "no service answers at ipc:///tmp/pydp2-nobody/s.*pydp2 serve"),
        ("tcp://127.0.0.1:1?token=" + "0" * 32, r"no service answers at tcp://127\.0\.0\.1:1 \(tried"),
        ("tcp://127.0.0.1", "is not an address that can be connected to"),
        ("ipc://", "is not an address that can be connected to"),
    ],
)
def test_connecting_to_nobody_says_so(address: str, text: str) -> None:
    with pytest.raises(ServiceUnreachable, match=text):
        pydp2.connect(address, batch_size=1, timeout=0.3)


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("udp://127.0.0.1:3", "address must be the one that the service prints"),
        (3, "address must be the one that the service prints"),
        (b"ipc:///tmp/a", "address must be the one that the service prints"),
        ("somewhere", "somewhere must be a connection file, .*: No such file"),
        (None, "an address or a connection file is needed, none was given"),
    ],
)
def test_connecting_to_no_address_says_so(address: object, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYDP2_CONNECTION", raising=False)
    with pytest.raises(OptionError, match=text):
        pydp2.connect(address, batch_size=1)  # type: ignore[arg-type]


def test_a_stale_address_is_somebody_elses_socket(tmp_path: Path) -> None:
    """A program that listens there and never answers is nobody."""
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(f"{tmp_path}/s")
        other.listen()
        with pytest.raises(ServiceUnreachable, match="no service answers"):
            pydp2.connect(f"ipc://{tmp_path}/s", batch_size=1, timeout=0.5)
