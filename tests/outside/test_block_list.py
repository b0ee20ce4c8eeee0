"""Samples that a user never wants to have: a stream without them is the stream of data without them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any

import pytest

import pydp2
from pydp2.errors import OptionError, StateMismatch

from ..runs import wait_until

FILES = [f"f{i}" for i in range(10)]
COUNTS = [60 + 13 * i for i in range(10)]
BLOCKED = {(n, y) for n in (1, 2, 3, 5, 8) for y in Random(n).sample(range(COUNTS[n]), 15)}
BLOCKED |= {(4, y) for y in range(20, 70)} | {(6, y) for y in range(COUNTS[6])}
OPTIONS: dict[str, Any] = {"batch_size": 16, "seed": 3, "workers": 2}
# ``left_out``: samples that the generator itself leaves out, as a user would write it without a block list
CODE = """
def hook(settings, left_out=(), **kwargs):
    settings.left_out = set(map(tuple, left_out))

def weigh(sample):
    return sample[0] % 3 + 1

def samples(settings, filename, start=0):
    n = int(filename[1:])
    with open(Path(__file__).with_name("log"), "a") as log:
        log.write(filename + "\\n")
    for y in range(start, 60 + 13 * n):
        yield BadSample("left out", slot="x") if (n, y) in settings.left_out else n * 1000 + y
"""
YIELDS = """
@provider(input_types={"x": integer_value(100_000)}, init_hook=hook, pool_size=120, check=True,
          check_fail_continue=True, %s)
def process(settings, filename):
    yield from samples(settings, filename)
"""
STARTS = YIELDS.replace("filename):", "filename, start):").replace("filename)", "filename, start)")
ROWS = """
@provider(input_types={"x": integer_value(100_000)}, init_hook=hook, pool_size=120, %s)
def process(settings, filename):
    all_ = np.array([*samples(settings, filename)])
    for i in range(0, len(all_), 50):
        yield pydp2.rows(x=all_[i:i + 50])
