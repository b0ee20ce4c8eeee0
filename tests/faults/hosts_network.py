"""H3 to H5, H8, H9: the network between a service and its hosts is cut, late, slow, loses packets, or is full."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np

from pydp2.transport.key_files import ConnectionFile

from ..runs import wait_until
from .bench import Bench
from .case import Event, Fault, Report, Schedule, Skip
from .data import expected
from .hosts_stage import BATCH, PATIENCE, TIMEOUT, Stage, nobody_is_blamed, paced, read, stage
from .starts import ROOT

WORKERS = 2  # of each host
FAR_TRAINER = "import os, sys; os.chdir(sys.argv[1]); os.execvp(sys.argv[2], sys.argv[2:])"


def join(made: Stage, count: int) -> list[str]:
    """Start ``count`` agents, each behind a relay; their names, once all are at work."""
    names = [f"host{number}" for number in range(count)]
    for name in names:
        made.join(name, WORKERS, relayed=True)
    made.wait_active(WORKERS * count)
    return names


# -- H3 ----------------------------------------------------------------------------------------------------------------
def draw_cuts(random: Random, size: str) -> tuple[dict[str, Any], list[Event]]:
    """``at``: a share of the pass; ``which``: for how many seconds. In a round one host at a time is cut off, or all
    are: nobody can read while all are, so a trainer waits for other reasons then."""
    many, samples = (2, 18_000) if size == "quick" else (4, 60_000)
    whom = random.choice(["one", "all"])
    events = []
    for _ in range(many):
        what = random.choice(["cut", "down", "silent", "half-open"])
        seconds = random.choice([random.uniform(0.2, 1.5), TIMEOUT + random.uniform(0.5, 3.0)])
        events.append(Event(what, random.uniform(0.05, 0.8), 0.0 if what == "cut" else seconds))
    return {"hosts": 2, "samples": samples, "cut off": whom}, events


def play_cuts(bench: Bench, schedule: Schedule) -> Report:
    """A host that was cut off joins anew by itself; one that was silent for a short time goes on."""
    setup, whom = schedule.setup, schedule.setup["cut off"]
    data = paced(bench, setup["samples"])
    figures: dict[str, float | list[float]] = {}
    noticed: list[float] = []
    again: dict[str, list[float]] = {}
    with stage(bench, data) as made:
        hosts, paths = join(made, setup["hosts"]), made.relays

        def strike(event: Event) -> None:
            names = hosts if whom == "all" else [hosts[sum(map(len, again.values())) % len(hosts)]]
            numbers = {name: made.hosts()[name]["number"] for name in names if name in made.hosts()}
            began = time.monotonic()
            for name in names:
                if event.what in ("cut", "down"):
                    paths[name].cut(down=event.what == "down")
                else:
                    paths[name].held = True
            if event.what in ("cut", "down") or event.which > TIMEOUT:
                for name, number in numbers.items():
                    made.wait_lost(name, number)
                    noticed.append(time.monotonic() - began)
            time.sleep(max(0.0, began + event.which - time.monotonic()))
            for name in names:
                if event.what == "half-open":
                    paths[name].cut()
                paths[name].up()
            began = time.monotonic()
            for name in names:
                made.wait_active(WORKERS, name)
                again.setdefault(event.what, []).append(time.monotonic() - began)

        seen = read(made, data, schedule.seed, schedule.events, strike)
        figures["connections"] = sum(path.connections for path in paths.values())
    assert max(noticed, default=0.0) < TIMEOUT + 5, f"noticed after {noticed} s"
    nobody_is_blamed(bench)
    figures |= {"noticed s": noticed} | {f"at work again s, {what}": some for what, some in again.items()}
    figures |= {f"longest wait s, {whom} cut off": seen.longest, "samples again": seen.again}
    if whom == "all":
        figures["of it without any host s"] = max(event.which for event in schedule.events)
    return Report(0, figures)


# -- H4 ----------------------------------------------------------------------------------------------------------------
def draw_late(random: Random, size: str) -> tuple[dict[str, Any], list[Event]]:
    """The round trip, in milliseconds."""
    return {
        "hosts": 2,
        "round trip": random.choice([1, 5, 20, 50]),
        "samples": 12_000 if size == "quick" else 48_000,
    }, []


def play_late(bench: Bench, schedule: Schedule) -> Report:
    """How fast a pass is over a long way, against one over a short way."""
    setup = schedule.setup
    data = paced(bench, setup["samples"])
    with stage(bench, data) as made:
        join(made, setup["hosts"])
        near = read(made, data, schedule.seed)
        for path in made.relays.values():
            path.delay = setup["round trip"] / 2000
        numbers = {name: host["number"] for name, host in made.hosts().items()}
        far = read(made, data, schedule.seed)
        assert {name: host["number"] for name, host in made.hosts().items()} == numbers, "a host was lost"
    nobody_is_blamed(bench)
    assert not far.again, f"{far.again} samples were read twice"
    name = f"throughput at {setup['round trip']} ms"
    return Report(0, {name: near.seconds / far.seconds, "longest wait s": far.longest})


# -- H5 and H8: wide rows ----------------------------------------------------------------------------------------------
WIDE = """
import numpy as np
from pydp2 import rows

