"""What tensors cost over arrays: both loops read the same steps, and the ratios are those of the figures."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from benchmarks import tensors


@pytest.mark.parametrize(("cached", "milliseconds"), [(True, 0.0), (False, 0.0), (True, 1.0)])
def test_a_loop_over_tensors_is_measured_beside_one_over_arrays(
    cached: bool, milliseconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensors, "_FILES", ["0"])
    figures = tensors.measure("words", rounds=1, cached=cached, milliseconds=milliseconds)
    assert ("ratio (mean)" in figures) == (milliseconds > 0)
    assert figures["ratio"] == figures["tensors"] / figures["arrays"]
    assert all(value > 0 for value in figures.values())
