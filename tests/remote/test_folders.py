"""Folders in a store give the samples that they give on the disk; files are asked for by name, without a listing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pydp2
from pydp2.errors import FormatError, ListError, ProviderError
from pydp2.file_parts import part_entries
from pydp2.formats import arrow, images, lance
from pydp2.providers.suffixes import is_data, suffix_of
from pydp2.remote.owner import FetchOwner

from ..formats import mds_folders
from ..formats.written_by_others import write
from .http_store import HttpStore, status
from .test_formats import served

N = 60


def uploaded(store: HttpStore, folder: Path) -> str:
    """Put the files of ``folder`` into the store; return the URL of the folder, without a slash."""
    for path in folder.rglob("*"):
        if path.is_file():
            store.files[f"{folder.name}/{path.relative_to(folder)}"] = path.read_bytes()
    return store.url(folder.name)


def an_mds(folder: Path) -> Path:
    return mds_folders.unpack(folder / "mds", mds_folders.FEW)


def a_saved_dataset(folder: Path) -> Path:
    pytest.importorskip("pyarrow")
    for name in ("state.json", *(f"data-0000{i}-of-00003.arrow" for i in range(3))):
        write(folder, f"hf/{name}")
    return folder / "hf"


def an_lmdb(folder: Path) -> Path:
    lmdb = pytest.importorskip("lmdb")
    with lmdb.open(str(folder / "a.lmdb"), map_size=1 << 24) as opened, opened.begin(write=True) as change:
        for i in range(N):
            change.put(b"%05d" % i, b"value %d" % i)
    return folder / "a.lmdb"


def a_zarr(folder: Path, version: int, shards: bool = False) -> Path:
    zarr = pytest.importorskip("zarr")
    group = zarr.open_group(folder / "a.zarr", mode="w", zarr_format=version)
    options: dict[str, Any] = {"shards": (20, 4)} if shards else {}
    made = group.create_array("x", shape=(N, 4), dtype="float32", chunks=(10, 2), **options)
    made[:] = np.arange(N * 4).reshape(N, 4)
    group.create_array("label", shape=(N,), dtype="int64", chunks=(7,))[:] = np.arange(N)
    return folder / "a.zarr"


CASES: list[tuple[str, Callable[[Path], Path], dict[str, Any]]] = [
    ("mds", an_mds, {}),
    ("arrow", a_saved_dataset, {}),
    ("lmdb", an_lmdb, {}),
    ("zarr", lambda folder: a_zarr(folder, 2), {"keys": ["x", "label"]}),
    ("zarr", lambda folder: a_zarr(folder, 3), {"keys": ["x", "label"]}),
    ("zarr", lambda folder: a_zarr(folder, 3, shards=True), {"keys": ["x"]}),
]


@pytest.mark.may_leave(threads=False, descriptors=False)  # of pyarrow and zarr
@pytest.mark.parametrize("end", ["", "/"])
@pytest.mark.parametrize(("module", "make", "args"), CASES, ids=["mds", "arrow", "lmdb", "zarr2", "zarr3", "shards"])
def test_a_remote_folder_gives_the_samples_of_the_local_one(
    module: str, make: Callable[[Path], Path], args: dict[str, Any], end: str, tmp_path: Path, store: HttpStore,
    fetching: FetchOwner,
) -> None:  # fmt: skip
    path = make(tmp_path)
    url = uploaded(store, path) + end
    local = served(module, str(path), args)
    assert len(local) > 3
    assert served(module, url, args) == local
    half = len(local) // 2
    assert served(module, url, args, half) == local[half:]
    assert [sample for entry in part_entries(url, 3) for sample in served(module, entry, args)] == local


@pytest.mark.may_leave(threads=False, descriptors=False)
def test_chunks_that_rows_need_are_asked_for_at_the_same_time(
    tmp_path: Path, store: HttpStore, fetching: FetchOwner
) -> None:
    zarr = pytest.importorskip("zarr")
    group = zarr.open_group(tmp_path / "a.zarr", mode="w")
    group.create_array("x", shape=(8, 8), dtype="float64", chunks=(8, 1))[:] = np.arange(64).reshape(8, 8) + 1
    url = uploaded(store, tmp_path / "a.zarr")
    all_of_them = threading.Barrier(8)

    def wait_for_the_others(handler: Any, body: bytes) -> bool:
        if "/c/" in handler.path:
            all_of_them.wait(60)  # raises, and the client gets no answer, if fewer are asked for at the same time
        return False

    store.always = wait_for_the_others
    assert len(served("zarr", url, {"keys": ["x"]})) == 8
    assert not all_of_them.broken


def test_a_list_of_pictures_and_the_pictures_may_be_remote(store: HttpStore, fetching: FetchOwner) -> None:
    store.files = {f"pics/{i}.jpg": b"picture %d" % i for i in range(12)}
    lines = [f"{i}.jpg {i}\n" for i in range(11)] + [f"{store.url('pics/11.jpg')} 11\n", "none.jpg 12\n"]
    store.files["pics/train.txt"] = "".join(lines).encode()
    found = served("images", store.url("pics/train.txt"), {})
    assert [(sample["image"], sample["label"]) for sample in found[:12]] == [(b"picture %d" % i, i) for i in range(12)]
    assert f"expected the picture {store.url('pics/none.jpg')}" in str(found[12])
    assert len(found) == 13


def test_pictures_of_a_local_list_may_lie_in_a_remote_folder(
    tmp_path: Path, store: HttpStore, fetching: FetchOwner
) -> None:
    store.files = {"pics/0.jpg": b"zero"}
    (tmp_path / "a.txt").write_text("0.jpg 0\n")
    (tmp_path / "a.lst").write_text("0\t1.0\t0.jpg\n")
    assert [sample["image"] for sample in images.read(tmp_path / "a.txt", folder=store.url("pics"))] == [b"zero"]
    (sample,) = served("lst", str(tmp_path / "a.lst"), {"folder": store.url("pics")})
    assert sample["data"] == [[byte] for byte in b"zero"]


def test_a_folder_without_what_its_format_needs_is_an_error_that_names_it(
    store: HttpStore, fetching: FetchOwner
) -> None:
    with pytest.raises(FormatError, match=r"/none: expected the file or a folder of Dataset.save_to_disk, which has a"):
        arrow.data_files(store.url("none"))
    with pytest.raises(FormatError, match=r"/none/: expected a folder of Dataset.save_to_disk"):
        arrow.data_files(store.url("none/"))
    store.files["splits/dataset_dict.json"] = b'{"splits": ["train"]}'
    with pytest.raises(FormatError, match=r"a folder of splits, name one: http://.*/splits/train"):
        arrow.data_files(store.url("splits"))
    with pytest.raises(ProviderError, match=r"none/index\.json does not exist"):
        served("mds", store.url("none"), {})
    with pytest.raises(FormatError, match="folders of Lance must lie on this machine"):
        lance.Reader("s3://bucket/a.lance")


def test_a_web_server_cannot_list_the_pictures_of_a_folder(store: HttpStore, fetching: FetchOwner) -> None:
    with pytest.raises(ProviderError, match="an HTTP server has no listing of its files"):
        served("images", store.url("pics/"), {})


def test_a_folder_has_the_suffix_of_its_name() -> None:
    assert suffix_of("s3://bucket/a.zarr/") == ".zarr"
    assert is_data("s3://bucket/a.zarr/")
    assert not is_data("s3://bucket/a*.zarr/")


# -- a list that is remote ---------------------------------------------------------------------------------------------
def test_a_list_may_be_remote(tmp_path: Path, store: HttpStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    store.files["train.list"] = f"# parts\n{store.url('a.txt')}\nb.txt\n".encode()
    found = pydp2.api.sources.list_files(f"{store.url('train.list')}?signature=hush")
    assert list(found) == [store.url("a.txt"), "b.txt"]
    assert found.source == f"{store.url('train.list')}?…"


def test_a_remote_list_that_is_missing_is_an_error(
    tmp_path: Path, store: HttpStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ListError, match=r"train\.list is missing: .* if it is a folder of data, its URL must end in /"):
        pydp2.launch(store.url("train.list"), "a.b")
    store.always = status(403)
    with pytest.raises(pydp2.errors.StoreError, match="403 Forbidden"):
        pydp2.launch(store.url("train.list"), "a.b")
