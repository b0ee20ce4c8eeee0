"""Count how much padding batches of sequences would need."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


class PaddingStats:
    """Share of the delivered batches that would be padding if each were padded to its longest sequence."""

    def __init__(self) -> None:
        self.steps = 0
        self.padded = 0

    def add(self, lengths: npt.NDArray[np.int64]) -> None:
        """Count a batch that was delivered, with sequences of these ``lengths``."""
        self.steps += int(lengths.sum())
        self.padded += len(lengths) * int(lengths.max(initial=0))

    @property
    def share(self) -> float:
        """Part of all steps that would be padding, from 0 to 1."""
        return 1 - self.steps / self.padded if self.padded else 0.0

    def figures(self, slot: str) -> dict[str, Any]:
        """Return the statistics of the slot named ``slot`` as plain data."""
        return {"slot": slot, "steps": self.steps, "places": self.padded, "share": self.share}

    def describe(self, slot: str, bounds: tuple[int, ...] | None) -> str:
        """Return one line about the slot named ``slot`` for the end of a pass."""
        listed = ", ".join(map(str, bounds or ())) or "none"
        return (
            f"{slot} padded to the longest of each batch is {self.share:.1%} padding "
            f"({self.steps} steps in {self.padded} places; bounds of the buckets: {listed})"
        )
