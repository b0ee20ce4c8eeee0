"""How much of a core a process needs."""

from __future__ import annotations

import os
import sys
import time

import pytest

from pydp2.system.processors import core_seconds


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel does not say")
def test_what_a_process_computes_counts() -> None:
    before, until = core_seconds(os.getpid()), time.process_time() + 0.2
    while time.process_time() < until:
        pass
    assert core_seconds(os.getpid()) - before > 0.15


def test_a_process_that_is_gone_has_none() -> None:
    assert core_seconds(1 << 30) == 0.0
