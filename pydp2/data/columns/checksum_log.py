"""Log the checksums of files that a merge took samples of since a point of its pass (docs/order.md, "State").

A point has checksums of the files that it needs. The batches between the point and a position are made again, from
files of which the point knows nothing, so a position has checksums of these. A service logs them as the merge comes to
them, the records that are new travel with the batch that follows, and a client appends them to a log of its own: a
position is a log and the number of its records that count. More records than it needs do no harm, because they are of
the same pass. :class:`FileChecksums` is what comes of it, with the last record of each file; it is saved and compared.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pydp2.data.columns.sample_set import VARINT_BYTES, decode_varints, encode_varints, leading_varints
from pydp2.errors import OptionError

Ints = npt.NDArray[np.int64]
_FIELDS = 3  # of a record: file, twice the sample index (and 1 if the file ended there), checksum
RECORD_BYTES = 8 * _FIELDS
_CHECKSUM_BYTES = 4
_LIMIT = 1 << 62


class FileChecksum(NamedTuple):
    """Checksum of all samples of a file before ``sample_index``. ``is_end``: the file has no more."""

    sample_index: int
    checksum: int
    is_end: bool


@dataclass(frozen=True, slots=True, eq=False)
class LoggedChecksums:
    """First ``size`` numbers of a log, which only grows."""

    values: array[int] = field(default_factory=lambda: array("q"))
    size: int = 0

    def since(self, before: LoggedChecksums | None) -> bytes:
        """Return the records that came after ``before``, as bytes; all if ``before`` is of another log."""
        first = before.size if before is not None and before.values is self.values else 0
        return self.values[first : self.size].tobytes()

    def extended(self, records: bytes) -> LoggedChecksums:
        """Return these checksums and the ``records`` of :meth:`since` behind them. The log is shared as long as nothing
        else follows in it."""
        if not records:
            return self
        is_last = len(self.values) == self.size and self.values is not NO_CHECKSUMS.values
        values = self.values if is_last else self.values[: self.size]
        values.frombytes(records)
        return LoggedChecksums(values, len(values))

    def whole(self) -> LoggedChecksums:
        """Return all that was noted in the log since, too."""
        return LoggedChecksums(self.values, len(self.values))

    def by_file(self) -> FileChecksums:
        """Return the last record of each file: what comes later in a file covers what comes before it."""
        files, marks, checksums = np.array(self.values[: self.size], np.int64).reshape(-1, _FIELDS).T
        order = np.lexsort((marks, files))
        last = order[np.flatnonzero(np.diff(files[order], append=-1))]
        return FileChecksums(files[last], marks[last], checksums[last])


NO_CHECKSUMS = LoggedChecksums()
"""No checksums; nothing is added to this log."""


class ChecksumLog:
    """Log of checksums, to which a merge adds."""

    def __init__(self, begin: LoggedChecksums = NO_CHECKSUMS) -> None:
        self._values = begin.values[: begin.size]

    def note(self, file: int, known: FileChecksum) -> None:
        """Note what is ``known`` of ``file``."""
        self._values.extend((file, 2 * known.sample_index + known.is_end, known.checksum))

    def view(self) -> LoggedChecksums:
        """Return the checksums noted so far."""
        return LoggedChecksums(self._values, len(self._values))


@dataclass(frozen=True, slots=True, eq=False)
class FileChecksums:
    """Checksum of each of ``files``, which are in order, each once. ``marks``: twice the sample index, and 1 more if
    the file ended there."""

    files: Ints
    marks: Ints
    checksums: Ints

    def of(self, file: int) -> FileChecksum | None:
        """Return the checksum of ``file``, None if there is none."""
        if not len(self.files):  # as in a pass from its start, for each of its files
            return None
        at = int(np.searchsorted(self.files, file))
        if at == len(self.files) or int(self.files[at]) != file:
            return None
        mark = int(self.marks[at])
        return FileChecksum(mark >> 1, int(self.checksums[at]), bool(mark & 1))

    def logged(self) -> LoggedChecksums:
        """Return the same as records of a log."""
        records = np.stack([self.files, self.marks, self.checksums], axis=1).astype(np.int64)
        return LoggedChecksums().extended(records.tobytes())

    def encode(self) -> bytes:
        """Return the checksums as bytes, 6 or 7 for a file: number of files, differences of file numbers and marks as
        varints, then the checksums, each uint32."""
        if not len(self.files):
            return b""
        numbers = [np.array([len(self.files)]), np.diff(self.files, prepend=-1) - 1, self.marks]
        return encode_varints(np.concatenate(numbers)) + self.checksums.astype("<u4").tobytes()


def decode_checksums(data: bytes, files: int = _LIMIT) -> FileChecksums:
    """Return the checksums that :meth:`FileChecksums.encode` encoded, for a list of ``files`` files. Raises OptionError
    for bytes that are none."""
    try:
        found = _decode(data)
        if len(found.files) and int(found.files[-1]) >= files:
            raise ValueError(f"file {found.files[-1]} is not in the list")
    except (ValueError, IndexError) as error:
        raise OptionError(f"the checksums in the state cannot be read ({error}): the state is damaged") from None
    return found


def _decode(data: bytes) -> FileChecksums:
    if not data:
        return LoggedChecksums().by_file()
    head = leading_varints(data[:VARINT_BYTES], 1)
    count_end, count = len(head), int(decode_varints(head)[0])
    edge = len(data) - _CHECKSUM_BYTES * count
    if edge < count_end + 2 * count:
        raise ValueError("they are cut off")
    numbers = decode_varints(data[count_end:edge]) if count else np.empty(0, np.int64)
    if not count or len(numbers) != 2 * count:
        raise ValueError("their counts do not agree")
    files = np.cumsum(numbers[:count] + 1) - 1
    if int(numbers.max()) >= _LIMIT or int(np.diff(files, prepend=-1).min()) < 1:
        raise ValueError("a number is too large")
    return FileChecksums(files, numbers[count:], np.frombuffer(data[edge:], "<u4").astype(np.int64))


def joined(parts: Iterable[LoggedChecksums]) -> LoggedChecksums:
    """Return the records of all ``parts``, one behind the other."""
    found = LoggedChecksums()
    for part in parts:
        found = found.extended(part.since(None))
    return found


def are_records(records: bytes) -> bool:
    """Return True if ``records``, which came from elsewhere, are records of a log."""
    if len(records) % RECORD_BYTES:
        return False
    values = np.frombuffer(records, np.int64)
    return 0 <= int(values.min(initial=0)) <= int(values.max(initial=0)) < _LIMIT
