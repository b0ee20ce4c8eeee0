"""Files of every format give the samples that they give on the disk, whole and in parts."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pydp2.errors import ProviderError
from pydp2.file_parts import part_entries
from pydp2.formats import comma, dmlc_recordio
from pydp2.providers import Provider, resolve
from pydp2.remote.owner import FetchOwner

from ..formats.written_by_others import write
from .http_store import HttpStore, status

N = 300


def served(module: str, entry: str, args: dict[str, Any], start: int = 0) -> list[Any]:
    """The samples of an entry from ``start`` on."""
    provider: Provider = resolve(f"pydp2.formats.{module}")
    running = provider.start(file_list=[entry], args=args)
    return [plain(sample) for sample in running.open_file(entry, file_index=0, seed=0, pass_id=0, start=start)]


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


def a_parquet(folder: Path) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.table({"n": list(range(N)), "text": [f"text {i}" * (i % 50) for i in range(N)]})
    parquet.write_table(table, folder / "a.parquet", row_group_size=50)
    return folder / "a.parquet"


def an_arrow(folder: Path) -> Path:
    pytest.importorskip("pyarrow")
    return write(folder, "polars.arrow")


def a_csv(folder: Path) -> Path:
    pytest.importorskip("pyarrow")
    (folder / "a.csv").write_text("n,text\n" + "".join(f'{i},"text, {i}"\n' for i in range(N)))
    return folder / "a.csv"


def a_comma(folder: Path) -> Path:
    comma.write(folder / "a.comma", np.arange(N * 3, dtype=np.float32).reshape(N, 3) / 8)
    return folder / "a.comma"


def a_jsonl(folder: Path) -> Path:
    import zstandard

    lines = "".join(json.dumps({"text": f"document {i}", "n": i}) + "\n" for i in range(N))
    (folder / "a.jsonl.zst").write_bytes(zstandard.compress(lines.encode()))
    return folder / "a.jsonl.zst"


def a_tar(folder: Path) -> Path:
    with tarfile.open(folder / "a.tar", "w") as archive:
        for i in range(N):
            for extension, data in (("txt", b"text %d" % i), ("cls", b"%d" % (i % 10))):
                member = tarfile.TarInfo(f"{i:05d}.{extension}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    return folder / "a.tar"


def a_rec(folder: Path) -> Path:
    dmlc_recordio.write(folder / "a.rec", [bytes([i % 250]) * (i % 90) for i in range(N)])
    return folder / "a.rec"


def a_tfrecord(folder: Path) -> Path:
    return write(folder, "pypi.tfrecord")


def tokens(folder: Path) -> Path:
    np.save(folder / "a.npy", np.arange(N * 64, dtype=np.uint16))
    return folder / "a.npy"


def an_hdf5(folder: Path) -> Path:
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "a.h5", "w") as file:
        file["n"] = np.arange(N)
    return folder / "a.h5"


def an_lmdb(folder: Path) -> Path:
    lmdb = pytest.importorskip("lmdb")
    with (
        lmdb.open(str(folder / "a.lmdb"), subdir=False, map_size=1 << 24) as opened,
        opened.begin(write=True) as change,
    ):
        for i in range(N):
            change.put(b"%05d" % i, b"value %d" % i)
    return folder / "a.lmdb"


def a_zarr(folder: Path) -> Path:
    zarr = pytest.importorskip("zarr")
    store = zarr.storage.ZipStore(str(folder / "a.zarr.zip"), mode="w")
    array = zarr.group(store).create_array("n", shape=(N,), chunks=(64,), dtype="int64")
    array[:] = np.arange(N)
    store.close()
    return folder / "a.zarr.zip"


CASES: list[tuple[str, Callable[[Path], Path], dict[str, Any]]] = [
    ("parquet", a_parquet, {}),
    ("arrow", an_arrow, {}),
    ("csv", a_csv, {}),
    ("comma", a_comma, {"label": 0}),
    ("jsonl", a_jsonl, {}),
    ("tar", a_tar, {}),
    ("dmlc_recordio", a_rec, {"header": False}),
    ("tfrecord", a_tfrecord, {}),
    ("tokens", tokens, {"length": 64}),
    ("hdf5", an_hdf5, {}),
    ("lmdb", an_lmdb, {}),
    ("zarr", a_zarr, {}),
]
UNSPLIT = {"jsonl"}  # compressed files have no parts


@pytest.mark.may_leave(threads=False, descriptors=False)  # of pyarrow and zarr
@pytest.mark.parametrize(("module", "make", "args"), CASES, ids=[case[0] for case in CASES])
def test_a_remote_file_gives_the_samples_of_the_local_one(
    module: str, make: Callable[[Path], Path], args: dict[str, Any], tmp_path: Path, store: HttpStore,
    fetching: FetchOwner,
) -> None:  # fmt: skip
    path = make(tmp_path)
    store.files[path.name] = path.read_bytes()
    url = store.url(path.name)
    local = served(module, str(path), args)
    assert len(local) > 3
    assert served(module, url, args) == local
    half = len(local) // 2
    assert served(module, url, args, half) == served(module, str(path), args, half)
    if module not in UNSPLIT:
        assert [sample for entry in part_entries(url, 3) for sample in served(module, entry, args)] == local


def test_what_a_store_refuses_is_an_error_of_the_format(store: HttpStore, fetching: FetchOwner) -> None:
    store.always = status(403)
    with pytest.raises(ProviderError, match="403 Forbidden"):
        served("jsonl", store.url("a.jsonl"), {})


def test_the_index_of_tokens_is_looked_for_beside_them(tmp_path: Path, store: HttpStore, fetching: FetchOwner) -> None:
    for name in ("megatron_uint16.bin", "megatron_uint16.idx"):
        store.files[name] = write(tmp_path, name).read_bytes()
    local = served("tokens", str(tmp_path / "megatron_uint16.bin"), {"length": 4})
    assert served("tokens", store.url("megatron_uint16.bin"), {"length": 4}) == local
