"""Read records of pictures: select them, order them, and find their labels. See docs/mxnet.md, "ImageRecordIter"."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pydp2.errors import BadSample, FormatError, count_text
from pydp2.file_parts import FilePart
from pydp2.formats import dmlc_recordio, irheader, lst
from pydp2.mx.chance import Chance
from pydp2.order.random_bits import permutation

CHUNK_BYTES = 64 << 20
"""Bytes of neighbouring records that are shuffled together."""

Labels = NDArray[np.float32]


class Record(NamedTuple):
    """One picture: ``label`` float32 (label_width,); ``image``: the bytes that hold it; ``where``: for errors."""

    label: Labels
    image: bytes
    chance: Chance
    file: str
    offset: int

    @property
    def where(self) -> str:
        """Name of this record, at the beginning of an error's text."""
        return f"{self.file}, record at byte {self.offset}"


class Records:
    """The records of a part of one or more RecordIO files.

    Args:
        paths: the files, read one after the other; the same part of each file is read.
        part: the part to read.
        shuffle: whether neighbouring records are shuffled, in another order in each reading.
        seed: decides that order, and the random choices about a picture.
        listed: path of a list with labels that replace those in the records; "": no list.
        label_width: the number of labels of a picture; 0: read no labels, even if the records or the list have some.

    Raises:
        FormatError: the list is damaged, or has two lines for one id.
    """

    def __init__(
        self, paths: Sequence[str], part: FilePart, shuffle: bool, seed: int, listed: str, label_width: int
    ) -> None:
        self._paths = paths
        self._part = part
        self._shuffle = shuffle
        self._seed = seed
        self._listed = listed
        self._width = label_width
        self._labels: dict[int, Labels] | None = None
        if listed and label_width:
            self._labels = {}
            for entry in lst.read(listed):
                if entry.id in self._labels:
                    raise FormatError(f"{listed}: expected one line for each id, got two for {entry.id}", file=listed)
                self._labels[entry.id] = np.array(entry.labels, np.float32)

    def read(self, reading: int) -> Iterator[Record]:
        """Yield all records of the part, in the order of reading number ``reading``.

        Raises:
            FormatError: a file is damaged, or a record has no header.
            BadSample: a picture has no label, or a wrong number of labels.
        """
        if not self._shuffle:
            yield from self._in_order(reading)
            return
        for number, chunk in enumerate(self._chunks(reading)):
            for i in permutation(self._seed, reading, "mx chunk", len(chunk), number):
                yield chunk[i]

    def _chunks(self, reading: int) -> Iterator[list[Record]]:
        chunk: list[Record] = []
        size = 0
        for record in self._in_order(reading):
            if chunk and size + len(record.image) > CHUNK_BYTES:
                yield chunk
                chunk, size = [], 0
            chunk.append(record)
            size += len(record.image)
        if chunk:
            yield chunk

    def _in_order(self, reading: int) -> Iterator[Record]:
        for number, path in enumerate(self._paths):
            with dmlc_recordio.Reader(path, part=self._part) as reader:
                for offset, data in reader.with_offsets():
                    yield self._record(data, path, offset, Chance(self._seed, reading, number, offset))

    def _record(self, data: bytes, path: str, offset: int, chance: Chance) -> Record:
        try:
            header, image = irheader.unpack(data)
        except FormatError as exc:
            raise FormatError(f"{path}, record at byte {offset}: {exc}", file=path, offset=offset) from exc
        if not self._width:
            return Record(np.zeros(0, np.float32), image, chance, path, offset)
        label = np.atleast_1d(np.asarray(header.label, np.float32))
        source = "it"
        if self._labels is not None:
            source = self._listed
            found = self._labels.get(header.id)
            if found is None:
                raise BadSample(
                    f"{path}, record at byte {offset}: {self._listed} has no line for its id {header.id}",
                    slot="label",
                    expected=f"a line that begins with {header.id}",
                    got="none",
                )
            label = found
        if len(label) != self._width:
            expected = count_text(self._width, "label")
            raise BadSample(
                f"{path}, record at byte {offset}: expected {expected}, {source} has {len(label)}; "
                "label_width=... says how many there are",
                slot="label",
                expected=expected,
                got=f"{len(label)}",
            )
        return Record(label, image, chance, path, offset)
