"""The init_hook and the settings: what they are given, what they may change, and which generator they follow."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

import pydp2
from pydp2.errors import ProviderError

# -- what the hook is given -------------------------------------------------------------------------------------------

TELLING = """
import json, os

def hook(*given, **named):
    (settings,) = given
    with open(named["log"], "a") as log:
        named["file_list"] = list(named["file_list"])
        log.write(json.dumps(["hook", os.getpid(), named, sorted(vars(settings))]) + "\\n")
    settings.input_types = {"a": integer_value(10), "b": integer_value(10)}
    settings.log = named["log"]

@provider(init_hook=hook, should_shuffle=False)
def process(settings, filename):
    with open(settings.log, "a") as log:
        log.write(json.dumps(["process", os.getpid(), filename, settings.pass_id]) + "\\n")
    for i in range(3):
        yield {"a": i, "b": i}
"""


def test_pd_22_the_hook_is_given_settings_first_and_all_else_by_name(provider_file: Any, tmp_path: Path) -> None:
    log = tmp_path / "log"
    args = {"log": str(log), "dictionary": {"the": 0}, "is_train": "of the user"}
    with pydp2.load(
        ["x", "y"], provider_file(TELLING), args=args, is_train=False, input_order=["b", "a"], batch_size=9, workers=1
    ) as data:
        list(data)
    kind, _, named, attributes = json.loads(log.read_text().splitlines()[0])
    assert kind == "hook"
    assert named == {
        "log": str(log),
        "dictionary": {"the": 0},
        "file_list": ["x", "y"],
        "is_train": False,  # the framework's names beat those of args
        "input_order": ["b", "a"],
    }
    of_semantics = (
        "logger input_types should_shuffle pool_size min_pool_size can_over_batch_size calc_batch_size file_list "
        "generator cache input_order check"
    )
    assert set(of_semantics.split()) <= set(attributes)


def test_pd_23_the_hook_runs_at_most_once_in_a_process_and_before_any_file(provider_file: Any, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with pydp2.load(
        ["x", "y", "z"],
        provider_file(TELLING),
        args={"log": str(log)},
        is_train=True,
        batch_size=2,
        workers=2,
        start="spawn",
    ) as data:
        assert [sum(len(b) for b in data) for _ in range(3)] == [9, 9, 9]
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    hooks = [line[1] for line in lines if line[0] == "hook"]
    assert len(hooks) == len(set(hooks)) <= 3  # two workers and the one that stands by
    seen = set()
    for kind, pid, *_ in lines:
        if kind == "hook":
            seen.add(pid)
        assert pid in seen
    assert sorted(tuple(line[2:]) for line in lines if line[0] == "process") == [
        (name, n) for name in "xyz" for n in range(3)
    ]


SETTING = """
import os

def weigh(sample):
    with open("weighed", "a") as log:
        log.write("w")
    return 3

def other(settings, filename):
    for i in range(20):
        yield i + 100

def hook(settings, change, **kwargs):
    for name, value in change.items():
        if name == "calc_batch_size":
            value = weigh
        if name == "generator":
            value = other
        assert hasattr(settings, name)
        setattr(settings, name, value)

@provider(input_types=[integer_value(1000)], init_hook=hook)
def process(settings, filename):
    with open("opened", "a") as log:
        log.write("o")
    for i in range(20):
        yield i
