"""Files of a provider that can begin at any sample are read from the first sample that is needed, after a death and on
resume; what they give is what a whole reading gives."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pydp2
from pydp2.errors import NotRepeatable

FILES, SAMPLES = 12, 3000
CODE = """
import os, random
import numpy as np
import pydp2

def note(text):
    with open(os.environ.get("CALLS", os.devnull), "a") as file:
        file.write(text)

@provider(input_types={{"y": integer_value(1 << 40), "drawn": dense_vector(2, dtype="float64")}}, {options})
def process(settings, filename{start}):
    {first}
    number, {more}
    y = first
    try:
        while y < {samples}:
            {before}
            {make}
    finally:
        note(f"{{number}} {{first}} {{y}}\\n")
"""
ONE = 'yield {"y": 10**6 * number + y, "drawn": [random.random(), settings.rng.random()]}; y += 1'
BLOCK = """
            count = min(700, 3000 - y)
            yield pydp2.rows(y=10**6 * number + np.arange(y, y + count), drawn=np.zeros((count, 2)))
            y += count
"""


SELECT = """
import os
import numpy as np
import pydp2

@provider(input_types={"y": integer_value(1 << 40), "drawn": dense_vector(2, dtype="float64")}, pool_size=500)
def process(settings, filename, start, indices):
    wanted = np.arange(start, 3000) if indices is None else indices
    drawn = 0
    try:
        YIELD
    finally:
        with open(os.environ.get("CALLS", os.devnull), "a") as file:
            file.write(f"{filename} 0 {drawn}\\n")
"""
SELECT_BLOCKS = SELECT.replace("YIELD", """
        for lo in range(0, len(wanted), 200):
            ys = wanted[lo : lo + 200]
            drawn += len(ys)
            yield pydp2.rows(y=10**6 * int(filename) + ys, drawn=np.stack([ys, ys + 0.5], 1))
""")  # fmt: skip
SELECT_ONE = SELECT.replace("YIELD", """
        for y in wanted.tolist():
            drawn += 1
            yield {"y": 10**6 * int(filename) + y, "drawn": [y, settings.rng.random()]}