@provider(input_types={"name": integer_value(1 << 62), "row": dense_vector(1024)}, pool_size=1000)
def process(settings, filename):
    for first in range(0, COUNT, 64):
        names = (int(filename) << 32) + np.arange(first, min(first + 64, COUNT))
        yield rows(name=names, row=np.repeat((names % 9973).astype(np.float32)[:, None], 1024, 1))
"""


class WideStage(Stage):
    """A stage over files of ``count`` rows of 4 KB."""

    def __init__(self, bench: Bench, files: int, count: int, host: str = "127.0.0.1") -> None:
        self.counts = (count,) * files
        address = bench.write("wide", WIDE.replace("COUNT", str(count)))
        super().__init__(bench, address, [str(n) for n in range(files)], host)

    def read(
        self, seed: int, batches: int | None = None, pause: float = 0.0, fill: bool = False, job: str = "default"
    ) -> tuple[float, float]:
        """Read a pass, or its first ``batches``, each compared with the oracle's; seconds, and the longest wait for a
        batch. ``fill``: the trainer waits after the first one until all that may be read ahead is there."""
        wanted = expected(self.counts, 1000, BATCH, seed)
        longest, index = 0.0, -1
        with self.service.connect(job=job, batch_size=BATCH, seed=seed, timeout=PATIENCE) as client:
            began = asked = time.monotonic()
            for index, batch in enumerate(client):
                if index:
                    longest = max(longest, time.monotonic() - asked)
                names = wanted.batch(index)
                assert np.array_equal(batch["name"], names), f"batch {index} is another one"
                assert (batch["row"] == (names % 9973).astype(np.float32)[:, None]).all(), f"rows of batch {index}"
                if index + 1 == batches:
                    break
                if fill and not index:
                    self.wait_full()
                    began = time.monotonic()
                time.sleep(pause)
                asked = time.monotonic()
            seconds = time.monotonic() - began
        assert index + 1 == (batches or wanted.batches), f"{index + 1} of {wanted.batches} batches came"
        return seconds, longest

    def wait_full(self) -> None:
        """Until nearly all is there that may be read ahead."""

        def full() -> bool:
            figures = self.service.stats()["read_ahead"]
            return bool(figures["used"] > 0.8 * figures["budget"] > 0)

        assert wait_until(full, PATIENCE), f"what is read ahead: {self.service.stats()['read_ahead']}"


def draw_full(random: Random, size: str) -> tuple[dict[str, Any], list[Event]]:
    """How many hosts, and for how many milliseconds the trainer computes after a batch."""
    return {
        "hosts": random.choice([1, 2]),
        "batches": 100 if size == "quick" else 400,
        "step": random.choice([2, 5]),
    }, []


def play_full(bench: Bench, schedule: Schedule) -> Report:
    """All that may be read ahead is there, another job keeps the server busy, and no host is taken for lost."""
    setup = schedule.setup
    made = WideStage(bench, 32, 4000)
    busy = True
    rates: list[float] = []
    errors: list[BaseException] = []

    def other() -> None:
        try:
            while busy:
                seconds, _ = made.read(schedule.seed + 1, batches=300, job="other")
                rates.append(300 * BATCH / seconds)
        except BaseException as error:  # told in the thread that waits for us
            errors.append(error)

    trainer = threading.Thread(target=other, daemon=True)
    try:
        for number in range(setup["hosts"]):
            made.join(f"host{number}", WORKERS)
        made.wait_active(WORKERS * setup["hosts"])
        numbers = {name: host["number"] for name, host in made.hosts().items()}
        trainer.start()
        seconds, longest = made.read(schedule.seed, setup["batches"], setup["step"] / 1000, fill=True)
        assert {name: host["number"] for name, host in made.hosts().items()} == numbers, "a host was lost"
        busy = False
        trainer.join()
        if errors:
            raise errors[0]
    finally:
        busy = False
        made.close()
    nobody_is_blamed(bench)
    return Report(
        0, {"longest wait s": longest, "samples/s": setup["batches"] * BATCH / seconds, "samples/s of the other": rates}
    )


@contextlib.contextmanager
def namespace(loss: int, rate: int) -> Iterator[tuple[str, list[str]]]:
    """A network of its own, the address of this one in it, and the command that runs a program there. ``loss``: percent
    of the packets that are lost, each way; ``rate``: Mbit/s, 0 for any. Raises Skip."""
    if os.geteuid() or not shutil.which("ip") or not shutil.which("tc"):
        raise Skip("no rights for a network of its own, or no ip and tc")
    name = f"pf{os.getpid()}"
    here, there, net = f"{name}a", f"{name}b", f"10.{200 + os.getpid() % 50}.{os.getpid() // 50 % 250}"
    try:
        _network(f"ip netns add {name}")
        _network(f"ip link add {here} type veth peer name {there} netns {name}")
        _network(f"ip addr add {net}.1/30 dev {here}")
        _network(f"ip link set {here} up")
        inside = f"ip netns exec {name}"
        for command in (f"ip addr add {net}.2/30 dev {there}", f"ip link set {there} up", "ip link set lo up"):
            _network(f"{inside} {command}")
        if rate:
            _network(f"tc qdisc add dev {here} root tbf rate {rate}mbit burst 128kb latency 50ms")
            _network(f"{inside} tc qdisc add dev {there} root tbf rate {rate}mbit burst 128kb latency 50ms")
        if loss:  # a random number is compared with a limit: below it the packet goes on
            _network(f"tc qdisc add dev {here} clsact")
            limit = (1 << 32) * (100 - loss) // 100
            code = f"4,32 0 0 4294963256,53 0 1 {limit},6 0 0 2,6 0 0 4294967295"
            for way in ("ingress", "egress"):
                _network(f"tc filter add dev {here} {way} bpf da bytecode", code)
        yield f"{net}.1", inside.split()
    finally:
        for command in (f"ip link del {here}", f"ip netns del {name}"):
            subprocess.run(command.split(), capture_output=True)


@contextlib.contextmanager
def black_hole() -> Iterator[None]:
    """For its length all packets to and from the :func:`namespace` of this process are dropped, and nobody is told."""
    here = f"pf{os.getpid()}a"
    _network(f"tc qdisc add dev {here} clsact")
    for way in ("ingress", "egress"):
        _network(f"tc filter add dev {here} {way} bpf da bytecode", "1,6 0 0 2")
    yield
    _network(f"tc qdisc del dev {here} clsact")


def _network(command: str, *more: str) -> None:
    done = subprocess.run([*command.split(), *more], capture_output=True, text=True)
    if done.returncode:
        raise Skip(f"this machine cannot do it: {command.split()[0]}: {done.stderr.strip().splitlines()[-1:]}")


def draw_poor(random: Random, size: str) -> tuple[dict[str, Any], list[Event]]:
    """Percent of packets that are lost, Mbit/s of the link."""
    loss, rate = random.choice([(1, 0), (5, 0), (0, 100), (1, 100)])
    return {"loss": loss, "rate": rate, "count": 250 if size == "quick" else 1000}, []


def play_poor(bench: Bench, schedule: Schedule) -> Report:
    """Over a link that loses packets or carries little; how much of what it could carry are samples."""
    setup = schedule.setup
    with namespace(setup["loss"], setup["rate"]) as (address, prefix):
        made = WideStage(bench, 32, setup["count"], address)
        try:
            made.join("far", 2, prefix=prefix)
            made.wait_active(2)
            number = made.hosts()["far"]["number"]
            seconds, longest = made.read(schedule.seed)
            assert made.hosts()["far"]["number"] == number, "the host was lost"
        finally:
            made.close()
    nobody_is_blamed(bench)
    carried = sum(made.counts) * 4104 * 8 / seconds / 1e6
    link = f"{setup['rate']} Mbit/s" if setup["rate"] else "any rate"
    figures: dict[str, float | list[float]] = {
        f"Mbit/s, {setup['loss']} % lost, {link}": carried, "longest wait s": longest,
    }  # fmt: skip
    if setup["rate"] and not setup["loss"]:
        figures["of the link"] = carried / setup["rate"]
    return Report(0, figures)


# -- H9 ----------------------------------------------------------------------------------------------------------------
def draw_black_holes(random: Random, size: str) -> tuple[dict[str, Any], list[Event]]:
    """``at``: a share of the pass; ``which``: for how many seconds nothing goes over the link."""
    if size == "quick":
        return {"samples": 12_000}, [Event("drop", 0.3, TIMEOUT + random.uniform(0.5, 1.5))]
    return {"samples": 40_000}, [Event("drop", at, random.uniform(4, 25)) for at in (0.2, 0.6)]


def play_black_holes(bench: Bench, schedule: Schedule) -> Report:
    """Workers and the trainer are behind a link that drops all packets for a while: both go on by themselves."""
    data = paced(bench, schedule.setup["samples"])
    wanted = expected(data.counts, data.pool_size, BATCH, schedule.seed)
    config, log = bench.folder / "trainer.json", bench.folder / "batches"
    log.touch()
    job = {"batch_size": BATCH, "seed": schedule.seed, "timeout": PATIENCE, "lease": PATIENCE}
    again: list[float] = []
    went_on: list[float] = []

    def lines() -> int:
        return log.read_text().count("\n")

    with namespace(0, 0) as (address, prefix), stage(bench, data, address) as made:
        made.join("far", WORKERS, prefix=prefix)
        made.wait_active(WORKERS)
        found = ConnectionFile.read(made.connection)
        path = bench.folder / "far.json"  # without the address for this machine
        ConnectionFile(found.address, found.keys, found.host_address).write(path)
        config.write_text(
            json.dumps(
                {"address": str(path), "job": job, "checkpoint": str(bench.folder / "checkpoint"), "log": str(log)}
                | {"loads": 0, "passes": 1, "every": 1 << 30, "die_at": None}
            )
        )
        trainer = bench.program(
            FAR_TRAINER, str(ROOT), *prefix, sys.executable, "-m", "tests.faults.trainer", str(config)
        )
        for event in schedule.events:
            assert wait_until(lambda at=event.at: lines() >= at * wanted.batches, PATIENCE), trainer.screen
            number, began = made.hosts()["far"]["number"], time.monotonic()
            with black_hole():
                made.wait_lost("far", number)
                time.sleep(max(0.0, began + event.which - time.monotonic()))
                before = lines()
            began = time.monotonic()
            assert wait_until(lambda before=before: lines() > before, PATIENCE), trainer.screen
            went_on.append(time.monotonic() - began)
            made.wait_active(WORKERS, "far")
            again.append(time.monotonic() - began)
        assert trainer.ended(PATIENCE) == 0, trainer.screen
    assert log.read_text().splitlines() == wanted.lines(0), "the batches are others"
    nobody_is_blamed(bench)
    return Report(0, {"at work again s": again, "the trainer goes on s": went_on})


FAULTS = (
    Fault(
        "H3", "the way to one host or all is cut, silent, half open", "exact; noticed in time; joins anew by itself",
        draw_cuts, play_cuts,
    ),
    Fault("H4", "a long way to hosts", "exact; nine tenths of a short way up to 20 ms", draw_late, play_late),
    Fault(
        "H5", "all is read ahead, and the server is busy", "exact; waits of at most 0.3 s; no host lost", draw_full,
        play_full,
    ),
    Fault(
        "H8", "the link of a host loses packets, carries little", "exact; no host lost; 85 % of the link", draw_poor,
        play_poor,
    ),
    Fault(
        "H9", "the network drops all packets for a while", "exact; hosts and trainers go on soon after it is mended",
        draw_black_holes, play_black_holes, 180.0,
    ),
)  # fmt: skip
