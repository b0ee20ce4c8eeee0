"""Whether samples are shuffled, and that their order depends on the seed and the data alone."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

import pydp2

WORKERS = (1, 2, 3, 8)
# Sizes that make lanes end at different times: empty files, one-sample files, longer ones.
CONTENTS = [list(range(1000 * i, 1000 * i + size)) for i, size in enumerate([90, 0, 1, 300, 17, 64, 2, 0, 150, 33] * 3)]
ALL = sorted(x for lines in CONTENTS for x in lines)

# -- on or off --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "is_train", "shuffled"),
    [
        ('"On"', False, True),
        ("1.0", False, True),
        ('"f"', True, False),
        ("0", True, False),
        ('"123"', True, True),
        ('"123"', False, False),
        ('"1"', False, False),
    ],
)
def test_pd_28_words_and_numbers_for_should_shuffle(
    deliver: Any, numbers: Any, text_files: Any, flat: Any, capfd: Any, word: str, is_train: bool, shuffled: bool
) -> None:
    """The words in any letter case, and 1 and 0. Anything else warns and is left to training or testing."""
    files = text_files([range(100)])
    (batches,) = deliver(numbers(f"should_shuffle={word}"), files, is_train=is_train, workers=1)
    assert sorted(flat(batches)) == list(range(100))
    assert (flat(batches) != list(range(100))) == shuffled
    odd = word in ('"123"', '"1"')
    assert (f"should_shuffle={word.replace(chr(34), chr(39))} must be None, True" in capfd.readouterr().err) == odd


def test_pd_29_training_is_shuffled_and_testing_is_in_exact_order(
    provider_file: Any, numbers: Any, text_files: Any, flat: Any
) -> None:
    files, address = text_files(CONTENTS), provider_file(numbers())
    orders = {}
    for is_train in (True, False):
        with pydp2.launch(files, address, is_train=is_train, workers=2) as service:
            for shuffle in (None, True, False):  # the trainer's word beats the provider's
                with service.connect(batch_size=64, shuffle=shuffle) as data:
                    orders[is_train, shuffle] = flat(list(data))
    listed = [x for lines in CONTENTS for x in lines]
    assert orders[False, None] == orders[False, False] == orders[True, False] == listed
    assert orders[True, None] == orders[True, True] == orders[False, True] != listed
    assert sorted(orders[True, None]) == ALL


# -- the order --------------------------------------------------------------------------------------------------------


def test_pd_30_shuffle_off_is_list_and_line_order_with_any_number_of_workers(
    provider_file: Any, numbers: Any, text_files: Any, flat: Any
) -> None:
    files, address = text_files(CONTENTS), provider_file(numbers("should_shuffle=False, pool_size=10"))
    for workers in WORKERS:
        with pydp2.load([*files, files[0]], address, batch_size=50, workers=workers) as data:
            for _ in range(2):
                assert flat(list(data)) == [x for lines in [*CONTENTS, CONTENTS[0]] for x in lines], workers


def test_pd_31_a_shuffled_pass_has_the_samples_of_an_unshuffled_one(
    provider_file: Any, numbers: Any, text_files: Any, flat: Any
) -> None:
    files = text_files(CONTENTS)
    for arguments in ("", "pool_size=100", "min_pool_size=60", "pool_size=200, min_pool_size=40"):
        with pydp2.load(files, provider_file(numbers(arguments), arguments.replace("=", "_").replace(", ", "_") or "p"),
                        batch_size=50, workers=2) as data:  # fmt: skip
            passes = [flat(list(data)) for _ in range(3)]
        assert [sorted(p) for p in passes] == [ALL] * 3
        assert len({tuple(p) for p in passes}) == 3  # and each pass has an order of its own


def test_pd_32_the_same_seed_gives_the_same_order_and_another_seed_another(
    provider_file: Any, numbers: Any, text_files: Any, exact: Any
) -> None:
    files, address = text_files(CONTENTS), provider_file(numbers("pool_size=128"))
    orders = []
    for seed in (5, 5, 6):
        with pydp2.load(files, address, batch_size=50, workers=2, seed=seed) as data:
            orders.append([exact(list(data)) for _ in range(2)])
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]
    assert orders[0][0] != orders[0][1]


MIXED = """
def weigh(sample):
    return sample[0] % 4

