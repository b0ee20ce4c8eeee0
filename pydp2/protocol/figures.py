"""Clip figures: numbers in messages that are used only for statistics and advice.

They come from clocks, and a clock may go backward or have any value. So a figure is clipped when it is made, and when
it is read; a message is never refused because of a figure.
"""

from __future__ import annotations

from pydp2.errors import RemoteProtocolError

FIGURES = frozenset(("busy_us", "idle_us", "generator_us", "store_us", "waited_us", "worked_us", "sent_ns"))
"""Names of the fields that are figures."""
MAX_FIGURE = 1 << 53
"""Largest figure: microseconds of 285 years."""


def microseconds(seconds: float) -> int:
    """Return ``seconds`` as whole microseconds, clipped; 0 for NaN."""
    return int(min(seconds * 1e6, MAX_FIGURE)) if seconds > 0 else 0


def clip(figure: int) -> int:
    """Return ``figure``, clipped to 0 and :data:`MAX_FIGURE`."""
    return min(max(figure, 0), MAX_FIGURE)


def clip_figure(message: str, field: str, value: int) -> int:
    """Return ``value``, which is out of range in ``field`` of ``message``, clipped if that is a figure. Raises
    RemoteProtocolError otherwise."""
    if field not in FIGURES:
        raise RemoteProtocolError(f"{message}.{field}: {value} is out of range")
    return clip(value)
