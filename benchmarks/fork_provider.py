"""Provider of :mod:`benchmarks.forks`: use a library in a worker, and before that where an environment variable says.

Each worker of a service uses the library: a worker waits in its file until all others have come to files of their own.
"""

from __future__ import annotations

import importlib
import io
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pydp2 import integer_value, provider

LIBRARY, PLACE = "BENCHMARK_LIBRARY", "BENCHMARK_PLACE"
"""Environment variables: a name of :data:`USES`, and one of :data:`PLACES`."""
PLACES = ("import", "init_hook", "process")
ROWS = 20_000
_WAIT = 20.0  # seconds until the other workers have come to their files


@dataclass(frozen=True)
class Use:
    """How a library is used. ``module``: its name in Python. ``write``: write a file or folder at a path. ``read``:
    read it and return the number of its rows, as a user would, with the library's own defaults. It imports late."""

    module: str
    write: Callable[[Path], object]
    read: Callable[[Path], int]


def _columns() -> dict[str, Any]:
    return {"number": np.arange(ROWS), "text": [f"row {row % 100}" for row in range(ROWS)]}


def _write_parquet(path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(_columns()), path, row_group_size=ROWS // 8)


def _read_pyarrow(path: Path) -> int:
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(path)
    return len(table.group_by("number").aggregate([("text", "count")]))


def _read_polars(path: Path) -> int:
    import polars

    return len(polars.read_parquet(path).group_by("number").agg(polars.col("text").count()))


def _read_duckdb(path: Path) -> int:
    import duckdb

    found = duckdb.sql(f"select count(distinct number) from read_parquet('{path}')").fetchone()
    assert found is not None
    return int(found[0])


def _write_lance(path: Path) -> None:
    import lance
    import pyarrow

    lance.write_dataset(pyarrow.table(_columns()), path)


def _read_lance(path: Path) -> int:
    import lance

    dataset = lance.dataset(path)
    dataset.take([1, ROWS // 2])
    return len(dataset.to_table())


def _write_json(path: Path) -> None:
    import msgspec

    path.write_bytes(msgspec.json.encode(list(range(ROWS))))


def _read_msgspec(path: Path) -> int:
    import msgspec

    return len(msgspec.json.decode(path.read_bytes(), type=list[int]))


def _write_zstd(path: Path) -> None:
    import zstandard

    path.write_bytes(zstandard.ZstdCompressor(threads=2).compress(bytes(ROWS)))


def _read_zstandard(path: Path) -> int:
    import zstandard

    zstandard.ZstdCompressor(threads=2).compress(bytes(ROWS))
    return len(zstandard.ZstdDecompressor().decompress(path.read_bytes()))


def _write_jpeg(path: Path) -> None:
    from PIL import Image

    Image.fromarray(np.zeros((ROWS // 100, 100, 3), np.uint8)).save(path, "jpeg")


def _read_pillow(path: Path) -> int:
    from PIL import Image

    width, height = Image.open(io.BytesIO(path.read_bytes())).convert("L").resize((100, ROWS // 100)).size
    return width * height


def _write_bytes(path: Path) -> None:
    path.write_bytes(bytes(ROWS))


def _read_crc32c(path: Path) -> int:
    import google_crc32c

    data = path.read_bytes()
    return len(data) if google_crc32c.value(data) else 0


def _read_numpy(path: Path) -> int:
    square = np.frombuffer(path.read_bytes(), np.uint8).reshape(-1, 100).astype(np.float64) + 1
    return int((square @ square.T).shape[0]) * 100


def _read_torch(path: Path) -> int:
    import torch

    values = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8).float().reshape(1, 1, -1, 100)
    torch.nn.functional.conv2d(values, torch.ones(8, 1, 3, 3), padding=1).sum().item()
    return (values[0, 0] @ values[0, 0].T).shape[0] * 100


def _write_hdf5(path: Path) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        file.create_dataset("number", data=np.arange(ROWS), chunks=(ROWS // 8,), compression="gzip")


def _read_h5py(path: Path) -> int:
    import h5py

    with h5py.File(path) as file:
        return len(file["number"][:])


def _write_zarr(path: Path) -> None:
    import zarr

    zarr.create_array(str(path), shape=(ROWS,), chunks=(ROWS // 8,), dtype="int64")[:] = np.arange(ROWS)


def _read_zarr(path: Path) -> int:
    import zarr

    return len(zarr.open_array(str(path), mode="r")[:])


def _write_lmdb(path: Path) -> None:
    import lmdb

    with lmdb.open(str(path), map_size=1 << 24) as environment, environment.begin(write=True) as transaction:
        for row in range(ROWS):
            transaction.put(b"%d" % row, b"row")


def _read_lmdb(path: Path) -> int:
    import lmdb

    with lmdb.open(str(path), readonly=True, lock=False) as environment, environment.begin() as transaction:
        return sum(1 for _ in transaction.cursor())


USES = {
    "pyarrow": Use("pyarrow.parquet", _write_parquet, _read_pyarrow),
    "msgspec": Use("msgspec", _write_json, _read_msgspec),
    "zstandard": Use("zstandard", _write_zstd, _read_zstandard),
    "Pillow": Use("PIL.Image", _write_jpeg, _read_pillow),
    "google-crc32c": Use("google_crc32c", _write_bytes, _read_crc32c),
    "numpy": Use("numpy", _write_bytes, _read_numpy),
    "torch": Use("torch", _write_bytes, _read_torch),
    "h5py": Use("h5py", _write_hdf5, _read_h5py),
    "zarr": Use("zarr", _write_zarr, _read_zarr),
    "lmdb": Use("lmdb", _write_lmdb, _read_lmdb),
    "pylance": Use("lance", _write_lance, _read_lance),
    "polars": Use("polars", _write_parquet, _read_polars),
    "duckdb": Use("duckdb", _write_parquet, _read_duckdb),
}

_place = os.environ.get(PLACE)
if _place == "import":
    importlib.import_module(USES[os.environ[LIBRARY]].module)


def _hook(settings: Any, path: str, workers: int, **others: object) -> None:
    settings.path, settings.workers = path, workers
    if _place == "init_hook":
        _use(path)


def _use(path: str) -> None:
    rows = USES[os.environ[LIBRARY]].read(Path(path))
    assert rows == ROWS, rows


@provider(input_types=[integer_value(1 << 40)], init_hook=_hook, should_shuffle=False)
def process(settings: Any, filename: str) -> Iterator[int]:
    """Yield the process number, after the library was used."""
    meeting = Path(filename.partition("?")[0])
    _use(settings.path)
    (meeting / str(os.getpid())).touch()
    until = time.monotonic() + _WAIT
    while len(list(meeting.iterdir())) < settings.workers:
        if time.monotonic() > until:
            raise TimeoutError(f"only {len(list(meeting.iterdir()))} workers of {settings.workers} came to a file")
        time.sleep(0.002)
    yield os.getpid()
