"""Records that are bad by themselves: with on_error="skip" a ready provider drops them and reads on behind them."""

from __future__ import annotations

import io
import json
import math
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import pydp2
from pydp2.errors import BadSample, FormatError
from pydp2.file_parts import part_entries
from pydp2.formats import comma, dmlc_recordio, idx, libsvm, lst, paddle_recordio
from pydp2.formats.irheader import IRHeader, pack
from pydp2.formats.serving import LabelSlot
from pydp2.providers import resolve

PICTURE = b"a picture"


class Case(NamedTuple):
    """A file with bad records: its provider, its arguments, the ids of its samples in order, and of each bad record
    the sample index and words of its reason."""

    module: str
    args: dict[str, Any]
    slot: str
    good: list[float]
    bad: dict[int, str]


def some_csv(path: Path) -> Case:
    path.write_text("0,1\n1,x\n2,3\n3\n4,-1\n\n5,1e999\n6,0\n")
    bad = {1: "line 2: column 1 must be a number of float32, got 'x'", 3: "line 4: expected 2 columns, got 1",
           4: "expected a class from 0 to 9, got -1; classes=.-1, 1. is for labels", 5: "line 7: column 1"}  # fmt: skip
    return Case("comma", {"label": 1, "classes": 10}, "data", [0, 2, 6], bad)


def some_libsvm(path: Path) -> Case:
    path.write_text("0 0:1\nx\n2 0:2\n3 5:1\n4 0:3 0:3\n5 0:4\n10 0:5\n7 0:6\n")
    bad = {1: "line 2: expected a label", 3: "data: expected columns below dim=5, got 5; base=1 says that",
           4: "line 5: expected each index once", 6: "label: expected a class from 0 to 7, got 10"}  # fmt: skip
    return Case("libsvm", {"dim": 5, "classes": 8}, "label", [0, 2, 5, 7], bad)


def a_rec(path: Path) -> Case:
    records = [pack(IRHeader(0, i, i), PICTURE) for i in range(8)]
    records[0] = pack(IRHeader(0, [8, 20], 0), b"")  # as face data sets begin
    records[2] = b"short"
    records[3] = pack(IRHeader(0, 11.5, 3), PICTURE)
    records[5] = pack(IRHeader(0, 5, 2**63), PICTURE)
    dmlc_recordio.write(path, records)
    bad = {0: "label: expected 1 label, got 2; the record has no picture, as the first one of a face data set",
           2: "an IRHeader needs 24 bytes, the record has 5", 3: "got 11.5; leave classes out",
           5: "id: expected a number"}  # fmt: skip
    return Case("dmlc_recordio", {"classes": 8}, "id", [1, 4, 6, 7], bad)


def a_damaged_rec(path: Path) -> Case:
    dmlc_recordio.write(path, [pack(IRHeader(0, i, i), PICTURE * (i + 1)) for i in range(8)])
    with dmlc_recordio.Reader(path) as reader:
        offsets = [offset for offset, _ in reader.with_offsets()]
    data = bytearray(path.read_bytes())
    data[offsets[2]] ^= 1  # its magic
    data[offsets[5] + 4 :][:4] = data[offsets[5] + 4 : offsets[5] + 8] = b"\xff\xff\xff\x0f"  # its length
    path.write_bytes(data[:-3])
    bad = {2: "expected the magic", 5: "a record needs 268435456 bytes", 7: "left in the file; did a download"}
    return Case("dmlc_recordio", {}, "id", [0, 1, 3, 4, 6], bad)


def a_dat(path: Path) -> Case:
    with paddle_recordio.Writer(path, max_records=2) as writer:
        for i in range(8):
            writer.write(bytes([i]) * 30)
    with paddle_recordio.Reader(path) as reader:
        chunk = list(reader.chunks())[1]
    data = bytearray(path.read_bytes())
    data[chunk.end - 1] ^= 1
    path.write_bytes(data)
    return Case("paddle_recordio", {}, "record", [0, 1, 4, 5, 6, 7], {2: "the checksum of the chunk does not match"})


def a_lst(path: Path) -> Case:
    for i in range(6):
        (path.parent / f"{i}.jpg").write_bytes(PICTURE)
    (path.parent / "3.jpg").unlink()
    lines = [b"%d\t1\t%d.jpg" % (i, i) for i in range(6)]
    lines[1] = b"1 1 1.jpg"
    lines[4] = b"4\t1\t2\t4.jpg"
    path.write_bytes(b"\n".join(lines))
    bad = {1: "line 2: .*; there are blanks where tabs belong", 3: "data: expected the picture .*3.jpg, got No such",
           4: "label: expected 1 label, got 2; label_width=2 takes them all"}  # fmt: skip
    return Case("lst", {"folder": str(path.parent)}, "id", [0, 2, 5], bad)


