"""Decoding with Pillow: how many bits, how many pixels, and what is no picture."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pydp2.errors import FormatError
from pydp2.formats.pillow import decode
from pydp2.mx import ImageRecordIter

from .conftest import Write, drawing, png

# -- more than 8 bits a channel ----------------------------------------------------------------------------------------
DEEP = np.array([[0, 1300, 6500, 26000, 61100, 65535]], np.uint16)
"""Grey of 16 bits, whose upper eight are these:"""
UPPER = [0, 5, 25, 101, 238, 255]


def saved(picture: Image.Image, kind: str) -> bytes:
    held = io.BytesIO()
    picture.save(held, kind)
    return held.getvalue()


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM", "TIFF, the upper byte first"])
def test_the_upper_eight_of_16_bits_are_taken(kind: str, channels: int) -> None:
    name, _, upper = kind.partition(",")
    if upper:
        data = saved(Image.frombytes("I;16B", (6, 1), DEEP.astype(">u2").tobytes()), name)
    elif name == "PPM":  # by hand: older releases of Pillow read it only
        data = b"P5 6 1 65535\n" + DEEP.astype(">u2").tobytes()
    else:
        data = saved(Image.fromarray(DEEP), name)
    for value in decode(data, channels).transpose(2, 0, 1)[:3]:
        assert value.tolist() == [UPPER]


def test_the_upper_eight_of_16_bits_of_colour_are_taken(write_records: Write) -> None:
    rows = np.stack((DEEP, DEEP[:, ::-1], DEEP // 2), axis=2).astype(">u2")

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 6, 1, 16, 2, 0, 0, 0)
    data = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" + rows.tobytes())) + chunk(b"IEND", b"")
    path = write_records([b"\x89PNG\r\n\x1a\n" + data])
    (batch,) = ImageRecordIter(path_imgrec=path, data_shape=(3, 1, 6), batch_size=1)
    assert batch.data[0][0].tolist() == (rows >> 8).transpose(2, 0, 1).tolist()


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_numbers_without_a_common_scale_are_refused(write_records: Write, dtype: Any) -> None:
    path = write_records([saved(Image.fromarray(DEEP.astype(dtype)), "TIFF")])
    with pytest.raises(FormatError, match=r"record at byte 0: cannot be decoded: .* of more than 8 bits a channel"):
        ImageRecordIter(path_imgrec=path, data_shape=(1, 1, 6), batch_size=1)


@pytest.mark.parametrize("side", [9460, 20000])
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_picture_of_too_many_pixels_is_refused_before_it_is_decoded(write_records: Write, side: int) -> None:
    data = bytearray(png(drawing()))
    data[16:24] = struct.pack(">II", side, side)
    data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    with pytest.raises(FormatError, match="record at byte 0: cannot be decoded: more than 89478485 pixels"):
        ImageRecordIter(path_imgrec=write_records([bytes(data)]), data_shape=(3, 6, 8), batch_size=1)


def test_what_is_no_picture_is_told_by_its_first_bytes(write_records: Write) -> None:
    with pytest.raises(FormatError, match=r"Pillow knows no format that begins with b'no pictu' \(decode=\"raw\""):
        ImageRecordIter(path_imgrec=write_records([b"no picture"]), data_shape=(3, 6, 8), batch_size=1)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"<!DOCTYPE html><title>404</title>", "an HTML page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a pointer of Git LFS"),
        (b"", "an empty file"),
    ],
)
def test_other_content_in_place_of_a_picture_is_named(write_records: Write, data: bytes, words: str) -> None:
    with pytest.raises(FormatError, match=f"Pillow knows no format that begins with .*; it looks like {words}"):
        ImageRecordIter(path_imgrec=write_records([data]), data_shape=(3, 6, 8), batch_size=1)


# -- what is none ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP"])
def test_mutated_pictures_are_decoded_or_refused(kind: str) -> None:
    held = io.BytesIO()
    Image.fromarray(drawing(16, 16)).save(held, kind)
    rng = np.random.default_rng(len(kind))
    refused = []
    for _ in range(200):
        data = bytearray(held.getvalue())
        for _ in range(rng.integers(1, 6)):
            data[rng.integers(len(data))] = rng.integers(256)
        data = data[: rng.integers(1, len(data) + 1)] if rng.random() < 0.2 else data
        try:
            assert decode(bytes(data), 3).shape[2] == 3
        except ValueError as exc:
            refused.append(str(exc))
    assert {text[:19] for text in refused} == {"cannot be decoded: "}
