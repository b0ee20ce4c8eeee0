"""Each generator of a provider has its own state of the global random generators, and so has the program."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2 import provider, rows, scalar
from pydp2.providers import global_random
from pydp2.providers.global_random import file_random, prepared_random, running, switch_to

FLOAT = scalar("float64")
DRAWS: list[Callable[[], float]] = [
    random.random,
    lambda: random.gauss(0, 1),  # as numpy's, it makes two numbers at a time
    lambda: float(np.random.rand()),
    lambda: float(np.random.normal()),
    lambda: float(np.random.randint(1000)),
]


def drawn(number: int) -> list[float]:
    """What a file of this number draws, alone."""
    with running(file_random(1, 2, number)):
        return [draw() for _ in range(3) for draw in DRAWS]


def program_state() -> list[Any]:
    """The state of the program's own generators, of numpy's by what it would draw."""
    bit_generator, state = np.random.get_bit_generator(), np.random.get_state(legacy=False)  # type: ignore[attr-defined]
    return [
        random.getstate(),
        bit_generator,
        state["state"]["key"].tolist(),
        state["state"]["pos"],
        state["gauss"],
    ]


@pytest.fixture(autouse=True)
def _program_is_left_alone() -> Iterator[None]:
    """For every test here: half of a pair of numpy's is waiting, and everything is as before in the end."""
    np.random.normal()
    before = program_state()
    yield
    assert program_state() == before


@given(st.lists(st.integers(0, 3), max_size=80))
def test_a_file_draws_the_same_whatever_other_files_draw_between(turns: list[int]) -> None:
    owners = [file_random(1, 2, number) for number in range(3)]
    got: list[list[float]] = [[] for _ in owners]
    before = global_random._running
    for turn in turns:
        if turn == 3:  # the program
            with running(before):
                pass
        else:
            switch_to(owners[turn])
            if len(got[turn]) < 15:
                got[turn].append(DRAWS[len(got[turn]) % len(DRAWS)]())
    switch_to(before)
    for number, numbers in enumerate(got):
        assert numbers == drawn(number)[: len(numbers)]


def test_seed_pass_and_file_decide_what_is_drawn() -> None:
    def first(seed: int, pass_id: int, file: int) -> tuple[float, ...]:
        with running(file_random(seed, pass_id, file)):
            return tuple(draw() for draw in DRAWS)

    assert first(1, 2, 3) == first(1, 2, 3)
    different = [first(1, 2, 3), first(0, 2, 3), first(1, 0, 3), first(1, 2, 0), first(1 << 63, 2, 3)]
    for numbers in zip(*different, strict=True):
        assert len(set(numbers)) == len(different)


def test_the_numbers_of_a_file_stay_what_they_are() -> None:
    """They are part of what a seed gives, as those of settings.rng."""
    with running(file_random(1, 2, 3)):
        assert [random.getrandbits(32), int(np.random.randint(1 << 32))] == [1893431031, 145596227]


def test_a_closed_file_leaves_its_bit_generator_to_the_next() -> None:
    one, other = file_random(0, 0, 0), file_random(0, 0, 1)
    with running(one):
        used = np.random.get_bit_generator()  # type: ignore[attr-defined]
        one.close()
        with running(other):
            assert np.random.get_bit_generator() is used  # type: ignore[attr-defined]
            first = np.random.rand()
    other.close()
    with running(file_random(0, 0, 1)):
        assert np.random.rand() == first


def test_a_program_finds_the_bit_generator_that_it_chose() -> None:
    before = np.random.get_bit_generator()  # type: ignore[attr-defined]
    state = np.random.get_state(legacy=False)
    chosen = np.random.PCG64(3)
    np.random.set_bit_generator(chosen)  # type: ignore[attr-defined]
    try:
        assert drawn(1) == drawn(1)
        assert np.random.get_bit_generator() is chosen  # type: ignore[attr-defined]
        assert np.random.rand() == np.random.Generator(np.random.PCG64(3)).random()
        with running(file_random(0, 0, 1)):
            np.random.set_bit_generator(np.random.SFC64(1))  # type: ignore[attr-defined]
            np.random.rand()
            drawn(1)
            assert isinstance(np.random.get_bit_generator(), np.random.SFC64)  # type: ignore[attr-defined]
    finally:
        np.random.set_bit_generator(before)  # type: ignore[attr-defined]
        np.random.set_state(state)


