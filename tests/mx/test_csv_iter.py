"""CSVIter: shapes, labels, rounds, and text that is not what it should be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pydp2.errors import FormatError
from pydp2.mx import CSVIter, CSVProvider


@pytest.fixture
def four(tmp_path: Path) -> Path:
    """Rows 1, 2, 3, 4."""
    path = tmp_path / "four.csv"
    path.write_text("1\n2\n3\n4\n")
    return path


def epoch(provider: CSVIter) -> list[tuple[list[float], int]]:
    return [(batch.data[0][:, 0].tolist(), batch.pad) for batch in provider]


def test_mx_15_a_row_becomes_an_array_of_the_shape(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    path.write_text("1,2,3,4,5,6\n")
    provider = CSVIter(data_csv=path, data_shape=(3, 2), batch_size=1)
    assert provider.provide_data == [("data", (1, 3, 2))]
    (batch,) = provider
    assert batch.data[0].tolist() == [[[1, 2], [3, 4], [5, 6]]]


@pytest.mark.parametrize("null", [{}, {"label_csv": "NULL"}, {"label_csv": None}])
def test_mx_16_without_a_file_of_labels_they_are_0(four: Path, null: dict[str, Any]) -> None:
    provider = CSVIter(data_csv=four, data_shape=(1,), batch_size=2, **null)
    assert provider.provide_label == [("softmax_label", (2,))]
    for batch in provider:
        assert batch.label[0].tolist() == [0, 0]
        assert batch.label[0].dtype == np.float32


def test_mx_17_round_batch_goes_on_behind_what_has_filled_up(four: Path) -> None:
    provider = CSVIter(data_csv=four, label_csv=four, data_shape=(1,), batch_size=3)
    first = epoch(provider)
    assert first == [([1, 2, 3], 0), ([4, 1, 2], 2)]
    assert epoch(provider) == [([3, 4, 1], 1)]
    assert epoch(provider) == [([2, 3, 4], 0)]
    assert epoch(provider) == first


def test_mx_17_the_label_goes_with_its_row(four: Path) -> None:
    provider = CSVIter(data_csv=four, label_csv=four, data_shape=(1,), batch_size=3)
    for _ in range(4):
        for batch in provider:
            assert batch.label[0].tolist() == batch.data[0][:, 0].tolist()


def test_an_epoch_that_was_left_is_followed_by_one_from_the_first_row(four: Path) -> None:
    provider = CSVIter(data_csv=four, data_shape=(1,), batch_size=3)
    epoch(provider)
    for _ in provider:
        break
    assert epoch(provider)[0] == ([1, 2, 3], 0)


def test_mx_18_fewer_rows_than_a_batch_cannot_be_rounded(four: Path) -> None:
    with pytest.raises(ValueError, match="at least a batch of 5 samples, but the data has 4"):
        CSVIter(data_csv=four, data_shape=(1,), batch_size=5)


def test_mx_19_without_round_batch_all_epochs_are_alike_and_end_in_zeros(four: Path) -> None:
    provider = CSVIter(data_csv=four, label_csv=four, data_shape=(1,), batch_size=3, round_batch=False)
    for _ in range(3):
        first, last = provider
        assert (first.data[0][:, 0].tolist(), first.pad) == ([1, 2, 3], 0)
        assert (last.data[0][:, 0].tolist(), last.pad) == ([4, 0, 0], 2)
        assert last.label[0].tolist() == [4, 0, 0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1,2\n3\n", "line 2.*expected 2 columns, got 1"),
        ("1,2\n3,4,5\n", "line 2.*expected 2 columns, got 3"),
        ("1,2\n3,x\n", "line 2.*column 1 must be a number.*'x'"),
        ("1,2\n3,\n", "line 2.*column 1 must be a number"),
        ("a,b\n1,2\n", "line 1.*column 0 must be a number"),
        ('1,"2"\n', "column 1"),
    ],
)
def test_mx_20_a_row_that_is_none_is_an_error_that_names_its_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "d.csv"
    path.write_text(text)
    with pytest.raises(FormatError, match=words):
        list(CSVIter(data_csv=path, data_shape=(2,), batch_size=1))


def test_mx_20_an_error_comes_behind_the_batches_before_it(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    path.write_text("1\n" * 100_000 + "x\n")
    provider = CSVIter(data_csv=path, data_shape=(1,), batch_size=1000)
    seen: list[int] = []
    with pytest.raises(FormatError, match="line 100001"):
        seen.extend(batch.count for batch in provider)
    assert sum(seen) >= 90_000  # a block of the file is read at a time


def test_mx_20_a_file_with_too_few_labels_is_an_error_and_too_many_are_none(four: Path, tmp_path: Path) -> None:
    labels = tmp_path / "l.csv"
    labels.write_text("7\n8\n9\n")
    with pytest.raises(FormatError, match=r"l\.csv: expected a label for every row of .*four\.csv, it has 3"):
        list(CSVIter(data_csv=four, label_csv=labels, data_shape=(1,), batch_size=2))
    labels.write_text("7\n8\n9\n10\n11\n12\n")
    provider = CSVIter(data_csv=four, label_csv=labels, data_shape=(1,), batch_size=2)
    assert [batch.label[0].tolist() for batch in provider] == [[7, 8], [9, 10]]
    labels.write_text("7,1\n")
    with pytest.raises(FormatError, match="expected 1 column, got 2"):
        CSVIter(data_csv=four, label_csv=labels, data_shape=(1,), batch_size=2)


def test_mx_21_a_folder_is_read_file_by_file(tmp_path: Path) -> None:
    for name, text in (("b.csv", "3\n4\n"), ("a.csv", "1\n2"), ("c.csv", "")):
        (tmp_path / name).write_text(text)
    assert epoch(CSVIter(data_csv=tmp_path, data_shape=(1,), batch_size=2)) == [([1, 2], 0), ([3, 4], 0)]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_mx_21_line_ends_blank_lines_and_a_mark_do_not_matter(tmp_path: Path, end: str) -> None:
    path = tmp_path / "d.csv"
    path.write_bytes(b"\xef\xbb\xbf" + end.join(["1, 2", "", "3,4 ", "", ""]).encode())
    provider = CSVIter(data_csv=path, data_shape=(2,), batch_size=2)
    assert [batch.data[0].tolist() for batch in provider] == [[[1, 2], [3, 4]]]


def test_mx_22_a_thousand_rows_of_ones_are_ten_batches(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    path.write_text((",".join(["1"] * 64) + "\n") * 1000)
    provider = CSVIter(data_csv=path, data_shape=(8, 8), batch_size=100)
    batches = list(provider)
    assert len(batches) == 10
    for batch in batches:
        assert (batch.data[0] == np.ones((100, 8, 8))).all()
        assert batch.data[0].shape == (100, 8, 8)


def test_mx_30_data_are_renamed_and_labels_left_out(four: Path) -> None:
    provider = CSVIter(data_csv=four, data_shape=(1,), batch_size=2, data_name="x", label_name=None)
    assert (provider.provide_data, provider.provide_label) == ([("x", (2, 1))], [])
    for batch in provider:
        assert provider.get_label(batch) == []
        assert provider.get(batch, "x").shape == (2, 1)
    assert CSVIter(data_csv=four, data_shape=(1,), batch_size=2, label_name="y").provide_label == [("y", (2,))]


def test_labels_that_are_not_wanted_are_not_read(four: Path, tmp_path: Path) -> None:
    provider = CSVIter(
        data_csv=four, label_csv=tmp_path / "none.csv", data_shape=(1,), batch_size=2, label_name=None, round_batch=0
    )
    assert epoch(provider) == [([1, 2], 0), ([3, 4], 0)]


def test_labels_may_have_a_shape(four: Path, tmp_path: Path) -> None:
    labels = tmp_path / "l.csv"
    labels.write_text("1,2,3,4\n" * 4)
    provider = CSVIter(data_csv=four, label_csv=labels, data_shape=(1,), label_shape=(2, 2), batch_size=4)
    assert provider.provide_label == [("softmax_label", (4, 2, 2))]
    assert next(iter(provider)).label[0].tolist() == [[[1, 2], [3, 4]]] * 4


@pytest.mark.parametrize(("dtype", "text", "value"), [("int32", "-7", -7), ("int64", str(2**53 + 1), 2**53 + 1)])
def test_whole_numbers_stay_exact(tmp_path: Path, dtype: str, text: str, value: int) -> None:
    path = tmp_path / "d.csv"
    path.write_text(text + "\n")
    (batch,) = CSVIter(data_csv=path, data_shape=(1,), batch_size=1, dtype=dtype)
    assert batch.data[0].dtype == dtype
    assert batch.data[0].tolist() == [[value]]


def test_mx_31_csv_provider_is_another_name() -> None:
    assert CSVProvider is CSVIter


def test_mx_32_a_file_without_rows_fails_at_once(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    path.write_text("\n\n")
    with pytest.raises(ValueError, match="CSVIter needs samples for at least one batch of 1, but got none"):
        CSVIter(data_csv=path, data_shape=(1,), batch_size=1)
    with pytest.raises(FileNotFoundError):
        CSVIter(data_csv=tmp_path / "none.csv", data_shape=(1,), batch_size=1)


@pytest.mark.parametrize("depth", [1, 2, 4, 50])
def test_mx_42_prefetching_changes_nothing(tmp_path: Path, depth: int) -> None:
    path = tmp_path / "d.csv"
    path.write_text("".join(f"{i}\n" for i in range(50)))
    provider = CSVIter(data_csv=path, data_shape=(1,), batch_size=3, prefetch_buffer=depth)
    numbers = [x for _ in range(3) for batch, _ in epoch(provider) for x in batch]
    assert numbers == [i % 50 for i in range(len(numbers))]


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"data_shape": ()}, ValueError, "data_shape"),
        ({"data_shape": 5}, TypeError, "data_shape"),
        ({"data_shape": (0,)}, ValueError, "data_shape"),
        ({"batch_size": 0}, ValueError, "batch_size"),
        ({"prefetch_buffer": 0}, ValueError, "prefetch_buffer"),
        ({"round_batch": 2}, TypeError, "round_batch must be True or False, got 2"),
        ({"round_batch": "no"}, TypeError, "round_batch"),
        ({"data_shape": np.array([1.5])}, TypeError, "data_shape"),
        ({"data_shape": np.array(3)}, TypeError, "data_shape"),
        ({"dtype": "float64"}, ValueError, "dtype"),
        ({"data_name": "softmax_label"}, ValueError, "different names"),
        ({"data_name": None}, TypeError, "data_name"),
        ({"header": True}, TypeError, "header"),
    ],
)
def test_a_parameter_that_cannot_be_is_named(four: Path, options: dict[str, Any], error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        CSVIter(**({"data_csv": four, "data_shape": (1,), "batch_size": 2} | options))
