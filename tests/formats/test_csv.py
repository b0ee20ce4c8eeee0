"""CSV by pyarrow: names, quotes, text, missing values; in parts that respect quotes, from any record on."""

from __future__ import annotations

import csv as stdlib_csv
import gzip
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

import pydp2
from pydp2.data.schema.input_types import scalar, text
from pydp2.errors import BadSample, FormatError, OptionError, ProviderError
from pydp2.file_parts import WHOLE_FILE, FilePart, part_entries
from pydp2.formats import csv
from pydp2.formats.quoted_lines import RecordReader
from pydp2.providers import resolve

pa: Any = pytest.importorskip("pyarrow")
list(csv.read(io.BytesIO(b"a\n1\n")))  # the first time pyarrow starts a thread, which stays

FIELDS = st.text(st.sampled_from('ab",\n\ré '), max_size=6)
TABLES = st.integers(1, 4).flatmap(
    lambda width: st.lists(st.lists(FIELDS, min_size=width, max_size=width), max_size=12)
)


def as_text(records: list[list[str]], end: str = "\n", **options: Any) -> str:
    """The records as Python's own module writes them."""
    file = io.StringIO(newline="")
    stdlib_csv.writer(file, lineterminator=end, **options).writerows(records)
    return file.getvalue()


def listed(batches: Iterator[Any]) -> list[Any]:
    return [row for batch in batches for row in batch.to_pylist()]


def started(*files: Path, **args: Any) -> Any:
    return resolve("pydp2.formats.csv").start(file_list=[str(file) for file in files], args=args)


def served(running: Any, entry: Path | str, start: int = 0) -> list[Any]:
    return list(running.open_file(str(entry), file_index=0, seed=0, pass_id=0, start=start))


def a_file(folder: Path, content: str | bytes, name: str = "a.csv") -> Path:
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return folder / name


