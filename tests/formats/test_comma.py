"""CSV: the rules of a row, exact numbers, parts, and what is told of a field that is none."""

from __future__ import annotations

import gzip
import io
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from pydp2.errors import FormatError, OptionError
from pydp2.file_parts import FilePart
from pydp2.formats import comma

KINDS = [np.dtype(name) for name in ("float32", "float64", "int32", "int64")]
ROWS = st.sampled_from(KINDS).flatmap(lambda kind: arrays.arrays(kind, st.tuples(st.integers(1, 9), st.integers(1, 5))))


def read(data: bytes, **options: Any) -> Any:
    found = list(comma.read(io.BytesIO(data), **options))
    return np.concatenate(found) if found else []


def written(array: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    comma.write(file, array, **options)
    return file.getvalue()


@given(ROWS, st.sampled_from(",;\t |"))
def test_numbers_come_back_exactly(array: np.ndarray[Any, Any], separator: str) -> None:
    data = written(array, separator=separator)
    again = read(data, dtype=array.dtype, separator=separator)
    assert again.dtype == array.dtype
    np.testing.assert_array_equal(again, array)
    assert written(again, separator=separator) == data


@given(ROWS, st.integers(1, 12))
def test_each_row_is_in_exactly_one_part_in_order(array: np.ndarray[Any, Any], count: int) -> None:
    data = written(array)
    parts = [read(data, dtype=array.dtype, part=FilePart(i, count)) for i in range(count)]
    np.testing.assert_array_equal(np.concatenate([part for part in parts if len(part)]), array)


def test_line_ends_blank_lines_a_mark_and_blanks_do_not_matter() -> None:
    for data in (
        b"1,2\n3,4",
        b"1,2\r\n3,4\r\n",
        b"1,2\r3,4\r",
        b"\n1,2\n\n \n3,4\n\n",
        b"\xef\xbb\xbf1,2\n3,4",
        b" 1,\t2 \n3 ,4",
    ):
        np.testing.assert_array_equal(read(data), np.array([[1, 2], [3, 4]], np.float32), strict=True)
    np.testing.assert_array_equal(read(gzip.compress(b"1,2\n3,4\n")), [[1, 2], [3, 4]])
    assert read(b"") == read(b"\n\r\n") == []


def test_infinite_and_missing_numbers_are_numbers() -> None:
    np.testing.assert_array_equal(read(b"nan,-inf,Infinity\n"), [[np.nan, -np.inf, np.inf]])


def test_a_line_of_names_is_passed_over_where_that_is_said() -> None:
    data = b"\xef\xbb\xbf\nage,dose\n1,2\n3,4\n"
    np.testing.assert_array_equal(read(data, header=True), [[1, 2], [3, 4]])
    np.testing.assert_array_equal(read(gzip.compress(data), header=True), [[1, 2], [3, 4]])
    for count in (2, 3, 7, 100):  # also where part 0 has no line, or only an empty one
        parts = [read(data, header=True, part=FilePart(i, count)) for i in range(count)]
        np.testing.assert_array_equal(np.concatenate([p for p in parts if len(p)]), [[1, 2], [3, 4]])
    with pytest.raises(FormatError, match="line 2: column 0 must be a number of float32, got 'age'"):
        read(data)


@pytest.mark.parametrize(
    ("data", "options", "words"),
    [
        (b"1,2\n3,x\n", {}, "byte 4: line 2: column 1 must be a number of float32, got 'x'"),
        (b"1,2\n3,\n", {}, "line 2: column 1 must be a number of float32, got ''"),
        (b"1,2\n3\n", {}, "byte 4: line 2: expected 2 columns, got 1"),
        (b"1,2\n3,4,5\n", {}, "line 2: expected 2 columns, got 3"),
        (b"1,2\n", {"columns": 3}, "line 1: expected 3 columns, got 2"),
        (b"1,2,\n", {}, "column 2 must be a number of float32, got ''"),
        (b'"1",2\n', {}, "column 0 must be a number"),
        (b"1,0x10\n", {}, "column 1 must be a number"),
        (b"1,1_0\n", {}, "column 1 must be a number"),
        (b"1,\xff\n", {}, r"column 1 must be a number of float32, got '\\\\xff'"),
        (b"1,\0\n", {}, "column 1 must be a number"),
        (b"1,1e39\n", {}, "column 1 must be a number of float32, got '1e39'"),
        (b"1,1e400\n", {"dtype": "float64"}, "column 1 must be a number of float64, got '1e400'"),
        (b"1,2.5\n", {"dtype": "int32"}, "column 1 must be a number of int32, got '2.5'"),
        (b"1,3000000000\n", {"dtype": "int32"}, "column 1 must be a number of int32"),
        (b"1,9223372036854775808\n", {"dtype": "int64"}, "column 1 must be a number of int64"),
        (b"1" * 20_000 + b"\n", {}, "byte 0: "),
        (b"1,2\n" * 5000 + b"1,2,3\n", {}, "byte 20000: line 5001: expected 2 columns, got 3"),
    ],
)
def test_what_is_no_row_is_told_with_line_and_column(data: bytes, options: dict[str, Any], words: str) -> None:
    with pytest.raises(FormatError, match=words):
        read(data, **options)


def test_what_cannot_be_asked_for_is_refused() -> None:
    with pytest.raises(OptionError, match="read as float32, float64, int32 or int64, got uint8"):
        read(b"1", dtype="uint8")
    for separator in ("", ",,", "-", "1", "e", "\n", "é"):
        with pytest.raises(OptionError, match="separator must be one sign"):
            read(b"1", separator=separator)
        with pytest.raises(OptionError, match="separator must be one sign"):
            written([[1, 2]], separator=separator)
    with pytest.raises(OptionError, match="rows must be an array"):
        written([1, 2])


def test_a_wide_row_is_parsed_in_pieces_and_takes_little_memory() -> None:
    count = 400_000
    data = b"1," * (count - 1) + b"2\n" + b"3," * (count - 1) + b"4\n"
    file = io.BytesIO(data)
    tracemalloc.start()
    try:
        most = 0
        for i, rows in enumerate(comma.read(file)):
            assert rows.shape == (1, count)
            assert rows[0, -1] == (2, 4)[i]
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 4 * (2 * count * 4) + (1 << 20)


def test_a_large_table_is_written_in_little_memory() -> None:
    table = np.full((20_000, 20), 1 / 3)
    file = io.BytesIO()
    tracemalloc.start()
    try:
        comma.write(file, table)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(read(file.getvalue(), dtype="float64"), table)
    assert most < 2 * len(file.getvalue()) + (4 << 20), "what is written, which may double as it grows, and some rows"


def test_rows_of_lists_and_bools_are_written_as_numbers_and_nothing_else_is() -> None:
    assert written(iter([[[1, 2]], np.array([[3.5, 4]])])) == b"1,2\n3.5,4.0\n"
    np.testing.assert_array_equal(read(written([[True, False]])), [[1, 0]])
    for wrong in ([["a"]], [[1j]], [[None]]):
        with pytest.raises(OptionError, match="CSV holds numbers, got "):
            written(wrong)


@given(arrays.arrays(np.float16, st.tuples(st.integers(1, 9), st.integers(1, 5))))
def test_numbers_of_16_bits_have_the_digits_of_what_they_are_read_as(array: np.ndarray[Any, Any]) -> None:
    for dtype in ("float32", "float64"):
        again = read(written(array), dtype=dtype).astype(np.float16)
        np.testing.assert_array_equal(again, array)
    np.testing.assert_array_equal(read(written(array)), array.astype(np.float32), strict=True)
    assert written(np.array([[0.1, 0.5]], np.float16)) == b"0.099975586,0.5\n"


def test_a_separator_that_is_refused_leaves_the_file_alone(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"there already")
    with pytest.raises(OptionError, match="separator must be one sign"):
        comma.write(tmp_path / "a.csv", [[1, 2]], separator="e")
    assert (tmp_path / "a.csv").read_bytes() == b"there already"


def test_the_real_file_is_read(shared_data: Path) -> None:
    path = shared_data / "xgboost/veterans_lung_cancer.csv"
    assert comma.count_columns(path, header=True) == 13
    rows = np.concatenate(list(comma.read(path, header=True)))
    assert rows.shape == (137, 13)
    np.testing.assert_array_equal(rows, np.loadtxt(path, np.float32, delimiter=",", skiprows=1))
