"""Cached passes, gathered where the cache lies: the stream of the ordinary way, for trainers of every kind."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

import pydp2
from pydp2.client.received import ReceivedBatch
from pydp2.client.saved_state import seal
from pydp2.errors import ServiceLost

from ..conftest import open_files
from ..runs import Program, processes, wait_until

FILES = [str(i) for i in range(7)]
CACHED = """
import numpy as np

@provider(input_types={"x": dense_vector(6), "y": integer_value_sequence(1 << 30), "z": sparse_float_vector(99)},
          cache=CacheType.CACHE_PASS_IN_MEM, can_over_batch_size=False,
          calc_batch_size=lambda sample: 1 + len(sample[1]) % 3)
def process(settings, filename):
    number = int(filename)
    for i in range(40 + number):
        yield {"x": np.full(6, number * 1000 + i, "f"), "y": [number, i] * (i % 5), "z": [(i % 99, i / 7)]}
"""
ORDINARY = """
import pydp2.server.jobs.pass_stream as pass_stream
pass_stream.cached_rows = lambda *_: None
pass_stream.JobStream.open_store = lambda self, plan: self.memory.open_pass()
"""
NO_MEMFD = "import os\ndel os.memfd_create\n"
HOW: dict[str, Any] = {"batch_size": 9, "seed": 5}


def seen(batch: pydp2.Batch) -> Any:
    y, z = batch["y"], batch["z"]
    arrays = (batch["x"], y.values, y.sequence_start_positions, z.indptr, z.indices, z.values)
    contents = tuple(array.tobytes() for array in arrays)
    return batch.pass_id, batch.index, batch.size, batch.pool_weight, batch.padding, len(batch), contents


def stream(data: pydp2.Client, passes: int = 3) -> list[Any]:
    """All batches, and after each the state, but for what belongs to the service, and where chunks ended."""
    other = {"stream_identity": None, "checksums": None, "digest": None}
    return [(seen(batch), data.state_dict() | other) for _ in range(passes) for batch in data]


def straight(data: pydp2.Client) -> bool:
    """Whether a pass does without a store; it is left."""
    for _ in data:
        figures = data.stats()["pool"]
        return bool(figures["samples"]) and not figures["memory"]
    return False


@pytest.fixture
def provider(provider_file: Callable[[str], str]) -> str:
    return provider_file(CACHED)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """What every process of the services that follow does first."""

    def write(code: str) -> None:
        (tmp_path / "site").mkdir(exist_ok=True)
        (tmp_path / "site" / "sitecustomize.py").write_text(code)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))

    return write


WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "by number": ("", {}),
    "without memfd": (NO_MEMFD, {}),
    "tcp": ("", {"bind": "tcp://127.0.0.1:*"}),
}


def mapped(pid: int | str = "self") -> int:
    """How many caches the process sees, its own or that of a service."""
    return Path(f"/proc/{pid}/maps").read_text().count("memfd:pydp2-cache")


@pytest.mark.parametrize(
    "last_batch", ["pad", *(pytest.param(each, marks=pytest.mark.slow) for each in ("keep", "drop"))]
)
def test_the_stream_of_a_trainer_is_that_of_the_ordinary_way(
    provider: str, site: Callable[[str], None], last_batch: str
) -> None:
    found = {}
    for name, (code, bind) in {"ordinary": (ORDINARY, {}), **WAYS}.items():
        site(code)
        with (
            pydp2.launch(FILES, provider, workers=2, **bind) as service,
            service.connect(last_batch=last_batch, **HOW) as data,
        ):
            found[name] = (
                stream(data, 1),
                straight(data) is not (name == "ordinary"),
                stream(data, 2),
                {key: data.stats()[key] for key in ("pass", "dropped", "cache", "samples_in_pass")},
            )
    assert all(each == found["ordinary"] for each in found.values()), list(found)


@pytest.mark.parametrize("share", ["ranks", "dynamic"])
def test_so_is_that_of_several_ranks(provider: str, site: Callable[[str], None], share: str) -> None:
    found, both = {}, Barrier(2)
    for name, (code, bind) in {"ordinary": (ORDINARY, {}), **WAYS}.items():
        site(code)

        def one(rank: int, service: pydp2.Service) -> list[Any]:
            how = {"rank": rank, "world_size": 2} if share == "ranks" else {"share": "dynamic"}
            with service.connect(last_batch="pad", **HOW, **how) as data:
                both.wait(30)  # one that comes late has its three passes later
                return [seen(batch) for _ in range(3) for batch in data]

        with pydp2.launch(FILES, provider, workers=2, **bind) as service, ThreadPoolExecutor(2) as pool:
            mine = list(pool.map(lambda rank, service=service: one(rank, service), range(2)))
        found[name] = mine if share == "ranks" else sorted(mine[0] + mine[1])
    assert all(each == found["ordinary"] for each in found.values()), list(found)


def test_a_state_from_the_middle_of_it_goes_on_in_a_service_that_has_no_cache_yet(provider: str) -> None:
    with pydp2.load(FILES, provider, workers=2, **HOW) as data:
        whole, states = [], []
        for _ in range(3):
            for batch in data:
                whole.append(seen(batch))
                states.append(data.state_dict())
    for number in range(len(whole) // 3, len(whole), 17):
        with pydp2.load(FILES, provider, workers=2, **HOW) as data:
            data.load_state_dict(states[number])
            rest = []
            while len(rest) + number + 1 < len(whole):
                rest += [seen(batch) for batch in data]
            assert rest == whole[number + 1 :]


def test_one_may_go_back_in_a_pass_that_is_gathered(provider: str) -> None:
    with pydp2.load(FILES, provider, workers=2, **HOW) as data:
        list(data)
        first, states = [], []
        for batch in data:
            first.append(seen(batch))
            states.append(data.state_dict())
        for number in (0, len(first) // 2, len(first) - 2):
            data.load_state_dict(states[number])
            assert [seen(batch) for batch in data] == first[number + 1 :]
        assert [each[1:] for each in map(seen, data)] != [each[1:] for each in first]


def test_the_server_has_every_sample_once(provider_file: Callable[[str], str]) -> None:
    """And what a pass from the cache needs besides is a small part of it."""
    provider = provider_file(CACHED.replace("6", "4096").replace("40 + number", "300"))
    with pydp2.launch(FILES, provider, workers=2) as service, service.connect(batch_size=8, pool_bytes=1 << 26) as data:
        for _ in range(2):
            assert sum(len(batch) for batch in data) == 7 * 300
        assert straight(data)
        assert sum(len(batch) for batch in data) == 7 * 300
        figures = data.stats()
        size = figures["cache"]["bytes"]
        assert size > 7 * 300 * 4096 * 4
        resident = int(Path(f"/proc/{processes('pydp2-server')[0]}/statm").read_text().split()[1]) * os.sysconf(
            "SC_PAGE_SIZE"
        )
        assert resident < 2 * size + (120 << 20)


def test_a_pass_that_the_pool_cannot_hold_at_once_is_not_held_a_second_time(
    provider: str, site: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    how = {**HOW, "pool_bytes": 4000}  # of about 20,000
    found = {}
    for name, (code, bind) in {"ordinary": (ORDINARY, {}), **WAYS}.items():
        site(code)
        with pydp2.launch(FILES, provider, workers=2, **bind) as service, service.connect(**how) as data:
            found[name] = stream(data, 2)
            assert straight(data) is (name != "ordinary")
            assert any(carried(data, monkeypatch)) is (name == "by number")
    assert all(each == found["ordinary"] for each in found.values()), list(found)
    assert found["ordinary"] != stream_of_one(provider), "the limit is met"


def stream_of_one(provider: str) -> list[Any]:
    with pydp2.load(FILES, provider, workers=2, **HOW) as data:
        return stream(data, 2)


def carried(data: pydp2.Client, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of the batches of a pass, whether each came as numbers."""
    came: list[bool] = []
    make = ReceivedBatch.to_batch

    def batch(self: ReceivedBatch, pass_id: int) -> pydp2.Batch:
        came.append(isinstance(self.rows, tuple))
        return make(self, pass_id)

    with monkeypatch.context() as patch:
        patch.setattr(ReceivedBatch, "to_batch", batch)
        for _ in data:
            pass
    return came