# -- reading -----------------------------------------------------------------------------------------------------------
@given(
    records=TABLES,
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    parts=st.integers(1, 6),
    block=st.integers(1, 30),
    start=st.integers(0, 14),
)
def test_what_pythons_module_writes_is_read_in_parts_that_respect_quotes(
    records: list[list[str]], end: str, parts: int, block: int, start: int
) -> None:
    records = [record for record in records if record != [""]]  # which is written as nothing but quotes
    names = [f"c{i}" for i in range(len(records[0]) if records else 1)]
    file = io.BytesIO(as_text([names, *records], end, quoting=stdlib_csv.QUOTE_ALL).encode())
    types = dict.fromkeys(names, "text")
    expected = [dict(zip(names, record, strict=True)) for record in records]
    before = csv.TEXT_BLOCK
    csv.TEXT_BLOCK = block
    try:
        assert listed(csv.read(file, types=types)) == expected
        read = [listed(csv.read(file, types=types, part=FilePart(i, parts))) for i in range(parts)]
        assert [record for part in read for record in part] == expected
        assert listed(csv.read(file, types=types, start=start)) == expected[start:]
        index = start % parts
        rest = listed(csv.read(file, types=types, start=start // 2, part=FilePart(index, parts)))
        assert rest == read[index][start // 2 :]
    finally:
        csv.TEXT_BLOCK = before


@given(data=st.text(st.sampled_from('a",\n'), max_size=40).map(str.encode), size=st.integers(1, 10))
def test_blocks_have_whole_records_however_quotes_lie(data: bytes, size: int) -> None:
    def read(size: int, part: FilePart = WHOLE_FILE) -> list[tuple[int, bytes]]:
        found = []
        with RecordReader(io.BytesIO(data), b",", quotes=True) as reader:
            for offset, block in reader.blocks(part, 0, size):
                ends = reader.ends(block)
                found += [(offset + lo, block[lo:hi]) for lo, hi in zip([0, *ends], ends, strict=False)]
        return found

    try:
        whole = read(1 << 20)
    except FormatError:
        with pytest.raises(FormatError, match="a quote is not closed before the end of the file"):
            read(size)
        return
    assert b"".join(record for _, record in whole) == data
    assert read(size) == whole
    assert [record for i in range(3) for record in read(size, FilePart(i, 3))] == whole


def test_without_quotes_a_part_is_found_by_seeking(tmp_path: Path) -> None:
    file = a_file(tmp_path, "a,b\n" + "".join(f'{i},"{i}\n' for i in range(50)))
    whole = listed(csv.read(file, quotes=False))
    assert whole == [{"a": i, "b": f'"{i}'} for i in range(50)]
    read = [listed(csv.read(file, quotes=False, part=FilePart(i, 7))) for i in range(7)]
    assert [row for part in read for row in part] == whole


@pytest.mark.parametrize(
    "pack",
    [gzip.compress, zstandard.compress, lambda data: zstandard.compress(data[:9]) + zstandard.compress(data[9:])],
)
def test_gzip_and_zstd_are_read_whole(pack: Any, tmp_path: Path) -> None:
    file = a_file(tmp_path, pack(b"a,b\n1,x\n2,y\n"))
    assert listed(csv.read(file)) == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]
    assert listed(csv.read(file, start=1)) == [{"a": 2, "b": "y"}]
    with pytest.raises(OptionError, match="is compressed, so it cannot be read in parts"):
        listed(csv.read(file, part=FilePart(0, 2)))
    cut = a_file(tmp_path, pack(b"a,b\n1,x\n2,y\n" * 3)[:-5])
    with pytest.raises(FormatError, match=r"a\.csv, "):
        listed(csv.read(cut))


# -- types and missing values ------------------------------------------------------------------------------------------
TYPED = "i,x,flag,word,code,empty,\n1,2,true,a,007,,9\n2,2.5,False,,012,,8\n"


def test_types_are_those_of_the_first_block(tmp_path: Path) -> None:
    file = a_file(tmp_path, TYPED)
    chosen = ["i", "x", "flag", "word", "code", "column_6"]
    running = started(file, columns=chosen)
    assert dict(zip(chosen, running.schema.slots.types, strict=True)) == {
        "i": scalar("int64"),
        "x": scalar("float64"),
        "flag": scalar("bool"),
        "word": text(),
        "code": text(),
        "column_6": scalar("int64"),
    }
    assert [[str(value) for value in sample.values()] for sample in served(running, file)] == [
        ["1", "2.0", "True", "a", "007", "9"],
        ["2", "2.5", "False", "", "012", "8"],
    ]
    with pytest.raises(
        ProviderError, match=r'column empty has no value in the first block: types=\{"empty": "float32"\}'
    ):
        started(file)


def test_types_are_given_by_name(tmp_path: Path) -> None:
    file = a_file(tmp_path, TYPED)
    types = {"i": "float32", "code": "uint8", "flag": "text", "empty": "int64"}
    running = started(file, types=types, nulls={"empty": -1})
    assert dict(zip(running.schema.slots.names, running.schema.slots.types, strict=True))["i"] == scalar()
    (first, _) = served(running, file)
    assert (first["code"], first["flag"], first["empty"]) == (7, "true", -1)


@pytest.mark.parametrize("field", ["", "NA", "N/A", "null", "NULL", '""'])
def test_a_missing_value_is_an_error_or_gets_the_value_that_was_given(field: str, tmp_path: Path) -> None:
    file = a_file(tmp_path, f"age,name\n30,a\n{field},{field}\n50,b\n")
    with pytest.raises(BadSample, match=r'sample 1, slot age: expected a value, got null; nulls=\{"age": …\} gives'):
        list(resolve("pydp2.formats.csv").samples(str(file)))
    found = served(started(file, nulls={"age": -1}), file)
    assert [(int(sample["age"]), sample["name"]) for sample in found] == [(30, "a"), (-1, field.strip('"')), (50, "b")]


def test_nan_is_a_number(tmp_path: Path) -> None:
    file = a_file(tmp_path, "x\n1.5\nnan\ninf\n")
    assert [str(sample["x"]) for sample in served(started(file), file)] == ["1.5", "nan", "inf"]


def test_names_may_be_left_out(tmp_path: Path) -> None:
    file = a_file(tmp_path, "1;a\n2;b\n")
    assert served(started(file, header=False, separator=";"), file) == [{"f0": 1, "f1": "a"}, {"f0": 2, "f1": "b"}]


def test_the_first_file_that_has_a_record_says_the_types(tmp_path: Path) -> None:
    empty, names = a_file(tmp_path, "", "empty"), a_file(tmp_path, "x,y\n", "names")
    file = a_file(tmp_path, "x,y\n1,a\n")
    running = started(empty, names, file)
    assert running.schema.slots.types == (scalar("int64"), text())
    assert [served(running, each) for each in (empty, names, file)] == [[], [], [{"x": 1, "y": "a"}]]
    other = a_file(tmp_path, "y,x\nb,2\n", "other")
    assert served(running, other) == [{"x": 2, "y": "b"}]
    with pytest.raises(FormatError, match=r"fewer must have the columns of .*a\.csv: column y is .* there and absent"):
        served(running, a_file(tmp_path, "x\n1\n", "fewer"))


# -- bad records -------------------------------------------------------------------------------------------------------
BAD = 'x,word\n1,a\n2,b,c\nthree,d\n4,"e\ne"\n5\n6,\xff\n7,g\n'


def test_bad_records_are_bad_samples_and_those_between_them_are_served(tmp_path: Path) -> None:
    file = a_file(tmp_path, BAD.encode("latin-1"))
    running = started(file, types={"x": "int64", "word": "text"})
    found = served(running, file)
    assert [sample.expected if isinstance(sample, BadSample) else int(sample["x"]) for sample in found][0::3] == [
        1,
        4,
        7,
    ]
    texts = [str(sample) for sample in found if isinstance(sample, BadSample)]
    assert len(texts) == 4
    for said, expected in zip(
        texts,
        [
            r"byte 11: .*Expected 2 columns, got 3: 2,b,c",
            r"byte 17: column x: .*int64: invalid value 'three'; types=\{\"x\": …\} gives it another type",
            r"byte 33: .*Expected 2 columns, got 1: 5",
            r"byte 35: column word: .*invalid UTF8 data; the record is 6,\\xff",
        ],
        strict=True,
    ):
        assert re.search(expected, said), said
    for start in range(len(found) + 1):
        rest = served(running, file, start)
        assert [type(sample) for sample in rest] == [type(sample) for sample in found[start:]]


def test_reading_raises_at_the_first_bad_record(tmp_path: Path) -> None:
    file = a_file(tmp_path, "x,y\n1,2\n3\n")
    with pytest.raises(FormatError, match=r"a\.csv, byte 8: .*Expected 2 columns, got 1: 3; the record is 3"):
        listed(csv.read(file))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"<html><body>", "an HTML page"),
        (b'a,b\n1,"2\n3,4\n', "byte 4: a quote is not closed before the end of the file"),
        (b"a,a\n1,2\n", "columns must have different names, but a occurs twice"),
        (b"\xff,b\n1,2\n", "expected the names of columns"),
        (b"PAR1\x15\x04" + bytes(30), "a Parquet file; read it with pydp2.formats.parquet"),
    ],
)
def test_what_is_no_csv_file_is_refused(content: bytes, words: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"a\.csv, byte ") as caught:
        listed(csv.read(a_file(tmp_path, content)))
    assert words in str(caught.value)


