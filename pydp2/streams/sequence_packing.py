"""Lay sequences of tokens one after the other into rows of a fixed length (docs/mixing.md, "Packing").

(``packers`` turn samples into columns; the *packing* here is that of language models.) A row consists of segments. A
segment is a sequence, or a piece of one. "wrapped" cuts one long row into rows. "bfd" and "bfd_split" read a window of
sequences and place each sequence whole, the longest first, in the row where it fits best.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Never

import numpy as np
from numpy.typing import NDArray

from pydp2.client.describe import Fact
from pydp2.client.stream import Stream
from pydp2.data.columns.batch import Batch, Origin, StringArray
from pydp2.data.columns.columns import Array, Columns, expand_ranges, offsets
from pydp2.data.schema.input_types import INT32_RANGE, DataType, SequenceType, Slots, dense_vector, integer_value
from pydp2.errors import BadSample, OptionError, OptionTypeError, StateMismatch
from pydp2.options.tables import check_keywords, takes
from pydp2.options.values import Choice, integer_from, value_text
from pydp2.protocol.stream_identity import check_bool, check_int
from pydp2.streams.cursor import Cursor, Origins, Place
from pydp2.streams.derived_stream import Cut, DerivedPosition, DerivedStream
from pydp2.streams.packed_rows import (
    Ints,
    LaidRows,
    Pieces,
    Segments,
    best_fit_decreasing,
    cut_into_rows,
    join_rows,
    select_rows,
)

Strategy = Literal["wrapped", "bfd", "bfd_split"]
LastRow = Literal["pad", "drop", "carry"]
LastBatch = Literal["keep", "drop", "pad"]

WINDOW_ROWS = 64
"""Size of a window: sequences with as many tokens as this number of rows. The order depends on it."""


class PackedBatch(Batch):
    """Batch of :class:`PackedSequences`. ``segments``: the segments of its rows; see :class:`Segments`.

    ``batch["position_ids"]`` and ``batch["segment_ids"]``: ``(rows, length)`` int32, the position of each token within
    its segment, and the number of the segment within its row, from 1; both are 0 for padding tokens.
    """

    __slots__ = ("length", "segments")

    segments: Segments
    length: int

    if TYPE_CHECKING:

        def __getitem__(self, key: str | int) -> Array: ...

    @property
    def _converted_slots(self) -> Slots:
        return _slots_of_indices(self.slots)

    @property
    def cu_seqlens(self) -> NDArray[np.int32]:
        """Start of each segment in the concatenated rows, and at the end their total length: ``(n + 1,)`` int32, for
        the variable-length functions of FlashAttention. The padding of a row counts as a segment."""
        starts = self.segments.row * self.length + self.segments.start
        edges = [starts, starts + self.segments.length, np.arange(len(self) + 1) * self.length]
        return np.unique(np.concatenate(edges)).astype(np.int32)

    @property
    def max_seqlen(self) -> int:
        """Number of tokens of the longest segment, padding included."""
        return int(np.diff(self.cu_seqlens).max(initial=0))

    def unpack(self, slot: str | int = 0) -> list[Array]:
        """Return the tokens of each segment of ``slot``, as views, in the order of ``segments``."""
        rows = self[slot]
        return [
            rows[row, start : start + length]
            for row, start, length in zip(*(array.tolist() for array in self.segments[:3]), strict=True)
        ]


class _Window(NamedTuple):
    """Sequences that are placed together. ``behind``: place of the next sequence, whose number is ``document``."""

    laid: LaidRows
    behind: Place
    document: int
    is_last: bool


@dataclass(slots=True)
class PackPosition(DerivedPosition):
    """Position in packed sequences. ``document``: number of the sequence at ``places``; ``skip``: number of its tokens
    that are used, or of used rows of the window; ``carried``: tokens of the pass before; ``start``: position of the
    source from which to go to the place."""

    skip: int = 0
    document: int = 0
    ended: bool = False
    carried: Pieces | None = None
    start: Any = None

    def next_pass(self) -> PackPosition:
        """Return the position before the next pass. It has the carried tokens if this pass has ended."""
        (place,) = self.places
        following = place if self.ended else Place(place.position.next_pass())
        carried = self.carried
        if carried is not None:
            carried = carried._replace(document=carried.document - self.document) if self.ended else None
        return PackPosition(self.pass_id + 1, 0, (following,), carried=carried)


class PackedSequences(DerivedStream):
    """Batches of rows of a fixed length, packed from the sequences of another stream. Iterate over it like a
    :class:`pydp2.Client`; see :func:`pack_sequences`."""

    def __init__(
        self,
        stream: Stream,
        numbers: Sequence[int],
        length: int,
        batch_size: int,
        strategy: str,
        ends: tuple[str, str],
        pad_token: int,
    ) -> None:
        self._gives_origins, self._source_count = stream._gives_origins, stream._source_count
        self._origin_fields = 3 if self._gives_origins else 0  # rows of Segments.origins
        super().__init__([stream], PackPosition(0, 0, (Place(stream._session.progress.position),)), batch_size)
        self.length = length
        """Number of tokens of a row."""
        self._numbers, self._strategy = tuple(numbers), strategy
        (self._last_row, self._last_batch), self._pad_token = ends, pad_token
        self._windows: dict[tuple[int, int], _Window] = {}  # windows in use, by pass and first sequence
        self._counts = {"rows": 0, "tokens": 0, "padding": 0, "truncated": 0}
        source, names = stream.slots, tuple(stream.slots.names or ())
        dtypes: list[Any] = [source.types[i].element_dtype for i in numbers]
        slot_names = tuple(names[i] for i in numbers) if names else ("tokens", *(f"tokens {i}" for i in numbers[1:]))
        types = [dense_vector(length, dtype=dtype) for dtype in (*dtypes, np.int32, np.int32)]
        self._slots = Slots(tuple(types), (*slot_names, "position_ids", "segment_ids"))
        self._stream_identity = {
            "kind": "packed sequences",
            "slots": list(numbers),
            "length": length,
            "batch_size": batch_size,
            "strategy": strategy,
            "last_row": ends[0],
            "last_batch": ends[1],
            "pad_token": pad_token,
        }

    if TYPE_CHECKING:

        def __iter__(self) -> Iterator[PackedBatch]: ...

    @property
    def slots(self) -> Slots:
        """Types and names of the slots: the packed slots, ``position_ids``, ``segment_ids``."""
        return self._slots

    @property
    def files(self) -> StringArray | tuple[StringArray, ...]:
        """Entries of the file lists of the packed stream."""
        return self._cursors[0].stream.files

    @property
    def _converted_slots(self) -> Slots:
        return _slots_of_indices(self._slots)

    def stats(self) -> dict[str, Any]:
        """Return statistics as plain data: the numbers of "rows", of "tokens" in them, of "padding" tokens and of
        "truncated" tokens since this stream was made, and under "source" the statistics of the source."""
        self._session.check_process()
        self._session.check()
        return {**self._counts, "source": self._cursors[0].stream.stats()}

    def __len__(self) -> int:
        """Raise TypeError: the number of rows follows from the lengths of the sequences."""
        return self._rows_of_pass()

    def _rows_of_pass(self) -> int:
        raise TypeError(
            "the number of batches of packed sequences is not known, because it follows from the lengths of the "
            "sequences; count the steps (operator.length_hint(stream) gives the number of the last pass)"
        )

    def _facts(self) -> list[Fact]:
        return [("batches", f"of {self.batch_size} rows of {self.length} tokens, {self._strategy}")]

    # -- positions -----------------------------------------------------------------------------------------------------
    def load_state_dict(self, state: Any, *, allow: Collection[str] = (), skip: Iterable[int] = ()) -> None:
        """Go to the position of ``state``: the next iteration continues there. The same batches follow as would have
        followed when it was taken, bit by bit. A pass under way is left.

        Args:
            state: a state that :meth:`state_dict` returned, in this or another process. Ranks of a job use up their
                sequences at different speeds, so each has its own state: pass the states of all ranks, as a list by
                rank, to each rank.
            allow: differences of the sources to accept, as for :meth:`pydp2.Client.load_state_dict`.
            skip: empty, because a stream that is made of others passes over no batches.

        Raises:
            StateMismatch: the state belongs to another stream, or to another number of ranks; the text says what
                differs. Nothing has changed then.
            OptionError, OptionTypeError: ``allow`` has a wrong name, or ``skip`` has a number.
            ClientUseError: another thread is inside this stream, or it is closed.
        """
        super().load_state_dict(state, allow=allow, skip=skip)

    def _position_of(self, state: Any, allow: Collection[str]) -> Any:
        rank, ranks = self._rank
        states = list(state) if isinstance(state, list | tuple) else [state]
        if len(states) != ranks:
            raise StateMismatch(
                f"packed sequences that {ranks} ranks share need the states of all {ranks}, as a list by rank, in each "
                f"rank; got {len(states)}"
            )
        positions = [super(PackedSequences, self)._position_of(state, allow) for state in states]
        named = [state.get("rank") for state in states]
        if named != [[i, ranks] for i in range(ranks)]:
            raise StateMismatch(
                f"the states must be those of ranks 0 to {ranks - 1} of {ranks}, in this order, got those of "
                f"{named!r:.200} (rank, world_size)"
            )
        # All ranks go to the same position first, as ranks of a job must, and from there to their own.
        first = min((position.places[0].position for position in positions), key=lambda at: (at.pass_id, at.batch))
        return replace(positions[rank], start=first)

    def _own_fields(self, position: PackPosition) -> dict[str, Any]:
        carried = position.carried
        return {
            "skip": position.skip,
            "document": position.document,
            "ended": position.ended,
            "rank": list(self._rank),
            "carried": carried
            and [
                [t.tolist() for t in carried.tokens],
                *(array.tolist() for array in (*carried[1:-1], *carried.origins)),
            ],
        }

    def _from_state(self, state: Mapping[str, Any], allow: Collection[str]) -> PackPosition:
        (source,) = state["sources"]
        place, ended = self._place_of(source, self._cursors[0], allow), check_bool(state["ended"])
        if ended and not place.is_start:
            raise ValueError("its pass has ended, and that of its source has not")
        return PackPosition(
            check_int(state["pass"]),
            check_int(state["batch"]),
            (place,),
            check_int(state["skip"]),
            check_int(state["document"]),
            ended,
            self._carried(state["carried"]),
        )

    def _carried(self, plain: Any) -> Pieces | None:
        """Return the carried tokens of a state. Raises TypeError or ValueError if they are not valid."""
        if plain is None:
            return None
        tokens, document, offset, length, *origins = plain
        types = self._slots.types[: len(self._numbers)]
        arrays = tuple(_integers(values, of.element_dtype) for values, of in zip(tokens, types, strict=True))
        pieces = Pieces(
            arrays,
            _integers(document, np.int64),
            _integers(offset, np.int64, 0),
            _integers(length, np.int64, 1),
            self._carried_origins(origins, len(document)),
        )
        total = pieces.length.sum()
        if (
            len({array.shape[-1] for array in pieces[1:]}) > 1
            or any(len(array) != total for array in arrays)
            or self._strategy != "wrapped"
        ):
            raise ValueError("the tokens that it carries do not agree")
        return pieces

    def _carried_origins(self, plain: Sequence[Any], count: int) -> Origins:
        """Return the origins of ``count`` carried pieces of a state. It has them if the stream that saved it gave
        origins; else they are not known, and -1."""
        if plain and self._gives_origins:
            entry, sample, source = plain
            return np.stack([_integers(values, np.int64) for values in (entry, sample, source)])
        return np.full((self._origin_fields, count), -1)

    def _before_pass(self, position: PackPosition, pass_id: int) -> PackPosition:
        if self._last_row == "carry":
            raise OptionError(
                f'pass {pass_id} begins with the tokens that the pass before it has left, with last_row="carry", so it '
                "cannot be had by number; load a state"
            )
        return PackPosition(pass_id, 0, self._places_before(position, pass_id))

    def _seek(self, position: PackPosition) -> None:
        self._windows = {}
        self._cursors[0].go_to(position.places[0], start=position.start, opens=not position.ended)

    def _rewind_to(self, position: PackPosition) -> bool:
        place, document, ended = position.places[0], position.document, position.ended
        while not ended and (window := self._windows.get((position.pass_id, document))):
            place, document, ended = window.behind, window.document, window.is_last
        return self._cursors[0].rewind_to(place, opens=not ended)

    # -- batches -------------------------------------------------------------------------------------------------------
    def _cut(self, position: PackPosition) -> Cut:
        laid, behind = self._wrap(position) if self._strategy == "wrapped" else self._fit(position)
        missing = self.batch_size - laid.rows
        if not laid.rows or (missing and self._last_batch == "drop"):
            return None, behind
        rows = laid.rows
        padding = missing if self._last_batch == "pad" else 0
        self._counts["rows"] += rows
        self._counts["tokens"] += len(laid.tokens[0])
        self._counts["padding"] += rows * self.length - len(laid.tokens[0])
        if padding:
            again = [select_rows(laid, i % rows, i % rows + 1, i) for i in range(rows, self.batch_size)]
            laid = join_rows([laid, *again])
        batch = PackedBatch(
            self._columns(laid), pass_id=position.pass_id, index=position.batch, size=laid.rows, padding=padding
        )
        batch._origin = Origin(*laid.origins.copy()) if self._gives_origins else None
        batch.segments, batch.length = laid.segments, self.length
        return batch, behind

    def _columns(self, laid: LaidRows) -> Columns:
        row, start, length = laid.segments[:3]
        where = expand_ranges(row * self.length + start, length)
        positions = np.arange(len(where)) - np.repeat(np.cumsum(length) - length, length)
        numbers = np.repeat(np.arange(len(row)) - np.searchsorted(row, row) + 1, length)
        arrays = []
        fills = (*[self._pad_token] * len(laid.tokens), 0, 0)
        for declared, fill, values in zip(self._slots.types, fills, (*laid.tokens, positions, numbers), strict=True):
            flat = np.full(laid.rows * self.length, fill, declared.element_dtype)
            flat[where] = values
            arrays.append([flat.reshape(laid.rows, self.length)])
        return Columns(self._slots, laid.rows, arrays)

    # -- wrapped -------------------------------------------------------------------------------------------------------
    def _wrap(self, position: PackPosition) -> tuple[LaidRows, PackPosition]:
        """Return the next rows, cut from the concatenated sequences, and the position behind them."""
        cursor, need = self._cursors[0], self.batch_size * self.length
        skip, document, ended = position.skip, position.document, position.ended
        parts = [self._no_pieces() if position.carried is None else position.carried]
        missing = need - parts[0].total
        while missing > 0 and not ended:
            if not cursor.rows_left:
                ended = not cursor.fetch()
                if ended:
                    _check_skip(skip, 0, f"tokens into sequence {document}")
                continue
            pieces, whole, skip = self._next_pieces(cursor, skip, document, missing)
            cursor.take(whole)
            document += whole
            missing -= pieces.total
            parts.append(pieces)
        pieces, rest = Pieces.concat(parts).split(need)
        rows, left = divmod(pieces.total, self.length)
        if left and self._last_row == "pad":
            rows += 1
        elif left:
            pieces, rest = pieces.split(rows * self.length)
        carried = rest if rest.total and (self._last_row == "carry" or not ended) else None
        behind = replace(
            position,
            batch=position.batch + 1,
            places=(cursor.place,),
            skip=skip,
            document=document,
            ended=ended,
            carried=carried,
            start=None,
        )
        return LaidRows(rows, pieces.tokens, *cut_into_rows(pieces, self.length)), behind

    def _no_pieces(self) -> Pieces:
        none = np.empty(0, np.int64)
        types = self._slots.types[: len(self._numbers)]
        tokens = tuple(np.empty(0, declared.element_dtype) for declared in types)
        return Pieces(tokens, none, none, none, np.empty((self._origin_fields, 0), np.int64))

    def _origins(self, cursor: Cursor, count: int) -> Origins:
        """Return the origins of the next ``count`` sequences of the batch in hand."""
        found = cursor.origins(count) if self._gives_origins else None
        return np.empty((0, count), np.int64) if found is None else found

    def _next_pieces(self, cursor: Cursor, skip: int, document: int, room: int) -> tuple[Pieces, int, int]:
        """Return at most ``room`` tokens of the batch in hand, the number of sequences that are used up with them, and
        the number of used tokens of the next sequence."""
        lengths, tokens = self._sequences(cursor)
        offset = np.zeros(len(lengths), np.int64)
        _check_skip(skip, int(lengths[0]), f"tokens into sequence {document}")
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
            document + used,
            offset[used],
            lengths[used],
            self._origins(cursor, len(lengths))[:, used],
        )
        return pieces, whole, part if whole else skip + part

    def _sequences(self, cursor: Cursor) -> tuple[Ints, list[Array]]:
        """Return the lengths, and the tokens per slot, of the remaining sequences of the batch in hand."""
        columns = cursor.rest()
        steps, ids = columns.arrays[self._numbers[0]]
        tokens = [ids.reshape(-1)]  # as dense values, a step is a row of one number
        for slot in self._numbers[1:]:
            others, ids = columns.arrays[slot]
            if not np.array_equal(steps, others):
                i = int(np.flatnonzero(steps != others)[0])
                label, first = columns.slots.label(slot), columns.slots.label(self._numbers[0])
                raise BadSample(
                    f"{label}: slots that are packed together need sequences of one length, and a sample has "
                    f"{steps[i]} steps in {first}, {others[i]} in {label}; yield equally many",
                    slot=label,
                    expected=f"{steps[i]} steps",
                    got=f"{others[i]} steps",
                )
            tokens.append(ids.reshape(-1))
        return steps.astype(np.int64), tokens

    # -- best fit decreasing -------------------------------------------------------------------------------------------
    def _fit(self, position: PackPosition) -> tuple[LaidRows, PackPosition]:
        """Return the next rows, from windows in which each sequence was placed whole, and the position behind them."""
        (place,), skip = position.places, position.skip
        document, ended = position.document, position.ended
        parts: list[LaidRows] = []
        need = self.batch_size
        first = position.pass_id, document
        self._windows = {key: window for key, window in self._windows.items() if key >= first}
        while need and not ended:
            key = position.pass_id, document
            if key not in self._windows:
                self._windows = {**self._windows, key: self._read_window(document)}
            window = self._windows[key]
            _check_skip(skip, window.laid.rows, f"rows into the window at sequence {document}")
            rows = min(need, window.laid.rows - skip)
            parts.append(select_rows(window.laid, skip, skip + rows, self.batch_size - need))
            need -= rows
            skip += rows
            if skip == window.laid.rows:
                place, document, ended, skip = window.behind, window.document, window.is_last, 0
        behind = replace(
            position, batch=position.batch + 1, places=(place,), skip=skip, document=document, ended=ended, start=None
        )
        if not parts:
            none = self._no_pieces()
            return LaidRows(0, none.tokens, *cut_into_rows(none, self.length)), behind
        return join_rows(parts), behind

    def _read_window(self, document: int) -> _Window:
        cursor = self._cursors[0]
        parts = [self._no_pieces()]
        missing = WINDOW_ROWS * self.length
        is_last = False
        while missing > 0 and not is_last:
            if not cursor.rows_left:
                is_last = not cursor.fetch()
                continue
            lengths, tokens = self._sequences(cursor)
            ends = np.cumsum(lengths)
            whole = min(int(np.searchsorted(ends, missing)) + 1, len(ends))
            origins = self._origins(cursor, whole)
            cursor.take(whole)
            numbers = document + np.arange(whole)
            complete = tuple(array[: ends[whole - 1]] for array in tokens)
            parts.append(Pieces(complete, numbers, np.zeros(whole, np.int64), lengths[:whole], origins))
            missing -= int(ends[whole - 1])
            document += whole
        laid = self._lay_out(Pieces.concat(parts))
        return _Window(laid, cursor.place, document, is_last)

    def _lay_out(self, sequences: Pieces) -> LaidRows:
        """Return the rows of the sequences, in the order of their first sequences."""
        begins = offsets(sequences.length)[:-1]
        if self._strategy == "bfd":
            lengths = np.minimum(sequences.length, self.length)
            counts = (lengths > 0).astype(np.int64)
            self._counts["truncated"] += int((sequences.length - lengths).sum())
        else:
            counts = -(-sequences.length // self.length)
        of = np.repeat(np.arange(len(counts)), counts)
        offset = (np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)) * self.length
        length = np.minimum(sequences.length[of] - offset, self.length)
        row = best_fit_decreasing(length, self.length)
        order = np.lexsort((np.arange(len(row)), row))
        row, offset, length, of = row[order], offset[order], length[order], of[order]
        reached = np.cumsum(length) - length
        start = reached - reached[np.searchsorted(row, row)] if len(row) else reached
        where = expand_ranges(begins[of] + offset, length)
        segments = Segments(row, start, length, sequences.document[of], offset)
        return LaidRows(
            int(row[-1]) + 1 if len(row) else 0,
            tuple(array[where] for array in sequences.tokens),
            segments,
            sequences.origins[:, of],
        )


def _integers(values: Any, dtype: Any, low: int | None = None) -> Array:
    """Return ``values`` of a state as an array. Raises ValueError unless they are a list of integers from ``low`` on
    that fit ``dtype``."""
    array = np.array(values)
    limits = np.iinfo(dtype)
    low = int(limits.min) if low is None else low
    if array.ndim != 1 or (len(array) and (array.dtype.kind != "i" or array.min() < low or array.max() > limits.max)):
        raise ValueError(f"{values!r:.40} where a list of integers is needed")
    return array.astype(dtype)


def _check_skip(skip: int, size: int, what: str) -> None:
    """Raise StateMismatch if a position is ``skip`` tokens or rows into a sequence or window that has only ``size`` of
    them. ``what``: the words between the two numbers in the text."""
    if skip and skip >= size:
        raise StateMismatch(
            f"the state is {skip} {what}, which has {size}: the data have changed, or the state is damaged; load "
            "another state, or begin a pass with set_epoch()"
        )


def _slots_of_indices(slots: Slots) -> Slots:
    """Return ``slots`` as index slots, because tokens, positions and segment numbers are indices."""
    ranges = [INT32_RANGE if declared.element_dtype == np.int32 else 2**63 - 1 for declared in slots.types]
    return Slots(tuple(map(integer_value, ranges)), slots.names)


@takes()
def pack_sequences(
    stream: Stream,
    *,
    slot: str | int | Sequence[str | int],
    length: int,
    batch_size: int,
    strategy: Strategy = "bfd_split",
    last_row: LastRow = "pad",
    last_batch: LastBatch = "keep",
    pad_token: int = 0,
    **others: Never,
) -> PackedSequences:
    """Return a stream of rows of exactly ``length`` tokens, packed from the sequences of ``stream``.

    See docs/mixing.md, "Packing".

    Args:
        stream: a :class:`Client`, a :class:`Mixture`, or another stream; it is closed with this one.
        slot: name or number of the slot with the tokens, a sequence of integers; or several such slots, whose
            sequences have equal lengths in each sample, such as tokens and a mask. Other slots are left out.
        length: number of tokens of a row.
        batch_size: number of rows of a batch.
        strategy: ``"bfd_split"``: each sequence goes whole into a row (best-fit decreasing), or in pieces if it is
            longer than ``length``. ``"bfd"``: the same, but a longer sequence loses its end. ``"wrapped"``: all
            sequences are one long row, which is cut.
        last_row: with ``"wrapped"``, decides about tokens at the end of a pass that do not fill a row. ``"pad"``: the
            row is filled up. ``"drop"``: they are left out. ``"carry"``: the next pass begins with them.
        last_batch: ``"keep"``, ``"drop"`` or ``"pad"``, for a last batch with fewer rows.
        pad_token: value that fills up rows; ``segment_ids`` are 0 there.

    Raises:
        OptionError, OptionTypeError: an argument is not valid.
    """
    check_keywords(pack_sequences, others)
    if not isinstance(stream, Stream):
        raise OptionTypeError(f"pack_sequences() needs a stream, such as load() returns, got {value_text(stream)}")
    numbers = [_slot_number(stream.slots, name) for name in (slot if isinstance(slot, list | tuple) else [slot])]
    if not numbers or len(set(numbers)) < len(numbers):
        raise OptionError(f"slot must name at least one slot, each once, got {value_text(slot)}")
    length = integer_from(1)("length", length)
    chosen = Choice(("bfd_split", "bfd", "wrapped"))("strategy", strategy)
    ends = (
        Choice(("pad", "drop", "carry"))("last_row", last_row),
        Choice(("keep", "drop", "pad"))("last_batch", last_batch),
    )
    if chosen != "wrapped" and last_row != "pad":
        raise OptionError(f'last_row={last_row!r} needs strategy="wrapped": with {chosen!r} any row may have padding')
    widest = min(np.iinfo(stream.slots.types[number].element_dtype).max for number in numbers)
    pad_token = integer_from(0, int(widest) + 1)("pad_token", pad_token)
    rows = integer_from(1)("batch_size", batch_size)
    return PackedSequences(stream, numbers, length, rows, chosen, ends, pad_token)


def _slot_number(slots: Slots, slot: Any) -> int:
    """Return the number of a slot with integer sequences."""
    try:
        number = slots.index(slot) if isinstance(slot, str) else range(len(slots))[slot]
    except (KeyError, IndexError, TypeError) as error:
        raise OptionError(f"slot must be a name or number of a slot of the stream, got {value_text(slot)}") from error
    declared = slots.types[number]
    is_plain = declared.type == DataType.Dense and declared.dim == 1 and np.dtype(declared.element_dtype).kind in "iu"
    if declared.seq_type != SequenceType.SEQUENCE or not (declared.type == DataType.Index or is_plain):
        raise OptionError(
            "slot must have sequences of integers, declared as integer_value_sequence(…) or "
            f'dense_vector_sequence(1, dtype="int64"), and {slots.label(number)} is {declared!r}'
        )
    return number
