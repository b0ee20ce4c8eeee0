"""Make batches of the pictures and labels of two idx files. See docs/mxnet.md, "MNISTIter"."""

from __future__ import annotations

import logging
import os
from collections.abc import Generator

import numpy as np

from pydp2.errors import FormatError
from pydp2.formats import idx
from pydp2.mx.interface import Array, DataBatch
from pydp2.mx.loading import FileProvider, share
from pydp2.mx.options import flag
from pydp2.mx.rounds import EpochStart
from pydp2.options.values import file_path, integer_from
from pydp2.order.random_bits import permutation

_log = logging.getLogger("pydp2.mx")
_LEVELS = np.float32(1 / 256)  # not 255: a power of two, so nothing is rounded


class MNISTIter(FileProvider):
    """A provider of grey pictures of bytes and their labels. Samples at the end that do not fill a batch are left out.

    Args:
        image, label: idx files, plain or gzip: bytes (samples, rows, columns), and whole numbers (samples,).
        batch_size: samples of a batch.
        shuffle: whether the samples are shuffled, once: all epochs have the same order.
        flat: whether a picture is (rows * columns,) instead of (1, rows, columns).
        seed: decides about the order.
        silent: leaves out the line in the log (of ``pydp2.mx``) that says what was read.
        num_parts, part_index: the number of parts, and the part to read, from 0.
        prefetch_buffer: batches that are prepared ahead.
        data_name, label_name: the names of the arrays. With ``label_name=None`` there are no labels, and ``label`` is
            not read.

    Raises:
        FormatError: a file is not an idx file or is damaged, or its sides, type or number of samples are wrong.
        OptionError, OptionTypeError: a parameter is invalid, or there are fewer samples than a batch has.
        OSError: a file cannot be read.
    """

    def __init__(  # noqa: PLR0913 - the arguments are MXNet's
        self,
        *,
        image: str | os.PathLike[str] = "./train-images-idx3-ubyte",
        label: str | os.PathLike[str] = "./train-labels-idx1-ubyte",
        batch_size: int = 128,
        shuffle: bool = True,
        flat: bool = False,
        seed: int = 0,
        silent: bool = False,
        num_parts: int = 1,
        part_index: int = 0,
        prefetch_buffer: int = 4,
        data_name: str = "data",
        label_name: str | None = "softmax_label",
    ) -> None:
        quiet, mixed, level = flag("silent", silent), flag("shuffle", shuffle), flag("flat", flat)
        known, chosen = integer_from(0, None)("seed", seed), share(num_parts, part_index)
        with idx.Reader(file_path("image", image)) as images:
            _expect(image, images, 3, "bytes", "u")
            total = len(images)
            first, last = chosen.range(total)
            self._images = images.rows(first, last)
        self._labels = np.zeros(last - first, np.float32)
        if label_name is not None:
            with idx.Reader(file_path("label", label)) as labels:
                _expect(label, labels, 1, "whole numbers", "ui")
                if len(labels) != total:
                    raise FormatError(
                        f"{label}: expected {total} labels, as many as {image} has pictures, got {len(labels)}",
                        file=str(label),
                    )
                self._labels = labels.rows(first, last).astype(np.float32)
        count, rows, columns = self._images.shape
        shape = (rows * columns,) if level else (1, rows, columns)
        super().__init__((data_name, label_name), batch_size, shape, (1,), prefetch_buffer)
        self._order = permutation(known, 0, "mx mnist", count) if mixed else np.arange(count)
        self._look()
        if not quiet:
            _log.info("MNISTIter: %d pictures of %d x %d, batches of %s", count, rows, columns, self.provide_data[0][1])

    def _prepared(self, start: EpochStart) -> Generator[tuple[DataBatch, int], None, None]:
        for first in range(0, len(self._order) - self._size + 1, self._size):
            rows = self._order[first : first + self._size]
            data: Array = self._images[rows].reshape(self._size, *self._data_shape) * _LEVELS
            yield self._batch(data, self._labels[rows], 0, self._size), 0


def _expect(path: str | os.PathLike[str], reader: idx.Reader, sides: int, what: str, kinds: str) -> None:
    if len(reader.shape) != sides or reader.dtype.kind not in kinds:
        hint = ""
        if sides == 1 and len(reader.shape) == 2:
            hint = "; pydp2.formats.idx serves one of its columns with label_column, and idx.write writes it to a file"
        raise FormatError(
            f"{path}: expected {what} of {sides} sides, got {reader.dtype.name} of {reader.shape}{hint}", file=str(path)
        )


MNISTProvider = MNISTIter
"""Another name of :class:`MNISTIter`."""