def test_a_record_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pydp2.formats.quoted_lines.MOST", 1 << 10)
    file = a_file(tmp_path, 'a\n"' + "x\n" * (3 << 19) + '"\n')
    with pytest.raises(FormatError, match="expected the end of a record within 1024 bytes: is a quote not closed"):
        listed(csv.read(file))


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"types": {"x": "decimal"}}, "types: column x must be one of bool, int8, "),
        ({"types": ["x"]}, "types must be a type for each column"),
        ({"types": {"y": "text"}}, "types names the column y; the file has x"),
        ({"columns": ["y"]}, "columns names the column y; the file has x"),
        ({"nulls": {"x": "a"}}, "nulls: the column x is int64, and 'a' is no value of it"),
        ({"separator": "ab"}, "separator must be one sign"),
        ({"header": 1}, "header must be true or false"),
        ({"quotes": "'"}, "quotes must be true or false"),
        ({"delimiter": ";"}, "has no argument 'delimiter', did you mean 'separator'?"),
    ],
)
def test_arguments_are_checked_when_the_service_starts(args: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ProviderError) as caught:
        started(a_file(tmp_path, "x\n1\n"), **args)
    assert words in str(caught.value)


# -- in a service ------------------------------------------------------------------------------------------------------
def test_a_service_serves_all_records_in_order(tmp_path: Path) -> None:
    records = [[str(i), f'line {i}\nand "{i}"', str(i / 4)] for i in range(2000)]
    file = a_file(tmp_path, as_text([["id", "text", "x"], *records]))
    seen: list[list[str]] = []
    with pydp2.load(
        list(part_entries(str(file), 5)), "pydp2.formats.csv", batch_size=64, shuffle=False, workers=2
    ) as data:
        for batch in data:
            assert batch["id"].dtype == np.int64
            seen += zip(map(str, batch["id"]), batch["text"].to_list(), batch["x"].tolist(), strict=True)  # type: ignore[arg-type]
    assert [[i, words, str(x)] for i, words, x in seen] == [[i, words, str(float(x))] for i, words, x in records]


def test_bad_records_are_dropped_with_on_error_skip(tmp_path: Path) -> None:
    file = a_file(tmp_path, "x\n" + "".join(f"{i if i % 7 else 'bad'}\n" for i in range(1, 100)))
    args = {"types": {"x": "int64"}}
    with pydp2.load(
        [str(file)], "pydp2.formats.csv", args=args, batch_size=10, shuffle=False, on_error="skip", error_budget=50
    ) as data:
        seen = [x for batch in data for x in batch["x"].tolist()]
    assert seen == [i for i in range(1, 100) if i % 7]