def test_a_trainer_on_the_same_machine_gathers_for_itself_and_no_other(
    provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pydp2.launch(FILES, provider, workers=2) as service:
        with service.connect(**HOW) as data:
            assert carried(data, monkeypatch)[-1], "in the first pass, too"
            assert all(carried(data, monkeypatch))
            assert all(carried(data, monkeypatch))
        with service.connect(job="a second one", **HOW) as data:
            first = carried(data, monkeypatch)
            assert first[-1], "what is there already is not copied for a first pass either"
            assert all(carried(data, monkeypatch))
    with (
        pydp2.launch(FILES, provider, workers=2, bind="tcp://127.0.0.1:*") as service,
        service.connect(**HOW) as data,
    ):
        assert [any(carried(data, monkeypatch)) for _ in range(3)] == [False] * 3


@pytest.mark.parametrize("lacks", ["a way to be given it", "room for it"])
def test_a_trainer_that_cannot_see_the_cache_is_sent_the_same_batches(
    provider: str, monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    with pydp2.launch(FILES, provider, workers=2) as service:
        with service.connect(**HOW) as data:
            expected = stream(data)
        with monkeypatch.context() as patch:
            if lacks == "room for it":
                patch.setattr("pydp2.client.row_sources.map_region", cannot)
            else:
                patch.setattr("pydp2.transport.fd_broadcast.send_fd", lambda *_: None)
            with service.connect(job="other", **HOW) as data:
                assert stream(data) == expected
                assert not any(carried(data, monkeypatch))
                assert mapped() == 0


def cannot(descriptor: int, size: int) -> None:
    raise OSError("as it has to be")


def test_a_trainer_that_keeps_its_batches_and_writes_into_them_spoils_nothing(provider: str) -> None:
    with pydp2.load(FILES, provider, workers=2, **HOW) as data:
        list(data)
        kept = list(data)
        before = [seen(batch) for batch in kept]
        for batch in kept[::2]:
            batch["x"][:] = -1
            batch["y"].values[:] = -1
        assert [seen(batch) for batch in kept[1::2]] == before[1::2]
        other = [seen(batch) for batch in data]
        assert sorted(row for each in other for row in rows_of(each)) == sorted(
            row for each in before for row in rows_of(each)
        )
    del data
    gc.collect()
    assert mapped() == 0
    assert [seen(batch) for batch in kept[1::2]] == before[1::2]


def rows_of(each: Any) -> list[bytes]:
    contents = each[-1][0]
    return [contents[i : i + 24] for i in range(0, len(contents), 24)]


def test_what_has_come_is_good_when_the_server_is_killed_and_everything_is_freed_then(provider: str) -> None:
    with pydp2.launch(FILES, provider, workers=2) as service, service.connect(prefetch=64, **HOW) as data:
        list(data)
        expected = [seen(batch) for batch in data]
        data.load_state_dict(state_of(data))
        batches = iter(data)
        found = [seen(next(batches))]
        (pid,) = processes("pydp2-server")
        assert mapped(pid) == 1
        assert wait_until(lambda: service.stats()["jobs"]["default"]["batches_in_pass"] > 5)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(ServiceLost):
            found.extend(map(seen, batches))
        assert len(found) > 1, "more had come with the first"
        assert [each[1:] for each in found] == [each[1:] for each in expected[: len(found)]]
    del data, batches
    gc.collect()
    assert mapped() == 0


def state_of(data: pydp2.Client) -> dict[str, Any]:
    """The beginning of the second pass."""
    return seal({**data.state_dict(), "pass": 1, "batch": 0, "point": None})


TRAINER = """
import sys, time, pydp2
data = pydp2.connect(sys.argv[1], job=sys.argv[2], batch_size=9, seed=5)
for number in range(2):
    for i, batch in enumerate(data):
        if number and i == 3:
            print("ready", flush=True)
            time.sleep(1000)
"""


def test_trainers_that_are_killed_leave_nothing_at_the_server_and_disturb_nobody(
    provider: str, program: Callable[..., Program]
) -> None:
    with pydp2.launch(FILES, provider, workers=2) as service, service.connect(**HOW) as data:
        expected = stream(data)
        (pid,) = processes("pydp2-server")
        batches, counts = iter(data), []
        next(batches)
        for number in range(4):
            trainer = program(TRAINER, service.address, f"job {number}")
            trainer.said("ready")
            assert mapped(trainer.pid) == 1
            next(batches)
            trainer.signal(signal.SIGKILL)
            trainer.ended()
            with service.connect(job=f"job {number}", **HOW) as other:
                assert stream(other) == expected
            counts.append(len(open_files(pid)))  # those of who was killed are let go of a moment later
            assert wait_until(lambda: len(open_files(pid)) <= counts[0] + 4), counts
        assert mapped(pid) == 1


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_service_that_is_started_again_in_such_a_pass_shows_its_new_cache(
    provider: str, tmp_path: Path, ranks: int
) -> None:
    """The rest of the pass is read again; the next one is gathered from the cache of the new service."""
    with ExitStack() as stack:
        start = partial(pydp2.launch, FILES, provider, workers=2, state_dir=tmp_path / "state")
        with pydp2.load(FILES, provider, workers=2, **HOW) as data:
            expected = [seen(batch) for _ in range(4) for batch in data]
        service = stack.enter_context(start())
        clients = [stack.enter_context(service.connect(rank=i, world_size=ranks, **HOW)) for i in range(ranks)]
        found: list[Any] = []
        for number in range(4):
            passes = [iter(client) for client in clients]
            for index in count():
                batch = next(passes[index % ranks], None)
                if batch is None:
                    break
                found.append(seen(batch))
                if number == 1 and index == 10:
                    os.kill(service.pid, signal.SIGKILL)
                    stack.enter_context(start())
            assert [next(each, None) for each in passes] == [None] * ranks
        assert found == expected
        assert mapped() == ranks
