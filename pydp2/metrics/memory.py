"""How much memory a process has, as the kernel counts it."""

from __future__ import annotations

import os
from pathlib import Path


def resident(pid: int) -> int:
    """Resident bytes of process ``pid``, shared pages included; 0 where the kernel does not say."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0
