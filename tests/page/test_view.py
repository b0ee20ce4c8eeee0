"""Which looks at a service an answer is made of."""

from __future__ import annotations

from typing import Any

from pydp2.page.view import Looks


def test_an_answer_goes_back_to_looks_with_the_same_jobs_of_the_same_service() -> None:
    def look(uptime: float, *jobs: str) -> dict[str, Any]:
        return {"uptime_seconds": uptime, "jobs": dict.fromkeys(jobs)}

    looks = Looks()
    empty, first, second, third = look(1.0), look(2.0), look(3.0, "a"), look(4.0, "a")
    assert [looks.add(now) for now in (empty, first, second, third)] == [empty, empty, empty, second]
    assert looks.add(look(5.0, "a", "b")) == empty, "no look knows both"
    assert looks.add(look(6.0)) == empty, "a job that left takes nothing away"
    again = look(0.5, "a")
    assert looks.add(again) is again
    assert all(looks.add(look(float(second), "a")) is not None for second in range(1, 30))
    assert looks.add(look(40.0, "a"))["uptime_seconds"] == 20.0
    looks.clear()
    assert looks.add(look(41.0, "a"))["uptime_seconds"] == 41.0
