"""A reader waits for the fetch process where another one takes its place, and nowhere for ever."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pydp2.errors import StoreError
from pydp2.remote import remote_file
from pydp2.remote.owner import FetchOptions, FetchOwner
from pydp2.remote.remote_file import RemoteFile, read_remote, remote_children, use_fetch_process

from .http_store import Handler, HttpStore

CONTENT = bytes(range(256)) * 4096  # 1 MiB


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process has a fetch process of its own, with a cache in ``tmp_path``, until the test ends."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    yield
    remote_file._end_own(os.getpid())


def end_fetch_process() -> None:
    own = remote_file._process.own
    assert own is not None
    own._process.send_signal(signal.SIGKILL)
    own._process.wait()


def read(url: str) -> bytes:
    with RemoteFile(url) as file:
        return file.read()


@pytest.mark.parametrize(
    "ask",
    [lambda store: read(store.url("a.bin")), lambda store: remote_children(store.url("folder"))],
    ids=["a file", "a folder"],
)
def test_who_asks_before_the_fetch_process_has_its_socket_waits_for_it(
    ask: Callable[[HttpStore], object], store: HttpStore, tmp_path: Path
) -> None:
    """The init_hook of a provider runs while the server is still imported."""
    store.files["a.bin"] = CONTENT
    address = str(tmp_path / "fetch")
    use_fetch_process(address)
    answers: list[object] = []

    def asking() -> None:
        try:
            answers.append(ask(store))
        except StoreError as error:
            answers.append(str(error))

    reader = threading.Thread(target=asking)
    reader.start()
    reader.join(0.3)
    assert answers == []
    owner = FetchOwner(FetchOptions(str(tmp_path / "cache"), timeout=20.0), address)
    try:
        reader.join(30.0)
        assert answers[0] == CONTENT or "an HTTP server has no listing of its files" in str(answers[0])
    finally:
        use_fetch_process("")
        owner.close()


@pytest.mark.usefixtures("own_cache")
def test_a_program_without_a_service_goes_on_with_another_fetch_process(store: HttpStore) -> None:
    store.files |= {"a.bin": CONTENT, "b.bin": CONTENT}
    with RemoteFile(store.url("a.bin")) as file:
        assert file.read(100) == CONTENT[:100]
        end_fetch_process()
        assert file.read() == CONTENT[100:]
    end_fetch_process()
    assert read(store.url("b.bin")) == CONTENT


@pytest.mark.usefixtures("own_cache")
def test_a_fetch_process_that_ends_while_it_reads_a_list_is_replaced_and_ends_with_it(store: HttpStore) -> None:
    store.files["train.list"] = b"a\nb\n"
    ended: list[bool] = []

    def once(handler: Handler, body: bytes) -> bool:
        if not ended:
            ended.append(True)
            end_fetch_process()
        return False

    store.always = once
    assert read_remote(store.url("train.list"), 100) == b"a\nb\n"
    assert ended
    assert remote_file._process.own is None


@pytest.mark.usefixtures("own_cache")
def test_what_a_fork_reads_does_not_end_the_fetch_process_of_the_program(store: HttpStore) -> None:
    store.files["a.bin"] = CONTENT
    assert read(store.url("a.bin")) == CONTENT
    pid = os.fork()
    if pid == 0:
        os._exit(0 if read(store.url("a.bin")) == CONTENT else 1)
    assert os.waitpid(pid, 0)[1] == 0
    own = remote_file._process.own
    assert read(store.url("a.bin")) == CONTENT
    assert remote_file._process.own is own


def test_where_no_fetch_process_comes_the_error_says_so(
    store: HttpStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_file, "_LOST_SECONDS", 0.3)
    use_fetch_process(str(tmp_path / "none"))
    try:
        for ask in (read, remote_children):
            with pytest.raises(StoreError, match=r"no other one answered within 0\.3 s"):
                ask(store.url("a.bin"))
    finally:
        use_fetch_process("")
