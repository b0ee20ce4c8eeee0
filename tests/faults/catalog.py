"""All faults of the battery, and the ones that have no round here, with the reason.

A new fault is a module with ``FAULTS``, named in ``_MODULES``; its row goes out of ``ABSENT``.
"""

from __future__ import annotations

from . import (
    clock,
    disk,
    endings,
    everybody_dies,
    greedy_trainers,
    hosts_die,
    hosts_network,
    kept,
    liars,
    limits,
    lists,
    losses_kept,
    misbehave,
    network,
    random_draws,
    ranks_die,
    samples,
    server_dies,
    short_pass,
    slow,
    starts,
    stores,
    strangers,
    trainers_away,
    trainers_die,
    workers_die,
)
from .case import Fault

_MODULES = (
    workers_die, server_dies, trainers_die, everybody_dies, ranks_die, slow, samples, misbehave, disk, kept, endings,
    lists, losses_kept, network, clock, starts, stores, short_pass, greedy_trainers, strangers, liars, limits,
    hosts_die, hosts_network, random_draws, trainers_away,
)  # fmt: skip

ABSENT = {
    "F21": "amplification: tests/protocol, tests/transport, tests/agent/test_hostile_hosts.py",
    "F23": "pickle payloads: tests/agent/test_hostile_hosts.py; tests/test_house.py holds that nothing unpickles",
    "F24": "versions: tests/client, tests/protocol, tests/agent/test_hostile_hosts.py",
    "F30": "soak: python -m tests.faults --minutes 1440",
}
"""Faults without a round: why, or where they are."""


def number(name: str) -> tuple[bool, str, int]:
    """Its place among all: those of F before others, then by letter and number."""
    return not name.startswith("F"), name[0], int(name[1:])


FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in sorted((fault for module in _MODULES for fault in module.FAULTS), key=lambda fault: number(fault.name))
}
assert not FAULTS.keys() & ABSENT.keys()
