"""Name the bottleneck, workers or trainer, in one word."""

from __future__ import annotations


def bottleneck_of(waited: float, worked: float) -> str:
    """Return "workers" if the trainer spends its time waiting for batches, "trainer" if
    batches are always there for it.

    Both arguments are seconds over the same stretch. Return "" when the stretch is too short to say.
    """
    total = waited + worked
    if total < 0.05:
        return ""
    share = waited / total
    if share > 0.3:
        return "workers"
    return "trainer" if share < 0.1 else "balanced"
