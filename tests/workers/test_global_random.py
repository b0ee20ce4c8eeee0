"""What process() draws from the global random generators depends on seed, pass and file alone."""

from __future__ import annotations

import itertools
import os
import signal
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pydp2
from pydp2.providers import resolve

from ..provider_code import yields
from ..runs import one_pass

# Each file takes long enough to be open together with others, and its length is drawn too.
CODE = """
import random, time
import numpy as np
from pydp2 import rows, scalar

at_import = random.random() + np.random.rand()

def hook(settings, **_):
    settings.table = [random.random() + np.random.normal() for _ in range(3)]

def weigh(values):
    return 1 + random.randrange(3) + int(np.random.randint(2))

@provider(input_types=[integer_value(100), scalar("float64"), scalar("float64"), scalar("float64")], init_hook=hook,
          pool_size=300{arguments})
def process(settings, filename):
    number = int(filename)
    try:
        for _ in range(10 + random.randrange(60)):
            if not random.randrange(20):
                time.sleep(0.002)
            {give}
    finally:
        random.random(), np.random.rand()
"""
ONE = "yield number, at_import + settings.table[0], random.gauss(0, 1), np.random.normal()"
BLOCK = """
            count = random.randrange(1, 30)
            yield rows([number] * count, [settings.table[1]] * count, np.random.normal(size=count),
                       [random.random() for _ in range(count)])
"""
BAD = ONE + "\n            if not np.random.randint(9): yield 'bad', 0.0, 0.0, 0.0"
FILES = [str(number) for number in range(24)]
Rows = dict[int, list[tuple[float, ...]]]


def code(give: str = ONE, arguments: str = "") -> str:
    return CODE.format(give=give, arguments=arguments)


def rows_of(data: pydp2.Client, each: Callable[[pydp2.Batch], object] = len) -> Rows:
    """The rows of a pass by file, each file's in an order that is the same however the files were mixed."""
    found: defaultdict[int, list[tuple[float, ...]]] = defaultdict(list)
    for batch in data:
        each(batch)
        for row in zip(*(batch[slot].tolist() for slot in range(4)), strict=True):
            found[row[0]].append(row[1:])
    return {file: sorted(found[file]) for file in sorted(found)}


def by_hand(address: str, pass_id: int, seed: int) -> Rows:
    """The rows of that pass without a service: each file as it is in a list where it has this number."""
    read = resolve(address).reader(FILES, seed=seed)
    for _ in range(pass_id):
        read()
    found: defaultdict[int, list[tuple[float, ...]]] = defaultdict(list)
    for sample in read():
        found[sample[0]].append(tuple(map(float, sample[1:])))
    return {file: sorted(found[file]) for file in sorted(found)}


def without_import(rows: Rows, give: str) -> Rows:
    """What a module draws at its import is the program's affair where the program imports it."""
    return rows if give is BLOCK else {file: [row[1:] for row in some] for file, some in rows.items()}


