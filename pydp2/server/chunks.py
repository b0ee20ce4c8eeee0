"""A chunk from the wire, as ranges that the ledger can commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from pydp2.errors import RemoteProtocolError
from pydp2.inputs import Columns
from pydp2.inputs.columns import Ints, frame_count
from pydp2.inputs.declaration import Declaration
from pydp2.inputs.placed import Placed
from pydp2.order import Run
from pydp2.order.saved import Recall
from pydp2.protocol.messages import Chunk
from pydp2.protocol.ranges import MAX_WEIGHT, Part
from pydp2.transport import buffers, views

Recalled = Callable[[Part], Recall | None]
"""What was asked for of a file that is read again in part; None for late output of an attempt given up."""
Taken = Callable[[Ints], Placed]
"""The rows that a worker has put in places. Raises RemoteProtocolError for places that are not its own."""


def ranges(
    chunk: Chunk,
    body: Sequence[memoryview],
    declaration: Declaration,
    recalled: Recalled = lambda _: None,
    *,
    keep: bool = True,
    taken: Taken | None = None,
) -> Iterator[tuple[Part, Run | None]]:
    """Each part of ``chunk`` with its samples. Everything is checked before the first is given.

    ``keep``: they may stay for long, so they get memory of their own; else they may lie in memory that is shared with
    the worker. ``taken``: what rows in places are; None: there are no places. Raises RemoteProtocolError when counts,
    frames and slots do not agree.
    """
    parts = [Part.from_wire(wire) for wire in chunk.parts]
    rows = chunk.rows
    if sum(part.rows for part in parts) != rows:
        raise RemoteProtocolError("Chunk: its parts do not add up to its rows")
    if not rows:
        if body:
            raise RemoteProtocolError("Chunk: frames without rows")
        return iter([(part, None) for part in parts])
    slots = declaration.slots
    arrays = buffers(body) if keep else views(body)
    frames = 1 if chunk.placed else frame_count(slots)
    if len(arrays) != frames + declaration.weighted:
        raise RemoteProtocolError(f"Chunk: expected {frames + declaration.weighted} frames, got {len(arrays)}")
    weights = None
    if declaration.weighted:
        if arrays[frames].nbytes != 8 * rows:
            raise RemoteProtocolError("Chunk: one weight for each row is needed")
        weights = arrays[frames].view(np.int64)
        if int(weights.min()) < 0 or int(weights.max()) > MAX_WEIGHT:
            raise RemoteProtocolError(f"Chunk: a weight that is not from 0 to {MAX_WEIGHT}")
    columns = _placed(rows, arrays[0], taken) if chunk.placed else Columns.from_frames(slots, rows, arrays[:frames])
    sizes = columns.sample_bytes()
    ordinals = np.empty(rows, np.int64)
    out: list[tuple[Part, Run | None]] = []
    lo = 0
    for part in parts:
        hi = lo + part.rows
        if not part.rows:
            out.append((part, None))
            continue
        skipped = part.count - part.rows - len(part.holes)
        if skipped and (recall := recalled(part)) is not None:
            ordinals[lo:hi] = _asked(part, recall)
        elif part.holes and not skipped:
            y = np.arange(part.first, part.first + part.count, dtype=np.int64)
            ordinals[lo:hi] = np.delete(y, [hole - part.first for hole, _, _ in part.holes])
        else:  # with samples left out that were asked for, the ledger will not take it
            ordinals[lo:hi] = np.arange(part.first, part.first + part.rows)
        out.append((part, Run(columns, lo, hi, ordinals, sizes, weights)))
        lo = hi
    return iter(out)


def _placed(rows: int, frame: npt.NDArray[np.uint8], taken: Taken | None) -> Placed:
    if taken is None or frame.nbytes != 8 * rows:
        raise RemoteProtocolError("Chunk: one place for each row is needed, of those that were granted")
    return taken(frame.view(np.int64))


def _asked(part: Part, recall: Recall) -> npt.NDArray[np.int64]:
    """The ordinals of the rows of a part that leaves out what was not asked for."""
    if part.holes or part.first + part.count > recall.start:
        raise RemoteProtocolError("Chunk: counts of a part contradict each other")
    lo, hi = np.searchsorted(recall.ordinals, [part.first, part.first + part.count])
    if hi - lo != part.rows:
        raise RemoteProtocolError(f"Chunk: {part.rows} samples where {hi - lo} were asked for")
    return recall.ordinals[lo:hi]
