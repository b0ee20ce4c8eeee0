"""What this process may use of the machine."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from pydp2.api import machine


def told(monkeypatch: pytest.MonkeyPatch, files: dict[str, str]) -> None:
    """Control groups as a container has them; this machine has whatever it has."""
    monkeypatch.setattr(machine, "_read", lambda name: files.get(name, ""))


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity here")
def test_cores_are_those_that_the_process_may_run_on() -> None:
    one = "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})"
    code = f"import os; {one}; from pydp2.api import machine; print(machine.cores())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "1\n"


@pytest.mark.parametrize(
    ("files", "most"),
    [
        ({}, None),
        ({"/sys/fs/cgroup/cpu.max": "max 100000"}, None),
        ({"/sys/fs/cgroup/cpu.max": "150000 100000"}, 2),
        ({"/sys/fs/cgroup/cpu.max": "50000 100000"}, 1),
        ({"/sys/fs/cgroup/cpu.max": "100000 100000"}, 1),
        ({"/sys/fs/cgroup/cpu.max": "nonsense"}, None),
        ({"/sys/fs/cgroup/cpu.max": "0 0"}, None),
        ({"/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1", "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, None),
        ({"/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "250000", "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, 3),
    ],
)
def test_a_quota_of_the_control_group_counts_rounded_up(
    monkeypatch: pytest.MonkeyPatch, files: dict[str, str], most: int | None
) -> None:
    told(monkeypatch, files)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert machine.cores() == (8 if most is None else most)


def test_memory_is_the_machine_s_or_the_control_group_s_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 1 << 20 < machine.memory() <= whole
    for files, limit in (
        ({}, whole),
        ({"/sys/fs/cgroup/memory.max": "max"}, whole),
        ({"/sys/fs/cgroup/memory.max": "1073741824"}, 1 << 30),
        ({"/sys/fs/cgroup/memory/memory.limit_in_bytes": "536870912"}, 1 << 29),
        ({"/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712"}, whole),  # that is: none
        ({"/sys/fs/cgroup/memory.max": "nonsense"}, whole),
    ):
        told(monkeypatch, files)
        assert machine.memory() == limit


def test_a_file_that_is_not_there_reads_as_nothing() -> None:
    assert machine._read("/sys/fs/cgroup/no such file") == ""
