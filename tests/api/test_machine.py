"""What this process may use of the machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import pydp2
from pydp2.api import machine
from pydp2.errors import OptionError
from pydp2.server.available_memory import SERVER_ADDRESS_BYTES, AvailableMemory
from pydp2.system import cgroups


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity here")
def test_cores_are_those_that_the_process_may_run_on() -> None:
    one = "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})"
    code = f"import os; {one}; from pydp2.api import machine; print(machine.cores())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "1\n"


@pytest.mark.parametrize(("quota", "cores"), [(None, 8), (1, 1), (3, 3), (20, 8)])
def test_a_quota_of_the_control_groups_counts_where_it_is_less(
    monkeypatch: pytest.MonkeyPatch, quota: int | None, cores: int
) -> None:
    monkeypatch.setattr(cgroups, "cpu_quota", lambda: quota)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert machine.cores() == cores


def test_memory_is_the_machine_s_or_what_is_left_of_a_control_group(monkeypatch: pytest.MonkeyPatch) -> None:
    uninterrupted = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    monkeypatch.setattr(cgroups, "tightest_memory_limit", lambda: None)
    assert machine.memory() == AvailableMemory(uninterrupted, "of this machine")
    monkeypatch.setattr(cgroups, "tightest_memory_limit", lambda: cgroups.MemoryLimit("/x", 1 << 62, 5))
    assert machine.memory().bytes == uninterrupted
    monkeypatch.setattr(cgroups, "tightest_memory_limit", lambda: cgroups.MemoryLimit("/x", 1 << 30, 1 << 29))
    assert machine.memory().describe() == (
        "536870912 bytes left in control group /x (its limit is 1073741824, 536870912 are in use)"
    )


def test_memory_is_what_a_server_would_have_of_its_address_space() -> None:
    code = (
        "import resource as r; r.setrlimit(r.RLIMIT_AS, (1 << 30, 1 << 30));"
        "from pydp2.api import machine; print(machine.memory().describe())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    left = (1 << 30) - (1 << 27) - SERVER_ADDRESS_BYTES
    assert done.stdout == (
        f"{left} bytes of address space that are left (RLIMIT_AS is {1 << 30}, a server itself takes "
        f"{SERVER_ADDRESS_BYTES})\n"
    )


def test_a_service_that_has_too_little_memory_is_refused_with_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "tightest_memory_limit", lambda: cgroups.MemoryLimit("/x", 100 << 20, 20 << 20))
    with pytest.raises(OptionError) as caught:
        pydp2.launch(["a"], "nowhere.process", workers=3)
    need = (20 << 20) + (56 << 20) + 3 * (8 << 20)
    assert str(caught.value) == (
        f"a service with workers=3 and memory_limit={20 << 20} needs about {need} bytes, and there are {80 << 20} "
        f"bytes left in control group /x (its limit is {100 << 20}, {20 << 20} are in use); raise the limit of the "
        "group, or lower memory_limit, or ask for fewer workers"
    )


def test_a_service_that_could_run_out_of_open_files_is_refused_with_what_it_needs(tmp_path: Path) -> None:
    code = (
        "import pydp2, resource as r; r.setrlimit(r.RLIMIT_NOFILE, (60, 60));"
        "pydp2.launch([], 'nowhere.process', workers=7)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "pydp2.errors.OptionError: a service with workers=7 needs up to 74 open files, this process may have 60 "
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
        f"import pydp2, resource as r; r.setrlimit(r.RLIMIT_NOFILE, ({60 + 2 * workers}, {60 + 2 * workers}))\n"
        f"with pydp2.launch([*map(str, range(20))], 'plain.process', workers={workers}) as service:\n"
        "    with service.connect(batch_size=10) as data:\n"
        "        for _ in range(3):\n            print(sum(len(batch) for batch in data)); service.stats()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["1000"] * 3, done.stderr
