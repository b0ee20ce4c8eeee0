"""Conversions: there and back is what it was; nothing is left of one that fails."""

from __future__ import annotations

import gzip
import re
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
        (("a.csv", "a.svm"), {"label": -4}, "label must be one of 3 columns, from 0, got -4"),
        (("a.csv", "a.idx"), {"shape": (2, 2)}, r"rows of 3 values .* samples of the shape \(2, 2\), which have 4$"),
        (("a.csv", "a.idx"), {"shape": (-1, -3)}, r"from 0 and below 2\*\*32, got \(0, -1, -3\)"),
        (("a.csv", "b.svm"), {"base": -1}, "base must be 0 or 1, the index of the first column, got -1"),
        (("a.svm", "b.csv"), {"dim": 4, "base": 2}, "base must be 0 or 1, the index of the first column, got 2"),
        (("a.csv", "a.idx"), {"dtype": "uint8"}, "the value 300.0 does not fit uint8"),
        (("a.csv", "a.idx"), {"dtype": "int64"}, "idx has the types"),
        (("a.csv", "a.idx"), {"dtype": "bool"}, "dtype must be one of numbers, got bool"),
        (("a.csv", "a.idx"), {"dtype": "some"}, "dtype must be one of numbers, got some"),
        (("a.csv", "a.idx.gz"), {}, r"idx is not written as gzip here: leave \.gz off the name a\.idx\.gz"),
        (("a.dat", "a.rec.gz"), {}, r"rec is not written as gzip here: leave \.gz off the name a\.rec\.gz"),
        (("a.rec", "a.dat.gz"), {}, "paddle is not written as gzip here"),
        (("a.csv", "a.idx"), {"dim": 3}, "dim does nothing where csv becomes idx: leave it out"),
        (("a.svm", "a.csv"), {"dim": 4, "layout": "fluid"}, "layout does nothing where libsvm becomes csv"),
    ],
)
def test_what_cannot_be_converted_is_told(
    names: tuple[str, str], options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    comma.write(tmp_path / "a.csv", np.array([[1, 300, 2.5]]))
    libsvm.write(tmp_path / "a.svm", [libsvm.Row(1.0, np.array([3]), np.ones(1, np.float32))])
    with pytest.raises((OptionError, FormatError), match=words):
        convert(tmp_path / names[0], tmp_path / names[1], options=Options(**options))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", ["1e300", "-1e39", "4e38"])
def test_a_value_that_the_target_cannot_hold_is_told_with_its_row(value: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"1,2\n0,{value}\n")
    with pytest.raises(OptionError, match=f"row 1: the value {re.escape(str(float(value)))} is beyond float32"):
        convert(tmp_path / "a.csv", tmp_path / "a.svm")
    with pytest.raises(FormatError, match="line 2: column 1 must be a number of float32"):
        convert(tmp_path / "a.csv", tmp_path / "a.idx")
    assert [f.name for f in tmp_path.iterdir()] == ["a.csv"]
    convert(tmp_path / "a.csv", tmp_path / "a.idx", options=Options(dtype="float64"))
    assert idx.read(tmp_path / "a.idx").tolist() == [[1, 2], [0, float(value)]]


@pytest.mark.filterwarnings("error")
def test_labels_have_all_digits_and_values_those_of_float32(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("0.1,16777217,1e300\n0,inf,16777217\n0.7,3.4028235e38,0.1\n")
    convert(tmp_path / "a.csv", tmp_path / "a.svm", options=Options(label=-1))
    lines = ["1e+300 0:0.1 1:1.6777216e+07", "16777217 1:inf", "0.1 0:0.7 1:3.4028235e+38"]
    assert (tmp_path / "a.svm").read_text().splitlines() == lines
    convert(tmp_path / "a.svm", tmp_path / "b.csv", options=Options(dim=2))
    lines = ["1e+300,0.1,16777216.0", "16777217.0,0.0,inf", "0.1,0.7,3.4028235e+38"]
    assert (tmp_path / "b.csv").read_text().splitlines() == lines


def test_an_id_that_is_there_twice_makes_no_index_that_nobody_can_open(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"a")
    lst.write(tmp_path / "i.lst", [lst.Entry(7, (1.0,), "a.jpg"), lst.Entry(7, (2.0,), "a.jpg")])
    with pytest.raises(OptionError, match="the key 7 is there already"):
        convert(tmp_path / "i.lst", tmp_path / "i.rec", options=Options(folder=str(tmp_path)))
    assert sorted(f.name for f in tmp_path.iterdir()) == ["a.jpg", "i.lst"]


def test_an_index_is_written_over_an_older_one_and_over_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"a")
    lst.write(tmp_path / "i.lst", [lst.Entry(7, (1.0,), "a.jpg")])
    options = Options(folder=str(tmp_path))
    with pytest.raises(OptionError, match=r"i\.idx is the name of the index"):
        convert(tmp_path / "i.lst", tmp_path / "i.idx", target_format="rec", options=options)
    assert not (tmp_path / "i.idx").exists()
    array = np.arange(3, dtype=np.uint8)
    idx.write(tmp_path / "i.idx", array)
    with pytest.raises(OptionError, match=r"i\.idx is there and no index of records"):
        convert(tmp_path / "i.lst", tmp_path / "i.rec", options=options)
    np.testing.assert_array_equal(idx.read(tmp_path / "i.idx"), array)
    assert not (tmp_path / "i.rec").exists()
    (tmp_path / "i.lst").rename(tmp_path / "i.idx")
    with pytest.raises(OptionError, match=r"i\.idx is there and no index of records"):
        convert(tmp_path / "i.idx", tmp_path / "i.rec", source_format="lst", options=options)
    (tmp_path / "i.idx").rename(tmp_path / "i.lst")
    for older in (b"", b"-3\t0\n"):
        (tmp_path / "i.idx").write_bytes(older)
        assert convert(tmp_path / "i.lst", tmp_path / "i.rec", options=options) == 1
        assert (tmp_path / "i.idx").read_bytes() == b"7\t0\n"


def test_a_column_that_is_there_twice_is_an_error_here_as_where_it_is_served(tmp_path: Path) -> None:
    (tmp_path / "a.svm").write_text("1 0:2 1:3\n1 2:2 2:3\n")
    with pytest.raises(FormatError, match="line 2: expected each index once, got 2 twice"):
        convert(tmp_path / "a.svm", tmp_path / "a.csv", options=Options(dim=4))


def test_two_conversions_to_one_target_do_not_meet(tmp_path: Path) -> None:
    """The second begins and ends while the first one reads, in the same process."""
    dmlc_recordio.write(tmp_path / "a.rec", [b"a" * 1000] * 500)
    dmlc_recordio.write(tmp_path / "b.rec", [b"b"])
    begun: list[int] = []

    def progress(done: int) -> None:
        if not begun:
            begun.append(done)
            assert convert(tmp_path / "b.rec", tmp_path / "c.dat") == 1
            assert list(paddle_recordio.read(tmp_path / "c.dat")) == [b"b"]

    assert convert(tmp_path / "a.rec", tmp_path / "c.dat", progress=progress) == 500
    assert begun
    assert list(paddle_recordio.read(tmp_path / "c.dat")) == [b"a" * 1000] * 500
    assert sorted(f.name for f in tmp_path.iterdir()) == ["a.rec", "b.rec", "c.dat"]


def test_a_link_stays_and_what_it_points_to_is_written(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "table").write_bytes(b"old")
    (tmp_path / "a.csv.gz").symlink_to("far/table")
    idx.write(tmp_path / "a.idx", np.arange(6, dtype=np.uint8).reshape(2, 3))
    assert convert(tmp_path / "a.idx", tmp_path / "a.csv.gz") == 2
    assert (tmp_path / "a.csv.gz").is_symlink()
    assert gzip.decompress((tmp_path / "far" / "table").read_bytes()) == b"0,1,2\n3,4,5\n"
    assert [f.name for f in (tmp_path / "far").iterdir()] == ["table"]


def test_an_index_is_beside_the_name_that_was_given_also_where_that_is_a_link(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "i.rec").symlink_to(tmp_path / "far" / "records")
    (tmp_path / "a.jpg").write_bytes(b"a")
    lst.write(tmp_path / "i.lst", [lst.Entry(7, (1.0,), "a.jpg")])
    options = Options(folder=str(tmp_path))
    assert convert(tmp_path / "i.lst", tmp_path / "i.rec", options=options) == 1
    assert (tmp_path / "i.rec").is_symlink()
    with record_index.IndexedReader(tmp_path / "i.rec", tmp_path / "i.idx") as reader:
        assert unpack(reader[7])[1] == b"a"
    assert sorted(f.name for f in tmp_path.rglob("*")) == ["a.jpg", "far", "i.idx", "i.lst", "i.rec", "records"]
    (tmp_path / "j.rec").symlink_to("j.idx")
    with pytest.raises(OptionError, match=r"j\.rec is the name of the index"):
        convert(tmp_path / "i.lst", tmp_path / "j.rec", options=options)


def test_formats_are_told_by_names_and_all_pairs_name_one() -> None:
    names = {"a.idx": "idx", "t10k-images-idx3-ubyte.gz": "idx", "a.csv.gz": "csv", "a.svm": "libsvm", "a.rec": "rec",
             "a.b.dat": "paddle", "a.lst": "lst"}  # fmt: skip
    assert {name: format_of(f"some/where/{name}") for name in names} == names
    assert {name for pair in CONVERSIONS for name in pair} == set(names.values())
