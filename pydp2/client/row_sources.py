"""Get the rows of batches, wherever they are: in the message, in memory that the service shows, or on hosts.

A message may carry the columns of its batches. It may have the numbers of rows in memory of the service, which is
mapped here: they are gathered into memory of the trainer's own, small batches some at a time, when the first of them is
taken, and large ones each by itself. Or it says where rows lie elsewhere; these are fetched (:mod:`.row_fetcher`) from
the time on at which the message is read. Only this module knows which of the three it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from pydp2.client.row_fetcher import RemoteRows, RowFetcher
from pydp2.client.row_kinds import RowKind
from pydp2.data.columns.columns import Columns, Ints, free_kept_memory, offsets
from pydp2.data.rowstore.reader import SharedRows, shared_rows_of
from pydp2.data.schema.input_types import Slots
from pydp2.errors import RemoteProtocolError
from pydp2.protocol import messages as m
from pydp2.protocol.batch_packing import MAX_PACK_BYTES
from pydp2.transport import owned_arrays
from pydp2.transport.keys import KeyPair
from pydp2.transport.shared_region import map_region


class MappedRows:
    """Rows ``numbers`` of the memory ``shared_rows``, of ``nbytes`` bytes, gathered once they are wanted."""

    __slots__ = ("_columns", "_nbytes", "_numbers", "_shared_rows")

    is_here = True

    def __init__(self, shared_rows: SharedRows, numbers: Ints, nbytes: int) -> None:
        self._shared_rows, self._numbers, self._nbytes = shared_rows, numbers, nbytes
        self._columns: Columns | None = None

    @property
    def is_gathered(self) -> bool:
        """True once the rows are here."""
        return self._columns is not None

    def sizes(self, lo: int, hi: int) -> tuple[int, int]:
        """Return the bytes that the service keeps for rows ``lo`` to ``hi`` until they are taken, and their bytes as
        columns, 0 before they are gathered; both if rows are alike."""
        rows, cost = hi - lo, self._shared_rows.row_cost
        nbytes = self._nbytes * rows // (len(self._numbers) or 1)
        return nbytes if cost is None else cost * rows, 0 if self._columns is None else nbytes

    def columns(self, lo: int, hi: int) -> Columns:
        """Return rows ``lo`` to ``hi``. Raises RemoteProtocolError if they lie nowhere, StaleRows if their
        cells hold others by now."""
        if self._columns is None:
            try:
                self._columns = self._shared_rows.take(self._numbers)
            except (IndexError, ValueError) as error:
                raise RemoteProtocolError(f"BatchHead: rows that do not lie in the cache ({error})") from None
            self._nbytes = self._columns.nbytes
        return self._columns if hi - lo == len(self._numbers) else self._columns.slice(lo, hi)


Rows = Columns | tuple[MappedRows | RemoteRows, int, int]
"""Rows of a batch: columns, or a part of rows that are gathered together."""


class RowSources:
    """Sources of rows with ``slots`` for a client with the keys ``key_pair``; None: it has none, or asks for no rows.

    ``shared_rows``: memory of the service, its cache or its rows, once it is known that it can be read.
    """

    def __init__(
        self, slots: Slots | None = None, key_pair: KeyPair | None = None, shared_rows: SharedRows | None = None
    ) -> None:
        self.slots, self._key_pair, self.shared_rows = slots, key_pair, shared_rows
        self.kind: RowKind | None = None
        """What the rows of batches are; None: samples."""
        self._fetcher: RowFetcher | None = None  # once there are rows elsewhere
        self.must_read_ahead = False
        """True if messages have to be read before their batches are wanted, because rows are asked for then."""

    def map_memory(self, descriptor: int, note: bytes) -> bool:
        """Map the memory that a service shows, to be read. Return False if it cannot be had here."""
        try:
            if self.slots is not None:
                self.shared_rows = shared_rows_of(self.slots, note, lambda size: map_region(descriptor, size))
        except (OSError, ValueError, OverflowError):  # no room for so many addresses, or it is something else
            self.shared_rows = None
        return self.shared_rows is not None

    def rows_of(self, head: m.BatchHead, counts: Sequence[int], frames: Sequence[memoryview]) -> Iterable[Rows]:
        """Return the rows of each batch of the message ``head``, which have ``counts`` rows. Raises
        RemoteProtocolError."""
        if head.elsewhere and self._fetcher is not None:
            return self._fetcher.parts(head.request_id, head.batch_index)
        if head.shared_rows:
            return _mapped_rows(head, counts, frames, self.shared_rows)
        if self.slots is None:
            raise RemoteProtocolError("BatchHead: for a client that asks for no rows")
        columns = Columns.from_frames(self.slots, sum(counts), owned_arrays(frames))
        if len(counts) == 1:
            return [columns]
        return [columns.slice(end - count, end) for count, end in zip(counts, accumulate(counts), strict=True)]

    # -- rows that have to be fetched ------------------------------------------------------------------------------
    def fetch(self, head: m.BatchHead, counts: Sequence[int], frames: Sequence[memoryview]) -> None:
        """Ask for the rows of the message ``head`` that lie elsewhere. Raises RemoteProtocolError."""
        if self.slots is None or self._key_pair is None:
            raise RemoteProtocolError("BatchHead: rows on hosts, for a client without keys")
        if self._fetcher is None:
            self.must_read_ahead = True  # first: an exception may come between, and no batch goes without its rows
            self._fetcher = RowFetcher(self.slots, self._key_pair)
        self._fetcher.begin(head, counts, frames)

    def note_taken(self, head: m.BatchHead) -> None:
        """Note that batches have replaced the message ``head``."""
        if self._fetcher is not None:
            self._fetcher.note_taken(head.request_id, head.batch_index)

    def drop(self, head: m.BatchHead) -> None:
        """Forget what was asked for because of the message ``head``: its run was left."""
        if self._fetcher is not None:
            self._fetcher.drop(head.request_id, head.batch_index)

    def forget(self) -> None:
        """Forget all that was asked for: a new run begins."""
        if self._fetcher is not None:
            self._fetcher.forget()

    def receive(self, seconds: float, others: Sequence[Any]) -> None:
        """Take in rows that came; wait up to ``seconds`` for some, or until one of ``others`` is readable."""
        if self._fetcher is not None:
            if seconds:
                self._fetcher.wait(int(seconds * 1000), others)
            self._fetcher.receive()

    def report_missing(self, rows: Rows) -> m.RowsUnreachable | None:
        """Return what tells the service that ``rows`` are waited for no longer, before a new run; None: they may still
        come."""
        fetched = None if isinstance(rows, Columns) else rows[0]
        if self._fetcher is None or not isinstance(fetched, RemoteRows):
            return None
        addresses = self._fetcher.unreachable(fetched)
        return m.RowsUnreachable(addresses) if addresses else None

    def close(self) -> None:
        """Close the connections, and drop the memory."""
        if self._fetcher is not None:
            self._fetcher.close()
        self._fetcher = self.shared_rows = None
        free_kept_memory()
        self.must_read_ahead = False


def _mapped_rows(
    head: m.BatchHead, counts: Sequence[int], frames: Sequence[memoryview], shared_rows: SharedRows | None
) -> Iterator[tuple[MappedRows, int, int]]:
    """Yield for each batch of the message ``head``, which have ``counts`` rows, the rows that it is gathered with, and
    its part of them. Raises RemoteProtocolError for numbers of rows that cannot be."""
    if shared_rows is None or head.shared_rows > shared_rows.layout.max_rows:
        raise RemoteProtocolError(f"BatchHead: rows of a cache of {head.shared_rows}, which is not known here")
    rows = sum(counts)
    if len(frames) != 1 or frames[0].nbytes != 8 * rows:
        raise RemoteProtocolError("BatchHead: one frame with the number of each row is needed")
    numbers = np.frombuffer(frames[0], "<i8").astype(np.int64)
    where = shared_rows.resolve(numbers)
    if rows and not 0 <= int(where.min()) <= int(where.max()) < head.shared_rows:
        raise RemoteProtocolError(f"BatchHead: a row that is not among the {head.shared_rows} of the cache")
    edges = np.cumsum([0, *counts])
    nbytes = offsets(shared_rows.row_sizes(numbers))[edges].tolist()
    edges = edges.tolist()
    begin = 0
    while begin < len(counts):
        end = begin + 1
        while end < len(counts) and nbytes[end + 1] - nbytes[begin] <= MAX_PACK_BYTES:
            end += 1
        together = MappedRows(shared_rows, numbers[edges[begin] : edges[end]], nbytes[end] - nbytes[begin])
        for i in range(begin, end):
            yield together, edges[i] - edges[begin], edges[i + 1] - edges[begin]
        begin = end
