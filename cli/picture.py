"""The demo's picture, with matplotlib, which is imported here and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

_DIGITS = 10


def draw(file: Path, losses: Sequence[float], passes: int, images: Any, labels: Any, predicted: Any) -> None:
    """Save the loss of each batch, and some ``images`` with what they were taken for. No display is needed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    upper, lower = figure.subfigures(2, 1, height_ratios=(3, 1.4))
    axes = upper.subplots()
    each = len(losses) / passes
    axes.plot([(number + 1) / each for number in range(len(losses))], losses, linewidth=0.8)
    axes.set(xlabel="pass", ylabel="loss (cross-entropy)", xlim=(0, passes), ylim=(0, None))
    axes.grid(alpha=0.3)
    for place, image, label, guess in zip(lower.subplots(1, _DIGITS).flat, images, labels, predicted, strict=False):
        place.imshow(image, cmap="gray_r")
        place.set_axis_off()
        right = int(label) == int(guess)
        place.set_title(f"{guess}" if right else f"{guess}, is {label}", color="black" if right else "red", fontsize=9)
    lower.suptitle("held out, and what they were taken for", fontsize=10)
    figure.savefig(file, dpi=120)
