"""Encode the pool of a snapshot: its samples as a set, and for each of their files the checksum at its end
(docs/order.md, "State").

::

    bytes of the set, number of files (two uint32) | set | end of each file, as varints | checksum of each, uint32

The files are those of the set, in its order. A file of the cycle has no end yet: 0 stands for its end and its checksum,
and the snapshot has a checksum of it beside its position.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from pydp2.data.columns import sample_set
from pydp2.data.columns.checksum import EndChecksum
from pydp2.errors import OptionError

Ints = npt.NDArray[np.int64]
_HEAD = struct.Struct("<II")


def encode_pool(samples: bytes, ends: Ints, checksums: Ints) -> bytes:
    """Return the set ``samples`` with the end and the checksum of each of its files."""
    head = _HEAD.pack(len(samples), len(ends))
    return head + samples + sample_set.encode_varints(ends) + checksums.astype("<u4").tobytes()


def decode_samples(pool: bytes) -> tuple[Ints, Ints]:
    """Return files and sample indices of a pool, both int64, in the order of names. Raises OptionError for bytes that
    are no pool."""
    return sample_set.decode_set(_split(pool)[0])


def decode_checksums(pool: bytes) -> Mapping[int, EndChecksum]:
    """Return the end and the checksum of each file of a pool that has ended. Raises OptionError for bytes that are no
    pool."""
    samples, rest, count = _split(pool)
    try:
        files = sample_set.files_of_set(samples)
        ends = sample_set.decode_varints(rest[: -4 * count]) if count else np.empty(0, np.int64)
        checksums = np.frombuffer(rest[-4 * count :], "<u4") if count else np.empty(0, np.uint32)
        if not len(files) == len(ends) == len(checksums):
            raise ValueError("its checksums are not those of its files")
    except (ValueError, IndexError) as error:
        raise _damaged(error) from None
    known = zip(files.tolist(), ends.tolist(), checksums.tolist(), strict=True)
    return {file: (end, checksum) for file, end, checksum in known if end}


def _split(pool: bytes) -> tuple[bytes, bytes, int]:
    """Return the set, what follows it, and the number of files."""
    if len(pool) < _HEAD.size:
        raise _damaged("it has no head")
    size, count = _HEAD.unpack_from(pool)
    edge = _HEAD.size + size
    if len(pool) < edge + 5 * count:
        raise _damaged("it is cut off")
    return pool[_HEAD.size : edge], pool[edge:], count


def _damaged(why: object) -> OptionError:
    return OptionError(f"the pool in the state cannot be read ({why}): the state is damaged")
