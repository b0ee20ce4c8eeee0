"""Large rows of one size through places in shared memory: every sample once and unspoilt, in the order of the ordinary
way, whoever is killed, stopped or goes; and the places come back."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import pydp2
from pydp2.client.received import ReceivedBatch

from ..conftest import open_files
from ..runs import Program, processes, wait_until

FILES = [str(i) for i in range(6)]
ROWS = """
import numpy as np

@provider(input_types={{"x": dense_vector(300), "y": integer_value(1 << 30),
                       "z": dense_vector(192, dtype="u1", shape=(8, 8, 3))}}, pool_size={pool}{more})
def process(settings, filename):
    for i in range({samples}):
        key = int(filename) * 1000 + i
        yield {{"x": np.full(300, key, "f"), "y": key, "z": np.full((8, 8, 3), key % 251, "u1")}}
"""
WIDTH = 300 * 4 + 8 + 192
OFF = """
import pydp2.server.gateway.resources as resources
import pydp2.server.worker_gateway as worker_gateway
worker_gateway.create_cell_grants = resources.create_shared_pool = lambda *_: None
"""
NO_MEMFD = "import os\ndel os.memfd_create\n"
HOW: dict[str, Any] = {"batch_size": 16, "seed": 3}


def rows(samples: str = "60 + 7 * int(filename)", pool: int = 150, more: str = "") -> str:
    return ROWS.format(samples=samples, pool=pool, more=more)


def keys(batch: pydp2.Batch) -> list[int]:
    """Which samples a batch has, the last ones maybe there to pad; all of each row was looked at."""
    key = batch["y"]
    assert batch["x"].shape == (len(batch), 300)
    assert batch["z"].shape == (len(batch), 8, 8, 3)
    assert (batch["x"] == key[:, None]).all()
    assert (batch["z"] == (key % 251)[:, None, None, None]).all()
    return [int(each) for each in key]


def seen(batch: pydp2.Batch) -> Any:
    return batch.pass_id, batch.index, batch.size, batch.pool_weight, batch.padding, keys(batch)


def stream(data: pydp2.Client, passes: int = 2) -> list[Any]:
    return [seen(batch) for _ in range(passes) for batch in data]


def server() -> int:
    (pid,) = processes("pydp2-server")
    return pid


def in_use(pid: int) -> int:
    """Bytes of the memory for places that are in use: of the whole machine, whoever wrote there."""
    for number, target in open_files(pid).items():
        if "memfd:pydp2-cache" in target:
            return Path(f"/proc/{pid}/fd/{number}").stat().st_blocks * 512
    return -1


def mapped(pid: int | str = "self") -> int:
    """How many such memories the process sees."""
    return Path(f"/proc/{pid}/maps").read_text().count("memfd:pydp2-cache")


@pytest.fixture
def provider(provider_file: Callable[[str], str]) -> str:
    return provider_file(rows())


@pytest.fixture
def ordinary(provider: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """``ordinary(**options)``: two passes of a service without places."""

    def run(**options: Any) -> list[Any]:
        with monkeypatch.context() as patch:
            _site(tmp_path, patch, OFF)
            with pydp2.load(FILES, provider, workers=2, **{**HOW, **options}) as data:
                assert in_use(server()) == -1
                return stream(data)

    return run


def _site(folder: Path, patch: pytest.MonkeyPatch, code: str) -> None:
    """What every process of the services that follow does first."""
    (folder / "site").mkdir(exist_ok=True)
    (folder / "site" / "sitecustomize.py").write_text(code)
    patch.setenv("PYTHONPATH", str(folder / "site"))


@pytest.fixture
def carried(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each batch that is taken here, whether it came as numbers."""
    came: list[bool] = []
    make = ReceivedBatch.to_batch

    def batch(self: ReceivedBatch, pass_id: int) -> pydp2.Batch:
        made = make(self, pass_id)
        came.append(self.sizes[2])
        return made

    monkeypatch.setattr(ReceivedBatch, "to_batch", batch)
    return came


