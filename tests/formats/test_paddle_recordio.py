"""Paddle's RecordIO: both layouts and all packings, the bytes, parts, and what is refused."""

from __future__ import annotations

import builtins
import io
import struct
import sys
import zlib
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pydp2.errors import FormatError, OptionError, OptionTypeError
from pydp2.file_parts import FilePart
from pydp2.formats import paddle_recordio as recordio
from pydp2.formats import snappy_frames

FORMS = [
    (layout, packing)
    for layout in get_args(recordio.Layout)
    for packing in recordio.PACKINGS
    if (layout, packing) != ("fluid", "gzip")
]
RECORDS = st.lists(st.binary(max_size=40), max_size=12)


def written(records: list[bytes], **options: Any) -> bytes:
    file = io.BytesIO()
    with recordio.Writer(file, **options) as writer:
        for record in records:
            writer.write(record)
    return file.getvalue()


def read(data: bytes, **options: Any) -> list[bytes]:
    return list(recordio.read(io.BytesIO(data), **options))


def chunk(payload: bytes, records: int, layout: str = "go", packing: int = 0, crc: int | None = None) -> bytes:
    """A chunk put together by hand."""
    crc = zlib.crc32(payload) if crc is None else crc
    go = (crc, packing, len(payload), records)
    return struct.pack("<5I", 0x01020304, *(go if layout == "go" else (records, crc, packing, len(payload)))) + payload


@pytest.mark.parametrize(("layout", "packing"), FORMS)
@given(records=RECORDS, many=st.integers(1, 5))
@example(records=[b"", b"", b""], many=1)
@example(records=[b"abc" * 50_000, b"", bytes(range(256)) * 300], many=2)
def test_mx_40_what_was_written_is_read_again(
    layout: recordio.Layout, packing: recordio.Packing, records: list[bytes], many: int
) -> None:
    data = written(records, layout=layout, packing=packing, max_records=many)
    assert read(data) == records
    with recordio.Reader(io.BytesIO(data)) as reader:
        chunks = list(reader.chunks())
        assert [c.records for c in chunks] == [len(records[at : at + many]) for at in range(0, len(records), many)]
        assert [r for c in reversed(chunks) for r in reader.records(c)] == [
            r for c in reversed(range(0, len(records), many)) for r in records[c : c + many]
        ]
        if records:
            assert reader.layout == layout


def test_mx_40_the_bytes_of_both_layouts() -> None:
    payload = b"\1\0\0\0A" + b"\0\0\0\0"
    assert written([b"A", b""]) == chunk(payload, 2)
    assert written([b"A", b""], layout="fluid") == chunk(payload, 2, "fluid")
    assert written([]) == written([], layout="fluid") == b""
    with recordio.Reader(io.BytesIO(b"")) as reader:
        assert (reader.layout, list(reader)) == (None, [])


def test_a_chunk_is_full_by_records_or_by_bytes() -> None:
    def sizes(**options: Any) -> list[int]:
        with recordio.Reader(io.BytesIO(written([b"0123456789"] * 2500, **options))) as reader:
            return [c.records for c in reader.chunks()]

    assert sizes(layout="fluid") == [1000, 1000, 500]
    assert sizes() == [2500]
    assert sizes(max_bytes=10_000) == [1000, 1000, 500]
    assert sizes(max_bytes=10_000, max_records=900) == [900, 900, 700]


@pytest.mark.parametrize(("layout", "packing"), FORMS)
@given(data=st.data())
def test_mx_40_a_damaged_byte_anywhere_is_an_error(
    layout: recordio.Layout, packing: recordio.Packing, data: st.DataObject
) -> None:
    """All but one word is covered by magic and sum: a wrong number of records shows by itself."""
    whole = bytearray(written([b"one", b"two", b"", b"three"], layout=layout, packing=packing))
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(FormatError):
        read(bytes(whole))