def an_idx(path: Path) -> Case:
    idx.write(path, np.arange(8, dtype=np.uint8))
    idx.write(path.with_name("labels"), np.array([0, 1, 10, 3, 11, 5, 6, 7], np.uint8))
    args = {"labels": str(path.with_name("labels")), "classes": 10}
    return Case("idx", args, "data", [0, 1, 3, 5, 6, 7], {2: "got 10; classes=list.range.1, 11.. is", 4: "got 11"})


MAKERS = [some_csv, some_libsvm, a_rec, a_damaged_rec, a_dat, a_lst, an_idx]


def numbers(value: Any, count: int) -> list[float]:
    if isinstance(value, pydp2.Ragged):
        return [float(value.values[at, 0]) for at in value.sequence_start_positions[:-1]]
    return [float(np.asarray(value[i]).reshape(-1)[0]) for i in range(count)]


def served(case: Case, files: list[str], **options: Any) -> list[float]:
    address = f"pydp2.formats.{case.module}"
    with pydp2.load(files, address, args=case.args, batch_size=3, shuffle=False, **options) as data:
        return [number for batch in data for number in numbers(batch[case.slot], len(batch))]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("workers", [1, 3])
def test_bad_records_are_dropped_alone_and_written_down(
    make: Callable[[Path], Case], workers: int, tmp_path: Path
) -> None:
    case = make(tmp_path / "a")
    found = served(case, [str(tmp_path / "a")], workers=workers, on_error="skip", quarantine=tmp_path / "bad.jsonl")
    assert found == case.good
    lines = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
    assert [line["y"] for line in lines] == list(case.bad)
    assert {line["kind"] for line in lines} == {"dropped"}
    for line in lines:
        assert re.search(case.bad[line["y"]], f"{line['slot']}: {line['reason']}"), line
    again = pydp2.replay(tmp_path / "bad.jsonl", f"pydp2.formats.{case.module}", args=case.args)
    assert [verdict.verdict for verdict in again.verdicts] == ["still bad"] * len(lines)


@pytest.mark.parametrize("make", MAKERS)
def test_without_skip_the_first_bad_record_ends_the_pass(make: Callable[[Path], Case], tmp_path: Path) -> None:
    case = make(tmp_path / "a")
    first, words = next(iter(case.bad.items()))
    with pytest.raises(BadSample, match=rf"file .*a, sample {first}, (slot )?.*{words}"):
        served(case, [str(tmp_path / "a")], workers=1)
    with pytest.raises(BadSample, match=rf"sample {first}, (slot )?.*{words}"):
        list(resolve(f"pydp2.formats.{case.module}").samples(tmp_path / "a", args=case.args))


@pytest.mark.parametrize("make", MAKERS)
def test_check_shows_every_bad_record(make: Callable[[Path], Case], tmp_path: Path) -> None:
    case = make(tmp_path / "a")
    report = pydp2.check([str(tmp_path / "a")], f"pydp2.formats.{case.module}", args=case.args)
    assert [finding.sample for finding in report.findings] == list(case.bad)


@pytest.mark.parametrize("make", [some_csv, some_libsvm, a_rec, a_lst, an_idx])
@pytest.mark.parametrize("count", [2, 5])
def test_parts_of_a_file_drop_what_the_whole_file_drops(
    make: Callable[[Path], Case], count: int, tmp_path: Path
) -> None:
    case = make(tmp_path / "a")
    running = resolve(f"pydp2.formats.{case.module}").start(args=case.args, file_list=[str(tmp_path / "a")])
    found = []
    for entry in part_entries(str(tmp_path / "a"), count):
        for sample in running.open_file(entry, file_index=0, seed=0, pass_id=0):
            found.append(isinstance(sample, BadSample))
    assert [i for i, bad in enumerate(found) if bad] == list(case.bad)
    assert found.count(False) == len(case.good)


def test_a_state_goes_on_behind_dropped_records(tmp_path: Path) -> None:
    case = some_libsvm(tmp_path / "a")
    address = "pydp2.formats.libsvm"
    options: dict[str, Any] = {"args": case.args, "batch_size": 1, "shuffle": False, "on_error": "skip", "workers": 1}
    with pydp2.load([str(tmp_path / "a")] * 2, address, **options) as data:
        batches = iter(data)
        seen = [numbers(next(batches)["label"], 1)[0] for _ in range(3)]
        state = data.state_dict()
    with pydp2.load([str(tmp_path / "a")] * 2, address, **options) as data:
        data.load_state_dict(state)
        seen += [numbers(batch["label"], 1)[0] for batch in data]
    assert seen == case.good * 2


