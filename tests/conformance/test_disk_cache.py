"""CACHE_PASS_ON_DISK: what one run has read, later passes and runs have from the disk; nothing else changes."""

from __future__ import annotations

import os
import resource
import signal
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import pydp2
from pydp2.server.cache.folder import COUNTS_NAME

from ..runs import processes, wait_until
from ..warm_starts import start_program

CONTENTS = [list(range(1000 * i, 1000 * i + size)) for i, size in enumerate([40, 7, 0, 90, 25, 60, 33, 81, 1, 52])]
LISTED = [x for lines in CONTENTS for x in lines]
NAMES = [f"part-{i:05d}.txt" for i in range(len(CONTENTS))]

CODE = """
def weigh(sample):
    return sample[0] % 4

def hook(settings, more=0, **kwargs):
    settings.more = more

TYPES = {{"x": integer_value(40_000), "seq": integer_value_sequence(10), "sparse": sparse_float_vector(9)}}

@provider(input_types=TYPES, init_hook=hook, cache=CacheType.{cache}, {arguments})
def process(settings, filename):
    with open("log", "a") as log:
        log.write(filename + "\\n")
    with open(filename) as lines:
        for line in lines:
            x = int(line) + settings.more
            yield {{"x": x if {good} else -1, "seq": [x % 10] * (x % 4), "sparse": [(x % 9, x / 2)] * (x % 2)}}
"""
WAYS = {
    "shuffled": "pool_size=60",
    "whole pass": "",
    "in order": "should_shuffle=False",
    "weighted": "pool_size=90, calc_batch_size=weigh, can_over_batch_size=False",
    "dropping": "pool_size=50, check=True, check_fail_continue=True",
}
ON_DISK, IN_MEM, BOTH, NONE = "CACHE_PASS_ON_DISK", "CACHE_PASS_IN_MEM", "CACHE_PASS_IN_MEM_THEN_DISK", "NO_CACHE"


class Place:
    """A folder with files and a cache, and runs over them."""

    def __init__(self, folder: Path, write: Callable[..., str]) -> None:
        self.folder = folder
        self.cache = folder / "cache"
        self._write = write

    def provider(self, cache: str = ON_DISK, way: str = "shuffled") -> str:
        good = "x % 7" if way == "dropping" else "True"
        return self._write(CODE.format(cache=cache, arguments=WAYS[way], good=good))

    def launch(self, cache: str = ON_DISK, way: str = "shuffled", files: Any = NAMES, **options: Any) -> pydp2.Service:
        given = {"workers": 2, "root": self.folder, "cache_dir": self.cache} | options
        return pydp2.launch(files, self.provider(cache, way), **given)

    def run(self, cache: str = ON_DISK, way: str = "shuffled", passes: int = 2, **options: Any) -> list[Any]:
        """Each pass of a run of its own, as lists of batches that compare bit by bit."""
        with self.launch(cache, way, **options) as service, service.connect(batch_size=16, seed=3) as data:
            return [[plain(batch) for batch in data] for _ in range(passes)]

    def opened(self) -> Counter[str]:
        """Files that the generator was run for, since the last call."""
        log = self.folder / "log"
        if not log.exists():
            return Counter()
        lines = log.read_text().split()
        log.unlink()
        return Counter(lines)

    def entries(self) -> list[Path]:
        found = self.cache.glob("*/*")
        return sorted(path for path in found if not path.name.startswith(".") and path.name != COUNTS_NAME)


def plain(batch: pydp2.Batch) -> Any:
    seq, sparse = batch["seq"], batch["sparse"]
    arrays = [batch["x"], seq.values, seq.sequence_start_positions, sparse.indptr, sparse.indices, sparse.values]
    return batch.index, batch.size, batch.pool_weight, [(a.dtype.str, a.tobytes()) for a in arrays]


def stream(client: pydp2.Client, passes: int = 2) -> list[Any]:
    return [[plain(batch) for batch in client] for _ in range(passes)]


@pytest.fixture
def place(tmp_path: Path, provider_file: Callable[..., str], text_files: Callable[..., list[str]]) -> Place:
    text_files(CONTENTS)
    return Place(tmp_path, provider_file)


