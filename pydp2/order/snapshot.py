"""Describe a point of a pass from which it can be taken up again, and what its files must give for that (docs/order.md,
"State").

The pool of a point is bytes: its samples as a set, and for each of their files the checksum at its end.

::

    bytes of the set, number of files (two uint32) | set | check of each file, as varints | checksum of each, uint32

The files are those of the set, in its order. The check of a file is the sample index at which its checksum is: its end,
or an earlier one behind its samples if its provider can start anywhere. A file of the cycle has none: 0 stands for it
and for its checksum, and the snapshot has a checksum of it beside its position.

If some of the files need not be read from their first sample, the number of files has the highest bit set, and this
follows, where k is the number of running checksums of a file::

    bytes of what follows (uint32) | k, number of begins, file and sample index of each, as varints |
    k running checksums there of each, uint32

A file of the cycle may have two: where all samples that are needed can be read from, and the last one before the next
sample, from which the file is read on if the samples of the pool are read alone.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pydp2.data.columns import sample_set
from pydp2.data.columns.checksum import EndChecksum
from pydp2.errors import OptionError, RemoteProtocolError
from pydp2.protocol.plain_data import decode_plain, encode_plain

Ints = npt.NDArray[np.int64]
UNREACHED = 1 << 62
"""Sample index that no file reaches."""
POINT_FIELDS = frozenset(
    ("index", "ended", "offset", "next_file", "current", "left", "taken", "dropped", "lanes", "bucket")
)
"""Names of the plain values of a point."""
_POOL_HEAD, _SIZE = struct.Struct("<II"), struct.Struct("<I")
_HAS_BEGINS = 1 << 31
_MAX_CRC = (1 << 32) - 1
_MAX_BATCH_INDEX = 1 << 53  # greatest batch that a point may stand before, so that those after it can be numbered, too


@dataclass(slots=True)
class Reread:
    """Samples that are still needed of a file whose first samples were merged before: ``sample_indices``,
    and all from ``start`` on.

    ``checksum_index``: a sample index at which the running checksum ``crcs`` is known (0: nowhere). The file is run at
    least up to there: no sample of it is used before it is known to be the file that it was. ``begin``: where it may
    begin to run, if its provider can, and ``begin_crcs``, all running checksums there; ``select_until``: where it goes
    on from ``select_crcs``, if its provider can yield the samples before that alone (0: not known). ``end``: where it
    ended, if it did and samples from ``start`` on are needed; what it has behind that now is not part of the pass.
    """

    sample_indices: npt.NDArray[np.int64]
    start: int = UNREACHED
    checksum_index: int = 0
    crcs: list[int] = field(default_factory=list)
    end: int = UNREACHED
    begin: int = 0
    begin_crcs: list[int] = field(default_factory=list)
    select_until: int = 0
    select_crcs: list[int] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """True if all samples of the file are needed, as of one that is read for the first time."""
        return not self.start and self.end == UNREACHED

    @property
    def rerun_count(self) -> int:
        """Number of samples of the file that were merged before, as far as they have to be run again."""
        return (self.start if self.start < UNREACHED else self.until) - self.begin

    @property
    def until(self) -> int:
        """Sample index from which on nothing is needed."""
        if self.start < UNREACHED:
            return self.end
        last = int(self.sample_indices[-1]) + 1 if len(self.sample_indices) else 0
        return max(last, self.checksum_index)


@dataclass(frozen=True, slots=True)
class FilePosition:
    """Position in a file of the cycle: the file, the sample index that comes next, and checksums at some
    sample index not below it."""

    file: int
    sample_index: int
    checksum_index: int
    crcs: list[int]


@dataclass(frozen=True, slots=True)
class SnapshotPoint:
    """Snapshot of the stream before batch ``batch_index``: the pool as :func:`encode_pool` encodes it, and where
    the merge stood.

    ``in_tail``: the merge had no more, so the pool is the tail of the pass, of which the first ``tail_consumed``
    samples (in the order of the tail) are gone. ``merged`` and ``dropped``: samples and dropped samples that the merge
    had passed. ``bucket_number``: number of the bucket that the batch before came from, counted from 1; 0: none.
    """

    batch_index: int
    pool: bytes
    in_tail: bool
    tail_consumed: int
    next_file: int
    cycle_index: int
    block_left: int
    cycle: list[FilePosition]
    merged: int
    dropped: int
    bucket_number: int = 0

    def to_wire(self) -> dict[str, Any]:
        """Return plain values, without the pool, which is bytes."""
        return {
            "index": self.batch_index,
            "ended": self.in_tail,
            "offset": self.tail_consumed,
            "next_file": self.next_file,
            "current": self.cycle_index,
            "left": self.block_left,
            "taken": self.merged,
            "dropped": self.dropped,
            "lanes": [[each.file, each.sample_index, each.checksum_index, each.crcs] for each in self.cycle],
            **({"bucket": self.bucket_number} if self.bucket_number else {}),
        }

    @classmethod
    def from_wire(cls, wire: Any, pool: bytes, files: int) -> SnapshotPoint:
        """Return the point that :meth:`to_wire` wrote, for a list of ``files`` files. Raises
        OptionError for invalid values."""
        point = cls.fields_from_wire(wire, pool, files)
        if has_marks(pool):
            return point  # the job looks into it
        numbers, sample_indices = decode_samples(pool)
        if len(numbers) and int(numbers[-1]) >= files:
            raise OptionError("the state names a file that the list does not have: it is damaged")
        if point.tail_consumed > len(numbers):
            raise OptionError("the state is further in its tail than the tail is long: it is damaged")
        point._check_ends(numbers, sample_indices)
        return point

    @classmethod
    def fields_from_wire(cls, wire: Any, pool: bytes, files: int) -> SnapshotPoint:
        """Return the point that :meth:`to_wire` wrote, without a look into its pool. Raises OptionError, naming the
        field, for invalid values."""
        if not isinstance(wire, Mapping):
            raise _damaged("it", wire, "an object")
        if type(wire.get("ended")) is not bool:
            raise _damaged("ended", wire.get("ended"), "true or false")
        cycle = _cycle_from_wire(wire.get("lanes"), files)
        return cls(
            _number(wire, "index", _MAX_BATCH_INDEX),
            pool,
            wire["ended"],
            _number(wire, "offset"),
            _number(wire, "next_file", files),
            _number(wire, "current", max(0, len(cycle) - 1)),
            _number(wire, "left"),
            cycle,
            _number(wire, "taken"),
            _number(wire, "dropped"),
            _number({"bucket": 0, **wire}, "bucket"),
        )

    def _check_ends(self, files: npt.NDArray[np.int64], sample_indices: npt.NDArray[np.int64]) -> None:
        """Raise OptionError unless each file of the pool is in the cycle, or has a check behind its samples, and none
        begins behind the first sample that is needed of it."""
        checks, begins = decode_checksums(self.pool), dict(decode_begins(self.pool))
        positions = {cycle_file.file: cycle_file.sample_index for cycle_file in self.cycle}
        next_of = {**positions}
        first, last = np.flatnonzero(np.diff(files, prepend=-1)), np.flatnonzero(np.diff(files, append=-1))
        for file, lo, hi in zip(
            files[last].tolist(), sample_indices[first].tolist(), sample_indices[last].tolist(), strict=True
        ):
            if file not in next_of and checks.get(file, (0, 0))[0] <= hi:
                raise OptionError(f"the state lacks the checksum of file {file} of its pool: it is damaged")
            next_of[file] = min(lo, next_of.get(file, lo))
        for file, of in begins.items():
            if of[0][0] > next_of.get(file, -1) or (len(of) > 1 and of[-1][0] > positions.get(file, -1)):
                raise OptionError("the state begins in a file behind the samples that it needs: it is damaged")

    def validate(self, file_order: npt.NDArray[np.int64], max_cycle: int) -> None:
        """Raise OptionError unless this can be a point of a pass that wants files in this ``file_order``."""
        merged = file_order[: self.next_file]  # files that the merge has met
        cycle_files = [cycle_file.file for cycle_file in self.cycle]
        files, sample_indices = decode_samples(self.pool)
        if not np.isin(files, merged).all() or not np.isin(cycle_files, merged).all():
            raise OptionError("the state holds samples of files that were not reached yet: it is damaged")
        if (
            len(set(cycle_files)) != len(cycle_files)
            or len(cycle_files) > max_cycle
            or (self.next_file < len(file_order)) > bool(cycle_files)
        ):
            raise OptionError("the state does not say where in its files it stands: it is damaged")
        if self.in_tail and (cycle_files or self.next_file < len(file_order)):
            raise OptionError("the state is at the end of its files and in the middle of them: it is damaged")
        for cycle_file in self.cycle:
            if (sample_indices[files == cycle_file.file] >= cycle_file.sample_index).any() or (
                cycle_file.checksum_index and cycle_file.checksum_index < cycle_file.sample_index
            ):
                raise OptionError("the state stands before samples that it holds: it is damaged")


def _cycle_from_wire(lanes: Any, files: int) -> list[FilePosition]:
    if not isinstance(lanes, list | tuple):
        raise _damaged("lanes", lanes, "a list")
    cycle = []
    for at, lane in enumerate(lanes):
        name = f"lanes[{at}]"
        if not isinstance(lane, list | tuple) or len(lane) != 4 or not isinstance(lane[3], list | tuple):
            raise _damaged(name, lane, "[file, sample index, index of its checksum, [checksum]]")
        file, y, checksum_index = (
            _checked_int(name, value, most)
            for value, most in zip(lane, (files - 1, UNREACHED, UNREACHED), strict=False)
        )
        crcs = [_checked_int(name, value, _MAX_CRC) for value in lane[3]]
        if len(crcs) != (checksum_index > 0):
            raise _damaged(name, lane, "a checksum, or no index of one")
        cycle.append(FilePosition(file, y, checksum_index, crcs))
    return cycle


def _number(wire: Mapping[str, Any], name: str, most: int = UNREACHED) -> int:
    return _checked_int(name, wire.get(name), most)


def _checked_int(name: str, value: Any, most: int) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise _damaged(name, value, f"a number from 0 to {most}")
    return value


def _damaged(name: str, value: Any, need: str) -> OptionError:
    return OptionError(
        f"the state cannot be read: its point needs {need} as {name}, it has {value!r:.40}: it is damaged"
    )


# -- the pool of a point ---------------------------------------------------------------------------------------------
Begin = tuple[int, Sequence[int]]
"""Sample index at which a file may begin to run, and all running checksums there."""


@dataclass(frozen=True, slots=True)
class PoolChecks:
    """Checksums that belong to a pool: of each of its files, the sample index ``checks`` and the checksum there.

    ``begins``: of some files of pool and cycle, one or two sample indices from which they may be run, and all running
    checksums there.
    """

    checks: Ints
    checksums: Ints
    begins: Mapping[int, Sequence[Begin]] = field(default_factory=dict)


def encode_pool(samples: bytes, known: PoolChecks) -> bytes:
    """Return the set ``samples`` with what is ``known`` of its files."""
    count = len(known.checks)
    pool = samples + sample_set.encode_varints(known.checks) + known.checksums.astype("<u4").tobytes()
    if not known.begins:
        return _POOL_HEAD.pack(len(samples), count) + pool
    records = [(file, *begin) for file in sorted(known.begins) for begin in known.begins[file]]
    crcs = np.array([of for _, _, of in records], "<u4")
    numbers = np.array([crcs.shape[1], len(records), *(n for file, y, _ in records for n in (file, y))], np.int64)
    begins = sample_set.encode_varints(numbers) + crcs.tobytes()
    return _POOL_HEAD.pack(len(samples), count | _HAS_BEGINS) + _SIZE.pack(len(begins)) + pool + begins


def decode_samples(pool: bytes) -> tuple[Ints, Ints]:
    """Return files and sample indices of a pool, both int64, in the order of names. Raises OptionError for bytes that
    are no pool."""
    return sample_set.decode_set(_split_pool(pool)[0])


def decode_checksums(pool: bytes) -> Mapping[int, EndChecksum]:
    """Return the check and the checksum of each file of a pool that has them. Raises OptionError for bytes that are no
    pool."""
    samples, rest, _ = _split_pool(pool)
    count = _file_count(pool)
    try:
        files = sample_set.files_of_set(samples)
        ends = sample_set.decode_varints(rest[: -4 * count]) if count else np.empty(0, np.int64)
        checksums = np.frombuffer(rest[-4 * count :], "<u4") if count else np.empty(0, np.uint32)
        if not len(files) == len(ends) == len(checksums):
            raise ValueError("its checksums are not those of its files")
    except (ValueError, IndexError) as error:
        raise _damaged_pool(error) from None
    known = zip(files.tolist(), ends.tolist(), checksums.tolist(), strict=True)
    return {file: (end, checksum) for file, end, checksum in known if end}


def decode_begins(pool: bytes) -> Mapping[int, Sequence[Begin]]:
    """Return the files of a point that need not be read from their first sample, and where each may begin, in rising
    order. Raises OptionError for bytes that are no pool."""
    begins = _split_pool(pool)[2]
    if not begins:
        return {}
    try:
        crc_count, count = sample_set.decode_varints(sample_set.leading_varints(begins, 2)).tolist()
        crcs = np.frombuffer(begins[len(begins) - 4 * crc_count * count :], "<u4").reshape(count, crc_count)
        numbers = sample_set.decode_varints(begins[: len(begins) - crcs.nbytes])[2:]
        if len(numbers) != 2 * count or not count or not crc_count:
            raise ValueError("its begins are cut off")
    except (ValueError, IndexError) as error:
        raise _damaged_pool(error) from None
    found: dict[int, list[Begin]] = {}
    for file, y, of in zip(numbers[::2].tolist(), numbers[1::2].tolist(), crcs.tolist(), strict=True):
        found.setdefault(file, []).append((y, of))
    return found


def _file_count(pool: bytes) -> int:
    return int(_POOL_HEAD.unpack_from(pool)[1]) & ~_HAS_BEGINS


def _split_pool(pool: bytes) -> tuple[bytes, bytes, bytes]:
    """Return the set, the checks of its files, and the begins."""
    if len(pool) < _POOL_HEAD.size or (_file_count(pool) and len(pool) < _POOL_HEAD.size + _SIZE.size):
        raise _damaged_pool("it has no head")
    size, count = _POOL_HEAD.unpack_from(pool)
    begin, end = _POOL_HEAD.size, len(pool)
    if count & _HAS_BEGINS:
        end -= _SIZE.unpack_from(pool, begin)[0]
        begin += _SIZE.size
    edge = begin + size
    if end < edge + 5 * (count & ~_HAS_BEGINS):
        raise _damaged_pool("it is cut off")
    return pool[begin:edge], pool[edge:end], pool[end:]


def _damaged_pool(why: object) -> OptionError:
    return OptionError(f"the pool in the state cannot be read ({why}): the state is damaged")


# -- the point of a job whose rows are mixed or packed -----------------------------------------------------------------
_MARKS = b"\xff" * _POOL_HEAD.size  # no pool begins so: its set would have 4 GiB


def encode_marks(plain: Mapping[str, Any]) -> bytes:
    """Return plain data with bytes in the form of the pool of a point."""
    return _MARKS + encode_plain(dict(plain), "marks")


def has_marks(pool: bytes) -> bool:
    """Return True if :func:`encode_marks` made ``pool``."""
    return pool.startswith(_MARKS)


def decode_marks(pool: bytes) -> Mapping[str, Any]:
    """Return the data of which :func:`encode_marks` made ``pool``. Raises OptionError for other bytes."""
    if not has_marks(pool):
        raise _damaged_pool("it has no marks")
    try:
        plain = decode_plain(pool[len(_MARKS) :])
    except RemoteProtocolError as error:
        raise _damaged_pool(error) from None
    if not isinstance(plain, Mapping):
        raise _damaged_pool("its marks are no object")
    return plain