"""
HEAD = "from pathlib import Path\nimport numpy as np\nimport pydp2\nfrom pydp2.errors import BadSample\n"


@pytest.fixture
def address(provider_file: Callable[..., str]) -> Callable[..., str]:
    return lambda code=YIELDS, options="": provider_file(HEAD + CODE + code % options)


@pytest.fixture
def listed(tmp_path: Path) -> Callable[..., str]:
    def write(blocked: Iterable[tuple[int, int]] = BLOCKED, name: str = "blocked.txt") -> str:
        lines = [f"{FILES[n]}\t{y}\n" for n, y in sorted(blocked)]
        (tmp_path / name).write_text("# not wanted\n" + "".join(lines))
        return str(tmp_path / name)

    return write


def batches(data: Any) -> list[list[int]]:
    return [batch[0].tolist() for batch in data]


def without(blocked: Iterable[tuple[int, int]] = BLOCKED) -> list[int]:
    blocked = {*blocked}
    return [n * 1000 + y for n, count in enumerate(COUNTS) for y in range(count) if (n, y) not in blocked]


def flat(found: list[list[int]]) -> list[int]:
    return sorted(x for batch in found for x in batch)


@pytest.mark.parametrize(
    ("code", "options"),
    [
        (YIELDS, ""),
        (YIELDS, "cache=CacheType.CACHE_PASS_IN_MEM"),
        pytest.param(YIELDS, "calc_batch_size=weigh, can_over_batch_size=False", id="weights"),
        pytest.param(YIELDS, "should_shuffle=False", marks=pytest.mark.slow),
        (ROWS, ""),
    ],
)
def test_the_stream_is_that_of_a_generator_that_drops_the_same_samples(
    code: str, options: str, address: Callable[..., str], listed: Callable[..., str]
) -> None:
    with pydp2.load(
        FILES, address(YIELDS, options), args={"left_out": [[*name] for name in sorted(BLOCKED)]}, on_error="skip",
        **OPTIONS,
    ) as data:  # fmt: skip
        expected = [batches(data) for _ in range(2)]
    with pydp2.load(FILES, address(code, options), block_list=listed(), error_budget=0, **OPTIONS) as data:
        found = [batches(data) for _ in range(2)]
        stats = data.stats()
        if "calc" not in options:
            assert len(data) == len(found[0])
    assert found == expected
    assert flat(found[0]) == without()
    assert (stats["blocked"], stats["dropped"]) == (len(BLOCKED), 0)


def test_files_without_blocked_samples_and_an_empty_list_change_nothing(
    address: Callable[..., str], listed: Callable[..., str]
) -> None:
    with pydp2.load(FILES, address(), **OPTIONS) as data:
        expected, state = batches(data), data.state_dict()
    with pydp2.load(FILES, address(), block_list=listed([]), **OPTIONS) as data:
        assert batches(data) == expected
        assert data.state_dict() == state
        assert data.stats()["blocked"] == 0


@pytest.mark.parametrize("last_batch", ["drop", "pad"])
def test_ranks_take_equally_many_steps(
    last_batch: str, address: Callable[..., str], listed: Callable[..., str]
) -> None:
    with pydp2.load(FILES, address(), block_list=listed(), **OPTIONS, last_batch="keep") as data:
        alone = batches(data)
    with pydp2.launch(FILES, address(), block_list=listed(), workers=2) as service, contextlib.ExitStack() as stack:
        job = {"batch_size": 16, "seed": 3, "last_batch": last_batch, "world_size": 3}
        ranks = [stack.enter_context(service.connect(rank=rank, **job)) for rank in range(3)]
        passes = [iter(rank) for rank in ranks]
        found: list[list[list[int]]] = [[], [], []]
        while None not in (step := [next(one, None) for one in passes]):
            for rank, batch in enumerate(step):
                found[rank].append(batch[0].tolist()[: len(batch) - batch.padding])
        assert step == [None] * 3
        assert {len(rank) for rank in ranks} == {len(found[0])}
    dealt = [batch for step in zip(*found, strict=True) for batch in step]
    assert dealt[: len(alone) - 1] == alone[: len(dealt)][: len(alone) - 1]
    if last_batch == "pad":
        assert flat(dealt) == without()


def test_the_cache_on_disk_serves_any_block_list(
    address: Callable[..., str], listed: Callable[..., str], tmp_path: Path
) -> None:
    options = {**OPTIONS, "cache_dir": tmp_path / "cache", "root": tmp_path}
    provider = address(YIELDS, "cache=CacheType.CACHE_PASS_ON_DISK")
    for blocked in (BLOCKED, [], [(1, 3), (1, 4), (7, 0), (9, 170)]):
        with pydp2.load(FILES, provider, **options, block_list=listed(blocked)) as data:
            found = [batches(data) for _ in range(2)]
            assert flat(found[0]) == flat(found[1]) == without(blocked)
            steps = len(data)
            state = data.state_dict()
            after = batches(data)
        assert steps == len(found[0])
        with pydp2.load(FILES, provider, **options, block_list=listed(blocked)) as data:
            assert len(data) == steps, "known from the start"
            assert batches(data) == found[0]
            data.load_state_dict(state)
            assert batches(data) == after
    assert sorted((tmp_path / "log").read_text().split()) == FILES, "each was read once for all of these"


def test_a_count_is_that_of_its_block_list(
    address: Callable[..., str], listed: Callable[..., str], tmp_path: Path
) -> None:
    options = {"cache_dir": tmp_path / "cache", "workers": 1}
    counted = pydp2.count(FILES, address(), block_list=listed(), **options)
    assert counted.samples == len(without())
    assert [file.samples for file in counted.files if file.file == "f6"] == [0]
    again = pydp2.count(FILES, address(), block_list=listed([(0, 1)]), **options)
    assert (again.samples, again.read) == (sum(COUNTS) - 1, 8), "only two files have the same blocked samples: none"
    with pydp2.load(FILES, address(), batch_size=10, block_list=listed(), **options) as data:
        steps = len(data)
        assert len(batches(data)) == steps


@pytest.mark.parametrize("code", [YIELDS, STARTS], ids=["", "start"])
def test_a_killed_worker_and_a_resume_change_nothing(
    code: str, address: Callable[..., str], listed: Callable[..., str]
) -> None:
    provider = address(code)
    with pydp2.load(FILES, provider, block_list=listed(), **OPTIONS) as data:
        expected = batches(data) + batches(data)
        states = []
    found = []
    with pydp2.load(FILES, provider, block_list=listed(), **OPTIONS) as data:
        for batch in data:
            found.append(batch[0].tolist())
            states.append(json.dumps(data.state_dict()))
            if batch.index in (3, 20):
                assert wait_until(lambda: len(data.stats()["workers"]) > 1), "the other one may still be forked"
                with contextlib.suppress(ProcessLookupError):
                    os.kill(data.stats()["workers"][batch.index % 2]["pid"], signal.SIGKILL)
    assert found == expected[: len(found)]
    for at in (0, len(states) // 2, len(states) - 4):
        with pydp2.load(FILES, provider, block_list=listed(), **{**OPTIONS, "workers": 1}) as data:
            data.load_state_dict(json.loads(states[at]))
            assert batches(data) == expected[at + 1 : len(found)]


def test_a_state_loads_with_another_block_list_between_two_passes_and_on_request_alone(
    address: Callable[..., str], listed: Callable[..., str]
) -> None:
    with pydp2.load(FILES, address(), **OPTIONS) as data:
        begin = iter(data)
        next(begin)
        middle = data.state_dict()
        for _ in begin:
            pass
        end = data.state_dict()
    assert (end["pass"], end["batch"]) == (1, 0)
    with pydp2.load(FILES, address(), block_list=listed(), **OPTIONS) as data:
        want = r'block_list was None, is \'.{16}\'; use .*; a state from between two passes .* allow=\["block_list"\]$'
        for state in (middle, end):
            with pytest.raises(StateMismatch, match=want):
                data.load_state_dict(state)
        with pytest.raises(StateMismatch, match="from the middle of pass 0, and another block list would give"):
            data.load_state_dict(middle, allow=["block_list"])
        data.load_state_dict(end, allow=["block_list"])
        after = batches(data)
        own = data.state_dict()
    with pydp2.load(FILES, address(), block_list=listed(), **OPTIONS) as data:
        batches(data)
        assert batches(data) == after
        data.load_state_dict(own)
    with (
        pydp2.load(FILES, address(), block_list=listed([(0, 0)]), **OPTIONS) as data,
        pytest.raises(StateMismatch, match=r"block_list was '.{16}', is '.{16}'"),
    ):
        data.load_state_dict(own)


def test_all_sources_of_a_mixture_have_one_block_list(address: Callable[..., str], listed: Callable[..., str]) -> None:
    sources: Any = {"one": FILES, "other": FILES[:2]}
    with pydp2.mix(sources, address(), weights={"one": 2, "other": 1}, block_list=listed(), **OPTIONS) as mixed:
        found = [(s, x) for batch in mixed for s, x in zip(batch.source.tolist(), batch[0].tolist(), strict=True)]  # type: ignore[attr-defined]
    kept = without()
    assert sorted(x for s, x in found if s == 0) == kept
    assert sorted(x for s, x in found if s == 1) == [x for x in kept if x < 2000], "of its two files"


def test_samples_that_a_file_does_not_have_are_reported_and_an_entry_that_is_not_there_is_an_error(
    address: Callable[..., str], listed: Callable[..., str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pydp2.load(FILES, address(), block_list=listed([(0, 59), (0, 60), (2, 900)]), **OPTIONS) as data:
        for _ in range(2):
            assert flat(batches(data)) == without([(0, 59)])
    said = capfd.readouterr().err
    assert said.count("block_list names 1 sample behind the end of file f0, such as sample 60: the file has 60") == 1
    assert said.count("behind the end of file f2, such as sample 900") == 1
    (tmp_path / "wrong.txt").write_text("f0\t1\nF1\t1\n")
    with pytest.raises(OptionError, match=r"wrong\.txt, line 2: the file list has no entry 'F1'"):
        pydp2.load(FILES, address(), block_list=tmp_path / "wrong.txt", **OPTIONS)


def test_a_bad_sample_that_is_blocked_is_no_loss(
    address: Callable[..., str], listed: Callable[..., str], tmp_path: Path
) -> None:
    bad, path = sorted(BLOCKED)[:40], tmp_path / "bad.jsonl"
    args = {"left_out": [*map(list, bad), [0, 0]]}
    with pydp2.load(
        FILES, address(), args=args, block_list=listed(), on_error="skip", error_budget=1, quarantine=path, **OPTIONS
    ) as data:
        assert flat(batches(data)) == without([*BLOCKED, (0, 0)])
    assert [(line["file"], line["y"]) for line in map(json.loads, path.read_text().splitlines())] == [("f0", 0)]


def test_a_pass_of_blocked_samples_alone_has_no_batches(provider_file: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "all.txt").write_text("a\t0-99\n")
    code = "@provider(input_types=[integer_value(100)])\ndef process(settings, filename):\n    yield from range(100)\n"
    with pydp2.load(["a"], provider_file(code), batch_size=10, workers=1, block_list=tmp_path / "all.txt") as data:
        assert [[*data] for _ in range(2)] == [[], []]
        assert len(data) == 0
