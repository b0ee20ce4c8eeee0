"""Memory: bounded in bytes whoever is slow, and many files or a long list cost little."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import pydp2
from pydp2.server.available_memory import release_free_heap

from ..provider_code import dense, numbers
from ..runs import at_rest, processes, service, wait_until

MB = 1_000_000


def own(pid: int) -> int:
    """Bytes of memory that ``pid`` alone has."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Private_")) * 1024


def shared_out(pids: list[int]) -> int:
    """Bytes of memory that ``pids`` have together, each page counted once."""
    total = 0
    for pid in pids:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        total += next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")) * 1024
    return total


@pytest.mark.parametrize("shuffle", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_slow_trainer_makes_memory_flat(shuffle: bool, provider_file: Callable[[str], str]) -> None:
    """While it rests, nobody grows: what is read ahead is bounded, and so is what waits for it."""
    code = dense(1 << 40, 2500, "pool_size=1000")
    with pydp2.load(
        ["a", "b", "c", "d"], provider_file(code),
        batch_size=32, workers=2, shuffle=shuffle, memory_limit=32 * MB, pool_bytes=20 * MB,
    ) as data:  # fmt: skip
        pids = [os.getpid(), *service(2)]
        before = {pid: own(pid) for pid in pids}
        stream = iter(data)
        for _ in range(30):
            next(stream)
        assert wait_until(lambda: at_rest(pids[1:]))  # what was under way has arrived
        halves = []
        for _ in range(2):
            highest = dict.fromkeys(pids, 0)
            for _ in range(60):
                time.sleep(0.02)
                highest = {pid: max(highest[pid], own(pid)) for pid in pids}
                next(stream)  # one batch in a while: 20 MB in a half
            halves.append(highest)
        first, highest = halves
        # credit comes by quarters of a share, so what a worker holds goes up and down by somewhat more than one
        assert {pid: highest[pid] - first[pid] for pid in pids if highest[pid] - first[pid] > 6 * MB} == {}
        grown = sum(highest[pid] - before[pid] for pid in pids)
        assert grown < 20 * MB + 32 * MB + len(pids) * 10 * MB


def test_small_samples_take_no_more_memory_the_longer_a_pass_lasts(provider_file: Callable[[str], str]) -> None:
    """Workers that are faster than the trainer wait for credit all the time, and still send chunks of many samples."""
    code = numbers(1 << 40, "pool_size=500")
    with pydp2.load([*"abcdef"], provider_file(code), batch_size=16, workers=2, memory_limit=40 * MB) as data:
        stream = iter(data)
        (server,) = processes("pydp2-server")
        memory = []
        for _ in range(6):
            for _ in range(1000):
                next(stream)
            assert wait_until(lambda: at_rest(processes("pydp2-")))
            memory.append(own(server))
    assert memory[-1] - memory[2] < 3 * MB, memory  # before, it grows to what it needs


def test_the_pool_takes_a_quarter_more_than_its_samples_also_when_these_differ_a_thousand_times_in_size(
    provider_file: Callable[[str], str],
) -> None:
    """And what lies together with the next samples of each lane, a chunk of 4 MiB at most, and the batches that the
    trainer has ahead, 8 MiB."""
    code = """
    @provider(input_types=[integer_value_sequence(1 << 20)], pool_size=6000)
    def process(settings, filename):
        y = int(filename) * 7919
        while True:
            y = (y * 1103515245 + 12345) % (1 << 31)
            yield [y % 1000] * int(10 * 1000 ** (y / (1 << 31)))
    """
    lanes, seen = 16, []
    names = [str(n) for n in range(lanes)]
    with pydp2.load(names, provider_file(code), batch_size=64, workers=2, interleave=lanes) as data:
        stream = iter(data)
        for _ in range(30):
            for _ in range(20):
                next(stream)
            seen.append(data.stats()["pool"])
    assert min(pool["bytes"] for pool in seen) > 25 * MB
    over = [(pool["memory"] - 1.25 * pool["bytes"]) / (1 << 20) for pool in seen]
    assert max(over) <= 4 * lanes + 1 + 8, over  # and 1 MiB that is not worth a sweep


def test_ten_thousand_files_of_one_sample_are_ordinary(provider_file: Callable[[str], str]) -> None:
    """Each is opened and closed again: no worker holds many, and memory does not grow with their number."""
    code = """
    import os

    @provider(input_types=[integer_value(10_000), integer_value(1000)], pool_size=512)
    def process(settings, filename):
        with open(os.devnull):
            yield int(filename), len(os.listdir("/proc/self/fd"))
    """
    names = [str(n) for n in range(10_000)]
    seen = np.zeros(10_000, int)
    most_open = 0
    with pydp2.load(names, provider_file(code), batch_size=100, workers=2) as data:
        pids = service(2)
        before = {pid: own(pid) for pid in pids}
        for batch in data:
            np.add.at(seen, batch[0], 1)
            most_open = max(most_open, int(batch[1].max()))
        grown = {pid: own(pid) - before[pid] for pid in pids}
    assert (seen == 1).all()
    assert most_open < 100
    assert max(grown.values()) < 30 * MB


def test_a_list_of_a_million_entries_is_not_copied_into_every_process(
    provider_file: Callable[[str], str], tmp_path: Path
) -> None:
    """Whatever their number, workers share the one list, also when the hook and process look at it."""
    code = """
    def hook(settings, file_list, **kwargs):
        assert len(file_list) in (8, 1_000_000) and file_list[len(file_list) - 1].startswith("a/long/folder")

    @provider(input_types=[integer_value(10)], init_hook=hook, pool_size=64)
    def process(settings, filename):
        assert filename in (settings.file_list[0], filename)
        yield 1
    """
    address = provider_file(code)
    (tmp_path / "long.list").write_text(
        "".join(f"a/long/folder/for/a/file/number-{n:09d}.txt\n" for n in range(1_000_000))
    )
    size = (tmp_path / "long.list").stat().st_size + 8 * 1_000_000
    together, largest = {}, {}
    for kind, files in (
        ("short", [f"a/long/folder/{n}" for n in range(8)]),
        ("long", str(tmp_path / "long.list")),
    ):
        with pydp2.load(files, address, batch_size=4, workers=4) as data:
            next(iter(data))
            together[kind] = shared_out(service(4))
            workers = processes("pydp2-worker")
            largest[kind] = max(own(pid) for pid in workers)
    assert largest["long"] - largest["short"] < size / 10
    assert together["long"] - together["short"] < 2 * size


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library cannot")
def test_gaps_in_the_heap_go_back_to_the_system() -> None:
    """They do not by themselves, where something lies behind them."""
    kept = [bytes(5000) for _ in range(16_000)]
    del kept[:-1]
    before = own(os.getpid())
    release_free_heap()
    assert before - own(os.getpid()) > 40 * MB
