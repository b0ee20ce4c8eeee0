"""Measure the memory of a process, as the kernel counts it."""

from __future__ import annotations

import os
from pathlib import Path

_KB = ("VmRSS", "RssShmem")


def resident_bytes(pid: int) -> int:
    """Return the resident bytes of process ``pid``, shared pages included; 0 if the kernel does not say."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


def private_bytes(pid: int) -> int:
    """Return the resident bytes of process ``pid`` without shared memory, which has rows that all processes use; 0 if
    the kernel does not say."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        found = {key: int(value.split()[0]) for key, _, value in (line.partition(":") for line in lines) if key in _KB}
    except (OSError, IndexError, ValueError):
        return 0
    return 1024 * (found.get("VmRSS", 0) - found.get("RssShmem", 0))
