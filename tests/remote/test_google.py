"""Files of Google Cloud Storage, on a server that has the part of its interface that is used: objects and listings."""

from __future__ import annotations

import email.utils
import json
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from pydp2.remote.owner import FetchOptions, FetchOwner
from pydp2.remote.remote_file import MissingFile, RemoteFile, list_remote, remote_children, use_fetch_process

from .http_store import Handler, HttpStore, etag, parsed

NAMES = ("data/a b.txt", "data/b.txt", "data/sub/c.txt", "README.md")


def answer(handler: Handler, body: bytes) -> bool:
    """Objects as Google sends them, with the time of their last change; and listings."""
    store, url = handler.store, urlsplit(handler.path)
    given = {name: values[0] for name, values in parse_qs(url.query).items()}
    if "list-type" in given:
        prefix, delimiter = given.get("prefix", ""), given.get("delimiter", "")
        names = sorted(name.removeprefix("bucket/") for name in store.files)
        rests = [(name, name[len(prefix) :]) for name in names if name.startswith(prefix)]
        folders = {prefix + rest.partition("/")[0] + "/" for _, rest in rests if delimiter and "/" in rest}
        objects = "".join(
            f"<Contents><Key>{name}</Key><Size>{len(store.files[f'bucket/{name}'])}</Size><ETag>x</ETag>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            for name, rest in rests
            if not (delimiter and "/" in rest)
        )
        prefixes = "".join(f"<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>" for name in sorted(folders))
        data = f"<ListBucketResult>{objects}{prefixes}</ListBucketResult>".encode()
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)
        return True
    content = store.files.get(unquote(url.path).lstrip("/"))
    if content is None:
        handler.refuse(404)
        return True
    wanted = handler.headers.get("Range", "")
    start, stop = parsed(wanted, len(content)) if wanted else (0, len(content))
    handler.send_response(206 if wanted else 200)
    if wanted:
        handler.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(content)}")
    handler.send_header("ETag", etag(content))
    handler.send_header("Last-Modified", email.utils.formatdate(1_700_000_000, usegmt=True))
    handler.send_header("Content-Length", str(stop - start))
    handler.end_headers()
    if handler.command == "GET":
        handler.wfile.write(content[start:stop])
    return True


@pytest.fixture
def bucket(store: HttpStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HttpStore:
    account = {"gcs_base_url": store.address, "disable_oauth": True, "client_email": "", "private_key": "",
               "private_key_id": ""}  # fmt: skip
    (tmp_path / "account.json").write_text(json.dumps(account))
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(tmp_path / "account.json"))
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", store.address)
    store.files = {f"bucket/{name}": name.encode() * 300_000 for name in NAMES}
    store.always = answer
    return store


def test_files_are_listed_and_read(bucket: HttpStore, tmp_path: Path) -> None:
    assert list_remote(["gs://bucket/data/*.txt"]) == {
        "gs://bucket/data/*.txt": ["gs://bucket/data/a b.txt", "gs://bucket/data/b.txt"]
    }
    owner = FetchOwner(FetchOptions(str(tmp_path / "cache"), timeout=20.0))
    use_fetch_process(owner.address)
    try:
        assert remote_children("gs://bucket/data") == [
            "gs://bucket/data/a b.txt",
            "gs://bucket/data/b.txt",
            "gs://bucket/data/sub/",
        ]
        for name in NAMES:
            with RemoteFile(f"gs://bucket/{name}") as file:
                assert file.read() == bucket.files[f"bucket/{name}"]
        with pytest.raises(MissingFile):
            RemoteFile("gs://bucket/none")
    finally:
        use_fetch_process("")
        owner.close()