"""


def test_pd_23_the_hook_may_set_what_the_decorator_sets(provider_file: Any, tmp_path: Path) -> None:
    """Pools, cache, weights, check, shuffling, the generator: what stands there after the hook holds."""
    address = provider_file(SETTING)

    def passes(*, shuffle: bool | None = None, is_train: bool = False, **change: Any) -> list[list[pydp2.Batch]]:
        with pydp2.load(
            ["f"], address, args={"change": change}, root=tmp_path, is_train=is_train, shuffle=shuffle,
            batch_size=6, workers=1,
        ) as data:  # fmt: skip
            return [list(data) for _ in range(2)]

    opened, weighed = tmp_path / "opened", tmp_path / "weighed"
    first, _ = passes(cache=1)
    assert first[0][0].tolist() == [0, 1, 2, 3, 4, 5]
    assert opened.read_text() == "o"
    first, _ = passes(pool_size=9, shuffle=True)
    assert [b.pool_weight for b in first] == [9, 9, 8, 2]
    first, _ = passes(min_pool_size=7, shuffle=True)
    assert [b.pool_weight for b in first] == [7, 13, 8, 2]
    first, second = passes(calc_batch_size=True, can_over_batch_size=False, cache=1)
    assert [(len(b), b.size) for b in first] == [(2, 6)] * 10
    assert [(len(b), b.size) for b in second] == [(2, 6)] * 10
    assert weighed.read_text() == "w" * 20
    first, _ = passes(generator=True)
    assert first[0][0].tolist() == [100, 101, 102, 103, 104, 105]
    first, _ = passes(should_shuffle=True)
    assert [x for b in first for x in b[0].tolist()] != list(range(20))
    first, _ = passes(should_shuffle=False, is_train=True)
    assert [x for b in first for x in b[0].tolist()] == list(range(20))


def test_pd_23_the_hook_may_set_check(deliver: Any, flat: Any) -> None:
    code = """
    def hook(settings, **kwargs):
        settings.check = settings.check_fail_continue = True

    @provider(input_types=[integer_value(10)], init_hook=hook)
    def process(settings, filename):
        yield from (1, 11, 2)
    """
    (batches,) = deliver(code)
    assert flat(batches) == [1, 2]


def test_pd_23_every_process_must_declare_the_same(provider_file: Any, tmp_path: Path, until_error: Any) -> None:
    """A worker that comes later and declares other types ends the service: its samples could not be mixed in."""
    code = """
    def hook(settings, **kwargs):
        with open("width") as width:
            settings.input_types = [integer_value(int(width.read()))]

    @provider(init_hook=hook, should_shuffle=False)
    def process(settings, filename):
        while True:
            yield 1
    """
    (tmp_path / "width").write_text("10")
    with pydp2.load(["f"], provider_file(code), root=tmp_path, batch_size=10, workers=1, start="spawn") as data:

        def lose_a_worker(batch: pydp2.Batch) -> None:
            if batch.index == 3:
                (worker,) = [w for w in data.stats()["workers"] if w["active"]]
                (tmp_path / "width").write_text("20")  # after that the service may end at any moment
                os.kill(worker["pid"], signal.SIGKILL)  # the spare works on; who takes its place runs the hook now

        _, error = until_error(data, lose_a_worker)
    assert "the init_hook declares something else in another worker" in str(error)


def test_pd_24_what_the_hook_keeps_on_settings_is_seen_in_process(deliver: Any, flat: Any) -> None:
    code = """
    def hook(settings, words, **kwargs):
        settings.ids = {word: i for i, word in enumerate(words)}

    @provider(input_types=[integer_value(10)], init_hook=hook)
    def process(settings, filename):
        for word in filename.split():
            yield settings.ids[word]
    """
    (batches,) = deliver(code, ["c a", "b"], args={"words": ["a", "b", "c"]})
    assert flat(batches) == [2, 0, 1]


def test_pd_25_types_set_in_the_hook_beat_input_types_beat_slots(deliver: Any) -> None:
    code = """
    def hook(settings, level, **kwargs):
        if level == "hook":
            settings.input_types = {"from_hook": integer_value(10)}
        settings.slots = {"from_hook_slots": integer_value(10)}

    @provider(init_hook=hook, {arguments})
    def process(settings, filename):
        yield 1
    """
    both = 'input_types={"from_types": integer_value(10)}, slots={"from_slots": integer_value(10)}'
    only = 'slots={"from_slots": integer_value(10)}'
    cases = [
        (both, "hook", "from_hook"),
        (both, "", "from_types"),
        (only, "", "from_slots"),
        ("", "", "from_hook_slots"),
    ]
    for arguments, level, winner in cases:
        ((batch,),) = deliver(code.replace("{arguments}", arguments), args={"level": level}, workers=1)
        assert batch.names == (winner,)


def test_pd_26_no_types_anywhere_is_a_value_error_at_construction(provider_file: Any) -> None:
    code = """
    @provider()
    def process(settings, filename):
        yield 1
    """
    with pytest.raises(ValueError, match="input_types must be set") as caught:
        pydp2.launch(["f"], provider_file(code), workers=1)
    assert isinstance(caught.value, ProviderError)


def test_pd_27_legacy_slots_work_and_warn(deliver: Any, flat: Any, capfd: pytest.CaptureFixture[str]) -> None:
    code = """
    @provider(slots=[integer_value(10)])
    def process(settings, filename):
        yield 5
    """
    (batches,) = deliver(code)
    assert flat(batches) == [5]
    assert "slots is an old name: write input_types" in capfd.readouterr().err


def test_a_hook_that_raises_ends_the_start_with_its_own_traceback(provider_file: Any) -> None:
    code = """
    def hook(settings, dictionary, **kwargs):
        return open(dictionary)

    @provider(init_hook=hook)
    def process(settings, filename):
        yield 1
    """
    address = provider_file(code)
    with pytest.raises(FileNotFoundError, match="return open\\(dictionary\\)"):
        pydp2.launch(["f"], address, args={"dictionary": "nowhere.txt"}, workers=1)
    with pytest.raises(TypeError, match=r"process needs the argument 'dictionary': write args=\{'dictionary': …\}"):
        pydp2.launch(["f"], address, workers=1)


# -- settings while process runs --------------------------------------------------------------------------------------

WATCHED = """
open_generators = 0

