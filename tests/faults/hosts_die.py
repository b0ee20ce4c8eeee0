"""H1, H2, H6, H7: agents of hosts are killed, stopped, told to leave, join; the stream is the one without."""

from __future__ import annotations

import signal
import threading
import time
from random import Random
from typing import Any

import numpy as np

import pydp2

from .bench import Bench
from .case import Event, Fault, Report, Schedule
from .hosts_stage import TIMEOUT, Stage, nobody_is_blamed, paced, read, stage

ROWS = ("", "tcp://127.0.0.1:*")  # all rows go to the service, or they stay on their hosts


# -- H1 ----------------------------------------------------------------------------------------------------------------
def draw_kills(random: Random, size: str) -> tuple[dict[str, Any], list[Event]]:
    """``at``: a share of the pass. An agent is killed, alone or with the program that started it."""
    samples, many = (18_000, 3) if size == "quick" else (90_000, 8)
    events = [Event(random.choice(["agent", "both"]), random.uniform(0.02, 0.9), random.random()) for _ in range(many)]
    return {"hosts": random.choice([2, 3]), "samples": samples, "rows": random.choice(ROWS)}, events


def play_kills(bench: Bench, schedule: Schedule) -> Report:
    """A killed agent is started again at once, as a launcher would."""
    setup = schedule.setup
    data = paced(bench, setup["samples"])
    names = [f"host{n}" for n in range(setup["hosts"])]
    figures: dict[str, float | list[float]] = {}
    kills, elsewhere = 0, []
    with stage(bench, data) as made:
        made.row_server = setup["rows"]
        for name in names:
            made.join(name, 2)
        made.wait_active(2 * len(names))
        calm = read(made, data, schedule.seed)

        def strike(event: Event) -> None:
            nonlocal kills
            name = names[int(event.which * len(names))]
            pid, number, program = made.pid(name), made.hosts()[name]["number"], made.agents[name]
            if event.what == "both":
                bench.signal(program.pid, signal.SIGKILL)
            bench.signal(pid, signal.SIGKILL)
            elsewhere.append(made.wait_lost(name, number))
            program.ended()
            kills += 1
            made.join(name, 2)

        seen = read(made, data, schedule.seed, schedule.events, strike)
        made.wait_active(2 * len(names))
        figures["noticed s"] = elsewhere
        figures["throughput"] = calm.seconds / seen.seconds
        figures["longest wait s"] = seen.longest
        figures["kills/s"] = kills / seen.seconds
        figures["samples again"] = seen.again
        assert not calm.again, f"{calm.again} samples were read twice while nothing happened"
    nobody_is_blamed(bench)
    return Report(kills, figures)


# -- H2 ----------------------------------------------------------------------------------------------------------------
def draw_stops(random: Random, size: str) -> tuple[dict[str, Any], list[Event]]:
    """Agents are stopped for less than the time that a host may be silent, or for longer."""
    many, samples = (1, 18_000) if size == "quick" else (3, 60_000)
    lengths = [random.choice([random.random(), TIMEOUT + 2 * random.random()]) for _ in range(many)]
    events = [Event("SIGSTOP", random.uniform(0.05, 0.8), seconds) for seconds in lengths]
    return {"hosts": 2, "samples": samples, "rows": random.choice(ROWS)}, events


def play_stops(bench: Bench, schedule: Schedule) -> Report:
    """``which`` of an event: seconds until the agent goes on. One that was silent for too long joins anew."""
    setup = schedule.setup
    data = paced(bench, setup["samples"])
    noticed: list[float] = []
    again: list[float] = []
    with stage(bench, data) as made:
        made.row_server = setup["rows"]
        for n in range(setup["hosts"]):
            made.join(f"host{n}", 2)
        made.wait_active(2 * setup["hosts"])

        def strike(event: Event) -> None:
            name = f"host{len(again) % setup['hosts']}"
            pid, number = made.pid(name), made.hosts()[name]["number"]
            began = time.monotonic()
            bench.signal(pid, signal.SIGSTOP)
            try:
                if event.which > TIMEOUT:
                    noticed.append(made.wait_lost(name, number))
                time.sleep(max(0.0, began + event.which - time.monotonic()))
            finally:
                bench.signal(pid, signal.SIGCONT)
            again.append(made.wait_active(2, name))

        seen = read(made, data, schedule.seed, schedule.events, strike)
        assert max(noticed, default=0.0) < TIMEOUT + 5, f"noticed after {noticed} s"
    nobody_is_blamed(bench)
    return Report(
        0, {"noticed s": noticed, "at work again s": again, "longest wait s": seen.longest, "samples again": seen.again}
    )