@pytest.mark.parametrize(("layout", "packing"), FORMS)
def test_a_file_that_ends_within_a_chunk_is_an_error(layout: recordio.Layout, packing: recordio.Packing) -> None:
    one = written([b"one", b"two"], layout=layout, packing=packing)
    assert read(one + one) == [b"one", b"two"] * 2
    for cut in range(1, len(one)):
        with pytest.raises(FormatError):
            read(one[:cut])
        with pytest.raises(FormatError):
            read(one + one[:cut])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\4\3\2\0" + bytes(16), r"byte 0: expected the magic 04030201 \(0x01020304\) of a chunk, got 04030200"),
        (b"\4\3\2\1" + bytes(8), "byte 0: the header of a chunk needs 20 bytes, 12 are left"),
        (chunk(b"\1\0\0\0A", 1, crc=7), "byte 0: the file ends within the chunk, or its checksum does not match"),
        (chunk(b"\1\0\0\0A", 1) + chunk(b"\1\0\0\0A", 1, crc=7), "byte 25: the checksum of the chunk does not match"),
        (chunk(b"\1\0\0\0A", 1) + chunk(b"\1\0\0\0A", 1, "fluid"), "byte 25"),
        (chunk(b"\1\0\0\0A", 1) + chunk(b"\1\0\0\0A", 1, packing=3), "byte 25: expected the packing 0, 1 or 2, got 3"),
        (chunk(b"\1\0\0\0A", 2), "byte 0: the chunk ends before record 1 of 2"),
        (chunk(b"\1\0\0\0A" * 2, 1), "byte 0: 5 bytes behind the 1 records"),
        (chunk(b"\xff\xff\xff\xffA", 1), "byte 0: record 0 of the chunk needs 4294967295 bytes, 1 are left"),
        (chunk(b"", 4_000_000_000), "ends before record 0 of 4000000000"),
        (chunk(b"no snappy", 1, packing=1), "byte 0: snappy: expected the mark of a snappy stream"),
        (chunk(b"no snappy", 1, "fluid", packing=1), "byte 0: snappy: expected b'snappy.x00'"),
        (chunk(b"no gzip", 1, packing=2), "byte 0: gzip: "),
        (chunk(zlib.compress(b"A", wbits=31)[:-1], 1, packing=2), "gzip: it ends too early"),
        (chunk(zlib.compress(b"A", wbits=31) + b"BC", 1, packing=2), "gzip: 2 bytes behind its end"),
    ],
)
def test_mx_40_what_is_no_chunk_is_told_with_its_place(data: bytes, words: str) -> None:
    with pytest.raises(FormatError, match=words):
        read(data)


@pytest.mark.parametrize(("layout", "packing"), [form for form in FORMS if form[1] != "none"])
def test_packed_input_has_a_cap(layout: recordio.Layout, packing: recordio.Packing) -> None:
    data = written([bytes(1 << 20)], layout=layout, packing=packing)
    assert len(data) < 1 << 17
    assert read(data, limit=(1 << 20) + 4) == [bytes(1 << 20)]
    with pytest.raises(FormatError, match=f"{packing}: .* would be decompressed"):
        read(data, limit=(1 << 20) + 3)


SNAPPY_CLAIMS_4_GIB = b"\xff\xff\xff\xff\x0f"


@pytest.mark.parametrize(
    ("payload", "layout", "words"),
    [
        (b"\xff\x06\0\0sNaPpY\0\x09\0\0crc!" + SNAPPY_CLAIMS_4_GIB, "go", "0 to 65536 bytes of content, this one says"),
        (b"snappy\0\1\0\5crc!" + SNAPPY_CLAIMS_4_GIB, "fluid", "0 to 65536 bytes of content, this one says 4294967295"),
        (b"snappy\0\1\0\6crc!" + b"\xff" * 6, "fluid", "does not say how much it becomes"),
        (b"snappy\0\2\0\1crc!A", "fluid", "marked 0 or 1, this one 2"),
        (b"snappy\0\0\0\2crc!A", "fluid", "a snappy block needs 2 bytes, 1 are left"),
        (b"snappy\0\0\0", "fluid", "within the header of a block"),
        (b"snappy\0\0\0\1crc!A", "fluid", "checksum"),
        (b"\xff\x06\0\0sNaPpY\1\0", "go", "within the header of a chunk"),
        (b"\xff\x06\0\0sNaPpY\1\5\0\0crc!A", "go", "checksum"),
        (b"\xff\x06\0\0sNaPpY\1\2\0\0cr", "go", "without a checksum"),
        (b"\xff\x06\0\0sNaPpY\2\2\0\0cr", "go", "unknown kind 0x02"),
        (b"\xff\x06\0\0sNaPpY\1\x09\0\0cr", "go", "needs 9 bytes, 2 are left"),
    ],
)
def test_damaged_snappy_is_told(payload: bytes, layout: str, words: str) -> None:
    with pytest.raises(FormatError, match=words):
        read(chunk(payload, 1, layout, packing=1))


