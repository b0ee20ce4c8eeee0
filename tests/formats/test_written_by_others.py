"""Files that polars, duckdb, fastparquet, pandas, datasets, webdataset, tfrecord and Megatron wrote are read."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pydp2
from pydp2.file_parts import FilePart
from pydp2.formats import arrow, tokens
from pydp2.providers import Provider, resolve

from .written_by_others import write

pytest.importorskip("pyarrow")

NUM = [1, 2, 3, 4, 5, 6]
WORD = ["a", "b", "é", "a", "b", "a"]
NAME = ["a name of more than twelve bytes", *WORD[1:]]
LISTS = [[1, 2], [3], [], [4, 5, 6], [7], [8]]
VECTORS = [[float(i), float(i + 1)] for i in range(6)]
POLARS = {
    "num": NUM, "word": WORD, "name": NAME, "list": LISTS, "vec": VECTORS,
    "s.a": list(range(6)), "s.b": [str(i) for i in range(6)],
}  # fmt: skip


def plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def served(module: str, path: Path, start: int = 0, **args: Any) -> dict[str, list[Any]]:
    """The samples from ``start`` on as columns by the names of their slots."""
    provider: Provider = resolve(f"pydp2.formats.{module}")
    running = provider.start(file_list=[str(path)], args=args)
    samples = list(running.open_file(str(path), file_index=0, seed=0, pass_id=0, start=start))
    return {name: [plain(sample[name]) for sample in samples] for name in running.schema.slots.names or ()}


@pytest.mark.parametrize(
    ("module", "name", "expected"),
    [
        ("parquet", "polars.parquet", POLARS),
        ("arrow", "polars.arrow", POLARS),
        ("arrow", "polars_stream.arrow", POLARS),
        ("parquet", "duckdb.parquet", {key: POLARS[key] for key in ("num", "word", "name", "list", "s.a", "s.b")}),
        ("parquet", "duckdb_v2.parquet", {"num": NUM, "word": WORD}),
        ("parquet", "fastparquet.parquet", {"num": NUM, "word": WORD, "name": NAME}),
        ("parquet", "pandas.parquet", {"num": NUM, "word": WORD}),
        ("arrow", "hf", {"num": NUM, "word": WORD, "list": LISTS}),
        ("arrow", "hf_shuffled", {key: [values[i - 1] for i in (4, 3, 6, 5, 1, 2)]
                                  for key, values in {"num": NUM, "word": WORD, "list": LISTS}.items()}),
    ],
)  # fmt: skip
def test_tables_are_read_from_any_row_on(
    module: str, name: str, expected: dict[str, list[Any]], tmp_path: Path
) -> None:
    path = write(tmp_path, name)
    for start in range(7):
        assert served(module, path, start) == {key: values[start:] for key, values in expected.items()}


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the kernel does not count threads here")
@pytest.mark.parametrize(
    ("module", "name"),
    [("parquet", "polars.parquet"), ("arrow", "polars.arrow"), ("arrow", "pyarrow"), ("arrow", "hf")],
)
def test_slots_are_found_without_a_thread_so_that_workers_are_forked(module: str, name: str, tmp_path: Path) -> None:
    path = write(tmp_path, name)
    if name == "pyarrow":
        pa: Any = pytest.importorskip("pyarrow")
        table = pa.table({"num": NUM, "word": pa.array(WORD).dictionary_encode()})
        with pa.ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table)
    code = (
        "import os, sys, numpy\nfrom pydp2.providers import resolve\n"
        "count = lambda: len(os.listdir('/proc/self/task'))\n"
        "before = count()\nresolve(sys.argv[1]).start(file_list=sys.argv[2:])\nprint(count() - before)"
    )
    words = [sys.executable, "-c", code, f"pydp2.formats.{module}", str(path)]
    environment = os.environ | {"JE_ARROW_MALLOC_CONF": "background_thread:false"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "0\n"


@pytest.mark.parametrize("name", ["polars.arrow", "hf"])
def test_rows_are_read_directly_and_in_parts(name: str, tmp_path: Path) -> None:
    path = write(tmp_path, name)
    for chosen in ([], [0], [1, 4], [0, 2, 3, 5]):
        batches = arrow.read(path, indices=np.array(chosen, np.int64))
        assert [number for batch in batches for number in batch.column("num").to_pylist()] == [NUM[i] for i in chosen]
    parts = [arrow.read(path, part=FilePart(i, 4)) for i in range(4)]
    assert [n for part in parts for batch in part for n in batch.column("num").to_pylist()] == NUM


def test_views_of_strings_have_the_value_that_stands_for_a_null(tmp_path: Path) -> None:
    pa: Any = pytest.importorskip("pyarrow")
    views = pa.array(["a", None, "a name of more than twelve bytes"], pa.string_view())
    words = pa.DictionaryArray.from_arrays(pa.array([0, None, 1]), pa.array(["x", "y"], pa.string_view()))
    table = pa.table({"view": views, "word": words})
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table)
    assert served("arrow", tmp_path / "a.arrow", nulls={"view": "none", "word": "?"}) == {
        "view": ["a", "none", "a name of more than twelve bytes"],
        "word": ["x", "?", "y"],
    }


def test_a_tar_gz_of_webdataset_is_read_and_decoded(tmp_path: Path) -> None:
    found = served("tar", write(tmp_path, "wds.tar.gz"), decode={"cls": "int", "txt": "text"})
    assert (found["key"], found["cls"]) == ([f"set/{i:03d}" for i in range(3)], [0, 1, 2])
    assert [json.loads(record) for record in found["json"]] == [{"n": i} for i in range(3)]
    assert found["txt"] == [f"text {i} é" for i in range(3)]
    assert [np.load(io.BytesIO(data)).tolist() for data in found["npy"]] == [[*range(i + 1)] for i in range(3)]


def test_records_of_the_package_tfrecord_are_read(tmp_path: Path) -> None:
    found = served("tfrecord", write(tmp_path, "pypi.tfrecord"))
    assert found == {
        "image": [bytes([i]) * i for i in range(4)],
        "label": [-i for i in range(4)],
        "x": [[0.5 * i, 1.0] for i in range(4)],
    }


@pytest.mark.parametrize("dtype", ["uint16", "int32"])
def test_files_of_the_builder_of_megatron_are_read_by_their_documents(dtype: str, tmp_path: Path) -> None:
    write(tmp_path, f"megatron_{dtype}.idx")
    path = write(tmp_path, f"megatron_{dtype}.bin")
    assert served("tokens", path) == {"tokens": [[1, 2, 3, 4, 5], [6, 7], [8]]}
    assert [window.tolist() for windows in tokens.read(path, length=3) for window in windows] == [[1, 2, 3], [4, 5, 6]]
    data = pydp2.load([str(path)], "pydp2.formats.tokens", args={"length": 4}, batch_size=2, shuffle=False)
    with data:
        assert [batch["tokens"].tolist() for batch in data] == [[[1, 2, 3, 4], [5, 6, 7, 8]]]