# -- H6 ----------------------------------------------------------------------------------------------------------------
def draw_drains(random: Random, size: str) -> tuple[dict[str, Any], list[Event]]:
    """``at``: a share of the pass. Two hosts join, and leave again."""
    joins = [Event("join", 0.05 + 0.05 * random.random()) for _ in range(2)]
    leaves = [Event("leave", 0.5 + 0.2 * random.random()) for _ in range(2)]
    samples = 24_000 if size == "quick" else 90_000
    return {"samples": samples, "each": random.choice([300, 600, 1200])}, [*joins, *leaves]


def play_drains(bench: Bench, schedule: Schedule) -> Report:
    """A host that leaves ends the files that its workers have begun, so nothing is read twice."""
    setup = schedule.setup
    data = paced(bench, setup["samples"], setup["each"])
    drained: list[float] = []
    to_full: list[float] = []
    began_at: dict[str, float] = {}
    with stage(bench, data) as made:
        made.join("first", 2)
        made.wait_active(2)
        names = iter(["second", "third"])
        left = iter(["second", "third"])

        def act(event: Event) -> None:
            began = time.monotonic()
            began_at[event.what] = began if event.what == "join" else began_at.get("leave", began)
            if event.what == "join":
                name = next(names)
                made.join(name, 2)
                made.wait_active(2, name)
                to_full.append(time.monotonic() - began)
                return
            name = next(left)
            program = made.agents[name]
            program.signal(signal.SIGTERM)
            status = program.ended(40)
            drained.append(time.monotonic() - began)
            assert status == 0, f"a host that left ended with {status}: {program.screen[-500:]}"
            assert "end it has left" in program.lines, program.lines

        seen = read(made, data, schedule.seed, schedule.events, act)
        assert not seen.again, f"{seen.again} samples were read again although hosts left in order"
    nobody_is_blamed(bench)
    joined = began_at["join"]
    full = seen.rate((joined + began_at["leave"]) / 2, began_at["leave"])
    return Report(
        0,
        {
            "joined s": to_full,
            "full rate s": seen.seconds_to(0.9 * full, joined),
            "drained s": drained,
            "longest wait s": seen.longest,
            "samples again": seen.again,
            "samples/s": data.total / seen.seconds,
        },
    )


# -- H7 ----------------------------------------------------------------------------------------------------------------
KINDS = """
import numpy as np

@provider(
    input_types={
        "dense": dense_vector(5), "index": integer_value(1 << 20), "ids": integer_value_sequence(1000),
        "inner": integer_value_sub_sequence(50), "sparse": sparse_binary_vector(99), "pairs": sparse_float_vector(99),
        "dense_sequence": dense_vector_sequence(3), "picture": dense_vector(12, dtype="uint8", shape=(2, 2, 3)),
    },
    pool_size=POOL, cache=CACHE,
)
def process(settings, filename):
    n = int(filename)
    random = np.random.default_rng(n)
    for i in range(60 + n):
        some = sorted(set(random.integers(0, 99, 9).tolist()))
        yield {
            "dense": random.random(5).tolist(), "index": n * 1000 + i,
            "ids": random.integers(0, 1000, random.integers(0, 30)).tolist(), "inner": [[i % 50] * 3, [1, 2]],
            "sparse": some, "pairs": [(k, k / 2) for k in some],
            "dense_sequence": random.random((i % 4, 3)).tolist(), "picture": np.full((2, 2, 3), i % 256, np.uint8),
        }
"""
PARTS = ("values", "offsets", "inner_offsets", "sequence_start_positions", "indices", "data", "indptr")