@given(st.binary(max_size=300), st.integers(0, 3))
def test_both_framings_of_snappy_give_back_what_they_were_given(data: bytes, power: int) -> None:
    data *= 10**power
    for blocks in (False, True):
        packed = snappy_frames.pack(data, blocks=blocks)
        assert snappy_frames.unpack(packed, blocks=blocks, limit=len(data)) == data


def test_snappy_s_padding_is_passed_over() -> None:
    packed = snappy_frames.pack(b"data", blocks=False) + b"\xfe\3\0\0abc" + b"\xff\6\0\0sNaPpY"
    assert snappy_frames.unpack(packed, blocks=False, limit=4) == b"data"


def test_without_the_library_an_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    data = written([b"A"], packing="snappy")
    real = builtins.__import__

    def without(name: str, *args: Any) -> Any:
        if name == "cramjam":
            raise ImportError(name)
        return real(name, *args)

    monkeypatch.delitem(sys.modules, "cramjam")
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(OptionError, match=r"pip install 'cramjam>="):
        read(data)


@given(st.lists(st.binary(max_size=12), max_size=30), st.integers(1, 12), st.integers(1, 4))
def test_each_record_is_in_exactly_one_part_in_order(records: list[bytes], count: int, many: int) -> None:
    data = written(records, max_records=many)
    assert [r for i in range(count) for r in read(data, part=FilePart(i, count))] == records


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"layout": "c++"}, 'layout must be "go" or "fluid"'),
        ({"packing": "zip"}, "packing must be one of none, snappy, gzip"),
        ({"layout": "fluid", "packing": "gzip"}, "readers of the fluid layout cannot read gzip"),
        ({"max_bytes": 0}, "at least 1"),
        ({"max_records": 0}, "at least 1"),
    ],
)
def test_what_no_writer_can_do_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        recordio.Writer(io.BytesIO(), **options)


def test_a_name_that_would_make_it_gzip_is_refused_and_only_bytes_are_records(tmp_path: Path) -> None:
    (tmp_path / "a.dat.gz").write_bytes(b"there already")
    with pytest.raises(OptionError, match=r"a\.dat\.gz: this format is not read as gzip"):
        recordio.write(tmp_path / "a.dat.gz", [b"a"])
    assert (tmp_path / "a.dat.gz").read_bytes() == b"there already"
    with pytest.raises(OptionTypeError, match=r"a record must be bytes, got 5 \(int\)"):
        recordio.write(io.BytesIO(), [5])  # type: ignore[list-item]


def test_a_record_that_comes_after_the_end_is_refused_and_not_lost(tmp_path: Path) -> None:
    for file in (tmp_path / "a.dat", io.BytesIO()):
        writer = recordio.Writer(file)
        writer.write(b"a")
        writer.close()
        with pytest.raises(ValueError, match="a record needs an open writer, and this one is closed: make another"):
            writer.write(b"b")
        writer.close()
        assert list(recordio.read(file)) == [b"a"]


def test_mx_40_the_real_files_of_the_go_library_are_read(shared_data: Path) -> None:
    assert list(recordio.read(shared_data / "paddle/test_recordio_creator.dat")) == [b"%d" % i for i in range(10)]
    path = shared_data / "paddle/test_reader_recordio.dat"
    with recordio.Reader(path) as reader:
        assert reader.layout == "go"
        pickles = list(reader)
    # protocol 0: three ints, a tuple of them; nothing is unpickled to see it
    assert pickles == [b"(I1\nI2\nI3\ntp1\n.", b"(I4\nI5\nI6\ntp1\n."]
