"""Read the limits of the control groups of this process: versions 1 and 2, also both at once, nested, and inside a
container.

``/proc/self/cgroup`` has the group of the process, ``/proc/self/mountinfo`` the mounts of groups. The limit of a group
holds for all groups in it, so every group from that of the process up to the mount counts. Groups above the mount, as
in a container, cannot be seen; but version 1 also reports the tightest limit of all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path("/")
_ESCAPED = re.compile(r"\\([0-7]{3})")  # form of a blank in mountinfo


@dataclass(frozen=True)
class MemoryLimit:
    """Memory of the control group at ``path``: ``limit`` and ``used`` bytes, without inactive page cache."""

    path: str
    limit: int
    used: int

    @property
    def free(self) -> int:
        """Number of bytes that its processes may still take."""
        return max(0, self.limit - self.used)


def tightest_memory_limit(root: Path = ROOT) -> MemoryLimit | None:
    """Return the control group of this process with the least free memory, None if no group has a limit.

    ``memory.high``, which only slows processes down, counts as a limit. ``root``: the folder of ``proc`` and of the
    mounts.
    """
    found = [
        MemoryLimit(f"/{group.path.relative_to(root)}", limit, group.used)
        for group in _groups("memory", root)
        if (limit := group.memory_limit) is not None
    ]
    return min(found, key=lambda memory: memory.free, default=None)


def cpu_quota(root: Path = ROOT) -> int | None:
    """Return the number of processors that the quotas of the control groups of this process allow, rounded up, or
    None if there is no quota."""
    return min((-(-quota // period) for quota, period in _quotas(root)), default=None)


def _quotas(root: Path) -> Iterator[tuple[int, int]]:
    for group in _groups("cpu", root):
        if group.version == 2:
            quota, _, period = _read_text(group.path / "cpu.max").partition(" ")
        else:
            quota, period = _read_text(group.path / "cpu.cfs_quota_us"), _read_text(group.path / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(quota) and int(period):
            yield int(quota), int(period)


@dataclass(frozen=True)
class _CgroupDirectory:
    path: Path
    version: int

    @property
    def memory_limit(self) -> int | None:
        """Least of the group's limits in bytes, None if it has none."""
        if self.version == 2:
            limits = [_read_text(self.path / name) for name in ("memory.max", "memory.high")]
        else:
            limits = [_read_text(self.path / "memory.limit_in_bytes"), self._memory_stat("hierarchical_memory_limit")]
        # Without a limit, version 1 has a number of pages that no machine has.
        return min((int(text) for text in limits if text.isdigit() and int(text) < 1 << 60), default=None)

    @property
    def used(self) -> int:
        """Number of bytes in use, without page cache that the kernel reclaims first."""
        used, idle = (
            ("memory.current", "inactive_file")
            if self.version == 2
            else ("memory.usage_in_bytes", "total_inactive_file")
        )
        text, cached = _read_text(self.path / used), self._memory_stat(idle)
        return max(0, (int(text) if text.isdigit() else 0) - (int(cached) if cached.isdigit() else 0))

    def _memory_stat(self, name: str) -> str:
        lines = _read_text(self.path / "memory.stat").splitlines()
        return next((value for key, _, value in (line.partition(" ") for line in lines) if key == name), "")


@dataclass(frozen=True)
class _CgroupMount:
    """Mount of groups of ``version``: ``path`` shows the path ``shown_root`` of the hierarchy."""

    path: Path
    shown_root: PurePosixPath
    version: int
    controllers: frozenset[str]


def _groups(controller: str, root: Path) -> Iterator[_CgroupDirectory]:
    """Yield the groups of this process that may limit ``controller``, and all visible groups around each."""
    paths = _memberships(root)
    for mount in _mounts(root):
        member = paths.get(controller if mount.version == 1 else "")
        if member is None or (mount.version == 1 and controller not in mount.controllers):
            continue
        group = _visible_directory(mount, member)
        while True:
            yield _CgroupDirectory(group, mount.version)
            if group == mount.path:
                break
            group = group.parent


def _memberships(root: Path) -> dict[str, PurePosixPath]:
    """Return the path of the process's group by controller; for version 2 the controller is ""."""
    found = {}
    for line in _read_text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if path.startswith("/"):
            names = [""] if number == "0" and not controllers else controllers.split(",")
            found.update(dict.fromkeys(names, PurePosixPath(path)))
    return found


def _mounts(root: Path) -> Iterator[_CgroupMount]:
    for line in _read_text(root / "proc/self/mountinfo").splitlines():
        before, dash, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")
        if not dash or len(fields) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        top, point = (_ESCAPED.sub(lambda octal: chr(int(octal[1], 8)), field) for field in fields[3:5])
        version = 2 if kind[0] == "cgroup2" else 1
        path = root / point.lstrip("/")
        yield _CgroupMount(path, PurePosixPath(top), version, frozenset(kind[2].split(",")))


def _visible_directory(mount: _CgroupMount, member: PurePosixPath) -> Path:
    """Return the directory of the group ``member``, or of the nearest group around it that ``mount`` shows: in a
    container the path may be that of the host, and the mount shows only the container's part."""
    if ".." in member.parts:  # the process is outside the namespace
        return mount.path
    within = (
        member.relative_to(mount.shown_root) if member.is_relative_to(mount.shown_root) else member.relative_to("/")
    )
    path = mount.path / within
    while path != mount.path and not path.is_dir():
        path = path.parent
    return path


def _read_text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
