"""MDS, the shards of mosaicml-streaming: a folder with ``index.json``, which lists the shards and their columns.

A folder in a store is read from there, a compressed shard without looking for another one.

A shard has the number of its samples, the offset of each, a description of the columns in JSON, and the samples; all
numbers are little-endian. A sample has the lengths of the values that differ in length, then all values. So any sample
is read directly. A shard that is compressed is decompressed into memory as a whole.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pydp2.data.packers.many_samples import ManySamples, rows
from pydp2.data.schema.input_types import scalar
from pydp2.errors import BadSample, FormatError, OptionError
from pydp2.file_parts import WHOLE_FILE, FilePart, split_entry
from pydp2.formats.folders import below, read_small
from pydp2.formats.library_errors import errors_of
from pydp2.formats.mds_columns import MdsColumn, column
from pydp2.formats.row_arrays import checked_keys, listed
from pydp2.formats.serving import BLOCK, in_pieces
from pydp2.formats.source import LIMIT, ByteSource, Closable, open_source
from pydp2.providers import provider
from pydp2.remote import is_remote
from pydp2.remote.remote_file import open_ahead

Indices = NDArray[np.int64]
_MOST_INDEX = 1 << 26  # bytes
_PACKED = ("zstd", "gz")


class _Shard(NamedTuple):
    """Entry of the index for a shard."""

    file: str
    size: int
    samples: int
    packed: str | None
    columns: dict[str, Any]


class Reader(Closable):
    """Open folder of shards; a context manager. ``len()``: the number of samples.

    Attributes: ``name``, of the folder; ``columns``, of a sample, in their order in it.

    Raises:
        FormatError: the index is damaged, or has shards or columns that are refused.
        OSError: it cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.name = os.fspath(path)
        self._source: ByteSource | None = None
        self._open = -1
        index = below(path, "index.json")
        if not is_remote(self.name) and Path(path).is_file():
            raise FormatError(f"{self.name}: expected a folder with an index.json; name the folder", file=self.name)
        data = read_small(index, _MOST_INDEX, "the index")
        with errors_of(index):
            self._shards = [_shard(self.name, item) for item in json.loads(data)["shards"]]
            if any(shard.columns != self._shards[0].columns for shard in self._shards):
                raise ValueError("shards must have the same columns")
            described = self._shards[0].columns if self._shards else {"column_names": [], "column_encodings": []}
        self.columns = []
        for name, encoding in zip(described["column_names"], described["column_encodings"], strict=True):
            with errors_of(index, lambda: f"column {name}"):  # noqa: B023 - it is called in the block
                self.columns.append(column(name, encoding))
        self._starts = np.concatenate([[0], np.cumsum([shard.samples for shard in self._shards], dtype=np.int64)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def blocks(self, part: FilePart, start: int, indices: Indices | None) -> Iterator[list[dict[str, bytes] | str]]:
        """Yield the samples of ``part`` from its sample ``start`` on, or those of ``indices`` alone, some at a time:
        the bytes of each column, or what is wrong with the sample."""
        first, last = part.range(len(self))
        wanted = np.arange(first + start, last) if indices is None else indices + first
        edges = np.searchsorted(wanted, self._starts)
        for number, (lo, hi) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
            if lo < hi:
                yield from self._chosen(number, wanted[lo:hi] - self._starts[number])

    def _chosen(self, number: int, wanted: Indices) -> Iterator[list[dict[str, bytes] | str]]:
        """Yield samples of a shard."""
        source = self._opened(number)
        sizes = np.cumsum(self._offsets[wanted + 1] - self._offsets[wanted])
        at = 0
        while at < len(wanted):
            end = max(at + 1, int(np.searchsorted(sizes, (sizes[at - 1] if at else 0) + BLOCK, "right")))
            some = wanted[at:end]
            begin, stop = int(self._offsets[some[0]]), int(self._offsets[some[-1] + 1])
            if stop - begin > 2 * (sizes[end - 1] - (sizes[at - 1] if at else 0)):  # they lie scattered
                edges = [(int(self._offsets[i]), int(self._offsets[i + 1])) for i in some.tolist()]
                samples = [self._bytes(source, lo, hi) for lo, hi in edges]
            else:
                data = self._bytes(source, begin, stop)
                edges = [(int(self._offsets[i]) - begin, int(self._offsets[i + 1]) - begin) for i in some.tolist()]
                samples = [data[lo:hi] for lo, hi in edges]
            yield [self._split(sample) for sample in samples]
            at = end

    @staticmethod
    def _bytes(source: ByteSource, lo: int, hi: int) -> bytes:
        with source.at(lo) as opened:
            return opened.read(hi - lo, "a sample")

    def _split(self, sample: bytes) -> dict[str, bytes] | str:
        """Return the bytes of each column of a sample, or what is wrong."""
        head = 4 * sum(column.size is None for column in self.columns)
        lengths = iter(np.frombuffer(sample[: len(sample[:head]) // 4 * 4], "<u4").tolist())
        values, at = {}, head
        for item in self.columns:
            size = next(lengths, 0) if item.size is None else item.size
            values[item.name] = sample[at : at + size]
            at += size
        return values if at == len(sample) else f"its columns need {at} bytes, it has {len(sample)}"

    def _opened(self, number: int) -> ByteSource:
        """Return a shard, opened and checked."""
        if number != self._open or self._source is None:
            self.close()
            self._source, self._open = _open_shard(self._shards[number]), number
            for shard in self._shards[number + 1 : number + 2]:
                open_ahead(shard.packed or shard.file)
            self._offsets = _offsets(self._source, self._shards[number])
        return self._source

    def close(self) -> None:
        """Close the shard that is open."""
        if self._source is not None:
            self._source.close()
            self._source = None


def _shard(folder: str, item: Any) -> _Shard:
    """Return what an entry of the index says. Raises LookupError, TypeError, ValueError."""
    if item["format"] != "mds" or item["version"] != 2:
        raise ValueError(f"expected shards of mds, version 2, got {item['format']!r:.40}, {item['version']!r:.40}")
    columns = {key: list(item[key]) for key in ("column_names", "column_encodings", "column_sizes")}
    names = columns["column_names"]
    if len(set(names)) < len(names) or len({*map(len, columns.values())}) > 1 or not names:
        raise ValueError(f"expected columns of different names, each with an encoding and a size, got {columns!r:.200}")
    known = [column(name, encoding).size for name, encoding in zip(names, columns["column_encodings"], strict=True)]
    if known != columns["column_sizes"]:
        raise ValueError(f"expected columns of {known} bytes, got {columns['column_sizes']!r:.200}")
    size, count = item["raw_data"]["bytes"], item["samples"]
    if not all(isinstance(number, int) and 0 <= number < 1 << 32 for number in (size, count)) or 4 * count > size:
        raise ValueError(f"a shard of {size!r:.40} bytes cannot have {count!r:.40} samples")
    packed = None
    if item.get("compression"):
        packed = _inside(folder, item["zip_data"]["basename"])
        if item["compression"].partition(":")[0] not in _PACKED:
            raise ValueError(
                f"compression {item['compression']!r:.40} is not read: write {' or '.join(_PACKED)}, or none"
            )
    return _Shard(_inside(folder, item["raw_data"]["basename"]), size, count, packed, columns)


def _inside(folder: str, name: str) -> str:
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or "\0" in name:
        raise ValueError(f"expected the name of a file inside of the folder, got {name!r:.80}")
    return below(folder, str(path))


def _open_shard(shard: _Shard) -> ByteSource:
    """Return a shard, decompressed if only its compressed file is there."""
    if shard.packed is None or (not is_remote(shard.file) and Path(shard.file).exists()):
        source = open_source(shard.file)
        if source.size != shard.size:
            source.close()
            raise source.error(f"expected {shard.size} bytes, as its index says, got {source.size}", source.size)
        return source
    if shard.size > LIMIT:
        raise FormatError(f"{shard.packed}: a compressed shard has at most {LIMIT} bytes", file=shard.packed)
    with open_source(shard.packed, gzipped=True, zstd=True) as packed:
        data = packed.read(shard.size, "a shard")
        packed.check_at_end()
    return ByteSource(shard.packed, io.BytesIO(data), len(data), [])


def _offsets(source: ByteSource, shard: _Shard) -> NDArray[np.int64]:
    """Return where the samples of a shard begin, and where the last one ends. Raises FormatError: the head lies."""
    count = int.from_bytes(source.read(4, "the number of samples"), "little")
    if count != shard.samples:
        raise source.error(f"expected {shard.samples} samples, as its index says, got {count}", 0)
    edges = np.frombuffer(source.read(4 * (count + 1), "the offsets of samples"), "<u4").astype(np.int64)
    if edges[0] < source.offset or edges[-1] != shard.size or (edges[1:] < edges[:-1]).any():
        raise source.error(f"expected offsets that rise from {source.offset} to {shard.size}", 4)
    data = source.read(int(edges[0]) - source.offset, "the description of the columns")
    with errors_of(source.name, lambda: "the description of its columns"):
        if {key: json.loads(data)[key] for key in shard.columns} != shard.columns:
            raise ValueError("expected the columns of the index")
    return edges


def read(
    path: str | os.PathLike[str],
    *,
    start: int = 0,
    part: FilePart = WHOLE_FILE,
    indices: Indices | None = None,
    columns: Sequence[str] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the samples of a folder: a dict of values by column. Numbers are of numpy, pictures (jpeg, png) are bytes.

    Args:
        path: the folder that has ``index.json``, or its URL.
        start: index of the first sample wanted, counted within the part. Nothing before it is read.
        part: the part of the samples to read.
        indices: int64, rising: the samples to read, counted within the part, and no others. Default: all.
        columns: names of the columns. Default: all.

    Raises:
        FormatError: the index, a shard or a sample is damaged, or a column has pickles.
        OptionError: there is no such column, or zstandard is needed and not installed.
        OSError: a file cannot be read.
    """
    with Reader(path) as reader:
        chosen = _chosen_columns(reader, checked_keys("columns", columns))
        for block in reader.blocks(part, start, indices):
            for sample in block:
                with errors_of(reader.name, lambda: "a sample"):
                    if isinstance(sample, str):
                        raise ValueError(sample)
                    made = {item.name: item.decode(sample[item.name]) for item in chosen}
                yield made


def _chosen_columns(reader: Reader, names: Sequence[str] | None) -> list[MdsColumn]:
    by_name = {item.name: item for item in reader.columns}
    for name in names or ():
        if name not in by_name:
            raise OptionError(f"{reader.name} has no column {name}; it has {listed(by_name)}")
    return reader.columns if names is None else [by_name[name] for name in names]


# -- the provider ------------------------------------------------------------------------------------------------------
def _hook(
    settings: Any, *, file_list: Any, is_train: bool, input_order: Any, columns: Sequence[str] | None = None
) -> None:
    settings.chosen, settings.columns, settings.first = checked_keys("columns", columns), [], ""
    for name in dict.fromkeys(split_entry(entry)[0] for entry in file_list):
        with Reader(name) as reader:
            if not len(reader):
                continue
            ((first,),) = reader.blocks(WHOLE_FILE, 0, np.zeros(1, np.int64))
            with errors_of(name, lambda: "sample 0"):
                if isinstance(first, str):
                    raise ValueError(first)
                chosen = _chosen_columns(reader, settings.chosen)
                settings.columns = [item.of_first(first[item.name]) for item in chosen]
            settings.first = name
            break
    settings.input_types = {item.name: item.type for item in settings.columns} or {"data": scalar()}


@provider(init_hook=_hook)
def process(settings: Any, filename: str, start: int, indices: Indices | None) -> Iterator[ManySamples | BadSample]:
    """Serve the samples of folders of MDS: each column is a slot of its name.

    Arguments of the hook:
        columns: names of the columns to serve, in this order. Default: all.
    """
    name, part = split_entry(filename)
    with Reader(name) as reader:
        if not len(reader):
            return
        found = {item.name: item.encoding for item in _chosen_columns(reader, settings.chosen)}
        expected = {item.name: item.encoding for item in settings.columns}
        if found != expected:
            raise FormatError(f"{name} has columns {found}, the first folder {settings.first} {expected}", file=name)
        for block in reader.blocks(part, start, indices):
            yield from _samples(block, settings.columns)


def _samples(block: list[dict[str, bytes] | str], columns: list[MdsColumn]) -> Iterator[ManySamples | BadSample]:
    errors = {}
    for row, sample in enumerate(block):
        try:
            if isinstance(sample, str):
                raise ValueError(sample)
            for item in columns:
                if item.is_decoded():
                    item.decode(sample[item.name])
        except ValueError as error:
            errors[row] = BadSample(str(error), slot="all slots" if isinstance(sample, str) else item.name)

    def piece(lo: int, hi: int) -> ManySamples:
        good = [sample for sample in block[lo:hi] if isinstance(sample, dict)]
        return rows(**{item.name: item.values([sample[item.name] for sample in good]) for item in columns})

    yield from in_pieces(len(block), errors, piece)
