"""idx: the bytes, what is refused, and that nothing is allocated because a header says so."""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from pydp2.errors import FormatError, OptionError
from pydp2.file_parts import FilePart
from pydp2.formats import idx

KINDS = [np.dtype(text).newbyteorder("=") for text in idx.DTYPES.values()]
ANY = st.sampled_from(KINDS).flatmap(
    lambda kind: arrays.arrays(kind, arrays.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5))
)


def written(array: Any) -> bytes:
    file = io.BytesIO()
    idx.write(file, array)
    return file.getvalue()


def test_the_bytes_are_those_of_the_format() -> None:
    assert written(np.array([[1, -2]], np.int16)).hex() == "00000b02" + "00000001" + "00000002" + "0001" + "fffe"


@given(ANY)
def test_what_was_written_is_read_again(array: np.ndarray[Any, Any]) -> None:
    again = idx.read(io.BytesIO(written(array)))
    assert again.dtype == array.dtype
    assert again.dtype.isnative
    np.testing.assert_array_equal(again, array)
    assert written(again) == written(array)


@given(ANY, st.integers(1, 12))
def test_parts_are_disjoint_complete_and_in_order(array: np.ndarray[Any, Any], count: int) -> None:
    parts = [idx.read(io.BytesIO(written(array)), part=FilePart(i, count)) for i in range(count)]
    np.testing.assert_array_equal(np.concatenate(parts), array)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(ANY)
def test_a_file_cut_off_or_continued_is_an_error_packed_or_not(array: np.ndarray[Any, Any]) -> None:
    data = written(array)
    for wrong in (data[:-1], data[:3], b"", data + b"\0"):
        for form in (wrong, gzip.compress(wrong)):
            with pytest.raises(FormatError):
                idx.read(io.BytesIO(form))


@given(ANY, st.data())
def test_a_writer_that_is_given_samples_piece_by_piece_writes_the_same(
    array: np.ndarray[Any, Any], data: st.DataObject
) -> None:
    file = io.BytesIO()
    cut = data.draw(st.integers(0, len(array)))
    with idx.Writer(file, array.dtype, array.shape[1:]) as writer:
        writer.write(array[:cut])
        writer.write(array[cut:])
    assert file.getvalue() == written(array)


def test_gzip_is_known_by_its_bytes_and_written_by_its_name(tmp_path: Path) -> None:
    array = np.arange(24, dtype=np.float64).reshape(2, 3, 4)
    idx.write(tmp_path / "a.gz", array)
    assert gzip.decompress((tmp_path / "a.gz").read_bytes()) == written(array)
    first = (tmp_path / "a.gz").read_bytes()
    (tmp_path / "a.gz").rename(tmp_path / "another-name")
    np.testing.assert_array_equal(idx.read(tmp_path / "another-name"), array)
    idx.write(tmp_path / "a.gz", array)
    assert (tmp_path / "a.gz").read_bytes() == first, "no time and no name in it"


