"""Define the rule of one pass at a time, for everything that loops read: clients, loaders of frameworks, readers.

A source has one position in its data. Two loops over it would each miss the data that the other one takes, without
noticing. So a source belongs to its newest loop, in the process that began it:

* If a newer loop takes the pass over, the older one raises :func:`taken_over` when it asks for more. It must not just
  end: a loop that ends has seen all data, and an epoch that another loop has cut short would look complete.
* A fork has the iterator, but no threads, and it shares descriptors and their positions with its parent, which would
  miss the data that the fork reads. So the fork raises :func:`begun_before_fork`, before it takes a lock: a thread that
  does not exist in the fork may have held it.

Each source knows its newest loop by an object, or by the number of its pass.
"""

from __future__ import annotations

import os

from pydp2.errors import ClientUseError

forks = 0
"""Number of forks that led to this process, which differs in a fork. It is cheaper than os.getpid(), a system call."""


def _count_fork() -> None:
    global forks
    forks += 1


os.register_at_fork(after_in_child=_count_fork)


def taken_over(source: str) -> ClientUseError:
    """Return the error for a loop over ``source`` ("client", "reader", …) after a newer loop has begun."""
    return ClientUseError(
        f"a newer loop over this {source} has taken over its pass: a {source} has one place in its data; continue that "
        f"loop, or make a second {source}"
    )


def begun_before_fork() -> ClientUseError:
    """Return the error for reading a pass of the parent. A fork lacks the threads of that pass, or would take entries
    from the parent."""
    return ClientUseError(
        "the pass was begun before a fork, and only the process that began it can read it: begin one in the process "
        "that reads it"
    )


def check_process(process: int) -> None:
    """Raise :func:`begun_before_fork` if this is not ``process``, which began the pass."""
    if os.getpid() != process:
        raise begun_before_fork()
