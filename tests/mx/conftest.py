"""A picture that a person can look at, and RecordIO files of pictures."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pydp2.formats import dmlc_recordio
from pydp2.formats.irheader import IRHeader, pack

Picture = np.ndarray[Any, Any]
Write = Callable[..., str]


def drawing(height: int = 96, width: int = 120) -> Picture:
    """A letter F on a coloured ground with a ring around it: it shows what is up, what is left, and every colour.
    uint8, (height, width, 3)."""
    y, x = np.mgrid[0:height, 0:width]
    ground = np.stack((255 * x / width, 255 * y / height, 255 - 255 * x / width), axis=2)
    away = np.hypot(y - height / 2, x - width / 2)
    ground[np.abs(away - 40) < 3] = (255, 255, 255)
    v, u = (y - height / 2 + 24) / 6, (x - width / 2 + 14) / 6  # the letter is 8 by 5 units
    bars = (u >= 0) & (u < 1.5) & (v >= 0) & (v < 8)
    bars |= (u >= 0) & (u < 5) & (v >= 0) & (v < 1.5)
    bars |= (u >= 0) & (u < 4) & (v >= 3.2) & (v < 4.6)
    ground[bars] = (20, 20, 20)
    return ground.astype(np.uint8)


def plate(side: int = 96) -> Picture:
    """Grey rings that become finer from the middle outwards, down to single pixels at the edges: what a way of sampling
    does with fine structure shows. uint8, (side, side, 3)."""
    y, x = np.mgrid[0:side, 0:side] - (side - 1) / 2
    rings = 127.5 + 127.5 * np.cos(np.pi * (x * x + y * y) / side)
    return np.repeat(rings.astype(np.uint8)[:, :, None], 3, axis=2)


def png(picture: Picture) -> bytes:
    """The bytes of a PNG file, which loses nothing."""
    held = io.BytesIO()
    Image.fromarray(picture).save(held, "PNG")
    return held.getvalue()


def numbered(count: int, height: int = 6, width: int = 8) -> list[Picture]:
    """Pictures of one value each: 10, 11, …"""
    return [np.full((height, width, 3), 10 + i, np.uint8) for i in range(count)]


@pytest.fixture
def write_records(tmp_path: Path) -> Write:
    """``write_records(pictures, labels=None, name="pictures.rec")``: a RecordIO file of PNGs with ids from 0 on, and
    the number as label where none is given; its path. Bytes are taken as they are."""

    def write(
        pictures: Sequence[Picture | bytes], labels: Sequence[Any] | None = None, name: str = "pictures.rec"
    ) -> str:
        path = tmp_path / name
        with dmlc_recordio.Writer(path) as writer:
            for i, picture in enumerate(pictures):
                label = float(i) if labels is None else labels[i]
                data = picture if isinstance(picture, bytes) else png(picture)
                writer.write(pack(IRHeader(0, label, i), data))
        return str(path)

    return write