def test_a_reader_gives_any_rows_in_any_order() -> None:
    array = np.arange(60, dtype=np.int32).reshape(10, 6)
    for form in (written(array), gzip.compress(written(array))):
        with idx.Reader(io.BytesIO(form)) as reader:
            assert (len(reader), reader.shape, reader.dtype) == (10, (10, 6), np.dtype(np.int32))
            for first, last in ((7, 10), (0, 3), (3, 3), (2, 9), (0, 10)):
                np.testing.assert_array_equal(reader.rows(first, last), array[first:last])
            with pytest.raises(OptionError, match="within 0 to 10, got 3 to 11"):
                reader.rows(3, 11)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\1\0\x08\1\0\0\0\0", "byte 0: expected an idx file"),
        (b"\0\0\x0a\1\0\0\0\0", "byte 0: expected an idx file"),
        (b"\0\0\x08\0", "byte 3: expected 1 to 32 sides, got 0"),
        (b"\0\0\x08\x21" + bytes(132), "byte 3: expected 1 to 32 sides, got 33"),
        (b"\0\0\x08\2\0\0\0\1", "byte 4: the sides needs 8 bytes, 4 are left"),
        (b"\0\0\x08\1\0\0\0\5abcd", r"\(5,\) uint8 needs 5 bytes of values, the file has 4"),
        (b"\0\0\x08\x20" + b"\xff" * 128, "is impossible"),
        (b"\0\0\x08\x20" + b"\0" * 4 + b"\xff" * 124, "is impossible"),
        (b"\x1f\x8b\x08 and then nothing that is gzip", "damaged gzip"),
    ],
)
def test_what_is_no_idx_file_is_told_with_its_place(data: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "some.idx"
    path.write_bytes(data)
    with pytest.raises(FormatError, match=words) as caught:
        idx.read(path)
    assert str(caught.value).startswith(f"{path}, byte ")
    assert caught.value.file == str(path)


def test_packed_input_has_a_cap() -> None:
    packed = gzip.compress(written(np.zeros(1000, np.uint8)))
    assert len(idx.read(io.BytesIO(packed), limit=1000)) == 1000
    with pytest.raises(FormatError, match="1000 bytes would be decompressed, more than limit=999 allows"):
        idx.read(io.BytesIO(packed), limit=999)


@pytest.mark.parametrize("array", [np.zeros(3, np.int64), np.zeros(3, np.uint16), np.array(["a"]), np.float32(1)])
def test_what_idx_cannot_hold_is_refused(array: Any) -> None:
    with pytest.raises(OptionError, match=r"idx has the types|1 to 32 sides"):
        written(array)


def test_a_writer_refuses_values_that_would_change_and_other_shapes(tmp_path: Path) -> None:
    with idx.Writer(tmp_path / "a", np.uint8, (2,)) as writer:
        writer.write([[1, 2]])
        for wrong, words in (
            ([[1, 300]], "the value 300 does not fit uint8"),
            ([[1, 2.5]], r"the value 2\.5 does not fit"),
            ([[1]], "the shape"),
        ):
            with pytest.raises(OptionError, match=words):
                writer.write(wrong)
    np.testing.assert_array_equal(idx.read(tmp_path / "a"), [[1, 2]])
    with pytest.raises(OptionError, match=r"idx\.write for the whole array"):
        idx.Writer(tmp_path / "a.gz", np.uint8)


def test_a_side_is_a_number_from_0_below_2_to_the_32(tmp_path: Path) -> None:
    for side in (-1, 1 << 32):
        with pytest.raises(OptionError, match=rf"from 0 and below 2\*\*32, got \(0, 3, {side}\)"):
            idx.Writer(tmp_path / "a", np.uint8, (3, side))


def test_a_writer_that_refuses_a_name_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.uint8)
    idx.write(tmp_path / "a.idx.gz", array)
    with pytest.raises(OptionError, match="cannot be gzip"):
        idx.Writer(tmp_path / "a.idx.gz", np.uint8)
    np.testing.assert_array_equal(idx.read(tmp_path / "a.idx.gz"), array)
    with gzip.open(tmp_path / "b", "wb") as packed, pytest.raises(OptionError, match="cannot be gzip"):
        idx.Writer(packed, np.uint8)  # type: ignore[arg-type]  # it can be written to


def test_what_an_exception_leaves_behind_is_no_idx_file(tmp_path: Path) -> None:
    def fail() -> None:
        with idx.Writer(tmp_path / "a", np.uint8) as writer:
            writer.write([1, 2, 3])
            raise RuntimeError("the source ended early")

    with pytest.raises(RuntimeError, match="ended early"):
        fail()
    with pytest.raises(FormatError, match=r"\(0,\) uint8 needs 0 bytes of values, the file has 3"):
        idx.read(tmp_path / "a")


def test_the_real_files_are_read(shared_data: Path) -> None:
    folder = shared_data / "idx_digits"
    images = idx.read(folder / "t10k-images-idx3-ubyte")
    assert (images.shape, images.dtype) == ((10, 28, 28), np.dtype(np.uint8))
    np.testing.assert_array_equal(idx.read(folder / "t10k-images-idx3-ubyte.gz"), images)
    assert idx.read(folder / "train-labels-idx1-ubyte").tolist() == [1, 3, 6, 4, 0, 5, 2, 8, 9, 7]
    assert written(images) == (folder / "t10k-images-idx3-ubyte").read_bytes()
    labels = idx.read(shared_data / "fashion-mnist" / "train-labels-idx1-ubyte.gz")
    assert np.bincount(labels).tolist() == [6000] * 10
