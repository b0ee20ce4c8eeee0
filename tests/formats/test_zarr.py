"""Zarr: what the package zarr wrote is served, in parts on chunks, from any row on, single rows; else it is refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pydp2
from pydp2.data.schema.input_types import dense_vector, raw, scalar, text
from pydp2.errors import FormatError, OptionError, ProviderError
from pydp2.file_parts import FilePart, part_entries
from pydp2.formats import row_arrays
from pydp2.formats import zarr as zarr_format
from pydp2.providers import resolve

pytest.importorskip("zarr")

N = 100
WRITER = """
import sys, warnings
import numpy as np, zarr
warnings.simplefilter("ignore")
folder, version = sys.argv[1], int(sys.argv[2])
count = 100
arrays = {
    "image": np.arange(count * 6, dtype=np.float32).reshape(count, 2, 3),
    "label": np.arange(count) % 10,
    "fixed": np.array([f"é{i}" for i in range(count)]),
    "code": np.array([b"a%d" % i for i in range(count)]),
    "at": np.arange(count).astype("M8[s]"),
}
group = zarr.open_group(folder, mode="w", zarr_format=version)
for number, (name, values) in enumerate(arrays.items()):
    group.create_array(name, shape=values.shape, dtype=values.dtype, chunks=(7 + number, *values.shape[1:]))[:] = values
text = group.create_array("text", shape=(count,), dtype=str, chunks=(9,))
text[:] = np.array(["é" * i for i in range(count)], object)
inner = group.create_group("inner")
pair = np.dtype([("x", "f4"), ("y", "i2")])
inner.create_array("t", shape=(4,), dtype=pair, chunks=(3,))[:] = np.array([(i / 2, i) for i in range(4)], pair)
inner.create_array("only", shape=(2,), dtype="i4")[:] = [1, 2]
"""
EXPECTED: dict[str, list[Any]] = {
    "at": list(range(N)),
    "code": [b"a%d" % i for i in range(N)],
    "fixed": [f"é{i}" for i in range(N)],
    "image": np.arange(N * 6).reshape(N, 2, 3).tolist(),
    "label": [i % 10 for i in range(N)],
    "text": ["é" * i for i in range(N)],
}


@pytest.fixture(scope="module", params=[2, 3])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that zarr wrote in a process of its own, because it starts threads."""
    path = tmp_path_factory.mktemp("zarr") / "a.zarr"
    subprocess.run([sys.executable, "-c", WRITER, str(path), str(request.param)], check=True, timeout=60)
    return path


def listed(blocks: Iterator[dict[str, Any]], name: str) -> list[Any]:
    return [value for block in blocks for value in block[name].tolist()]


def started(*files: Path, **args: Any) -> Any:
    return resolve("pydp2.formats.zarr").start(file_list=[str(file) for file in files], args=args)


def served(running: Any, entry: Path | str, **more: Any) -> list[Any]:
    return list(running.open_file(str(entry), file_index=0, seed=0, pass_id=0, **more))


def held() -> tuple[int, int]:
    """The numbers of threads and of open files of this process."""
    return len([*Path("/proc/self/task").iterdir()]), len([*Path("/proc/self/fd").iterdir()])


# -- reading -----------------------------------------------------------------------------------------------------------
@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    parts=st.integers(1, 5), start=st.integers(0, 60), chosen=st.sets(st.integers(0, 99)),
    block=st.sampled_from([1, 100, 1 << 20]),
)  # fmt: skip
def test_parts_are_complete_and_starts_and_single_rows_are_those_of_the_part(
    parts: int, start: int, chosen: set[int], block: int, folder: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_arrays, "BLOCK", block)
        read = [listed(zarr_format.read(folder, part=FilePart(i, parts)), "text") for i in range(parts)]
        assert [row for part in read for row in part] == EXPECTED["text"]
        for i, part in enumerate(read):
            assert part == [] or len(part[0]) % 11 == 0, "a part begins with a chunk of the array with the longest"
            assert listed(zarr_format.read(folder, part=FilePart(i, parts), start=start), "text") == part[start:]
            some = sorted(index for index in chosen if index < len(part))
            options: Any = {"part": FilePart(i, parts), "indices": np.array(some, np.int64)}
            assert listed(zarr_format.read(folder, **options), "text") == [part[index] for index in some]


