"""Files of repositories of Hugging Face, on a server that has the part of its interface that is used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pydp2.errors import StoreError
from pydp2.remote.owner import FetchOptions, FetchOwner
from pydp2.remote.remote_file import (
    MissingFile,
    RemoteFile,
    list_remote,
    remote_children,
    remote_files,
    use_fetch_process,
)

from .http_store import Handler, HttpStore

pytest.importorskip("huggingface_hub")

from pydp2.remote.hugging_face import split_repository
from pydp2.remote.store import RequestFailed

COMMIT, TOKEN = "a" * 40, "hf_hushhushhush"


class Hub:
    """Answers for the dataset org/name, whose files lie below ``cdn/`` of ``store``."""

    def __init__(self, store: HttpStore) -> None:
        self.store = store
        self.busy = 0
        store.always = self.answer

    def answer(self, handler: Handler, body: bytes) -> bool:
        path = handler.path.partition("?")[0]
        if path.startswith("/cdn/"):
            return False
        if self.busy > 0:
            self.busy -= 1
            handler.refuse(429, Retry_After="0")
        elif handler.headers.get("Authorization") != f"Bearer {TOKEN}":
            handler.refuse(401)
        elif path == "/api/datasets/org/name/revision/main":
            self.json(handler, {"id": "org/name", "sha": COMMIT, "tags": [], "siblings": []})
        elif path.startswith(f"/api/datasets/org/name/tree/{COMMIT}"):
            folder = path.partition(COMMIT)[2].strip("/")
            names = [name.removeprefix("cdn/") for name in self.store.files]
            below = [name for name in names if name.startswith(f"{folder}/" if folder else "")]
            is_deep = "recursive=true" in handler.path.lower()
            tree: list[dict[str, Any]] = [
                {"type": "file", "path": name, "size": len(self.store.files[f"cdn/{name}"]), "oid": "0"}
                for name in below
                if is_deep or str(Path(name).parent) == (folder or ".")
            ]
            if not folder:
                tree.append({"type": "directory", "path": "data", "oid": "0"})
            self.json(handler, tree)
        elif path.startswith(f"/datasets/org/name/resolve/{COMMIT}/"):
            handler.refuse(302, Location=self.store.url(f"cdn/{path.rpartition(COMMIT + '/')[2]}"))
        else:
            handler.refuse(404)
        return True

    def json(self, handler: Handler, plain: Any) -> None:
        data = json.dumps(plain).encode()
        handler.send_response(200)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)


@pytest.fixture
def hub(store: HttpStore, monkeypatch: pytest.MonkeyPatch) -> Hub:
    store.files = {"cdn/data/a.txt": b"one", "cdn/data/b.txt": b"two" * 1000, "cdn/README.md": b"x"}
    monkeypatch.setenv("HF_ENDPOINT", store.address)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    return Hub(store)


def test_files_are_listed_and_read_at_one_commit(hub: Hub, tmp_path: Path) -> None:
    hub.busy = 2  # the server asks for patience
    pattern = "hf://datasets/org/name/data/*.txt"
    found = list_remote([pattern])[pattern]
    assert found == ["hf://datasets/org/name/data/a.txt", "hf://datasets/org/name/data/b.txt"]
    owner = FetchOwner(FetchOptions(str(tmp_path / "cache"), timeout=20.0))
    use_fetch_process(owner.address)
    try:
        for url, content in zip(found, (b"one", b"two" * 1000), strict=True):
            with RemoteFile(url) as file:
                assert file.read() == content
        root = "hf://datasets/org/name/"
        assert remote_children(root) == [f"{root}README.md", f"{root}data/"]
        assert remote_files(root) == [f"{root}README.md", *found]
        with pytest.raises(MissingFile, match=r"hf://datasets/org/name/none\.txt does not exist"):
            RemoteFile("hf://datasets/org/name/none.txt")
    finally:
        use_fetch_process("")
        owner.close()


def test_a_repository_that_is_not_for_this_token_is_refused(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_otherotherother")
    with pytest.raises(StoreError, match="the token was looked for in HF_TOKEN") as error:
        list_remote(["hf://datasets/org/name/*"])
    assert "hf_other" not in str(error.value)


def test_the_parts_of_a_url_are_those_of_the_hub() -> None:
    assert split_repository("hf://datasets/org/name@v1/a/b.txt")[:4] == ("datasets", "org/name", "v1", "a/b.txt")
    assert split_repository("hf://org/model/a").root == "hf://org/model/"
    assert split_repository("hf://datasets/org/name@refs%2Fpr%2F1/x").revision == "refs/pr/1"
    with pytest.raises(RequestFailed, match="expected hf://datasets/NAMESPACE/NAME/PATH"):
        split_repository("hf://datasets/org")
