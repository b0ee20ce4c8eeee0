"""What MXNet keeps beside images: IRHeader in a record, .lst and .idx beside the file."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.errors import FormatError, OptionError, OptionTypeError
from pydp2.formats import dmlc_recordio, lst, record_index
from pydp2.formats.irheader import IRHeader, pack, unpack

FLOATS = st.floats(width=32, allow_nan=False)
IDS = st.integers(0, 2**64 - 1)
NAMES = (
    st.text(st.characters(exclude_characters="\t\r\n", exclude_categories=["Cs"]), min_size=1)
    .map(lambda name: name.strip(" "))
    .filter(str.strip)
)
ENTRIES = st.lists(
    st.builds(
        lst.Entry,
        st.integers(0, 10**17),
        st.lists(st.floats(allow_nan=False), min_size=1, max_size=4).map(tuple),
        NAMES,
    ),
    max_size=6,
)


@given(FLOATS, IDS, IDS, st.binary(max_size=20))
def test_mx_36_one_label_stands_in_the_header_of_24_bytes(label: float, number: int, second: int, image: bytes) -> None:
    record = pack(IRHeader(0, label, number, second), image)
    assert len(record) == 24 + len(image)
    assert unpack(record) == (IRHeader(0, label, number, second), image)


@given(st.lists(FLOATS, min_size=1, max_size=254), IDS, st.binary(max_size=20))
def test_mx_36_several_labels_stand_behind_it(labels: list[float], number: int, image: bytes) -> None:
    record = pack(IRHeader(0, labels, number), image)
    header, payload = unpack(record)
    assert (header.flag, header.id, header.id2, payload) == (len(labels), number, 0, image)
    assert isinstance(header.label, np.ndarray)
    np.testing.assert_array_equal(header.label, np.array(labels, np.float32), strict=True)
    assert pack(header, payload) == record


def test_mx_36_the_bytes_of_a_header() -> None:
    assert (
        pack(IRHeader(0, 1.0, 2, 3), b"A").hex() == "00000000" + "0000803f" + "02" + "00" * 7 + "03" + "00" * 7 + "41"
    )
    assert pack(IRHeader(9, [1.0], 2), b"").hex() == "01000000" + "00000000" + "02" + "00" * 15 + "0000803f"


def test_mx_36_a_record_that_ends_within_its_header_is_an_error_and_so_is_what_it_cannot_hold() -> None:
    with pytest.raises(FormatError, match="needs 24 bytes, the record has 23"):
        unpack(bytes(23))
    with pytest.raises(FormatError, match="with 4294967295 labels needs 17179869204 bytes, the record has 24"):
        unpack(b"\xff" * 4 + bytes(20))
    for header in (
        IRHeader(0, 1.0, -1),
        IRHeader(0, 1.0, 2**64),
        IRHeader(0, 1e39, 0),
        IRHeader(0, [1e39], 0),
        IRHeader(0, [], 0),
        IRHeader(0, "a", 0),  # type: ignore[arg-type]
        IRHeader(0, ["a"], 0),  # type: ignore[list-item]
        IRHeader(0, 1.0, 1.5),  # type: ignore[arg-type]
    ):
        with pytest.raises(OptionError):
            pack(header, b"")


@given(st.dictionaries(st.integers(-5, 10**17), st.binary(max_size=12), max_size=12), st.data())
def test_mx_37_reading_by_key_in_any_order_gives_what_reading_in_order_does(
    records: dict[int, bytes], data: st.DataObject
) -> None:
    rec, index = io.BytesIO(), io.BytesIO()
    with record_index.IndexedWriter(rec, index) as writer:
        for key, record in records.items():
            writer.write(key, record)
    assert list(dmlc_recordio.read(rec)) == list(records.values())
    with record_index.IndexedReader(rec, index) as reader:
        assert reader.index.keys.tolist() == list(records)
        assert len(reader) == len(records)
        for key in data.draw(st.permutations(list(records))):
            assert reader[key] == records[key]
        with pytest.raises(KeyError):
            reader[-6]
        with pytest.raises(KeyError):
            reader[10**17 + 1]


def test_mx_37_an_index_is_made_of_a_file_that_has_none(tmp_path: Path) -> None:
    records = [bytes(n) for n in range(6)]
    dmlc_recordio.write(tmp_path / "a.rec", records)
    record_index.write(tmp_path / "a.idx", record_index.built(tmp_path / "a.rec"))
    assert (tmp_path / "a.idx").read_bytes() == b"0\t0\n1\t8\n2\t20\n3\t32\n4\t44\n5\t56\n"
    with record_index.IndexedReader(tmp_path / "a.rec", tmp_path / "a.idx") as reader:
        assert [reader[key] for key in (5, 0, 3)] == [records[5], records[0], records[3]]


def test_mx_37_iterating_gives_the_records_in_the_order_of_the_index(tmp_path: Path) -> None:
    with record_index.IndexedWriter(tmp_path / "a.rec", tmp_path / "a.idx") as writer:
        for key in (7, -3, 5):
            writer.write(key, b"%d" % key)
    with record_index.IndexedReader(tmp_path / "a.rec", tmp_path / "a.idx") as reader:
        assert list(reader) == [reader[int(key)] for key in reader.index.keys] == [b"7", b"-3", b"5"]
        assert len(reader) == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"1\t2\n1\t9\n", "the key 1 is there twice"),
        (b"1\t2\n3 4\n", "line 2: expected key, tab and offset, got '3 4'"),
        (b"1\t-2\n", "line 1: expected key, tab and offset"),
        (b"1\t2\t3\n", "line 1: expected key, tab and offset"),
    ],
)
def test_what_is_no_index_is_told(text: bytes, words: str) -> None:
    with pytest.raises(FormatError, match=words):
        record_index.read(io.BytesIO(text))


def test_an_index_of_another_file_is_found_out_by_the_record() -> None:
    rec = io.BytesIO()
    dmlc_recordio.write(rec, [b"abcdefgh"])
    with record_index.IndexedReader(rec, io.BytesIO(b"0\t4\n1\t999\n")) as reader:
        with pytest.raises(FormatError, match="byte 4: expected the magic"):
            reader[0]
        with pytest.raises(FormatError, match="byte 999: there is no record: the file has 16 bytes"):
            reader[1]


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (7, "the key 7 is there already: an index has each key once"),
        (np.int64(3), "the key 3 is there already"),
        (10**18, "a key of an index has at most 18 digits, got 1000000000000000000"),
        (-(10**18), "a key of an index has at most 18 digits"),
    ],
)
def test_a_key_with_which_the_index_could_not_be_read_is_refused(key: int, words: str, tmp_path: Path) -> None:
    with record_index.IndexedWriter(tmp_path / "a.rec", tmp_path / "a.idx") as writer:
        writer.write(7, b"seven")
        writer.write(3, b"three")
        with pytest.raises(OptionError, match=words):
            writer.write(key, b"another")
        with pytest.raises(OptionTypeError, match="must be bytes"):
            writer.write(5, None)  # type: ignore[arg-type]
        writer.write(5, b"five")  # what was refused did not take the key
    with record_index.IndexedReader(tmp_path / "a.rec", tmp_path / "a.idx") as reader:
        assert {int(k): reader[int(k)] for k in reader.index.keys} == {7: b"seven", 3: b"three", 5: b"five"}
    with pytest.raises(OptionError, match=words):
        record_index.write(io.BytesIO(), [(7, 0), (3, 16), (key, 32)])


@pytest.mark.parametrize("offset", [-5, 10**18, 1.5, "7", None])
def test_an_offset_with_which_the_index_could_not_be_read_is_refused(offset: Any) -> None:
    file = io.BytesIO()
    with pytest.raises(OptionError, match=re.escape(f"whole number from 0 of at most 18 digits, got {offset!r}")):
        record_index.write(file, [(7, 10**18 - 1), (3, offset), (4, 0)])
    file.seek(0)
    assert record_index.read(file)[7] == 10**18 - 1


def test_records_and_index_are_two_files(tmp_path: Path) -> None:
    (tmp_path / "a.idx").write_bytes(b"there already")
    with pytest.raises(OptionError, match="records and index must be two files"):
        record_index.IndexedWriter(tmp_path / "a.idx", str(tmp_path / "a.idx"))
    assert (tmp_path / "a.idx").read_bytes() == b"there already"


@given(ENTRIES)
def test_a_list_of_images_comes_back(entries: list[lst.Entry]) -> None:
    file = io.BytesIO()
    lst.write(file, entries)
    assert list(lst.read(file)) == entries
    again = io.BytesIO()
    lst.write(again, lst.read(file))
    assert again.getvalue() == file.getvalue()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"7\ta.jpg", r"expected id, label and path between tabs, got 2 fields: '7\\ta.jpg'$"),
        (
            b"7 1 a.jpg",
            "expected id, label and path between tabs, got 1 field: '7 1 a.jpg'; there are blanks where tabs belong",
        ),
        (b"7\t1 2\ta.jpg", "expected a label, a number, got '1 2'"),
        (b"7\t1\t ", "expected id, label and path"),
        (b"7\t1\t", "expected id, label and path"),
        (b"-7\t1\ta.jpg", "expected an id, a whole number from 0, got '-7'"),
        (b"7\tcat\ta.jpg", "expected a label, a number, got 'cat'"),
        (b"7\t1e999\ta.jpg", "expected a label that float64 can hold, got '1e999'"),
        (b"7\t1\t1_0\ta.jpg", "expected a label, a number, got '1_0'"),
        (b"7\t1\t\xff", "the path must be UTF-8"),
    ],
)
def test_what_is_no_entry_is_told_with_its_line(line: bytes, words: str) -> None:
    with pytest.raises(FormatError, match=f"byte 10: line 2: {words}"):
        list(lst.read(io.BytesIO(b"0\t1\ta.jpg\n" + line + b"\n")))


def test_blanks_around_the_fields_of_a_list_do_not_count() -> None:
    assert list(lst.read(io.BytesIO(b" 7 \t 1\t2.5  \t a b.jpg \r\n"))) == [lst.Entry(7, (1.0, 2.5), "a b.jpg")]


def test_an_entry_that_no_list_can_hold_is_refused() -> None:
    for entry in (
        lst.Entry(0, (), "a"), lst.Entry(0, (1.0,), ""), lst.Entry(0, (1.0,), "a\tb"), lst.Entry(0, (1.0,), " a"),
    ):  # fmt: skip
        with pytest.raises(OptionError, match="a label and a path without tabs"):
            lst.write(io.BytesIO(), [entry])


@pytest.mark.parametrize("number", [-1, 10**18, 1.0, "7", None])
def test_an_id_with_which_the_list_could_not_be_read_is_refused(number: Any) -> None:
    file = io.BytesIO()
    words = re.escape(f"an id must be a whole number from 0 of at most 18 digits, got {number!r}")
    with pytest.raises(OptionError, match=words):
        lst.write(file, [lst.Entry(10**18 - 1, (0.0,), "a"), lst.Entry(number, (0.0,), "a")])
    assert list(lst.read(file)) == [lst.Entry(10**18 - 1, (0.0,), "a")]
    lst.write(file, [lst.Entry(np.int64(7), (0.0,), "a")])  # type: ignore[arg-type]  # as numpy counts
    assert file.getvalue().endswith(b"\n7\t0.0\ta\n")


def test_a_path_that_is_no_utf_8_is_refused_as_it_is_when_read() -> None:
    with pytest.raises(OptionError, match=r"the path must be UTF-8, got '\\udcff'"):
        lst.write(io.BytesIO(), [lst.Entry(0, (0.0,), "\udcff")])
