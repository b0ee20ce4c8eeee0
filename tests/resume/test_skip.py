"""``load_state_dict(state, skip=…)``: batches that are passed over, and nothing else changes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import Any

import numpy as np
import pytest

import pydp2
from pydp2.errors import OptionError, OptionTypeError
from pydp2.frameworks.loader import FrameworkLoader
from tests.provider_code import numbers

FILES = [str(n) for n in range(6)]
SKIP = [12, *range(20, 24)]
Seen = list[tuple[int, int, list[int]]]


@pytest.fixture
def provider(provider_file: Callable[[str], str]) -> str:
    return provider_file(numbers(70, "pool_size=64", first="int(filename) * 1000"))


def sign(batch: pydp2.Batch) -> tuple[int, int, list[int]]:
    return batch.pass_id, batch.index, batch[0].tolist()  # type: ignore[union-attr]


def saved(state: Any) -> Any:
    return json.loads(json.dumps(state))


@pytest.fixture
def uninterrupted(provider: str) -> tuple[Seen, Any]:
    """The batches of two passes, and the state before batch 10 of the first one."""
    with pydp2.load(FILES, provider, batch_size=8, workers=2) as data:
        seen = []
        for _ in range(2):
            for batch in data:
                seen.append(sign(batch))
                if seen[-1][:2] == (0, 9):
                    state = saved(data.state_dict())
    return seen, state


def without(seen: Seen, skip: list[int], after: int = 9) -> Seen:
    return [each for each in seen if each[0] or (each[1] > after and each[1] not in skip)]


def test_all_other_batches_stay_what_they_were_and_the_next_pass_has_all(
    provider: str, uninterrupted: tuple[Seen, Any]
) -> None:
    seen, state = uninterrupted
    with pydp2.load(FILES, provider, batch_size=8, workers=2) as data:
        data.load_state_dict(state, skip=SKIP)
        assert [sign(batch) for _ in range(2) for batch in data] == without(seen, SKIP)
        assert len(data) == max(index for _, index, _ in seen) + 1


@pytest.mark.parametrize("at", [10, 11, 15, 19, 24])
def test_a_later_state_passes_over_what_is_to_come(provider: str, uninterrupted: tuple[Seen, Any], at: int) -> None:
    seen, state = uninterrupted
    with pydp2.load(FILES, provider, batch_size=8, workers=1) as data:
        data.load_state_dict(state, skip=SKIP)
        state = saved(data.state_dict())
        for batch in data:
            state = saved(data.state_dict())
            if batch.index >= at:
                break
    with pydp2.load(FILES, provider, batch_size=8, workers=3) as data:
        data.load_state_dict(state)
        assert [sign(batch) for batch in data] == [each for each in without(seen, SKIP, at) if not each[0]]


def test_numbers_of_numpy_and_batches_behind_the_end_are_allowed(
    provider: str, uninterrupted: tuple[Seen, Any]
) -> None:
    seen, state = uninterrupted
    with pydp2.load(FILES, provider, batch_size=8, workers=1) as data:
        data.load_state_dict(state, skip=np.arange(30, 2000))
        assert [sign(batch) for batch in data] == [each for each in seen if not each[0] and 9 < each[1] < 30]
        data.load_state_dict(state, skip=range(10, 1000))
        assert [sign(batch) for batch in data] == []
        assert [sign(batch) for batch in data] == [each for each in seen if each[0]]


def test_a_mixture_passes_over_batches_and_its_others_stay_what_they_were(provider: str) -> None:
    def mixed() -> pydp2.Client:
        return pydp2.mix([(FILES[:2], 1), (FILES[2:], 3)], provider, batch_size=8, workers=1)

    with mixed() as data:
        seen = []
        for batch in data:
            seen.append(sign(batch))
            if batch.index == 9:
                state = saved(data.state_dict())
    with mixed() as data:
        data.load_state_dict(state, skip=SKIP)
        assert [sign(batch) for batch in data] == without(seen, SKIP)


def test_ranks_pass_over_whole_steps(provider: str) -> None:
    def read(rank: int, state: Any = None, skip: Any = ()) -> tuple[Seen, Any]:
        seen, found = [], None
        with service.connect(batch_size=8, rank=rank, world_size=2, job=f"{state is None}", last_batch="drop") as data:
            if state is not None:
                data.load_state_dict(state, skip=skip)
            for batch in data:
                seen.append(sign(batch))
                if batch.index // 2 == 4:
                    found = saved(data.state_dict())
        return seen, found

    with pydp2.launch(FILES, provider, workers=1) as service, ThreadPoolExecutor(2) as pool:
        (first, state), (second, same) = pool.map(read, range(2))
        assert state == same
        found = [*pool.map(read, range(2), [state] * 2, [[13, 20]] * 2)]
    for seen, (after, _) in zip((first, second), found, strict=True):
        assert after == [each for each in seen if each[1] > 9 and each[1] // 2 not in (6, 10)]


def test_a_worker_that_dies_and_a_loop_that_is_cut_off_change_nothing(
    provider_file: Callable[[str], str], uninterrupted: tuple[Seen, Any]
) -> None:
    seen, state = uninterrupted
    slow = provider_file(numbers(70, "pool_size=64", first="int(filename) * 1000"))  # the same file, so the same code
    with pydp2.load(FILES, slow, batch_size=8, workers=2) as data:
        data.load_state_dict(state, skip=SKIP)
        found = []
        for batch in data:
            found.append(sign(batch))
            if len(found) in (3, 9):
                for worker in data.stats()["workers"]:
                    with suppress(ProcessLookupError):
                        os.kill(worker["pid"], signal.SIGKILL)
        assert found == [each for each in without(seen, SKIP) if not each[0]]


def test_a_loader_of_a_framework_and_its_state_pass_over_them_too(
    provider: str, uninterrupted: tuple[Seen, Any]
) -> None:
    seen, state = uninterrupted
    wanted = [each for each in without(seen, SKIP) if not each[0]]
    with closing(FrameworkLoader(pydp2.load(FILES, provider, batch_size=8, workers=1), sign)) as loader:
        loader.load_state_dict(state, skip=SKIP)
        again = saved(loader.state_dict())
        assert [*loader] == wanted
        loader.load_state_dict(again)
        assert [*loader] == wanted


def test_what_cannot_be_passed_over_is_refused_and_the_stream_stays(
    provider: str, uninterrupted: tuple[Seen, Any]
) -> None:
    seen, state = uninterrupted
    with pydp2.load(FILES, provider, batch_size=8, workers=1) as data:
        for skip, kind, text in (
            ([9], OptionError, "skip names batch 9, and the state is before batch 10 of pass 0"),
            (range(10, 10**9), OptionError, "skip may name 4,096 batches at most, got 999,999,990"),
            ("12", OptionTypeError, "skip must be numbers of batches"),
            ([True], OptionTypeError, "skip must be numbers of batches"),
            ([1.5], OptionTypeError, "skip must be numbers of batches"),
        ):
            with pytest.raises(kind, match=text):
                data.load_state_dict(state, skip=skip)  # type: ignore[arg-type]
        assert [sign(batch) for batch in data] == [each for each in seen if not each[0]]
    relaxed = pydp2.load(FILES, provider, batch_size=8, workers=1, order="relaxed")
    with relaxed, pytest.raises(OptionError, match='skip needs order="strict"'):
        relaxed.load_state_dict(relaxed.state_dict(), skip=[3])
