"""Lines: where they begin, in a whole file and in its parts, and what is told of one that is wrong."""

from __future__ import annotations

import gzip
import io
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pydp2.errors import FormatError, OptionError
from pydp2.file_parts import WHOLE_FILE, FilePart
from pydp2.formats import lines as text

BOM = b"\xef\xbb\xbf"
TEXTS = st.lists(st.sampled_from([b"a", b"bc", b" ", b"\n", b"\r", b"\r\n", b"\t", b"\n\n"]), max_size=30).map(b"".join)


def read(data: bytes, part: FilePart = WHOLE_FILE) -> list[tuple[int, bytes]]:
    return [(offset, line) for _, offset, line in text.lines(io.BytesIO(data), part)]


def expected(data: bytes) -> list[bytes]:
    return [line for line in re.split(rb"\r\n|\r|\n", data.removeprefix(BOM)) if line.strip()]


@given(TEXTS, st.booleans())
@example(b"x" * 40_000 + b"\n" + b"y\n" * 20_000, True)
@example(b"a" * (text.BLOCK - 1) + b"\r\nb\r\n", False)
@example(b"a" * (text.BLOCK - 2) + b"\r\nb", False)
def test_lines_end_with_any_sign_and_blank_ones_do_not_count(data: bytes, marked: bool) -> None:
    data = BOM * marked + data
    found = read(data)
    assert [line for _, line in found] == expected(data)
    assert all(data[offset : offset + len(line)] == line for offset, line in found)
    assert [line for _, line in read(gzip.compress(data))] == expected(data)


@given(TEXTS, st.integers(1, 12), st.booleans())
@example(b"x" * 40_000 + b"\n" + b"y\n" * 20_000, 7, True)
def test_each_line_is_in_exactly_one_part_in_order(data: bytes, count: int, marked: bool) -> None:
    data = BOM * marked + data
    assert [found for i in range(count) for found in read(data, FilePart(i, count))] == read(data)


@given(TEXTS.map(lambda data: data + b"bad"))
def test_a_wrong_line_is_told_by_its_number(data: bytes) -> None:
    offset = read(data)[-1][0]
    number = len(re.split(rb"\r\n|\r|\n", data))
    for count in (1, 2, 3, 7):
        found = []
        for part in range(count):
            for reader, at, _ in text.lines(io.BytesIO(data), FilePart(part, count)):
                if at == offset:
                    found.append(str(reader.error(offset, "it is bad")))
        assert found == [f"the file, byte {offset}: line {number}: it is bad"]


def test_a_line_without_end_is_refused_before_it_is_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "MOST", 100_000)
    packed = gzip.compress(b"ok\n" + bytes(10_000_000))
    with pytest.raises(
        FormatError, match="byte 3: line 2: expected the end of a line within 100000 bytes: is this text"
    ):
        read(packed)


def test_compressed_text_has_no_parts() -> None:
    with pytest.raises(OptionError, match="is gzip, which cannot be read in parts: name it whole, or decompress it"):
        read(gzip.compress(b"a\nb\n"), FilePart(0, 2))


@given(st.text("0123456789.e+-infaty", max_size=12))
def test_a_number_is_what_float_accepts(word: str) -> None:
    try:
        float(word)
    except ValueError:
        assert not text.NUMBER.fullmatch(word.encode())
    else:
        assert text.NUMBER.fullmatch(word.encode())