@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": False},
        {"last_batch": "pad"},
        *(pytest.param(each, marks=pytest.mark.slow) for each in ({}, {"last_batch": "drop"})),
    ],
    ids=str,
)
def test_the_stream_is_that_of_the_ordinary_way(
    provider: str, ordinary: Callable[..., list[Any]], options: dict[str, Any], carried: list[bool]
) -> None:
    expected = ordinary(**options)
    assert not any(carried)
    carried.clear()
    with pydp2.load(FILES, provider, workers=2, **{**HOW, **options}) as data:
        assert stream(data) == expected
        assert mapped() == 1
    assert all(carried[len(carried) // 2 :]), carried
    if options != {"last_batch": "drop"}:
        once = [key for number, *_, padding, held in expected if number == 0 for key in held[: len(held) - padding]]
        assert sorted(once) == [file * 1000 + i for file in range(6) for i in range(60 + 7 * file)]


@pytest.mark.parametrize("lacks", ["a socket on this machine", "memfd", "room at the trainer", "room at workers"])
def test_where_memory_cannot_be_seen_the_stream_is_the_same(
    provider: str,
    ordinary: Callable[..., list[Any]],
    lacks: str,
    carried: list[bool],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = ordinary()
    bind = {}
    if lacks == "a socket on this machine":
        bind = {"bind": "tcp://127.0.0.1:*"}
    elif lacks == "room at the trainer":
        monkeypatch.setattr("pydp2.client.row_sources.map_region", _cannot)
    else:
        code = "import pydp2.host.worker.cell_writer\ndef look(given, *_, **__):\n    raise OSError\n"
        code += "pydp2.host.worker.cell_writer.map_region = look\n"
        _site(tmp_path, monkeypatch, NO_MEMFD if lacks == "memfd" else code)
    with pydp2.launch(FILES, provider, workers=2, **bind) as service, service.connect(**HOW) as data:
        assert stream(data) == expected
    assert any(carried) is (lacks == "room at workers")


def _cannot(descriptor: int, size: int) -> None:
    raise OSError("as it has to be")


def test_workers_that_are_killed_at_any_time_change_nothing(provider: str, ordinary: Callable[..., list[Any]]) -> None:
    expected = ordinary()
    found, killed = [], 0
    with pydp2.load(FILES, provider, workers=2, **HOW) as data:
        for _ in range(2):
            for number, batch in enumerate(data):
                if number % 4 == 1 and (workers := processes("pydp2-worker-")):
                    with suppress(ProcessLookupError):  # the one before was it
                        os.kill(workers[killed % len(workers)], signal.SIGKILL)
                    killed += 1
                found.append(seen(batch))
    assert killed > 5
    assert found == expected


def test_a_trainer_that_keeps_its_batches_and_writes_into_them_spoils_nothing(
    provider: str, ordinary: Callable[..., list[Any]]
) -> None:
    expected = ordinary()
    with pydp2.load(FILES, provider, workers=2, **HOW) as data:
        kept = []
        for _ in range(2):
            for batch in data:
                kept.append(batch)
                if len(kept) % 2:
                    batch["x"][:] = -1
                    batch["z"][:] = 0
    assert [seen(batch) for batch in kept[1::2]] == expected[1::2]


def test_a_pass_is_left_and_taken_up_from_states_here_and_elsewhere(
    provider: str, ordinary: Callable[..., list[Any]]
) -> None:
    expected = ordinary()
    states = []
    with pydp2.load(FILES, provider, workers=2, **HOW) as data:
        for _ in range(2):
            for batch in data:
                assert seen(batch) == expected[len(states)]
                states.append(json.dumps(data.state_dict()))
        for number in range(3, len(states), 13):
            data.load_state_dict(json.loads(states[number]))
            left = [seen(batch) for batch, _ in zip(data, range(5), strict=False)]
            assert left == expected[number + 1 : number + 6][: len(left)]
    for number in (0, len(states) // 3, len(states) - 4):
        with pydp2.load(FILES, provider, workers=1, **HOW) as data:
            data.load_state_dict(json.loads(states[number]))
            rest: list[Any] = []
            while number + 1 + len(rest) < len(expected):
                rest += [seen(batch) for batch in data]
            assert rest == expected[number + 1 :]


def test_two_jobs_at_once_each_have_their_stream(provider: str, ordinary: Callable[..., list[Any]]) -> None:
    expected = [ordinary(seed=seed) for seed in (3, 4)]

    def one(job: int) -> list[Any]:
        with service.connect(job=f"job {job}", **{**HOW, "seed": 3 + job}) as data:
            return stream(data)

    with pydp2.launch(FILES, provider, workers=2) as service, ThreadPoolExecutor(2) as pool:
        assert list(pool.map(one, range(2))) == expected


@pytest.mark.parametrize("last_batch", ["keep", "pad"])
def test_two_ranks_share_the_stream(provider: str, ordinary: Callable[..., list[Any]], last_batch: str) -> None:
    def one(rank: int) -> list[Any]:
        with service.connect(rank=rank, world_size=2, last_batch=last_batch, **HOW) as data:
            return stream(data)

    with pydp2.launch(FILES, provider, workers=2) as service, ThreadPoolExecutor(2) as pool:
        first, second = pool.map(one, range(2))
    assert all(each[1] % 2 == 0 for each in first)
    merged = [each for each in sorted(first + second) if each[4] < len(each[5])]  # one may be padding alone
    assert merged == ordinary(last_batch=last_batch)


SHARER = """
import sys, pydp2
with pydp2.connect(sys.argv[1], batch_size=16, seed=3, share="dynamic", lease=0.4) as data:
    for batch in data:
        key = batch["y"]
        assert (batch["x"] == key[:, None]).all() and (batch["z"] == (key % 251)[:, None, None, None]).all(), "spoilt"
        print("had", batch.index, *key, flush=True)
    print("over", flush=True)
"""


@pytest.mark.parametrize("waits", [False, True], ids=["while it works", "while it waits"])
def test_a_trainer_that_was_stopped_beyond_its_lease_has_no_row_of_anothers(
    provider_file: Callable[[str], str], program: Callable[..., Program], waits: bool
) -> None:
    """What it was told of is given to another and its places used again: it notices, and asks anew."""
    slow = "\n        if i % 16 == 0:\n            time.sleep(0.02)"
    code = rows("900", pool=64)
    provider = provider_file(code.replace("import numpy", "import time\nimport numpy") + (slow if waits else ""))
    mine: list[tuple[int, list[int]]] = []
    with (
        pydp2.launch(FILES, provider, workers=2) as service,
        service.connect(share="dynamic", lease=0.4, **HOW) as data,
    ):
        sharer = program(SHARER, service.address)
        sharer.said("had")
        stopped = 0.0
        for batch in data:
            mine.append((batch.index, keys(batch)))
            time.sleep(0.0 if waits else 0.005)  # so long a step takes
            if stopped and time.monotonic() - stopped > 0.7:
                stopped = 0.0
                with suppress(ProcessLookupError):  # it was over before it was stopped
                    sharer.signal(signal.SIGCONT)
            elif len(mine) in (10, 160):
                stopped = time.monotonic()
                with suppress(ProcessLookupError):
                    sharer.signal(signal.SIGSTOP)
        with suppress(ProcessLookupError):
            sharer.signal(signal.SIGCONT)
        sharer.said("over")
        sharer.ended()
    theirs = [(int(words[1]), [*map(int, words[2:])]) for line in sharer.lines if (words := line.split())[0] == "had"]
    had: dict[int, list[int]] = {}
    for index, held in mine + theirs:
        assert had.setdefault(index, held) == held
    assert sorted(key for held in had.values() for key in held) == [
        file * 1000 + i for file in range(6) for i in range(900)
    ]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_service_that_is_killed_and_started_again_goes_on(
    provider: str, ordinary: Callable[..., list[Any]], tmp_path: Path, ranks: int
) -> None:
    expected = ordinary()
    with ExitStack() as stack:
        start = partial(pydp2.launch, FILES, provider, workers=2, state_dir=tmp_path / "state")
        service = stack.enter_context(start())
        clients = [stack.enter_context(service.connect(rank=i, world_size=ranks, **HOW)) for i in range(ranks)]
        found: list[Any] = []
        for number in range(2):
            passes = [iter(client) for client in clients]
            batch: pydp2.Batch | None = None
            index = 0
            while (batch := next(passes[index % ranks], None)) is not None:
                found.append(seen(batch))
                if index == 9 + number:
                    os.kill(service.pid, signal.SIGKILL)
                    service = stack.enter_context(start())
                index += 1
            assert [next(each, None) for each in passes] == [None] * ranks
        assert found == expected
        assert mapped() == ranks


def test_places_are_used_again_pass_after_pass_and_given_back_with_the_last_job(provider: str) -> None:
    with pydp2.launch(FILES, provider, workers=2) as service:
        used = []
        for _ in range(3):
            with service.connect(**HOW) as data, service.connect(job="left in its middle", **HOW) as other:
                for _ in range(3):
                    assert len(stream(data, 1)) == 30
                    next(iter(other))
                used.append(in_use(server()))
            assert wait_until(lambda: in_use(server()) < used[0] / 3), (in_use(server()), used)
        assert min(used) > 150 * WIDTH
        assert max(used) < 2 * used[0], used
    assert mapped() == 0, "a client that is closed sees nothing any more"


KILLED = """
import sys, time, pydp2
share, world = sys.argv[2], int(sys.argv[3])
how = {"batch_size": 16, "world_size": world, "share": share, "lease": 1}
data = [pydp2.connect(sys.argv[1], rank=rank, **how) for rank in range(world)]
streams = [iter(each) for each in data]
for _ in range(3):
    for stream in streams:
        next(stream)
print("ready", flush=True)
if sys.argv[4] == "killed":
    time.sleep(1000)
for each in data:
    each.close()
"""


@pytest.mark.parametrize("how", ["killed", "closed"])
@pytest.mark.parametrize(("share", "world"), [("ranks", 1), ("ranks", 2), ("dynamic", 1)])
def test_what_waited_for_trainers_that_are_gone_does_not_stay(
    provider_file: Callable[[str], str], program: Callable[..., Program], share: str, world: int, how: str
) -> None:
    """Nor does the pool that it came from: with the last job all of the memory is given back."""
    provider = provider_file(rows("400", pool=2000))
    with pydp2.launch(FILES, provider, workers=2) as service:
        for _ in range(2):
            trainer = program(KILLED, service.address, share, str(world), how)
            trainer.said("ready")
            if how == "killed":
                used = in_use(server())
                assert used > 400 * WIDTH
                trainer.signal(signal.SIGKILL)
            trainer.ended()
        with ExitStack() as stack:  # the places of trainers that were killed are kept for a while
            for rank in range(world):
                stack.enter_context(
                    service.connect(batch_size=16, rank=rank, world_size=world, share=share, lease=1, timeout=20)
                )
        assert wait_until(lambda: in_use(server()) < 400 * WIDTH), in_use(server())
