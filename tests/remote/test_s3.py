"""Remote files in buckets of S3, on moto's server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("moto")

import boto3
import pydp2_samples
from moto.server import ThreadedMotoServer

import pydp2
from pydp2.errors import ListError, ProviderError
from pydp2.remote.remote_file import list_remote

from ..runs import wait_until

SECRET = "hushhushhushhush"
JOB: dict[str, Any] = {"batch_size": 32, "seed": 7}


PROVIDER = """
@provider(input_types={"pixel": dense_vector(64), "label": integer_value(10)}, pool_size=1024)
def process(settings, filename):
    with settings.open(filename, "r") as lines:
        for line in lines:
            label, pixels = line.split(";")
            yield {"pixel": [float(p) for p in pixels.split()], "label": int(label)}
"""


def digits() -> list[Path]:
    return sorted(Path(pydp2_samples.path("digits")).glob("part-*.txt"))


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    running = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    yield f"http://{host}:{port}"
    running.stop()


@pytest.fixture
def bucket(server: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A bucket with the digits, and the environment to read it."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": server,
    }.items():
        monkeypatch.setenv(name, value)
    made = boto3.resource("s3").Bucket("digits")
    made.create()
    for path in digits():
        made.upload_file(str(path), f"data/{path.name}")
    made.put_object(Key="data/sub/other.txt", Body=b"x")
    made.put_object(Key="data/folder/", Body=b"")
    yield made
    made.objects.all().delete()
    made.delete()


def test_the_digits_in_a_bucket_give_the_batches_of_those_on_the_disk(
    bucket: Any, tmp_path: Path, provider_file: Callable[[str], str]
) -> None:
    provider, options = provider_file(PROVIDER), {"workers": 2, **JOB}
    with pydp2.load(digits(), provider, **options) as data:
        local = [batch["label"].tolist() for batch in data]
    with pydp2.load("s3://digits/data/*.txt", provider, remote_cache=tmp_path, **options) as data:
        assert [batch["label"].tolist() for batch in data] == local
        assert wait_until(lambda: data.stats()["remote"]["requests"] == len(digits()))


def test_a_listing_has_files_alone_and_their_parts(bucket: Any) -> None:
    found = list_remote(["s3://digits/**", "s3://digits/data/*.txt?part=1/3", "s3://digits/none/*"])
    assert "s3://digits/data/sub/other.txt" in found["s3://digits/**"]
    assert not any(url.endswith("/") for url in found["s3://digits/**"])
    assert all(url.endswith(".txt?part=1/3") for url in found["s3://digits/data/*.txt?part=1/3"])
    assert found["s3://digits/none/*"] == []


def test_a_pattern_that_matches_nothing_is_an_error(bucket: Any, provider_file: Callable[[str], str]) -> None:
    with pytest.raises(ListError, match=r"no remote file matches s3://digits/none/\*"):
        pydp2.launch("s3://digits/none/*", "a.b")
    with pytest.raises(ListError, match="s3://other/ does not exist: there is no such bucket"):
        pydp2.launch("s3://other/*", "a.b")


def test_a_list_in_a_bucket_names_files_there(bucket: Any, tmp_path: Path, provider_file: Callable[[str], str]) -> None:
    bucket.put_object(Key="train.list", Body="".join(f"s3://digits/data/{p.name}\n" for p in digits()).encode())
    provider = provider_file(PROVIDER)
    with pydp2.load(digits(), provider, workers=1, **JOB) as data:
        local = [batch["label"].tolist() for batch in data]
    with pydp2.load("s3://digits/train.list", provider, workers=1, remote_cache=tmp_path, **JOB) as data:
        assert [batch["label"].tolist() for batch in data] == local


@pytest.mark.parametrize("suffix", ["", "/", "/?part=1/2"])
def test_a_folder_of_pictures_is_listed_in_the_order_of_a_local_one(bucket: Any, tmp_path: Path, suffix: str) -> None:
    names = [f"{label}/{where}{i}.jpg" for label in ("b", "a", "c c") for where in ("", "x/") for i in (9, 10, 1)]
    for name in (*names, "a/notes.txt", ".git/1.jpg", "top.jpg"):
        bucket.put_object(Key=f"pics/{name}", Body=name.encode())
        (tmp_path / "pics" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "pics" / name).write_bytes(name.encode())
    options: dict[str, Any] = {"batch_size": 1, "seed": 3, "shuffle": False}
    with pydp2.load([f"{tmp_path / 'pics'}{suffix.lstrip('/')}"], "pydp2.formats.images", **options) as data:
        local = [(str(batch["path"][0]), int(batch["label"][0])) for batch in data]
    with pydp2.load(
        [f"s3://digits/pics{suffix}"], "pydp2.formats.images", remote_cache=tmp_path / "cache", **options
    ) as data:
        assert [(str(batch["path"][0]), int(batch["label"][0])) for batch in data] == local
    assert len(local) == (18 if not suffix.endswith("2") else 9)


@pytest.mark.may_leave(threads=False, descriptors=False)  # of zarr, which writes the folder
def test_arrays_of_a_zarr_folder_are_found_by_a_listing(bucket: Any, tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    group = zarr.open_group(tmp_path / "a.zarr", mode="w")
    for name in ("x", "y"):
        group.create_array(name, shape=(30,), dtype="int64", chunks=(10,))[:] = range(30)
    for path in (tmp_path / "a.zarr").rglob("*"):
        if path.is_file():
            bucket.upload_file(str(path), str(path.relative_to(tmp_path)))
    with pydp2.load("s3://digits/a.zarr", batch_size=30, seed=1, remote_cache=tmp_path / "cache") as data:
        (batch,) = data
        assert sorted(batch["x"].tolist()) == sorted(batch["y"].tolist()) == list(range(30))


def test_refused_credentials_name_the_store_and_where_they_were_looked_for(
    tmp_path: Path, provider_file: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, refusing: str
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_ENDPOINT_URL", refusing)
    provider = provider_file(
        """
        @provider(input_types=[integer_value(10)])
        def process(settings, filename):
            yield len(settings.open(filename).read())
        """
    )
    with (
        pydp2.load(["s3://digits/a"], provider, workers=1, remote_cache=tmp_path, **JOB) as data,
        pytest.raises(ProviderError) as error,
    ):
        list(data)
    text = str(error.value)
    assert "s3://digits/a cannot be read: s3 answered 403 Forbidden" in text
    assert "credentials were looked for in AWS_ACCESS_KEY_ID" in text
    assert SECRET not in text


@pytest.fixture
def refusing() -> Iterator[str]:
    from .http_store import http_store, status

    with http_store() as store:
        store.always = status(403)
        yield store.address
