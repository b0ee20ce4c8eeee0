"""F20 and F22: peers at both ports of a service with keys that say what is broken, or lack the key that they need."""

from __future__ import annotations

import time
from random import Random
from typing import Any

import pydp2
from pydp2.protocol import messages as m
from pydp2.system.release import RELEASE
from pydp2.transport import key_files as keys
from pydp2.transport.keys import KeyPair, new_key_pair

from ..liar import Liar, lie
from ..protocol.conftest import EXAMPLES
from ..protocol.test_broken_frames import mutated_frames
from ..runs import wait_until
from ..simulated.hostile import record
from .bench import Bench, resident
from .case import Event, Fault, Report, Schedule
from .data import Dataset
from .strangers import BATCH, COUNTS, FLAT, POOL, Passes

ROLES = {"hosts": "worker", "trainers": "trainer"}
FIRST: dict[str, m.Message] = {
    "hosts": m.AskSpec(m.WIRE_VERSION, RELEASE),
    "trainers": m.Attach(m.WIRE_VERSION, "other", 0, 1, "s", {"batch_size": 1}, 1),
}
"""What a peer says first at each port, and is answered if it may come in."""
REMOVED = {"full": 3.0, "quick": 8.0}
"""Seconds after which a peer whose key was removed has no connection; beside a quick round the machine does more."""


class Ports:
    """A service with keys in a folder; who may come in changes."""

    def __init__(self, bench: Bench, data: Dataset, workers: int) -> None:
        self._folder = bench.folder / "keys"
        keys.new_folder(self._folder)
        self.service = pydp2.launch(
            data.files, data.write(bench.folder), args=data.args(), workers=workers, bind="tcp://127.0.0.1:*",
            keys=self._folder,
        )  # fmt: skip

    def where(self, port: str) -> str:
        return self.service.host_address if port == "hosts" else self.service.address

    def admit(self, role: str) -> KeyPair:
        """A key that admits its owner in a role."""
        pair = new_key_pair()
        keys.allow(self._folder, "peer", role, pair.public)
        return pair

    def drop(self) -> None:
        keys.drop(self._folder, "peer")


# -- F20 ---------------------------------------------------------------------------------------------------------------
def draw_broken(random: Random, size: str) -> tuple[dict[str, Any], list[Event]]:
    """So many peers at a port, one after another, each with some broken messages."""
    count, many = (4, 20) if size == "quick" else (20, 200)
    return {"workers": random.choice([1, 2])}, [
        Event(random.choice([*ROLES]), random.randint(1, many), random.random()) for _ in range(count)
    ]


def play_broken(bench: Bench, schedule: Schedule) -> Report:
    """The server lives and stays as large as it was, and the trainer gets each batch as the oracle says."""
    data, choose, sent = Dataset(COUNTS, POOL), Random(schedule.seed), 0
    of_hosts = record(bench.folder, [1, 2]).of_hosts
    of_trainers = [[m.encode(each)] for each in EXAMPLES]
    ports = Ports(bench, data, schedule.setup["workers"])
    with ports.service as service, service.connect(batch_size=BATCH, seed=schedule.seed) as client:
        passes = Passes(client, schedule.seed)
        for _ in range(3):
            passes.one()
        before = resident(service.pid)
        for event in schedule.events:
            pair = ports.admit(ROLES[event.what])
            for _ in range(int(event.at)):
                liar = Liar(ports.where(event.what), pair)
                if event.what == "hosts":
                    sent += lie(liar, len(data.files), of_hosts, choose)
                else:
                    liar.say(0, *(mutated_frames(choose, choose.choice(of_trainers)) or [b""]))
                    sent += 1
                liar.close(linger_ms=100)
            passes.one()
        most = resident(service.pid)
        assert service.poll() is None
        assert wait_until(lambda: not service.stats()["hosts"], 20)
        refused = sum(each["count"] for each in service.stats()["refused"])
    assert most - before < FLAT, f"{(most - before) >> 20} MB more after {sent} messages"
    assert "Traceback" not in bench.screen, bench.screen
    figures: dict[str, float | list[float]] = {
        "broken messages": sent, "refused": refused, "server before, MB": before / 1e6, "server after, MB": most / 1e6,
        "passes bit-equal": passes.done,
    }  # fmt: skip
    return Report(0, figures)


# -- F22 ---------------------------------------------------------------------------------------------------------------
def draw_keys(random: Random, size: str) -> tuple[dict[str, Any], list[Event]]:
    """Peers that have no key which counts, or lose it."""
    kinds = ["unknown key", "key of another service", "another role", "removed key", "removed key"]
    events = [Event(random.choice(kinds), 0.0, random.random()) for _ in range(5 if size == "quick" else 40)]
    return {"workers": 1}, events


def play_keys(bench: Bench, schedule: Schedule) -> Report:
    """None of them gets a message, and one whose key is removed has no connection soon."""
    data, took = Dataset(COUNTS, POOL), []
    ports = Ports(bench, data, schedule.setup["workers"])
    with ports.service as service, service.connect(batch_size=BATCH, seed=schedule.seed) as client:
        passes = Passes(client, schedule.seed)
        for event in schedule.events:
            port = "hosts" if event.which < 0.5 else "trainers"
            where, role = ports.where(port), ROLES[port]
            if event.what == "key of another service":
                where = f"{where.partition('?')[0]}?key={new_key_pair().public}"
            elif event.what == "another role":
                role = "observer" if port == "hosts" else "worker"
            pair = new_key_pair() if event.what == "unknown key" else ports.admit(role)
            if event.what == "removed key":
                liar = let_in(where, pair, FIRST[port])
                ports.drop()
                began = time.monotonic()
                assert liar.is_cut(), f"a peer whose key was removed keeps its connection to the port for {port}"
                took.append(time.monotonic() - began)
            else:
                liar = Liar(where, pair, 1)
                liar.say(0, FIRST[port])
                assert liar.heard(seconds=0.3) is None, f"a peer with {event.what} got something at the port for {port}"
            liar.close()
            passes.one()
    assert max(took, default=0.0) < REMOVED[schedule.size], (
        f"a connection lasted {max(took):.1f} s after its key was removed"
    )
    return Report(0, {"removed key, s until cut": took, "passes bit-equal": passes.done})


def let_in(where: str, pair: KeyPair, first: m.Message) -> Liar:
    """A peer that is let in: at once, or once the service has looked again, where many were refused before."""
    ends = time.monotonic() + 60
    while True:
        liar = Liar(where, pair, 1)
        liar.say(0, first)
        if liar.heard(seconds=1.0) is not None:
            return liar
        liar.close()
        assert time.monotonic() < ends, "a peer with a key that counts is not let in"


FAULTS = (
    Fault("F20", "malformed frames of peers with a key", "lives, memory flat, exact", draw_broken, play_broken, 300.0),
    Fault("F22", "no, wrong, other role's, removed key", "gets nothing; cut < 3 s; exact", draw_keys, play_keys, 300.0),
)
