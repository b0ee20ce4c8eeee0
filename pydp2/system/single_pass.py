"""The rule of one pass at a time, for everything that loops read: clients, loaders of frameworks, readers.

A source has one place in its data. Two loops over it would each miss what the other one takes, and neither could tell.
So a source belongs to its newest loop, in the process that began it:

* a newer loop takes the pass over, and the older one raises :func:`taken_over` when it asks for more. It must not just
  end: a loop that ends has seen all data, and an epoch that another loop has cut short would look complete.
* a fork has the iterator, but no threads, and it shares descriptors and their positions with its parent. What it reads
  its parent would lack. So it raises :func:`begun_before_fork`, before it takes a lock: a thread that does not exist in
  the fork may have held it.

Who is newest, each source knows by what it has anyway: an object, or the number of its pass.
"""

from __future__ import annotations

import os

from pydp2.errors import ClientUseError

forks = 0
"""Number of forks that led to this process: another one in a fork. It costs less than os.getpid(), a system call."""


def _count_fork() -> None:
    global forks
    forks += 1


os.register_at_fork(after_in_child=_count_fork)


def taken_over(source: str) -> ClientUseError:
    """Return the error for a loop over ``source`` ("client", "reader", …) behind the begin of a newer one."""
    return ClientUseError(
        f"a newer loop over this {source} has taken over its pass: a {source} has one place in its data; continue that "
        f"loop, or make a second {source}"
    )


def begun_before_fork() -> ClientUseError:
    """Return the error for reading a pass of the parent. A fork lacks what works for that pass, or would take entries
    that the parent waits for."""
    return ClientUseError(
        "the pass was begun before a fork, and only the process that began it can read it: begin one in the process "
        "that reads it"
    )


def check_process(process: int) -> None:
    """Raise :func:`begun_before_fork` if this is not ``process``, which began the pass."""
    if os.getpid() != process:
        raise begun_before_fork()
