"""Tell how many processors there are for the processes of a service, and how much of one a process needs."""

from __future__ import annotations

import os
from pathlib import Path

from pydp2.system import cgroups


def cores() -> int:
    """Return the cores that this process may use: affinity and the control groups' quotas, rounded up, at least 1."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroups.cpu_quota()
    return max(1, min(count, quota) if quota else count)


def core_seconds(pid: int) -> float:
    """Return the seconds that process ``pid`` has computed, or its first thread has waited for a core; 0.0 if the
    kernel does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        computed = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        queued = int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0
    return computed + queued