def draw_many(random: Random, size: str) -> tuple[dict[str, Any], list[Event]]:
    """How many hosts of how many workers, and how the stream is made."""
    hosts = 3 if size == "quick" else 8
    return {
        "workers": [random.randint(1, 3) for _ in range(hosts)], "files": 24 if size == "quick" else 60,
        "ranks": random.choice([1, 3]) if size == "quick" else 3, "pool": random.choice([100, 700]),
        "cache": random.choice(["CacheType.CACHE_PASS_IN_MEM", "CacheType.NO_CACHE"]), "passes": 3,
        "buckets": random.choice([None, "ids"]), "rows": random.choice(ROWS),
    }, []  # fmt: skip


def _signed(batch: pydp2.Batch) -> list[bytes]:
    """All bytes of a batch, slot by slot."""
    found = []
    for number in range(len(batch.keys())):
        column = batch[number]
        parts = [column] if isinstance(column, np.ndarray) else [getattr(column, name, None) for name in PARTS]
        found += [np.ascontiguousarray(part).tobytes() for part in parts if part is not None]
    return found


def _streams(service: pydp2.Service, schedule: Schedule) -> list[list[list[bytes]]]:
    """The batches of each rank, read at the same time."""
    setup = schedule.setup
    job: dict[str, Any] = {"batch_size": 16, "seed": schedule.seed, "timeout": 60.0}
    if setup["buckets"]:
        job |= {"bucket_by": setup["buckets"], "num_buckets": 4}
    streams: list[list[list[bytes]]] = [[] for _ in range(setup["ranks"])]
    errors: list[BaseException] = []

    def train(rank: int) -> None:
        try:
            with service.connect(**job, rank=rank, world_size=setup["ranks"]) as client:
                for _ in range(setup["passes"]):
                    streams[rank] += [_signed(batch) for batch in client]
        except BaseException as error:  # told in the thread that waits for us
            errors.append(error)

    trainers = [threading.Thread(target=train, args=(rank,), daemon=True) for rank in range(setup["ranks"])]
    for trainer in trainers:
        trainer.start()
    for trainer in trainers:
        trainer.join()
    if errors:
        raise errors[0]
    return streams


def play_many(bench: Bench, schedule: Schedule) -> Report:
    """Each rank gets from hosts, byte for byte, what it gets from workers here."""
    setup = schedule.setup
    files = [str(n) for n in range(setup["files"])]
    address = bench.write("kinds", KINDS.replace("POOL", str(setup["pool"])).replace("CACHE", setup["cache"], 1))
    with pydp2.launch(files, address, workers=2) as service:
        local = _streams(service, schedule)
    made = Stage(bench, address, files, "127.0.0.1")
    try:
        made.row_server = setup["rows"]
        for number, workers in enumerate(setup["workers"]):
            made.join(f"host{number}", workers)
        joined = made.wait_active(sum(setup["workers"]))
        streams = _streams(made.service, schedule)
    finally:
        made.close()
    for rank, (one, other) in enumerate(zip(local, streams, strict=True)):
        assert len(one) == len(other), f"rank {rank} got {len(other)} batches from hosts, {len(one)} from workers here"
        differ = [index for index, (mine, theirs) in enumerate(zip(one, other, strict=True)) if mine != theirs]
        assert not differ, f"rank {rank}: batch {differ[0]} from hosts is another one"
    batches = sum(map(len, streams))
    assert batches, "no batch came"
    return Report(0, {"hosts": len(setup["workers"]), "batches": batches, "all at work s": joined})


FAULTS = (
    Fault(
        "H1", "kill -9 of agents of hosts", "exact; no file blamed; half of the undisturbed throughput", draw_kills,
        play_kills,
    ),
    Fault("H2", "agents of hosts are stopped", "exact; noticed in time; joins anew", draw_stops, play_stops),
    Fault(
        "H6", "hosts join and leave in a pass", "exact; drained within 20 s; nothing is read again", draw_drains,
        play_drains,
    ),
    Fault("H7", "many hosts, all kinds of slots, ranks", "byte for byte the local stream", draw_many, play_many),
)  # fmt: skip
