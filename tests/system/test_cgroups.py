"""Control groups as machines and containers show them: trees of files, and the real ones where a test may make some."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pydp2.system import cgroups

Tree = Callable[..., Path]
NONE_V1 = "9223372036854771712"
MB = 1 << 20
V1 = "33 31 0:29 {top} /sys/fs/cgroup/{name} rw,relatime shared:9 - cgroup cgroup rw,{name}"
V2 = "30 24 0:26 {top} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """``tree(group=lines, mounts=lines, **{...})`` writes a root; ``files``: contents by their paths."""

    def write(group: str, mounts: list[str], files: dict[str, str]) -> Path:
        everything = {"proc/self/cgroup": group, "proc/self/mountinfo": "\n".join(mounts)} | files
        for name, text in everything.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")
        return tmp_path

    return write


def v2(top: str = "/") -> str:
    return V2.format(top=top)


def v1(name: str, top: str = "/") -> str:
    return V1.format(name=name, top=top)


def test_without_control_groups_there_is_no_limit(tree: Tree, tmp_path: Path) -> None:
    assert cgroups.tightest_memory_limit(tmp_path) is None
    assert cgroups.cpu_quota(tmp_path) is None
    root = tree("0::/user.slice", [v2()], {"sys/fs/cgroup/user.slice/memory.max": "max"})
    assert cgroups.tightest_memory_limit(root) is None
    assert cgroups.cpu_quota(root) is None


def test_the_group_of_the_process_is_looked_at_and_not_only_the_root_of_the_mount(tree: Tree) -> None:
    root = tree(
        "0::/system.slice/train.service",
        [v2()],
        {
            "sys/fs/cgroup/system.slice/train.service/memory.max": str(256 * MB),
            "sys/fs/cgroup/system.slice/train.service/memory.current": str(100 * MB),
            "sys/fs/cgroup/system.slice/train.service/memory.stat": f"anon 1\ninactive_file {30 * MB}\nfile 2",
            "sys/fs/cgroup/system.slice/train.service/cpu.max": "150000 100000",
            "sys/fs/cgroup/other.service/memory.max": str(MB),
        },
    )
    found = cgroups.tightest_memory_limit(root)
    assert found == cgroups.MemoryLimit("/sys/fs/cgroup/system.slice/train.service", 256 * MB, 70 * MB)
    assert found.free == 186 * MB
    assert cgroups.cpu_quota(root) == 2


def test_a_group_around_it_may_leave_less(tree: Tree) -> None:
    files = {
        "a/b/memory.max": str(900 * MB), "a/b/memory.current": str(10 * MB),
        "a/memory.max": str(1000 * MB), "a/memory.current": str(700 * MB),
        "a/b/cpu.max": "400000 100000", "a/cpu.max": "50000 100000", "cpu.max": "max 100000",
    }  # fmt: skip
    root = tree("0::/a/b", [v2()], {f"sys/fs/cgroup/{name}": text for name, text in files.items()})
    assert cgroups.tightest_memory_limit(root) == cgroups.MemoryLimit("/sys/fs/cgroup/a", 1000 * MB, 700 * MB)
    assert cgroups.cpu_quota(root) == 1


def test_a_limit_that_slows_down_counts_too(tree: Tree) -> None:
    files = {"sys/fs/cgroup/a/memory.max": "max", "sys/fs/cgroup/a/memory.high": str(300 * MB)}
    found = cgroups.tightest_memory_limit(tree("0::/a", [v2()], files))
    assert found is not None
    assert (found.limit, found.free) == (300 * MB, 300 * MB)


def test_nothing_is_free_in_a_group_that_has_more_than_it_may(tree: Tree) -> None:
    files = {"sys/fs/cgroup/memory.max": str(MB), "sys/fs/cgroup/memory.current": str(2 * MB)}
    found = cgroups.tightest_memory_limit(tree("0::/", [v2()], files))
    assert found is not None
    assert found.free == 0


def test_version_1_has_a_tree_for_each_controller(tree: Tree) -> None:
    memory, cpu = "sys/fs/cgroup/memory/jobs/7", "sys/fs/cgroup/cpu,cpuacct/jobs"
    root = tree(
        "12:cpu,cpuacct:/jobs\n5:memory:/jobs/7\n1:name=systemd:/x",
        [v1("memory"), v1("cpu,cpuacct"), v1("freezer")],
        {
            f"{memory}/memory.limit_in_bytes": str(512 * MB),
            f"{memory}/memory.usage_in_bytes": str(60 * MB),
            f"{memory}/memory.stat": f"cache 1\ntotal_inactive_file {20 * MB}",
            f"{memory}/../memory.limit_in_bytes": NONE_V1,
            f"{cpu}/cpu.cfs_quota_us": "250000",
            f"{cpu}/cpu.cfs_period_us": "100000",
            f"{cpu}/../cpu.cfs_quota_us": "-1",
            f"{cpu}/../cpu.cfs_period_us": "100000",
        },
    )
    assert cgroups.tightest_memory_limit(root) == cgroups.MemoryLimit("/sys/fs/cgroup/memory/jobs/7", 512 * MB, 40 * MB)
    assert cgroups.cpu_quota(root) == 3


def test_version_1_tells_of_limits_that_lie_above_what_a_container_sees(tree: Tree) -> None:
    files = {"memory.limit_in_bytes": NONE_V1, "memory.stat": f"hierarchical_memory_limit {128 * MB}"}
    files = {f"sys/fs/cgroup/memory/{name}": text for name, text in files.items()}
    found = cgroups.tightest_memory_limit(tree("5:memory:/docker/abc", [v1("memory", "/docker/abc")], files))
    assert found is not None
    assert found.limit == 128 * MB


def test_both_versions_may_be_mounted_side_by_side(tree: Tree) -> None:
    root = tree(
        "4:memory:/one\n1:cpu:/\n0::/two",
        [v1("memory"), v1("cpu"), "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw"],
        {
            "sys/fs/cgroup/memory/one/memory.limit_in_bytes": str(200 * MB),
            "sys/fs/cgroup/unified/two/cpu.max": "100000 100000",
        },
    )
    found = cgroups.tightest_memory_limit(root)
    assert found is not None
    assert found.limit == 200 * MB
    assert cgroups.cpu_quota(root) == 1


@pytest.mark.parametrize(
    ("member", "top", "where"),
    [
        ("/", "/", ""),  # a namespace of its own
        ("/docker/abc", "/docker/abc", ""),  # no namespace: the mount is the container's group
        ("/docker/abc/job", "/docker/abc", "job"),
        ("/docker/abc", "/", ""),  # the path is the host's, and the mount shows the container's group alone
        ("/kubepods/pod1/abc", "/kubepods/pod2", ""),
        ("/../other", "/", ""),  # put outside of its namespace
        ("/", "/docker/abc", ""),
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_a_container_sees_its_group_whatever_path_it_is_told(
    member: str, top: str, where: str, version: int, tree: Tree
) -> None:
    mount = "sys/fs/cgroup" + ("/memory" if version == 1 else "")
    name = "memory.limit_in_bytes" if version == 1 else "memory.max"
    root = tree(
        f"5:memory:{member}" if version == 1 else f"0::{member}",
        [v1("memory", top) if version == 1 else v2(top)],
        {f"{mount}/{where}/{name}": str(64 * MB)},
    )
    found = cgroups.tightest_memory_limit(root)
    assert found is not None
    assert found.limit == 64 * MB
    assert Path(found.path) == Path("/", mount, where)


def test_blanks_in_the_path_of_a_mount_and_colons_in_that_of_a_group_are_understood(tree: Tree) -> None:
    root = tree(
        "0::/a:b",
        [r"30 24 0:26 / /sys/fs/my\040groups rw - cgroup2 cgroup2 rw", "nonsense", "1 2 3 - cgroup2", ""],
        {"sys/fs/my groups/a:b/memory.max": str(MB)},
    )
    found = cgroups.tightest_memory_limit(root)
    assert found is not None
    assert found.path == "/sys/fs/my groups/a:b"


@pytest.mark.parametrize("text", ["", "nonsense", "-5", "0 0", "100000", "100000 0", "0 100000", "max max"])
def test_figures_that_are_none_are_no_limit(text: str, tree: Tree) -> None:
    files = {"sys/fs/cgroup/cpu.max": text, "sys/fs/cgroup/memory.max": text if " " in text else "x"}
    root = tree("0::/", [v2()], files)
    assert cgroups.cpu_quota(root) is None
    assert cgroups.tightest_memory_limit(root) is None


# -- the real ones -----------------------------------------------------------------------------------------------------
def made(controller: str) -> Path | None:
    """A new group below this process's own that limits ``controller``, where one can be made."""
    for group in cgroups._groups(controller, cgroups.ROOT):
        new = group.path / f"pydp2-test-{uuid.uuid4().hex[:8]}"
        with contextlib.suppress(OSError):
            new.mkdir()
            name = {"memory": ("memory.limit_in_bytes", "memory.max"), "cpu": ("cpu.cfs_quota_us", "cpu.max")}
            if (new / name[controller][group.version - 1]).exists():
                return new
            new.rmdir()
    return None


