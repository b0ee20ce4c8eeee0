"""Who waits for whom, in one word."""

from __future__ import annotations


def bottleneck_of(waited: float, worked: float) -> str:
    """ "workers" when the trainer spends its time waiting for batches, "trainer" when they are always there for it.

    Both are seconds over the same stretch; "" when there is too little of it to say.
    """
    total = waited + worked
    if total < 0.05:
        return ""
    share = waited / total
    if share > 0.3:
        return "workers"
    return "trainer" if share < 0.1 else "balanced"
