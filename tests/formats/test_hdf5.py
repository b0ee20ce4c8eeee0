"""HDF5: what h5py wrote is served, in parts on chunks, from any row on, single rows; else it is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pydp2
from pydp2.data.schema.input_types import dense_vector, raw, scalar, scalar_sequence, text
from pydp2.errors import BadSample, FormatError, OptionError, OptionTypeError, ProviderError
from pydp2.file_parts import FilePart, part_entries
from pydp2.formats import hdf5, row_arrays
from pydp2.providers import resolve

h5py: Any = pytest.importorskip("h5py")

N = 300


def columns(count: int = N) -> dict[str, Any]:
    return {
        "image": np.arange(count * 6, dtype=np.float32).reshape(count, 2, 3),
        "label": np.arange(count, dtype=np.int64) % 10,
        "name": [f"número {i}" for i in range(count)],
    }


def write(path: Path, arrays: dict[str, Any], group: str = "", **options: Any) -> Path:
    with h5py.File(path, "a") as file:
        for name, values in arrays.items():
            (file.require_group(group) if group else file).create_dataset(name, data=values, **options)
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "a.h5", columns(), chunks=True, compression="gzip")


def listed(blocks: Iterator[dict[str, Any]], name: str) -> list[Any]:
    return [value for block in blocks for value in block[name].tolist()]


def started(*files: Path, **args: Any) -> Any:
    return resolve("pydp2.formats.hdf5").start(file_list=[str(file) for file in files], args=args)


def served(running: Any, entry: Path | str, **more: Any) -> list[Any]:
    return list(running.open_file(str(entry), file_index=0, seed=0, pass_id=0, **more))


def one_slot(path: Path, name: str, values: Any, dtype: Any = None, **args: Any) -> tuple[Any, list[Any]]:
    """The type and the samples of the only slot of a file that h5py writes."""
    with h5py.File(path, "w") as file:
        file.create_dataset(name, data=values, dtype=dtype)
    running = started(path, **args)
    return running.schema.slots, [running.arrange(sample) for sample in served(running, path)]


# -- reading -----------------------------------------------------------------------------------------------------------
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    count=st.integers(0, 60),
    chunks=st.tuples(st.integers(1, 70), st.integers(0, 70)),
    parts=st.integers(1, 5),
    start=st.integers(0, 30),
    chosen=st.sets(st.integers(0, 59)),
    block=st.sampled_from([1, 100, 1000]),
)
def test_parts_are_complete_and_starts_and_single_rows_are_those_of_the_part(
    count: int, chunks: tuple[int, int], parts: int, start: int, chosen: set[int], block: int, tmp_path: Path
) -> None:
    path = tmp_path / "b.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.arange(3 * count).reshape(count, 3), maxshape=(None, 3), chunks=(chunks[0], 2))
        file.create_dataset(
            "y", data=np.arange(count), **({"maxshape": (None,), "chunks": (chunks[1],)} if chunks[1] else {})
        )
        file.create_dataset("z", data=[f"a{i}" for i in range(count)], dtype=h5py.string_dtype())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_arrays, "BLOCK", block)
        read = [listed(hdf5.read(path, part=FilePart(i, parts)), "x") for i in range(parts)]
        assert [row for part in read for row in part] == np.arange(3 * count).reshape(count, 3).tolist()
        for i, part in enumerate(read):
            assert part == [] or part[0][0] // 3 % max(chunks) == 0, "a part begins with a chunk"
            assert listed(hdf5.read(path, part=FilePart(i, parts), start=start), "x") == part[start:]
            some = sorted(index for index in chosen if index < len(part))
            options: Any = {"part": FilePart(i, parts), "indices": np.array(some, np.int64)}
            assert listed(hdf5.read(path, **options), "x") == [part[index] for index in some]
            ids = [part[index][0] // 3 for index in some]
            assert listed(hdf5.read(path, **options), "y") == ids
            assert listed(hdf5.read(path, **options), "z") == [b"a%d" % i for i in ids]


def test_parts_of_a_file_are_read_by_turns(tmp_path: Path) -> None:
    file = write(tmp_path / "a", {"label": columns()["label"]}, chunks=(50,))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_arrays, "BLOCK", 300)
        readings = [hdf5.read(file, part=FilePart(i, 3)) for i in range(3)]
        first = [next(reading)["label"].tolist() for reading in readings]
        rest = [listed(reading, "label") for reading in readings]  # each ends before the next one goes on
    both = [label for begin, end in zip(first, rest, strict=True) for label in begin + end]
    assert both == columns()["label"].tolist()
    assert all(rest)


def test_each_chunk_is_decoded_once_whatever_the_chunks_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_arrays, "BLOCK", 1 << 20)
    path = write(tmp_path / "a", {"x": np.arange(1 << 18)}, chunks=(1 << 17,))
    write(path, {"y": np.arange(1 << 18)}, chunks=(100_000,))
    calls = []
    with hdf5.open_arrays(path) as file:
        for array in file._arrays:
            array.read = lambda lo, hi, read=array.read, name=array.name: (calls.append((name, lo)), read(lo, hi))[1]  # type: ignore[misc]
        assert sum(len(block["x"]) for block in file.blocks(FilePart(0, 1), 0, None)) == 1 << 18
    assert sorted(calls) == [("x", 0), ("x", 1 << 17), ("y", 0), ("y", 100_000), ("y", 200_000)]


def test_keys_choose_datasets_also_in_groups(tmp_path: Path) -> None:
    path = write(tmp_path / "a", {"x": [1, 2], "only": [1]})
    write(path, {"y": [3, 4]}, group="deep/er")
    assert [sorted(block) for block in hdf5.read(path, keys=["x", "deep/er/y"])] == [["deep/er/y", "x"]]
    assert listed(hdf5.read(path, group="deep/er"), "y") == [3, 4]
    with pytest.raises(FormatError, match=r"a: arrays must have as many rows, but only has 1, x has 2; keys="):
        list(hdf5.read(path))
    with pytest.raises(OptionError, match=r"a has no array z; it has deep, only, x"):
        list(hdf5.read(path, keys=["z"]))
    with pytest.raises(OptionError, match="a has no group z"):
        list(hdf5.read(path, group="z"))


# -- serving -----------------------------------------------------------------------------------------------------------
def test_a_service_serves_all_rows_in_order(file: Path) -> None:
    files = list(part_entries(str(file), 3))
    seen: dict[str, list[Any]] = {name: [] for name in columns()}
    with pydp2.load(files, batch_size=64, shuffle=False, workers=2) as data:
        for batch in data:
            assert batch["image"].shape[1:] == (2, 3)
            seen["image"] += batch["image"].tolist()
            seen["label"] += batch["label"].tolist()
            seen["name"] += batch["name"].to_list()
    expected = columns()
    assert seen == {"image": expected["image"].tolist(), "label": expected["label"].tolist(), "name": expected["name"]}


def test_the_provider_begins_at_any_row_and_yields_chosen_ones(file: Path) -> None:
    running = started(file, keys=["name"])
    assert served(running, file, start=298) == [{"name": "número 298"}, {"name": "número 299"}]
    chosen = served(running, f"{file}?part=0/1", start=7, indices=np.array([7, 123]))
    assert chosen == [{"name": "número 7"}, {"name": "número 123"}]


class Case:
    """Values that a file has, the slot and the samples of it."""

    def __init__(self, values: Any, dtype: Any, slot: Any, samples: list[Any], **args: Any) -> None:
        self.values, self.dtype, self.slot, self.samples, self.args = values, dtype, slot, samples, args


def cases() -> dict[str, Case]:
    vlen = np.empty(2, object)
    vlen[:] = [np.array([1, 2], np.uint8), np.zeros(0, np.uint8)]
    strings = ["aé", ""]
    return {
        "bool": Case([True, False], None, scalar("bool"), [True, False]),
        "big-endian": Case([1, 2], ">i2", scalar("int16"), [1, 2]),
        "half": Case([1.5], "f2", scalar("float16"), [1.5]),
        "enum": Case([1, 0], h5py.enum_dtype({"A": 0, "B": 1}, "i1"), scalar("int8"), [1, 0]),
        "vector": Case([[1.5, 2]], "f8", dense_vector(2, dtype="float64"), [[1.5, 2]]),
        "strings": Case(strings, h5py.string_dtype(), text(), strings),
        "fixed strings": Case([s.encode() for s in strings], h5py.string_dtype("utf-8", 9), text(), strings),
        "strings as bytes": Case(strings, h5py.string_dtype(), raw(), [b"a\xc3\xa9", b""], raw=["x"]),
        "opaque": Case(np.array([b"ab\0", b"\0\0\0"], "V3"), None, raw(), [b"ab\0", b"\0\0\0"]),
        "lists": Case(vlen, h5py.vlen_dtype(np.uint8), scalar_sequence("uint8"), [[1, 2], []]),
        "lists as bytes": Case(vlen, h5py.vlen_dtype(np.uint8), raw(), [b"\1\2", b""], raw=["x"]),
    }


@pytest.mark.parametrize("name", cases())
def test_a_dataset_has_the_slot_of_its_type(name: str, tmp_path: Path) -> None:
    case = cases()[name]
    slots, samples = one_slot(tmp_path / "a", "x", case.values, case.dtype, **case.args)
    assert (slots.names, slots.types) == (("x",), (case.slot,))
    found = [value.tolist() if isinstance(value, np.ndarray | np.generic) else value for (value,) in samples]
    assert found == case.samples


def test_fields_of_compound_values_are_slots(tmp_path: Path) -> None:
    kind = np.dtype([("at", [("x", ">f4"), ("y", "f4", (2,))]), ("name", h5py.string_dtype())])
    values = np.array([((1.5, [2, 3]), "a"), ((4.5, [5, 6]), "b")], kind)
    slots, samples = one_slot(tmp_path / "a", "t", values, kind)
    assert dict(zip(slots.names, slots.types, strict=True)) == {
        "t.at.x": scalar(), "t.at.y": dense_vector(2), "t.name": text(),
    }  # fmt: skip
    x, y, name = samples[1]
    assert (x, y.tolist(), name) == (4.5, [5, 6], "b")
    chosen = started(tmp_path / "a", keys=["t.name", "t.at"])
    assert chosen.schema.slots.names == ("t.name", "t.at.x", "t.at.y")
    with pytest.raises(ProviderError, match=r"a has no array or field t\.z"):
        started(tmp_path / "a", keys=["t.z"])


def test_text_that_is_no_utf8_is_a_bad_sample(tmp_path: Path) -> None:
    write(tmp_path / "a", {"t": np.array([b"a", b"\xff", b"c"])})
    with pytest.raises(BadSample, match=r"a, sample 1, slot t"):
        list(resolve("pydp2.formats.hdf5").samples(str(tmp_path / "a")))


def test_the_first_file_that_has_a_row_says_the_slots_and_others_must_be_like_it(tmp_path: Path) -> None:
    empty, full = write(tmp_path / "empty", {"x": np.zeros(0)}), write(tmp_path / "full", {"x": np.zeros((2, 3))})
    running = started(empty, full)
    assert running.schema.slots.types == (dense_vector(3, dtype="float64"),)
    other = write(tmp_path / "other", {"x": np.zeros((2, 4))})
    with pytest.raises(FormatError, match=r"other must have the arrays of .*full: x is .*dim=3.* there and .*dim=4"):
        served(running, other)
    more = write(tmp_path / "more", {"x": np.zeros((2, 3)), "y": [1, 2]})
    with pytest.raises(FormatError, match=r"more must have the arrays of .*full: y is absent there"):
        served(running, more)
    assert len(served(started(full, keys=["x"]), more)) == 2
    assert len(started().schema.slots) == 1, "of an empty list nothing is known, and nothing is served"


# -- what is refused ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"keys": "x"}, 'keys must be a list of names, such as ["image", "label"], got'),
        ({"keys": ["x", "x"]}, "keys must name each array once"),
        ({"keys": []}, "keys must name each array once"),
        ({"group": 5}, "group must be a text"),
        ({"group": "label"}, "a.h5 has no group label"),
        ({"raw": ["y"]}, "raw names the array y; "),
        ({"key": ["x"]}, "has no argument 'key', did you mean 'keys'?"),
    ],
)
def test_arguments_are_checked_when_the_service_starts(args: dict[str, Any], words: str, file: Path) -> None:
    with pytest.raises(ProviderError) as caught:
        started(file, **args)
    assert words in str(caught.value)


def reference(file: Any) -> None:
    file["x"] = np.array([file.ref], h5py.ref_dtype)


def external(file: Any) -> None:
    file["x"] = h5py.ExternalLink("/etc/passwd", "/")


def stored_outside(file: Any) -> None:
    file.create_dataset("x", (3,), "u1", external=[("/etc/passwd", 0, 3)])


def virtual(file: Any) -> None:
    layout = h5py.VirtualLayout((3,), "i8")
    layout[:] = h5py.VirtualSource("other.h5", "x", (3,))
    file.create_virtual_dataset("x", layout)


def unwritten(file: Any) -> None:
    file.create_dataset("x", (30, 2), "f8", chunks=(10, 2))[:10] = 1


def large(file: Any) -> None:
    file.create_dataset("x", (2, 1 << 30), "f8", chunks=(1, 1 << 20))


def lists_of_pairs(file: Any) -> None:
    pair = np.dtype([("a", "i4"), ("b", "i4")])
    file.create_dataset("x", (1,), h5py.vlen_dtype(pair))[0] = np.zeros(2, pair)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (reference, "a reference to another object is no value"),
        (external, "is a link to the file /etc/passwd: list that file"),
        (stored_outside, "has its values in other files"),
        (virtual, "has its values in other files"),
        (unwritten, "expected 3 chunks, got 1: the rest was never written"),
        (lambda file: file.create_dataset("x", (3,), "f8"), "expected 24 bytes, got 0: the rest was never written"),
        (large, "chunks of a row have at most 1073741824 bytes"),
        (lambda file: file.create_dataset("x", data=5), "expected a dataset with an axis of samples; keys="),
        (lambda file: file.create_dataset("x", data=h5py.Empty("f4")), "expected a dataset with an axis of samples"),
        (lambda file: file.create_dataset("x", data=[1j]), "no slot takes values of complex128"),
        (lambda file: file.create_dataset("x", data=[[b"a"]]), "strings and lists must be one per sample"),
        (lambda file: file.create_dataset("x", (3, 0), "f4"), "a dense slot has at least one number"),
        (lists_of_pairs, "lists of any length must be of numbers"),
        (lambda file: file.create_group("x"), "a has no arrays"),
    ],
)
def test_what_no_slot_takes_is_named_with_a_remedy(make: Any, words: str, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a", "w") as file:
        make(file)
    with pytest.raises(FormatError, match=r"a(, array x: | has)") as caught:
        list(hdf5.read(tmp_path / "a"))
    assert words in str(caught.value)


def test_a_filter_that_is_absent_is_named(file: Path) -> None:
    data = file.read_bytes()
    deflate = data.index(b"\1\0\x08\0\1\0\1\0deflate")  # the message of the filter pipeline
    file.write_bytes(data[:deflate] + b"\x01\x7d" + data[deflate + 2 :])
    with pytest.raises(FormatError, match=r"a\.h5, array image: needs the filter 32001 \(deflate\), .*hdf5plugin"):
        list(hdf5.read(file))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "an empty file"),
        (b"<html><body>login</body></html>", "an HTML page"),
        (b"\x89HDF\r\n\x1a\n" + bytes(50), "a.h5: "),
    ],
)
def test_what_is_no_hdf5_file_is_named(data: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "a.h5").write_bytes(data)
    with pytest.raises(FormatError, match=r"a\.h5") as caught:
        list(hdf5.read(tmp_path / "a.h5"))
    assert words in str(caught.value)


def test_a_file_that_is_cut_or_damaged_is_an_error_that_names_the_array(file: Path, tmp_path: Path) -> None:
    data = file.read_bytes()
    (tmp_path / "cut").write_bytes(data[:-100])
    with pytest.raises(FormatError, match=r"cut: .*truncated"):
        list(hdf5.read(tmp_path / "cut"))
    sums = write(tmp_path / "sums", {"x": np.arange(1000)}, chunks=(1000,), fletcher32=True)
    data = bytearray(sums.read_bytes())
    data[data.index(np.arange(9).tobytes()) + 8] ^= 1
    sums.write_bytes(data)
    with pytest.raises(FormatError, match=r"sums, array x, rows 0 to 999: .*"):
        list(hdf5.read(sums))


def test_errors_of_the_system_and_of_options_pass(file: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list(hdf5.read(tmp_path / "absent"))
    with pytest.raises(OptionTypeError):
        list(hdf5.read(file, keys=5))  # type: ignore[arg-type]


def test_without_h5py_the_error_says_what_to_install(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with pytest.raises(ImportError, match=r"pip install 'h5py>=3\.10'"):
        list(hdf5.read(file))
