"""Medians and ratios: what is divided ran in the same round."""

from __future__ import annotations

from statistics import median
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.results import ratio, tables
from benchmarks.show import COLUMNS, VIEWS, markdown, sentences

seconds = st.floats(0.01, 100, allow_nan=False)
ROUNDS = st.lists(st.tuples(seconds, seconds, seconds), min_size=1, max_size=7)
NAMES = ("bare", "pydp2", "torch")


def run(number: int, name: str, took: float, **more: Any) -> dict[str, Any]:
    one = {"began": 0.0, "samples": 1000, "seconds": took, "first": took / 10, "steady": 1000 / took, "cpu": took}
    cached = {**one, "seconds": took / 2}
    given = {"round": number, "workload": "words", "workers": 2, "contestant": name}
    return {**given, "start": 0.5, "passes": [one, cached], **more}


def of(rounds: list[tuple[float, ...]], names: tuple[str, ...] = NAMES) -> list[dict[str, Any]]:
    return [run(i, name, took) for i, times in enumerate(rounds, 1) for name, took in zip(names, times, strict=True)]


@given(ROUNDS, seconds)
def test_a_machine_that_is_slower_in_a_round_changes_no_ratio(rounds: list[Any], slower: float) -> None:
    before = ratio(of(rounds), "pydp2", "torch")
    after = ratio(of([tuple(t * slower for t in rounds[0]), *rounds[1:]]), "pydp2", "torch")
    assert before is not None
    assert after is not None
    assert abs(before / after - 1) < 1e-9


@given(ROUNDS)
def test_ratios_are_medians_of_rounds_and_turned_round_their_inverse_for_one_round(rounds: list[Any]) -> None:
    assert ratio(of(rounds), "pydp2", "bare") == median(1000 / b / (1000 / a) for a, b, _ in rounds)
    one = of(rounds[:1])
    there, back = ratio(one, "pydp2", "torch"), ratio(one, "torch", "pydp2")
    assert there is not None
    assert back is not None
    assert abs(there * back - 1) < 1e-9


@given(ROUNDS)
def test_rows_go_from_fast_to_slow_and_lie_between_their_least_and_most(rounds: list[Any]) -> None:
    (table,) = tables(of(rounds))
    assert table.rows[0].contestant == "bare"
    rates = [row.rate for row in table.rows[1:]]
    assert rates == sorted(rates, key=lambda rate: -(rate or 0))
    for row in table.rows:
        assert row.low is not None
        assert row.high is not None
        assert row.rate is not None
        assert row.low <= row.rate <= row.high
    assert table.best == "torch"
    assert table.ahead == ratio(of(rounds), "pydp2", "torch")
    assert table.rounds == len(rounds)


def test_a_round_that_one_of_them_missed_is_left_out_of_the_ratio() -> None:
    runs = [*of([(1, 2, 4), (1, 2, 4), (1, 2, 8)])]
    runs[5] = {**{k: v for k, v in runs[5].items() if k != "passes"}, "failed": "it fell over"}
    (table,) = tables(runs)
    torch = next(row for row in table.rows if row.contestant == "torch")
    assert (torch.tries, torch.failed) == (3, 1)
    assert torch.ahead == median([2.0, 4.0])
    assert "torch failed 1 of 3 times" in list(sentences(table))


def test_a_lead_that_is_less_than_the_rounds_differ_is_told_as_that() -> None:
    near: list[tuple[float, ...]] = [(5, 10, 11), (5, 12, 12), (5, 9, 11)]
    clear: list[tuple[float, ...]] = [(1, 2, 8), (1, 2, 8), (1, 2, 9)]
    (table,) = tables(of(near))
    assert next(sentences(table)) == (
        "best peer: torch; pydp2 has 1.10x its samples/s, which is less than the rounds of one of them differ"
    )
    (table,) = tables(of(clear))
    assert next(sentences(table)) == "best peer: torch; pydp2 has 4.00x its samples/s"


