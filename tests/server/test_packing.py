"""Packed sequences: no token is lost, each is where the segments say, and any state gives the same next row."""

from __future__ import annotations

import copy
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pydp2.data.columns.batch import Batch
from pydp2.data.columns.columns import Columns
from pydp2.data.columns.packed_batch import PackedBatch
from pydp2.errors import BadSample, StateMismatch
from pydp2.order.mixture import MixPlan, WeightSchedule
from pydp2.order.packing import PackPlan
from pydp2.server.jobs.groups import BatchGroup, PassEnded
from pydp2.server.jobs.mixing import MixStage
from pydp2.server.jobs.packing import PackStage
from pydp2.server.jobs.stages import RowBlock

from ..list_stage import SLOTS, ListStage, StageReader, columns_of, rotated
from ..order.test_packing import naive_fit

STRATEGIES = [("wrapped", "pad"), ("wrapped", "drop"), ("bfd_split", "pad"), ("bfd", "pad")]


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    lengths = draw(st.lists(st.one_of(st.integers(0, 12), st.integers(0, 60)), max_size=60))
    strategy, last_row = draw(st.sampled_from(STRATEGIES))
    return {
        "documents": [[1000 * i + j for j in range(length)] for i, length in enumerate(lengths)],
        "source_batch": draw(st.integers(1, 9)),
        "length": draw(st.integers(1, 20)),
        "batch_size": draw(st.integers(1, 6)),
        "strategy": strategy,
        "last_row": last_row,
        "last_batch": draw(st.sampled_from(["keep", "drop", "pad"])),
    }


def plan_of(case: dict[str, Any]) -> PackPlan:
    return PackPlan(
        (0, 1), case["length"], case["strategy"], case["last_row"], 7, case["batch_size"], case.get("balance")
    )


def packed(case: dict[str, Any], *, world: int = 1, **source: Any) -> StageReader:
    stage = PackStage(ListStage(case["documents"], case["source_batch"], **source), plan_of(case))
    return StageReader(
        stage, case["batch_size"], last_batch=case["last_batch"], world=world, length=case["length"],
        balance=case.get("balance"),
    )  # fmt: skip


def sign(batch: Batch) -> Any:
    assert isinstance(batch, PackedBatch)
    values = [np.asarray(batch[name]).tolist() for name in batch.names or ()]
    return batch.pass_id, batch.index, batch.padding, values, [each.tolist() for each in batch.segments]


@given(cases())
def test_segments_positions_and_masks_say_where_each_sequence_is(case: dict[str, Any]) -> None:
    length = case["length"]
    for _ in range(1):
        data = packed(case)
        for _ in range(2):
            before: Any = None
            for batch in data.batches():
                assert isinstance(batch, PackedBatch)
                rows = len(batch)
                tokens, mask, positions, numbers = (np.asarray(batch[name]) for name in batch.names or ())
                assert batch.keys() == ("tokens", "mask", "position_ids", "segment_ids")
                assert {array.shape for array in (tokens, mask, positions, numbers)} == {(rows, length)}
                assert {array.dtype for array in (tokens, mask, positions, numbers)} == {np.dtype(np.int32)}
                assert rows == case["batch_size"] or case["last_batch"] == "keep"
                documents = rotated(case["documents"], batch.pass_id)
                unused = np.ones((rows, length), bool)
                last = -1, 0
                origins = batch.origin.sample.tolist()
                for n, (row, start, size, document, offset) in enumerate(zip(*map(list, batch.segments), strict=True)):
                    here = slice(start, start + size)
                    assert (row, start) >= last
                    last = row, start + size
                    uninterrupted = documents[document]
                    assert uninterrupted == case["documents"][origins[n]]
                    assert tokens[row, here].tolist() == uninterrupted[offset : offset + size]
                    assert mask[row, here].tolist() == [token + 1 for token in uninterrupted[offset : offset + size]]
                    assert positions[row, here].tolist() == [*range(size)]
                    assert unused[row, here].all()
                    unused[row, here] = False
                    assert len({*numbers[row, here].tolist()}) == 1
                for row in range(rows):
                    used = numbers[row][~unused[row]]
                    assert (np.diff(used) >= 0).all()
                    assert {*used.tolist()} == {*range(1, (batch.segments.row == row).sum() + 1)}
                    assert not unused[row, : len(used)].any()  # padding stands at the end
                assert (tokens[unused] == 7).all()
                assert not positions[unused].any()
                assert not numbers[unused].any()
                edges = batch.cu_seqlens
                assert edges.dtype == np.int32
                assert (edges[0], edges[-1]) == (0, rows * length)
                assert batch.max_seqlen == max(np.diff(edges))
                inside = np.cumsum(np.ones(rows * length)) - 1 - np.repeat(edges[:-1], np.diff(edges))
                assert (inside.reshape(rows, length)[~unused] == positions[~unused]).all()
                assert [part.tolist() for part in batch.unpack()] == [
                    tokens[row, start : start + size].tolist()
                    for row, start, size in zip(*batch.segments[:3], strict=True)
                ]
                if before is not None:
                    assert before.padding == 0
                before = batch


