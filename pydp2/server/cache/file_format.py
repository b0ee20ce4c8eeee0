"""Write and read one entry of the cache on disk: the samples of one file of a list, as columns that can be mapped.

::

    head (64 bytes) | block | block | … | index

A block holds consecutive samples: the frames of their columns, then, if the provider weighs them, their weights, each
beginning at a multiple of 64 bytes. The index (msgpack) has the label of the entry, the dropped samples, and the rows,
checksum and sizes of each block. The head has the offset of the index; its digest covers both. Nothing here is ever
executed, and data that do not agree with the declared slots are refused.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import stat
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, cast

import msgpack
import numpy as np
import numpy.typing as npt

from pydp2.data.columns.checksum import EndChecksum, crc32
from pydp2.data.columns.columns import Columns, frame_count
from pydp2.data.schema.input_types import Slots
from pydp2.errors import ProtocolError
from pydp2.server.cache.folder import TEMPORARY_PREFIX, flush_writes

FORMAT_VERSION = 2
_MAGIC = b"pydp2 cache\n"
# Magic, version, offset of the index, its size, digest of these and of the index.
_HEAD = struct.Struct("<12sIQQ16s")
_FIRST_BLOCK = 64  # offset of the first block
_ALIGN = 64
_MIN_MAPPED_BYTES = 1 << 18  # bytes; a smaller entry is read, which takes no descriptor
_INDEX_LIMIT = 16 << 20  # bytes of an index; a file with more dropped samples than fit is not kept
_WEIGHT_LIMIT = 1 << 31
_ZEROS = bytes(_ALIGN)

DroppedSample = tuple[int, str, str]
"""Sample index, slot and reason of a dropped sample, so that a pass reports the same losses from the cache."""


class DamagedEntry(Exception):
    """The bytes that were read are not a complete entry, or not one that can be used."""


@dataclass(frozen=True, kw_only=True)
class EntryLabel:
    """Label of an entry of the cache.

    ``key``: key of the provider with its arguments; ``list_entry``: the entry of the list; ``duplicate``: its number
    among equal entries; ``stamp``: stamp of the named file before it was read, or () if the entry names no file.
    """

    key: str
    provider: str
    list_entry: str
    duplicate: int = 0
    stamp: tuple[int, ...] = ()


@dataclass(frozen=True)
class StoredPiece:
    """Consecutive samples: ``columns``, and per row (int64) sample index, size in bytes, weight (None: all 1)."""

    columns: Columns
    sample_indices: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    weights: npt.NDArray[np.int64] | None


@dataclass(frozen=True)
class EntryBlock:
    """Rows, frame sizes, checksum and offset of a block."""

    start: int
    end: int
    rows: int
    crc: int
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class EntryIndex:
    """Index at the end of an entry, which describes the rest."""

    label: EntryLabel
    rows: int
    blocks: tuple[EntryBlock, ...]
    dropped: tuple[DroppedSample, ...]
    end: EndChecksum


def _padded(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


def block_bytes(columns: Columns, weights: npt.NDArray[np.int64] | None) -> int:
    """Return the bytes that a block of these columns and weights takes."""
    sizes = [array.nbytes for arrays in columns.arrays for array in arrays]
    return sum(map(_padded, sizes)) + (0 if weights is None else _padded(weights.nbytes))


# -- writing -----------------------------------------------------------------------------------------------------------
class CacheEntryWriter:
    """Entry that is being written, in ``folder``, under a name that no reader takes for an entry. It is locked while it
    is being written, so that other services can tell it from a file that a killed service left.

    The bytes are not forced to the disk: after a power failure, the checksums of a damaged entry are wrong. Every
    method may raise OSError; then only :meth:`discard` may follow.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / f"{TEMPORARY_PREFIX}{os.urandom(8).hex()}"
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.size = 0
            """Bytes written so far."""
            self._rows = 0
            self._blocks: list[list[int]] = []
            self._write(bytes(_FIRST_BLOCK))
        except BaseException:
            self.discard()
            raise

    def write_block(self, columns: Columns, weights: npt.NDArray[np.int64] | None) -> None:
        """Write a block with the rows of ``columns``, which follow those of the last block."""
        frames = columns.frames()
        if weights is not None:
            frames.append(np.ascontiguousarray(weights, np.int64))
        crc = 0
        for frame in frames:
            data = frame.view(np.uint8).data if frame.nbytes else memoryview(b"")
            padding = _ZEROS[: _padded(frame.nbytes) - frame.nbytes]
            crc = crc32(padding, crc32(data, crc))
            self._write(data)
            self._write(padding)
        self._blocks.append([columns.rows, crc, *(frame.nbytes for frame in frames)])
        self._rows += columns.rows

    def pack_index(self, label: EntryLabel, dropped: Sequence[DroppedSample], end: EndChecksum = (0, 0)) -> bytes:
        """Return the index that :meth:`commit` has to write after all samples were added. ``end``: end checksum of the
        file."""
        index = cast(
            bytes,
            msgpack.packb(
                {
                    "key": label.key,
                    "provider": label.provider,
                    "text": label.list_entry,
                    "copy": label.duplicate,
                    "stamp": list(label.stamp),
                    "rows": self._rows,
                    "end": list(end),
                    "holes": [list(hole) for hole in dropped],
                    "blocks": np.array(self._blocks, "<i8").tobytes(),
                    "count": len(self._blocks),
                }
            ),
        )
        if len(index) > _INDEX_LIMIT:
            raise OSError(0, f"the record of its dropped samples takes {len(index)} bytes, the limit is {_INDEX_LIMIT}")
        return index

    def commit(self, path: Path, index: bytes) -> None:
        """Write ``index``, which :meth:`pack_index` returned, and rename the complete entry to ``path``."""
        head = _pack_head(FORMAT_VERSION, self.size, index)
        self._write(index)
        os.pwrite(self._file, head, 0)
        flush_writes(self._file)
        self._path.rename(path)
        self._close()

    def discard(self) -> None:
        """Remove the entry, which will not be completed."""
        with contextlib.suppress(OSError):
            self._path.unlink()
        self._close()

    def _close(self) -> None:
        """Close the file, only once: even a close that fails frees the descriptor, which may then be that of another
        file."""
        file, self._file = self._file, -1
        if file >= 0:
            with contextlib.suppress(OSError):  # commit() has flushed the entry before
                os.close(file)

    def _write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view:
            count = os.write(self._file, view)
            self.size += count
            view = view[count:]