@pytest.fixture
def real(request: pytest.FixtureRequest) -> Iterator[Path]:
    group = made(request.param)
    if group is None:
        pytest.skip(f"no control group for {request.param} can be made here")
    yield group
    group.rmdir()


def in_group(group: Path, code: str) -> str:
    enter = f"import os; open({str(group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n"
    done = subprocess.run([sys.executable, "-c", enter + code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("real", ["memory"], indirect=True)
def test_a_process_in_a_real_group_sees_its_limit_and_what_is_used(real: Path) -> None:
    name = "memory.limit_in_bytes" if (real / "memory.limit_in_bytes").exists() else "memory.max"
    (real / name).write_text(str(256 * MB))
    code = (
        "from pydp2.system import cgroups\nheld = bytearray(50 << 20)\nseen = cgroups.tightest_memory_limit()\n"
        "print(seen.path, seen.limit, seen.used)"
    )
    path, limit, used = in_group(real, code).split()
    assert (path, int(limit)) == (str(real), 256 * MB)
    assert 50 * MB < int(used) < 200 * MB


@pytest.mark.parametrize("real", ["cpu"], indirect=True)
def test_a_process_in_a_real_group_counts_the_cores_of_its_quota(real: Path) -> None:
    if (real / "cpu.max").exists():
        (real / "cpu.max").write_text("50000 100000")
    else:
        (real / "cpu.cfs_quota_us").write_text("50000")
    assert in_group(real, "from pydp2.api import machine; print(machine.cores())") == "1"
    assert len(os.sched_getaffinity(0)) >= 1