def pieces(data: StageReader) -> tuple[list[list[int]], list[tuple[int, int, list[int]]]]:
    """The rows of a pass without their padding, and (document, offset, tokens) of each segment."""
    rows, found = [], []
    for batch in data.batches():
        assert isinstance(batch, PackedBatch)
        for row in range(len(batch) - batch.padding):
            here = batch.segments.row == row
            rows.append(
                [t for part, is_here in zip(batch.unpack(), here, strict=True) if is_here for t in part.tolist()]
            )
        for row, document, offset, part in zip(
            batch.segments.row, batch.segments.document, batch.segments.offset, batch.unpack(), strict=True
        ):
            if row < len(batch) - batch.padding:
                found.append((int(document), int(offset), part.tolist()))
    return rows, found


@given(cases())
def test_packing_loses_no_token_and_unpacking_gives_the_sequences_back(case: dict[str, Any]) -> None:
    case |= {"last_batch": "keep"}
    data = packed(case)
    for pass_id in range(3):
        documents = rotated(case["documents"], pass_id)
        all_tokens = [token for document in documents for token in document]
        rows, found = pieces(data)
        if case["strategy"] == "wrapped":
            whole = len(all_tokens) // case["length"] * case["length"]
            assert [token for row in rows for token in row] == all_tokens[
                : None if case["last_row"] == "pad" else whole
            ]
            assert all(len(row) == case["length"] for row in rows[:-1])
            if case["last_row"] != "pad":
                continue
        back: list[list[int]] = [[] for _ in documents]
        for document, offset, part in sorted(found):
            assert offset == len(back[document])
            back[document] += part
        kept = case["length"] if case["strategy"] == "bfd" else None
        assert back == [document[:kept] for document in documents]
    stats = data.job.stage.stats()["packing"]
    assert stats["truncated"] == (
        3 * sum(max(len(each) - case["length"], 0) for each in documents) if case["strategy"] == "bfd" else 0
    )
    assert stats["tokens"] + stats["padding"] == stats["rows"] * case["length"]


@given(cases())
def test_best_fit_places_what_fits_whole(case: dict[str, Any]) -> None:
    case |= {"strategy": "bfd_split", "last_row": "pad", "last_batch": "keep"}
    _, found = pieces(packed(case))
    documents = case["documents"]
    assert all(
        len(documents[document]) == len(part)
        for document, _, part in found
        if len(documents[document]) <= case["length"]
    )


def reference_rows(case: dict[str, Any]) -> list[list[tuple[int, int, list[int]]]]:
    """Rows of (document, offset, tokens): windows of as many documents as fill 64 rows, packed one after the other."""
    length, rows, window, filled = case["length"], [], [], 0
    documents = case["documents"]
    for number, document in enumerate(documents):
        cuts = range(0, len(document), length)[: 1 if case["strategy"] == "bfd" else None]
        window += [(number, offset, document[offset : offset + length]) for offset in cuts]
        filled += len(document)
        if filled >= 64 * length or number == len(documents) - 1:
            for row in naive_fit([len(tokens) for _, _, tokens in window], length):
                rows.append([window[i] for i in row])
            window, filled = [], 0
    return rows


