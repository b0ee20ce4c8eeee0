"""A pass taken up at any batch is the pass that was never interrupted."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pydp2.data.columns import sample_set
from pydp2.errors import OptionError
from pydp2.options.values import MAX_CYCLE
from pydp2.order.batcher import BatchCut, PassDone
from pydp2.order.bucketing import make_batcher
from pydp2.order.file_order import files_in_order
from pydp2.order.plan import PassPlan
from pydp2.order.snapshot import FilePosition, SnapshotPoint, decode_samples
from pydp2.protocol import messages as m

from .arrivals import Arrivals, NameStore, next_outcome, plan_of
from .oracle import File, Options, Row
from .test_batcher import lists, options

property_test = settings(suppress_health_check=[HealthCheck.too_slow])
Made = list[tuple[Any, ...]]


def run(
    plan: PassPlan, files: list[File], timing: int, saved: SnapshotPoint | None = None
) -> tuple[Made, list[SnapshotPoint | None], Arrivals]:
    """All batches from ``saved`` on, the point after each, and the source."""
    random = Random(timing)
    source, store = Arrivals(files, random, True, 7), NameStore(random)
    stream = make_batcher(plan, source, store, files_in_order(plan), saved)
    made: Made = []
    points: list[SnapshotPoint | None] = []
    while True:
        match next_outcome(stream, source):
            case BatchCut(index, rows, size, pool_weight, padding, gone):
                made.append((index, store.take(rows, padding), size, pool_weight, padding))
                point = stream.snapshot
                if point is not None and point.in_tail and gone:
                    point = replace(point, batch_index=index + 1, tail_consumed=gone)
                points.append(point)
            case PassDone():
                return made, points, source
            case other:
                raise AssertionError(other)


def through_json(point: SnapshotPoint | None, files: int) -> SnapshotPoint | None:
    if point is None:
        return None
    wire = json.loads(json.dumps({**point.to_wire(), "pool": sample_set.set_to_text(point.pool)}))
    return SnapshotPoint.from_wire(wire, sample_set.set_from_text(wire.pop("pool")), files)


@property_test
@given(lists(), options(), st.integers(0, 2), st.integers(0, 2**32 - 1), st.data())
def test_any_batch_of_any_pass(
    files: list[File], chosen: Options, pass_id: int, timing: int, data: st.DataObject
) -> None:
    plan = plan_of(files, chosen, pass_id)
    if plan.pool_bytes < 1 << 30 or not plan.can_over_batch_size:
        files = [
            File([item and Row(min(item.weight, plan.batch_size), min(item.size, 90)) for item in f.items])
            for f in files
        ]
    made, points, _ = run(plan, files, timing)
    if not made:
        return
    k = data.draw(st.integers(0, len(made) - 1))
    point = through_json(points[k], len(files))
    again, _, _ = run(plan, files, timing + 1, point)
    skipped = k + 1 - (0 if point is None else point.batch_index)
    assert again[skipped:] == made[k + 1 :]
    assert [batch[0] for batch in again[:skipped]] == list(range(k + 1 - skipped, k + 1))


@pytest.mark.parametrize("seed", [*range(5), *(pytest.param(each, marks=pytest.mark.slow) for each in range(5, 10))])
def test_a_long_pass_through_many_snapshot_points(seed: int) -> None:
    random = Random(seed)
    files = [
        File(
            [
                None if random.random() < 0.02 else Row(random.choice([1, 1, 2]) if seed % 2 else 1, 8)
                for _ in range(800)
            ]
        )
        for _ in range(random.choice([2, 9, 24]))
    ]
    plan = PassPlan(
        seed=seed, pass_id=1, files=len(files), batch_size=random.choice([16, 50]), shuffle=seed % 5 != 0,
        interleave=random.choice([1, 4, 16]), pool_size=random.choice([300, 2000]),
        min_pool_size=random.choice([-1, 100]),
    )  # fmt: skip
    made, points, _ = run(plan, files, seed)
    assert (
        len({point.batch_index for point in points if point is not None and not point.in_tail}) > 0 or len(files) == 2
    )
    for k in random.sample(range(len(made)), 4):
        point = through_json(points[k], len(files))
        again, _, source = run(plan, files, seed + 1, point)
        skipped = k + 1 - (0 if point is None else point.batch_index)
        assert again[skipped:] == made[k + 1 :]
        # only a few batches are cut again, and only files with a live sample or an open file of the cycle are read
        # again
        assert sum(len(batch[1]) for batch in again[:skipped]) <= max(1024, plan.pool_size) + 2 * plan.batch_size
        if point is not None:
            needed = set(decode_samples(point.pool)[0].tolist()) | {cycle_file.file for cycle_file in point.cycle}
            unseen = {int(f) for f in files_in_order(plan)[point.next_file :]}
            assert set(source.bound) <= needed | unseen


@pytest.mark.parametrize(
    ("cycle", "pool", "apart"),
    [
        (16, 1000, 1024),
        (200, 1000, 2048),
        (16, 3000, 3072),
        *(
            pytest.param(*sizes, marks=pytest.mark.slow)
            for sizes in [(128, 1000, 1024), (16, 2048, 2048), (16, 6000, 4608)]
        ),
    ],
)
def test_as_many_samples_as_the_pool_has_and_eight_for_each_file_of_the_cycle_are_between_two_points(
    cycle: int, pool: int, apart: int
) -> None:
    files = [File([Row(1, 8)] * ((6000 + 4 * max(pool, apart)) // cycle)) for _ in range(cycle)]
    plan = PassPlan(
        seed=1, pass_id=0, files=len(files), batch_size=64, shuffle=True, interleave=cycle, pool_size=pool
    )  # fmt: skip
    made, points, _ = run(plan, files, 0)
    seen = [point for point in points if point is not None and not point.in_tail]
    indices = sorted({point.batch_index for point in seen if len(point.cycle) == cycle})
    assert len(indices) > 1
    assert {64 * (later - earlier) for earlier, later in pairwise(indices)} == {apart}
    k = 2 * indices[0] - 1
    point = through_json(points[k], len(files))
    assert point is not None
    again, _, _ = run(plan, files, 1, point)
    assert again[k + 1 - point.batch_index :] == made[k + 1 :]


def test_the_tail_goes_on_without_reading_what_is_gone() -> None:
    files = [File([Row(1, 8)] * 100) for _ in range(10)]
    plan = PassPlan(seed=1, pass_id=0, files=10, batch_size=100, shuffle=True)
    made, points, _ = run(plan, files, 0)
    again, _, source = run(plan, files, 1, through_json(points[8], 10))
    assert again == made[9:]
    assert len(made) == 10
    assert sum(len(r.sample_indices) for r in source._recalls.values()) == 100


def test_a_point_with_the_most_files_in_turn_fits_into_the_header_of_a_batch() -> None:
    """Files of up to 2**32 samples, and as many bounds of buckets as there may be."""
    most, large = (1 << 62) - 1, (1 << 32) - 1
    cycle = [FilePosition(large - i, large, large, [large]) for i in range(MAX_CYCLE)]
    point = SnapshotPoint(most, b"", False, most, most, MAX_CYCLE - 1, most, cycle, most, most, most)
    head = m.BatchHead(*[most] * 8, [], point.to_wire(), 0, {"bounds": [large] * 1000})
    decoded, _ = m.decode([m.encode(head)])
    assert decoded == head


@pytest.mark.parametrize(
    "change",
    [
        {"index": -1}, {"index": "1"}, {"lanes": [[99, 0, 0, []]]}, {"lanes": [[0, 0]]}, {"lanes": 3}, {"current": 7},
        {"next_file": 99}, {"left": None}, {"offset": 10**9},
    ],
)  # fmt: skip
def test_a_damaged_point_is_refused(change: dict[str, Any]) -> None:
    files = [File([Row(1, 8)] * 400) for _ in range(4)]
    plan = PassPlan(seed=1, pass_id=0, files=4, batch_size=64, shuffle=True, pool_size=100)
    _, points, _ = run(plan, files, 0)
    point = next(p for p in points if p is not None)
    wire = point.to_wire()
    assert SnapshotPoint.from_wire(wire, point.pool, 4) == point
    with pytest.raises(OptionError, match="damaged"):
        SnapshotPoint.from_wire({**wire, **change}, point.pool, 4)
    with pytest.raises(OptionError, match="damaged"):
        SnapshotPoint.from_wire(wire, point.pool[:3], 4)
    with pytest.raises(OptionError, match="damaged"):
        SnapshotPoint.from_wire({}, point.pool, 4)
