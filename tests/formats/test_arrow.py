"""Arrow: files, streams, Feather and folders of Hugging Face are served, in parts, any row directly; or refused."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pydp2
from pydp2.data.packers.many_samples import ManySamples
from pydp2.errors import BadSample, FormatError, ProviderError
from pydp2.file_parts import FilePart, part_entries
from pydp2.formats import arrow
from pydp2.providers import resolve

pa: Any = pytest.importorskip("pyarrow")
feather: Any = pytest.importorskip("pyarrow.feather")


def table(count: int, words: bool = True) -> Any:
    columns = {
        "x": (np.arange(count) / 8).astype(np.float32),
        "text": [f"número {i}" for i in range(count)],
        "tags": [[i, i + 1][: i % 3] for i in range(count)],
    }
    if words:
        columns["word"] = pa.array([f"w{i % 5}" for i in range(count)]).dictionary_encode()
    return pa.table(columns)


def a_file(made: Any, rows: int, **options: Any) -> bytes:
    file = io.BytesIO()
    with pa.ipc.new_file(file, made.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(made, max_chunksize=rows)
    return file.getvalue()


def a_stream(made: Any, rows: int, **options: Any) -> bytes:
    file = io.BytesIO()
    with pa.ipc.new_stream(file, made.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(made, max_chunksize=rows)
    return file.getvalue()


def a_feather(made: Any, rows: int, **options: Any) -> bytes:
    file = io.BytesIO()
    feather.write_feather(made, file, chunksize=rows, **options)
    return file.getvalue()


FORMS: dict[str, Callable[..., bytes]] = {"file": a_file, "stream": a_stream, "feather": a_feather}


def save_to_disk(folder: Path, made: Any, files: int = 3, **state: Any) -> Path:
    """A folder as datasets 4.0 writes it, which is no dependency of the tests: streams, and what names them."""
    folder.mkdir()
    names = [f"data-{i:05}-of-{files:05}.arrow" for i in range(files)]
    edges = [len(made) * i // files for i in range(files + 1)]
    for i, name in enumerate(names):
        (folder / name).write_bytes(a_stream(made.slice(edges[i], edges[i + 1] - edges[i]), 7))
    (folder / "dataset_info.json").write_text('{"features": {}}')
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "5", "_split": None} | state
    (folder / "state.json").write_text(json.dumps(state))
    return folder


def listed(batches: Iterator[Any]) -> list[Any]:
    return [row for batch in batches for row in batch.to_pylist()]


def served(path: Any, start: int = 0, indices: Any = None, **args: Any) -> list[Any]:
    running = resolve("pydp2.formats.arrow").start(file_list=[str(path)], args=args)
    opened = running.open_file(str(path), file_index=0, seed=0, pass_id=0, start=start, indices=indices)
    return list(opened)


# -- reading -----------------------------------------------------------------------------------------------------------
@given(
    form=st.sampled_from(sorted(FORMS)),
    count=st.integers(0, 60),
    rows=st.integers(1, 70),
    parts=st.integers(1, 8),
    compression=st.sampled_from([None, "lz4", "zstd"]),
    words=st.booleans(),
    data=st.data(),
)
def test_parts_are_complete_and_any_row_is_read_directly(
    form: str, count: int, rows: int, parts: int, compression: Any, words: bool, data: Any
) -> None:
    made = table(count, words)
    option = compression if form != "feather" else compression or "uncompressed"
    file = io.BytesIO(FORMS[form](made, rows, compression=option))
    whole = listed(arrow.read(file))
    assert whole == made.to_pylist()
    read = [listed(arrow.read(file, part=FilePart(i, parts))) for i in range(parts)]
    assert [row for part in read for row in part] == whole
    assert max(map(len, read)) - min(map(len, read)) <= 1
    start = data.draw(st.integers(0, count + 5))
    assert listed(arrow.read(file, start=start)) == whole[start:]
    index = data.draw(st.integers(0, parts - 1))
    assert listed(arrow.read(file, start=start, part=FilePart(index, parts))) == read[index][start:]
    chosen = sorted(data.draw(st.sets(st.integers(0, max(0, len(read[index]) - 1))))) if read[index] else []
    found = listed(arrow.read(file, part=FilePart(index, parts), indices=np.array(chosen, np.int64)))
    assert found == [read[index][i] for i in chosen]
    assert listed(arrow.read(file, columns=["tags"])) == [{"tags": row["tags"]} for row in whole]


def test_a_file_is_mapped_and_its_rows_are_views(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(a_file(pa.table({"x": np.arange(1 << 18)}), 1 << 18))
    before = pa.total_allocated_bytes()
    read = list(arrow.read(tmp_path / "a"))
    assert sum(batch.nbytes for batch in read) == 8 << 18
    assert max(batch.nbytes for batch in read) <= 1 << 20
    assert pa.total_allocated_bytes() - before < 1 << 16


def test_a_row_is_found_without_reading_those_before_it(tmp_path: Path) -> None:
    data = bytearray(a_file(table(100, words=False), 10))
    at = data.index("número 3".encode())
    data[at : at + 8] = b"\xff" * 8
    (tmp_path / "a").write_bytes(data)
    assert listed(arrow.read(tmp_path / "a", start=10)) == table(100, words=False).to_pylist()[10:]
    with pytest.raises(FormatError, match=r"a: .*UTF8"):
        listed(arrow.read(tmp_path / "a"))
    assert [row["text"] for row in served(tmp_path / "a", indices=np.array([55, 57]))] == ["número 55", "número 57"]


# -- serving -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("form", [*FORMS, "folder"])
def test_a_service_serves_all_rows_in_order(form: str, tmp_path: Path) -> None:
    made = table(500)
    if form == "folder":
        path = save_to_disk(tmp_path / "data", made)
    else:
        path = tmp_path / "a.arrow"
        path.write_bytes(FORMS[form](made, 64))
    files = list(part_entries(str(path), 5))
    seen: dict[str, list[Any]] = {name: [] for name in ("x", "text", "word")}
    args = {"columns": list(seen)}
    with pydp2.load(files, "pydp2.formats.arrow", args=args, batch_size=64, shuffle=False, workers=2) as data:
        for batch in data:
            seen["x"] += batch["x"].tolist()
            seen["text"] += batch["text"].to_list()
            seen["word"] += batch["word"].to_list()
    assert seen == made.select(list(seen)).to_pydict()


def test_indices_are_served_alone() -> None:
    file = io.BytesIO(a_stream(table(50), 8))
    with arrow.Reader(file) as reader:
        found = listed(reader.batches(FilePart(1, 2), indices=np.array([0, 1, 2, 20])))
    assert [row["text"] for row in found] == ["número 25", "número 26", "número 27", "número 45"]


def test_text_that_is_no_utf8_is_a_bad_sample_and_other_rows_are_served(tmp_path: Path) -> None:
    data = bytearray(a_file(table(20, words=False), 10))
    at = data.index("número 3".encode())
    data[at] = 0xFF
    (tmp_path / "a").write_bytes(data)
    found = served(tmp_path / "a")
    assert [i for i, sample in enumerate(found) if isinstance(sample, BadSample)] == [3]
    assert len(found) == 20


def test_nulls_get_the_value_that_was_given(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(a_file(pa.table({"x": [1, None]}), 10))
    assert [int(sample["x"]) for sample in served(tmp_path / "a", nulls={"x": -1})] == [1, -1]
    with pytest.raises(BadSample, match="sample 1, slot x: expected a value, got null"):
        list(resolve("pydp2.formats.arrow").samples(str(tmp_path / "a")))


# -- folders -----------------------------------------------------------------------------------------------------------
def test_a_folder_has_the_rows_of_its_files_one_after_the_other(tmp_path: Path) -> None:
    folder = save_to_disk(tmp_path / "data", table(100))
    assert listed(arrow.read(folder)) == table(100).to_pylist()
    assert listed(arrow.read(folder, start=60, part=FilePart(0, 1))) == table(100).to_pylist()[60:]
    picked = np.array([2, 40, 99])
    assert listed(arrow.read(folder, indices=picked)) == [table(100).to_pylist()[i] for i in picked]


def test_a_folder_whose_rows_are_chosen_by_indices_is_refused_with_what_to_write(tmp_path: Path) -> None:
    folder = save_to_disk(tmp_path / "data", table(9), _indices_data_files=[{"filename": "indices.arrow"}])
    with pytest.raises(
        FormatError, match=r"data: its rows are chosen by indices; save it again with .*flatten_indices"
    ):
        listed(arrow.read(folder))


def test_a_folder_of_splits_names_them(tmp_path: Path) -> None:
    save_to_disk(tmp_path / "train", table(9))
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(FormatError, match=f"a folder of splits, name one: {tmp_path}/train, {tmp_path}/test"):
        listed(arrow.read(tmp_path))
    assert len(listed(arrow.read(tmp_path / "train"))) == 9


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (None, "which has a state.json"),
        ("{", "expected JSON"),
        ("[1]", "expected an object of JSON"),
        ("[" * 100_000, "expected JSON"),
        ("{}", "must list files of this folder as _data_files, got None"),
        ('{"_data_files": "a"}', "must list files"),
        ('{"_data_files": [5]}', "must list files"),
        ('{"_data_files": [{"filename": "../other.arrow"}]}', "must list files"),
        ('{"_data_files": [{"filename": "/etc/passwd"}]}', "must list files"),
    ],
)
def test_a_folder_that_is_none_of_save_to_disk_is_refused(state: str | None, words: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    if state is not None:
        (tmp_path / "data" / "state.json").write_text(state)
    with pytest.raises(FormatError) as caught:
        listed(arrow.read(tmp_path / "data"))
    assert words in str(caught.value)


def test_files_of_a_folder_must_have_one_schema(tmp_path: Path) -> None:
    folder = save_to_disk(tmp_path / "data", table(9))
    (folder / "data-00001-of-00003.arrow").write_bytes(a_stream(pa.table({"y": [1]}), 5))
    with pytest.raises(FormatError, match=r"data-00001-of-00003\.arrow must have the schema of .*data-00000"):
        listed(arrow.read(folder))


# -- what is refused ---------------------------------------------------------------------------------------------------
WHOLE = a_stream(table(20, words=False), 10)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "an empty file"),
        (b"<html>", "an HTML page"),
        (b"PAR1" + bytes(40), "a Parquet file; read it with pydp2.formats.parquet"),
        (b"FEA1" + bytes(40), "expected an Arrow file or stream"),
        (WHOLE[:-8], "the mark of the end is missing; did a download or a copy stop early?"),
        (WHOLE[:-40], "the headers of its messages: "),
        (WHOLE + b"more", "4 more bytes"),
        (a_file(table(20), 10)[:-20], "the headers of its messages: "),
        (b"ARROW1\0\0" + WHOLE, "the headers of its messages: "),
    ],
)
def test_what_is_no_whole_file_is_refused(data: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(FormatError, match="a, ") as caught:
        listed(arrow.read(tmp_path / "a"))
    assert words in str(caught.value)


def test_a_number_of_rows_that_is_a_lie_is_refused() -> None:
    data = WHOLE.replace(struct.pack("<q", 10), struct.pack("<q", 1 << 40))
    with pytest.raises(FormatError, match="record batch 0: "):
        listed(arrow.read(io.BytesIO(data)))


def test_offsets_that_lie_are_refused() -> None:
    made = pa.table({"t": ["abc", "defg", "hi"]})
    data = a_stream(made, 10).replace(struct.pack("<4i", 0, 3, 7, 9), struct.pack("<4i", 0, 700, 7, 9))
    with pytest.raises(FormatError):
        listed(arrow.read(io.BytesIO(data)))
    with arrow.Reader(io.BytesIO(data)) as reader, pytest.raises(FormatError, match="record batch 0: "):
        list(reader.batches(FilePart(0, 1)))


def test_a_dictionary_that_is_pointed_beyond_is_refused(tmp_path: Path) -> None:
    made = pa.table({"w": pa.array(["a", "b", "a"]).dictionary_encode()})
    data = a_stream(made, 10).replace(struct.pack("<3i", 0, 1, 0), struct.pack("<3i", 0, 9, 0))
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(FormatError, match="record batch 0: "):
        served(tmp_path / "a")


def test_errors_of_the_system_pass(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        listed(arrow.read(tmp_path / "absent"))
    folder = save_to_disk(tmp_path / "data", table(9))
    (folder / "data-00001-of-00003.arrow").unlink()
    with pytest.raises(FileNotFoundError):
        listed(arrow.read(folder))


def test_a_column_that_no_slot_takes_is_left_out_by_columns(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(a_file(pa.table({"x": [1], "p": pa.array([1], pa.decimal128(5))}), 5))
    with pytest.raises(ProviderError, match="column p: no slot takes Arrow's type decimal128"):
        served(tmp_path / "a")
    (sample,) = served(tmp_path / "a", columns=["x"])
    assert not isinstance(sample, ManySamples)
    assert sample == {"x": 1}