@given(
    st.lists(st.lists(st.integers(0, 9), max_size=12), max_size=80),
    st.integers(1, 4),
    st.integers(1, 9),
    st.sampled_from(["bfd", "bfd_split"]),
)
@example([[1, 2, 3]] * 50, 1, 4, "bfd")
@example([[1, 2, 3]] * 90, 2, 7, "bfd_split")
def test_best_fit_packs_window_after_window(
    documents: list[list[int]], length: int, source_batch: int, strategy: str
) -> None:
    case = {"documents": documents, "source_batch": source_batch, "length": length, "batch_size": 3}
    case |= {"strategy": strategy, "last_row": "pad", "last_batch": "keep"}
    rows: list[list[tuple[int, int, list[int]]]] = []
    for batch in packed(case).batches():
        assert isinstance(batch, PackedBatch)
        mine: list[Any] = [[] for _ in range(len(batch))]
        for row, document, offset, part in zip(
            batch.segments.row, batch.segments.document, batch.segments.offset, batch.unpack(), strict=True
        ):
            mine[row].append((int(document), int(offset), part.tolist()))
        rows += mine
    assert rows == reference_rows(case)


# -- states and ranks --------------------------------------------------------------------------------------------------
@given(cases(), st.sets(st.integers(0, 40)), st.integers(0, 3))
@example(
    {
        "documents": [[1] * 600] * 40, "source_batch": 1, "length": 1, "batch_size": 450, "strategy": "bfd_split",
        "last_row": "pad", "last_batch": "keep",
    },
    {3},
    0,
)  # fmt: skip
def test_the_share_of_a_pass_follows_from_the_sequences_that_were_read(
    case: dict[str, Any], hesitates: set[int], ahead: int
) -> None:
    data, found, batches = packed(case, hesitates=hesitates), [], []
    current = data.job.open(data.state)
    while not isinstance(outcome := current.next_group(), PassEnded):
        data.job.note_unused(ahead)
        found.append(data.job.progress())  # also where a batch is not there yet
        if isinstance(outcome, BatchGroup):
            batches.append(found[-1])
            outcome.batches[0].rows.release()
    data.job.note_unused(0)
    found.append(data.job.progress())
    data.job.close()
    assert found[-1]["share"] == 1.0
    assert [progress["batch"] for progress in batches] == [max(0, i + 1 - ahead) for i in range(len(batches))]
    shares = [round(progress["share"], 9) for progress in found]
    assert shares == sorted(shares)
    assert all(progress["is_estimate"] for progress in found)
    assert {0.0 <= share <= 1.0 for share in shares} <= {True}
    if batches and not ahead and "drop" not in (case["last_batch"], case["last_row"]):
        rest = case["documents"][round(batches[-1]["share"] * len(case["documents"])) :]
        assert not any(rest)


@given(cases(), st.data(), st.sets(st.integers(0, 40)))
def test_what_follows_a_restore_is_what_would_have_followed(
    case: dict[str, Any], data: st.DataObject, hesitates: set[int]
) -> None:
    seen, states = [], []
    stream = packed(case, hesitates=hesitates)
    for _ in range(2):
        for batch in stream.batches():
            seen.append(sign(batch))
            states.append(stream.save())
    if not states:
        return
    k = data.draw(st.integers(0, len(states) - 1), label="state")
    other = packed(case)
    other.load(states[k])
    again: list[Any] = []
    while other.state.pass_id < 2:
        again += map(sign, other.batches())
    assert again == seen[k + 1 :]


