"""Read the index of Megatron's token files: ``X.idx`` says where the documents of ``X.bin`` end.

All numbers are little-endian: nine bytes of magic, the version as u64, a code of the dtype as u8, the number of
sequences and of document bounds as u64; then the length of each sequence as i32, its offset in bytes as i64, and the
document bounds as i64, which count sequences from 0 to all. A document is one sequence or more.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pydp2.errors import FormatError
from pydp2.formats.source import ByteSource, open_source

MAGIC = b"MMIDIDX\0\0"
DTYPES = {1: "u1", 2: "i1", 3: "i2", 4: "i4", 5: "i8", 6: "f8", 7: "f4", 8: "u2"}
"""dtypes by their code, little-endian. Tokens are integers, so floats are refused."""

_HEAD = 34  # bytes before the lengths


class MegatronIndex(NamedTuple):
    """Content of an index: ``dtype`` of the tokens, and ``edges`` int64 ``(documents + 1,)``, the number of tokens
    before each document and behind the last."""

    dtype: np.dtype[Any]
    edges: NDArray[np.int64]


def index_of(path: str | os.PathLike[str]) -> MegatronIndex | None:
    """Return the index beside the file of tokens ``path``, ``X.idx`` for ``X.bin``; None if there is none.

    Raises:
        FormatError: a file of this name begins like an index and is damaged, or describes no tokens in a row.
        OSError: it cannot be read.
    """
    beside = f"{os.fspath(path).removesuffix('.bin')}.idx"
    try:
        source = open_source(beside)
    except (FileNotFoundError, IsADirectoryError):
        return None
    with source:
        if source.read_some(len(MAGIC)) != MAGIC:
            return None
        return _read(source)


def _read(source: ByteSource) -> MegatronIndex:
    head = source.read(_HEAD - len(MAGIC), "the header of an index")
    version, code = int.from_bytes(head[:8], "little"), head[8]
    sequences, bounds = (int.from_bytes(head[at : at + 8], "little") for at in (9, 17))
    if version != 1:
        raise source.error(f"expected version 1 of Megatron's index, got {version}", len(MAGIC))
    kind = DTYPES.get(code, "")
    if kind[:1] not in ("u", "i"):
        raise source.error(f"expected a code of integers, got {code} ({kind or 'none that is known'})", 17)
    needed = 12 * sequences + 8 * bounds
    assert source.size is not None
    if needed != source.size - _HEAD:
        multimodal = (
            "; an index with modes (multimodal) is not read" if source.size - _HEAD == needed + sequences else ""
        )
        raise source.error(
            f"{sequences} sequences and {bounds} bounds of documents need {needed} bytes, the file has "
            f"{source.size - _HEAD}{multimodal}",
            18,
        )
    dtype = np.dtype(kind).newbyteorder("<")
    lengths, pointers = _numbers(source, sequences, "<i4", "lengths"), _numbers(source, sequences, "<i8", "offsets")
    documents = _numbers(source, bounds, "<i8", "bounds of documents")
    if (lengths < 0).any():
        raise source.error(f"expected lengths of sequences from 0, got {lengths.min()}", _HEAD)
    ends = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    if not np.array_equal(pointers, ends[:-1] * dtype.itemsize):
        raise source.error("expected sequences one after the other, got other offsets", _HEAD + 4 * sequences)
    at = _HEAD + 12 * sequences
    if not bounds or documents[0] or documents[-1] != sequences or (np.diff(documents) < 0).any():
        raise source.error(f"expected bounds of documents that rise from 0 to {sequences}", at)
    return MegatronIndex(dtype, ends[documents])


def _numbers(source: ByteSource, count: int, kind: str, what: str) -> NDArray[Any]:
    return np.frombuffer(source.read(count * np.dtype(kind).itemsize, what), kind)


def check_size(path: str, index: MegatronIndex, size: int) -> None:
    """Raise FormatError unless a file of tokens ``path`` of ``size`` bytes has the tokens of its index."""
    need = int(index.edges[-1]) * index.dtype.itemsize
    if need != size:
        raise FormatError(
            f"{path}, byte {min(need, size)}: its index says {index.edges[-1]} tokens of {index.dtype.name}, which are "
            f"{need} bytes; the file has {size}",
            file=path,
            offset=min(need, size),
        )
