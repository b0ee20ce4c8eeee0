"""Conversions: there and back is what it was; nothing is left of one that fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from pydp2.errors import FormatError, OptionError
from pydp2.formats import comma, dmlc_recordio, idx, libsvm, lst, paddle_recordio, record_index
from pydp2.formats.convert import CONVERSIONS, Options, convert, format_of
from pydp2.formats.irheader import unpack


def test_records_go_there_and_back(tmp_path: Path) -> None:
    records = [b"", dmlc_recordio.MAGIC * 2, b"abc" * 1000]
    dmlc_recordio.write(tmp_path / "a.rec", records)
    for layout, packing in (("go", "none"), ("fluid", "snappy"), ("go", "gzip")):
        options = Options(layout=layout, packing=packing)  # type: ignore[arg-type]
        assert convert(tmp_path / "a.rec", tmp_path / "a.dat", options=options) == 3
        assert list(paddle_recordio.read(tmp_path / "a.dat")) == records
        assert convert(tmp_path / "a.dat", tmp_path / "b.recordio", options=Options(layout="fluid")) == 3
        assert convert(tmp_path / "b.recordio", tmp_path / "b.rec") == 3
        assert (tmp_path / "b.rec").read_bytes() == (tmp_path / "a.rec").read_bytes()


@given(
    st.sampled_from(["uint8", "int8", "int16", "int32", "float32", "float64"]).flatmap(
        lambda kind: arrays.arrays(kind, arrays.array_shapes(min_dims=2, max_dims=3, max_side=4))
    )
)
def test_arrays_go_there_and_back(tmp_path_factory: pytest.TempPathFactory, array: np.ndarray[Any, Any]) -> None:
    folder = tmp_path_factory.mktemp("a")
    idx.write(folder / "a-idx3-ubyte.gz", array)
    assert convert(folder / "a-idx3-ubyte.gz", folder / "a.csv.gz") == len(array)
    options = Options(dtype=array.dtype.name, shape=array.shape[1:])
    assert convert(folder / "a.csv.gz", folder / "b.idx", options=options) == len(array)
    np.testing.assert_array_equal(idx.read(folder / "b.idx"), array, strict=True)


def test_sparse_rows_go_there_and_back(tmp_path: Path) -> None:
    (tmp_path / "a.svm").write_bytes(b"1 1:0.1 4:2.5\n-1\n0.5 2:1e-08\n")
    assert convert(tmp_path / "a.svm", tmp_path / "a.csv", options=Options(dim=4, base=1)) == 3
    assert (tmp_path / "a.csv").read_text().splitlines()[0] == "1.0,0.1,0.0,0.0,2.5"
    assert convert(tmp_path / "a.csv", tmp_path / "b.libsvm", options=Options(base=1)) == 3
    assert (tmp_path / "b.libsvm").read_bytes() == (tmp_path / "a.svm").read_bytes()


def test_a_list_of_images_becomes_records_with_an_index(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.jpg").write_bytes(name.encode() * 5)
    lst.write(tmp_path / "i.lst", [lst.Entry(7, (1.0,), "a.jpg"), lst.Entry(3, (1.0, 2.0), "b.jpg")])
    assert convert(tmp_path / "i.lst", tmp_path / "i.rec", options=Options(folder=str(tmp_path))) == 2
    with record_index.IndexedReader(tmp_path / "i.rec", tmp_path / "i.idx") as reader:
        header, image = unpack(reader[3])
        assert (header.flag, header.id, image) == (2, 3, b"bbbbb")
        np.testing.assert_array_equal(header.label, [1, 2])
        header, image = unpack(reader[7])
        assert (header.flag, header.label, image) == (0, 1.0, b"aaaaa")
    assert sorted(f.name for f in tmp_path.iterdir()) == ["a.jpg", "b.jpg", "i.idx", "i.lst", "i.rec"]


def test_progress_rises_to_the_size_of_the_source(tmp_path: Path) -> None:
    dmlc_recordio.write(tmp_path / "a.rec", [bytes(1000)] * 1000)
    seen: list[int] = []
    convert(tmp_path / "a.rec", tmp_path / "a.dat", progress=seen.append)
    assert seen == sorted(seen)
    assert (len(seen) > 5, seen[-1]) == (True, (tmp_path / "a.rec").stat().st_size)


def test_nothing_is_left_of_a_conversion_that_fails(tmp_path: Path) -> None:
    dmlc_recordio.write(tmp_path / "a.rec", [b"whole"])
    (tmp_path / "a.dat").write_bytes(b"there already")
    with (tmp_path / "a.rec").open("ab") as file:
        file.write(b"damage")
    with pytest.raises(FormatError, match=rf"{tmp_path}/a\.rec, byte 16"):
        convert(tmp_path / "a.rec", tmp_path / "a.dat")
    lst.write(tmp_path / "i.lst", [lst.Entry(7, (1.0,), "absent.jpg")])
    with pytest.raises(FileNotFoundError):
        convert(tmp_path / "i.lst", tmp_path / "i.rec")
    assert sorted(f.name for f in tmp_path.iterdir()) == ["a.dat", "a.rec", "i.lst"]
    assert (tmp_path / "a.dat").read_bytes() == b"there already"


@pytest.mark.parametrize(
    ("names", "options", "words"),
    [
        (("a.csv", "a.rec"), {}, "csv cannot become rec; there are rec → paddle, "),
        (("a.txt", "a.rec"), {}, "the name a.txt does not tell a format"),
        (("a.svm", "a.csv"), {}, "with dim, the number of columns"),
        (("a.svm", "b.csv"), {"dim": 3}, "row 0 has column 3, and dim=3 ends before it"),
        (("a.csv", "a.svm"), {"label": 3}, "label must be one of 3 columns, from 0, got 3"),
        (("a.csv", "a.idx"), {"shape": (2, 2)}, r"rows of 3 values cannot become \(2, 2\)"),
        (("a.csv", "a.idx"), {"dtype": "uint8"}, "the value 300.0 does not fit uint8"),
        (("a.csv", "a.idx"), {"dtype": "int64"}, "idx has the types"),
        (("a.csv", "a.idx"), {"dtype": "bool"}, "dtype must be one of numbers, got bool"),
        (("a.csv", "a.idx"), {"dtype": "some"}, "dtype must be one of numbers, got some"),
        (("a.csv", "a.idx.gz"), {}, "cannot be gzip"),
    ],
)
def test_what_cannot_be_converted_is_told(
    names: tuple[str, str], options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    comma.write(tmp_path / "a.csv", np.array([[1, 300, 2.5]]))
    libsvm.write(tmp_path / "a.svm", [libsvm.Row(1.0, np.array([3]), np.ones(1, np.float32))])
    with pytest.raises((OptionError, FormatError), match=words):
        convert(tmp_path / names[0], tmp_path / names[1], options=Options(**options))


def test_formats_are_told_by_names_and_all_pairs_name_one() -> None:
    names = {"a.idx": "idx", "t10k-images-idx3-ubyte.gz": "idx", "a.csv.gz": "csv", "a.svm": "libsvm", "a.rec": "rec",
             "a.b.dat": "paddle", "a.lst": "lst"}  # fmt: skip
    assert {name: format_of(f"some/where/{name}") for name in names} == names
    assert {name for pair in CONVERSIONS for name in pair} == set(names.values())
