"""The sample that takes long is that of the longest wait of all workers."""

from __future__ import annotations

from typing import Any

import pytest

from pydp2.system.long_sample import long_sample


def worker(number: int, seconds: float) -> dict[str, Any]:
    return {"worker": number, "file": "a.txt", "sample": 10 + number, "sample_seconds": seconds}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        ([], ""),
        ([0.0, 4.9], ""),
        ([0.0, 5.0], "worker 1 is at sample 11 of a.txt for 5 s"),
        ([80.2, 5.0], "worker 0 is at sample 10 of a.txt for 80 s"),
    ],
)
def test_the_sample_that_takes_longest_is_named_from_five_seconds_on(seconds: list[float], text: str) -> None:
    assert long_sample(worker(number, taken) for number, taken in enumerate(seconds)) == text
