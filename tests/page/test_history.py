"""What is kept of a service: a fixed number of points, whatever its age."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.page.history import History, mean


def filled(count: int, recent: int = 10, coarse: int = 8) -> History:
    history = History(recent, coarse)
    for second in range(1, count + 1):
        history.add({"time": float(second), "rate": float(second % 7)})
    return history


@given(st.integers(0, 500))
def test_the_last_points_are_kept_and_the_coarse_ones_are_means_of_all(count: int) -> None:
    history = filled(count)
    assert [point["time"] for point in history.recent()] == list(range(max(0, count - 10) + 1, count + 1))
    whole = history.whole()
    assert len(whole) <= 8
    if count:
        size = history.seconds_of_coarse
        expected = [mean([{"time": s + 1.0} for s in range(at, min(at + size, count))]) for at in range(0, count, size)]
        assert [point["time"] for point in whole] == [pytest.approx(point["time"]) for point in expected]


def test_a_reader_gets_what_is_new(tmp_path: Path) -> None:
    assert [point["time"] for point in filled(20).recent(after=18.0)] == [19.0, 20.0]


def test_a_number_that_some_points_lack_is_the_mean_of_the_others() -> None:
    assert mean([{"time": 1.0, "a": 4.0}, {"time": 3.0}]) == {"time": 2.0, "a": 4.0}


def test_points_outlive_the_process(tmp_path: Path) -> None:
    history, again = filled(100), History(10, 8)
    history.save(tmp_path / "points")
    again.load(tmp_path / "points")
    assert (again.recent(), again.whole()) == (history.recent(), history.whole())
    again.add({"time": 101.0, "rate": 1.0})
    assert again.recent()[-1]["time"] == 101.0


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 9}', '{"format": 1, "recent": 5}', "null"])
def test_a_damaged_file_is_no_history(text: str, tmp_path: Path) -> None:
    (tmp_path / "points").write_text(text)
    history = History()
    history.load(tmp_path / "points")
    history.load(tmp_path / "none")
    assert history.recent() == []
