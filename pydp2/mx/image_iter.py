"""Make batches of pictures from RecordIO files. See docs/mxnet.md, "ImageRecordIter"."""

from __future__ import annotations

import logging
import os
from collections.abc import Generator, Sequence
from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pydp2.errors import OptionError, OptionTypeError
from pydp2.mx.augment import Augmentation
from pydp2.mx.finish import Finish
from pydp2.mx.interface import DataBatch
from pydp2.mx.loading import FileProvider, Shape, shape, share
from pydp2.mx.mean import mean_picture
from pydp2.mx.options import flag
from pydp2.mx.pictures import Decode, Pictures, in_threads, pieces, threads
from pydp2.mx.records import Record, Records
from pydp2.mx.reused_arrays import ReusedArrays
from pydp2.mx.rounds import EpochStart, batches
from pydp2.options.values import file_path, integer_from

_log = logging.getLogger("pydp2.mx")
MORE = 6
"""Number of batches, in addition to those in the queue, whose memory is kept for reuse: batches that are being made,
handed over, or used."""
PathOrPaths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class ImageRecordIter(FileProvider):
    """Pictures and their labels from dmlc RecordIO files: decoded, augmented, in batches of float32.

    All arguments are keywords; docs/mxnet.md has a table of the parameters. The parameters of a picture are the fields
    of :class:`.augment.Augmentation` and :class:`.finish.Finish`. Data have the shape (batch, channels, height, width),
    labels (batch,), or (batch, label_width) if ``label_width`` is above 1.

    ``path_imgrec`` may also be a list of files. ``decode`` is new. ``"image"``: any format that Pillow reads (the extra
    ``images``). ``"raw"``: the bytes are uint8 of ``data_shape``. ``"auto"``: ``"image"`` if Pillow is
    installed, otherwise ``"raw"``. Or a function that takes bytes and returns uint8 (height, width, channels); several
    threads call it.

    Raises:
        FormatError: a damaged file, or a picture that cannot be decoded; names file and place.
        BadSample: a picture that is too small, or without the labels that it needs; names file and place.
        OptionError, OptionTypeError: a parameter is invalid, or there are too few records for one batch.
        OSError: a file cannot be read.
    """

    def __init__(  # noqa: PLR0913 - the arguments are MXNet's
        self,
        *,
        data_shape: Shape,
        batch_size: int,
        path_imgrec: PathOrPaths = "./data/imgrec.rec",
        path_imglist: str | os.PathLike[str] = "",
        label_width: int = 1,
        preprocess_threads: int = 4,
        verbose: bool = True,
        num_parts: int = 1,
        part_index: int = 0,
        shuffle: bool = False,
        seed: int = 0,
        round_batch: bool = True,
        prefetch_buffer: int = 4,
        rand_crop: bool = False,
        crop_y_start: int = -1,
        crop_x_start: int = -1,
        max_rotate_angle: int = 0,
        rotate: int = -1,
        max_aspect_ratio: float = 0.0,
        max_shear_ratio: float = 0.0,
        min_random_scale: float = 1.0,
        max_random_scale: float = 1.0,
        min_img_size: float = 0.0,
        max_img_size: float = 1e10,
        min_crop_size: int = -1,
        max_crop_size: int = -1,
        random_h: int = 0,
        random_s: int = 0,
        random_l: int = 0,
        fill_value: int = 255,
        inter_method: int = 1,
        mirror: bool = False,
        rand_mirror: bool = False,
        mean_img: str | os.PathLike[str] = "",
        mean_r: float = 0.0,
        mean_g: float = 0.0,
        mean_b: float = 0.0,
        mean_a: float = 0.0,
        scale: float = 1.0,
        max_random_contrast: float = 0.0,
        max_random_illumination: float = 0.0,
        data_name: str = "data",
        label_name: str | None = "softmax_label",
        decode: str | Decode = "auto",
    ) -> None:
        is_verbose = flag("verbose", verbose)
        given = dict(locals())
        given["data_shape"] = _three(data_shape)
        width = integer_from(1)("label_width", label_width)
        super().__init__((data_name, label_name), batch_size, data_shape, (width,), prefetch_buffer)
        self._round = flag("round_batch", round_batch)
        paths = _paths(path_imgrec)
        part = share(num_parts, part_index)
        shuffled, number = flag("shuffle", shuffle), integer_from(0, None)("seed", seed)
        listed = file_path("path_imglist", path_imglist) if path_imglist != "" else ""
        self._threads = threads(integer_from(1)("preprocess_threads", preprocess_threads))
        augmentation = Augmentation(**{field.name: given[field.name] for field in fields(Augmentation)})
        finish = Finish(**{field.name: given[field.name] for field in fields(Finish)})
        if mean_img != "" and any(finish.means):
            raise OptionError("give mean_img, or mean_r, mean_g, mean_b and mean_a: got both")
        self._pictures = Pictures(decode, augmentation, finish)
        self._records = Records(paths, part, shuffled, number, listed, width if label_name is not None else 0)
        if mean_img != "":
            self._pictures.mean = mean_picture(file_path("mean_img", mean_img), self._data_shape, self._sums)
        self._look()
        if is_verbose:
            _log.info(
                "ImageRecordIter: %s, part %d of %d, batches of %s, %d threads",
                ", ".join(paths),
                part.index,
                part.count,
                self.provide_data[0][1],
                self._threads,
            )

    def _prepared(self, start: EpochStart) -> Generator[tuple[DataBatch, int], None, None]:
        memory = ReusedArrays((self._size, *self._data_shape), self._prefetch + MORE)
        made = map(partial(self._begin, memory), batches(self._records.read, start, self._size, self._round))
        for (records, missing, data), _ in in_threads(made, self._parts, self._threads):
            labels = np.zeros((self._size, *self._label_shape), np.float32)
            if self._labelled:
                labels[: len(records)] = [record.label for record in records]
            yield self._batch(data, labels, missing, len(records)), missing

    @staticmethod
    def _begin(memory: ReusedArrays, batch: tuple[list[Record], int]) -> tuple[list[Record], int, NDArray[np.float32]]:
        records, missing = batch
        data = memory.unused_array()
        data[len(records) :] = 0
        return records, missing, data

    def _parts(self, batch: tuple[list[Record], int, NDArray[np.float32]]) -> list[Any]:
        records, _, data = batch
        return [partial(self._pictures.fill, records[some], data[some]) for some in pieces(len(records))]

    def _sums(self) -> Generator[tuple[int, NDArray[np.float64]], None, None]:
        """Yield, for one group of pictures after the other, their number and their sum, in the order of the first
        reading."""
        add = self._pictures.add
        with_sums = in_threads(
            (records for records, _ in batches(self._records.read, EpochStart(), self._size, False)),
            lambda records: [partial(add, records[some]) for some in pieces(len(records))],
            self._threads,
        )
        for records, sums in with_sums:
            yield len(records), sum(sums, np.zeros(self._data_shape))


def _three(data_shape: Any) -> tuple[int, ...]:
    sides = shape("data_shape", data_shape)
    if len(sides) != 3:
        raise OptionError(f"data_shape must be (channels, height, width), got {sides}")
    return sides


def _paths(value: PathOrPaths) -> list[str]:
    several = [value] if isinstance(value, str | os.PathLike) else value
    if not isinstance(several, list | tuple) or not several:
        raise OptionTypeError(f"path_imgrec must be a path or a list of paths, got {value!r}")
    return [file_path("path_imgrec", path) for path in several]


ImageRecordProvider = ImageRecordIter
"""Another name of :class:`ImageRecordIter`."""
