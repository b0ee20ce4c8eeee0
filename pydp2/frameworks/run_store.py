"""Agree on texts with ranks on other machines, through the key-value store of the framework that trains.

Theory of operation
-------------------
Rank 0 of a run on several machines starts a service, and the others need its address and its keys. The framework has a
store that all ranks reach: that of torch.distributed, or of jax.distributed (:class:`RunStore`). Rank 0 puts a text
there, and the others take it.

A store may be older than the ranks. When torchrun starts all ranks again, its store keeps what the ranks before have
put there, and nothing tells the attempts apart: ``TORCHELASTIC_RESTART_COUNT`` differs between the machines of one
attempt. So the ranks first agree on a name that no earlier ranks had (:func:`meet`), and all later keys begin with it:

- rank r puts a random number where rank 0 looks for it;
- rank 0 draws the name, and answers each random number with it. It may answer a number of an earlier rank r, which
  nobody reads;
- rank r notes below the name that it has the name. Rank 0 looks for new numbers until all ranks have noted that.
"""

from __future__ import annotations

import os
import time
from typing import Protocol

from pydp2.errors import ServiceUnreachable, count_text

_PREFIX = "pydp2"
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.25  # seconds between two looks into the store


class RunStore(Protocol):
    """Key-value store of a run. ``endpoint``: where all ranks reach it, ``HOST:PORT``, "" if that is not known.

    Its methods raise ServiceUnreachable if the store is out of reach.
    """

    @property
    def endpoint(self) -> str: ...

    def put(self, key: str, text: str) -> None:
        """Store ``text``, which is not empty, in place of an earlier text of ``key``."""

    def take(self, key: str) -> str | None:
        """Return the text of ``key``, None if there is none. Do not wait for it."""


def meet(store: RunStore, rank: int, world_size: int, timeout: float) -> str:
    """Return a name for this run that no run had before, the same in all its ranks. All of them call it.

    Raises ServiceUnreachable if they have not done so within ``timeout`` seconds.
    """
    deadline = time.monotonic() + timeout
    if rank > 0:
        number = os.urandom(8).hex()
        store.put(f"{_PREFIX}/ask/{rank}", number)
        lack = f"rank 0 has not made the same loader within {timeout:g} s"
        name = await_text(store, f"{_PREFIX}/answer/{number}", deadline, lack)
        store.put(f"{name}/met/{rank}", name)
        return name
    name = f"{_PREFIX}/{os.urandom(8).hex()}"
    absent, answered, pause = set(range(1, world_size)), dict[int, str](), _FIRST_PAUSE
    while True:
        _answer(store, name, absent, answered)
        if not absent:
            return name
        if time.monotonic() > deadline:
            first = ", ".join(map(str, sorted(absent)[:8]))
            raise ServiceUnreachable(
                f"all {world_size} ranks must make the same loaders in the same order, and within {timeout:g} s "
                f"{count_text(len(absent), 'rank')} did not ({first}{', …' if len(absent) > 8 else ''}); look at what "
                "they wrote"
            )
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def _answer(store: RunStore, name: str, absent: set[int], answered: dict[int, str]) -> None:
    """Answer the numbers of ``absent`` ranks that are not yet ``answered``; remove those that have the name."""
    for rank in sorted(absent):
        number = store.take(f"{_PREFIX}/ask/{rank}")
        if number is None:
            continue
        if answered.get(rank) != number:
            store.put(f"{_PREFIX}/answer/{number}", name)
            answered[rank] = number
        elif store.take(f"{name}/met/{rank}") is not None:
            absent.remove(rank)


def await_text(store: RunStore, key: str, deadline: float, lack: str) -> str:
    """Return the text of ``key``. Raises ServiceUnreachable with ``lack`` if it is not there at ``deadline``
    (``time.monotonic``)."""
    pause = _FIRST_PAUSE
    while (text := store.take(key)) is None:
        if time.monotonic() > deadline:
            raise ServiceUnreachable(f"{lack}; look at what it wrote")
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
    return text