@pytest.mark.parametrize(
    ("give", "arguments"),
    [
        pytest.param(ONE, "", marks=pytest.mark.slow),
        pytest.param(ONE, ", calc_batch_size=weigh", marks=pytest.mark.slow),  # "dropped" has its steps
        pytest.param(BLOCK, "", marks=pytest.mark.slow),
        (BLOCK, ", calc_batch_size=weigh"),
        (BAD, ", check=True, check_fail_continue=True, calc_batch_size=weigh"),
    ],
    ids=["one", "weighted", "blocks", "weighted blocks", "dropped"],
)
def test_any_number_of_workers_draws_the_same_in_each_pass(
    give: str, arguments: str, provider_file: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    address = provider_file(code(give, arguments))
    passes: list[list[Rows]] = []
    for workers, start, pure in ((1, "auto", "0"), (3, "auto", "0"), (2, "spawn", "0"), (2, "auto", "1")):
        monkeypatch.setenv("PYDP2_PURE_PYTHON", pure)
        with pydp2.load(FILES, address, workers=workers, batch_size=16, seed=5, start=start) as data:  # type: ignore[arg-type]
            passes.append([rows_of(data), rows_of(data)])
    assert passes[0] == passes[1] == passes[2] == passes[3]
    first, second = passes[0]
    assert len(first) == len(second) == len(FILES)
    assert all(first[file] != second[file] for file in first)
    assert without_import(by_hand(address, 0, 5), give) == without_import(first, give)
    with pydp2.load(FILES, address, workers=2, batch_size=16, seed=6) as data:
        assert rows_of(data) != first


def test_workers_that_die_change_nothing(provider_file: Callable[[str], str]) -> None:
    address = provider_file(code())
    with pydp2.load(FILES, address, workers=1, batch_size=4, seed=5) as data:
        undisturbed = [rows_of(data), rows_of(data)]
    killed: set[int] = set()

    def kill(batch: pydp2.Batch) -> None:
        if batch.index % 12 == 6:
            read = [each["pid"] for each in data.stats()["workers"] if each["active"] and each["samples_per_second"]]
            if living := [pid for pid in read if pid not in killed]:
                killed.add(living[0])
                os.kill(living[0], signal.SIGKILL)

    with pydp2.load(FILES, address, workers=3, batch_size=4, seed=5) as data:
        assert [rows_of(data, kill), rows_of(data, kill)] == undisturbed
    assert len(killed) >= 3


def test_a_job_that_goes_on_draws_the_same(provider_file: Callable[[str], str]) -> None:
    address = provider_file(code())

    def batches(data: pydp2.Client, most: int | None = None) -> list[list[Any]]:
        got = []
        for batch in data:
            got.append([batch[slot].tolist() for slot in range(4)])
            if len(got) == most:
                break
        return got

    with pydp2.load(FILES, address, workers=1, batch_size=8, seed=5) as data:
        undisturbed = batches(data)
    with pydp2.load(FILES, address, workers=3, batch_size=8, seed=5) as data:
        got = batches(data, 20)
        state = data.state_dict()
    with pydp2.load(FILES, address, workers=2, batch_size=8, seed=5) as data:
        data.load_state_dict(state)
        assert got + batches(data) == undisturbed


def test_two_jobs_of_a_service_draw_the_same_from_their_seeds(provider_file: Callable[[str], str]) -> None:
    """Their generators of one file are open in one worker together."""
    address = provider_file(code())
    alone: dict[int, Rows] = {}
    for seed in (5, 6):
        with pydp2.load(FILES, address, workers=1, batch_size=8, seed=seed) as data:
            alone[seed] = rows_of(data)
    with (
        pydp2.launch(FILES, address, workers=1) as service,
        pydp2.connect(service.address, job="a", batch_size=8, seed=5) as one,
        pydp2.connect(service.address, job="b", batch_size=8, seed=6) as other,
    ):
        found: dict[int, Rows] = {5: {}, 6: {}}
        streams = {5: iter(one), 6: iter(other)}
        while streams:
            for seed, stream in list(streams.items()):
                batch = next(stream, None)
                if batch is None:
                    del streams[seed]
                    continue
                for row in zip(*(batch[slot].tolist() for slot in range(4)), strict=True):
                    found[seed].setdefault(row[0], []).append(row[1:])
    assert {seed: {f: sorted(rows[f]) for f in sorted(rows)} for seed, rows in found.items()} == alone


def test_a_trainer_that_leaves_in_the_middle_disturbs_no_file(provider_file: Callable[[str], str]) -> None:
    """Its generators are closed in the turns of others, and draw in their finally blocks."""
    address = provider_file(code())
    with pydp2.load(FILES, address, workers=1, batch_size=8, seed=5) as data:
        alone = rows_of(data)
    with pydp2.launch(FILES, address, workers=1) as service:
        with pydp2.connect(service.address, job="a", batch_size=8, seed=6) as other:
            next(iter(other))
            with pydp2.connect(service.address, job="b", batch_size=8, seed=5) as one:
                rows = rows_of(one, lambda batch: other.close() if batch.index == 3 else None)
        assert rows == alone


def test_the_numbers_of_a_cached_pass_are_those_of_the_pass_that_filled_it(provider_file: Callable[[str], str]) -> None:
    address = provider_file(code(arguments=", cache=CacheType.CACHE_PASS_IN_MEM"))
    with pydp2.load(FILES, address, workers=3, batch_size=8, seed=5) as data:
        first = rows_of(data)
        assert rows_of(data) == first
    with pydp2.load(FILES, address, workers=1, batch_size=8, seed=5) as data:
        assert rows_of(data) == first


@pytest.mark.parametrize("kind", ["CACHE_PASS_IN_MEM", "CACHE_PASS_ON_DISK"])
def test_a_cache_that_a_stop_has_left_empty_gets_the_same_numbers_in_a_later_pass(
    kind: str, provider_file: Callable[[str], str], tmp_path: Path
) -> None:
    """A pass that goes on on another service does not fill its cache: the pass after it reads the files again."""
    address = provider_file(code(arguments=f", cache=CacheType.{kind}"))
    options: dict[str, Any] = {"batch_size": 8, "seed": 5, "shuffle": False}

    def batches(data: pydp2.Client, passes: int) -> list[list[Any]]:
        return [[batch[slot].tolist() for slot in range(4)] for _ in range(passes) for batch in data]

    with pydp2.load(FILES, address, workers=2, cache_dir=tmp_path / "a", **options) as data:
        undisturbed = batches(data, 2)
    with pydp2.load(FILES, address, workers=1, cache_dir=tmp_path / "b", **options) as data:
        got = [[batch[slot].tolist() for slot in range(4)] for batch in itertools.islice(data, 20)]
        state = data.state_dict()
    with pydp2.load(FILES, address, workers=3, cache_dir=tmp_path / "c", **options) as data:
        data.load_state_dict(state)
        assert got + batches(data, 1) + batches(data, 1) == undisturbed
        in_second_pass = data.state_dict()
    with pydp2.load(FILES, address, workers=1, cache_dir=tmp_path / "d", **options) as data:
        data.set_epoch(1)
        assert batches(data, 1) == undisturbed[len(undisturbed) // 2 :]
    assert in_second_pass["pass"] == 2


def test_what_module_and_hook_draw_is_the_same_in_all_workers(provider_file: Callable[[str], str]) -> None:
    source = code("yield number, at_import, settings.table[0], settings.table[2]")
    tables = set()
    for start in ("auto", "spawn", "spawn"):
        with pydp2.load(FILES, provider_file(source), workers=3, batch_size=8, start=start) as data:  # type: ignore[arg-type]
            tables |= {row for rows in rows_of(data).values() for row in rows}
    assert len(tables) == 1


@pytest.mark.real_starts
def test_a_set_has_one_order_in_all_runs(provider_file: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Python draws another one for each interpreter; a program that chooses one has that in its workers."""
    address = provider_file(yields("integer_value(100)", "map(int, {str(number) for number in range(100)})"))

    def order() -> list[int]:
        return one_pass(["a"], address, workers=1).samples

    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    first = order()
    assert order() == first
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    chosen = order()
    assert order() == chosen != first
