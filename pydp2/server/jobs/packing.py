"""Pack the sequences of a stage into rows of a fixed length (docs/mixing.md, "Packing").

The rows of a pass are one stream, whatever the number of ranks. On the wire a packed row is a sample with the packed
slots, each of a fixed length, and its segments as a sequence (:mod:`pydp2.data.columns.packed_batch`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from pydp2.data.columns.columns import Array, Columns, Ints, expand_ranges
from pydp2.data.columns.packed_batch import Origins, packed_slots, segments_columns
from pydp2.errors import BadSample, StateMismatch
from pydp2.order.packing import (
    WINDOW_ROWS,
    LaidRows,
    PackPlan,
    Pieces,
    cut_into_rows,
    join_rows,
    lay_out,
    row_costs,
    select_rows,
)
from pydp2.protocol.stream_identity import check_bool, check_int
from pydp2.server.jobs.groups import PassBroken, PassShare
from pydp2.server.jobs.stages import (
    END,
    NO_ORIGINS,
    Cursor,
    FilesStage,
    Place,
    RowBlock,
    RowStage,
    StageEnd,
    StageFailed,
)


@dataclass(frozen=True, slots=True)
class PackMark:
    """Where the next rows begin. ``document``: number of the sequence at ``place``; ``skip``: number of its tokens that
    are used, or of used rows of the window that begins there; ``ended``: the pass has no more sequences."""

    place: Place
    skip: int = 0
    document: int = 0
    ended: bool = False


class _Window(NamedTuple):
    """Sequences that are placed together. ``behind``: where the next window begins."""

    laid: LaidRows
    behind: PackMark


class PackStage(RowStage[PackMark]):
    """Packed rows of the sequences of ``stage``."""

    def __init__(self, stage: RowStage[Any], plan: PackPlan) -> None:
        self._cursor = Cursor(stage)
        self._plan = plan
        self._source = stage.slots
        self.slots = packed_slots(stage.slots, plan.slots, plan.length, plan.ragged)
        self.mark = PackMark(Place(None))
        self.counts = {"rows": 0, "tokens": 0, "padding": 0, "truncated": 0}
        """Numbers of rows, of tokens in them, of padding tokens and of tokens that were cut off."""
        self._forget()

    def _forget(self) -> None:
        """Forget what was read for the next rows."""
        self._parts: list[Pieces] = []
        self._skip = self._document = 0
        self._missing = 0
        self._window: _Window | None = None
        self._rows: list[LaidRows] = []
        self._ragged: dict[int, list[Array]] = {}  # by number of the sequence, until its first segment is laid
        self._next: PackMark | None = None

    def first_mark(self, pass_id: int) -> PackMark:
        return PackMark(Place(self._cursor.stage.first_mark(pass_id)))

    def open(self, mark: PackMark) -> None:
        self._forget()
        self._cursor.open(mark.place)
        self.mark = mark

    def close(self) -> None:
        self._forget()
        self._cursor.close()

    def begin_step(self, step: int) -> None:
        self._cursor.stage.begin_step(step)

    def pull(self) -> RowBlock | StageEnd | None:
        laid = self._wrap() if self._plan.strategy == "wrapped" else self._fit()
        if laid is None:
            return None
        if not laid.rows:
            return END
        tokens = len(laid.tokens[0])
        self.counts["rows"] += laid.rows
        self.counts["tokens"] += tokens
        self.counts["padding"] += laid.rows * self._plan.length - tokens
        balance = self._plan.balance
        costs = None if balance is None else row_costs(laid, balance)
        return RowBlock(self._columns(laid), NO_ORIGINS, laid.rows, costs=costs)

    def _columns(self, laid: LaidRows) -> Columns:
        row, start, length = laid.segments[:3]
        where = expand_ranges(row * self._plan.length + start, length)
        arrays: list[list[Array]] = []
        fields = self.slots.fields
        for slot, values in enumerate(laid.tokens):
            (field,) = fields[slot]
            flat = np.full((laid.rows * self._plan.length, *values.shape[1:]), self._plan.pad_token, values.dtype)
            flat[where] = values
            arrays.append([flat.reshape(laid.rows, *field.shape)])
        arrays += self._ragged_columns(laid)
        arrays.append(segments_columns(laid.segments, laid.origins, laid.rows))
        return Columns(self.slots, laid.rows, arrays)

    def _ragged_columns(self, laid: LaidRows) -> list[list[Array]]:
        """Return the arrays of the slots that come as Ragged: their values beside the first segment of a sequence."""
        if not self._plan.ragged:
            return []
        segments = laid.segments
        counts = np.bincount(segments.row, minlength=laid.rows).astype(np.int32)
        firsts = [self._ragged.pop(document) for document in segments.document[segments.offset == 0].tolist()]
        columns = []
        for at, slot in enumerate(self._plan.ragged):
            steps = np.zeros(len(segments.row), np.int32)
            steps[segments.offset == 0] = [len(values[at]) for values in firsts]
            field = self._source.fields[slot][-1]
            none = np.empty((0, *field.shape), field.dtype)
            columns.append([counts, steps, np.concatenate([none, *(values[at] for values in firsts)])])
        # What is left of earlier sequences had no tokens, or was laid before the state from which the pass goes on.
        self._ragged = {number: kept for number, kept in self._ragged.items() if number >= self.mark.document}
        return columns

    def _keep_ragged(self, first: int, count: int) -> None:
        """Keep the values that come as Ragged of the next ``count`` sequences of the batch in hand. ``first``: the
        number of the next one."""
        if not self._plan.ragged:
            return
        columns, _ = self._cursor.rest()
        parts = []
        for slot in self._plan.ragged:
            lengths, values = columns.arrays[slot]
            edges = np.cumsum(lengths[:count])
            parts.append(np.split(values[: int(edges[-1])] if count else values[:0], edges[:-1]))
        for number in range(count):
            self._ragged[first + number] = [of_slot[number] for of_slot in parts]

    # -- wrapped -------------------------------------------------------------------------------------------------------
    def _wrap(self) -> LaidRows | None:
        """Return the next rows, cut from the concatenated sequences; None if they are not there yet."""
        plan, cursor, mark = self._plan, self._cursor, self.mark
        if not self._parts:
            self._parts = [self._no_pieces()]
            self._missing, self._skip, self._document = plan.rows * plan.length, mark.skip, mark.document
        ended = mark.ended
        while self._missing > 0 and not ended:
            if not cursor.rows_left:
                found = cursor.fetch()
                if found is None:
                    return None
                ended = not found
                if ended:
                    _check_skip(self._skip, 0, f"tokens into sequence {self._document}")
                continue
            self._parts.append(self._next_pieces())
        pieces = Pieces.concat(self._parts)
        rows, left = divmod(pieces.total, plan.length)
        if left and plan.last_row == "pad":
            rows += 1
        elif left:
            pieces, _ = pieces.split(rows * plan.length)
        self.mark = PackMark(cursor.place, self._skip, self._document, ended)
        self._parts = []
        return LaidRows(rows, pieces.tokens, *cut_into_rows(pieces, plan.length))

    def _no_pieces(self) -> Pieces:
        none = np.empty(0, np.int64)
        fields = [self._source.fields[number][-1] for number in self._plan.slots]
        tokens = tuple(np.empty(_token_shape(0, field.shape), field.dtype) for field in fields)
        return Pieces(tokens, none, none, none, NO_ORIGINS)

    def _next_pieces(self) -> Pieces:
        """Take at most the missing tokens from the batch in hand."""
        cursor, room, skip = self._cursor, self._missing, self._skip
        lengths, tokens, origins = self._sequences()
        offset = np.zeros(len(lengths), np.int64)
        _check_skip(skip, int(lengths[0]), f"tokens into sequence {self._document}")
        lengths[0] -= skip
        offset[0] = skip
        ends = np.cumsum(lengths)
        whole = int(np.searchsorted(ends, room, side="right"))
        taken = int(ends[whole - 1]) if whole else 0
        part = room - taken if whole < len(lengths) else 0
        if part:
            lengths[whole] = part
        used = np.flatnonzero(lengths[: whole + bool(part)])
        pieces = Pieces(
            tuple(array[skip : skip + taken + part] for array in tokens),
            self._document + used,
            offset[used],
            lengths[used],
            origins[:, used],
        )
        self._keep_ragged(self._document, whole + bool(part))
        cursor.take(whole)
        self._document += whole
        self._skip = part if whole else skip + part
        self._missing -= pieces.total
        return pieces

    def _sequences(self) -> tuple[Ints, list[Array], Ints]:
        """Return the lengths, the tokens per slot and the origins of the remaining sequences of the batch in hand."""
        columns, origins = self._cursor.rest()
        first, *others = self._plan.slots
        steps, values = columns.arrays[first]
        tokens = [_as_tokens(values)]
        for slot in others:
            lengths, values = columns.arrays[slot]
            if not np.array_equal(steps, lengths):
                raise self._unequal((first, slot), steps, lengths, origins)
            tokens.append(_as_tokens(values))
        return steps.astype(np.int64), tokens, origins

    def _unequal(self, numbers: tuple[int, int], steps: Array, others: Array, origins: Origins) -> StageFailed:
        """Return the failure for a sample whose sequences in two slots differ in length."""
        i = int(np.flatnonzero(steps != others)[0])
        first, label = (self._source.label(number) for number in numbers)
        file, sample = next(self.files()).label(int(origins[0, i])), int(origins[1, i])
        error = BadSample(
            f"file {file}, sample {sample}: {label}: slots that are packed together need sequences of one length, and "
            f"this one has {steps[i]} steps in {first}, {others[i]} in {label}; yield equally many",
            slot=label,
            expected=f"{steps[i]} steps",
            got=f"{others[i]} steps",
        )
        return StageFailed(PassBroken(error, file, sample))

    # -- best fit decreasing -------------------------------------------------------------------------------------------
    def _fit(self) -> LaidRows | None:
        """Return the next rows, from windows in which each sequence was placed whole; None if they are not there
        yet."""
        mark = self._next or self.mark
        need = self._plan.rows - sum(part.rows for part in self._rows)
        while need and not mark.ended:
            if self._window is None and not self._read_window(mark):
                return None
            assert self._window is not None
            laid, behind = self._window
            _check_skip(mark.skip, laid.rows, f"rows into the window at sequence {mark.document}")
            rows = min(need, laid.rows - mark.skip)
            self._rows.append(select_rows(laid, mark.skip, mark.skip + rows, self._plan.rows - need))
            need -= rows
            mark = replace(mark, skip=mark.skip + rows)
            if mark.skip == laid.rows:
                mark, self._window = behind, None
            self._next = mark
        self.mark, self._next = mark, None
        parts, self._rows = self._rows, []
        if not parts:
            none = self._no_pieces()
            return LaidRows(0, none.tokens, *cut_into_rows(none, self._plan.length))
        return join_rows(parts)

    def _read_window(self, mark: PackMark) -> bool:
        """Read the window that begins at ``mark``. Return False if it is not there yet."""
        cursor = self._cursor
        if not self._parts:
            self._parts = [self._no_pieces()]
            self._missing, self._document = WINDOW_ROWS * self._plan.length, mark.document
        is_last = False
        while self._missing > 0 and not is_last:
            if not cursor.rows_left:
                found = cursor.fetch()
                if found is None:
                    return False
                is_last = not found
                continue
            lengths, tokens, origins = self._sequences()
            ends = np.cumsum(lengths)
            whole = min(int(np.searchsorted(ends, self._missing)) + 1, len(ends))
            self._keep_ragged(self._document, whole)
            cursor.take(whole)
            complete = tuple(array[: ends[whole - 1]] for array in tokens)
            numbers = self._document + np.arange(whole)
            self._parts.append(
                Pieces(complete, numbers, np.zeros(whole, np.int64), lengths[:whole], origins[:, :whole])
            )
            self._missing -= int(ends[whole - 1])
            self._document += whole
        laid, truncated = lay_out(Pieces.concat(self._parts), self._plan)
        self.counts["truncated"] += truncated
        self._window = _Window(laid, PackMark(cursor.place, 0, self._document, is_last))
        self._parts = []
        return True

    def share(self) -> PassShare | None:
        if (share := self._cursor.share()) is None:
            return None
        mark = self._next or self.mark
        done = share.total if mark.ended else float(mark.document)  # and not what was read, which is ahead of that
        if self._window is not None:
            laid, behind = self._window
            done += (behind.document - mark.document) * mark.skip / max(1, laid.rows)
        return PassShare(min(done, share.total), share.total, is_estimate=True)  # sequences differ in their lengths

    def stats(self) -> dict[str, Any]:
        return {"packing": dict(self.counts), **self._cursor.stage.stats()}

    # -- marks ---------------------------------------------------------------------------------------------------------
    def to_plain(self, mark: PackMark) -> Any:
        return {
            "skip": mark.skip,
            "document": mark.document,
            "ended": mark.ended,
            "source": self._cursor.to_plain(mark.place),
        }

    def from_plain(self, plain: Any) -> PackMark:
        return PackMark(
            self._cursor.from_plain(plain["source"]),
            check_int(plain["skip"]),
            check_int(plain["document"]),
            check_bool(plain["ended"]),
        )

    def files(self) -> Iterator[FilesStage]:
        return self._cursor.stage.files()


def _token_shape(count: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of ``count`` time steps whose values have ``shape``; one number needs no axis."""
    return (count,) if tuple(shape) in ((), (1,)) else (count, *shape)


def _as_tokens(values: Array) -> Array:
    return values.reshape(_token_shape(len(values), values.shape[1:]))


def _check_skip(skip: int, size: int, what: str) -> None:
    """Raise StateMismatch if a position is ``skip`` tokens or rows into a sequence or window that has only ``size`` of
    them. ``what``: the words between the two numbers in the text."""
    if skip and skip >= size:
        raise StateMismatch(
            f"the state is {skip} {what}, which has {size}: the data have changed, or the state is damaged; load "
            "another state, or begin a pass with set_epoch()"
        )