def test_the_round_that_is_watched_gives_memory_and_no_time() -> None:
    (table,) = tables([run(0, "bare", 99, peak=7_000_000), *of([(1, 2, 4)])])
    bare = table.rows[0]
    assert (bare.peak, bare.rate, bare.tries) == (7_000_000, 1000.0, 1)


def test_cached_passes_are_compared_with_each_other_and_not_taken_for_the_best_peer() -> None:
    names = (*NAMES, "pydp2 cached", "tf.data cached", "pydp2 relaxed")
    (table,) = tables(of([(1, 2, 4, 2, 1, 1)], names))
    assert table.best == "torch"
    assert table.cached_ahead == 0.5
    assert table.strict_of_relaxed == 0.5
    assert table.first_behind == 2.0  # against tf.data cached, whose first batch comes soonest


def test_the_ceiling_reports_the_second_pass_and_what_the_busier_of_server_and_trainer_carries() -> None:
    runs = of([(4, 2), (4, 2), (4, 2)], ("pydp2", "spdl"))
    for one in runs:
        first, last = one["passes"]
        first |= {"server_cpu": 9.0, "trainer_cpu": 9.0}
        last |= {"server_cpu": 0.002 if one["contestant"] == "pydp2" else None, "trainer_cpu": 0.001}
    view = VIEWS["ceiling"]
    (table,) = tables(runs, view.passes)
    rows = {row.contestant: row for row in table.rows}
    assert [rows[name].rate for name in ("pydp2", "spdl")] == [500, 1000]
    assert [rows[name].server for name in ("pydp2", "spdl")] == [2.0, None]
    assert [rows[name].carries for name in ("pydp2", "spdl")] == [500_000, 1_000_000]
    assert table.ahead == rows["spdl"].ahead == 0.5
    assert list(view.sentences(table)) == [
        "best peer: spdl; pydp2 has 0.50x its samples/s",
    ]


def test_latency_is_the_median_of_rounds_and_the_longest_of_all() -> None:
    def felt(factor: float, late: float) -> dict[str, float]:
        return {"steps": 100, "p50": 1 * factor, "p99": 2 * factor, "max": 3 * factor, "late": late}

    runs = [run(number, "pydp2", 1) for number in (1, 2, 3)]
    for one, factor in zip(runs, (1, 2, 9), strict=True):
        one["passes"] = [one["passes"][0] | {"felt": felt(factor, factor / 10)}]
    view = VIEWS["latency"]
    (table,) = tables(runs, view.passes)
    assert table.rows[0].felt == {"steps": 100, "p50": 2, "p99": 4, "max": 27, "late": 0.2}
    assert list(view.sentences(table)) == []
    assert "| pydp2 | 2.00 | 4.00 | 27.00 | 20.0% | 100 |" in markdown([table], view)
    runs[0]["passes"][0]["felt"]["late"] = 0.95
    (sentence,) = view.sentences(tables(runs)[0])
    assert sentence.startswith("pydp2 took more than 1 ms at 90% of the steps: take a longer --step")


def test_workloads_and_numbers_of_workers_are_tables_of_their_own() -> None:
    runs = [{**r, "workers": workers} for workers in (1, 2) for r in of([(1, 2, 4)])]
    assert [(table.workload, table.workers) for table in tables(runs)] == [("words", 1), ("words", 2)]


def test_a_table_without_peers_or_without_any_run_that_got_through_is_shown_as_well() -> None:
    alone = tables(of([(1, 2)], ("bare", "pydp2")))
    failed = tables([{"round": 1, "workload": "rows", "workers": 2, "contestant": "torch", "failed": "no"}])
    text = markdown([*alone, *failed])
    assert "| pydp2 | 500 |" in text
    assert "- torch failed 1 of 1 times" in text
    assert all(line.count("|") == len(COLUMNS) + 1 for line in text.splitlines() if line.startswith("|"))
