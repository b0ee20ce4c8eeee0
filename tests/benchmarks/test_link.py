"""What the transport alone carries: all rows arrive, and both ends say what a row took."""

from __future__ import annotations

import pytest

from benchmarks import link


@pytest.mark.parametrize("keys", [False, True])
def test_the_bare_transport_carries_rows(keys: bool) -> None:
    rate, sender, receiver = link.carry(4, keys=keys, total=400)
    assert rate > 0
    assert sender > 0
    assert receiver > 0
