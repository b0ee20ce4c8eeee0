"""Write the weights of a mixture as exact fractions, which are the same on every machine."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from pydp2.errors import OptionError, OptionTypeError

_MAX_TEXT = 100  # characters
Shares = tuple[Fraction, ...]
"""Weight of each source; only the ratios count."""


def exact_weight(weight: Any) -> str:
    """Return a weight as the text of an exact fraction. Raises OptionError, OptionTypeError unless it is a number from
    0 on."""
    try:
        share = None if isinstance(weight, bool | bytes) else Fraction(weight)
    except (TypeError, ValueError, OverflowError, ZeroDivisionError):
        share = None
    if share is None or share < 0:
        kind = OptionError if isinstance(weight, int | float) else OptionTypeError
        raise kind(f"a weight must be a number from 0 on, got {weight!r:.80}")
    text = str(share)
    if len(text) > _MAX_TEXT:
        raise OptionError(f"a weight must have at most {_MAX_TEXT} digits as a fraction, got {weight!r:.80}")
    return text


def shares_of(weights: Sequence[str]) -> Shares:
    """Return weights that were written as exact fractions. Raises ValueError if one is below 0, or all are 0."""
    shares = tuple(map(Fraction, weights))
    if any(share < 0 for share in shares) or not any(shares):
        raise ValueError("a weight is below 0, or all are 0")
    return shares
