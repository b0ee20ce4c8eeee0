"""Files of Azure Blob Storage, on Azurite, where it is installed (`npm install -g azurite`)."""

from __future__ import annotations

import base64
import contextlib
import email.utils
import hashlib
import hmac
import http.client
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import pydp2
from pydp2.errors import ListError, ProviderError
from pydp2.remote.remote_file import list_remote

from ..runs import wait_until
from .numbers_provider import PROVIDER

if shutil.which("azurite-blob") is None:
    pytest.skip("azurite-blob is not installed", allow_module_level=True)

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="  # everybody's
FILES, ROWS = 6, 200
JOB: dict[str, Any] = {"batch_size": 32, "seed": 3}


def put(port: int, path: str, body: bytes = b"", **query: str) -> None:
    """Write a container or a blob, as its interface wants it signed."""
    headers = {"x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": "2023-11-03"}
    if not query:
        headers["x-ms-blob-type"] = "BlockBlob"
    signed = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    resource = f"/{ACCOUNT}/{ACCOUNT}/{quote(path)}" + "".join(f"\n{name}:{query[name]}" for name in sorted(query))
    text = f"PUT\n\n\n{len(body) or ''}\n\n\n\n\n\n\n\n\n{signed}{resource}"
    digest = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    rest = "&".join(f"{name}={value}" for name, value in query.items())
    connection.request("PUT", f"/{ACCOUNT}/{quote(path)}{rest and '?'}{rest}", body, headers)
    answer = connection.getresponse()
    assert answer.status == 201, answer.read()
    connection.close()


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Azurite with a container of the numbers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        chosen: int = free.getsockname()[1]
    command = [
        "azurite-blob",
        "--blobPort",
        str(chosen),
        "--location",
        str(tmp_path_factory.mktemp("azurite")),
        "--silent",
    ]
    with subprocess.Popen([*command, "--skipApiVersionCheck"], stdout=subprocess.DEVNULL) as server:
        try:

            def answers() -> bool:
                with contextlib.suppress(OSError):
                    socket.create_connection(("127.0.0.1", chosen), timeout=1).close()
                    return True
                return False

            assert wait_until(answers)
            put(chosen, "numbers", restype="container")
            for n in range(FILES):
                put(chosen, f"numbers/data/{n} of.txt", lines(n))
            yield chosen
        finally:
            server.terminate()


def lines(n: int) -> bytes:
    return b"".join(b"%d\n" % (n * 1000 + i) for i in range(ROWS))


@pytest.fixture
def account(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", f"http://127.0.0.1:{port}/{ACCOUNT}")


@pytest.mark.usefixtures("account")
def test_a_container_gives_the_batches_of_the_disk(tmp_path: Path, provider_file: Callable[[str], str]) -> None:
    for n in range(FILES):
        (tmp_path / f"{n} of.txt").write_bytes(lines(n))
    provider = provider_file(PROVIDER)
    with pydp2.load([str(tmp_path / f"{n} of.txt") for n in range(FILES)], provider, workers=2, **JOB) as data:
        local = [batch["n"].tolist() for batch in data]
    with pydp2.load("az://numbers/data/*.txt", provider, workers=2, remote_cache=tmp_path / "c", **JOB) as data:
        assert [batch["n"].tolist() for batch in data] == local


@pytest.mark.usefixtures("account")
def test_what_is_not_there_and_a_wrong_key_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, provider_file: Callable[[str], str]
) -> None:
    assert list_remote(["az://numbers/none/*"]) == {"az://numbers/none/*": []}
    with pytest.raises(ListError, match="there is no such container"):
        pydp2.launch("az://other/*", "a.b")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", base64.b64encode(b"another key").decode())
    with (
        pydp2.load(["az://numbers/data/0 of.txt"], provider_file(PROVIDER), remote_cache=tmp_path, **JOB) as data,
        pytest.raises(
            ProviderError, match=r"az answered 403 .*credentials were looked for in AZURE_STORAGE_ACCOUNT_KEY"
        ),
    ):
        list(data)
