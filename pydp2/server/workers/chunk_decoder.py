"""Decode a chunk from the wire into ranges that the ledger can commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from pydp2.data.columns.columns import Columns, Ints, frame_count
from pydp2.data.rowstore.base import ClaimRows, UnstoredRows
from pydp2.data.schema.provider_schema import Schema
from pydp2.errors import RemoteProtocolError
from pydp2.order.sample_source import SampleRun
from pydp2.order.snapshot import Reread
from pydp2.protocol.file_ranges import MAX_WEIGHT, FileRange
from pydp2.protocol.messages import Chunk
from pydp2.transport import array_views, owned_arrays

WantedSamples = Callable[[FileRange], Reread | None]
"""Function that returns the :class:`Reread` of a range, if its file is read again in part; None also for late output of
an attempt that has ended."""
DecodedRange = tuple[FileRange, SampleRun | None]
"""Range of a file, and its samples, None if it has none. A run that is not committed has to be released."""


def decode_chunk(
    chunk: Chunk,
    body: Sequence[memoryview],
    schema: Schema,
    wanted_samples: WantedSamples = lambda _: None,
    *,
    copy: bool = True,
    claim: ClaimRows | None = None,
) -> list[DecodedRange]:
    """Return each part of ``chunk`` with its samples.

    ``copy``: copy the samples, because they may stay for long; otherwise they may be in memory that is shared with the
    worker. ``claim``: function that claims rows in cells or on hosts; None if there may be none. Raises
    RemoteProtocolError if counts, frames and slots do not agree.
    """
    parts = [FileRange.from_wire(part) for part in chunk.parts]
    rows = chunk.rows
    if sum(part.rows for part in parts) != rows:
        raise RemoteProtocolError("Chunk: its parts do not add up to its rows")
    if not rows:
        if body:
            raise RemoteProtocolError("Chunk: frames without rows")
        return [(part, None) for part in parts]
    slots = schema.slots
    arrays = owned_arrays(body) if copy else array_views(body)
    names = chunk.naming_frames
    frames = names or frame_count(slots)
    if len(arrays) != frames + schema.weighted:
        raise RemoteProtocolError(f"Chunk: expected {frames + schema.weighted} frames, got {len(arrays)}")
    weights = None
    if schema.weighted:
        if arrays[frames].nbytes != 8 * rows:
            raise RemoteProtocolError("Chunk: one weight for each row is needed")
        weights = arrays[frames].view(np.int64)
        if int(weights.min()) < 0 or int(weights.max()) > MAX_WEIGHT:
            raise RemoteProtocolError(f"Chunk: a weight that is not from 0 to {MAX_WEIGHT}")
    columns: UnstoredRows
    if not names:
        columns = Columns.from_frames(slots, rows, arrays[:frames])
    elif claim is None:
        raise RemoteProtocolError("Chunk: the names of rows, from a worker whose rows come as columns")
    else:
        columns = claim(rows, arrays[:frames])
    try:
        return _ranges_with_runs(parts, columns, weights, wanted_samples)
    except RemoteProtocolError:
        columns.release()
        raise


def _ranges_with_runs(
    parts: Sequence[FileRange], columns: UnstoredRows, weights: Ints | None, wanted_samples: WantedSamples
) -> list[DecodedRange]:
    """Return each of ``parts`` with its share of ``columns``."""
    sizes = columns.sample_bytes()
    sample_indices = np.empty(columns.rows, np.int64)
    out: list[DecodedRange] = []
    lo = 0
    for part in parts:
        hi = lo + part.rows
        if not part.rows:
            out.append((part, None))
            continue
        skipped = part.count - part.rows - len(part.dropped)
        if skipped and (reread := wanted_samples(part)) is not None:
            sample_indices[lo:hi] = _wanted_indices(part, reread)
        elif part.dropped and not skipped:
            y = np.arange(part.first_index, part.first_index + part.count, dtype=np.int64)
            sample_indices[lo:hi] = np.delete(
                y, [dropped_sample - part.first_index for dropped_sample, _, _ in part.dropped]
            )
        else:  # if samples are missing here, the ledger will refuse the range
            sample_indices[lo:hi] = np.arange(part.first_index, part.first_index + part.rows)
        out.append((part, SampleRun(columns, lo, hi, sample_indices, sizes, weights)))
        lo = hi
    return out


def commit_chunk(decoded: Sequence[DecodedRange], commit: Callable[[FileRange, SampleRun | None], None]) -> None:
    """Call ``commit`` for each range. If it raises, release the samples of that range and of those behind it."""
    committed = 0
    try:
        for part, run in decoded:
            commit(part, run)
            committed += 1
    finally:
        for _, run in decoded[committed:]:
            if run is not None:
                run.release()


def _wanted_indices(part: FileRange, reread: Reread) -> npt.NDArray[np.int64]:
    """Return the sample indices of the rows of ``part``, which has only the samples that ``reread`` asks for."""
    if part.dropped or part.first_index + part.count > reread.start:
        raise RemoteProtocolError("Chunk: counts of a part contradict each other")
    lo, hi = np.searchsorted(reread.sample_indices, [part.first_index, part.first_index + part.count])
    if hi - lo != part.rows:
        raise RemoteProtocolError(f"Chunk: {part.rows} samples where {hi - lo} were asked for")
    return reread.sample_indices[lo:hi]