@provider(input_types=[integer_value(1000)] * 4 + [integer_value(2**40)], pool_size=64)
def process(settings, filename):
    global open_generators
    open_generators += 1
    try:
        for i in range(100):
            draw = settings.rng.integers(2**40)
            yield int(settings.filename), int(filename), settings.pass_id, open_generators, int(draw)
    finally:
        open_generators -= 1
"""
FILES = [str(i) for i in range(20)]


def _draws(provider_file: Any, workers: int, seed: int, **options: Any) -> list[dict[int, list[int]]]:
    """What each file drew, by pass."""
    passes = []
    with pydp2.load(
        FILES, provider_file(WATCHED), seed=seed, batch_size=50, workers=workers, memory_limit="1MiB", **options
    ) as data:
        for n in range(2):
            drawn: dict[int, list[int]] = {}
            together = 0
            for batch in data:
                claimed, own, pass_id, opened, draw = (column.tolist() for column in batch)
                assert claimed == own
                assert pass_id == [n] * len(batch)
                assert batch.pass_id == n
                together = max(together, *opened)
                for file, value in zip(own, draw, strict=True):
                    drawn.setdefault(file, []).append(value)
            passes.append({file: sorted(values) for file, values in drawn.items()})
            if workers == 1:
                assert together > 1  # several generators were open at once, or nothing was shown here
    return passes


def test_settings_follow_the_generator_that_runs_and_rng_depends_on_seed_pass_and_file(provider_file: Any) -> None:
    """filename, pass_id and rng are those of the running generator, whatever the number of workers."""
    one = _draws(provider_file, 1, 7)
    assert one == _draws(provider_file, 3, 7)
    assert one[0][0] != one[1][0]
    assert one[0][0] != one[0][1]
    assert len({tuple(values) for drawn in one for values in drawn.values()}) == 2 * len(FILES)
    assert one != _draws(provider_file, 2, 8)


def test_rng_repeats_a_file_exactly_after_its_worker_died(provider_file: Any, tmp_path: Path) -> None:
    """A file that is run again draws the same numbers, so a lost worker does not show in the data."""
    code = """
    import os, signal

    @provider(input_types=[integer_value(2**40)], pool_size=64)
    def process(settings, filename):
        for i in range(100):
            if filename == "3" and i == 50 and not os.path.exists("died"):
                open("died", "x").close()
                os.kill(os.getpid(), signal.SIGKILL)
            yield int(settings.rng.integers(2**40))
    """
    address = provider_file(code)
    options = {"seed": 3, "batch_size": 50, "workers": 2, "root": tmp_path}
    with pydp2.load(FILES, address, **options) as data:
        disturbed, undisturbed = [[batch[0].tolist() for batch in data] for _ in range(2)]
        assert data.stats()["workers_lost"] == 1
    assert {x for batch in disturbed for x in batch}.isdisjoint(undisturbed[0])  # another pass, other draws
    with pydp2.load(FILES, address, **options) as data:  # nothing dies here, "died" is there already
        assert [batch[0].tolist() for batch in data] == disturbed
        assert data.stats()["workers_lost"] == 0
