"""Each format is a provider that is served under the name of its module, whole and in parts."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import pydp2
from pydp2.errors import BadSample, FormatError, ProviderError
from pydp2.file_parts import part_entries
from pydp2.formats import comma, dmlc_recordio, idx, libsvm, lst, paddle_recordio
from pydp2.formats.irheader import IRHeader, pack
from pydp2.providers import Provider, resolve

from .written_by_others import write

N = 50
RECORDS = [bytes([i]) * (i % 7) for i in range(N)]


class Case(NamedTuple):
    """A file of a format, the arguments that it is served with, and what each sample is."""

    format: str
    path: Path
    args: dict[str, Any]
    samples: list[dict[str, Any]]


def an_idx(folder: Path) -> Case:
    images = np.arange(N * 6, dtype=np.uint8).reshape(N, 2, 3)
    idx.write(folder / "images", images)
    idx.write(folder / "labels", np.arange(N, dtype=np.uint8) % 10)
    samples = [{"data": images[i].tolist(), "label": i % 10} for i in range(N)]
    return Case("idx", folder / "images", {"labels": ["images", "labels"], "classes": 10}, samples)


def some_csv(folder: Path) -> Case:
    table = np.arange(N * 3, dtype=np.float32).reshape(N, 3) / 8
    table[:, 1] = np.arange(N) % 4
    comma.write(folder / "a.csv", table)
    samples = [{"data": table[i, [0, 2]].tolist(), "label": i % 4} for i in range(N)]
    return Case("comma", folder / "a.csv", {"label": 1, "classes": 4}, samples)


def some_libsvm(folder: Path) -> Case:
    found = [libsvm.Row(i / 2, np.arange(i % 5), np.arange(i % 5, dtype=np.float32) + 0.5) for i in range(N)]
    libsvm.write(folder / "a.svm", found, base=1)
    samples = [{"data": (list(range(i % 5)), [k + 0.5 for k in range(i % 5)]), "label": [i / 2]} for i in range(N)]
    return Case("libsvm", folder / "a.svm", {"dim": 5, "base": 1}, samples)


def a_rec(folder: Path) -> Case:
    dmlc_recordio.write(folder / "a.rec", [pack(IRHeader(0, i % 3, i), r) for i, r in enumerate(RECORDS)])
    samples = [{"data": RECORDS[i], "label": i % 3, "id": i} for i in range(N)]
    return Case("dmlc_recordio", folder / "a.rec", {"classes": 3}, samples)


def a_dat(folder: Path) -> Case:
    with paddle_recordio.Writer(folder / "a.dat", max_records=4) as writer:
        for record in RECORDS:
            writer.write(record)
    return Case("paddle_recordio", folder / "a.dat", {}, [{"record": record} for record in RECORDS])


def a_lst(folder: Path) -> Case:
    for i in range(N):
        (folder / f"{i}.jpg").write_bytes(RECORDS[i])
    lst.write(folder / "a.lst", [lst.Entry(i, (float(i), 0.5), f"{i}.jpg") for i in range(N)])
    samples = [{"data": RECORDS[i], "label": [i, 0.5], "id": i} for i in range(N)]
    return Case("lst", folder / "a.lst", {"folder": str(folder), "label_width": 2}, samples)


MAKERS = [an_idx, some_csv, some_libsvm, a_rec, a_dat, a_lst]


def plain(value: Any) -> Any:
    """A value of a sample, as the cases write it."""
    if isinstance(value, np.ndarray) and value.ndim == 2 and value.dtype == np.uint8 and value.shape[1:] == (1,):
        return value.tobytes()
    if isinstance(value, list) and (not value or isinstance(value[0], tuple)):
        return [pair[0] for pair in value], [pair[1] for pair in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def samples_of(provider: Provider, case: Case, entry: str) -> list[dict[str, Any]]:
    running = provider.start(args=case.args, file_list=[str(case.path)])
    names = running.schema.slots.names
    assert names is not None
    opened = running.open_file(entry, file_index=0, seed=0, pass_id=0)
    return [dict(zip(names, map(plain, running.arrange(sample)), strict=True)) for sample in opened]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("count", [1, 2, 12, 60])
def test_a_file_is_served_in_parts_each_sample_once(make: Callable[[Path], Case], count: int, tmp_path: Path) -> None:
    case = make(tmp_path)
    provider = resolve(f"pydp2.formats.{case.format}")
    parts = [samples_of(provider, case, entry) for entry in part_entries(str(case.path), count)]
    assert [sample for part in parts for sample in part] == case.samples
    if count == 2:
        assert all(parts), "each part has some"


def rows_of(value: Any, count: int) -> list[Any]:
    """The values of a slot in a batch, as the cases write them."""
    if isinstance(value, pydp2.Ragged):
        p = value.sequence_start_positions
        return [value.values[p[i] : p[i + 1]].tobytes() for i in range(count)]
    if isinstance(value, pydp2.Csr):
        assert value.values is not None
        edges = [slice(value.indptr[i], value.indptr[i + 1]) for i in range(count)]
        return [(value.indices[e].tolist(), value.values[e].tolist()) for e in edges]
    return value.tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("make", MAKERS)
def test_a_service_serves_it_under_the_name_of_the_module(make: Callable[[Path], Case], tmp_path: Path) -> None:
    case = make(tmp_path)
    files = list(part_entries(str(case.path), 5))
    seen: list[dict[str, Any]] = []
    with pydp2.load(
        files, f"pydp2.formats.{case.format}", args=case.args, batch_size=16, shuffle=False, workers=2
    ) as data:
        for batch in data:
            columns = {name: rows_of(value, len(batch)) for name, value in batch.items()}
            seen += [{name: column[i] for name, column in columns.items()} for i in range(len(batch))]
    assert seen == case.samples


def served(address: str, path: Path, **args: Any) -> list[Any]:
    return list(resolve(f"pydp2.formats.{address}").samples(str(path), args=args))


def test_idx_keeps_its_dtype_unless_it_is_scaled(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.int16)
    idx.write(tmp_path / "a", values)
    provider = resolve("pydp2.formats.idx")
    kept = provider.start(file_list=[str(tmp_path / "a")])
    assert [str(t.element_dtype) for t in kept.schema.slots.types] == ["int16"]
    scaled = provider.start(file_list=[str(tmp_path / "a")], args={"scale": 0.5})
    assert [str(t.element_dtype) for t in scaled.schema.slots.types] == ["float32"]
    drawn = scaled.open_file(str(tmp_path / "a"), file_index=0, seed=0, pass_id=0)
    assert [sample["data"].tolist() for sample in drawn] == [[v / 2] for v in range(6)]
    assert len(provider.start().schema.slots) == 1, "of an empty list nothing is known, and nothing is served"


def test_labels_that_do_not_belong_to_their_images_are_an_error(tmp_path: Path) -> None:
    case = an_idx(tmp_path)
    idx.write(tmp_path / "labels", np.zeros(N - 1, np.uint8))
    provider = resolve("pydp2.formats.idx")
    words = r"labels: expected 50 labels, as many as .*images has samples, got the shape \(49,\)"
    with pytest.raises(FormatError, match=words):
        samples_of(provider, case, str(case.path))
    case.args["labels"] = ["pictures", "labels"]
    with pytest.raises(ValueError, match="does not hold 'pictures'"):
        samples_of(provider, case, str(case.path))


def test_csv_serves_all_columns_or_all_but_the_label(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a;b\n1;2.5\n")
    whole = resolve("pydp2.formats.comma").start(
        file_list=[str(tmp_path / "a.csv")], args={"header": True, "separator": ";"}
    )
    drawn = whole.open_file(str(tmp_path / "a.csv"), file_index=0, seed=0, pass_id=0)
    assert [s["data"].tolist() for s in drawn] == [[1, 2.5]]
    with pytest.raises(ProviderError, match="label must be one of 2 columns, from 0, got 2"):
        resolve("pydp2.formats.comma").start(
            file_list=[str(tmp_path / "a.csv")], args={"label": 2, "separator": ";", "header": True}
        )


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
def test_a_label_of_csv_has_the_dtype_that_is_asked_for(dtype: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1,16777217\n2,16777219\n")
    args = {"label": -1, "dtype": dtype}
    with pydp2.load(
        [str(tmp_path / "a.csv")], "pydp2.formats.comma", args=args, batch_size=2, shuffle=False, workers=1
    ) as data:
        (batch,) = data
        found = batch["label"]
    expected = np.array([[16777217], [16777219]]).astype(dtype)
    np.testing.assert_array_equal(found, expected, strict=True)
    assert (found.ravel().tolist() == [16777217, 16777219]) == (dtype != "float32")


@pytest.mark.parametrize(
    ("first", "args"),
    [("", {}), ("\n \n", {}), ("", {"header": True}), ("a,b\n", {"header": True}), ("a\n", {"header": True})],
)
def test_the_first_csv_file_that_has_a_row_tells_the_columns(first: str, args: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "0.csv").write_text(first)
    (tmp_path / "1.csv").write_text(("a,b\n" if args else "") + "1,2\n3,4\n")
    files = [f"{tmp_path}/0.csv?part=0/2", f"{tmp_path}/0.csv?part=1/2", str(tmp_path / "1.csv")]
    running = resolve("pydp2.formats.comma").start(file_list=files, args=args | {"label": -1})
    drawn = [s for i, f in enumerate(files) for s in running.open_file(f, file_index=i, seed=0, pass_id=0)]
    assert [(s["data"].tolist(), s["label"].tolist()) for s in drawn] == [([1], [2]), ([3], [4])]


def test_without_any_row_csv_has_as_many_columns_as_names(tmp_path: Path) -> None:
    (tmp_path / "0.csv").write_text("")
    (tmp_path / "1.csv").write_text("a,b,c\n")
    files = [str(tmp_path / f"{i}.csv") for i in range(2)]
    running = resolve("pydp2.formats.comma").start(file_list=files, args={"header": True})
    assert [t.dim for t in running.schema.slots.types] == [3]
    resolve("pydp2.formats.comma").start(file_list=files[:1], args={"label": 7})


@pytest.mark.parametrize(
    ("module", "args", "words"),
    [
        ("comma", {"separator": "ab"}, "separator must be one sign"),
        ("comma", {"separator": ""}, "separator must be one sign"),
        ("comma", {"separator": 5}, "separator must be a text, got 5"),
        ("comma", {"dtype": "uint8"}, "CSV is read as float32, float64, int32 or int64, got uint8"),
        ("comma", {"dtype": "some"}, "dtype must be float32, float64, int32 or int64, got 'some'"),
        ("comma", {"dtype": 7}, "dtype must be float32, float64, int32 or int64, got 7"),
        ("comma", {"label": 1.0}, r"label must be a whole number, .*, got 1\.0"),
        ("comma", {"label": "x"}, "label must be a whole number, the column of the label, .* is the last, got 'x'"),
        ("libsvm", {"dim": "4"}, "dim must be a whole number, the number of columns, got '4'"),
        ("lst", {"label_width": "2"}, "label_width must be a whole number, got '2'"),
        ("dmlc_recordio", {"label_width": True}, "label_width must be a whole number, got True"),
        ("comma", {"header": "yes"}, "header must be true or false, got 'yes'"),
        ("idx", {"labels": 5}, "labels must be a file, or .*, got 5"),
        ("idx", {"labels": ["a", 5]}, "labels must be a file, or "),
        ("idx", {"labels": ["", "b"]}, "labels must be a file, or "),
        ("idx", {"scale": "x"}, "scale must be a number, got 'x'"),
        ("lst", {"folder": 5}, "folder must be a text, got 5"),
        ("comma", {"classes": 3}, "classes is for the column that label chooses: give label too"),
        ("idx", {"label_column": 0}, "label_column is for a file of labels: give labels too"),
        ("idx", {"labels": "a", "label_column": "x"}, "label_column must be a whole number, got 'x'"),
        ("dmlc_recordio", {"header": False, "classes": 3}, "with header=false records have no labels"),
    ],
)
def test_arguments_are_looked_at_when_the_service_starts(module: str, args: dict[str, Any], words: str) -> None:
    with pytest.raises(ProviderError, match=words):
        resolve(f"pydp2.formats.{module}").start(args=args)


def test_a_first_file_that_is_missing_is_told_with_where_paths_start() -> None:
    for module in ("idx", "comma"):
        with pytest.raises(FileNotFoundError) as caught:
            resolve(f"pydp2.formats.{module}").start(file_list=["no/such/file"])
        assert f"raised FileNotFoundError; relative paths start at {Path.cwd()}, or where root=" in str(caught.value)


def test_the_name_of_a_label_file_is_replaced_where_it_stands_last(tmp_path: Path) -> None:
    folder = tmp_path / "images" / "images-of-1999"
    folder.mkdir(parents=True)
    idx.write(folder / "images-idx3", np.zeros((2, 1), np.uint8))
    idx.write(folder / "labels-idx3", np.array([3, 4], np.uint8))
    found = [s[1] for s in served("idx", folder / "images-idx3", labels=["images", "labels"])]
    assert found == [3, 4]
    (tmp_path / "train" / "images").mkdir(parents=True)
    (tmp_path / "train" / "labels").mkdir()
    idx.write(tmp_path / "train" / "images" / "0", np.zeros((1, 1), np.uint8))
    idx.write(tmp_path / "train" / "labels" / "0", np.array([5], np.uint8))
    assert served("idx", tmp_path / "train" / "images" / "0", labels=["images", "labels"])[0][1] == 5


def test_a_label_that_is_no_class_is_a_bad_sample(tmp_path: Path) -> None:
    (tmp_path / "a.svm").write_text("1 0:1\n1.5 0:1\n")
    with pytest.raises(BadSample, match=r"sample 1, slot label: .*1\.5"):
        served("libsvm", tmp_path / "a.svm", dim=3, classes=2)
    (tmp_path / "a.svm").write_text("1 0:1\n1 3:1\n")
    with pytest.raises(BadSample, match=r"sample 1, slot data: .*3"):
        served("libsvm", tmp_path / "a.svm", dim=3, classes=2)


def test_a_damaged_file_is_told_by_name_and_place(tmp_path: Path) -> None:
    (tmp_path / "a.rec").write_bytes(dmlc_recordio.MAGIC + b"\1\0\0\0A\0\0\0")
    with pytest.raises(
        BadSample, match=r"a\.rec, sample 0, all slots: record at byte 0: an IRHeader needs 24 bytes, the record has 1"
    ):
        served("dmlc_recordio", tmp_path / "a.rec")
    assert [plain(value) for (value,) in served("dmlc_recordio", tmp_path / "a.rec", header=False)] == [b"A"]
    (tmp_path / "a.svm").write_text("1 0:2\n")
    with pytest.raises(BadSample, match="sample 0, slot data: expected values of 1, as binary=true says, got 2"):
        served("libsvm", tmp_path / "a.svm", dim=3, binary=True)


def test_an_argument_that_a_format_does_not_have_is_an_error_at_start() -> None:
    with pytest.raises(
        ProviderError, match=r"libsvm.process needs the argument 'dim': write args=\{'dim': …\}, or --args"
    ):
        resolve("pydp2.formats.libsvm").start()


@pytest.mark.parametrize(
    ("module", "name", "words"),
    [
        (
            "comma",
            "headers",
            "comma.process has no argument 'headers', did you mean 'header'?; it takes label, classes, ",
        ),
        ("comma", "delimiter", "has no argument 'delimiter', did you mean 'separator'?"),
        ("comma", "label_column", "did you mean 'label'?"),
        ("comma", "quotechar", "has no argument 'quotechar'; it takes label, classes, header, separator, dtype"),
        ("libsvm", "dims", "did you mean 'dim'?"),
        ("libsvm", "n_features", "did you mean 'dim'?"),
        ("libsvm", "zero_based", "did you mean 'base'?"),
        ("idx", "label", "did you mean 'labels'?"),
        ("idx", "num_classes", "did you mean 'classes'?"),
        ("lst", "root", "did you mean 'folder'?"),
        ("dmlc_recordio", "Header", "did you mean 'header'?"),
        ("paddle_recordio", "header", "paddle_recordio.process has no argument 'header'; it takes no arguments"),
    ],
)
def test_an_argument_that_a_format_does_not_have_is_named_with_the_one_that_is_meant(
    module: str, name: str, words: str
) -> None:
    with pytest.raises(ProviderError, match=re.escape(words)) as caught:
        resolve(f"pydp2.formats.{module}").start(args={name: 3, **({"dim": 3} if module == "libsvm" else {})})
    assert isinstance(caught.value, TypeError)
    assert "kwargs" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "option"),
    [
        ("csv", b"i,x,word\n1,2.5,a\n", "types"),
        ("jsonl", b'{"i": 1, "x": 2.5, "word": "a", "o": {"list": [1], "texts": ["a"]}}\n', "fields"),
        ("tfrecord", None, "features"),
    ],
)
def test_types_that_are_inferred_are_printed_in_the_form_in_which_they_are_given(
    name: str, content: bytes | None, option: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = str(tmp_path / "file") if content is not None else str(write(tmp_path, "pypi.tfrecord"))
    if content is not None:
        (tmp_path / "file").write_bytes(content)
    provider: Provider = resolve(f"pydp2.formats.{name}")
    with caplog.at_level(logging.INFO):
        running = provider.start(file_list=[path])
        (line,) = caplog.messages
        given = json.loads(line.removeprefix(f"inferred {option}="))
        caplog.clear()
        again = provider.start(file_list=[path], args={option: given})
    assert again.schema.slots == running.schema.slots
    assert list(given) == list(running.schema.slots.names or ())
    assert caplog.messages == []