def _pack_head(version: int, start: int, index: bytes) -> bytes:
    return _HEAD.pack(_MAGIC, version, start, len(index), _digest(version, start, index))


def _digest(version: int, start: int, index: bytes | memoryview) -> bytes:
    salted = blake2b(digest_size=16, person=b"pydp2 cache", salt=struct.pack("<IQ", version, start))
    salted.update(index)
    return salted.digest()


# -- reading -----------------------------------------------------------------------------------------------------------
class CacheEntryReader:
    """Entry at ``path``: its :attr:`index`, and its samples. Raises DamagedEntry, or OSError if it cannot be opened.

    The bytes are mapped, and stay so while an array refers to them; the file may be replaced or removed meanwhile.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        with own_file(path) as (file, self.stat):
            size = self.stat.st_size
            if size < _FIRST_BLOCK:
                raise DamagedEntry(f"it has {size} bytes, its head alone needs {_FIRST_BLOCK}")
            self._data = memoryview(
                read_exactly(file, size) if size < _MIN_MAPPED_BYTES else mmap.mmap(file, size, prot=mmap.PROT_READ)
            )
        self.index = _read_index(self._data)

    def verify(self, progress: Callable[[], None] = lambda: None) -> None:
        """Raise DamagedEntry unless the checksums of all blocks are right. ``progress`` is called after every block."""
        if any(self._data[_HEAD.size : _FIRST_BLOCK]):
            raise DamagedEntry("there is something between its head and its samples")
        for number, block in enumerate(self.index.blocks):
            if crc32(self._data[block.start : block.end]) != block.crc:
                raise DamagedEntry(f"the checksum of block {number} is wrong")
            progress()

    def pieces(self, slots: Slots, *, weighted: bool) -> list[StoredPiece]:
        """Return the samples. Raises DamagedEntry if they do not fit ``slots``."""
        found: list[tuple[Columns, npt.NDArray[np.int64] | None]] = []
        frames = frame_count(slots)
        for number, block in enumerate(self.index.blocks):
            if len(block.sizes) != frames + weighted:
                raise DamagedEntry(f"block {number} has {len(block.sizes)} frames, {frames + weighted} are needed")
            parts, at = [], block.start
            for size in block.sizes:
                parts.append(self._data[at : at + size])
                at += _padded(size)
            try:
                columns = Columns.from_frames(slots, block.rows, parts[:frames])
            except ProtocolError as error:
                raise DamagedEntry(f"block {number}: {error}") from None
            weights = None
            if weighted:
                if block.sizes[-1] != 8 * block.rows:
                    raise DamagedEntry(f"block {number} needs a weight for each row")
                weights = np.frombuffer(parts[-1], np.int64) if block.rows else np.empty(0, np.int64)
                if block.rows and not 0 <= int(weights.min()) <= int(weights.max()) < _WEIGHT_LIMIT:
                    raise DamagedEntry(f"block {number} has an invalid weight")
            found.append((columns, weights))
        dropped = [y for y, _, _ in self.index.dropped]
        sample_indices = np.delete(np.arange(self.index.rows + len(dropped), dtype=np.int64), dropped)
        out, row = [], 0
        for columns, weights in found:
            out.append(StoredPiece(columns, sample_indices[row : row + columns.rows], columns.sample_bytes(), weights))
            row += columns.rows
        return out


@contextlib.contextmanager
def own_file(path: str | os.PathLike[str]) -> Iterator[tuple[int, os.stat_result]]:
    """Open ``path`` inside the context, a regular file of this user. Raises DamagedEntry, or OSError."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        known = os.fstat(file)
        if not stat.S_ISREG(known.st_mode):
            raise DamagedEntry("it is no regular file")
        if known.st_uid != os.geteuid():
            raise DamagedEntry(f"it belongs to user {known.st_uid}, not to {os.geteuid()}")
        yield file, known
    finally:
        os.close(file)