def test_no_thread_is_started_and_no_file_stays_open(folder: Path) -> None:
    before = held()
    running = started(folder)
    assert len(served(running, folder)) == N
    assert held() == before


def test_parts_of_a_folder_are_read_by_turns(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_arrays, "BLOCK", 30_000)
        readings = [zarr_format.read(folder, part=FilePart(i, 3)) for i in range(3)]
        first = [next(reading)["label"].tolist() for reading in readings]
        rest = [listed(reading, "label") for reading in readings]
    assert [label for begin, end in zip(first, rest, strict=True) for label in begin + end] == EXPECTED["label"]
    assert all(rest)


def test_a_zip_file_is_read_as_the_folder_in_it(folder: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for file in folder.rglob("*"):
            archive.write(file, file.relative_to(folder))
    assert listed(zarr_format.read(tmp_path / "a.zip"), "text") == EXPECTED["text"]
    (tmp_path / "a.zip").write_bytes((tmp_path / "a.zip").read_bytes()[:-100])
    with pytest.raises(FormatError, match=r"a\.zip, group /: .*zip"):
        list(zarr_format.read(tmp_path / "a.zip"))


def test_keys_choose_arrays_and_fields_also_in_groups(folder: Path) -> None:
    running = started(folder, group="inner", keys=["t.y", "t.x"])
    assert running.schema.slots.names == ("t.y", "t.x")
    assert running.schema.slots.types == (scalar("int16"), scalar())
    assert served(running, folder, start=3) == [{"t.y": 3, "t.x": 1.5}]
    assert listed(zarr_format.read(folder, keys=["inner/only"]), "inner/only") == [1, 2]
    with pytest.raises(FormatError, match="arrays must have as many rows, but only has 2, t has 4; keys="):
        list(zarr_format.read(folder, group="inner"))
    with pytest.raises(OptionError, match=r"a\.zarr has no array z; it has at, code, fixed, image, label, text"):
        list(zarr_format.read(folder, keys=["z"]))


def test_a_single_array_is_called_data(folder: Path) -> None:
    assert listed(zarr_format.read(folder / "label"), "data") == EXPECTED["label"]


# -- serving -----------------------------------------------------------------------------------------------------------
def test_a_service_serves_all_rows_in_order(folder: Path) -> None:
    files = list(part_entries(str(folder), 3))
    seen: dict[str, list[Any]] = {name: [] for name in EXPECTED}
    with pydp2.load(files, batch_size=16, shuffle=False, workers=2) as data:
        for batch in data:
            for name, values in seen.items():
                column = batch[name]
                values += column.tolist() if isinstance(column, np.ndarray) else column.to_list()
    assert seen == EXPECTED


def test_arrays_have_the_slots_of_their_types(folder: Path) -> None:
    slots = started(folder).schema.slots
    assert dict(zip(slots.names, slots.types, strict=True)) == {
        "at": scalar("int64"), "code": raw(), "fixed": text(), "image": dense_vector((2, 3)), "label": scalar("int64"),
        "text": text(),
    }  # fmt: skip


def test_other_folders_must_be_like_the_first(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "b.zarr")
    shutil.rmtree(tmp_path / "b.zarr/text")
    with pytest.raises(
        FormatError, match=r"b\.zarr must have the arrays of .*a\.zarr: text is .* there and absent here"
    ):
        served(started(folder), tmp_path / "b.zarr")
    assert len(served(started(folder, keys=["label"]), tmp_path / "b.zarr")) == N


# -- what is refused ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"keys": "x"}, "keys must be a list of names"),
        ({"group": 5}, "group must be a text"),
        ({"group": "absent"}, "group absent: "),
        ({"keys": ["inner"]}, "array inner: expected an array with an axis of samples"),
        ({"key": ["x"]}, "has no argument 'key', did you mean 'keys'?"),
    ],
)
def test_arguments_are_checked_when_the_service_starts(args: dict[str, Any], words: str, folder: Path) -> None:
    with pytest.raises(ProviderError) as caught:
        started(folder, **args)
    assert words in str(caught.value)


