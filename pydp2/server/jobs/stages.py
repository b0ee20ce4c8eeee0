"""Give the rows of a job batch by batch, through stages: from files, mixed by weights, packed into rows of tokens.

Theory of operation
-------------------
A *stage* gives batches of rows, one after the other: :class:`FilesStage` those of the files of one source,
:class:`~pydp2.server.jobs.mixing.MixStage` rows drawn from several stages, and
:class:`~pydp2.server.jobs.packing.PackStage` packed rows. No stage ever waits: where a file has not come so far, it
returns None, keeps what it has in hand, and goes on from there when it is called again.

A stage has a *mark*: where its next batch begins. A mark is a small immutable value, and it is complete: a stage that
is opened at it gives the same batches again, in another process too. What a stage has in hand between two batches is
not part of a mark; it is read again. So a mark must be taken between two batches alone. A :class:`Cursor` takes rows
from the batches of a stage one by one. Its :class:`Place` is the mark before the batch in hand, and the number of rows
of it that are taken.

Marks nest as the stages do, so the mark of the last stage is the state of the job (:mod:`pydp2.server.jobs.derived`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from pydp2.data.columns.checksum_log import NO_CHECKSUMS, FileChecksums
from pydp2.data.columns.columns import Columns, Ints
from pydp2.data.columns.packed_batch import Origins
from pydp2.data.schema.input_types import Slots
from pydp2.errors import StateMismatch
from pydp2.order.stream_state import StreamState
from pydp2.protocol.early_ends import EarlyEnds
from pydp2.protocol.stream_identity import check_int
from pydp2.server.jobs.groups import BatchGroup, PassBroken, PassEnded, PassShare
from pydp2.server.jobs.pass_stream import JobStream

M = TypeVar("M")


class StageEnd(Enum):
    """What a stage returns in place of a batch."""

    END = "the pass has no more rows"


END = StageEnd.END
NO_ORIGINS = np.empty((2, 0), np.int64)


class RowBlock(NamedTuple):
    """Batch of rows. ``origins``: ``(2, rows)``, list entry and sample index of each; packed rows have none. ``costs``:
    the cost of each row for a trainer, as the option ``balance`` counts it; None without this option. ``size``: the
    weight of the rows; ``pool_weight``: the weight that waited in the pool."""

    columns: Columns
    origins: Origins
    size: int
    pool_weight: int = 0
    costs: Ints | None = None


class StageFailed(Exception):
    """A stage can make no more rows. ``broken``: how its pass fails."""

    def __init__(self, broken: PassBroken) -> None:
        super().__init__(str(broken.error))
        self.broken = broken


class RowStage(ABC, Generic[M]):
    """Batches of rows of ``slots``, pass by pass. ``mark``: where the next one begins."""

    slots: Slots
    mark: M

    @abstractmethod
    def first_mark(self, pass_id: int) -> M:
        """Return the mark at the beginning of pass ``pass_id``."""

    @abstractmethod
    def open(self, mark: M) -> None:
        """Begin at ``mark``. Raises OptionError or StateMismatch if there is no such place."""

    @abstractmethod
    def pull(self) -> RowBlock | StageEnd | None:
        """Return the next batch, END at the end of the pass, or None if it is not there yet. Raises StageFailed if the
        pass of its files fails, StateMismatch if they are not those of the mark."""

    @abstractmethod
    def close(self) -> None:
        """End the pass under way, if there is one."""

    def stats(self) -> dict[str, Any]:
        """Return statistics of what the stage does, as plain data."""
        return {}

    @abstractmethod
    def share(self) -> PassShare | None:
        """Return how much of the pass has been given. None: it is not known, or the pass has no end."""

    def begin_step(self, step: int) -> None:
        """Note that what is pulled next is for ``step`` of the trainers, counted in the pass."""
        return

    @abstractmethod
    def to_plain(self, mark: M) -> Any:
        """Return ``mark`` as plain data with bytes."""

    @abstractmethod
    def from_plain(self, plain: Any) -> M:
        """Return the mark of which :meth:`to_plain` made ``plain``. Raises StateMismatch, LookupError, TypeError or
        ValueError for any other value."""

    @abstractmethod
    def files(self) -> Iterator[FilesStage]:
        """Yield the stages that read files."""


class FilesStage(RowStage[StreamState]):
    """Batches of the samples of one source, in the order of a job that has this source alone."""

    def __init__(self, stream: JobStream) -> None:
        self.stream = stream
        self.slots = stream.schema.slots
        self.mark = StreamState(0)
        self.taken = 0
        """Number of samples since the stage was made."""
        self.opened = 0
        """Number of passes that were begun."""
        self._learned: tuple[EarlyEnds, bytes] | None = None
        self._records, self._logged = b"", NO_CHECKSUMS

    def first_mark(self, pass_id: int) -> StreamState:
        return StreamState(pass_id)

    def learn(self, early_ends: EarlyEnds, checksums: FileChecksums) -> None:
        """Note what a state knows of files beside the mark at which the stage is opened next."""
        mine = np.array([self.stream.has_file(file) for file in checksums.files.tolist()], bool)
        logged = FileChecksums(checksums.files[mine], checksums.marks[mine], checksums.checksums[mine]).logged()
        ends = {file: end for file, end in early_ends.items() if self.stream.has_file(file)}
        self._learned = (ends, logged.since(None)) if ends or logged.size else None

    def open(self, mark: StreamState) -> None:
        if self._learned is not None:
            (ends, records), self._learned = self._learned, None
            mark = replace(mark, early_ends={**mark.early_ends, **ends}, checksums=mark.checksums.extended(records))
        self.mark, self._logged = mark, mark.checksums
        self.stream.open(mark)
        self.opened += 1

    def pull(self) -> RowBlock | StageEnd | None:
        current = self.stream.current
        assert current is not None
        outcome = current.next_group()
        if outcome is None:
            return None
        if isinstance(outcome, PassBroken):
            raise StageFailed(outcome)
        if isinstance(outcome, PassEnded):
            return END
        return self._block_of(outcome)

    def _block_of(self, group: BatchGroup) -> RowBlock:
        (batch,) = group.batches
        cut = batch.cut
        columns = batch.rows.columns()
        batch.rows.release()
        assert cut.origins is not None
        self._note_checksums(group)
        self.mark = group.after
        self.taken += columns.rows
        return RowBlock(columns, cut.origins.T, cut.size, cut.pool_weight)

    def _note_checksums(self, group: BatchGroup) -> None:
        logged, before = group.after.checksums, self._logged
        if logged.values is not before.values:  # there was a point in between
            self._records += group.checksums_before.since(before)
        self._records += logged.since(before)
        self._logged = logged

    def close(self) -> None:
        self.stream.close()

    def share(self) -> PassShare | None:
        return self.stream.share()

    @property
    def pool_samples(self) -> int:
        """Number of samples in the pool."""
        return 0 if self.stream.current is None else self.stream.current.pool_samples

    @property
    def early_ends(self) -> EarlyEnds:
        """Files of the pass under way whose early end its batches have met."""
        return self.mark.early_ends

    def take_checksums(self) -> bytes:
        """Return once the records of checksums that the batches since the last call have brought."""
        records, self._records = self._records, b""
        return records

    @property
    def dropped_in_pass(self) -> int:
        """Number of dropped samples in the pass under way."""
        return 0 if self.stream.current is None else self.stream.current.losses.dropped

    def label(self, file: int) -> str:
        """Return the list entry of ``file``, a number of any source."""
        return self.stream.context.label(file)

    def to_plain(self, mark: StreamState) -> Any:
        return mark.with_later_checksums().to_dict()

    def from_plain(self, plain: Any) -> StreamState:
        return StreamState.from_dict(plain, files=self.stream.file_limit)

    def files(self) -> Iterator[FilesStage]:
        yield self


class Place(NamedTuple):
    """Place in the batches of a stage: ``offset`` rows behind ``mark``."""

    mark: Any
    offset: int = 0


class Cursor:
    """Cursor over the rows of ``stage``. Its batch in hand has :attr:`rows_left` rows that are not taken."""

    def __init__(self, stage: RowStage[Any]) -> None:
        self.stage = stage
        self.size = self.pool_weight = 0
        """Weight of the batch in hand, and of the pool before it was cut."""
        self._drop()
        self._before: Any = None
        self._skip = 0  # rows of the next batch that are taken already

    def _drop(self) -> None:
        self._columns, self._origins = Columns.empty(self.stage.slots), NO_ORIGINS
        self._offset = 0

    @property
    def place(self) -> Place:
        """Place of the next row."""
        if self._skip or self.rows_left:
            return Place(self._before, self._skip or self._offset)
        return Place(self.stage.mark)

    @property
    def rows_left(self) -> int:
        """Number of rows of the batch in hand that are not taken."""
        return self._columns.rows - self._offset

    def share(self) -> PassShare | None:
        """Return how much of the pass has been taken. None: it is not known, or the pass has no end."""
        share = self.stage.share()
        return None if share is None else share._replace(done=max(0, share.done - self.rows_left + self._skip))

    def open(self, place: Place) -> None:
        """Begin at ``place``."""
        self._drop()
        self.stage.open(place.mark)
        self._before, self._skip = place.mark, place.offset

    def close(self) -> None:
        """End the pass under way, if there is one."""
        self._drop()
        self._skip = 0
        self.stage.close()

    def fetch(self) -> bool | None:
        """Take the next batch in hand, once no row is left. Return False at the end of the pass, and None if the batch
        is not there yet. Raises Error if the pass fails."""
        before = self.stage.mark
        block = self.stage.pull()
        if block is None:
            return None
        if not isinstance(block, RowBlock):
            if self._skip:
                raise self._mismatch(0)
            self._drop()
            return False
        self._before, self._columns, self._origins = before, block.columns, block.origins
        self.size, self.pool_weight = block.size, block.pool_weight
        self._offset, self._skip = self._skip, 0
        if self._offset > block.columns.rows:
            raise self._mismatch(block.columns.rows)
        return True

    def _mismatch(self, rows: int) -> StateMismatch:
        return StateMismatch(
            f"the state is {self._skip or self._offset} rows into a batch, and that batch has {rows}: the data have "
            "changed, or the state is damaged; load another state, or begin a pass with set_epoch()"
        )

    def rest(self) -> tuple[Columns, Origins]:
        """Return the rows of the batch in hand that are left, and their origins, without taking them."""
        return self._columns.slice(self._offset, self._columns.rows), self._origins[:, self._offset :]

    def take(self, count: int) -> tuple[Columns, Origins]:
        """Take and return the next ``count`` rows of the batch in hand, which must have as many, and their origins."""
        lo, self._offset = self._offset, self._offset + count
        return self._columns.slice(lo, self._offset), self._origins[:, lo : self._offset]

    def to_plain(self, place: Place) -> dict[str, Any]:
        """Return ``place`` as plain data with bytes."""
        return {"offset": place.offset, "state": self.stage.to_plain(place.mark)}

    def from_plain(self, plain: Mapping[str, Any]) -> Place:
        """Return the place of which :meth:`to_plain` made ``plain``. Raises StateMismatch, LookupError, TypeError or
        ValueError for any other value."""
        return Place(self.stage.from_plain(plain["state"]), check_int(plain["offset"]))


def all_files(cursors: Sequence[Cursor]) -> Iterator[FilesStage]:
    """Yield the stages below ``cursors`` that read files."""
    for cursor in cursors:
        yield from cursor.stage.files()
