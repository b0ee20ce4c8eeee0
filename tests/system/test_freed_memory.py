"""Freed memory: blocks that are allocated again and again do not lie in fresh pages each time."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

ROUNDS = 200
CODE = f"""
import resource
import numpy as np
from pydp2.system.freed_memory import keep_freed_memory

keep_freed_memory()

def allocate():
    for some in [np.ones(1 << 20, np.uint8) for _ in range(3)]:
        some[0] = 2

allocate()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({ROUNDS}):
    allocate()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.parametrize("limits", [{}, {"MALLOC_MMAP_THRESHOLD_": "65536"}], ids=["none", "of the user"])
def test_pages_are_used_again_unless_the_user_has_set_limits(limits: dict[str, str]) -> None:
    usual = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run([sys.executable, "-c", CODE], env=usual | limits, capture_output=True, text=True, check=True)
    if platform.libc_ver()[0] == "glibc":
        faults = int(done.stdout)
        assert (faults > 100 * ROUNDS) if limits else (faults < ROUNDS)