def test_another_thread_changes_nothing() -> None:
    """What it drew from would be what the main thread draws from at the same time."""
    seen: list[Any] = []

    def run() -> None:
        with running(file_random(0, 0, 0)):
            seen.append(program_state())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [program_state()]


def test_a_module_that_process_imports_late_is_seeded_at_once() -> None:
    """Here numpy.random, which numpy imports at its first use; the program's own state is what the import left."""
    code = """
import sys
import numpy as np
from pydp2.providers.global_random import file_random, running
assert "numpy.random" not in sys.modules
with running(file_random(1, 2, 3)):
    print(np.random.randint(1 << 32))
    own = np.random.get_bit_generator()
assert np.random.get_bit_generator() is not own
with running(file_random(1, 2, 4)):
    print(np.random.randint(1 << 32))
print(np.random.randint(1 << 32))
"""
    first, second = (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
        for _ in range(2)
    )
    assert first[:2] == second[:2] == ["145596227", "4119582992"]
    assert first[2] != second[2]


# -- a provider by hand ------------------------------------------------------------------------------------------------
def mixed_draws() -> float:
    return random.random() + float(np.random.normal())


@provider(input_types=[FLOAT], calc_batch_size=lambda sample: random.randrange(4))
def weighted(settings: Any, filename: str) -> Iterator[float]:
    try:
        for _ in range(6):
            yield mixed_draws()
    finally:
        mixed_draws()


@provider(input_types=[FLOAT])
def in_blocks(settings: Any, filename: str) -> Any:
    return iter([rows([mixed_draws() for _ in range(3)]), mixed_draws()])


def table_hook(settings: Any, **_: object) -> None:
    settings.table = [mixed_draws() for _ in range(5)]


@provider(input_types=[FLOAT], init_hook=table_hook)
def with_a_table(settings: Any, filename: str) -> Iterator[float]:
    yield from settings.table
    yield mixed_draws()


@pytest.mark.parametrize("process", [weighted, in_blocks, with_a_table])
def test_samples_are_the_same_each_time_and_disturb_no_caller(process: Any) -> None:
    saved = random.getstate(), np.random.get_state()
    once = [*process.samples("f", seed=4)]
    before = program_state()
    again, reader = process.samples("f", seed=4), process.reader(["f"], seed=4)()
    for sample in once:
        assert next(again) == sample
        assert program_state() == before
        mixed_draws()
        np.random.normal()
        before = program_state()
        assert next(reader) == tuple(sample)
        assert program_state() == before
        random.seed(7)
        np.random.seed(7)
        before = program_state()
    again.close()
    assert program_state() == before
    assert [*process.samples("f", seed=5)][-1] != once[-1]
    random.setstate(saved[0])
    np.random.set_state(saved[1])


def test_an_error_in_process_leaves_the_program_its_numbers() -> None:
    @provider(input_types=[FLOAT])
    def process(settings: Any, filename: str) -> Iterator[Any]:
        yield mixed_draws()
        yield str(mixed_draws())

    samples = process.samples("f")
    next(samples)
    with pytest.raises(Exception, match="sample 1"):
        next(samples)


def test_the_hook_draws_the_same_in_every_process() -> None:
    def tables() -> Any:
        return with_a_table.start().settings.table

    assert tables() == tables()
    with running(prepared_random()):
        assert tables() == [mixed_draws() for _ in range(5)]


def test_only_the_program_runs_between_the_tests() -> None:
    assert global_random._running is global_random._program


def test_a_file_that_is_closed_while_it_runs_may_be_followed_by_any_number_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker leaves a pass: the file that runs is closed first, and then those that wait."""
    monkeypatch.setattr(global_random, "_running", global_random._running)
    closed, *waiting = (file_random(7, 0, n) for n in range(4))
    with running(file_random(7, 0, 9)):
        switch_to(closed)
        random.random()
        closed.close()
        for owner in waiting:
            with running(owner):
                random.random()
            owner.close()
        with running(file_random(7, 0, 5)):
            numbers = [random.random() for _ in range(3)]
    with running(file_random(7, 0, 5)):
        assert [random.random() for _ in range(3)] == numbers
