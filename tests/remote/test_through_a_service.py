"""A service whose files lie on a web server: the same batches as from the disk, whatever fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pydp2_cli import main

import pydp2
from pydp2.errors import ProviderError, StoreError

from ..runs import wait_until
from .http_store import HttpStore, etag, parsed, status
from .numbers_provider import PROVIDER

FILES, ROWS = 12, 60
JOB: dict[str, Any] = {"batch_size": 16, "seed": 3}


@pytest.fixture
def cli() -> Callable[..., Result]:
    """``cli("cache", …)`` runs the program in this process."""
    return lambda *arguments: CliRunner().invoke(main, [str(a) for a in arguments], prog_name="pydp2")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def filled(store: HttpStore) -> HttpStore:
    store.files = {
        f"{number:02}.txt": "".join(f"{number * 1000 + row}\n" for row in range(ROWS)).encode()
        for number in range(FILES)
    }
    return store


@pytest.fixture
def provider(provider_file: Callable[[str], str]) -> str:
    return provider_file(PROVIDER)


def urls(store: HttpStore) -> list[str]:
    return [store.url(name) for name in store.files]


def batches(data: pydp2.Client) -> list[list[int]]:
    return [batch["n"].tolist() for batch in data]


def numbers(found: list[list[int]]) -> list[int]:
    return [number for batch in found for number in batch]


@pytest.fixture
def local(filled: HttpStore, tmp_path: Path, provider: str) -> list[list[int]]:
    """The batches of the same files on the disk."""
    paths = []
    for name, content in filled.files.items():
        (tmp_path / name).write_bytes(content)
        paths.append(str(tmp_path / name))
    with pydp2.load(paths, provider, workers=2, **JOB) as data:
        return batches(data)


def test_batches_are_those_of_the_same_files_on_the_disk_and_each_file_is_requested_once(
    filled: HttpStore, local: list[list[int]], provider: str, cache: Path
) -> None:
    with pydp2.load(urls(filled), provider, workers=3, remote_cache=cache, **JOB) as data:
        assert batches(data) == local
        assert filled.counts() == {"GET": FILES}
        assert filled.sent() == sum(map(len, filled.files.values()))
        batches(data)
        assert filled.counts() == {"GET": FILES}, "a second pass asks for nothing"
        assert wait_until(lambda: data.stats()["remote"]["requests"] == FILES)
    with pydp2.load(urls(filled), provider, workers=2, remote_cache=cache, **JOB) as data:
        assert batches(data) == local
    assert filled.counts() == {"GET": FILES, "HEAD": FILES}, "the next run asks whether its copies still hold"


def test_an_outage_is_waited_for_and_shown(
    filled: HttpStore, local: list[list[int]], provider: str, cache: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    filled.always = status(503)
    with pydp2.launch(urls(filled), provider, workers=2, remote_cache=cache, sample_timeout=2.0) as service:
        found: list[list[int]] = []

        def train() -> None:
            with service.connect(**JOB) as data:
                found.extend(batches(data))

        trainer = threading.Thread(target=train)
        trainer.start()
        try:
            assert wait_until(lambda: service.stats()["remote"]["waiting_seconds"] > 2.5)
            stats = service.stats()["remote"]
            assert stats["waits_for"] == "http://127.0.0.1"
            assert stats["reason"] == "503 Service Unavailable"
        finally:
            filled.always = None
            trainer.join(60)
        assert found == local
        assert service.stats()["workers_lost"] == 0, "sample_timeout does not count the time of the store"
        err: list[str] = []

        def says(text: str) -> bool:
            err.append(capfd.readouterr().err)
            return text in "".join(err)

        assert wait_until(lambda: says("remote files: waits for http://127.0.0.1: 503 Service Unavailable"))
        assert wait_until(lambda: says("answers again, after"))


@pytest.mark.parametrize("who", ["worker", "fetch process"])
def test_a_killed_process_costs_nothing(
    who: str, filled: HttpStore, local: list[list[int]], provider: str, cache: Path
) -> None:
    filled.delay = 0.02
    with pydp2.launch(urls(filled), provider, workers=2, remote_cache=cache) as service:
        with service.connect(**JOB) as data:
            stream = iter(data)
            found = [next(stream)["n"].tolist() for _ in range(3)]
            reads = [worker["pid"] for worker in service.stats()["workers"] if worker["active"]]
            pid = reads[0] if who == "worker" else fetch_process(service.pid)
            os.kill(pid, signal.SIGKILL)
            found += [batch["n"].tolist() for batch in stream]
            assert found == local
            found = batches(data)
        assert sorted(numbers(found)) == sorted(numbers(local))


def fetch_process(server: int) -> int:
    """The fetch process of a server."""
    for status_file in Path("/proc").glob("[0-9]*/status"):
        try:
            lines = dict(line.split(":\t", 1) for line in status_file.read_text().splitlines() if ":\t" in line)
            command = (status_file.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if int(lines["PPid"]) == server and b"fetch_process" in command:
            return int(lines["Pid"])
    raise AssertionError("no fetch process")


def test_the_fetch_process_ends_with_a_killed_server(filled: HttpStore, provider: str, cache: Path) -> None:
    service = pydp2.launch(urls(filled), provider, workers=1, remote_cache=cache)
    pid = fetch_process(service.pid)
    os.kill(service.pid, signal.SIGKILL)
    assert wait_until(lambda: not Path(f"/proc/{pid}").exists())
    service.close()


def test_a_missing_file_is_an_error_of_the_data(filled: HttpStore, provider: str, cache: Path) -> None:
    with (
        pydp2.load([filled.url("none.txt")], provider, workers=1, remote_cache=cache, **JOB) as data,
        pytest.raises(ProviderError, match=r"none\.txt does not exist") as error,
    ):
        batches(data)
    assert isinstance(error.value, FileNotFoundError)


def test_a_store_without_an_answer_is_an_error_and_other_files_go_on(
    filled: HttpStore, provider: str, cache: Path
) -> None:
    names = [*filled.files][:3]

    def broken(handler: Any, body: bytes) -> bool:
        if names[1] not in handler.path:
            return False
        handler.refuse(503)
        return True

    filled.always = broken
    options: Any = {"workers": 1, "remote_cache": cache, "remote_timeout": 1.0, "on_error": "skip"}
    with pydp2.load([filled.url(name) for name in names], provider, **options, **JOB) as data:
        assert len(numbers(batches(data))) == 2 * ROWS
        assert data.stats()["workers_lost"] == 0


def test_a_file_that_changes_in_mid_pass_is_an_error_that_names_both_versions(
    store: HttpStore, provider_file: Callable[[str], str], cache: Path
) -> None:
    store.files = {"a.txt": b"1\n" * (20 << 20)}
    provider = provider_file(PROVIDER)

    def change(handler: Any, body: bytes) -> bool:
        store.always = None
        store.files["a.txt"] = b"2\n" * (20 << 20)
        return False

    with pydp2.load([store.url("a.txt")], provider, workers=1, remote_cache=cache, batch_size=1000) as data:
        stream = iter(data)
        next(stream)
        store.always = change
        store.files["a.txt"] = b"2\n" * (20 << 20)
        with pytest.raises(ProviderError, match=r"has changed while it is read: it was version .*, and is version "):
            list(stream)


def test_workers_of_another_host_have_a_fetch_process_of_their_own(
    filled: HttpStore, local: list[list[int]], provider: str, cache: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run.json"
    options: Any = {"workers": 0, "bind": "tcp://127.0.0.1:*", "connection": run, "remote_cache": cache}
    with pydp2.launch(urls(filled), provider, **options) as service:
        command = [sys.executable, "-m", "pydp2", "worker", "--connect", str(run), "--workers", "2"]
        environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "home")}
        with subprocess.Popen(command, env=environment, cwd=tmp_path) as host:
            try:
                with pydp2.connect(run, **JOB) as data:
                    assert batches(data) == local
                assert service.stats()["remote"] is None
            finally:
                host.terminate()
    assert filled.counts() == {"GET": FILES}
    assert len([*(tmp_path / "home" / "pydp2" / "remote").rglob("*.data")]) == FILES


def test_a_host_may_have_a_folder_and_a_limit_of_its_own_for_copies(
    filled: HttpStore, local: list[list[int]], provider: str, tmp_path: Path
) -> None:
    run, copies = tmp_path / "run.json", tmp_path / "copies"
    options: Any = {"workers": 0, "bind": "tcp://127.0.0.1:*", "connection": run}
    with pydp2.launch(urls(filled), provider, **options):
        host = pydp2.WorkerHost(run, workers=1, remote_cache=copies, remote_cache_size="1MiB")
        thread = threading.Thread(target=host.run)
        thread.start()
        try:
            with pydp2.connect(run, **JOB) as data:
                assert batches(data) == local
            assert 0 < sum(path.stat().st_blocks * 512 for path in copies.rglob("*.data")) <= 1 << 20
        finally:
            host.close()
            thread.join()
        with pytest.raises(pydp2.errors.OptionError, match="remote_cache_size must be"):
            pydp2.WorkerHost(run, remote_cache_size="much")


def test_the_cache_of_samples_on_disk_knows_the_version_of_a_remote_file(
    filled: HttpStore, local: list[list[int]], provider_file: Callable[[str], str], cache: Path, tmp_path: Path
) -> None:
    provider = provider_file(PROVIDER.replace("pool_size", "cache=CacheType.CACHE_PASS_ON_DISK, pool_size"))
    options: Any = {"workers": 2, "remote_cache": cache, "cache_dir": tmp_path / "samples"}

    def one_pass() -> list[list[int]]:
        with pydp2.load(urls(filled), provider, **options, **JOB) as data:
            found = batches(data)
            assert wait_until(lambda: data.stats()["cache"]["disk"]["written"] + read_of(data) == FILES)
            return found

    def read_of(data: pydp2.Client) -> int:
        return int(data.stats()["cache"]["disk"]["read"])

    assert one_pass() == local
    before = filled.counts()
    assert one_pass() == local
    assert filled.counts() - before == {"HEAD": FILES}, "the samples are on disk, and one request each says so"
    filled.files["03.txt"] = filled.files["03.txt"].replace(b"3000\n", b"77777\n")
    changed = numbers(one_pass())
    assert sorted(changed) == sorted([*(n for n in numbers(local) if n != 3000), 77777])


def test_a_killed_server_goes_on_in_the_middle_of_a_file_and_asks_for_what_is_missing(
    store: HttpStore, provider: str, cache: Path, tmp_path: Path
) -> None:
    lines, sent, lock = b"".join(b"%0800d\n" % line for line in range(30_000)), 0, threading.Lock()
    held, killed = 20 << 20, threading.Event()  # what lies behind is sent once the server was killed
    store.files = {"big.txt": lines}
    (tmp_path / "big.txt").write_bytes(lines)

    def in_two_parts(handler: Any, body: bytes) -> bool:
        nonlocal sent
        if handler.command == "HEAD":
            return False
        start, stop = parsed(handler.headers.get("Range", ""), len(body))
        handler.begin(len(body), start, stop, etag(body), partial=True)
        for at in range(start, stop, 1 << 18):
            assert at < held or killed.wait(60)
            handler.wfile.write(body[at : min(at + (1 << 18), stop)])
            with lock:
                sent += min(at + (1 << 18), stop) - at
        return True

    job: dict[str, Any] = {"batch_size": 64, "seed": 3}
    with pydp2.load([str(tmp_path / "big.txt")], provider, workers=1, **job) as data:
        wanted = batches(data)
    store.always = in_two_parts
    options: Any = {"workers": 1, "remote_cache": cache, "state_dir": tmp_path / "state"}
    options["bind"] = f"ipc://{tmp_path}/s"
    service = pydp2.launch([store.url("big.txt")], provider, **options)
    try:
        with service.connect(timeout=60.0, **job) as data:
            stream = iter(data)
            found = [next(stream)["n"].tolist() for _ in range(20)]
            assert wait_until(lambda: sent >= held)
            fetching = fetch_process(service.pid)
            os.kill(service.pid, signal.SIGKILL)
            service.close()
            assert wait_until(lambda: not Path(f"/proc/{fetching}").exists())
            killed.set()
            service = pydp2.launch([store.url("big.txt")], provider, **options)
            found += [batch["n"].tolist() for batch in stream]
    finally:
        killed.set()
        service.close()
    assert found == wanted
    # whole blocks stay; each request under way loses at most a block that is not whole, and what was on its way
    assert sent <= len(lines) + 16 * (2 << 20)
    assert sent < 1.6 * len(lines)


def test_no_signature_of_a_url_is_shown(
    filled: HttpStore, provider: str, cache: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    filled.always = status(403)
    signed = f"{filled.url('00.txt')}?X-Amz-Signature=hushhushhush&sig=hushhushhush"
    options: Any = {"workers": 1, "remote_cache": cache}
    with pydp2.load([signed], provider, **options, **JOB) as data, pytest.raises(ProviderError) as error:
        batches(data)
    assert "403 Forbidden" in str(error.value)
    with pydp2.load([signed], provider, on_error="skip", **options, **JOB) as data:
        assert batches(data) == []
    shown = [str(error.value), repr(error.value), *capfd.readouterr()]
    assert not any("hush" in text for text in shown)
    assert any("Signature" in text for text in shown)
    stored = [path for path in cache.rglob("*") if path.is_file() and b"hush" in path.read_bytes()]
    assert stored == []


def test_the_cache_command_shows_verifies_and_removes_copies(
    filled: HttpStore, provider: str, cache: Path, cli: Callable[..., Result]
) -> None:
    with pydp2.load(urls(filled)[:3], provider, workers=1, remote_cache=cache, **JOB) as data:
        batches(data)
    shown = cli("cache", "ls", "--cache_dir", cache)
    assert [name in shown.stdout for name in filled.files] == [True] * 3 + [False] * (FILES - 3)
    assert cli("cache", "verify", "--cache_dir", cache).exit_code == 0
    next(cache.rglob("*.data")).write_bytes(b"x" * len(filled.files["00.txt"]))
    done = cli("cache", "verify", "--cache_dir", cache)
    assert done.exit_code == 1
    assert "1 block of http://127.0.0.1" in done.stdout
    assert cli("cache", "clear", "--cache_dir", cache).exit_code == 0
    assert not [*cache.rglob("*.data")]


def test_patterns_of_a_web_server_are_refused(filled: HttpStore, provider: str) -> None:
    with pytest.raises(StoreError, match="an HTTP server has no listing of its files; write a list"):
        pydp2.launch(filled.url("*.txt"), provider)
