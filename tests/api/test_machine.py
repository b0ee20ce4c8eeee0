"""What this process may use of the machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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


def test_a_service_that_could_run_out_of_open_files_is_refused_with_what_it_needs(tmp_path: Path) -> None:
    code = (
        "import pydp2, resource as r; r.setrlimit(r.RLIMIT_NOFILE, (60, 60));"
        "pydp2.launch([], 'nowhere.process', workers=7)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "pydp2.errors.OptionError: a service with workers=7 needs up to 62 open files, this process may have 60 "
        "(RLIMIT_NOFILE); raise it with `ulimit -n`, or ask for fewer workers"
    )


@pytest.mark.parametrize("workers", [1, 8])
def test_as_many_open_files_as_are_asked_for_are_enough(workers: int, tmp_path: Path) -> None:
    """Also while all workers are killed and replaced, and somebody looks at the figures."""
    (tmp_path / "plain.py").write_text(
        "import os\nfrom pydp2 import *\n@provider(input_types=[integer_value(99)])\ndef process(s, f):\n"
        "    for y in range(50):\n        if y == 25 and not os.path.exists(f):\n"
        "            open(f, 'w').close()\n            os._exit(1)\n        yield y\n"
    )
    code = (
        f"import pydp2, resource as r; r.setrlimit(r.RLIMIT_NOFILE, ({48 + 2 * workers}, {48 + 2 * workers}))\n"
        f"with pydp2.launch([*map(str, range(20))], 'plain.process', workers={workers}) as service:\n"
        "    with service.connect(batch_size=10) as data:\n"
        "        for _ in range(3):\n            print(sum(len(batch) for batch in data)); service.stats()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["1000"] * 3, done.stderr
