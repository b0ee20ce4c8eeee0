"""Make the batch of a trainer from the rows that came: samples, rows of a mixture, or packed rows (docs/mixing.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pydp2.data.columns.batch import Batch, Origin, StringArray
from pydp2.data.columns.columns import Columns
from pydp2.data.columns.packed_batch import PackedBatch, packed_columns, slots_of_indices, view_slots
from pydp2.data.schema.input_types import Slots
from pydp2.errors import RemoteProtocolError
from pydp2.protocol.messages import BatchHead
from pydp2.protocol.stream_identity import check_int


class MixedBatch(Batch):
    """Batch of a mixture. ``source``: ``(rows,)`` int32, the number of the source that each row is from, in the order
    in which the sources were given. See docs/mixing.md."""

    __slots__ = ("source",)

    source: NDArray[np.int32]


class RowKind:
    """Rows of a job that are samples. ``slots``: those of its batches; ``converted_slots``: the same for adapters of
    frameworks. ``starts``: number of the first file of each source."""

    def __init__(self, slots: Slots, starts: Sequence[int] = (0,)) -> None:
        self.slots = self.converted_slots = slots
        self.starts = np.array(starts, np.int64)

    def batch(self, columns: Columns, origins: memoryview | None, **fields: Any) -> Batch:
        """Return the batch with the rows ``columns``. ``origins``: int64 ``(rows, 2)`` as bytes, or None; ``fields``:
        the other arguments of :class:`Batch`. Raises RemoteProtocolError for rows that cannot be."""
        batch = Batch(columns, **fields)
        batch._origin = origins if len(self.starts) < 2 else self.origin(origins)
        return batch

    def origin(self, origins: memoryview | None) -> Origin | None:
        """Return the origins of rows, with their source and entries of its list if there are several sources."""
        if origins is None:
            return None
        file, sample = np.frombuffer(origins, np.int64).reshape(-1, 2).T.copy()
        return self.with_source(Origin(file, sample))

    def by_source(self, files: StringArray) -> StringArray | tuple[StringArray, ...]:
        """Return ``files``, the entries of the file list, or with several sources those of each source."""
        if len(self.starts) < 2:
            return files
        edges = [*self.starts.tolist(), len(files)]
        return tuple(files[low:high] for low, high in pairwise(edges))

    def with_source(self, origin: Origin) -> Origin:
        """Return ``origin``, whose entries are numbers of files, with entries of the list of each source."""
        if len(self.starts) < 2:
            return origin
        source = np.searchsorted(self.starts, origin.entry, side="right") - 1
        return Origin(origin.entry - self.starts[source], origin.sample, source)


class MixedRows(RowKind):
    """Rows of a mixture. ``gives_origins``: its batches have an origin."""

    def __init__(self, slots: Slots, starts: Sequence[int], *, gives_origins: bool) -> None:
        super().__init__(slots, starts)
        self._gives_origins = gives_origins

    def batch(self, columns: Columns, origins: memoryview | None, **fields: Any) -> MixedBatch:
        if origins is None and columns.rows:
            raise RemoteProtocolError("BatchHead: rows of a mixture need origins")
        batch = MixedBatch(columns, **fields)
        found = self.origin(origins)
        source = None if found is None else found.source
        batch.source = np.zeros(columns.rows, np.int32) if source is None else source.astype(np.int32)
        batch._origin = found if self._gives_origins else None
        return batch


class PackedRows(RowKind):
    """Packed rows of ``length`` tokens, with the slots ``wire`` where they come from."""

    def __init__(self, wire: Slots, starts: Sequence[int], length: int, *, gives_origins: bool) -> None:
        super().__init__(view_slots(wire, length), starts)
        self.converted_slots = slots_of_indices(self.slots)
        self._length, self._gives_origins = length, gives_origins

    def batch(self, columns: Columns, origins: memoryview | None, **fields: Any) -> PackedBatch:
        made, segments, origin = packed_columns(columns, self.slots, self._length)
        batch = PackedBatch(made, **fields)
        batch.segments, batch.length = segments, self._length
        batch._origin = self.with_source(origin) if self._gives_origins else None
        return batch


def row_kind(slots: Slots, service: Mapping[str, Any], *, gives_origins: bool) -> RowKind:
    """Return the kind of the rows with ``slots`` of a job, as the ``service`` says. Raises RemoteProtocolError for an
    unknown kind."""
    try:
        kind = service.get("rows", {"kind": "samples"})
        starts = [check_int(first) for _, first in service.get("sources", [["", 0]])]
        match kind["kind"]:
            case "samples":
                return RowKind(slots, starts)
            case "mixed":
                return MixedRows(slots, starts, gives_origins=gives_origins)
            case "packed":
                return PackedRows(slots, starts, check_int(kind["length"], 1), gives_origins=gives_origins)
        raise ValueError(f"{kind!r:.80} is no kind of rows")
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise RemoteProtocolError(f"Welcome: invalid rows: {error}") from None


def batch_of(
    kind: RowKind | None, columns: Columns, head: BatchHead, pass_id: int, origins: memoryview | None
) -> Batch:
    """Return the batch that ``head`` announced, with the rows ``columns``. ``kind``: what they are; None: samples of a
    service with one source."""
    fields: dict[str, Any] = {
        "pass_id": pass_id,
        "index": head.batch_index,
        "size": head.size,
        "pool_weight": head.pool_weight,
        "padding": head.padding,
        "bucket": head.bucket.get("longest") or None,
        "group_bucket": head.bucket.get("group_longest") or None,
    }
    if kind is not None:
        return kind.batch(columns, origins, **fields)
    batch = Batch(columns, **fields)
    batch._origin = origins
    return batch
