"""Batches and chunks through shared memory: whoever keeps, forks or dies, and where there is none."""

from __future__ import annotations

import gc
import os
import signal
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import pydp2
from pydp2.transport import line as line_module
from pydp2.transport.slabs import MIN_SLAB_BYTES

from ..conftest import open_files
from ..provider_code import numbers
from ..runs import Program, processes, service, wait_until

ROWS = """
import numpy as np

@provider(input_types={{"x": dense_vector(1024), "y": integer_value_sequence(1 << 30)}}, pool_size=200 {more})
def process(settings, filename):
    number = int(filename)
    for i in range({samples}):
        yield {{"x": np.full(1024, number * 1000 + i, "f"), "y": [number, i] * (i % 40)}}
"""
FILES = [str(i) for i in range(6)]


def rows(samples: int = 150, more: str = "") -> str:
    return ROWS.format(samples=samples, more=more)


def slabs(pid: int | str = "self") -> int:
    """How many slabs the process has open."""
    return sum("memfd:pydp2" in target for target in open_files(pid).values())


def touched(pid: int) -> int:
    """Bytes that the process has of slabs."""
    total, ours = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            ours = line.endswith("memfd:pydp2 (deleted)")
        elif ours and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


def contents(batch: pydp2.Batch) -> bytes:
    sequence = batch["y"]
    return batch["x"].tobytes() + sequence.values.tobytes() + sequence.sequence_start_positions.tobytes()


def server() -> int:
    (pid,) = processes("pydp2-server")
    return pid


def streams(provider: str, passes: int = 2, **options: object) -> list[bytes]:
    with pydp2.load(FILES, provider, batch_size=32, workers=2, seed=3, **options) as data:  # type: ignore[arg-type]
        return [contents(batch) for _ in range(passes) for batch in data]


