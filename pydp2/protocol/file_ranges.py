"""Define the records in Assign and Chunk: a file to run, and a range of a file. They are checked when they are read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pydp2.errors import RemoteProtocolError, sendable
from pydp2.protocol.messages import INT_LIMIT

FILE_OPEN, FILE_ENDED, FILE_RAISED = 0, 1, 2
"""States of a file after a range: open, ended, ended with an error."""

SAMPLE_COST = 16
"""Number of bytes that credit counts for each sample beside its values, for its records in the ledger."""
DROPPED_COST = 512
"""Number of bytes that credit counts for a dropped sample until the merge has passed it, because its reason takes
memory."""
MAX_WEIGHT = 1 << 40
"""Largest weight of a sample on the wire: sums over millions of such samples still fit 64 bits."""
MAX_SIZE = 1 << 40
"""Largest number of bytes of a row on the wire, for the same reason."""

_MAX_REASON, _MAX_SLOT_NAME = 400, 100
_RANGE_BYTES, _CRC_BYTES, _TEXT_OVERHEAD = 80, 5, 16  # bytes of the numbers, and of the encoding around a text


def check_ints(what: str, values: Any, count: int) -> list[int]:
    """Return ``values`` if it is a list of ``count`` valid numbers; raise RemoteProtocolError otherwise."""
    if not isinstance(values, list) or len(values) != count:
        raise RemoteProtocolError(f"{what}: expected a list of {count}")
    for value in values:
        if type(value) is not int or not 0 <= value <= INT_LIMIT:
            raise RemoteProtocolError(f"{what}: expected integers from 0 to 2**62, got {value!r:.40}")
    return values


def dropped_bytes(slot: str, reason: str) -> int:
    """Return the largest number of bytes that a dropped sample takes in a header."""
    return 2 * _TEXT_OVERHEAD + sum(len(text.encode()) for text in _dropped_texts(slot, reason))


def _dropped_texts(slot: str, reason: str) -> list[str]:
    return [sendable(slot[:_MAX_SLOT_NAME]), sendable(reason[:_MAX_REASON])]


@dataclass(slots=True)
class FileAssignment:
    """File to run.

    ``begin``: sample index from which a provider that can start anywhere is run, not above ``start``; ``begin_crcs``:
    all running checksums there (empty at 0).
    ``start``: the committed sample index, below which nothing is sent; ``crcs``: the checksum there (empty at 0);
    ``spent_bytes``: credit that the samples before it took; ``limit``: credit up to which samples may be sent;
    ``pause``: sample index at which to switch to other files until a later one is granted; ``bound``: the merge takes
    turns with this file. Below ``ramp_until``, the worker switches to another file of the pass every ``block_length``
    samples.

    For a file that is read again, because a state resumed the pass: samples below ``send_from`` are sent only if their
    sample indices are in raw frame ``reread_frame`` - 1 of the message (0: none), samples from ``until`` on are not
    needed, and at sample index ``check_at`` (0: nowhere) the folded checksum must be ``check_crc``. A provider that
    yields chosen samples alone gives those below ``select_until`` so; from there on the file is run with the checksums
    ``select_crcs`` (empty: nothing is needed from there on).
    """

    file: int
    attempt: int
    position: int
    start: int
    spent_bytes: int
    limit: int
    pause: int
    bound: bool
    crcs: list[int]
    begin_crcs: list[int] = field(default_factory=list)
    select_crcs: list[int] = field(default_factory=list)
    send_from: int = 0
    until: int = INT_LIMIT
    check_at: int = 0
    check_crc: int = 0
    reread_frame: int = 0
    block_length: int = 1
    ramp_until: int = 0
    begin: int = 0
    select_until: int = 0

    def to_wire(self) -> list[Any]:
        """Return a list of plain values."""
        return [
            self.file,
            self.attempt,
            self.position,
            self.start,
            self.spent_bytes,
            self.limit,
            self.pause,
            int(self.bound),
            self.crcs,
            self.begin_crcs,
            self.select_crcs,
            self.send_from,
            self.until,
            self.check_at,
            self.check_crc,
            self.reread_frame,
            self.block_length,
            self.ramp_until,
            self.begin,
            self.select_until,
        ]

    @classmethod
    def from_wire(cls, wire: Any) -> FileAssignment:
        """Return the assignment that :meth:`to_wire` wrote. Raises RemoteProtocolError."""
        if not isinstance(wire, list) or len(wire) != 20 or not all(isinstance(crcs, list) for crcs in wire[8:11]):
            raise RemoteProtocolError("Assign: malformed item")
        f = check_ints("Assign", wire[:8], 8)
        crcs = [check_ints("Assign.crcs", crcs, len(crcs)) for crcs in wire[8:11]]
        if wire[16] == 0:
            raise RemoteProtocolError("Assign: turns of no samples")
        more = check_ints("Assign", wire[11:], 9)
        return cls(f[0], f[1], f[2], f[3], f[4], f[5], f[6], bool(f[7]), crcs[0], crcs[1], crcs[2], *more)


@dataclass(slots=True)
class FileRange:
    """Range of a file, from sample index ``first_index`` to below ``first_index + count``: ``rows`` samples, and the
    dropped samples ``[y, slot, reason]``.

    If the file is read again in part, the other samples of the range are those that were not asked for.

    ``state``: FILE_OPEN, FILE_ENDED or FILE_RAISED (then ``error``), the state after the range. ``crcs``: first the
    running checksums after the range, folded together, with which the next attempt is compared. If the provider can
    start anywhere, all of them follow: an attempt that begins behind the range continues from them. The list is empty
    if only chosen samples of the range were run.
    ``did_not_repeat``: the samples before the range differ from those of the attempt before, and the file goes on all
    the same.
    """

    file: int
    attempt: int
    first_index: int
    count: int
    rows: int
    state: int
    crcs: list[int]
    dropped: list[Any]
    error: dict[str, Any]
    did_not_repeat: bool = False

    def to_wire(self) -> list[Any]:
        """Return a list of plain values."""
        dropped_samples = [[y, *_dropped_texts(slot, reason)] for y, slot, reason in self.dropped]
        return [
            self.file,
            self.attempt,
            self.first_index,
            self.count,
            self.rows,
            self.state,
            self.crcs,
            dropped_samples,
            self.error,
            int(self.did_not_repeat),
        ]

    @property
    def wire_bytes(self) -> int:
        """Largest number of bytes that the range takes in a header."""
        error = sum(_TEXT_OVERHEAD + len(key) + len(str(value).encode()) for key, value in self.error.items())
        dropped = sum(dropped_bytes(slot, reason) for _, slot, reason in self.dropped)
        return _RANGE_BYTES + _CRC_BYTES * len(self.crcs) + dropped + error

    @classmethod
    def from_wire(cls, wire: Any) -> FileRange:
        """Return the range that :meth:`to_wire` wrote. Raises RemoteProtocolError."""
        if not isinstance(wire, list) or len(wire) != 10:
            raise RemoteProtocolError("Chunk: malformed part")
        crcs, dropped_samples, error, changed = wire[6:]
        file, attempt, first, count, rows, state, changed = check_ints("Chunk", [*wire[:6], changed], 7)
        if not isinstance(crcs, list) or not isinstance(dropped_samples, list) or not isinstance(error, dict):
            raise RemoteProtocolError("Chunk: malformed part")
        check_ints("Chunk.crcs", crcs, len(crcs))
        last = first - 1
        for dropped_sample in dropped_samples:
            if not isinstance(dropped_sample, list) or [type(value) for value in dropped_sample] != [int, str, str]:
                raise RemoteProtocolError("Chunk: malformed hole")
            if not last < dropped_sample[0] < first + count:
                raise RemoteProtocolError("Chunk: a hole outside its range or out of order")
            last = dropped_sample[0]
        if state > FILE_RAISED or rows + len(dropped_samples) > count or (state == FILE_RAISED) != bool(error):
            raise RemoteProtocolError("Chunk: counts or state of a part contradict each other")
        return cls(
            file,
            attempt,
            first,
            count,
            rows,
            state,
            crcs,
            dropped_samples,
            error,
            bool(changed),
        )