def test_the_lines_before_a_bad_one_are_not_read_again(tmp_path: Path) -> None:
    """Each of many bad lines has its number, in a time that grows with the file and not with its square."""
    path = tmp_path / "a.csv"
    path.write_text("1,2\n" + "x,2\n" * 20_000)
    found = list(comma.read_or_errors(path))
    assert len(found) == 20_001
    assert "line 20001: column 0" in str(found[-1])
    with open(path, "rb", buffering=0) as file:
        reads = 0

        class Counted:
            name = "a"

            def read(self, count: int) -> bytes:
                nonlocal reads
                reads += count
                return file.read(count)

            seek = file.seek

        list(comma.read_or_errors(Counted()))  # type: ignore[arg-type]
    assert reads < 4 * path.stat().st_size


def test_damage_in_each_record_is_read_over_once(tmp_path: Path) -> None:
    dmlc_recordio.write(tmp_path / "a", [b"x" * 100] * 2000)
    data = bytearray((tmp_path / "a").read_bytes())
    for at in range(4, len(data), 108):
        data[at : at + 4] = struct.pack("<I", 104)  # each length reaches into the padding that is none
    (tmp_path / "a").write_bytes(data)
    with dmlc_recordio.Reader(tmp_path / "a") as reader:
        found = list(reader.records_or_errors())
    assert 900 < len(found) <= 2000
    offsets = [offset for offset, _ in found]
    assert offsets == sorted(set(offsets))


@pytest.mark.parametrize("at", range(0, 40, 3))
def test_a_record_with_any_damaged_byte_costs_at_most_itself_and_its_neighbour(at: int, tmp_path: Path) -> None:
    records = [bytes([i]) * 17 for i in range(6)]
    dmlc_recordio.write(tmp_path / "a", records)
    data = bytearray((tmp_path / "a").read_bytes())
    data[28 + at] ^= 0xFF
    (tmp_path / "a").write_bytes(data)
    with dmlc_recordio.Reader(tmp_path / "a") as reader:
        good = [record for _, record in reader.records_or_errors() if not isinstance(record, FormatError)]
    assert [record for record in good if record in records][-3:] == records[3:]


