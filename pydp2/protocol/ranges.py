"""The lists inside Assign and Chunk: one file to run, one range of a file. Checked when read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydp2.errors import RemoteProtocolError, sendable
from pydp2.protocol.messages import INT_LIMIT

OPEN, ENDED, RAISED = 0, 1, 2
"""State of a file after a range: it goes on, it ended, it ended with an error."""

SAMPLE_COST = 16
"""Added to the bytes of each sample where credit is counted: what the ledger itself needs for it."""
HOLE_COST = 512
"""What a dropped sample costs there until the merge has passed it: its reason travels and waits."""
MAX_WEIGHT = 1 << 40
"""Heaviest sample on the wire: sums over millions of such samples still fit 64 bits."""

_HOLE_TEXT, _HOLE_SLOT = 400, 100
_PART_BYTES, _TEXT_BYTES = 80, 16  # of the numbers, and of what stands around a text


def ints(what: str, values: Any, count: int) -> list[int]:
    """``values`` when it is a list of ``count`` numbers of the wire; raises RemoteProtocolError otherwise."""
    if not isinstance(values, list) or len(values) != count:
        raise RemoteProtocolError(f"{what}: expected a list of {count}")
    for value in values:
        if type(value) is not int or not 0 <= value <= INT_LIMIT:
            raise RemoteProtocolError(f"{what}: expected integers from 0 to 2**62, got {value!r:.40}")
    return values


def hole_bytes(slot: str, reason: str) -> int:
    """Bytes that a hole takes in a header at most."""
    return 2 * _TEXT_BYTES + sum(len(text.encode()) for text in _hole_texts(slot, reason))


def _hole_texts(slot: str, reason: str) -> list[str]:
    return [sendable(slot[:_HOLE_SLOT]), sendable(reason[:_HOLE_TEXT])]


@dataclass(slots=True)
class Assignment:
    """One file to run.

    ``start``: the committed ordinal, below which nothing is sent; ``crcs``: the checksum there (empty at 0);
    ``spent``: what those samples cost; ``limit``: cost up to which samples may be sent; ``pause``: ordinal at which to
    give way to other files until a later one is granted; ``bound``: the merge takes turns with it. Below ``ramp`` it is
    run by turns of ``turn`` samples with the others of its pass.

    Of a file that is read again for a pass taken up in its middle, samples below ``send_from`` are sent only when they
    are among the ordinals in raw frame ``frame`` - 1 of the message (0: none), nothing is needed from ``until`` on, and
    at ordinal ``check`` (0: nowhere) the folded checksum must be ``crc``.
    """

    file: int
    attempt: int
    position: int
    start: int
    spent: int
    limit: int
    pause: int
    bound: bool
    crcs: list[int]
    send_from: int = 0
    until: int = INT_LIMIT
    check: int = 0
    crc: int = 0
    frame: int = 0
    turn: int = 1
    ramp: int = 0

    def to_wire(self) -> list[Any]:
        """As a list of plain values."""
        return [
            self.file, self.attempt, self.position, self.start, self.spent, self.limit, self.pause,
            int(self.bound), self.crcs, self.send_from, self.until, self.check, self.crc, self.frame,
            self.turn, self.ramp,
        ]  # fmt: skip

    @classmethod
    def from_wire(cls, wire: Any) -> Assignment:
        """Inverse of :meth:`to_wire`; raises RemoteProtocolError."""
        if not isinstance(wire, list) or len(wire) != 16 or not isinstance(wire[8], list):
            raise RemoteProtocolError("Assign: malformed item")
        f = ints("Assign", wire[:8], 8)
        crcs = ints("Assign.crcs", wire[8], len(wire[8]))
        if wire[14] == 0:
            raise RemoteProtocolError("Assign: turns of no samples")
        return cls(f[0], f[1], f[2], f[3], f[4], f[5], f[6], bool(f[7]), crcs, *ints("Assign", wire[9:], 7))


@dataclass(slots=True)
class Part:
    """Ordinals ``first`` to ``first + count`` of a file: ``rows`` samples, the rest holes
    ``[y, slot, reason]``.

    Of a file that is read again in part, the others are samples that were not asked for.

    ``state`` after it is OPEN, ENDED or RAISED (then ``error``); ``crcs`` holds one number, the running checksums after
    it folded together: what the next attempt must come to is compared, never continued from. ``changed``: the samples
    before it are not those of the attempt before, and the file goes on all the same.
    """

    file: int
    attempt: int
    first: int
    count: int
    rows: int
    state: int
    crcs: list[int]
    holes: list[Any]
    error: dict[str, Any]
    changed: bool = False

    def to_wire(self) -> list[Any]:
        """As a list of plain values."""
        holes = [[y, *_hole_texts(slot, reason)] for y, slot, reason in self.holes]
        return [
            self.file, self.attempt, self.first, self.count, self.rows, self.state, self.crcs, holes, self.error,
            int(self.changed),
        ]  # fmt: skip

    @property
    def wire_bytes(self) -> int:
        """Bytes that it takes in a header at most."""
        error = sum(_TEXT_BYTES + len(key) + len(str(value).encode()) for key, value in self.error.items())
        return _PART_BYTES + sum(hole_bytes(slot, reason) for _, slot, reason in self.holes) + error

    @classmethod
    def from_wire(cls, wire: Any) -> Part:
        """Inverse of :meth:`to_wire`; raises RemoteProtocolError."""
        if not isinstance(wire, list) or len(wire) != 10:
            raise RemoteProtocolError("Chunk: malformed part")
        file, attempt, first, count, rows, state = ints("Chunk", wire[:6], 6)
        crcs, holes, error, changed = wire[6:]
        if not isinstance(crcs, list) or not isinstance(holes, list) or not isinstance(error, dict):
            raise RemoteProtocolError("Chunk: malformed part")
        ints("Chunk.crcs", crcs, len(crcs))
        last = first - 1
        for hole in holes:
            if not isinstance(hole, list) or [type(value) for value in hole] != [int, str, str]:
                raise RemoteProtocolError("Chunk: malformed hole")
            if not last < hole[0] < first + count:
                raise RemoteProtocolError("Chunk: a hole outside its range or out of order")
            last = hole[0]
        if state > RAISED or rows + len(holes) > count or (state == RAISED) != bool(error):
            raise RemoteProtocolError("Chunk: counts or state of a part contradict each other")
        return cls(file, attempt, first, count, rows, state, crcs, holes, error, bool(*ints("Chunk", [changed], 1)))
