"""Encode a set of samples as bytes and as text: the form of a saved pool (docs/order.md, "State").

A pool at a snapshot point is in the order of names, so it is a set, and a set of (file, sample index) packs well: as
differences of file numbers and of sample indices, as varints. If whole stretches are in the set, as at the tail of a
pass, runs of sample indices are written instead. For a state these bytes are deflated and written in base 85.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pydp2.data.native import is_active
from pydp2.errors import OptionError

Ints = npt.NDArray[np.int64]
_MAX_BYTES = 1 << 30  # bytes of a set: far above any pool, far below what would hurt
VARINT_BYTES = 10
"""Number of bytes that the largest number takes."""
_FORM_GAPS, _FORM_RUNS = b"g", b"r"


def encode_set_in_python(files: Ints, sample_indices: Ints) -> bytes:
    """Return the set as bytes. The samples must be in the order of (file, sample index), each once."""
    starts = np.flatnonzero(np.diff(files, prepend=-1))  # where each file begins
    numbers = np.diff(files[starts], prepend=-1) - 1
    first = np.zeros(len(files), np.bool_)
    first[starts] = True
    gaps = np.where(first, sample_indices, np.diff(sample_indices, prepend=0) - 1)
    heads = np.flatnonzero(first | (gaps > 0))  # a run begins where a file begins or a gap is not 0
    count = np.array([len(starts)])
    if 2 * len(heads) < len(files):
        lengths = np.diff(np.append(heads, len(files)))
        runs = np.diff(np.append(np.searchsorted(heads, starts), len(heads)))
        return _FORM_RUNS + encode_varints(np.concatenate([count, numbers, runs, gaps[heads], lengths - 1]))
    counts = np.diff(np.append(starts, len(files)))
    return _FORM_GAPS + encode_varints(np.concatenate([count, numbers, counts, gaps]))


encode_set: Callable[[Ints, Ints], bytes] = encode_set_in_python

if is_active():
    from pydp2.data.native import _array_kernels

    def _encode_set_native(files: Ints, sample_indices: Ints) -> bytes:
        if not len(files):
            return encode_set_in_python(files, sample_indices)
        out = np.empty(
            10 * (1 + 3 * len(files)), np.uint8
        )  # ten bytes hold any number; what is not written costs nothing
        size, runs = _array_kernels.encode_set(files, sample_indices, out)
        return (_FORM_RUNS if runs else _FORM_GAPS) + out[:size].tobytes()

    encode_set = _encode_set_native


class SampleSet(NamedTuple):
    """Set of samples as bytes (``data``, :func:`encode_set`), and its ``files``, in order, with the ``first`` and the
    ``last`` sample of each, int64."""

    data: bytes
    files: Ints
    first: Ints
    last: Ints

    @classmethod
    def of(cls, files: Ints, sample_indices: Ints) -> SampleSet:
        """Return the set of samples that are in the order of (file, sample index), each once."""
        begins = np.flatnonzero(np.diff(files, prepend=-1))
        ends = np.append(begins[1:], len(files))[: len(begins)] - 1
        return cls(encode_set(files, sample_indices), files[begins], sample_indices[begins], sample_indices[ends])


def decode_set(data: bytes) -> tuple[Ints, Ints]:
    """Return files and sample indices, both int64, of a set that :func:`encode_set` encoded. Raises OptionError for
    bytes that are not one."""
    try:
        return _decode_checked(data)
    except (ValueError, IndexError) as error:
        raise OptionError(f"the pool in the state cannot be read ({error}): the state is damaged") from None


def files_of_set(data: bytes) -> Ints:
    """Return the files of a set that :func:`encode_set` encoded, in order, without a look at its samples."""
    count = int(decode_varints(leading_varints(data[1 : 1 + VARINT_BYTES], 1))[0])
    head = decode_varints(leading_varints(data[1 : 1 + VARINT_BYTES * (1 + count)], 1 + count))
    return np.cumsum(head[1:] + 1) - 1


def leading_varints(data: bytes, count: int) -> bytes:
    """Return the bytes of the first ``count`` numbers in ``data``."""
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) < 128)
    return data[: int(ends[count - 1]) + 1]


def set_to_text(data: bytes) -> str:
    """Return the bytes of :func:`encode_set` as short text."""
    return base64.b85encode(zlib.compress(data, 6)).decode()


def set_from_text(text: str) -> bytes:
    """Return the bytes of a text that :func:`set_to_text` made. Raises OptionError for any other text; a
    bomb is refused unread."""
    try:
        inflate = zlib.decompressobj()
        data = inflate.decompress(base64.b85decode(text), _MAX_BYTES)
        if inflate.unconsumed_tail or not inflate.eof:
            raise ValueError("it is cut off or too long")
        return data
    except (ValueError, zlib.error) as error:
        raise OptionError(f"the pool in the state cannot be read ({error}): the state is damaged") from None


def _decode_checked(data: bytes) -> tuple[Ints, Ints]:
    kind, values = bytes(data[:1]), decode_varints(data[1:])
    many = int(values[0])
    if many > len(values):
        raise ValueError("more files than numbers")
    numbers, counts, rest = values[1 : 1 + many], values[1 + many : 1 + 2 * many], values[1 + 2 * many :]
    total = int(counts.sum())
    if len(counts) != many or int(counts.min(initial=1)) < 1:
        raise ValueError("a file without samples")
    if kind == _FORM_GAPS and len(rest) == total:
        gaps = rest
    elif kind == _FORM_RUNS and len(rest) == 2 * total:
        lengths = rest[total:] + 1
        length = int(lengths.sum())
        if length > _MAX_BYTES or int(lengths.max(initial=0)) > _MAX_BYTES:
            raise ValueError("too many samples")
        gaps = np.zeros(length, np.int64)
        gaps[np.cumsum(lengths) - lengths] = rest[:total]
        counts = np.add.reduceat(lengths, np.cumsum(counts) - counts) if many else counts
    else:
        raise ValueError("its counts do not agree")
    files = np.repeat(np.cumsum(numbers + 1) - 1, counts)
    begins = np.cumsum(counts) - counts
    running = np.cumsum(gaps + 1)
    before = np.repeat(running[begins] - gaps[begins] - 1, counts)
    return files, running - before - 1


def encode_varints(values: npt.NDArray[np.integer]) -> bytes:
    """Return ``values`` in little-endian base 128: seven bits a byte, the high bit set on all but the last."""
    values = values.astype(np.int64, copy=False)
    most = int(values.max(initial=0))
    if most < 128:
        return values.astype(np.uint8).tobytes()
    sizes = np.ones(len(values), np.int64)
    bits = 7
    while most >> bits:
        sizes += values >= 1 << bits
        bits += 7
    ends = np.cumsum(sizes)
    begins = ends - sizes
    out = np.zeros(int(ends[-1]), np.uint8)
    for i in range(int(sizes.max())):
        these = np.flatnonzero(sizes > i)
        more = (sizes[these] > i + 1).astype(np.uint8) << 7
        out[begins[these] + i] = ((values[these] >> (7 * i)) & 127).astype(np.uint8) | more
    return out.tobytes()


def decode_varints(data: bytes) -> Ints:
    """Inverse of :func:`encode_varints`. Raises ValueError for bytes that are none."""
    raw = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(raw < 128)
    if not len(ends) or ends[-1] != len(raw) - 1:
        raise ValueError("a number is cut off")
    begins = np.concatenate([[0], ends[:-1] + 1])
    sizes = ends - begins + 1
    if int(sizes.max()) > 8:
        raise ValueError("a number is too large")
    values = np.zeros(len(ends), np.int64)
    for i in range(int(sizes.max())):
        these = np.flatnonzero(sizes > i)
        values[these] |= (raw[begins[these] + i].astype(np.int64) & 127) << (7 * i)
    return values