# -- labels ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("classes", "labels", "values"),
    [
        ([-1, 1], [-1.0, 1.0, 1.0], [0, 1, 1]),
        ([1, 2, 3], [3, 1, 2], [2, 0, 1]),
        ([7, -3, 0], [0, 7, -3], [2, 0, 1]),
        (3, [2, 0, 1], [2, 0, 1]),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_classes_name_the_labels_in_their_order(
    classes: Any, labels: list[float], values: list[int], dtype: str
) -> None:
    found, errors = LabelSlot(classes).values(np.array(labels, dtype))
    assert (found.tolist(), errors) == (values, {})


@pytest.mark.parametrize(
    ("classes", "label", "words"),
    [
        (2, -1.0, r"expected a class from 0 to 1, got -1; classes=\[-1, 1\] is for labels of -1 and 1"),
        (3, 3.0, r"got 3; classes=\[1, 2, 3\] is for labels from 1 to 3"),
        (1000, 1000.0, r"got 1000; classes=list\(range\(1, 1001\)\) is for labels from 1 to 1000"),
        (3, 1.5, "got 1.5; leave classes out, so that labels are numbers"),
        (3, 7.0, "got 7; classes must be above the largest label, or list every label"),
        (3, math.nan, "got nan"),
        (3, math.inf, "got inf"),
        ([-1, 1], 0.0, "expected one of the classes -1, 1, got 0; classes must list every label"),
        (list(range(9)), 9.0, "expected one of the classes 0, 1, 2, 3, 4, …, got 9"),
        ([-1, 1], math.nan, "got nan"),
    ],
)
def test_a_label_that_is_no_class_is_told_what_classes_may_be(classes: Any, label: float, words: str) -> None:
    with pytest.raises(BadSample, match=words):
        LabelSlot(classes).value(np.array([label]))


@pytest.mark.parametrize("module", ["comma", "libsvm", "idx", "dmlc_recordio", "lst"])
@pytest.mark.parametrize(
    ("classes", "words"),
    [
        ([1, 1], "classes must list each label once, got"),
        ([], "classes must list each label once, got"),
        ([1.5], "classes must be the number of classes, or a list of their labels such as"),
        (["cat", "dog"], "classes must be the number of classes, or a list of their labels such as"),
        ("10", "classes must be the number of classes, or a list of their labels such as"),
    ],
)
def test_classes_are_a_number_or_a_list_of_labels(module: str, classes: Any, words: str) -> None:
    args = {"classes": classes} | {"libsvm": {"dim": 3}, "comma": {"label": 0}}.get(module, {})
    with pytest.raises(ValueError if "once" in words else TypeError, match=words):
        resolve(f"pydp2.formats.{module}").start(args=args)


def test_labels_of_minus_one_and_one_are_served_as_two_classes(tmp_path: Path) -> None:
    (tmp_path / "a.svm").write_text("-1 0:1\n+1 1:1\n-1 2:1\n")
    case = Case("libsvm", {"dim": 3, "classes": [-1, 1]}, "label", [0, 1, 0], {})
    assert served(case, [str(tmp_path / "a.svm")], workers=1) == case.good
    (tmp_path / "a.csv").write_text("5,1\n6,3\n7,2\n")
    case = Case("comma", {"label": -1, "classes": [1, 2, 3]}, "label", [0, 2, 1], {})
    assert served(case, [str(tmp_path / "a.csv")], workers=1) == case.good


def test_a_column_of_the_labels_of_qmnist_is_chosen(tmp_path: Path) -> None:
    idx.write(tmp_path / "images", np.zeros((4, 2, 2), np.uint8))
    labels = np.arange(32, dtype=np.int32).reshape(4, 8)
    labels[:, 0] = [3, 1, 4, 1]
    idx.write(tmp_path / "labels", labels)
    args = {"labels": ["images", "labels"], "classes": 10}
    case = Case("idx", args | {"label_column": 0}, "label", [3, 1, 4, 1], {})
    assert served(case, list(part_entries(str(tmp_path / "images"), 2)), workers=1) == case.good
    process = resolve("pydp2.formats.idx")
    with pytest.raises(
        ValueError,
        match=r"labels: expected one label for each sample of .*images, got the shape \(4, 8\); label_column=0 chooses",
    ):
        list(process.samples(tmp_path / "images", args=args))
    with pytest.raises(ValueError, match=r"label_column must be one of the 8 columns of .*labels, from 0, got 8"):
        list(process.samples(tmp_path / "images", args=args | {"label_column": 8}))


# -- hints -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "args", "words"),
    [
        ("age,dose\n1,2\n", {}, "got 'age'; header=true says that the first line has names"),
        ("\n\nage,dose\n1,2\n", {}, "header=true says"),
        ("1;2\n3;4\n", {}, "got '1;2'; separator=';' says what stands between two numbers"),
        ("1\t2\n", {}, r"separator='.t' says"),
        ("1,2\n", {"separator": ";"}, "separator=',' says"),
        ("1,5;2\n", {"separator": ";"}, "a decimal number has a point here: write 1.5 for 1,5"),
        ("1,cat\n", {}, "column 1 must be a number of float32, got 'cat'; pydp2.formats.csv reads columns of text$"),
        ('"1","2"\n', {}, "quotes are not read here: pydp2.formats.csv reads them, or write the numbers without them"),
        ("1,,3\n", {}, "got ''; write nan for a number that is missing"),
        ("1,2.5\n", {"dtype": "int32"}, "got '2.5'; dtype='float64' holds it"),
    ],
)
def test_csv_that_is_written_in_another_way_names_the_argument_for_it(
    text: str, args: dict[str, Any], words: str
) -> None:
    error = next(item for item in comma.read_or_errors(io.BytesIO(text.encode()), **args))
    assert re.search(words, str(error))


def test_header_is_not_suggested_behind_the_first_line_or_where_it_is_given() -> None:
    (_, second) = comma.read_or_errors(io.BytesIO(b"1,2\nage,dose\n"))
    (third,) = comma.read_or_errors(io.BytesIO(b"a,b\nage,dose\n"), header=True)
    assert "header" not in str(second)
    assert "header" not in str(third)


def test_columns_that_count_from_another_number_name_base(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1 3:1\n")
    with pytest.raises(BadSample, match="expected columns below dim=3, got 3; base=1 says that columns count from 1"):
        list(resolve("pydp2.formats.libsvm").samples(tmp_path / "a", args={"dim": 3}))
    with pytest.raises(BadSample, match=r"expected columns below dim=2, got 3$"):
        list(resolve("pydp2.formats.libsvm").samples(tmp_path / "a", args={"dim": 2, "base": 1}))
    with pytest.raises(FormatError, match="expected indices from 1, got 0; base=0 says that columns count from 0"):
        list(libsvm.read(io.BytesIO(b"1 0:1\n"), base=1))


def test_a_list_with_an_unreadable_path_goes_on(tmp_path: Path) -> None:
    (tmp_path / "ok").write_bytes(PICTURE)
    (tmp_path / "a.lst").write_bytes(b"0\t1\tno\0t\n1\t1\t.\n2\t1\tok\n")
    items = list(lst.process.start(args={"folder": str(tmp_path)}).open_file(
        str(tmp_path / "a.lst"), file_index=0, seed=0, pass_id=0
    ))  # fmt: skip
    assert [isinstance(item, BadSample) for item in items] == [True, True, False]
