"""Make batches of the rows of text files. See docs/mxnet.md, "CSVIter"."""

from __future__ import annotations

import math
import os
from collections.abc import Generator, Iterator
from contextlib import closing
from itertools import repeat
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from pydp2.errors import FormatError, OptionError
from pydp2.formats import comma
from pydp2.mx.interface import Array, DataBatch
from pydp2.mx.loading import FileProvider, Shape
from pydp2.mx.options import flag
from pydp2.mx.rounds import EpochStart, batches
from pydp2.options.values import file_path

NULL = "NULL"
"""Value of ``label_csv`` if there is no file of labels; then all labels are 0."""
_DTYPES = ("float32", "int32", "int64")


class CSVIter(FileProvider):
    """A provider of rows of numbers, separated by commas, one sample in each line. Labels come from a second file.

    Args:
        data_csv: the file, plain or gzip; or a folder, all of whose files are read in the order of their names.
        data_shape: the shape of a sample; a row has the numbers of one sample.
        batch_size: samples of a batch.
        label_csv: file or folder of the labels, ``"NULL"`` (or None) for labels of 0. Further labels than rows of data
            are ignored.
        label_shape: the shape of a label; (1,) gives one number.
        round_batch: whether samples from the beginning of the data fill the last batch, and the next epoch continues
            after them. Otherwise zeros fill it, and all epochs are equal.
        prefetch_buffer: batches that are prepared ahead.
        dtype: float32, int32 or int64.
        data_name, label_name: the names of the arrays. With ``label_name=None`` there are no labels, and ``label_csv``
            is not read.

    Raises:
        FormatError: a row has a wrong length or a field that is not a number, or there are fewer labels than rows of
            data.
        OptionError, OptionTypeError: a parameter is invalid, or there are too few samples for one batch.
        OSError: a file cannot be read.
    """

    def __init__(  # noqa: PLR0913 - the arguments are MXNet's
        self,
        *,
        data_csv: str | os.PathLike[str],
        data_shape: Shape,
        batch_size: int,
        label_csv: str | os.PathLike[str] | None = NULL,
        label_shape: Shape = (1,),
        round_batch: bool = True,
        prefetch_buffer: int = 4,
        dtype: DTypeLike = np.float32,
        data_name: str = "data",
        label_name: str | None = "softmax_label",
    ) -> None:
        kind = np.dtype(dtype)
        if kind.name not in _DTYPES:
            raise OptionError(f"dtype must be one of {', '.join(_DTYPES)}, got {kind.name}")
        super().__init__((data_name, label_name), batch_size, data_shape, label_shape, prefetch_buffer, kind)
        self._data = file_path("data_csv", data_csv)
        self._label = None if label_csv is None or label_csv == NULL else file_path("label_csv", label_csv)
        self._round = flag("round_batch", round_batch)
        self._look()

    def _read(self, _: int) -> Iterator[tuple[Array, Array]]:
        """Yield for each sample its row and the row of its label."""
        with closing(self._rows(self._data, self._data_shape)) as data:
            if self._label is None or not self._labelled:
                yield from zip(data, repeat(np.zeros(math.prod(self._label_shape), self._dtype)))
                return
            with closing(self._rows(self._label, self._label_shape)) as labels:
                for count, row in enumerate(data):
                    label = next(labels, None)
                    if label is None:
                        raise FormatError(
                            f"{self._label}: expected a label for every row of {self._data}, it has {count} of them",
                            file=self._label,
                        )
                    yield row, label

    def _rows(self, path: str, shape: tuple[int, ...]) -> Generator[Array, None, None]:
        folder = Path(path)
        files = sorted(file for file in folder.iterdir() if file.is_file()) if folder.is_dir() else [folder]
        for file in files:
            for some in comma.read(file, dtype=self._dtype, columns=math.prod(shape)):
                yield from some

    def _prepared(self, start: EpochStart) -> Generator[tuple[DataBatch, int], None, None]:
        for samples, missing in batches(self._read, start, self._size, self._round):
            data = np.zeros((self._size, math.prod(self._data_shape)), self._dtype)
            label = np.zeros((self._size, math.prod(self._label_shape)), self._dtype)
            for i, (row, of) in enumerate(samples):
                data[i], label[i] = row, of
            whole = data.reshape(self._size, *self._data_shape)
            yield self._batch(whole, label, missing, len(samples)), missing


CSVProvider = CSVIter
"""Another name of :class:`CSVIter`."""