def array(folder: Path, **changes: Any) -> Path:
    """A folder with one array of version 2 of 3 rows; ``changes`` of its metadata."""
    (folder / "x").mkdir(parents=True)
    (folder / ".zgroup").write_text('{"zarr_format": 2}')
    metadata = {
        "zarr_format": 2, "shape": [3], "chunks": [3], "dtype": "<i4", "fill_value": 0, "order": "C", "filters": None,
        "compressor": None, **changes,
    }  # fmt: skip
    (folder / "x/.zarray").write_text(json.dumps(metadata))
    (folder / "x/0").write_bytes(np.arange(3, dtype="<i4").tobytes())
    return folder


def test_metadata_by_hand_are_read(tmp_path: Path) -> None:
    assert listed(zarr_format.read(array(tmp_path / "a")), "x") == [0, 1, 2]
    (tmp_path / "a/x/0").unlink()
    assert listed(zarr_format.read(tmp_path / "a"), "x") == [0, 0, 0], "a chunk that is absent has the fill value"


class Bomb:
    def __reduce__(self) -> Any:
        return os._exit, (7,)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"compressor": {"id": "pickle"}}, "a, "),
        ({"filters": [{"id": "pickle"}]}, "a, "),
        (
            {"dtype": "|O", "filters": [{"id": "vlen-utf8"}], "compressor": {"id": "pickle"}, "fill_value": ""},
            "its values are pickles",
        ),
        ({"dtype": "|O", "filters": [{"id": "pickle"}]}, "a, "),
        ({"chunks": [1 << 30]}, "chunks of a row have at most 1073741824 bytes"),
        ({"shape": [], "chunks": []}, "expected an array with an axis of samples"),
        ({"dtype": "<c8", "fill_value": [0.0, 0.0]}, "no slot takes values of complex64"),
        ({"compressor": {"id": "unheard-of"}}, "unheard-of"),
        ({"shape": [3, 0], "chunks": [3, 1]}, "a dense slot has at least one number"),
        ({"dtype": "<i8"}, "array x, rows 0 to 2: "),
        ({"compressor": {"id": "zlib", "level": 1}}, "array x, rows 0 to 2: "),
        ({"compressor": {"id": "zstd", "level": 1}}, "array x, rows 0 to 2: "),
        ({"compressor": {"id": "blosc", "cname": "lz4", "clevel": 1, "shuffle": 1}}, "array x, rows 0 to 2: "),
        ({"shape": ["3"]}, "a, group /: "),
    ],
)
def test_what_is_damaged_or_what_no_slot_takes_is_an_error(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    import pickle  # noqa: TID251 - it shows that nothing is unpickled

    path = array(tmp_path / "a", **changes)
    if "pickle" in str(changes):
        (path / "x/0").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(FormatError) as caught:
        list(zarr_format.read(path))
    assert words in str(caught.value)


def test_what_is_no_zarr_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list(zarr_format.read(tmp_path / "absent"))
    (tmp_path / "a").write_bytes(b"text")
    with pytest.raises(FormatError, match="a, byte 0: expected a folder, or a zip file"):
        list(zarr_format.read(tmp_path / "a"))
    (tmp_path / "b").mkdir()
    with pytest.raises(FormatError, match="b, group /: "):
        list(zarr_format.read(tmp_path / "b"))


def test_without_zarr_the_error_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zarr", None)
    monkeypatch.delitem(sys.modules, "zarr.storage", raising=False)
    with pytest.raises(ImportError, match=r"pip install 'zarr>=3\.1'"):
        list(zarr_format.read(folder))