@given(cases(), st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
def test_all_ranks_have_one_stream_of_rows_and_equally_many_steps(
    case: dict[str, Any], before: int, after: int, groups: int
) -> None:
    case |= {"last_batch": "pad"}
    rows = [row for batch in packed(case).batches() for row in rows_without_padding(batch)]
    stream = packed(case, world=before)
    begun = list(islice(stream.groups(), groups))
    assert all(len(group) == before for group in begun)
    seen = [row for group in begun for batch in group for row in rows_without_padding(batch)]
    if stream.state.pass_id == 0:
        other = packed(case, world=after)
        other.load(stream.save())
        rest = list(other.groups())
        assert all(len(group) == after for group in rest)
        seen += [row for group in rest for batch in group for row in rows_without_padding(batch)]
    assert seen == rows


def rows_without_padding(batch: Batch) -> list[Any]:
    tokens = np.asarray(batch["tokens"])
    return list(map(tuple, tokens[: len(tokens) - batch.padding].tolist()))


@given(cases(), st.integers(2, 4), st.sampled_from(["tokens", "attention"]))
def test_balanced_ranks_have_the_rows_of_their_step_and_no_others(
    case: dict[str, Any], world: int, balance: str
) -> None:
    case |= {"last_batch": "pad"}
    plain = list(packed(case, world=world).groups())
    dealt = list(packed(case | {"balance": balance}, world=world).groups())
    assert len(plain) == len(dealt)
    for group, other in zip(plain, dealt, strict=True):
        rows = [[row for batch in ranks for row in rows_without_padding(batch)] for ranks in (group, other)]
        assert sorted(rows[0]) == sorted(rows[1])
        costs = [[cost_of(batch, balance) for batch in ranks] for ranks in (group, other)]
        if not any(batch.padding for batch in group):
            assert max(costs[1]) <= max(costs[0]) or max(costs[1]) * world <= 1.03 * sum(costs[1])


def cost_of(batch: Batch, balance: str) -> int:
    assert isinstance(batch, PackedBatch)
    lengths = batch.segments.length
    return int((lengths**2 if balance == "attention" else lengths).sum())


def test_balanced_ranks_cost_about_the_same() -> None:
    lengths = np.random.default_rng(7).lognormal(5, 1, 6000).astype(int) + 1
    documents = [[i % 1000] * int(length) for i, length in enumerate(lengths)]
    case = {"documents": documents, "source_batch": 64, "length": 2048, "batch_size": 16, "strategy": "bfd_split"}
    case |= {"last_row": "pad", "last_batch": "drop"}
    shares = {}
    for balance in (None, "attention"):
        groups = list(packed(case | {"balance": balance}, world=4).groups())
        costs = [[cost_of(batch, "attention") for batch in group] for group in groups]
        shares[balance] = [4 * max(each) / sum(each) for each in costs]
    assert max(shares["attention"]) <= 1.03 < max(shares[None])


@given(cases())
def test_a_pass_can_be_had_by_number(case: dict[str, Any]) -> None:
    data = packed(case)
    uninterrupted = [[sign(batch) for batch in data.batches()] for _ in range(3)]
    data.state = data.state.before_pass(1)
    assert [sign(batch) for batch in data.batches()] == uninterrupted[1]


def test_a_batch_can_be_copied_with_what_it_says() -> None:
    case = {"documents": [[1, 2, 3], [4]], "source_batch": 2, "length": 4, "batch_size": 1, "strategy": "bfd_split"}
    batch = next(packed(case | {"last_row": "pad", "last_batch": "keep"}).batches())
    assert sign(copy.deepcopy(batch)) == sign(batch)


@given(st.sampled_from(["wrapped", "bfd_split"]), st.integers(0, 20), st.integers(1, 3), st.integers(1, 3))
def test_a_mixture_is_packed_and_goes_on_from_its_state_on_other_ranks(
    strategy: str, stop: int, before: int, after: int
) -> None:
    documents = [[[100 * i + s] * (i * 5 % 11) for i in range(64)] for s in range(2)]

    def stream(world: int) -> StageReader:
        sources = [ListStage(each, 4, number) for number, each in enumerate(documents)]
        schedule = WeightSchedule(((0, (1, 2)), (4, (2, 1))))  # type: ignore[arg-type]  # whole numbers are fractions
        mixed = MixStage(sources, ["a", "b"], MixPlan(5, 4, "all_exhausted", False, (0, 0)), schedule)
        return StageReader(
            PackStage(mixed, PackPlan((0,), 16, strategy, "pad", 0, 3)), 3, last_batch="pad", world=world, sources=2,
            length=16, schedule=schedule,
        )  # fmt: skip

    whole = [sign(batch) for group in stream(before).groups() for batch in group]
    first = stream(before)
    seen = [sign(batch) for group in islice(first.groups(), stop + 1) for batch in group]
    other = stream(before)
    other.load(first.save())
    if first.state.pass_id == 0:
        assert seen + [sign(batch) for batch in other.batches()] == whole
        third = stream(after)
        third.load(first.save())
        assert all(len(group) == after for group in third.groups()), "it goes on, with the steps of other ranks"


@given(cases(), st.integers(0, 8))
def test_sequences_of_other_lengths_come_whole_beside_the_first_segment_of_their_sample(
    case: dict[str, Any], stop: int
) -> None:
    case |= {"last_batch": "keep"}

    class WithPatches(ListStage):
        """As the mask, each sample has as many steps as the rest of its number by 3."""

        def pull(self) -> Any:
            block = super().pull()
            if not isinstance(block, RowBlock):
                return block
            samples = block.origins[1].tolist()
            steps = np.array([sample % 3 for sample in samples], np.int32)
            values = np.array([sample for sample in samples for _ in range(sample % 3)], np.int32)
            columns = Columns(SLOTS, len(samples), [block.columns.arrays[0], [steps, values]])
            return block._replace(columns=columns)

    def stream() -> StageReader:
        plan = PackPlan((0,), case["length"], case["strategy"], case["last_row"], 7, case["batch_size"], None, (1,))
        documents = [[i, *document] for i, document in enumerate(case["documents"])]  # each is another one
        stage = PackStage(WithPatches(documents, case["source_batch"]), plan)
        return StageReader(stage, case["batch_size"], length=case["length"])

    whole, states, data = [], [], stream()
    for batch in data.batches():
        assert isinstance(batch, PackedBatch)
        patches: Any = batch["mask"]
        edges = patches.sub_sequence_start_positions.tolist()
        assert len(edges) == len(batch.segments.row) + 1
        samples, firsts = batch.origin.sample.tolist(), (batch.segments.offset == 0).tolist()
        for segment, (sample, is_first) in enumerate(zip(samples, firsts, strict=True)):
            found = patches.values[edges[segment] : edges[segment + 1]].tolist()
            assert found == ([sample] * (sample % 3) if is_first else [])
        assert np.diff(patches.sequence_start_positions).sum() == edges[-1]
        whole.append((sign_tokens(batch), patches.values.tolist(), edges))
        states.append(data.save())
    if stop < len(states):
        other = stream()
        other.load(states[stop])
        rest: list[Any] = [
            (sign_tokens(batch), batch["mask"].values.tolist(), batch["mask"].sub_sequence_start_positions.tolist())  # type: ignore[union-attr]
            for batch in other.batches()
        ]
        assert rest == whole[stop + 1 :]


def sign_tokens(batch: Batch) -> Any:
    return batch.index, np.asarray(batch["tokens"]).tolist(), np.asarray(batch["segment_ids"]).tolist()


# -- errors ------------------------------------------------------------------------------------------------------------
def test_slots_that_are_packed_together_need_sequences_of_one_length() -> None:
    class Unequal(ListStage):
        def pull(self) -> Any:
            block = super().pull()
            unequal = [np.array([2, 2], np.int32), np.array([1, 2, 3, 4], np.int32)]
            columns = Columns(SLOTS, 2, [[*columns_of([[1, 2], [3]]).arrays[0]], unequal])
            return block._replace(columns=columns)  # type: ignore[union-attr]

    case = {"length": 4, "batch_size": 1, "strategy": "bfd_split", "last_row": "pad"}
    stream = StageReader(PackStage(Unequal([[1, 2], [3]], 2), plan_of(case)), 1, length=4)
    with pytest.raises(BadSample, match=r"file 0, sample 1: mask: slots that .* has 1 steps in tokens, 2 in mask"):
        list(stream.batches())


@pytest.mark.parametrize("strategy", ["wrapped", "bfd_split"])
def test_a_state_that_has_used_more_than_there_is_now_is_refused(strategy: str) -> None:
    case = {"source_batch": 9, "length": 4, "batch_size": 1, "strategy": strategy, "last_row": "pad"}
    case |= {"last_batch": "keep", "documents": [[i] * 30 for i in range(4)]}
    stream = packed(case)
    list(islice(stream.batches(), 9))
    text = stream.save()
    other = packed(case | {"documents": [[1] * 3]})
    other.load(text)
    with pytest.raises(StateMismatch, match="the data have changed, or the state is damaged"):
        list(other.batches())
