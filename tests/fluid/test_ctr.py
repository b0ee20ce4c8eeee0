"""The CTR reader: both forms of lines, both kinds of files, batches, threads, what is refused."""

from __future__ import annotations

import gzip
import threading
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pydp2 import fluid
from pydp2.errors import BadSample, OptionError, OptionTypeError

from ..runs import wait_until

SVM = """\
1 10:a 11:b 12:a
-3 13:c

0 14:b 15:b 16:b
7.5\t17:a
"""
CSV = """\
1 0.5,1.5 7 8,9
0 2,3 10,11 12
5 4.25,-5 13 14
"""


@pytest.fixture(params=["plain", "gzip"])
def write(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """``write(text, …)`` gives files of one kind, and the options that say which."""

    def write(*texts: str) -> dict[str, Any]:
        names = []
        for i, text in enumerate(texts):
            path = tmp_path / f"log-{i}"
            path.write_bytes(gzip.compress(text.encode()) if request.param == "gzip" else text.encode())
            names.append(str(path))
        return {"file_list": names, "file_type": request.param}

    return write


def plain(instance: Any) -> list[Any]:
    """Per slot the numbers, and the offsets where there are some."""
    return [(np.asarray(t).tolist(), [level.tolist() for level in t.lod]) for t in instance]


def test_cf_31_svm_lines_become_ids_by_slot_and_labels_of_0_and_1(write: Any) -> None:
    with fluid.ctr_reader(**write(SVM), slots=["b", "a"], batch_size=3) as reader:
        first, second = map(plain, reader)
    assert first == [
        ([[11], [0], [14], [15], [16]], [[0, 1, 2, 5]]),
        ([[10], [12], [0], [0]], [[0, 2, 3, 4]]),
        ([[1], [0], [0]], []),
    ]
    assert second == [([[0]], [[0, 1]]), ([[17]], [[0, 1]]), ([[1]], [])]


def test_cf_31_columns_are_int64_and_slots_may_be_numbers(write: Any) -> None:
    with fluid.ctr_reader(**write("1 5:3 6:4\n"), slots=[4, 3], batch_size=2) as reader:
        instance = reader.read_next()
    assert [tensor.dtype for tensor in instance] == [np.int64] * 3
    assert [np.asarray(tensor).tolist() for tensor in instance] == [[[6]], [[5]], [[1]]]


def test_cf_31_ids_without_a_sign_are_wrapped_to_int64_bit_for_bit(write: Any) -> None:
    """Hashes of 64 bits, as they lie in memory."""
    ids = [0, 2**63 - 1, 2**63, 2**64 - 1]
    with fluid.ctr_reader(**write("1 " + " ".join(f"{n}:s" for n in ids)), slots=["s"], batch_size=1) as reader:
        found = np.asarray(reader.read_next()[0])
    assert found.dtype == np.int64
    assert found.view(np.uint64).ravel().tolist() == ids


def test_the_largest_float32_as_programs_print_it_is_read(write: Any) -> None:
    options = {"file_format": "csv", "dense_slot_index": [1], "batch_size": 1}
    with fluid.ctr_reader(**write("1 3.4028235e+38,-3.4028235e+38\n"), **options) as reader:
        dense = np.asarray(reader.read_next()[1])
    assert np.abs(dense).tolist() == [[float(np.finfo(np.float32).max)] * 2]


def test_a_mark_of_the_byte_order_before_the_text_is_none_of_it(write: Any) -> None:
    with fluid.ctr_reader(**write("\ufeff1 5:s\n", "\ufeff0 6:s\n"), slots=["s"], batch_size=9) as reader:
        ids, labels = reader.read_next()
    assert (np.asarray(ids).ravel().tolist(), np.asarray(labels).ravel().tolist()) == ([5, 6], [1, 0])


def test_cf_31_gzip_and_plain_agree(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(SVM)
    (tmp_path / "a.gz").write_bytes(gzip.compress(SVM.encode()))
    found = []
    for name, kind in (("a", "plain"), ("a.gz", "gzip")):
        with fluid.ctr_reader(tmp_path / name, file_type=kind, slots=["a", "c"], batch_size=2) as reader:
            found.append([plain(instance) for instance in reader])
    assert found[0] == found[1]


def test_cf_32_csv_lines_become_label_dense_and_sparse_columns(write: Any) -> None:
    options = {"file_format": "csv", "dense_slot_index": [1], "sparse_slot_index": [3, 2]}
    with fluid.ctr_reader(**write(CSV), **options, batch_size=2) as reader:
        first, second = reader
    assert plain(first) == [
        ([[1], [0]], []),
        ([[0.5, 1.5], [2, 3]], []),
        ([[8], [9], [12]], [[0, 2, 3]]),
        ([[7], [10], [11]], [[0, 1, 3]]),
    ]
    assert [tensor.dtype for tensor in first] == [np.int64, np.float32, np.int64, np.int64]
    assert plain(second)[0] == ([[5]], [])


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.integers(1, 6), st.integers(1, 6), st.integers(1, 3))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
def test_every_line_is_in_one_batch_and_only_the_last_of_a_thread_is_short(
    tmp_path: Path, sizes: list[int], batch: int, threads: int, capacity: int
) -> None:
    names = []
    for i, size in enumerate(sizes):
        path = tmp_path / f"{i}.txt"
        path.write_text("".join(f"1 {100 * i + n}:s\n" for n in range(size)))
        names.append(str(path))
    options: Any = {"slots": ["s"], "batch_size": batch, "thread_num": threads, "capacity": capacity}
    with fluid.ctr_reader(names, **options) as reader:
        for _ in range(2):
            found = [np.asarray(ids).ravel().tolist() for ids, label in reader]
            assert sorted(chain(*found)) == [100 * i + n for i, size in enumerate(sizes) for n in range(size)]
            used = min(threads, len(sizes))
            dealt = [sum(sizes[i::used]) for i in range(used)]
            assert sorted(map(len, found)) == sorted(
                min(batch, lines - first) for lines in dealt for first in range(0, lines, batch)
            )


def test_beginning_anew_from_a_full_buffer_ends_the_threads(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    (tmp_path / "a").write_text("1 5:s\n" * 500)
    with fluid.ctr_reader([str(tmp_path / "a")] * 3, slots=["s"], batch_size=2, thread_num=3, capacity=2) as reader:
        for _ in range(3):
            reader.read_next()
            assert wait_until(lambda: len(reader._queue()._items) == 2)  # type: ignore[union-attr]
            reader.reinit()
            assert set(threading.enumerate()) <= before
        assert sum(len(label) for _, label in reader) == 1500


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("one 5:s", "expected a number, got 'one'"),
        ("1 5", "expected id:slot, got '5'"),
        ("1 5:", "expected id:slot, got '5:'"),
        ("1 x:s", "expected a whole number, got 'x'"),
        (f"1 {2**64}:s", r"expected a number from -2\*\*63 to below 2\*\*64, got '18446744073709551616'"),
        (f"1 {-(2**63) - 1}:s", "expected a number from"),
        ("1 1_0:s", "expected a whole number, got '1_0'"),
        ("1 \uff15:s", "expected a whole number, got '\uff15'"),
        ("1_0 5:s", "expected a number, got '1_0'"),
        ("nan 5:s", "expected a number, got 'nan'"),
        ("inf 5:s", "expected a number, got 'inf'"),
    ],
)
def test_a_line_of_svm_that_is_none_is_told_with_its_place(write: Any, line: str, message: str) -> None:
    with fluid.ctr_reader(**write(f"1 1:s\n\n{line}\n"), slots=["s"], batch_size=1) as reader:
        assert reader.read_next()
        with pytest.raises(BadSample, match=rf"file .*log-0, sample 2: {message}"):
            reader.read_next()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1 1,2", "expected at least 3 groups, got 2"),
        ("1 1,x 3", "expected a number, got 'x'"),
        ("1 1, 3", "expected a number, got ''"),
        ("1 1,1e39 3", "expected a number that float32 holds, got '1e39'"),
        ("1 1,1e999 3", "expected a number, got '1e999'"),
        ("1 1,\u0663 3", "expected a number, got '\u0663'"),
        (f"{2**63} 1,2 3", r"expected a number from -2\*\*63 to below 2\*\*63"),
        ("1 1,2 3.5", "expected a whole number, got '3.5'"),
        ("a 1,2 3", "expected a whole number, got 'a'"),
        ("1 1,2,3 3", "dense group 1 has lines of 2 and of 3 values"),
    ],
)
def test_a_line_of_csv_that_is_none_is_told_with_its_place(write: Any, line: str, message: str) -> None:
    options = {"file_format": "csv", "dense_slot_index": [1], "sparse_slot_index": [2], "batch_size": 2}
    with (
        fluid.ctr_reader(**write(f"1 1,2 3\n{line}\n"), **options) as reader,
        pytest.raises(BadSample, match=rf"file .*log-0, sample [01]: {message}"),
    ):
        reader.read_next()