""")  # fmt: skip


def code(*, start: bool, make: str = ONE, before: str = "pass", options: str = "pool_size=500") -> str:
    return CODE.format(
        start=", start" if start else "", first="first = start" if start else "first = 0", more="_ = int(filename), 0",
        samples=SAMPLES, before=before, make=make, options=options,
    )  # fmt: skip


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[tuple[int, int, int]]]:
    """``calls()``: file, start and end of each run of ``process`` since the last call."""
    path = tmp_path / "calls"
    monkeypatch.setenv("CALLS", str(path))

    def read() -> list[tuple[int, int, int]]:
        found = [tuple(map(int, line.split())) for line in path.read_text().splitlines()] if path.exists() else []
        path.unlink(missing_ok=True)
        return found  # type: ignore[return-value]

    return read


def values(batch: pydp2.Batch) -> list[Any]:
    return [batch["y"].tolist(), batch["drawn"].tolist()]


OPTIONS: dict[str, Any] = {"batch_size": 50, "seed": 3, "interleave": 4, "workers": 2}
NAMES = [str(number) for number in range(FILES)]


@pytest.mark.parametrize(
    ("process", "again"),
    [
        # the pool lies in the last ten pools or so of reading, of which some is cut up to the edges of chunks
        (code(start=True, make=ONE), 15 * 500 + 4 * 2000),
        (code(start=True, make=BLOCK), 15 * 500 + 4 * 2000),
        (SELECT_BLOCKS, 500 + 4 * 2000),
        (SELECT_ONE, 500 + 4 * 2000),
    ],
    ids=["one", "block", "select blocks", "select one"],
)
@pytest.mark.parametrize("shuffle", [True, False])
def test_a_resume_goes_on_with_the_same_batches_and_reads_what_is_needed(
    process: str, again: int, shuffle: bool,
    provider_file: Callable[[str], str], calls: Callable[[], list[tuple[int, int, int]]],
) -> None:  # fmt: skip
    address = provider_file(process)
    seen, states = [], []
    with pydp2.load(NAMES, address, shuffle=shuffle, **OPTIONS) as data:
        for batch in data:
            seen.append(values(batch))
            states.append(json.dumps(data.state_dict()))
    assert len(seen) == FILES * SAMPLES // 50
    calls()
    for at in (100, 400, 700):
        with pydp2.load(NAMES, address, shuffle=shuffle, **{**OPTIONS, "workers": 1 + at % 2}) as data:
            data.load_state_dict(json.loads(states[at]))
            rest = [values(batch) for batch in data]
        assert rest == seen[at + 1 :]
        run = sum(end - start for _, start, end in calls())
        needed = (len(seen) - at) * 50
        assert run < needed + again
        assert run >= needed


def test_a_state_of_a_pass_that_was_taken_up_is_the_state_of_the_whole_pass(
    provider_file: Callable[[str], str],
) -> None:
    """Three times in a row, each from a state of the one before."""
    address = provider_file(code(start=True))
    with pydp2.load(NAMES, address, **OPTIONS) as data:
        seen = [values(batch) for batch in data]
    state, got = None, []
    for _ in range(4):
        with pydp2.load(NAMES, address, **OPTIONS) as data:
            if state is not None:
                data.load_state_dict(state)
            for batch in data:
                got.append(values(batch))
                if len(got) % 170 == 0:
                    state = json.loads(json.dumps(data.state_dict()))
                    break
    with pydp2.load(NAMES, address, **OPTIONS) as data:
        assert state is not None
        data.load_state_dict(state)
        got += [values(batch) for batch in data]
    assert got == seen


def test_the_batches_are_those_of_the_same_provider_without_start(provider_file: Callable[[str], str]) -> None:
    """But for the random numbers, which belong to the sample there and to the file here."""
    found = []
    for start in (True, False):
        with pydp2.load(NAMES, provider_file(code(start=start)), **OPTIONS) as data:
            found.append([batch["y"].tolist() for batch in data])
    assert found[0] == found[1]


@pytest.mark.parametrize("make", [ONE, BLOCK], ids=["one", "block"])
def test_after_a_death_a_file_goes_on_one_chunk_before_what_is_committed(
    make: str,
    provider_file: Callable[[str], str],
    tmp_path: Path,
    calls: Callable[[], list[tuple[int, int, int]]],
) -> None:
    marker = tmp_path / "died"
    before = f"""
            if y >= 2800 and number == 1 and not os.path.exists({str(marker)!r}):
                open({str(marker)!r}, "w").close()
                time.sleep(0.2)  # what was sent arrives
                os._exit(3)
    """
    with pydp2.load(["0", "1"], provider_file(code(start=True, make=make)), workers=1, batch_size=50, seed=3) as data:
        seen = [values(batch) for batch in data]
        assert data.stats()["workers_lost"] == 0
    calls()
    address = provider_file("import time\n" + code(start=True, make=make, before=before))
    with pydp2.load(["0", "1"], address, workers=1, batch_size=50, seed=3) as data:
        assert [values(batch) for batch in data] == seen
        assert data.stats()["workers_lost"] == 1
    starts = [start for number, start, _ in calls() if number == 1]
    assert len(starts) == 1  # the one that died wrote nothing
    assert starts[0] > 0, "where it is depends on how much had arrived"


def test_a_start_that_gives_other_samples_is_not_repeatable_and_says_start(
    provider_file: Callable[[str], str], tmp_path: Path, calls: Callable[[], list[tuple[int, int, int]]]
) -> None:
    """The samples of this one depend on where it begins."""
    wrong = ONE.replace("random.random()", "first")
    address = provider_file(code(start=True, make=wrong))
    with pydp2.load(NAMES, address, **OPTIONS) as data:
        for batch in data:
            state = data.state_dict()
            if batch.index == 300:
                break
    with pydp2.load(NAMES, address, **OPTIONS) as data:
        data.load_state_dict(state)
        with pytest.raises(NotRepeatable, match=r"with start=\d+ did not yield what it gave before"):
            list(data)


@pytest.mark.parametrize("options", ["pool_size=500, cache=CacheType.CACHE_PASS_IN_MEM", "pool_size=500, check=True"])
def test_other_options_do_not_change_what_a_resume_gives(options: str, provider_file: Callable[[str], str]) -> None:
    address = provider_file(code(start=True, options=options))
    with pydp2.load(NAMES, address, **OPTIONS) as data:
        seen, states = [], []
        for _ in range(2):
            for batch in data:
                seen.append(values(batch))
                states.append(data.state_dict())
    for at in (300, len(seen) // 2 + 200):
        with pydp2.load(NAMES, address, **OPTIONS) as data:
            data.load_state_dict(states[at])
            rest = [values(batch) for batch in data]
        end = len(seen) // 2 if at < len(seen) // 2 else len(seen)
        assert rest == seen[at + 1 : end]


def test_buckets_and_dropped_samples_go_on_too(provider_file: Callable[[str], str]) -> None:
    """A sample that is bad is dropped at its index, from wherever the file is read."""
    make = 'yield {"y": -1 if y % 97 == 5 else y, "drawn": [0.0] * 2}; y += 1'
    address = provider_file(code(start=True, make=make, options="pool_size=500, check=True, check_fail_continue=True"))
    with pydp2.load(NAMES, address, on_error="skip", **OPTIONS) as data:
        seen, states = [], []
        for batch in data:
            seen.append(values(batch))
            states.append(data.state_dict())
    with pydp2.load(NAMES, address, on_error="skip", **OPTIONS) as data:
        data.load_state_dict(states[333])
        assert [values(batch) for batch in data] == seen[334:]
    assert len(np.concatenate([batch[0] for batch in seen])) == FILES * (SAMPLES - len(range(5, SAMPLES, 97)))