@pytest.mark.parametrize("way", WAYS)
def test_a_second_run_does_not_run_the_generator_and_has_the_same_batches(place: Place, way: str, capfd: Any) -> None:
    """Those of a service without a cache, in every pass; dropped samples are told of in all of them."""
    without = place.run(NONE, way)
    assert set(place.opened().values()) == {2}
    told = [line for line in capfd.readouterr().err.splitlines() if "dropped" in line]
    assert place.run(ON_DISK, way) == without
    assert place.opened() == Counter(NAMES)
    assert [line for line in capfd.readouterr().err.splitlines() if "dropped" in line] == told
    assert place.run(ON_DISK, way) == without
    assert place.opened() == {}
    said = capfd.readouterr().err
    assert [line for line in said.splitlines() if "dropped" in line] == told
    assert "cannot be used" not in said
    assert len(place.entries()) == len(NAMES)


def test_a_changed_file_is_read_again_and_no_other(place: Place) -> None:
    place.run()
    place.opened()
    (place.folder / NAMES[3]).write_text("5\n6\n")
    changed = place.run()
    assert place.opened() == {NAMES[3]: 1}
    assert place.run() == changed == place.run(NONE)
    assert place.opened() == dict.fromkeys(NAMES, 2)
    assert len(place.entries()) == len(NAMES)  # the old one was replaced


def test_parts_of_a_changed_file_are_read_again(place: Place) -> None:
    code = """
from pydp2.file_parts import split_entry

@provider(input_types=[integer_value(40_000)], cache=CacheType.CACHE_PASS_ON_DISK)
def process(settings, filename):
    name, part = split_entry(filename)
    with open("log", "a") as log:
        log.write(filename + "\\n")
    with open(name) as lines:
        samples = [int(line) for line in lines]
    yield from samples[slice(*part.range(len(samples)))]
"""
    place.provider = lambda *_: place._write(code)
    parts = [f"{name}?part={i}/2" for name in NAMES[3:5] for i in range(2)]

    def numbers() -> list[int]:
        with place.launch(files=parts) as service, service.connect(batch_size=16, seed=3) as data:
            return sorted(number for batch in data for number in batch[0].tolist())

    assert numbers() == numbers() == CONTENTS[3] + CONTENTS[4]
    assert place.opened() == dict.fromkeys(parts, 1)
    (place.folder / NAMES[3]).write_text("5\n6\n")
    assert numbers() == [5, 6, *CONTENTS[4]]
    assert place.opened() == dict.fromkeys(parts[:2], 1)


def test_a_file_that_looks_as_old_as_before_is_read_again(place: Place) -> None:
    """Moved to its place, with the size and time of the old one."""
    place.run()
    place.opened()
    path = place.folder / NAMES[1]
    before = path.stat()
    other = place.folder / "other"
    other.write_text(path.read_text().replace("1", "2"))
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.rename(path)
    assert path.stat().st_size == before.st_size
    assert place.run() == place.run(NONE)
    assert place.opened() == {name: 3 if name == NAMES[1] else 2 for name in NAMES}


@pytest.mark.parametrize("other", ["code", "args", "is_train", "types"])
def test_another_provider_reads_all_files_again(place: Place, other: str) -> None:
    place.run()
    place.opened()
    if other == "code":
        place.provider(way="whole pass")
        place.run(way="whole pass")
    elif other == "types":
        place.run(input_order=("seq", "x", "sparse"))
    else:
        place.run(**({"args": {"more": 1}} if other == "args" else {"is_train": False}))
    assert place.opened() == Counter(NAMES)
    assert len(place.entries()) == 2 * len(NAMES)
    place.run()
    assert place.opened() == {}  # what there was is still there


