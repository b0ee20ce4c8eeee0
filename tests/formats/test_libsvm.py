"""libsvm's text: rows, exact numbers, parts, and what is told of an entry that is none."""

from __future__ import annotations

import gzip
import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.errors import FormatError, OptionError
from pydp2.file_parts import FilePart
from pydp2.formats import libsvm

FLOATS = st.floats(width=32, allow_nan=False)
ROWS = st.lists(
    st.tuples(st.floats(allow_nan=False), st.dictionaries(st.integers(0, 10**17), FLOATS, max_size=6)), max_size=8
).map(
    lambda rows: [
        libsvm.Row(label, np.array(list(row), np.int64), np.array(list(row.values()), np.float32))
        for label, row in rows
    ]
)


def plain(rows: list[libsvm.Row]) -> list[tuple[float, list[int], list[float]]]:
    return [(row.label, row.indices.tolist(), row.values.tolist()) for row in rows]


def read(data: bytes, part: FilePart = FilePart(0, 1), base: int = 0) -> list[libsvm.Row]:  # noqa: B008  # a Part never changes
    return list(libsvm.read(io.BytesIO(data), part=part, base=base))


def written(rows: list[libsvm.Row], base: int = 0) -> bytes:
    file = io.BytesIO()
    libsvm.write(file, rows, base=base)
    return file.getvalue()


@given(ROWS, st.integers(0, 1), st.integers(1, 12))
def test_rows_come_back_exactly_whole_and_in_parts(rows: list[libsvm.Row], base: int, count: int) -> None:
    data = written(rows, base)
    assert plain(read(data, base=base)) == plain(rows)
    assert written(read(data, base=base), base) == data
    assert plain([row for i in range(count) for row in read(data, FilePart(i, count), base)]) == plain(rows)


def test_the_largest_number_comes_back_although_its_text_is_above_it() -> None:
    largest = np.finfo(np.float32).max
    row = libsvm.Row(0.0, np.array([1]), np.array([largest], np.float32))
    assert written([row]) == b"0 1:3.4028235e+38\n"
    assert read(written([row]))[0].values.tolist() == [float(largest)]


def test_comments_blanks_and_rows_of_nothing_but_a_label() -> None:
    data = b"# all of it\r\n1 0:2.5\t7:-1e3 # rest\r\n\r\n -1   \n+0.5 3:.5\n"
    expected = [(1.0, [0, 7], [2.5, -1000.0]), (-1.0, [], []), (0.5, [3], [0.5])]
    assert plain(read(data)) == expected
    assert plain(read(gzip.compress(data))) == expected
    row = read(data)[1]
    assert (row.indices.dtype, row.values.dtype) == (np.int64, np.float32)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"x 1:2", "expected a label, got 'x 1:2'"),
        (b"1:2 3:4", "expected a label, got '1:2 3:4'"),
        (b"1 2", "expected index:value, got '2'"),
        (b"1 2:", "expected index:value, got '2:'"),
        (b"1 2:3:4", "expected index:value, got '2:3:4'"),
        (b"1 qid:7 2:3", "expected index:value, got 'qid:7 2:3'"),
        (b"1 2:3 -4:5", "expected index:value, got '-4:5'"),
        (b"1 2:1_0", "expected index:value"),
        (b"1 2 :3", "expected index:value, got '2 :3'"),
        (b"1 1000000000000000000:3", "expected index:value"),
        (b"1 2:1e39", "expected values that float32 can hold, got '1e39'"),
        (b"1 2:1e400", "expected values that float32 can hold, got '1e400'"),
        (b"1 1:inf 2:1e39 3:-Infinity", "expected values that float32 can hold, got '1e39'"),
        (b"1e999 1:1", "expected a label that float64 can hold, got '1e999'"),
        (b"1 2:3 5:1 2:4", "expected each index once, got 2 twice"),
        (b"\xff", "expected a label"),
    ],
)
def test_what_is_no_row_is_told_with_its_line(line: bytes, words: str) -> None:
    with pytest.raises(FormatError, match=f"byte 6: line 2: {words}"):
        read(b"0 1:1\n" + line + b"\n")


def test_infinity_that_the_file_itself_says_is_a_number() -> None:
    assert plain(read(b"-inf 1:inf 2:-Infinity\n")) == [(-math.inf, [1, 2], [math.inf, -math.inf])]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("row", "words"),
    [
        ((1, [1, 2], [3.0]), r"row 1: indices and values must be alike in number, got the shapes \(2,\) and \(1,\)"),
        ((1, [1, -2], [3, 4]), "row 1: indices must be whole numbers from 0"),
        ((1, [1.5], [3]), "row 1: indices must be whole numbers from 0"),
        ((1, [10**18], [3]), "row 1: indices must be whole numbers from 0"),
        ((1, [7, 5, 7], [1, 2, 3]), "row 1: the index 7 is there twice"),
        ((1, [7, 8], [1, -1e300]), r"row 1: the value -1e\+300 is beyond float32"),
    ],
)
def test_a_row_that_could_not_be_read_again_is_refused(row: Any, words: str) -> None:
    file = io.BytesIO()
    with pytest.raises(OptionError, match=words):
        libsvm.write(file, [(0, [3, 1], [0.5, 2]), row])  # type: ignore[list-item]  # lists are taken as arrays are
    assert file.getvalue() == b"0 3:0.5 1:2\n"


def test_an_index_below_the_first_is_an_error() -> None:
    with pytest.raises(FormatError, match="line 1: expected indices from 1, got 0"):
        read(b"0 0:1\n", base=1)


@pytest.mark.parametrize("base", [-1, 2, 1.0, "0", None])
def test_columns_count_from_0_or_1_where_rows_are_read_and_where_they_are_written(base: Any, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="base must be 0 or 1, the index of the first column, got "):
        read(b"1 1:1\n", base=base)
    (tmp_path / "a.svm").write_bytes(b"there already")
    with pytest.raises(OptionError, match="base must be 0 or 1, the index of the first column, got "):
        libsvm.write(tmp_path / "a.svm", [libsvm.Row(1.0, np.array([0]), np.ones(1, np.float32))], base=base)
    assert (tmp_path / "a.svm").read_bytes() == b"there already"


def test_the_real_file_is_read(shared_data: Path) -> None:
    rows = list(libsvm.read(shared_data / "xgboost/agaricus.txt.test", base=1))
    assert len(rows) == 1611
    assert all(len(row.indices) == 22 for row in rows)
    indices = np.concatenate([row.indices for row in rows])
    assert (int(indices.min()), int(indices.max())) == (0, 125)
    assert {row.label for row in rows} == {0.0, 1.0}
