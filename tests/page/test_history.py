"""What is kept of a service: a fixed number of points, whatever its age."""

from __future__ import annotations

import json
import os
import re
from itertools import pairwise
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


def file_text(**changed: object) -> str:
    """The text of a history, of which some values are others."""
    point = {"time": 1.0, "rate": 2.0}
    plain = {"format": 1, "recent": [point, {"time": 2.0}], "coarse": [point], "pending": [{"time": 2.0}], "seconds": 2}
    return json.dumps({name: value for name, value in (plain | changed).items() if value is not None})


def loaded(text: str | bytes, path: Path) -> History:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    history = History(10, 8)
    history.load(path)
    return history


DAMAGED = [
    "", "{", "[]", "null", "[" * 100_000, '{"format": 9}', '{"format": 1, "recent": 5}',
    file_text(format=None), file_text(format=2), file_text(seconds=None), file_text(seconds=0),
    file_text(seconds=1e999), file_text(seconds=1), file_text(seconds=1 << 40), file_text(seconds=10**400),
    file_text(recent=[{"rate": 1.0}]),
    file_text(recent=[{"time": float("nan")}]), file_text(coarse=[{"time": 1.0, "rate": float("inf")}]),
    file_text(pending=[{"time": 10**400}]), file_text(recent=[{"time": 1.0, "rate": 1e308}]),
    file_text(recent=[{"time": True}]), file_text(recent=[{"time": 1.0, "rate": None}]),
    file_text(recent={"time": 1.0}),
    file_text(recent=[{"time": 2.0}, {"time": 1.0}]), file_text(coarse=[{"time": 3.0}]), file_text(coarse=[3.0]),
    file_text(coarse=[{"time": n} for n in range(8)], pending=[]),
]  # fmt: skip


@pytest.mark.parametrize("text", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_file_is_no_history(text: str, tmp_path: Path) -> None:
    assert len(loaded(file_text(), tmp_path / "points").recent()) == 2
    history = loaded(text, tmp_path / "points")
    history.load(tmp_path / "none")
    assert (history.recent(), history.whole(), history.latest) == ([], [], 0.0)


def test_what_is_no_regular_file_is_no_history(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    history = History()
    for endless in (tmp_path / "pipe", Path("/dev/zero")):
        history.load(endless)
    assert history.recent() == []


TOKENS = [
    "NaN",
    "-Infinity",
    "1e999",
    "-1",
    "0",
    "1" + "0" * 400,
    "9" * 5000,
    "null",
    "true",
    "[]",
    "{}",
    '"x"',
    "\udcff",
]


@given(st.data())
def test_no_change_of_a_file_is_an_accident(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.getbasetemp() / "mutated"
    filled(30).save(path)
    text = path.read_bytes()
    for _ in range(data.draw(st.integers(1, 3))):
        if data.draw(st.booleans()):  # a value
            places = [match.span() for match in re.finditer(rb"[\d.]+|\{[^{}]*\}", text)] or [(0, 0)]
            begin, end = data.draw(st.sampled_from(places))
            new = data.draw(st.sampled_from(TOKENS)).encode(errors="surrogateescape")
        else:
            begin, end = sorted(data.draw(st.tuples(*[st.integers(0, len(text))] * 2)))
            new = data.draw(st.binary(max_size=4))
        text = text[:begin] + new + text[end:]
    history = loaded(text, path)
    for second in range(1, 20):
        history.add({"time": history.latest + second, "rate": 1.0})
    points, whole = history.recent(), history.whole()
    json.dumps([points, whole], allow_nan=False)
    for found in (points, whole):
        assert all(before["time"] < after["time"] for before, after in pairwise(found))
