"""dmlc RecordIO: the bytes, records that hold the magic, parts, and what is refused."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pydp2.errors import FormatError, OptionError, OptionTypeError
from pydp2.file_parts import WHOLE_FILE, FilePart
from pydp2.formats import dmlc_recordio as recordio

MAGIC = recordio.MAGIC
PIECES = st.one_of(st.just(MAGIC), st.binary(max_size=9), st.sampled_from([MAGIC[:2], MAGIC[2:], MAGIC[1:] + MAGIC]))
RECORDS = st.lists(st.lists(PIECES, max_size=6).map(b"".join), max_size=8)


def written(records: list[bytes]) -> bytes:
    file = io.BytesIO()
    recordio.write(file, records)
    return file.getvalue()


def read(data: bytes, part: FilePart = WHOLE_FILE) -> list[bytes]:
    return list(recordio.read(io.BytesIO(data), part=part))


@given(RECORDS)
@example([bytes(range(n)) for n in range(10)] + [b"x" * 4 * n for n in range(5)])
@example([MAGIC, MAGIC * 3, b"abcd" + MAGIC, b"ab" + MAGIC + b"cd", MAGIC + b"x", b"abc" + MAGIC * 2])
def test_mx_33_records_come_back_whatever_their_length_and_wherever_they_hold_the_magic(records: list[bytes]) -> None:
    data = written(records)
    assert read(data) == records
    assert len(data) % 4 == 0
    assert written(read(data)) == data


@given(RECORDS)
def test_mx_33_the_magic_stands_at_a_multiple_of_4_only_where_a_header_is(records: list[bytes]) -> None:
    data = written(records)
    headers = sum(data[at : at + 4] == MAGIC for at in range(0, len(data), 4))
    cuts = sum(r[at : at + 4] == MAGIC for r in records for at in range(0, len(r), 4))
    assert headers == len(records) + cuts


def test_mx_34_a_record_of_one_byte_takes_12() -> None:
    assert written([b"A"]).hex() == "0a23d7ce" + "01000000" + "41000000"
    assert written([b""]).hex() == "0a23d7ce" + "00000000"
    # kinds 1, 2 and 3 stand in the upper three bits of the length
    assert written([b"abcd" + MAGIC + MAGIC + b"e"]).hex() == (
        "0a23d7ce" + "04000020" + "61626364" + "0a23d7ce" + "00000040" + "0a23d7ce" + "01000060" + "65000000"
    )


@given(RECORDS.filter(bool), st.data())
def test_mx_35_a_file_that_ends_within_a_record_is_an_error_and_a_clean_end_is_none(
    records: list[bytes], data: st.DataObject
) -> None:
    whole = written(records)
    offsets = [at for at, _ in recordio.Reader(io.BytesIO(whole)).with_offsets()] + [len(whole)]
    cut = data.draw(st.integers(0, len(whole)))
    if cut in offsets:
        assert read(whole[:cut]) == records[: offsets.index(cut)]
    else:
        with pytest.raises(FormatError, match=r"left in the file|expected another piece"):
            read(whole[:cut])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (
            b"abcdefgh",
            r"byte 0: expected the magic 0a23d7ce \(0xced7230a\) of a record, got text that begins with 'abcdefgh'",
        ),
        (written([b"A"]) + b"1234\0\0\0\0", "byte 12: expected the magic"),
        (written([b"A"]) + b"123", "byte 12: the header of a record needs 8 bytes, 3 are left"),
        (MAGIC + b"\xff\xff\xff\x1f", "byte 8: a record needs 536870912 bytes, 0 are left"),
        (MAGIC + b"\0\0\0\x40", r"expected the begin of a record, got a later piece \(kind 2\)"),
        (MAGIC + b"\0\0\0\x20" + MAGIC + b"\0\0\0\0", "byte 8: expected another piece of the record, got kind 0"),
        (MAGIC + b"\0\0\0\xe0", "later piece"),
        (MAGIC + b"\1\0\0\0A\0\0\1", "byte 9: expected zeros behind a record"),
    ],
)
def test_mx_35_what_is_no_record_is_told_with_its_place(data: bytes, words: str) -> None:
    with pytest.raises(FormatError, match=words):
        read(data)


@given(RECORDS, st.integers(1, 12))
def test_mx_38_each_record_is_in_exactly_one_part_in_order(records: list[bytes], count: int) -> None:
    data = written(records)
    assert [r for i in range(count) for r in read(data, FilePart(i, count))] == records


def test_a_part_begins_behind_what_is_read_at_a_time() -> None:
    """A record longer than a block, full of magics that are no begins."""
    records = [b"a", MAGIC * 20_000 + b"b" * 70_000, b"c", b"\0" * 65_529 + b"d", b"e"]
    data = written(records)
    for count in (2, 3, 7, 50):
        assert [r for i in range(count) for r in read(data, FilePart(i, count))] == records


def test_a_record_that_reaches_into_the_next_part_is_an_error() -> None:
    """A length that was damaged, so that the record swallows the one behind it; the part ends where that one begins."""
    data = written([b"a" * 40, b"b" * 40, b"c" * 40])
    damaged = MAGIC + (88).to_bytes(4, "little") + data[8:]
    assert len(read(damaged)) == 2, "read whole, nothing tells"
    with pytest.raises(FormatError, match="byte 0: the record reaches beyond byte 48, where another one begins"):
        read(damaged, FilePart(0, 3))


@given(RECORDS.filter(bool), st.data())
def test_records_are_found_by_their_offsets(records: list[bytes], data: st.DataObject) -> None:
    file = io.BytesIO()
    with recordio.Writer(file) as writer:
        offsets = [writer.write(record) for record in records]
    with recordio.Reader(file) as reader:
        assert list(reader.with_offsets()) == list(zip(offsets, records, strict=True))
        for i in data.draw(st.lists(st.integers(0, len(records) - 1))):
            assert reader.read_at(offsets[i]) == records[i]
        with pytest.raises(FormatError, match="there is no record"):
            reader.read_at(len(file.getvalue()))


def test_a_file_is_continued_where_that_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    recordio.write(path, [b"one"])
    with recordio.Writer(path, append=True) as writer:
        assert writer.write(b"two") == 12
    assert list(recordio.read(path)) == [b"one", b"two"]


@pytest.mark.parametrize("append", [False, True])
def test_a_name_that_would_make_it_gzip_is_refused_and_its_file_left_alone(append: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.rec.gz"
    path.write_bytes(b"there already")
    with pytest.raises(OptionError, match=r"a\.rec\.gz: this format is not read as gzip; take a name"):
        recordio.Writer(path, append=append)
    assert path.read_bytes() == b"there already"


def test_only_bytes_are_records() -> None:
    with recordio.Writer(io.BytesIO()) as writer:
        for record in (5, "text", [1, 2], None):
            with pytest.raises(OptionTypeError, match="a record must be bytes, got "):
                writer.write(record)  # type: ignore[arg-type]
    assert written([bytearray(b"a"), memoryview(b"b")]) == written([b"a", b"b"])  # type: ignore[list-item]


def test_a_record_of_512_mib_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recordio, "MOST", 10)
    with recordio.Writer(io.BytesIO()) as writer:
        writer.write(b"x" * 9)
        with pytest.raises(OptionError, match="fewer than 10 bytes, got 10"):
            writer.write(b"x" * 10)


def test_mx_34_and_mx_38_the_real_file_has_10_records_in_any_parts(shared_data: Path) -> None:
    path = shared_data / "dmlc/sample.rec"
    records = list(recordio.read(path))
    assert [record[24:] for record in records] == [f"{i}\n".encode() * 10 for i in range(1, 11)]
    assert written(records) == path.read_bytes()
    for count in range(1, 13):
        parts = [list(recordio.read(path, part=FilePart(i, count))) for i in range(count)]
        assert [r for part in parts for r in part] == records