def test_a_damaged_or_missing_file_is_told(tmp_path: Path) -> None:
    whole = gzip.compress(b"1 5:s\n" * 1000)
    for data in (whole[:-9], b"not gzip at all", whole[:30] + b"\0\0\0" + whole[33:]):
        (tmp_path / "a.gz").write_bytes(data)
        with (
            fluid.ctr_reader(str(tmp_path / "a.gz"), file_type="gzip", slots=["s"], batch_size=5000) as reader,
            pytest.raises(BadSample, match=r"a\.gz, sample \d+: it cannot be read as text"),
        ):
            reader.read_next()
    (tmp_path / "bytes").write_bytes(b"1 5:s\n\xff\xfe\n")
    for name, kind in (("bytes", BadSample), ("missing", FileNotFoundError)):
        with fluid.ctr_reader(str(tmp_path / name), slots=["s"], batch_size=9) as reader, pytest.raises(kind):
            reader.read_next()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"file_type": "zip", "slots": ["s"]}, "file_type must be"),
        ({"file_format": "json"}, "file_format must be"),
        ({}, "slots must be a list of the wanted slots"),
        ({"slots": "ab"}, "slots must be a list"),
        ({"slots": ["a", "a"]}, "each once"),
        ({"file_format": "csv"}, "csv needs groups"),
        ({"file_format": "csv", "slots": ["s"], "dense_slot_index": [1]}, "slots belong to file_format='svm'"),
        ({"file_format": "csv", "dense_slot_index": [0]}, "dense_slot_index must be at least 1"),
        ({"file_format": "csv", "sparse_slot_index": 5}, "sparse_slot_index must be a list"),
        ({"slots": ["s"], "batch_size": 0}, "batch_size must be"),
        ({"slots": ["s"], "thread_num": 0}, "thread_num must be"),
        ({"slots": ["s"], "capacity": 0}, "capacity must be"),
        ({"slots": ["s"], "file_list": []}, "file_list must be"),
    ],
)
def test_options_that_cannot_be_are_refused_at_once(options: Any, message: str) -> None:
    with pytest.raises((OptionError, OptionTypeError), match=message):
        fluid.ctr_reader(**{"file_list": "x", "batch_size": 1} | options)