@pytest.mark.parametrize("more", ["", ", cache=CacheType.CACHE_PASS_IN_MEM"])
def test_the_stream_is_the_same_with_shared_memory_and_without(
    more: str, provider_file: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = provider_file(rows(more=more))
    with pydp2.launch(FILES, provider, workers=2) as service, service.connect(batch_size=32, seed=3) as data:
        shared = [contents(batch) for _ in range(2) for batch in data]
        assert touched(server()) > 0
        assert touched(os.getpid()) > 0
    with (
        pydp2.launch(FILES, provider, workers=2, bind="tcp://127.0.0.1:*") as service,
        service.connect(batch_size=32, seed=3) as data,
    ):
        assert [contents(batch) for _ in range(2) for batch in data] == shared
        assert slabs() == 0
    monkeypatch.delattr("pydp2.system.stdlib.os.memfd_create")
    assert streams(provider) == shared


def test_without_memfd_in_any_process_everything_goes_through_sockets(
    provider_file: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Python that was built without it."""
    provider = provider_file(rows())
    expected = streams(provider, 1)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import os\ndel os.memfd_create\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    monkeypatch.delattr("pydp2.system.stdlib.os.memfd_create")
    with pydp2.load(FILES, provider, batch_size=32, workers=2, seed=3) as data:
        assert [contents(batch) for batch in data] == expected
        assert {slabs(pid) for pid in (os.getpid(), *service(2))} == {0}


def test_a_trainer_that_keeps_every_batch_has_every_batch(provider_file: Callable[[str], str]) -> None:
    """And each is its own: what is written into one shows in no other, nor in what comes later."""
    provider = provider_file(rows())
    expected = streams(provider)
    with pydp2.load(FILES, provider, batch_size=32, workers=2, seed=3) as data:
        kept = [batch for _ in range(2) for batch in data]
        assert [contents(batch) for batch in kept] == expected
        for number, batch in enumerate(kept):
            batch["x"][:] = -number
            batch["y"].values[:] = number
        assert all((batch["x"] == -number).all() for number, batch in enumerate(kept))
        assert all((batch["y"].values == number).all() for number, batch in enumerate(kept))


def test_a_trainer_that_writes_into_its_batches_spoils_nothing(provider_file: Callable[[str], str]) -> None:
    provider = provider_file(rows())
    expected = streams(provider)
    seen = []
    with pydp2.load(FILES, provider, batch_size=32, workers=2, seed=3) as data:
        for _ in range(2):
            for batch in data:
                seen.append(contents(batch))
                batch["x"][:] = np.nan
    assert seen == expected


def test_a_fork_of_the_trainer_keeps_what_it_has_and_takes_nothing(provider_file: Callable[[str], str]) -> None:
    provider = provider_file(rows())
    expected = streams(provider, 1)
    seen, children = [], []
    with pydp2.load(FILES, provider, batch_size=32, workers=2, seed=3) as data:
        for number, batch in enumerate(data):
            seen.append(contents(batch))
            if number % 5:
                continue
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    time.sleep(0.2)  # the parent goes on meanwhile
                    if contents(batch) == seen[-1]:
                        batch["x"][:] = 0
                        data._connection.inbox.clear()
                        gc.collect()
                        status = 0
                finally:
                    os._exit(status)
            children.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * len(children)
    assert seen == expected


def test_the_server_lets_go_of_what_dead_trainers_and_workers_had(
    provider_file: Callable[[str], str], program: Callable[..., Program]
) -> None:
    """Trainers and workers are killed with batches and chunks under way, again and again: nothing adds up.

    How much is under way is a matter of who is quicker; what may be is what the options say: the read-ahead (half of
    ``memory_limit``), the pool, and the batches of one trainer that is there and of one that was."""
    provider = provider_file(rows(1 << 30))
    limit, batches = 1 << 22, 2 * 8 * 32 * 4500
    code = """
    import sys, time, pydp2
    data = pydp2.connect(sys.argv[1], batch_size=32, job=sys.argv[2], prefetch=8, pool_bytes=int(sys.argv[3]))
    for i, batch in enumerate(data):
        if i == 20:
            print("ready", flush=True)
            time.sleep(1000)
    """
    with pydp2.launch(FILES, provider, workers=2, memory_limit=2 * limit) as service:
        pid = server()
        counts, memory = [], []
        for number in range(12):
            trainer = program(textwrap.dedent(code), service.address, "job", str(limit))
            trainer.said("ready")
            worker = processes("pydp2-worker")[number % 2]
            os.kill(worker, signal.SIGKILL)
            assert wait_until(lambda worker=worker: worker not in processes("pydp2-worker"))
            trainer.signal(signal.SIGKILL)
            trainer.ended()
            with service.connect(batch_size=32, job="job", prefetch=8, pool_bytes=limit) as data:
                next(iter(data))
                counts.append(slabs(pid))  # those of who was killed are let go of a moment later
                assert number < 2 or wait_until(lambda: slabs(pid) <= counts[1] + 2), counts
                memory.append(touched(pid))
        assert max(memory) <= 2 * limit + batches, memory


def test_what_a_service_shared_is_gone_with_it(provider_file: Callable[[str], str]) -> None:
    """Also in the trainer, as soon as the client is closed; batches that were kept stay."""
    data = pydp2.load(FILES, provider_file(rows()), batch_size=32, workers=2)
    stream = iter(data)
    batch = next(stream)
    before = contents(batch)
    assert slabs() > 0
    del stream
    data.close()
    del data
    gc.collect()
    assert slabs() == 0
    assert contents(batch) == before


def test_small_batches_need_no_slab(provider_file: Callable[[str], str]) -> None:
    code = numbers(500, "pool_size=100")
    with pydp2.load(FILES, provider_file(code), batch_size=16, workers=2) as data:
        assert sum(len(batch) for batch in data) == 3000
        assert touched(os.getpid()) == os.sysconf("SC_PAGE_SIZE")  # with the byte that says that it is mapped


def test_the_limits_of_one_message_are_far_below_a_slab() -> None:
    assert MIN_SLAB_BYTES < line_module._SEND_SLAB_BYTES <= line_module._RECEIVE_SLAB_BYTES