@provider(
    input_types=[integer_value(40_000), sparse_float_vector_sequence(50)], calc_batch_size=weigh,
    check=True, check_fail_continue=True, {arguments}
)
def process(settings, filename):
    with open(filename) as lines:
        for line in lines:
            x = int(line)
            bag = [[(x % 50, 1.0)] * (2 if x % 11 == 0 else 1)] * (x % 3)  # some name an index twice: dropped
            yield x, bag
"""


@pytest.mark.parametrize(
    "arguments",
    [
        "pool_size=120, min_pool_size=30, can_over_batch_size=False",
        pytest.param("pool_size=90", marks=pytest.mark.slow),
    ],
)
def test_pd_32_the_exact_batches_are_those_of_any_number_of_workers(
    provider_file: Any, text_files: Any, exact: Any, arguments: str
) -> None:
    """Rows, weights, the pool's weight at each cut and every value, with drops, zero weights and mixed slots."""
    files, address = text_files(CONTENTS), provider_file(MIXED.replace("{arguments}", arguments))
    seen = []
    for workers in WORKERS:
        with pydp2.launch(files, address, workers=workers) as service:
            jobs = []
            for options in (
                {"seed": 3, "interleave": 4},
                {"pool_bytes": 4000, "last_batch": "pad"},
                {"shuffle": False, "last_batch": "drop"},
            ):
                with service.connect(batch_size=40, **options) as data:
                    jobs.append([exact(list(data)) for _ in range(2)])
            seen.append(jobs)
    assert all(len(one_pass) > 10 for job in seen[0] for one_pass in job)
    assert all(other == seen[0] for other in seen[1:])


def test_pd_32_a_worker_that_is_killed_does_not_show_in_the_order(
    provider_file: Any, text_files: Any, exact: Any, tmp_path: Any
) -> None:
    code = """
    import os, signal

    @provider(input_types=[integer_value(40_000)], pool_size=90)
    def process(settings, filename):
        with open(filename) as lines:
            for i, line in enumerate(lines):
                mark = f"{filename}.{settings.pass_id}.died"
                if i in (20, 140) and not os.path.exists(mark + str(i)) and os.path.exists("deadly"):
                    open(mark + str(i), "x").close()
                    os.kill(os.getpid(), signal.SIGKILL)
                yield int(line)
    """
    files, address = text_files(CONTENTS), provider_file(code)
    with pydp2.load(files, address, batch_size=40, workers=2, root=tmp_path) as data:
        calm = [exact(list(data)) for _ in range(2)]
        assert data.stats()["workers_lost"] == 0
    (tmp_path / "deadly").touch()
    with pydp2.load(files, address, batch_size=40, workers=2, root=tmp_path) as data:
        assert [exact(list(data)) for _ in range(2)] == calm
        assert data.stats()["workers_lost"] == 2 * sum(len(c) > 20 for c in CONTENTS) + 2 * sum(
            len(c) > 140 for c in CONTENTS
        )


def test_order_relaxed_keeps_the_samples_and_promises_no_more(
    provider_file: Any, numbers: Any, text_files: Any, flat: Any
) -> None:
    files, address = text_files(CONTENTS), provider_file(numbers("pool_size=100"))
    with pydp2.load(files, address, batch_size=50, workers=2, order="relaxed") as data:
        for _ in range(2):
            assert sorted(flat(list(data))) == ALL


def test_a_trainer_that_comes_later_gets_the_same_passes(
    provider_file: Any, numbers: Any, text_files: Any, exact: Any
) -> None:
    """Passes are counted by the trainer: whoever connects begins with pass 0."""
    with pydp2.launch(text_files(CONTENTS), provider_file(numbers("pool_size=99")), workers=2) as service:
        seen = []
        for _ in range(2):
            with service.connect(batch_size=50, seed=1) as data:
                seen.append([exact(list(data)) for _ in range(2)])
        assert seen[0] == seen[1]
        os.kill(next(worker["pid"] for worker in service.stats()["workers"] if worker["active"]), signal.SIGKILL)
        with service.connect(batch_size=50, seed=1) as data:
            assert [exact(list(data)) for _ in range(2)] == seen[0]