@pytest.mark.parametrize("kind", ["plain", "gzip"])
def test_lines_before_what_is_no_text_come_first_and_the_line_is_named(kind: str, tmp_path: Path) -> None:
    text = b"".join(b"1 %d:s\n" % i for i in range(100)) + b"1 \xff:s\r1 7:s\n"
    path = tmp_path / "log"
    path.write_bytes(gzip.compress(text) if kind == "gzip" else text)
    with fluid.ctr_reader(path, file_type=kind, slots=["s"], batch_size=10) as reader:
        ids = [reader.read_next()[0].data.ravel().tolist() for _ in range(10)]
        assert ids == [list(range(i, i + 10)) for i in range(0, 100, 10)]
        with pytest.raises(BadSample, match=r"file .*log, sample 100: it cannot be read as text: .*0xff"):
            reader.read_next()


@pytest.mark.parametrize(
    ("file_list", "slots"), [(5, ["s"]), (None, ["s"]), ("a", None), ("a", 5), ("a", {"s": 1}.values())]
)
def test_what_is_no_list_of_files_or_slots_is_a_type_error(file_list: Any, slots: Any) -> None:
    with pytest.raises(OptionTypeError, match=r"(file_list|slots) must be a list of"):
        fluid.ctr_reader(file_list, batch_size=1, slots=slots)


def test_a_file_that_is_no_text_is_named_at_its_first_line(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(gzip.compress(b"1 2:a\n"))
    (tmp_path / "b").write_bytes(b"<html>\n")
    for name, words in (("a", "a gzip file"), ("b", "an HTML page")):
        with (
            fluid.ctr_reader(str(tmp_path / name), slots=["s"], batch_size=9) as reader,
            pytest.raises(BadSample, match=f"sample 0: .*; the file looks like {words}"),
        ):
            reader.read_next()
