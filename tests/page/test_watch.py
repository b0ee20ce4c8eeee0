"""Looks at a service, once a second, whatever the clock of the machine does."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

import pydp2
from pydp2.page import watch as module
from pydp2.page.history import History
from pydp2.page.watch import Watch
from tests.runs import NUMBERS, wait_until


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """``set_clock(seconds)`` sets the clock that looks are told by so many seconds ahead."""
    seconds = [0.0]

    class Clock:
        monotonic = staticmethod(time.monotonic)

        @staticmethod
        def time() -> float:
            return time.time() + seconds[0]

    def set_it(ahead: float) -> None:
        seconds[0] = ahead

    monkeypatch.setattr(module, "time", Clock)
    return set_it


@pytest.mark.parametrize("ahead", [-3600.0, 3600.0])
def test_points_go_on_when_the_clock_is_set(
    ahead: float, set_clock: Callable[[float], None], provider_file: Callable[[str], str]
) -> None:
    with pydp2.launch(["1"], provider_file(NUMBERS), workers=1) as service:
        watch = Watch(service.stats)
        try:
            assert wait_until(lambda: bool(watch.snapshot()["points"]))
            latest = watch.snapshot()["points"][-1]["time"]
            set_clock(ahead)
            assert wait_until(lambda: bool(watch.snapshot(latest)["points"]), 20)
            found = watch.snapshot()
        finally:
            watch.close()
    times = [point["time"] for point in found["points"]]
    assert all(0 < after - before < 60 for before, after in pairwise(times))


def test_points_come_after_those_of_a_file_from_the_future(provider_file: Callable[[str], str], tmp_path: Path) -> None:
    history, latest = History(), time.time() + 1e6
    history.add({"time": latest})
    history.save(tmp_path / "points")
    with pydp2.launch(["1"], provider_file(NUMBERS), workers=1) as service:
        watch = Watch(service.stats, tmp_path / "points")
        try:
            assert wait_until(lambda: len(watch.snapshot(latest)["points"]) >= 1)
        finally:
            watch.close()
    again = History()
    again.load(tmp_path / "points")
    assert again.latest > latest
