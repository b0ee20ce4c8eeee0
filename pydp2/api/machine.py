"""What this process may use of the machine: cores, memory (control groups included), open files."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from pydp2.errors import OptionError

_OPEN = 48  # descriptors of a server: some 25, those of clients, and what a death takes for a moment


def cores() -> int:
    """Cores that this process may use: affinity and the control group's quota, rounded up, at least 1."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota()
    return max(1, min(count, quota) if quota else count)


def memory() -> int:
    """Bytes of memory that this process may use: the machine's, or the control group's limit if that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = _read(name)
        if text.isdigit():
            total = min(total, int(text))
    return total


def check_open_files(workers: int) -> None:
    """Raise OptionError where the server of so many workers may run out of descriptors: ZeroMQ then ends it at once."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    need = _OPEN + 2 * workers  # of each worker its connection and its output
    if limit != resource.RLIM_INFINITY and limit < need:
        raise OptionError(
            f"a service with workers={workers} needs up to {need} open files, this process may have {limit} "
            "(RLIMIT_NOFILE); raise it with `ulimit -n`, or ask for fewer workers"
        )


def _quota() -> int | None:
    quota, _, period = _read("/sys/fs/cgroup/cpu.max").partition(" ")
    if not quota:
        quota, period = _read("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), _read("/sys/fs/cgroup/cpu/cpu.cfs_period_us")
    if not (quota.isdigit() and period.isdigit() and int(period)):
        return None
    return -(-int(quota) // int(period)) or None


def _read(name: str) -> str:
    try:
        return Path(name).read_text().strip()
    except OSError:
        return ""
