"""Define the lists inside Assign and Chunk: one file to run, one range of a file. They are checked when read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydp2.errors import RemoteProtocolError, sendable
from pydp2.protocol.messages import INT_LIMIT

FILE_OPEN, FILE_ENDED, FILE_RAISED = 0, 1, 2
"""States of a file after a range: it goes on, it ended, it ended with an error."""

SAMPLE_COST = 16
"""Number of bytes that credit counts for each sample beside its own: what the ledger needs for it."""
DROPPED_COST = 512
"""Number of bytes that credit counts for a dropped sample until the merge has passed it: its
reason travels and waits."""
MAX_WEIGHT = 1 << 40
"""Weight of the heaviest sample on the wire: sums over millions of such samples still fit 64 bits."""
MAX_SIZE = 1 << 40
"""Number of bytes of the largest row on the wire, for the same reason."""

_MAX_REASON, _MAX_SLOT_NAME = 400, 100
_RANGE_BYTES, _TEXT_OVERHEAD = 80, 16  # bytes of the numbers, and of what stands around a text


def check_ints(what: str, values: Any, count: int) -> list[int]:
    """Return ``values`` if it is a list of ``count`` numbers of the wire; raise RemoteProtocolError otherwise."""
    if not isinstance(values, list) or len(values) != count:
        raise RemoteProtocolError(f"{what}: expected a list of {count}")
    for value in values:
        if type(value) is not int or not 0 <= value <= INT_LIMIT:
            raise RemoteProtocolError(f"{what}: expected integers from 0 to 2**62, got {value!r:.40}")
    return values


def dropped_bytes(slot: str, reason: str) -> int:
    """Return how many bytes a dropped sample takes in a header at most."""
    return 2 * _TEXT_OVERHEAD + sum(len(text.encode()) for text in _dropped_texts(slot, reason))


def _dropped_texts(slot: str, reason: str) -> list[str]:
    return [sendable(slot[:_MAX_SLOT_NAME]), sendable(reason[:_MAX_REASON])]


@dataclass(slots=True)
class FileAssignment:
    """File to run.

    ``start``: the committed sample index, below which nothing is sent; ``crcs``: the checksum there (empty at 0);
    ``spent_bytes``: what those samples cost; ``limit``: cost up to which samples may be sent; ``pause``: sample index
    at which to give way to other files until a later one is granted; ``bound``: the merge takes turns with it. Below
    ``ramp_until`` it is run by turns of ``block_length`` samples with the others of its pass.

    Of a file that is read again for a pass taken up in its middle, samples below ``send_from`` are sent only when they
    are among the sample indices in raw frame ``reread_frame`` - 1 of the message (0: none), nothing is needed from
    ``until`` on, and at sample index ``check_at`` (0: nowhere) the folded checksum must be ``check_crc``.
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
    send_from: int = 0
    until: int = INT_LIMIT
    check_at: int = 0
    check_crc: int = 0
    reread_frame: int = 0
    block_length: int = 1
    ramp_until: int = 0

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
            self.send_from,
            self.until,
            self.check_at,
            self.check_crc,
            self.reread_frame,
            self.block_length,
            self.ramp_until,
        ]

    @classmethod
    def from_wire(cls, wire: Any) -> FileAssignment:
        """Return the assignment that :meth:`to_wire` wrote. Raises RemoteProtocolError."""
        if not isinstance(wire, list) or len(wire) != 16 or not isinstance(wire[8], list):
            raise RemoteProtocolError("Assign: malformed item")
        f = check_ints("Assign", wire[:8], 8)
        crcs = check_ints("Assign.crcs", wire[8], len(wire[8]))
        if wire[14] == 0:
            raise RemoteProtocolError("Assign: turns of no samples")
        return cls(f[0], f[1], f[2], f[3], f[4], f[5], f[6], bool(f[7]), crcs, *check_ints("Assign", wire[9:], 7))


@dataclass(slots=True)
class FileRange:
    """Range of a file, sample indices ``first_index`` to ``first_index + count``: ``rows`` samples, the rest dropped
    samples ``[y, slot, reason]``.

    Of a file that is read again in part, the others are samples that were not asked for.

    ``state`` after it is FILE_OPEN, FILE_ENDED or FILE_RAISED (then ``error``); ``crcs`` holds one number, the running
    checksums after it folded together: the next attempt is compared with it, never continued from it.
    ``did_not_repeat``: the samples before it are not those of the attempt before, and the file goes on all the same.
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
        """Number of bytes that it takes in a header at most."""
        error = sum(_TEXT_OVERHEAD + len(key) + len(str(value).encode()) for key, value in self.error.items())
        return _RANGE_BYTES + sum(dropped_bytes(slot, reason) for _, slot, reason in self.dropped) + error

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