def test_damaged_entries_are_named_and_read_again(place: Place, capfd: Any) -> None:
    first = place.run()
    place.opened()
    cut, flipped, empty, gone, swapped, into = place.entries()[:6]
    whole = cut.read_bytes()
    cut.write_bytes(whole[: len(whole) // 2])
    bad = bytearray(flipped.read_bytes())
    bad[len(bad) // 3] ^= 4
    flipped.write_bytes(bad)
    empty.write_bytes(b"")
    gone.unlink()
    into.write_bytes(swapped.read_bytes())
    capfd.readouterr()
    assert place.run() == first
    said = capfd.readouterr().err
    for path in (cut, flipped, empty, into):
        assert said.count(f"{path}, which has the samples of ") == 1
    assert str(gone) not in said
    assert sum(place.opened().values()) == 5
    assert place.run() == first
    assert place.opened() == {}


def test_entries_of_the_list_that_are_no_files_are_known_by_their_text(place: Place) -> None:
    place._write("""
    @provider(input_types=[integer_value(100)], cache=CacheType.CACHE_PASS_ON_DISK)
    def process(settings, name):
        with open("log", "a") as log:
            log.write(name + "\\n")
        yield len(name)
    """)
    for read in (Counter({"s3://a": 1, "key": 2}), Counter()):
        files = ["s3://a", "key", "key"]
        with pydp2.load(
            files, f"{place.folder}/prov.py:process", root=place.folder, cache_dir=place.cache, batch_size=5, workers=1
        ) as data:
            assert [sorted(batch[0].tolist()) for batch in data] == [[3, 3, 6]]
        assert place.opened() == read


def test_a_pass_that_was_left_keeps_the_files_that_had_ended(place: Place) -> None:
    with place.launch(way="in order") as service, service.connect(batch_size=16, seed=3) as data:
        for batch in data:
            if batch.index == 12:
                break
        first = place.opened()
        whole = stream(data, 1)
        second = place.opened()
    assert sum((first + second).values()) < 2 * len(NAMES)
    assert set(first + second) == set(NAMES)
    assert place.run(way="in order", passes=1)[0] == whole[0]
    assert place.opened() == {}


def test_what_memory_has_no_room_for_goes_to_the_disk(place: Place) -> None:
    lone = place.run(IN_MEM, passes=3)
    place.opened()
    assert place.run(BOTH, passes=3, memory_limit="1MiB") == lone  # all of it fits
    assert place.entries() == []
    place.opened()
    names = [f"big-{i}" for i in range(60)]
    for i, name in enumerate(names):
        (place.folder / name).write_text("".join(f"{x}\n" for x in range(i, 9000, 60)))
    with place.launch(IN_MEM, files=names) as service, service.connect(batch_size=100) as data:
        lone = stream(data, 3)
    place.opened()
    with place.launch(BOTH, files=names, memory_limit="1MiB") as service, service.connect(batch_size=100) as data:
        assert stream(data, 3) == lone
        kept = service.stats()["cache"]
    assert place.opened() == Counter(names)
    assert kept["files"] + kept["disk"]["written"] == len(names)
    assert 0 < kept["files"] < len(names)
    assert len(place.entries()) == kept["disk"]["written"]


CHANGES = """
import os, signal, time

@provider(input_types=[integer_value(1 << 30)], cache=CacheType.CACHE_PASS_ON_DISK, should_shuffle=False)
def process(settings, key):
    before = not os.path.exists("killed")
    for i in range(3000):
        if before and i % 50 == 0:
            time.sleep(0.002)
        while before and i == 2000:
            if os.path.exists("has a batch"):
                open("killed", "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.002)
        yield i if before else 10_000 + i
"""


def test_what_two_readings_gave_between_them_is_not_kept(place: Place, tmp_path: Path) -> None:
    address = f"{(tmp_path / 'changes.py')}:process"
    (tmp_path / "changes.py").write_text("from pydp2 import *\n" + CHANGES)
    options = {"batch_size": 100, "workers": 1, "cache_dir": place.cache, "root": tmp_path, "on_changed": "warn"}
    for run in ("a worker dies", "alone"):
        with pydp2.load(["a key"], address, **options) as data:
            numbers = []
            for batch in data:
                (tmp_path / "has a batch").touch()
                numbers += batch[0].tolist()
            disk = data.stats()["cache"]["disk"]
        assert len(numbers) == 3000
        assert any(x < 10_000 for x in numbers) == (run == "a worker dies")
        assert disk["written"] == (run == "alone")


def test_jobs_of_one_service_read_each_file_once_in_all(place: Place) -> None:
    options = {"train": {"batch_size": 16, "seed": 3}, "eval": {"batch_size": 5, "shuffle": False}}
    with place.launch(NONE) as service:
        lone = {}
        for name in options:
            with service.connect(job=name, **options[name]) as data:
                lone[name] = stream(data)
    place.opened()

    def read(service: pydp2.Service, name: str) -> list[Any]:
        with service.connect(job=name, **options[name]) as data:
            return stream(data)

    for read_files in (Counter(NAMES), Counter()):
        with place.launch() as service, ThreadPoolExecutor(2) as pool:
            found = pool.map(lambda name, service=service: read(service, name), options)
            assert dict(zip(options, found, strict=True)) == lone
        assert place.opened() == read_files


def test_services_share_a_directory_at_the_same_time(place: Place, capfd: Any) -> None:
    expected = place.run(NONE)
    place.opened()
    for _ in range(3):
        with ThreadPoolExecutor(3) as pool:
            assert list(pool.map(lambda _: place.run(), range(3))) == [expected] * 3
    assert all(count <= 3 for count in place.opened().values())
    assert place.run() == expected
    assert place.opened() == {}
    assert "cannot be" not in capfd.readouterr().err


@pytest.mark.parametrize("way", ["shuffled", "in order", "dropping"])
def test_a_pass_is_taken_up_in_its_middle_from_the_disk(place: Place, way: str) -> None:
    [expected] = place.run(NONE, way, passes=1)
    with place.launch(way=way) as service, service.connect(batch_size=16, seed=3) as data:
        seen = []
        for batch in data:
            seen.append(plain(batch))
            if batch.index == len(expected) // 2:
                break
        state = data.state_dict()
        assert len(stream(data, 1)[0]) > 0  # the next pass, which leaves all files on the disk
    place.opened()
    with place.launch(way=way) as service, service.connect(batch_size=16, seed=3) as data:
        data.load_state_dict(state)
        seen += stream(data, 1)[0]
    assert seen == expected
    assert place.opened() == {}


@pytest.mark.parametrize("on_changed", ["raise", "warn"])
@pytest.mark.parametrize("cache", [ON_DISK, IN_MEM, NONE])
def test_a_state_needs_its_samples_also_where_a_cache_has_the_changed_file(
    place: Place, text_files: Callable[..., list[str]], cache: str, on_changed: str
) -> None:
    options: dict[str, Any] = {"cache": cache, "way": "dropping", "files": NAMES[:1], "on_changed": on_changed}
    text_files([[7 * x + 1 for x in range(3000)]])
    with place.launch(**options) as service, service.connect(batch_size=16, seed=3) as data:
        states = [data.state_dict() for batch in data if batch.index > 80]
    assert states[0]["point"]["lanes"], "the pool is not read from a file of the cycle"
    text_files([[7 * x + (x % 3 > 0) for x in range(3000)]])  # a third of its samples are bad now
    with place.launch(**options) as service, service.connect(batch_size=16, seed=3) as data:
        assert sum(map(len, data)) == 2000  # which leaves the file in the cache
        data.load_state_dict(states[0])
        with pytest.raises(pydp2.errors.NotRepeatable, match=NAMES[0]):
            list(data)


def test_a_service_that_is_killed_while_it_writes_leaves_whole_entries_or_none(place: Place, capfd: Any) -> None:
    expected = place.run(NONE)
    for batches in (1, 4, 9, 15):
        with place.launch() as service, service.connect(batch_size=16, seed=3) as data:
            passing = iter(data)
            for _ in range(batches):
                next(passing)
            os.kill(service.pid, signal.SIGKILL)
            with pytest.raises(pydp2.errors.ServiceLost):
                list(passing)
    assert wait_until(lambda: processes("pydp2-") == [])  # they notice that their server is gone
    capfd.readouterr()
    place.opened()
    whole = len(place.entries())
    assert place.run() == expected
    assert sum(place.opened().values()) == len(NAMES) - whole
    assert "cannot be used" not in capfd.readouterr().err
    assert [path for path in place.cache.glob("*/.*") if path.stat().st_size] == []


def test_a_full_disk_is_said_once_and_the_pass_goes_on(place: Place, capfd: Any) -> None:
    expected = place.run(NONE, passes=3)
    capfd.readouterr()
    with place.launch() as service, service.connect(batch_size=16, seed=3) as data:
        resource.prlimit(service.pid, resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
        assert stream(data, 3) == expected
    said = capfd.readouterr().err
    assert said.count("the cache cannot be written to") == 1
    assert place.entries() == []
    assert list(place.cache.glob("*/.*")) == []


def test_a_directory_that_cannot_be_is_said_once_and_the_pass_goes_on(place: Place, capfd: Any) -> None:
    expected = place.run(NONE, cache_dir=place.folder / "other")
    place.cache.write_text("no directory")
    capfd.readouterr()
    assert place.run() == expected
    assert capfd.readouterr().err.count(f"the cache cannot be written to {place.cache}: ") == 1


def test_the_oldest_entries_go_first_and_those_in_use_never(place: Place, capfd: Any) -> None:
    place.run()
    old = {path: path.stat().st_size for path in place.entries()}
    limit = sum(old.values()) + 500
    capfd.readouterr()
    place.run(args={"more": 1}, cache_size=limit)  # as many bytes again: the old ones go
    assert sum(path.stat().st_size for path in place.entries()) <= limit
    assert len([path for path in place.entries() if path not in old]) == len(NAMES)
    assert "is full" not in capfd.readouterr().err
    place.opened()
    small = limit // 3
    place.run(args={"more": 2}, cache_size=small, passes=3)
    opened = place.opened()
    assert sum(path.stat().st_size for path in place.entries()) <= small
    assert set(opened.values()) == {1, 3}  # what fits stays, the rest is read in every pass
    assert capfd.readouterr().err.count(f"is full at {small} bytes") == 1


def test_a_cache_directory_has_a_tag_and_is_for_its_user_alone(place: Place) -> None:
    place.run(passes=1)
    assert place.cache.stat().st_mode & 0o777 == 0o700
    assert (place.cache / "CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55")


def test_figures_tell_of_the_disk(place: Place) -> None:
    for read, written in ((0, len(NAMES)), (len(NAMES), 0)):
        with place.launch() as service, service.connect(batch_size=16) as data:
            stream(data, 1)
            assert wait_until(lambda: service.stats()["cache"]["disk"]["written"] == written)  # noqa: B023
            disk = service.stats()["cache"]["disk"]
            assert (disk["read"], disk["directory"]) == (read, str(place.cache))
            assert disk["bytes"] == sum(path.stat().st_size for path in place.entries())


SET_OF_TEXTS = """
import json, pathlib, sys
import pydp2

words = {f"word{n}" for n in range(30)}
args = {"words": words, "pairs": {(word, frozenset(words)) for word in words}}
given = {name: args[name] for name in sys.argv[1:]}
with pydp2.load(["a", "b"], "prov.process", args=given, batch_size=1, workers=1, cache_dir="cache") as data:
    if (state := pathlib.Path("state.json")).exists():
        data.load_state_dict(json.loads(state.read_text()))
    assert sum(len(batch) for batch in data) == 6
    state.write_text(json.dumps(data.state_dict()))
"""
KEEPS = """
from pydp2 import *

def hook(settings, words, pairs, **kwargs):
    open("hooks", "a").write("+")

@provider(input_types=[integer_value(10)], init_hook=hook, cache=CacheType.CACHE_PASS_ON_DISK)
def process(settings, filename):
    open("log", "a").write("+")
    yield from range(3)
"""


def test_args_with_sets_of_texts_have_one_entry_and_one_state_in_every_run(tmp_path: Path) -> None:
    """Each interpreter has another order of the items of a set, and of the keywords."""
    (tmp_path / "prov.py").write_text(KEEPS)
    (tmp_path / "program.py").write_text(SET_OF_TEXTS)
    for seed, names in (("1", ["words", "pairs"]), ("2", ["words", "pairs"]), ("3", ["pairs", "words"])):
        process = start_program(["program.py", *names], tmp_path, os.environ | {"PYTHONHASHSEED": seed})
        with process.stdout as out, process.stderr as err:
            assert (process.wait(60), out.read(), err.read()) == (0, "", "")
    assert (tmp_path / "log").read_text() == "++"
    assert len([each for each in (tmp_path / "cache").iterdir() if each.is_dir()]) == 1
