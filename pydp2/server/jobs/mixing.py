"""Mix rows of several sources by weights, in an order that the seed and the data decide (docs/mixing.md).

Random words choose the source of each row, or batch (:mod:`pydp2.order.mixture`). Nothing else is random, so a mark
consists of the number of the next word and a place in each source.

Weights may change from one step of the trainers to the next. A row is drawn some time before the step that it is used
in, because the stage behind this one reads ahead. So the weights of a row follow from its number in the pass: a log
says from which row on weights hold, and rows that are drawn again, after a state was loaded, get their weights from
the log (:attr:`MixMark.log`), also if the stream that loads it has others.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pydp2.data.columns.columns import Columns
from pydp2.errors import OptionError
from pydp2.order.mixture import (
    BLOCK,
    MixPlan,
    WeightSchedule,
    furthest_behind,
    thresholds,
    whole_weights,
    words_of_block,
)
from pydp2.order.stream_state import PASS_LIMIT
from pydp2.protocol.exact_weights import Shares, shares_of
from pydp2.protocol.stream_identity import check_int
from pydp2.server.jobs.groups import PassShare
from pydp2.server.jobs.stages import END, Cursor, FilesStage, Place, RowBlock, RowStage, StageEnd, all_files

_ROUND_BITS = 16  # a source that begins again in pass p, the i-th time, is read in the order of its pass p + (i << 16)
Log = tuple[tuple[int, Shares], ...]
"""Numbers of rows, and the weights that hold from there on."""


@dataclass(frozen=True, slots=True)
class MixMark:
    """Where the next batch begins, in pass ``pass_id``. ``word``: number of the word that chooses next; ``drawn``: rows
    that were drawn; ``places``: of the sources; ``rounds``: how often each has ended; ``counts``: with ``weight_by``,
    time steps drawn from each source since the weights changed last. ``log``: the weights; the first ones hold for all
    rows before, too. ``drawn_before``: rows that were drawn before the mark was
    saved, some of them perhaps behind it."""

    pass_id: int
    places: tuple[Place, ...]
    word: int = 0
    drawn: int = 0
    rounds: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()
    log: Log = ()
    drawn_before: int = 0


class MixStage(RowStage[MixMark]):
    """Rows of ``sources``, stages with equal slots, mixed by the weights of ``schedule``. ``names``: of the sources."""

    def __init__(
        self, sources: Sequence[RowStage[Any]], names: Sequence[str], plan: MixPlan, schedule: WeightSchedule
    ) -> None:
        self._cursors = [Cursor(source) for source in sources]
        self._names, self._plan, self._schedule = names, plan, schedule
        self.slots = sources[0].slots
        self.mark = MixMark(0, ())
        self.rows = [0] * len(sources)
        """Number of rows that were drawn from each source."""
        self._words: tuple[tuple[int, int], NDArray[np.uint64]] | None = None  # words of the block used last
        self._thresholds: tuple[Any, tuple[NDArray[np.int64], NDArray[np.uint64]]] | None = None
        self._begun_empty: list[bool] = []
        self._rounds = [0] * len(sources)
        self._log: list[tuple[int, Shares]] = []
        self._forget()

    def _forget(self) -> None:
        """Forget the part of the next batch that was drawn."""
        self._parts: list[list[tuple[Columns, Any]]] = [[] for _ in self._cursors]
        self._numbers: list[NDArray[np.int64]] = []
        self._waits_for: int | None = None

    def first_mark(self, pass_id: int) -> MixMark:
        zeros = (0,) * len(self._cursors)
        places = tuple(Place(cursor.stage.first_mark(pass_id)) for cursor in self._cursors)
        return MixMark(pass_id, places, rounds=zeros, counts=zeros, log=((0, self._schedule.at(pass_id, 0)),))

    def open(self, mark: MixMark) -> None:
        self._forget()
        self._begun_empty = [False] * len(self._cursors)
        self.mark = mark
        self._word, self._drawn, self._drawn_before = mark.word, mark.drawn, mark.drawn_before
        self._rounds, self._counts, self._log = list(mark.rounds), list(mark.counts), list(mark.log)
        for cursor, place in zip(self._cursors, mark.places, strict=True):
            cursor.open(place)

    def close(self) -> None:
        self._forget()
        for cursor in self._cursors:
            cursor.close()

    def begin_step(self, step: int) -> None:
        """Draw the rows behind those that are drawn already by the weights of ``step``."""
        weights = self._schedule.at(self.mark.pass_id, step)
        if weights != self._log[-1][1]:
            row = max(self._drawn, self._drawn_before)
            kept = bisect_right(self._log, row - 1, key=_row)
            self._log = [*self._log[: max(kept, 1)], (row, weights)]

    # -- batches -------------------------------------------------------------------------------------------------------
    def pull(self) -> RowBlock | StageEnd | None:
        return self._pull_batch() if self._plan.per_stream else self._pull_rows()

    def _pull_rows(self) -> RowBlock | StageEnd | None:
        """Return a batch whose rows are drawn from the sources one by one."""
        need = self._plan.rows - sum(map(len, self._numbers))
        while need and (self._waits_for is not None or not self._is_over()):
            if self._waits_for is None:
                chosen = self._choose(need)
                served = self._first_unserved(chosen)
                self._take(chosen[:served])
                need -= served
                self._waits_for = int(chosen[served]) if served < len(chosen) else None
            if self._waits_for is not None and not self._fetch():
                return None
        source = np.concatenate([*self._numbers, np.empty(0, np.int64)])
        self.mark = self._mark_here()
        if not len(source):
            return END
        order = np.argsort(source, kind="stable")  # by source, each in its own order, as the parts are
        take = np.empty(len(source), np.int64)
        take[order] = np.arange(len(source))
        parts = [part for of_source in self._parts for part in of_source]
        columns = Columns.concat([part for part, _ in parts]).take(take)
        origins = np.concatenate([found for _, found in parts], axis=1)[:, take]
        self._forget()
        return RowBlock(columns, origins, len(source))

    def _pull_batch(self) -> RowBlock | StageEnd | None:
        """Return a batch of one source."""
        while self._waits_for is not None or not self._is_over():
            if self._waits_for is None:
                self._waits_for = int(self._choose(1)[0])
            cursor = self._cursors[source := self._waits_for]
            ended = self._rounds[source]
            if not self._fetch():
                return None
            if ended != self._rounds[source]:
                continue
            rows = cursor.rows_left
            columns, origins = cursor.take(rows)
            self._word += 1
            self._drawn += 1
            self.rows[source] += rows
            self.mark = self._mark_here()
            return RowBlock(columns, origins, cursor.size, cursor.pool_weight)
        self.mark = self._mark_here()
        return END

    def _mark_here(self) -> MixMark:
        places = tuple(cursor.place for cursor in self._cursors)
        return MixMark(
            self.mark.pass_id,
            places,
            self._word,
            self._drawn,
            tuple(self._rounds),
            tuple(self._counts),
            tuple(self._log),
        )

    def _take(self, chosen: NDArray[np.int64]) -> None:
        """Take the rows of the sources that were ``chosen``."""
        for source, count in enumerate(np.bincount(chosen, minlength=len(self._cursors)).tolist()):
            if not count:
                continue
            columns, origins = self._cursors[source].take(count)
            self._parts[source].append((columns, origins))
            self.rows[source] += count
            if (slot := self._plan.weight_by) is not None:
                self._counts[source] += int(columns.arrays[slot][0].sum())
        self._numbers.append(chosen)
        self._word += len(chosen)
        self._drawn += len(chosen)

    # -- the sources ---------------------------------------------------------------------------------------------------
    @property
    def _weights(self) -> Shares:
        """Weights of the row that is drawn next."""
        return self._log[max(0, bisect_right(self._log, self._drawn, key=_row) - 1)][1]

    @property
    def _next_change(self) -> int:
        """Number of rows that are drawn until the weights change, as far as the log says."""
        later = [row for row, _ in self._log if row > self._drawn]
        return later[0] - self._drawn if later else self._plan.rows

    @property
    def _ended(self) -> tuple[bool, ...]:
        """For each source, whether no more rows are drawn from it."""
        most = self._plan.max_passes
        if not self._plan.repeats:
            return tuple(rounds > 0 for rounds in self._rounds)
        return tuple(0 < limit <= rounds for rounds, limit in zip(self._rounds, most, strict=True))

    def _is_over(self) -> bool:
        """Return True if the pass is over before the next row."""
        weights, ended = self._weights, self._ended
        if not any(weight and not over for weight, over in zip(weights, ended, strict=True)):
            return True
        strategy = self._plan.stopping_strategy
        if strategy == "first_exhausted":
            return any(self._rounds)
        if strategy == "all_exhausted":
            return all(rounds or not weight for rounds, weight in zip(self._rounds, weights, strict=True))
        return False

    def _fetch(self) -> bool:
        """Fetch the next batch of the source that is waited for, or begin its next pass. Return False if the batch is
        not there yet."""
        assert self._waits_for is not None
        source, cursor = self._waits_for, self._cursors[self._waits_for]
        found = cursor.fetch()
        if found is None:
            return False
        if found:
            if cursor.rows_left or self._plan.per_stream:
                self._begun_empty[source] = False
                self._waits_for = None
            return True
        self._rounds[source] += 1
        self._word += 1
        self._waits_for = None
        if self._plan.repeats and not self._ended[source] and not self._is_over():
            if self._begun_empty[source]:
                raise OptionError(
                    f"the source {self._names[source]!r} gave no row in a whole pass, so it cannot be repeated; leave "
                    "it out"
                )
            self._begun_empty[source] = True
            cursor.close()
            number = (self.mark.pass_id + (self._rounds[source] << _ROUND_BITS)) % PASS_LIMIT
            cursor.open(Place(cursor.stage.first_mark(number)))
        return True

    def _first_unserved(self, chosen: NDArray[np.int64]) -> int:
        """Return how many of the chosen rows can be taken from the batches in hand before another one is needed."""
        served = len(chosen)
        for source, cursor in enumerate(self._cursors):
            picks = np.flatnonzero(chosen[:served] == source)
            if len(picks) > cursor.rows_left:
                served = int(picks[cursor.rows_left])
        return served

    def _choose(self, need: int) -> NDArray[np.int64]:
        """Return the sources of the next rows, at most ``need`` and at least one."""
        need = min(need, self._next_change)
        weights, ended = self._weights, self._ended
        if self._plan.weight_by is not None:
            return self._choose_by_steps(need, weights, ended)
        number, offset = divmod(self._word, BLOCK)
        key = (self.mark.pass_id, number)
        if self._words is None or self._words[0] != key:
            self._words = key, words_of_block(self._plan.seed, *key)
        if self._thresholds is None or self._thresholds[0] != (weights, ended):
            self._thresholds = (weights, ended), thresholds(weights, ended)
        sources, edges = self._thresholds[1]
        chosen: NDArray[np.int64] = sources[
            np.searchsorted(edges, self._words[1][offset : offset + need], side="right")
        ]
        return chosen

    def _choose_by_steps(self, need: int, weights: Shares, ended: Sequence[bool]) -> NDArray[np.int64]:
        """Return the sources of the next rows, each the one whose time steps are furthest behind its weight."""
        slot = self._plan.weight_by
        assert slot is not None
        if any(row == self._drawn for row, _ in self._log):
            self._counts = [0] * len(self._counts)  # the weights change with this row
        alive = [i for i, over in enumerate(ended) if weights[i] and not over]
        whole = whole_weights(weights)
        lengths = [cursor.rest()[0].arrays[slot][0].tolist() for cursor in self._cursors]
        counts, used = list(self._counts), [0] * len(lengths)
        chosen: list[int] = []
        while len(chosen) < need:
            source = furthest_behind(whole, alive, counts)
            chosen.append(source)
            if used[source] == len(lengths[source]):
                break  # its next batch has to be fetched
            counts[source] += lengths[source][used[source]]
            used[source] += 1
        return np.array(chosen, np.int64)

    @property
    def _latest_weights(self) -> Shares:
        return self._log[-1][1] if self._log else self._schedule.at(0, 0)

    def share(self) -> PassShare | None:
        strategy, shares, drawn = self._plan.stopping_strategy, list[PassShare](), 0.0
        for cursor, rounds, weight in zip(self._cursors, self._rounds, self._latest_weights, strict=True):
            share = cursor.share()
            if share is None or strategy == "cycle_forever":
                return None
            if not weight:
                continue
            drawn += share.done if rounds == 0 else rounds * share.total + share.done * self._plan.repeats
            shares.append(share._replace(done=share.total) if rounds else share)
        if strategy == "all_exhausted_without_replacement":
            total = sum(share.total for share in shares)
            return PassShare(drawn, total, any(share.is_estimate for share in shares))
        # The pass ends with the source that is nearest to its end, or with the one that is furthest from it.
        ends = max if strategy == "first_exhausted" else min
        done = ends((share.value for share in shares), default=1.0)
        return PassShare(drawn, drawn / done if done else inf, is_estimate=True)

    def stats(self) -> dict[str, Any]:
        weights = self._latest_weights
        total = sum(weights)
        return {
            "sources": {
                name: {"weight": float(weight / total), "rows": rows}
                for name, weight, rows in zip(self._names, weights, self.rows, strict=True)
            }
        }

    # -- marks ---------------------------------------------------------------------------------------------------------
    def to_plain(self, mark: MixMark) -> Any:
        first = max(0, bisect_right(self._log, mark.drawn, key=_row) - 1)
        return {
            "pass": mark.pass_id,
            "word": mark.word,
            "drawn": mark.drawn,
            "drawn_before": max(self._drawn, self._drawn_before),
            "rounds": list(mark.rounds),
            "counts": list(mark.counts),
            "log": [[row, [str(share) for share in weights]] for row, weights in self._log[first:]],
            "sources": [cursor.to_plain(place) for cursor, place in zip(self._cursors, mark.places, strict=True)],
        }

    def from_plain(self, plain: Any) -> MixMark:
        many = len(self._cursors)
        rounds, counts = (tuple(map(check_int, plain[name])) for name in ("rounds", "counts"))
        log = tuple((check_int(row), shares_of(weights)) for row, weights in plain["log"])
        lengths = {len(rounds), len(counts), len(plain["sources"]), *(len(weights) for _, weights in log)}
        if lengths != {many} or not log:
            raise ValueError("its sources, their rounds and weights do not agree")
        places = tuple(cursor.from_plain(place) for cursor, place in zip(self._cursors, plain["sources"], strict=True))
        pass_id, word, drawn, before = (check_int(plain[name]) for name in ("pass", "word", "drawn", "drawn_before"))
        return MixMark(pass_id, places, word, drawn, rounds, counts, log, before)

    def files(self) -> Iterator[FilesStage]:
        return all_files(self._cursors)


def _row(entry: tuple[int, Shares]) -> int:
    return entry[0]
