"""Content under the name of another format: the error of each reader says what it looks like, and what to do."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.errors import FormatError
from pydp2.file_parts import FilePart
from pydp2.formats import comma, dmlc_recordio, idx, libsvm, lst, paddle_recordio, record_index
from pydp2.formats.first_bytes import COUNT, described, looks_like

READERS: dict[str, Callable[[io.BytesIO], Any]] = {
    "idx": idx.read,
    "dmlc_recordio": lambda file: list(dmlc_recordio.read(file)),
    "paddle_recordio": lambda file: list(paddle_recordio.read(file)),
    "comma": lambda file: list(comma.read(file)),
    "libsvm": lambda file: list(libsvm.read(file)),
    "lst": lambda file: list(lst.read(file)),
    "record_index": record_index.read,
}
TEXTS = ("comma", "libsvm", "lst", "record_index")


def error_of(reader: str, data: bytes) -> str:
    with pytest.raises(FormatError) as caught:
        READERS[reader](io.BytesIO(data))
    return str(caught.value)


def saved(save: Callable[[io.BytesIO], Any]) -> bytes:
    file = io.BytesIO()
    save(file)
    return file.getvalue()


def a_tar(file: io.BytesIO) -> None:
    with tarfile.open(fileobj=file, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("a"), io.BytesIO())


def a_zip(file: io.BytesIO, name: str = "a.csv") -> None:
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, "1,2\n")


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
TFRECORD = bytes.fromhex("1800000000000000a37f4b22") + bytes(28)
"""The header of a record of 24 bytes, as each event file of TensorBoard begins."""
LOOKS = {
    "page": (b"\n<!DOCTYPE HTML>\n<html><head><title>404</title>", "an HTML page"),
    "page without type": (b"<html lang=en>", "an HTML page"),
    "xml": (b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', "an XML document"),
    "json": (b'{"message": "Not Found"}', "JSON"),
    "json list": (b'[\n  {"a": 1}]', "JSON"),
    "git-lfs": (POINTER, "a pointer of Git LFS and not the file; run git lfs pull"),
    "git-annex": (b"/annex/objects/SHA256E-s3--ab.csv\n", "a pointer of git-annex"),
    "zip": (saved(a_zip), "a zip archive"),
    "npz": (saved(lambda file: np.savez(file, a=np.zeros(2))), r"arrays of numpy \(\.npz\)"),
    "torch": (saved(lambda file: a_zip(file, "archive/data.pkl")), "a file of torch.save"),
    "npy": (saved(lambda file: np.save(file, np.zeros(2))), r"an array of numpy \(\.npy\)"),
    "tar": (saved(a_tar), "a tar archive"),
    "zstd": (b"\x28\xb5\x2f\xfd\x04\x00", "a zstd file"),
    "bz2": (bz2.compress(b"1,2\n"), "a bzip2 file"),
    "xz": (lzma.compress(b"1,2\n"), "an xz file"),
    "parquet": (b"PAR1\x15\x04", "a Parquet file"),
    "arrow": (b"ARROW1\0\0", "an Arrow file"),
    "hdf5": (b"\x89HDF\r\n\x1a\n\0\0", "an HDF5 file"),
    "tfrecord": (TFRECORD, "a TFRecord file of TensorFlow"),
    "utf-16": ("1,2\n".encode("utf-16"), "text in UTF-16; save it as UTF-8"),
    "utf-16 without mark": ("1,2\n3,4\n".encode("utf-16-le"), "text in UTF-16"),
    "utf-16, other order": ("1,2\n3,4\n".encode("utf-16-be"), "text in UTF-16"),
    "utf-32": ("1,2\n".encode("utf-32"), "text in UTF-32"),
    "png": (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", r"a picture \(PNG\)"),
    "jpeg": (b"\xff\xd8\xff\xe0\0\x10JFIF", r"a picture \(JPEG\)"),
    "webp": (b"RIFF\x24\0\0\0WEBPVP8 ", r"a picture \(WebP\)"),
    "pickle": (b"\x80\x04\x95\x0b\0\0\0\0\0\0\0}\x94\x8c\x01a\x94K\x01s.", "a pickle"),
    "zeros": (bytes(100), "zeros; did a download or a copy stop early"),
}
DAMAGED = {
    "copied as text": (b"\r\n\x23\xd7\xce\x01\0\0\0", "RecordIO that was copied as text"),
    "decoded as text": (
        b"\n#\xd7\xce\x01\0\0\0".decode(errors="replace").encode(),
        "RecordIO that was decoded as text",
    ),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", LOOKS)
def test_a_reader_says_what_a_file_of_another_format_looks_like(name: str, reader: str) -> None:
    data, words = LOOKS[name]
    with pytest.raises(FormatError, match=words):
        READERS[reader](io.BytesIO(data))


@pytest.mark.parametrize("compressed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("name", LOOKS)
def test_the_names_of_columns_are_no_page_and_no_other_file(name: str, compressed: bool) -> None:
    data, words = LOOKS[name]
    file = gzip.compress(data) if compressed else data
    with pytest.raises(FormatError, match=f"expected lines of text; the file looks like {words}"):
        list(comma.read(io.BytesIO(file), header=True))
    with pytest.raises(FormatError, match=words):
        comma.count_columns(io.BytesIO(file), header=True)


def test_a_record_that_begins_like_a_comment_is_no_empty_file() -> None:
    records = saved(lambda file: dmlc_recordio.write(file, [b"abc"]))
    for reader in TEXTS:
        assert "RecordIO of MXNet; read it with pydp2.formats.dmlc_recordio" in error_of(reader, records)


@pytest.mark.parametrize("names", ["ORCID,GIF8", "PAR1,b", "BZh,x", "version,b", "a\ufffd,b", "%PDF-,b"])
def test_names_of_columns_that_begin_like_another_file_are_names(names: str) -> None:
    (rows,) = comma.read(io.BytesIO(f"{names}\n1,2\n".encode()), header=True)
    assert rows.tolist() == [[1, 2]]


def test_the_error_about_another_file_suggests_nothing_else() -> None:
    page = b"<!-- saved -->\n<html>\n"
    for reader in TEXTS:
        message = error_of(reader, page)
        assert message.endswith("download the file again")
        assert "header" not in message
        assert "blanks" not in message


@pytest.mark.parametrize("reader", ["idx", "dmlc_recordio", "paddle_recordio"])
@pytest.mark.parametrize("name", DAMAGED)
def test_bytes_that_were_treated_as_text_are_named(name: str, reader: str) -> None:
    data, words = DAMAGED[name]
    assert words in error_of(reader, data)


@pytest.mark.parametrize("reader", ["idx", *TEXTS])
def test_gzip_inside_of_gzip_is_named(reader: str) -> None:
    assert "a gzip file; decompress it first" in error_of(reader, gzip.compress(gzip.compress(b"1,2\n")))


@pytest.mark.parametrize("reader", ["dmlc_recordio", "paddle_recordio"])
def test_records_that_are_compressed_as_a_whole_are_named(reader: str) -> None:
    assert "got a gzip file; decompress it first" in error_of(reader, gzip.compress(bytes(40)))


def test_the_formats_know_each_other() -> None:
    records = saved(lambda file: dmlc_recordio.write(file, [b"a" * 20]))
    chunks = saved(lambda file: paddle_recordio.write(file, [b"a" * 20]))
    array = saved(lambda file: idx.write(file, np.zeros((3, 4), np.uint8)))
    assert "RecordIO of MXNet; read it with pydp2.formats.dmlc_recordio" in error_of("paddle_recordio", records)
    assert "RecordIO of Paddle; read it with pydp2.formats.paddle_recordio" in error_of("dmlc_recordio", chunks)
    assert "an idx file of arrays; read it with pydp2.formats.idx" in error_of("record_index", array)
    assert "an index of records (MXNet's .idx); give the .rec file beside it" in error_of("idx", b"0\t0\n1\t12\n")
    assert "text that begins with '1,2\\n'" in error_of("idx", b"1,2\n")


def test_bytes_that_nobody_knows_are_shown() -> None:
    assert error_of("dmlc_recordio", b"\x01\x02\x03\x99\x05\x06\x07\x08").endswith("of a record, got 01020399")
    assert error_of("idx", b"\x01\x02\x03\x99").endswith("got 010203")


@pytest.mark.parametrize("reader", ["idx", "dmlc_recordio", "paddle_recordio"])
def test_a_file_that_ends_too_early_is_asked_about_its_download(reader: str) -> None:
    whole = {
        "idx": saved(lambda file: idx.write(file, np.zeros((3, 4), np.uint8))),
        "dmlc_recordio": saved(lambda file: dmlc_recordio.write(file, [b"a" * 20])),
        "paddle_recordio": saved(lambda file: paddle_recordio.write(file, [b"a" * 20, b"b"])),
    }[reader]
    assert "did a download or a copy stop early?" in error_of(reader, whole[: len(whole) // 2])
    packed = gzip.compress(saved(lambda file: idx.write(file, np.zeros((300, 4), np.uint8))))
    assert "did a download or a copy stop early?" in error_of("idx", packed[:-4])
    assert "an empty file; did a download" in error_of("idx", b"")


@pytest.mark.parametrize("reader", ["comma", "libsvm", "lst"])
@pytest.mark.parametrize("part", [0, 2])
def test_each_part_of_a_text_file_is_told_what_the_file_looks_like(reader: str, part: int, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"<html>\n" + b"<p>not found</p>\n" * 50)
    modules = {"comma": comma, "libsvm": libsvm, "lst": lst}
    with pytest.raises(FormatError, match="the file looks like an HTML page"):
        list(modules[reader].read(tmp_path / "a", part=FilePart(part, 3)))  # type: ignore[attr-defined]


@pytest.mark.parametrize("reader", TEXTS)
def test_a_wrong_line_of_a_right_file_says_nothing_of_the_file(reader: str) -> None:
    right = {"comma": b"1,2\n", "libsvm": b"1 2:3\n", "lst": b"1\t2\ta.jpg\n", "record_index": b"0\t0\n1\t12\n"}[reader]
    assert "looks like" not in error_of(reader, right + b"x y z\n")


@given(st.binary(max_size=COUNT))
def test_any_bytes_are_described(head: bytes) -> None:
    assert isinstance(looks_like(head), str)
    assert described(head, 4)


def test_a_length_with_its_checksum_is_a_tfrecord_and_no_other_number_is() -> None:
    assert "TFRecord" in looks_like(TFRECORD)
    assert not looks_like(struct.pack("<QI", 25, 0x224B7FA3) + bytes(28))
