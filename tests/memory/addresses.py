"""What tests of few addresses share with the programs that they start, which import nothing that they do not need."""

from __future__ import annotations

import resource
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pydp2

MB = 1_000_000
FILES = [str(i) for i in range(6)]
HOW: dict[str, Any] = {"batch_size": 4, "seed": 3}
SERVICE: dict[str, Any] = {"workers": 2, "memory_limit": 16 * MB}
JOB: dict[str, Any] = {"pool_bytes": 64 * MB}


def digest(batch: pydp2.Batch) -> str:
    first = batch[0]
    arrays = [first] if hasattr(first, "tobytes") else [first.values, first.sequence_start_positions]
    return blake2b(b"".join(each.tobytes() for each in [*arrays, batch[1]])).hexdigest()


def stream(data: pydp2.Client, passes: int = 2) -> list[str]:
    return [digest(batch) for _ in range(passes) for batch in data]


def lower(pid: int, size: int) -> None:
    """Let ``pid`` have no more addresses than it has, and ``size`` bytes."""
    used = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
    resource.prlimit(pid, resource.RLIMIT_AS, (used + size, resource.RLIM_INFINITY))


def slabs(pid: int) -> int:
    """How many slabs ``pid`` has mapped, memory of the cache or of places left out."""
    return sum(line.endswith("memfd:pydp2 (deleted)") for line in Path(f"/proc/{pid}/maps").read_text().splitlines())