def read_exactly(file: int, size: int) -> bytes:
    """Return the first ``size`` bytes of the descriptor ``file``. Raises DamagedEntry if there are fewer."""
    data = os.pread(file, size, 0)
    if len(data) != size:
        raise DamagedEntry(f"it has {len(data)} bytes of {size}")
    return data


def _read_index(data: memoryview) -> EntryIndex:
    magic, version, start, size, digest = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise DamagedEntry("it does not begin as one")
    if start < _FIRST_BLOCK or size > _INDEX_LIMIT or start + size != len(data):
        raise DamagedEntry(f"it has {len(data)} bytes of {start + size}")
    index = data[start:]
    if digest != _digest(version, start, index):
        raise DamagedEntry("the checksum of its head is wrong")
    if version != FORMAT_VERSION:
        raise DamagedEntry(f"it has version {version}, this pydp2 reads {FORMAT_VERSION}")
    try:
        plain = msgpack.unpackb(index, strict_map_key=True, max_ext_len=0)
        label = EntryLabel(
            key=_expect(str, plain["key"]),
            provider=_expect(str, plain["provider"]),
            list_entry=_expect(str, plain["text"]),
            duplicate=_expect(int, plain["copy"]),
            stamp=tuple(_expect(int, number) for number in _expect(list, plain["stamp"])),
        )
        dropped_samples = tuple(
            (_expect(int, y), _expect(str, slot), _expect(str, why)) for y, slot, why in _expect(list, plain["holes"])
        )
        rows = _expect(int, plain["rows"])
        end, checksum = (_expect(int, number) for number in _expect(list, plain["end"]))
        blocks = _read_blocks(_expect(bytes, plain["blocks"]), _expect(int, plain["count"]), start)
    except (ValueError, TypeError, KeyError) as error:  # errors of msgpack are ValueErrors
        raise DamagedEntry(f"its index is not valid: {error!r:.200}") from None
    sample_indices = [y for y, _, _ in dropped_samples]
    if sample_indices != sorted(set(sample_indices)) or (
        sample_indices and not 0 <= sample_indices[0] <= sample_indices[-1] < rows + len(dropped_samples)
    ):
        raise DamagedEntry("its index is not valid: it names dropped samples beyond the others")
    if sum(block.rows for block in blocks) != rows:
        raise DamagedEntry("its index is not valid: its blocks do not add up to its rows")
    return EntryIndex(label, rows, blocks, dropped_samples, (end, checksum))


def _expect(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError(f"expected {kind.__name__}, got {type(value).__name__}")
    return value


def _read_blocks(data: bytes, count: int, end: int) -> tuple[EntryBlock, ...]:
    """Return the blocks, which fill the entry from its head to ``end``, where the index is."""
    table = np.frombuffer(data, "<i8").reshape(count, -1).tolist() if count else []
    at, out = _FIRST_BLOCK, []
    for rows, crc, *sizes in table:
        if rows < 0 or min(sizes, default=0) < 0 or max(sizes, default=0) > end:
            raise ValueError("a block with impossible sizes")
        start, at = at, at + sum(map(_padded, sizes))
        out.append(EntryBlock(start, at, rows, crc, tuple(sizes)))
    if at != end:
        raise ValueError(f"blocks of {at - _FIRST_BLOCK} bytes where {end - _FIRST_BLOCK} are")
    return tuple(out)
